// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Gloo as an engine. Header only, compiled with the user's own Gloo; link with gloo.
// docs/guide/engines.md.
#pragma once

#include <gloo/config.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "laconic/dtype.h"
#include "laconic/engine.h"
#include "laconic/engine/gloo/interruptible.h"
#include "laconic/engine/gloo/mesh.h"
#include "laconic/engine/gloo/threads.h"
#include "laconic/engine/rendezvous.h"
#include "laconic/engine/ring_sum.h"

namespace laconic {

struct GlooOptions {
  uint32_t rank = 0;
  uint32_t world = 1;
  /// "file:FOLDER", empty and seen by all ranks, or "tcp:HOST:PORT", where rank 0 listens. Not
  /// needed in a world of one.
  std::string rendezvous{};
  /// The network interface that Gloo uses ("eth0"); empty: that of this host's name.
  std::string interface_{};
  /// From the call on; ranks that have not come by then, and been connected, fail the group.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
};

/// Sums go round in a ring, as Gloo's own do: not in rank order, the same bits on all ranks.
/// Everything else goes directly, all at once. Messages may be shorter than their room.
///
/// When a rank dies, every rank that waits gets an Error that names it, in well under a second. A
/// rank that destroys its engine disturbs no rank that has what it needs of it. After the first
/// Error the group is over: all its connections are closed, and no memory of a step is used any
/// more.
class GlooEngine final : public Engine {
 public:
  /// All ranks together.
  static Result<std::unique_ptr<GlooEngine>> create(const GlooOptions& options) {
    if (options.world < 1 || options.rank >= options.world) {
      return Error{Errc::invalid_argument,
                   "there is no rank " + std::to_string(options.rank) + " in a world of " +
                       std::to_string(options.world),
                   {}};
    }
    try {
      std::unique_ptr<GlooEngine> engine(new GlooEngine(options));
      if (options.world > 1) {
        if (auto done = engine->meet(); !done) return done.error();
      }
      return engine;
    } catch (const std::bad_alloc&) {
      return Error{Errc::out_of_memory, "no memory", {}};
    } catch (const std::exception& e) {
      return Error{Errc::engine_failed, std::string("Gloo: ") + e.what(), {}};
    }
  }

  /// "Gloo 0.5.0": the headers that this was compiled with.
  [[nodiscard]] static std::string library() {
    return "Gloo " + std::to_string(GLOO_VERSION_MAJOR) + "." + std::to_string(GLOO_VERSION_MINOR) +
           "." + std::to_string(GLOO_VERSION_PATCH);
  }

  ~GlooEngine() override {
    if (context_ != nullptr && !fault()) {
      if (has_executed_all()) {
        part();
      } else {
        fail({Errc::peer_failed, "rank " + std::to_string(rank()) + " has ended in a batch", {}});
      }
    }
    tear_down();  // whatever is being executed returns
    stop();
  }

  [[nodiscard]] uint32_t rank() const noexcept override { return options_.rank; }
  [[nodiscard]] uint32_t world() const noexcept override { return options_.world; }
  [[nodiscard]] EngineCaps caps() const noexcept override { return {kAllSums, true, 0}; }

  Result<void> run(std::span<const Step> batch) override {
    // The base's thread executes; any other caller waits for it as for any batch.
    if (started_ && (thread_ == std::thread::id() || thread_ == std::this_thread::get_id())) {
      thread_ = std::this_thread::get_id();
      return execute(batch);
    }
    auto ticket = start(batch);
    if (!ticket) return ticket.error();
    return wait(*ticket, Deadline::max());
  }

  Result<Ticket> start(std::span<const Step> batch) override {
    started_ = true;
    auto ticket = Engine::start(batch);
    if (!ticket) return ticket;
    if (posts_ != nullptr) begin(ticket->number, batch);
    return ticket;
  }

