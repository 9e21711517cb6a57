// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Ranks of an MPI job. Header only: compiled with the MPI of the program that includes it, because
// the ABIs of MPI libraries differ. docs/guide/engines.md.
#pragma once

#ifndef OMPI_SKIP_MPICXX
#define OMPI_SKIP_MPICXX 1
#endif
#ifndef MPICH_SKIP_MPICXX
#define MPICH_SKIP_MPICXX 1
#endif
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "laconic/dtype.h"
#include "laconic/engine.h"
#include "laconic/engine/cut_messages.h"
#include "laconic/engine/large_sum.h"
#include "laconic/engine/names_of.h"
#include "laconic/error.h"

namespace laconic {

struct MpiOptions {
  /// Ranks that do not come within it, to the constructor or to the destructor, are not waited for.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  /// A thread of the engine's own keeps messages moving between start and wait, where MPI allows it
  /// (MPI_THREAD_MULTIPLE): without it most libraries move them only inside of their calls.
  bool background = true;
  /// Bytes of one MPI call, whose counts are ints. The same on all ranks; at least 4.
  uint64_t largest_call = uint64_t{1} << 30;
  /// The same between ranks on two hosts. Before a call of more than 64 KiB Open MPI asks the
  /// receiver, and meanwhile a slow link stands idle. MPICH gains by 8000 at 100 Mbit/s, and takes
  /// twice as long where the network is fast.
#if defined(OPEN_MPI)
  uint64_t far_call = 64000;
#else
  uint64_t far_call = uint64_t{1} << 30;
#endif
  /// Ranks that give the same are on one host. Empty: MPI_Get_processor_name.
  std::string host{};
  /// From so many bytes for each rank on the engine adds itself, in rank order: MPI_Iallreduce is
  /// slower than MPI_Allreduce there. The same on all ranks.
  uint64_t large_share = uint64_t{1} << 18;
};

/// On a communicator of its own. Between MPI_THREAD_SINGLE and _FUNNELED batches begin when they
/// are waited for, by the thread that initialised MPI.
///
/// After an Error the engine is dead: later calls give the same one. MPI may then still use the
/// memory of batches in flight, as long as the process lives: it is never freed.
class MpiEngine final : public Engine {
 public:
  /// All processes of the job. Initialises MPI where nobody has, and then finalises it in the
  /// destructor, unless the engine has failed: MPI_Finalize waits for every rank. What goes wrong
  /// here is told by status(), and by Session::create.
  MpiEngine(int* argc, char*** argv, MpiOptions options = {}) noexcept
      : options_(std::move(options)) {
    guarded([&] { initialise(argc, argv); });
  }
  /// The processes of a communicator, all together; MPI has been initialised.
  explicit MpiEngine(MPI_Comm communicator, MpiOptions options = {}) noexcept
      : options_(std::move(options)) {
    guarded([&] {
      if (ready()) open(communicator);
    });
  }
  ~MpiEngine() override {
    end_thread();
    if (is_open()) leave();
  }

  /// Why the engine cannot be used; nothing while it can.
  [[nodiscard]] Result<void> status() const {
    const std::lock_guard lock(mutex_);
    return status_;
  }
  /// "Open MPI 4.1.4"
  [[nodiscard]] static std::string library() {
#if defined(OPEN_MPI)
    return "Open MPI " + std::to_string(OMPI_MAJOR_VERSION) + "." +
           std::to_string(OMPI_MINOR_VERSION) + "." + std::to_string(OMPI_RELEASE_VERSION);
#elif defined(MPICH_VERSION)
    return "MPICH " MPICH_VERSION;
#else
    return "MPI " + std::to_string(MPI_VERSION) + "." + std::to_string(MPI_SUBVERSION);
#endif
  }

  [[nodiscard]] uint32_t rank() const noexcept override { return rank_; }
  [[nodiscard]] uint32_t world() const noexcept override { return world_; }
  [[nodiscard]] EngineCaps caps() const noexcept override {
    const uint64_t most = ~uint64_t{0} / world_;
    return {kAllSums, true, std::min(options_.large_share, most) * world_};
  }

  Result<void> run(std::span<const Step> batch) override {
    auto ticket = start(batch);
    return ticket ? wait(*ticket, Deadline::max()) : Result<void>(std::move(ticket).error());
  }