  Result<void> wait(Ticket ticket, Deadline deadline) override {
    const Deadline begin = Clock::now();
    // Before the end, so that all ranks have said where they wait when the first one asks.
    const Deadline sign = begin + (deadline - begin) / 4 * 3;
    bool signed_ = false;
    for (;;) {
      auto done = Engine::wait(ticket, std::min(deadline, Clock::now() + kGlance));
      if (done || done.error().code != Errc::timed_out || context_ == nullptr) return done;
      if (fault()) return after_fault(ticket);
      const Deadline now = Clock::now();
      if (now >= deadline) {
        fail(late(ticket, std::chrono::duration_cast<std::chrono::milliseconds>(deadline - begin)));
      } else if (glance()) {
        fail({Errc::peer_failed, {}, {}});
      } else if (!signed_ && now >= sign) {
        signed_ = true;
        (void)board_->put(place(rank(), ticket), "1", soon());
      }
    }
  }

 private:
  using Clock = std::chrono::steady_clock;
  using Buffer = std::unique_ptr<::gloo::transport::UnboundBuffer>;

  /// An operation under way. Its buffer waits for nothing else.
  struct Transfer {
    Buffer buffer;
    bool receives;
  };
  /// A batch that has been started. What it sends and receives is under way from then on, before
  /// its turn to be executed: only sums wait for that.
  struct InFlight {
    std::array<Step, kMaxBatch> steps{};
    size_t count = 0;
    std::vector<Transfer> transfers{};
    std::exception_ptr failure{};
  };

  /// Of sums. Smaller pieces cost more hand-overs between threads, larger ones leave less to add
  /// while others travel.
  static constexpr uint64_t kPiece = uint64_t{2} << 20U;
  static constexpr uint64_t kAhead = 2;
  static constexpr auto kGlance = std::chrono::milliseconds(50);
  static constexpr std::chrono::milliseconds kGrace{250};
  static constexpr auto kForever = std::chrono::hours(24 * 365);
  /// Gloo's collectives begin their slots with small numbers.
  static constexpr uint64_t kSlots = uint64_t{0x4C} << 56, kFarewell = kSlots | uint64_t{1} << 48;

  /// What Gloo wants to know of other ranks while it connects them.
  class Store final : public ::gloo::rendezvous::Store {
   public:
    Store(rendezvous::Board* board, Deadline deadline) : board_(board), deadline_(deadline) {}
    void set(const std::string& key, const std::vector<char>& data) override {
      checked(board_->put(name(key), std::string(data.begin(), data.end()), deadline_));
    }
    std::vector<char> get(const std::string& key) override {
      for (;;) {
        const std::string value = checked(board_->get(name(key), deadline_));
        if (!value.empty()) return {value.begin(), value.end()};
        const std::string news = checked(board_->get(news_of_meeting(), deadline_));
        if (!news.empty()) throw std::runtime_error(rendezvous::read_news(news, {}).message);
        if (Clock::now() >= deadline_)
          throw std::runtime_error("a rank did not come to be connected in time");
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
    }
    void wait(const std::vector<std::string>& keys) override {
      for (const std::string& key : keys) (void)get(key);
    }
    void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds&) override {
      wait(keys);
    }

   private:
    static std::string name(const std::string& key) {
      std::string safe = "gloo." + key;
      for (char& c : safe) c = rendezvous::is_key({&c, 1}) || c == '.' ? c : '_';
      return safe;
    }
    static std::string checked(Result<std::string> result) {
      if (!result) throw std::runtime_error(result.error().message);
      return *std::move(result);
    }
    rendezvous::Board* board_;
    Deadline deadline_;
  };

  explicit GlooEngine(const GlooOptions& options) : options_(options) {}

  static std::string news_of_meeting() { return std::string(rendezvous::kMeeting); }
  static std::string news_of_fault() { return std::string(rendezvous::kFault); }
  static std::string hint() { return "restart the group with the ranks that are left"; }
  static Deadline soon() { return Clock::now() + std::chrono::milliseconds(500); }
  static std::string place(uint32_t rank, Ticket ticket) {
    return "waits." + std::to_string(rank) + "." + std::to_string(ticket.number);
  }

  // ---- the beginning ----

  Result<void> meet() {
    const auto timeout = std::clamp<std::chrono::milliseconds>(
        options_.timeout, std::chrono::milliseconds(1), std::chrono::hours(24 * 30));
    const Deadline deadline = Clock::now() + timeout;
    auto board = rendezvous::open(options_.rendezvous, rank(), world(), deadline);
    if (!board) return board.error();
    board_ = *std::move(board);
    if (auto met = rendezvous::meet(*board_, rank(), world(), timeout, deadline); !met) return met;
    try {
      connect(deadline);
    } catch (const std::exception& e) {
      const Error own{Errc::engine_failed,
                      "Gloo cannot connect rank " + std::to_string(rank()) + ": " + e.what(),
                      "look whether the ranks reach each other over this network interface"};
      const auto told = board_->put(news_of_meeting(), rendezvous::write_news(own), soon());
      return told ? rendezvous::read_news(*told, own.hint) : own;
    }
    return {};
  }