  Result<Ticket> start(std::span<const Step> batch) override {
    if (batch.size() > kMaxBatch) {
      return Error{Errc::invalid_argument,
                   "a batch has at most " + std::to_string(kMaxBatch) + " steps, found " +
                       std::to_string(batch.size()),
                   {}};
    }
    const std::lock_guard lock(mutex_);
    if (!status_) return status_.error();
    const auto found =
        std::find_if(jobs_.begin(), jobs_.end(), [](const Job& j) { return !j.used; });
    if (found == jobs_.end()) {
      return Error{Errc::exchange_order,
                   std::to_string(kMaxTickets) + " batches have not been waited for",
                   "wait for each ticket"};
    }
    Job& job = *found = {};
    std::copy(batch.begin(), batch.end(), job.steps.begin());
    job.count = batch.size();
    job.number = ++last_;
    job.used = true;
    job.begun = std::chrono::steady_clock::now();
    if (overlaps()) {
      guarded([&] { issue(); });
      if (!status_) return status_.error();
      if (!requests_.empty()) wake_thread();
    }
    return Ticket{job.number};
  }

  Result<void> wait(Ticket ticket, Deadline deadline) override {
    std::unique_lock lock(mutex_);
    Job* const found = find(ticket.number);
    if (found == nullptr || !found->used) {
      return Error{Errc::exchange_order, "the engine has no such ticket",
                   "wait for each ticket once"};
    }
    Job& job = *found;
    waiting_ = true;
    if (status_) guarded([&] { finish(job, deadline, lock); });
    waiting_ = false;
    if (!requests_.empty()) wake_thread();
    job.used = false;
    return job.ended() ? Result<void>() : status_;
  }

 private:
  struct Job {
    std::array<Step, kMaxBatch> steps{};
    size_t count = 0;
    uint64_t number = 0;
    bool used = false;
    size_t issued = 0;     // steps
    uint64_t pending = 0;  // requests
    std::chrono::steady_clock::time_point begun;
    [[nodiscard]] bool ended() const { return issued == count && pending == 0; }
  };
  enum class Kind : uint8_t { sum, send, receive, receive_short };
  using CutMessages = detail::CutMessages;
  using LargeSum = detail::LargeSum;
  using Range = LargeSum::Range;
  /// One while its terms are exchanged. All ranks post the same messages in the same order, so tags
  /// need not tell them apart.
  struct Large {
    LargeSum sum;
    uint64_t job = 0;                                      // 0: there is none
    uint64_t posted = 0, summed = 0;                       // pieces
    std::array<uint32_t, LargeSum::kMostAhead> pending{};  // calls with terms, by piece
    [[nodiscard]] uint32_t& pending_of(uint64_t number) {
      return pending[number % LargeSum::kMostAhead];
    }
  };
  /// What a request is for; beside it in requests_.
  struct Part {
    uint64_t job = 0;
    Kind kind = Kind::sum;
    int peer = -1;  // of a sum none
    int tag = 0;
    uint8_t* at = nullptr;
    uint64_t bytes = 0;  // exactly, or of receive_short the room
    size_t message = CutMessages::kNone;
    bool term = false;  // counted in Large::pending, for this piece:
    uint64_t piece = 0;
  };
  /// Calls of a message that are posted ahead.
  static constexpr int kCallsAhead = 8;

  // ---- beginning ----

  template <class Body>
  void guarded(const Body& body) noexcept {
    try {
      body();
    } catch (const std::bad_alloc&) {
      die(Errc::out_of_memory);
    } catch (...) {
      die(Errc::engine_failed);
    }
  }
  void die(Result<void> why) noexcept {
    if (status_) status_ = std::move(why);
  }
  /// False, and the end of the engine, if an MPI call gave an error.
  bool good(int code, const char* doing, int peer = -1) {
    if (code == MPI_SUCCESS) return true;
    const std::string whose = peer < 0 ? "" : " rank " + std::to_string(peer);
    std::array<char, MPI_MAX_ERROR_STRING> text{};
    int length = 0, kind = MPI_ERR_OTHER;
    MPI_Error_string(code, text.data(), &length);
    MPI_Error_class(code, &kind);
    die(Error{kind == MPI_ERR_TRUNCATE ? Errc::exchange_order : Errc::engine_failed,
              "mpi: " + std::string(doing) + whose + ": " +
                  std::string(text.data(), static_cast<size_t>(length)),
              "restart the job"});
    return false;
  }