  void connect(Deadline deadline) {
    const detail::NoSigpipe guard;
    ::gloo::transport::tcp::attr attributes;
    attributes.iface = options_.interface_;
    auto device = detail::with_batch_threads(
        [&] { return ::gloo::transport::tcp::CreateDevice(attributes); });
    auto context =
        std::make_shared<detail::GlooMesh>(static_cast<int>(rank()), static_cast<int>(world()));
    // The last rank to come leaves a moment for this.
    const Deadline end = std::max(deadline, Clock::now() + std::chrono::seconds(1));
    context->setTimeout(std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()));
    Store store(board_.get(), end);
    context->connect(store, device, end);
    terms_ = std::make_unique_for_overwrite<uint8_t[]>(kAhead * kPiece);
    farewells_.resize(world());
    watches_.resize(world());
    for (uint32_t peer = 0; peer < world(); ++peer) {
      if (peer == rank()) continue;
      watches_[peer] = context->createUnboundBuffer(&farewells_[peer], 1);
      watches_[peer]->recv(static_cast<int>(peer), kFarewell);
    }
    batches_ = std::make_shared<detail::GlooInterruptible>(context);
    posts_ = std::make_unique<detail::InGloosThread>(device, [this] { post_what_has_begun(); });
    context_ = std::move(context);
  }

  // ---- batches ----

  Result<void> execute(std::span<const Step> batch) noexcept {
    if (auto known = fault()) return *std::move(known);
    const detail::NoSigpipe guard;
    executing_ = true;
    Result<void> result = Errc::ok;
    const uint64_t number = executed_ + 1;  // they are executed in the order of their starts
    InFlight& own = in_flight(number);
    try {
      if (posts_ != nullptr) {
        std::unique_lock lock(in_flight_mutex_);
        posted_changed_.wait(lock, [&] { return posted_ >= number; });
      }
      if (own.failure) std::rethrow_exception(own.failure);
      for (const Step& step : batch) step.kind == StepKind::all_reduce ? sum(step) : keep_own(step);
      for (Transfer& t : own.transfers) {
        (void)(t.receives ? t.buffer->waitRecv(kForever) : t.buffer->waitSend(kForever));
      }
    } catch (const std::bad_alloc&) {
      result = fail({Errc::out_of_memory, {}, {}});
    } catch (const std::exception& e) {
      result = fail({Errc::peer_failed, {}, {}}, e.what());
    } catch (...) {
      result = fail({Errc::peer_failed, {}, {}});
    }
    own.transfers.clear();
    own.failure = nullptr;
    const std::lock_guard lock(in_flight_mutex_);
    executed_ = number;
    if (posted_ < begun_) posts_->ask();  // what has waited for a sum
    executing_ = false;
    return result;
  }

  InFlight& in_flight(uint64_t number) noexcept { return in_flight_[number % kMaxTickets]; }

  bool has_executed_all() {
    const std::lock_guard lock(in_flight_mutex_);
    return executed_ == begun_;
  }

  void begin(uint64_t number, std::span<const Step> batch) noexcept {
    std::unique_lock lock(in_flight_mutex_);
    InFlight& own = in_flight(number);
    std::copy(batch.begin(), batch.end(), own.steps.begin());
    own.count = batch.size();
    begun_ = number;
    lock.unlock();
    posts_->ask();
    // On a core that Gloo's thread shares: it posts now, and not when the caller, who is about to
    // encode the next part, waits for something.
    ::sched_yield();
  }

  /// In Gloo's thread. Nothing is posted while the engine's own thread sums: one of two that use a
  /// connection may have to close it, and waits for Gloo's thread, then.
  void post_what_has_begun() noexcept {
    const auto sums = [](const Step& step) { return step.kind == StepKind::all_reduce; };
    for (std::unique_lock lock(in_flight_mutex_); posted_ < begun_; ++posted_) {
      const InFlight& before = in_flight(posted_);
      const std::span last(before.steps.data(), before.count);
      if (executed_ < posted_ && std::ranges::any_of(last, sums)) return;
      InFlight& next = in_flight(posted_ + 1);
      lock.unlock();
      try {
        for (const Step& step : std::span(next.steps.data(), next.count))
          post(step, &next.transfers);
      } catch (...) {
        next.failure = std::current_exception();
      }
      lock.lock();
      posted_changed_.notify_all();
    }
  }

  /// What this rank sends to itself.
  void keep_own(const Step& step) const noexcept {
    if (step.kind == StepKind::messages || step.send_counts[rank()] == 0) return;
    const uint8_t* own = step.send + step.send_offsets[rank()];
    uint8_t* place = step.recv + step.recv_offsets[rank()];
    if (own != place) std::memmove(place, own, step.send_counts[rank()]);
  }

  /// Begins what is no sum.
  void post(const Step& step, std::vector<Transfer>* transfers) {
    if (step.kind == StepKind::all_reduce) return;
    const uint64_t slot = kSlots | step.tag;
    const auto receive = [&](uint32_t peer, uint8_t* at, uint64_t room) {
      if (room == 0) return;
      transfers->push_back({batches_->createUnboundBuffer(at, room), true});
      transfers->back().buffer->recv(static_cast<int>(peer), slot);
    };
    const auto send = [&](uint32_t peer, const uint8_t* at, uint64_t bytes) {
      if (bytes == 0) return;
      transfers->push_back({batches_->createUnboundBuffer(const_cast<uint8_t*>(at), bytes), false});
      transfers->back().buffer->send(static_cast<int>(peer), slot);
    };
    if (step.kind == StepKind::messages) {
      for (const Message& m : step.messages) receive(m.peer, m.recv, m.recv_room);
      for (const Message& m : step.messages) send(m.peer, m.send, m.send_bytes);
      return;
    }
    for (uint32_t k = 1; k < world(); ++k) {  // everybody begins with another one
      const uint32_t peer = (rank() + world() - k) % world();
      receive(peer, step.recv + step.recv_offsets[peer], step.recv_counts[peer]);
    }
    for (uint32_t k = 1; k < world(); ++k) {
      const uint32_t peer = (rank() + k) % world();
      send(peer, step.send + step.send_offsets[peer], step.send_counts[peer]);
    }
  }

  /// Terms go round, then sums: RingSum. Receives are posted ahead, because Gloo sends nothing
  /// before.
  void sum(const Step& step) {
    if (step.count == 0 || world() == 1) return;
    const uint64_t size = dtype_size(step.dtype), slot = kSlots | step.tag;
    const detail::RingSum ring(step, rank(), world(), kPiece);
    const auto from = static_cast<int>((rank() + 1) % world());
    const auto to = static_cast<int>((rank() + world() - 1) % world());
    const Buffer lanes = batches_->createUnboundBuffer(step.recv, step.count * size);
    const Buffer terms = batches_->createUnboundBuffer(terms_.get(), kAhead * kPiece);
    uint64_t received = 0, posted = 0, sent = 0;  // turns; sent: whose memory is free again
    const auto end_send = [&] {
      if (ring.sent(sent++).bytes != 0) lanes->waitSend(kForever);
    };
    const auto end_receive = [&] {
      const uint64_t turn = received++;
      const auto range = ring.received(turn);
      if (range.bytes == 0) return;
      if (turn >= ring.half()) return static_cast<void>(lanes->waitRecv(kForever));
      terms->waitRecv(kForever);
      add_lanes(step.dtype, step.recv + range.offset, step.scale,
                terms_.get() + turn % kAhead * kPiece, turn < ring.pieces() ? step.scale : 1.0F,
                range.bytes / size);
    };
    // A sum comes to where a term was sent from. False: that term has not been sent before `turn`.
    const auto post = [&](uint64_t turn) {
      const auto range = ring.received(posted);
      if (posted >= ring.half()) {
        const uint64_t term = posted - ring.half();
        if (term >= turn) return false;
        while (sent <= term) end_send();
        if (range.bytes != 0) lanes->recv(from, slot, range.offset, range.bytes);
      } else if (range.bytes != 0) {
        terms->recv(from, slot, posted % kAhead * kPiece, range.bytes);
      }
      ++posted;
      return true;
    };
    for (uint64_t turn = 0; turn < ring.turns(); ++turn) {
      while (received + kAhead <= turn || received + ring.pieces() <= turn) end_receive();
      while (sent + kAhead <= turn) end_send();
      while (posted < std::min(received + kAhead, ring.turns()) && post(turn)) {
      }
      const auto range = ring.sent(turn);
      if (range.bytes != 0) lanes->send(to, slot, range.offset, range.bytes);
    }
    while (received < ring.turns()) {
      while (posted < std::min(received + kAhead, ring.turns()) && post(ring.turns())) {
      }
      end_receive();
    }
    while (sent < ring.turns()) end_send();
  }