  static bool is_open() noexcept {
    int begun = 0, ended = 0;
    MPI_Initialized(&begun);
    MPI_Finalized(&ended);
    return begun != 0 && ended == 0;
  }
  /// MPI can be used; else that is the engine's status.
  bool ready() {
    if (is_open()) return true;
    int ended = 0;
    MPI_Finalized(&ended);
    die(ended != 0 ? Error{Errc::engine_failed, "mpi: MPI has been finalised",
                           "a process initialises MPI once: keep the first engine"}
                   : Error{Errc::engine_failed, "mpi: MPI has not been initialised",
                           "call MPI_Init_thread, or give the engine argc and argv"});
    return false;
  }

  void initialise(int* argc, char*** argv) {
    int begun = 0, level = 0;
    MPI_Initialized(&begun);
    if (begun == 0) {
      if (!good(MPI_Init_thread(argc, argv, MPI_THREAD_MULTIPLE, &level), "MPI_Init_thread"))
        return;
      finalises_ = true;
      MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    }
    if (ready()) open(MPI_COMM_WORLD);
  }

  void open(MPI_Comm from) {
    MPI_Query_thread(&level_);
    if (!launched_by_this_library() || !duplicate(from)) return;
    int rank = 0, size = 0, found = 0;
    void* upper = nullptr;
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
    if (!good(MPI_Comm_rank(comm_, &rank), "MPI_Comm_rank") ||
        !good(MPI_Comm_size(comm_, &size), "MPI_Comm_size") ||
        !good(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&upper), &found),
              "MPI_TAG_UB") ||
        !good(MPI_Op_create(&add<f16_to_float, float_to_f16>, 1, &sum_f16_), "MPI_Op_create") ||
        !good(MPI_Op_create(&add<bf16_to_float, float_to_bf16>, 1, &sum_bf16_), "MPI_Op_create"))
      return;
    // 32767 is what every library has. Messages that have the same tag keep their order.
    const int most = found != 0 ? *static_cast<int*>(upper) : 32767;
    while (tag_mask_ < (1U << 28) - 1 && 2 * tag_mask_ + 1 <= static_cast<uint32_t>(most))
      tag_mask_ = 2 * tag_mask_ + 1;
    rank_ = static_cast<uint32_t>(rank);
    world_ = static_cast<uint32_t>(size);
    for (uint64_t* call : {&options_.largest_call, &options_.far_call})
      *call = std::clamp<uint64_t>(*call, 4, uint64_t{1} << 30) / 4 * 4;
    waits_.spin = Idle::spin(world_);
    reserve(4 * uint64_t{world_});
    hosts_ = std::make_shared<std::vector<uint64_t>>(world_);
    if (world_ > 1 && find_hosts()) {
      const bool one_host = std::all_of(hosts_->begin(), hosts_->end(),
                                        [&](uint64_t h) { return h == hosts_->front(); });
      pace_ = LargeSum::pace(world_, one_host);
      if (!one_host) waits_.yield = std::chrono::microseconds(500);
      pace_.piece_bytes = std::min(pace_.piece_bytes, options_.largest_call);
      terms_ = std::make_shared_for_overwrite<uint8_t[]>(pace_.ahead * world_ * pace_.piece_bytes);
    }
  }

  /// Every rank's host, as a hash.
  bool find_hosts() {
    if (options_.host.empty()) {
      std::array<char, MPI_MAX_PROCESSOR_NAME> name{};
      int length = 0;
      if (!good(MPI_Get_processor_name(name.data(), &length), "MPI_Get_processor_name"))
        return false;
      options_.host.assign(name.data(), static_cast<size_t>(length));
    }
    uint64_t own = 0xcbf29ce484222325U;  // FNV-1a
    for (const char c : options_.host) own = (own ^ static_cast<uint8_t>(c)) * 0x100000001b3U;
    (*hosts_)[rank_] = own;
    keep_until_end(hosts_);
    MPI_Request request = MPI_REQUEST_NULL;
    if (!good(MPI_Iallgather(MPI_IN_PLACE, 0, MPI_UINT64_T, hosts_->data(), 1, MPI_UINT64_T, comm_,
                             &request),
              "MPI_Iallgather"))
      return false;
    if (complete(request, "MPI_Iallgather", end_of_patience())) return true;
    keep_for_good();
    return not_every_rank_came();
  }
  /// Bytes of a call.
  [[nodiscard]] uint64_t call_to(uint32_t peer) const {
    return (*hosts_)[peer] == (*hosts_)[rank_] ? options_.largest_call
                                               : std::min(options_.far_call, options_.largest_call);
  }

  /// Under the launcher of another MPI library every process would be a world of its own.
  bool launched_by_this_library() {
    int size = 0;
    if (!good(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size")) return false;
    std::string other;
    for (const auto& [variable, name] :
         {std::pair{"OMPI_COMM_WORLD_SIZE", "Open MPI"}, std::pair{"PMI_SIZE", "MPICH"}}) {
      const char* started = std::getenv(variable);
      if (started == nullptr) continue;
      if (std::to_string(size) == started) return true;
      other = std::string(name) + "'s launcher has started " + started + " (" + variable + ")";
    }
    if (other.empty()) return true;
    die(Error{Errc::engine_failed,
              "mpi: " + library() + " sees " + std::to_string(size) +
                  (size == 1 ? " rank, " : " ranks, ") + other,
              "launch with the mpirun of the MPI that the program is built with"});
    return false;
  }

  bool duplicate(MPI_Comm from) {
    MPI_Request request = MPI_REQUEST_NULL;
    joined_ = true;
    if (!good(MPI_Comm_idup(from, &comm_, &request), "MPI_Comm_idup")) return false;
    return complete(request, "MPI_Comm_idup", end_of_patience()) || not_every_rank_came();
  }
  bool not_every_rank_came() {
    die(Error{Errc::timed_out,
              "mpi: not every rank made its engine within " +
                  std::to_string(options_.timeout.count()) + " ms",
              "look for the rank that stopped"});
    return false;
  }
  [[nodiscard]] Deadline end_of_patience() const {
    return std::chrono::steady_clock::now() + options_.timeout;
  }
  bool complete(MPI_Request& request, const char* doing, Deadline deadline) {
    for (Idle idle(waits_);; idle.pause()) {
      int done = 0;
      if (!good(MPI_Test(&request, &done, MPI_STATUS_IGNORE), doing)) return false;
      if (done != 0) return true;
      if (std::chrono::steady_clock::now() >= deadline) return false;
    }
  }

  // ---- sums of 16 bits, rounded after each addition ----

  template <float (*widen)(uint16_t) noexcept, uint16_t (*narrow)(float) noexcept>
  static void add(void* in, void* inout, int* count, MPI_Datatype* /*uint16*/) {
    const auto* x = static_cast<const uint16_t*>(in);
    auto* total = static_cast<uint16_t*>(inout);
    for (int i = 0; i < *count; ++i) total[i] = narrow(widen(total[i]) + widen(x[i]));
  }

  // ---- issuing ----

  [[nodiscard]] bool overlaps() const { return level_ >= MPI_THREAD_SERIALIZED; }
  /// A ticket may be waited for long after later ones: numbers say nothing about places.
  Job* find(uint64_t number) {
    for (Job& job : jobs_) {
      if (job.number == number) return &job;
    }
    return nullptr;
  }

  void reserve(uint64_t more) {
    requests_.reserve(requests_.size() + more);
    parts_.reserve(parts_.size() + more);
    done_.reserve(requests_.size() + more);
    statuses_.reserve(requests_.size() + more);
  }

  /// All steps that may begin, in order. A message of which calls are to come holds up what has its
  /// tag, and everything behind that; so does a large sum while its terms are exchanged.
  void issue() {
    while (next_ <= last_ && large_.job == 0 && status_) {
      Job* const found = find(next_);
      if (found == nullptr || found->issued == found->count) {  // none: it has been waited for
        ++next_;
        continue;
      }
      Job& job = *found;
      const Step& step = job.steps[job.issued];
      if (messages_.hold_up(tag_of(step))) return;
      step.kind == StepKind::all_reduce ? issue_sum(job, step) : issue_messages(job, step);
      if (status_) ++job.issued;
    }
  }

  [[nodiscard]] int tag_of(const Step& step) const {
    return static_cast<int>(step.tag & tag_mask_);
  }

  void issue_sum(Job& job, const Step& step) {
    const MPI_Datatype type = step.dtype == DType::f32   ? MPI_FLOAT
                              : step.dtype == DType::i32 ? MPI_UINT32_T  // it wraps
                                                         : MPI_UINT16_T;
    const MPI_Op op = dtype_size(step.dtype) == 4 ? MPI_SUM
                      : step.dtype == DType::f16  ? sum_f16_
                                                  : sum_bf16_;
    if (!caps().can_sum(step.dtype))
      return die(Error{Errc::dtype_unsupported,
                       "mpi: lanes of " + std::string(dtype_name(step.dtype)) + " are not summed",
                       {}});
    const uint64_t size = dtype_size(step.dtype), most = options_.largest_call / size;
    if (step.send != step.recv && step.count != 0)
      std::memmove(step.recv, step.send, step.count * size);
    if (is_large(step.count * size)) return begin_large(job, step);
    scale_lanes(step, step.recv, step.count);
    for (uint64_t done = 0; done < step.count && status_; done += most) {
      const auto count = static_cast<int>(std::min(most, step.count - done));
      MPI_Request* request = add_request(job, {.kind = Kind::sum});
      good(MPI_Iallreduce(MPI_IN_PLACE, step.recv + done * size, count, type, op, comm_, request),
           "MPI_Iallreduce");
    }
  }

  // ---- large sums ----

  /// The same on all ranks.
  [[nodiscard]] bool is_large(uint64_t bytes) const {
    return world_ > 1 && bytes != 0 && bytes / world_ >= options_.large_share;
  }
  void begin_large(Job& job, const Step& step) {
    large_ = {.sum = LargeSum(step, rank_, world_, pace_.piece_bytes), .job = job.number};
    ++job.pending;
    go_on_with_large();
  }

  [[nodiscard]] uint8_t* term_of(uint32_t peer, uint64_t number) const {
    return terms_.get() + (number % pace_.ahead * world_ + peer) * pace_.piece_bytes;
  }

  void go_on_with_large() {
    Job& job = *find(large_.job);
    const uint64_t pieces = large_.sum.pieces();
    while (status_) {
      while (large_.posted < pieces && large_.posted < large_.summed + pace_.ahead)
        exchange_terms(job, large_.posted++);
      if (large_.summed == pieces) {
        --job.pending;
        large_.job = 0;
        return;
      }
      if (large_.pending_of(large_.summed) != 0) return;
      add_terms(large_.summed);
      hand_round(job, large_.summed++);
    }
  }
  void exchange_terms(Job& job, uint64_t number) {
    const Range mine = large_.sum.piece_of(rank_, number);
    for_peers([&](uint32_t before, uint32_t) {
      post(job, Kind::receive, before, {term_of(before, number), mine.bytes}, number, true);
    });
    for_peers([&](uint32_t, uint32_t behind) {
      post(job, Kind::send, behind, large_.sum.piece_of(behind, number), number, true);
    });
  }
  void add_terms(uint64_t number) {
    large_.sum.add_piece(
        number, [&](uint32_t peer) { return term_of(peer, number); },
        [](DType type, uint8_t* total, float of_total, const uint8_t* x, float of_x,
           uint64_t count) { add_lanes(type, total, of_total, x, of_x, count); });
  }
  /// Terms of this piece have left the memory that the sums of others come to.
  void hand_round(Job& job, uint64_t number) {
    for_peers([&](uint32_t before, uint32_t) {
      post(job, Kind::receive, before, large_.sum.piece_of(before, number), number, false);
    });
    for_peers([&](uint32_t, uint32_t behind) {
      post(job, Kind::send, behind, large_.sum.piece_of(rank_, number), number, false);
    });
  }
  void post(Job& job, Kind kind, uint32_t peer, Range range, uint64_t number, bool term) {
    Part part{.kind = kind,
              .peer = static_cast<int>(peer),
              .tag = tag_of(large_.sum.step()),
              .at = range.at,
              .term = term,
              .piece = number};
    const uint64_t call = call_to(peer);
    for (uint64_t done = 0; done < range.bytes && status_; done += call, part.at += call) {
      if (term) ++large_.pending_of(number);
      post_part(job, part, std::min(call, range.bytes - done));
    }
  }
  /// Everybody begins with another one.
  template <class Body>
  void for_peers(const Body& body) {
    for (uint32_t i = 1; i < world_; ++i) body((rank_ + world_ - i) % world_, (rank_ + i) % world_);
  }

  // ---- messages ----

  void issue_messages(Job& job, const Step& step) {
    if (step.kind == StepKind::messages) {
      for (const Message& m : step.messages) receive(job, step, m.peer, m.recv, m.recv_room);
      for (const Message& m : step.messages) send(job, step, m.peer, m.send, m.send_bytes);
      return;
    }
    for_peers([&](uint32_t before, uint32_t) {
      receive(job, step, before, step.recv + step.recv_offsets[before], step.recv_counts[before]);
    });
    for_peers([&](uint32_t, uint32_t behind) {
      send(job, step, behind, step.send + step.send_offsets[behind], step.send_counts[behind]);
    });
    const uint8_t* from = step.send + step.send_offsets[rank_];
    uint8_t* to = step.recv + step.recv_offsets[rank_];
    if (from != to && step.send_counts[rank_] != 0) std::memmove(to, from, step.send_counts[rank_]);
  }
  void send(Job& job, const Step& step, uint32_t peer, const uint8_t* at, uint64_t bytes) {
    exchange(job, step, Kind::send, peer, const_cast<uint8_t*>(at), bytes);
  }
  void receive(Job& job, const Step& step, uint32_t peer, uint8_t* at, uint64_t room) {
    exchange(job, step, step.short_sends ? Kind::receive_short : Kind::receive, peer, at, room);
  }
  /// Where lengths may differ, a message ends with the first part that is not full, be it empty.
  void exchange(Job& job, const Step& step, Kind kind, uint32_t peer, uint8_t* at, uint64_t bytes) {
    if (bytes == 0) return;
    Part part{.kind = kind, .peer = static_cast<int>(peer), .tag = tag_of(step), .at = at};
    const uint64_t call = call_to(peer);
    if (bytes < call || (bytes == call && !step.short_sends)) return post_part(job, part, bytes);
    part.message = messages_.add(part.tag, at, bytes, call, step.short_sends);
    // How many parts are received in all, only what they hold will tell.
    const int ahead = kind == Kind::receive_short ? 1 : kCallsAhead;
    for (int i = 0; i < ahead; ++i) post_next(job, part);
  }
  /// The next part of the same message, if there is one.
  void post_next(Job& job, Part part) {
    if (!status_) return;
    const auto next = messages_.next(part.message);
    if (!next) return;
    part.at = next->at;
    post_part(job, part, next->bytes);
  }
  void post_part(Job& job, Part part, uint64_t bytes) {
    part.bytes = bytes;
    MPI_Request* request = add_request(job, part);
    const int count = static_cast<int>(bytes);
    good(part.kind == Kind::send
             ? MPI_Isend(part.at, count, MPI_BYTE, part.peer, part.tag, comm_, request)
             : MPI_Irecv(part.at, count, MPI_BYTE, part.peer, part.tag, comm_, request),
         doing(part.kind), part.peer);
  }

  MPI_Request* add_request(Job& job, Part part) {
    if (requests_.size() == requests_.capacity()) reserve(requests_.size() + 16);
    part.job = job.number;
    ++job.pending;
    parts_.push_back(part);
    requests_.push_back(MPI_REQUEST_NULL);
    return &requests_.back();
  }

  // ---- waiting ----

  /// Longer and longer pauses, so that ranks which share cores get on. Where there is a core for
  /// each, giving it away costs a large sum more than it is worth: other work keeps it for
  /// milliseconds. On one host a rank that sleeps is missed by all others; what comes from another
  /// host takes its time.
  class Idle {
   public:
    /// How long a wait spins, and until when it yields; then it sleeps.
    struct Waits {
      std::chrono::microseconds spin{50}, yield{2000};
    };
    explicit Idle(const Waits& waits) noexcept : waits_(waits) {}
    /// Once: asking opens a file of the system's.
    static std::chrono::microseconds spin(uint32_t world) noexcept {
      return std::chrono::microseconds(
          ::sysconf(_SC_NPROCESSORS_ONLN) >= static_cast<long>(world) ? 1000 : 50);
    }
    void pause() {
      const auto now = std::chrono::steady_clock::now();
      if (now - since_ < waits_.spin) return;
      if (now - since_ < waits_.yield) return std::this_thread::yield();
      std::this_thread::sleep_for(
          std::min<std::chrono::nanoseconds>((now - since_) / 16, std::chrono::microseconds(100)));
    }
    void reset() { since_ = std::chrono::steady_clock::now(); }

   private:
    Waits waits_;
    std::chrono::steady_clock::time_point since_ = std::chrono::steady_clock::now();
  };

  void finish(const Job& job, Deadline deadline, std::unique_lock<std::mutex>& lock) {
    int main = 1;
    if (!overlaps()) MPI_Is_thread_main(&main);
    if (main == 0) {
      return die(Error{Errc::unsupported,
                       "mpi: MPI allows only the thread that initialised it to communicate",
                       "ask MPI_Init_thread for MPI_THREAD_SERIALIZED or more"});
    }
    for (Idle idle(waits_); status_ && !job.ended();) {
      issue();
      if (progress()) {
        idle.reset();
        continue;
      }
      if (!status_ || job.ended()) return;
      if (std::chrono::steady_clock::now() >= deadline) return die(too_late(job));
      lock.unlock();  // for status(); the engine's own thread sleeps
      idle.pause();
      lock.lock();
    }
  }

  /// One look at all requests. True: some have ended.
  bool progress() {
    if (requests_.empty()) return false;
    const auto count = static_cast<int>(requests_.size());
    done_.resize(requests_.size());
    statuses_.resize(requests_.size());
    int ended = 0;
    const int code = MPI_Testsome(count, requests_.data(), &ended, done_.data(), statuses_.data());
    if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS) return good(code, "MPI_Testsome");
    if (ended == MPI_UNDEFINED || ended == 0) return false;
    for (int i = 0; i < ended && status_; ++i) {
      const Part part = parts_[static_cast<size_t>(done_[static_cast<size_t>(i)])];
      const MPI_Status status = statuses_[static_cast<size_t>(i)];
      if (code == MPI_SUCCESS || good(status.MPI_ERROR, doing(part.kind), part.peer))
        ended_part(part, status);
    }
    forget_ended();
    return true;
  }

  /// A part that has gone wrong stays pending: its job never ends.
  void ended_part(const Part& part, const MPI_Status& status) {
    Job& job = *find(part.job);
    bool last = false;
    if (part.kind == Kind::receive || part.kind == Kind::receive_short) {
      int bytes = 0;
      MPI_Get_count(&status, MPI_BYTE, &bytes);
      const auto arrived = static_cast<uint64_t>(bytes);
      if (part.kind == Kind::receive && arrived != part.bytes) {
        return die(Error{Errc::exchange_order,
                         "mpi: rank " + std::to_string(part.peer) + " sent " +
                             std::to_string(arrived) + " bytes, expected " +
                             std::to_string(part.bytes),
                         "issue the same steps in the same order on all ranks"});
      }
      last = part.kind == Kind::receive_short && arrived < part.bytes;
    }
    if (part.message != CutMessages::kNone && messages_.ended(part.message, last))
      post_next(job, part);
    --job.pending;
    if (part.term && --large_.pending_of(part.piece) == 0) go_on_with_large();
  }

  void forget_ended() {
    size_t kept = 0;
    for (size_t i = 0; i < requests_.size(); ++i) {
      if (requests_[i] == MPI_REQUEST_NULL) continue;
      requests_[kept] = requests_[i];
      parts_[kept++] = parts_[i];
    }
    requests_.resize(kept);
    parts_.resize(kept);
  }

  static const char* doing(Kind kind) {
    return kind == Kind::sum    ? "MPI_Iallreduce"
           : kind == Kind::send ? "sending to"
                                : "receiving from";
  }

  /// "mpi: nothing came from ranks 1 and 3 within 5000 ms"
  Error too_late(const Job& job) const {
    const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(
        std::chrono::steady_clock::now() - job.begun);
    std::string what = "a sum was not complete";
    if (const std::string to = peers(job, Kind::send, Kind::send); !to.empty())
      what = "nothing got to " + to;
    if (const std::string from = peers(job, Kind::receive, Kind::receive_short); !from.empty())
      what = "nothing came from " + from;
    return {Errc::timed_out, "mpi: " + what + " within " + std::to_string(waited.count()) + " ms",
            "look for the rank that stopped; the group cannot go on"};
  }
  /// Those of requests that `job` waits for.
  std::string peers(const Job& job, Kind one, Kind other) const {
    std::vector<uint32_t> list;
    for (const Part& part : parts_) {
      if (part.job <= job.number && (part.kind == one || part.kind == other))
        list.push_back(static_cast<uint32_t>(part.peer));
    }
    std::sort(list.begin(), list.end());
    list.erase(std::unique(list.begin(), list.end()), list.end());
    return names_of(list);
  }

  // ---- between start and wait ----

  void wake_thread() {
    if (!options_.background || level_ < MPI_THREAD_MULTIPLE) return;
    try {
      if (!thread_.joinable()) thread_ = std::thread([this] { serve(); });
    } catch (const std::system_error&) {
      options_.background = false;  // then only start and wait move messages
    }
    if (dozing_) wake_.notify_one();
  }
  /// Keeps away from the lock while somebody waits, who moves messages faster, and for a moment
  /// after each start: most are waited for at once.
  void serve() {
    constexpr std::chrono::microseconds kPause(100);
    constexpr int kDozeAfter = 10;
    auto pause = kPause;
    for (int quiet = 0; !ending_;) {
      std::this_thread::sleep_for(pause);
      pause = std::clamp(2 * pause, kPause, 5 * kPause);
      if (waiting_) continue;
      std::unique_lock lock(mutex_, std::try_to_lock);
      if (!lock) continue;
      pause = kPause;
      if (!requests_.empty() && status_) {
        quiet = 0;
        guarded([&] {
          if (progress()) pause = std::chrono::microseconds(0);
          issue();
        });
      } else if (++quiet >= kDozeAfter) {
        dozing_ = true;
        wake_.wait(lock, [&] { return ending_ || (!requests_.empty() && status_.ok()); });
        dozing_ = false;
        quiet = 0;
      }
    }
  }
  void end_thread() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    wake_.notify_one();
    if (thread_.joinable()) thread_.join();
  }

  // ---- the end ----

  /// MPICH 4.0 over UCX closes its connections in MPI_Finalize, and a rank that has closed its own
  /// answers nobody any more: one that still opens or uses a connection then waits for good
  /// (https://github.com/pmodels/mpich/pull/6596).
#if defined(MPICH_VERSION)
  static constexpr bool kFinalizeMayHang = true;
#else
  static constexpr bool kFinalizeMayHang = false;
#endif

  void leave() noexcept {
    if (!requests_.empty()) {
      keep_until_end(std::move(terms_));
      keep_for_good();
      die(Errc::engine_failed);
    }
    guarded([&] {
      if (status_ && finalises_) meet();
      if (!status_ && joined_) return;  // other ranks may not come
      if (sum_f16_ != MPI_OP_NULL) MPI_Op_free(&sum_f16_);
      if (sum_bf16_ != MPI_OP_NULL) MPI_Op_free(&sum_bf16_);
      if (comm_ != MPI_COMM_NULL) MPI_Comm_free(&comm_);
      if (finalises_) MPI_Finalize();
    });
  }
  /// All ranks have come to their ends.
  void meet() {
    const Deadline deadline = end_of_patience();
    const bool may_hang = kFinalizeMayHang && world_ > 1;
    if (may_hang) talk_to_all(deadline);
    MPI_Request request = MPI_REQUEST_NULL;
    if (status_) ends_by(deadline, MPI_Ibarrier(comm_, &request), request, "MPI_Ibarrier");
    // Until all have left the barrier none may close its connections.
    if (status_ && may_hang) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  /// In place, because then every pair of ranks exchanges messages, however many there are.
  void talk_to_all(Deadline deadline) {
    const auto bytes = std::make_shared<std::vector<char>>(world_);
    MPI_Request request = MPI_REQUEST_NULL;
    keep_until_end(bytes);
    ends_by(deadline,
            MPI_Ialltoall(MPI_IN_PLACE, 0, MPI_CHAR, bytes->data(), 1, MPI_CHAR, comm_, &request),
            request, "MPI_Ialltoall");
    if (!status_) keep_for_good();
  }
  void ends_by(Deadline deadline, int code, MPI_Request& request, const char* doing) {
    if (good(code, doing) && !complete(request, doing, deadline)) die(Errc::timed_out);
  }

  MpiOptions options_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  MPI_Op sum_f16_ = MPI_OP_NULL, sum_bf16_ = MPI_OP_NULL;
  int level_ = MPI_THREAD_SINGLE;
  bool finalises_ = false;
  bool joined_ = false;  // other ranks may have met this one
  uint32_t rank_ = 0, world_ = 1, tag_mask_ = 32767;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  Result<void> status_;
  std::array<Job, kMaxTickets> jobs_;
  uint64_t last_ = 0;  // started
  uint64_t next_ = 1;  // not all of its steps have been issued
  Large large_;
  std::shared_ptr<std::vector<uint64_t>> hosts_;  // by rank
  LargeSum::Pace pace_;
  Idle::Waits waits_;
  std::shared_ptr<uint8_t[]> terms_;
  CutMessages messages_;
  std::vector<MPI_Request> requests_;
  std::vector<Part> parts_;
  std::vector<int> done_;
  std::vector<MPI_Status> statuses_;
  std::atomic<bool> waiting_ = false;  // somebody is in wait() and moves messages
  std::atomic<bool> ending_ = false;
  bool dozing_ = false;  // the thread has to be woken
  std::thread thread_;
};

}  // namespace laconic