  // ---- failures ----

  std::optional<Error> fault() {
    const std::lock_guard lock(mutex_);
    return fault_;
  }

  /// The group is over. `why` without a message: a connection has broken, or memory is short.
  Error fail(Error why, const char* said = "") noexcept {
    const std::lock_guard lock(mutex_);
    const detail::NoSigpipe guard;
    if (!fault_) {
      const Errc code = why.code;
      try {
        fault_ = agree(std::move(why), said);
      } catch (...) {
        fault_ = Error{code, {}, {}};
      }
      tear_down();  // not before the others can read why
    }
    try {
      return *fault_;
    } catch (...) {
      return {fault_->code, {}, {}};
    }
  }

  /// What all ranks say has happened: the first of them that hears of it writes it on the board.
  Error agree(Error own, const char* said) {
    if (context_ == nullptr) return own;  // one rank
    const auto told = board_->get(news_of_fault(), soon());
    if (told && !told->empty()) return rendezvous::read_news(*told, hint());
    own.hint = hint();
    if (!told) {
      if (board_->kept_by_rank_0()) return without_board(std::move(own), told.error());
    }
    const bool no_memory = own.code == Errc::out_of_memory;
    if (no_memory)
      own.message = "rank " + std::to_string(rank()) + " has no memory";
    else if (own.message.empty())
      own.message = who_is_gone(said);
    Error news{no_memory ? Errc::peer_failed : own.code, own.message, {}};
    const auto first = board_->put(news_of_fault(), rendezvous::write_news(news), soon());
    if (!first || no_memory) return own;
    return rendezvous::read_news(*first, hint());
  }

  /// The board is lost, and rank 0 with it, unless that one ended in peace.
  Error without_board(Error own, const Error& lost) {
    if (lost.code == Errc::timed_out) return {Errc::timed_out, "rank 0 did not answer", hint()};
    if (own.message.empty()) own.message = who_is_gone("");  // before others leave because of it
    for (const Deadline until = soon(); rank() != 0 && Clock::now() < until;) {
      if (is_gone(0)) return {Errc::peer_failed, "rank 0 is gone", hint()};
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return own;
  }

  std::string who_is_gone(const char* said) {
    std::vector<uint32_t> gone, ended;
    for (uint32_t peer = 0; peer < world(); ++peer) {
      if (is_gone(peer)) gone.push_back(peer);
    }
    // Gloo tells the waits for a connection that has broken one by one, the watch perhaps last, but
    // under the lock that takes_more needs.
    const bool unclear = gone.empty();
    for (uint32_t peer = 0; unclear && peer < world(); ++peer) {
      if (!takes_more(peer)) (is_gone(peer) ? gone : ended).push_back(peer);
    }
    if (!gone.empty()) return names_of(gone) + (gone.size() == 1 ? " is gone" : " are gone");
    if (!ended.empty())
      return names_of(ended) + (ended.size() == 1 ? " has" : " have") + " ended before the others";
    return std::string("Gloo failed: ") + said;
  }

  /// Some rank's connection has broken.
  bool glance() {
    const std::lock_guard lock(mutex_);
    for (uint32_t peer = 0; peer < world(); ++peer) {
      if (is_gone(peer)) return true;
    }
    return false;
  }

  /// The connection has broken without a farewell. A wait that was broken off before it began tells
  /// at once.
  bool is_gone(uint32_t peer) noexcept {
    if (watches_[peer] == nullptr) return false;
    try {
      watches_[peer]->abortWaitRecv();
      (void)watches_[peer]->waitRecv(nullptr, kForever);
      return false;
    } catch (...) {
      return true;
    }
  }

  /// The connection stands.
  bool takes_more(uint32_t peer) noexcept {
    if (peer == rank()) return true;
    try {
      const auto no_posts = posts_->pause();
      char byte = 0;
      context_->createUnboundBuffer(&byte, 1)->recv(static_cast<int>(peer), kFarewell + 1);
      return true;
    } catch (...) {
      return false;
    }
  }

  /// Who did not come to the batch, of those whom it needs.
  Error late(Ticket ticket, std::chrono::milliseconds waited) {
    std::vector<bool> needed(world(), false);
    const InFlight& own = in_flight(ticket.number);
    for (const Step& step : std::span(own.steps.data(), own.count)) {
      if (step.kind != StepKind::messages) needed.assign(world(), true);
      for (const Message& m : step.messages) needed[m.peer] = true;
    }
    // Those who are about to say where they wait have a moment for it.
    const Deadline until = Clock::now() + std::min(waited / 4, kGrace);
    std::vector<uint32_t> absent;
    for (;;) {
      absent.clear();
      for (uint32_t peer = 0; peer < needed.size(); ++peer) {
        if (!needed[peer] || peer == rank()) continue;
        const auto there = board_->get(place(peer, ticket), soon());
        if (there && there->empty()) absent.push_back(peer);
      }
      if (absent.size() < 2 || Clock::now() >= until) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return {Errc::timed_out,
            (absent.empty() ? "a batch did not end" : names_of(absent) + " did not answer") +
                " within " + std::to_string(waited.count()) + " ms",
            hint()};
  }

  /// The batch may have been complete all the same.
  Result<void> after_fault(Ticket ticket) {
    const auto done = Engine::wait(ticket, Clock::now() + std::chrono::seconds(5));
    if (done) return done;
    Error known = *fault();
    if (executing_) known.code = Errc::timed_out;  // its memory is still in use
    return known;
  }

  /// Tells every peer that what it does not get any more it does not need.
  void part() noexcept {
    const detail::NoSigpipe guard;
    const Deadline until = Clock::now() + std::chrono::seconds(1);
    try {
      char byte = 1;
      std::vector<Buffer> sent;
      for (uint32_t peer = 0; peer < world(); ++peer) {
        if (peer == rank()) continue;
        try {
          Buffer buffer = context_->createUnboundBuffer(&byte, 1);
          buffer->send(static_cast<int>(peer), kFarewell);
          sent.push_back(std::move(buffer));
        } catch (const std::exception&) {  // it has ended already
        }
      }
      for (const Buffer& buffer : sent) {
        const auto left =
            std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now());
        (void)buffer->waitSend(std::max(left, std::chrono::milliseconds(1)));
      }
    } catch (...) {
    }
  }

  /// Closes all connections, which is what Gloo does when a wait has timed out, and ends all waits.
  void tear_down() noexcept {
    if (posts_ == nullptr) return;
    try {
      const auto no_posts = posts_->pause();
      char byte = 0;
      (void)context_->createUnboundBuffer(&byte, 1)->waitRecv(std::chrono::milliseconds(1));
    } catch (...) {
    }
    batches_->break_off();
  }

  const GlooOptions options_;
  std::unique_ptr<rendezvous::Board> board_;
  std::shared_ptr<::gloo::rendezvous::Context> context_;
  std::shared_ptr<detail::GlooInterruptible> batches_;  // the same connections
  std::unique_ptr<uint8_t[]> terms_;
  std::vector<char> farewells_;
  std::vector<Buffer> watches_;
  std::mutex mutex_;  // of what follows, and of the watches
  std::optional<Error> fault_;
  std::atomic<bool> executing_ = false, started_ = false;
  std::atomic<std::thread::id> thread_{};
  std::mutex in_flight_mutex_;  // of the numbers below and of what is between them
  std::condition_variable posted_changed_;
  std::array<InFlight, kMaxTickets> in_flight_;
  uint64_t begun_ = 0, posted_ = 0, executed_ = 0;  // of tickets, in order
  std::unique_ptr<detail::InGloosThread> posts_;    // last: it ends first
};

}  // namespace laconic
