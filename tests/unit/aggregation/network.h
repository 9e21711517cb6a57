// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Workers and a server in a network that loses, repeats, reorders and delays, in virtual time:
// the same seed gives the same run.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <queue>
#include <vector>

#include "aggregation/link/link.h"
#include "aggregation/server/server.h"

namespace laconic::test {

namespace protocol = aggregation::protocol;

using aggregation::Incoming;
using aggregation::Link;
using aggregation::LinkSettings;
using aggregation::Outgoing;
using aggregation::Time;

using aggregation::kMillisecond;
inline constexpr Time kMicrosecond = 1000, kSecond = 1000000000;

/// A generator with few instructions: a run draws often. SplitMix64.
class Dice {
 public:
  explicit Dice(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15U);
    z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27U)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31U);
  }
  uint64_t below(uint64_t n) { return next() % n; }
  uint64_t between(uint64_t low, uint64_t high) { return low + below(high - low + 1); }
  bool one_in(uint64_t n) { return n != 0 && below(n) == 0; }
  bool chance(double p) { return static_cast<double>(next() >> 11U) * 0x1p-53 < p; }

 private:
  uint64_t state_;
};

struct Weather {
  double loss_up = 0, loss_down = 0;
  bool bursts = false;  ///< losses last for half a millisecond
  double duplicates = 0;
  Time delay = 50 * kMicrosecond;
  Time jitter = 0;    ///< above `delay` datagrams overtake each other
  double spikes = 0;  ///< of 5 ms
  uint64_t rate = 0;  ///< bits in a second, of each worker each way; 0: no limit
};

inline aggregation::Address address_of(uint64_t worker) {
  aggregation::Address a;
  store(a.bytes.data(), worker + 1);
  return a;
}

inline aggregation::Multicast group_of_tests() {
  protocol::Group group{{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 239, 7, 4, 2}, 7420};
  aggregation::Address address;
  address.bytes.fill(0xEE);
  return {group, address};
}

/// A worker's exchanges: granules whose contents are a function of (seed, rank, number).
struct Plan {
  uint64_t seed = 0;
  protocol::JobSettings job;
  protocol::Token token{};
  uint32_t exchanges = 3;
  uint32_t granules = 16;  ///< of an exchange
  uint64_t number = 0x1234567890ABCDEFU;
  bool pad = false;              ///< the server wants data as long as results
  bool wants_full_tags = false;  ///< the server does
  bool multicast = false;        ///< workers request it, and the server has a group
};

/// One granule's contribution. Every fourth granule is a tally: 32-bit lanes of which rank w sets
/// lane w to 1, so that the sum counts each rank's contributions.
struct Contents {
  std::vector<uint8_t> payload;
  uint8_t flags = 0;
  uint16_t norm = 0;
  uint32_t settings = 0;
};

inline bool is_tally(uint64_t number) { return number % 4 == 3; }

inline Contents contents_of(const Plan& plan, uint32_t rank, uint64_t number) {
  Dice shared(plan.seed * 1000003 + number), own(plan.seed * 7919 + number * 64 + rank + 1);
  Contents c;
  c.settings = static_cast<uint32_t>(shared.next());
  c.norm = static_cast<uint16_t>(own.next());
  if (own.one_in(50)) c.flags |= protocol::kTrouble;
  if (is_tally(number)) {
    c.flags |= protocol::kValues;
    c.payload.resize(4 * plan.job.values);
    store(c.payload.data() + 4 * rank, uint32_t{1});
    return c;
  }
  if (own.one_in(6)) {
    c.flags |= protocol::kEmpty;
    return c;
  }
  c.payload.resize(plan.job.code_bytes());
  for (uint8_t& byte : c.payload) byte = static_cast<uint8_t>(own.next());
  return c;
}

/// One worker's result for one granule.
struct Got {
  std::vector<uint8_t> lanes;
  uint64_t bitmap = 0;
  uint16_t norm = 0;
  uint8_t flags = 0, added = 0, divisor = 0;
  friend bool operator==(const Got&, const Got&) = default;
};

enum class WorkerEnd : uint8_t { running, closed, failed, crashed };

class Network;

class Worker {
 public:
  Worker(const Plan& plan, uint32_t rank, uint64_t instance) : plan_(&plan), rank_(rank) {
    LinkSettings settings;
    settings.token = plan.token;
    settings.job = plan.job;
    settings.number = plan.number;
    settings.instance = instance;
    settings.worker = static_cast<uint8_t>(rank);
    settings.server = "10.0.0.9:7420";
    settings.multicast = plan.multicast;
    link_ = std::make_unique<Link>(settings);
  }

  Link& link() { return *link_; }
  const std::vector<Got>& got() const { return got_; }
  WorkerEnd end = WorkerEnd::running;
  bool in_exchange = false, closing = false;
  uint32_t begun = 0;
  Time next_begin = 0;  ///< when the next exchange begins: computing takes time
  Time closing_since = 0;
  Time keep_at = 0;  ///< while it waits for others in the group

  void begin(Time now) {
    const uint64_t first = got_.size();
    contents_.clear();
    out_.clear();
    rooms_.assign(plan_->granules, std::vector<uint8_t>(plan_->job.slot_bytes(), 0xEE));
    in_.assign(plan_->granules, {});
    for (uint32_t i = 0; i < plan_->granules; ++i) {
      contents_.push_back(contents_of(*plan_, rank_, first + i));
      in_[i].lanes = rooms_[i];
    }
    for (const Contents& c : contents_) out_.push_back({c.payload, c.settings, c.norm, c.flags});
    link_->begin(now, out_.data(), in_.data(), out_.size(), 1);
    in_exchange = true;
    ++begun;
  }

  void finish() {
    for (uint32_t i = 0; i < plan_->granules; ++i) {
      const Incoming& in = in_[i];
      got_.push_back({{rooms_[i].begin(), rooms_[i].begin() + in.length},
                      in.bitmap,
                      in.norm,
                      in.flags,
                      in.added,
                      in.divisor});
    }
    in_exchange = false;
  }

 private:
  const Plan* plan_;
  uint32_t rank_;
  std::unique_ptr<Link> link_;
  std::vector<Contents> contents_;
  std::vector<Outgoing> out_;
  std::vector<Incoming> in_;
  std::vector<std::vector<uint8_t>> rooms_;
  std::vector<Got> got_;
};

/// Decides, in addition to the weather, whether a datagram is lost. `to`: 0 is the server, else
/// rank + 1.
struct Verdicts {
  bool drop = false;
};
using Filter = std::function<bool(Time, uint32_t from, uint32_t to, const std::vector<uint8_t>&)>;

class Network {
 public:
  Network(const Plan& plan, const Weather& weather, uint64_t seed)
      : plan_(plan), weather_(weather), dice_(seed) {
    start_server();
    for (uint32_t w = 0; w < plan_.job.world; ++w) {
      workers_.push_back(std::make_unique<Worker>(plan_, w, dice_.next()));
      workers_.back()->link().connect(0);
      lags_.push_back(0);
    }
  }

  std::vector<std::unique_ptr<Worker>>& workers() { return workers_; }
  aggregation::Server& server() { return *server_; }
  bool server_is_up() const { return server_up_; }
  Time now() const { return now_; }
  const Plan& plan() const { return plan_; }
  /// True: the datagram is lost.
  Filter drop;
  /// How long rank w computes before an exchange.
  void lag(uint32_t w, Time time) { lags_[w] = time; }
  /// Exchanges that begin late by `lag` alone: one in this many; 1 is all.
  uint64_t lag_one_in = 1;
  /// Time that every rank computes before an exchange, in addition.
  Time compute = 0;
  uint64_t datagrams = 0;
  uint64_t to_group = 0;    ///< of what the server sent
  bool serve_group = true;  ///< of servers that start from now on
  /// Exchanges before which all workers meet in their group, by bit: who is there first waits, and
  /// only keeps its link.
  uint64_t meetings = 0;
  uint64_t kept = 0;  ///< times that such a worker looked at its link
  /// Workers that no multicast reaches, by bit.
  uint64_t deaf = 0;
  uint64_t max_steps = 100000;  ///< more is a hang

  void start_server() {
    aggregation::ServerSettings settings;
    settings.token = plan_.token;
    settings.pad = plan_.pad;
    settings.full_tags = plan_.wants_full_tags;
    if (plan_.multicast && serve_group) settings.multicast = group_of_tests();
    for (uint8_t& byte : settings.secret) byte = static_cast<uint8_t>(dice_.next());
    server_ = std::make_unique<aggregation::Server>(settings);
    release_staying();
    server_up_ = true;
  }
  void stop_server() { server_up_ = false; }

  void crash(uint32_t w, bool port_closes) {
    workers_[w]->end = WorkerEnd::crashed;
    closed_ports_ |= port_closes ? uint64_t{1} << w : 0;
  }
  /// The same rank in a new process, without its results.
  void rejoin(uint32_t w) {
    closed_ports_ &= ~(uint64_t{1} << w);
    workers_[w] = std::make_unique<Worker>(plan_, w, dice_.next());
    workers_[w]->link().connect(now_);
  }
  /// Something happens at a time.
  void at(Time time, std::function<void()> what) {
    scripts_.push_back({time, std::move(what)});
    std::push_heap(scripts_.begin(), scripts_.end(), later_script);
  }

  /// Anybody's bytes, now.
  void inject(uint32_t from, uint32_t to, std::vector<uint8_t> bytes, bool by_group = false) {
    put(now_ + weather_.delay, from, to, std::move(bytes), by_group);
  }

  /// True: every worker has come to an end before `deadline`.
  bool run(Time deadline) {
    for (uint32_t w = 0; w < workers_.size(); ++w) drive(w);
    while (running()) {
      const Time next = next_event();
      if (next > deadline || ++steps_ > max_steps) return false;
      now_ = std::max(now_, next);
      step();
    }
    return true;
  }

 private:
  struct Flying {
    Time time;
    uint64_t order;
    uint32_t from, to;
    bool by_group;
    std::size_t bytes;  // index into the pool
  };
  struct Later {
    bool operator()(const Flying& a, const Flying& b) const {
      return a.time != b.time ? a.time > b.time : a.order > b.order;
    }
  };
  struct Script {
    Time time;
    std::function<void()> what;
  };
  static bool later_script(const Script& a, const Script& b) { return a.time > b.time; }

  bool running() const {
    return std::any_of(workers_.begin(), workers_.end(),
                       [](const auto& w) { return w->end == WorkerEnd::running; });
  }

  Time next_event() const {
    Time next = flying_.empty() ? aggregation::kNever : flying_.top().time;
    if (!scripts_.empty()) next = std::min(next, scripts_.front().time);
    if (server_up_) next = std::min(next, server_->next_event());
    for (const auto& w : workers_) {
      if (w->end == WorkerEnd::running) next = std::min({next, wake_of(*w)});
    }
    return next;
  }

  static bool rests(Worker& w) { return w.link().joined() && !w.in_exchange && !w.closing; }
  /// The others have not come to where this one is.
  bool waits_for_others(Worker& w) const {
    if ((meetings >> w.begun & 1U) == 0) return false;
    return std::any_of(workers_.begin(), workers_.end(), [&](const auto& other) {
      return other->end == WorkerEnd::running &&
             (!other->link().joined() || other->begun < w.begun ||
              (other->begun == w.begun && other->in_exchange));
    });
  }
  Time wake_of(Worker& w) const {
    if (!rests(w)) return w.link().wake(now_);
    return waits_for_others(w) ? std::max(w.next_begin, w.keep_at) : w.next_begin;
  }

  void step() {
    if (!scripts_.empty() && scripts_.front().time <= now_) {
      std::pop_heap(scripts_.begin(), scripts_.end(), later_script);
      const Script script = std::move(scripts_.back());
      scripts_.pop_back();
      return script.what();
    }
    if (!flying_.empty() && flying_.top().time <= now_) return arrive();
    if (server_up_ && server_->next_event() <= now_) {
      FromServer out(*this);
      server_->tick(now_, out);
    }
    for (uint32_t w = 0; w < workers_.size(); ++w) {
      if (workers_[w]->end == WorkerEnd::running && wake_of(*workers_[w]) <= now_) drive(w);
    }
  }

  void arrive() {
    const Flying f = flying_.top();
    flying_.pop();
    ++datagrams;
    const std::vector<uint8_t>& bytes = pool_[f.bytes];
    if (f.to == 0) {
      if (server_up_) {
        FromServer out(*this);
        server_->receive(now_, address_of(f.from), bytes, out, /*stays=*/true);
        staying_.push_back(f.bytes);
        if (staying_.size() >= stay_) {
          server_->settle();
          release_staying();
          stay_ = 1 + stay_ * 5 % 37;
        }
        return;
      }
    } else {
      Worker& w = *workers_[f.to - 1];
      if (w.end == WorkerEnd::running) {
        if (!f.by_group) {
          w.link().receive(now_, bytes);
        } else if (w.link().group() == group_of_tests().group) {
          w.link().receive_from_group(now_, bytes);
        }
        // A worker that computes lets datagrams lie; here it takes them and answers nothing.
        if (w.in_exchange || w.closing || !w.link().joined()) drive(f.to - 1);
      } else if ((closed_ports_ >> (f.to - 1) & 1U) != 0 && server_up_) {
        FromServer out(*this);
        server_->unreachable(now_, address_of(f.to), out);
      }
    }
    free_.push_back(f.bytes);
  }

  /// Memory that the server may no longer read is overwritten.
  void release_staying() {
    for (const std::size_t index : staying_) {
      std::fill(pool_[index].begin(), pool_[index].end(), uint8_t{0xEE});
      free_.push_back(index);
    }
    staying_.clear();
  }

  void drive(uint32_t index) {
    Worker& w = *workers_[index];
    FromWorker out(*this, index + 1);
    const bool was_joined = w.link().joined();
    const bool meets = rests(w) && waits_for_others(w);
    if (meets && now_ >= std::max(w.next_begin, w.keep_at)) {
      ++kept;
      w.link().keep(now_);
      w.keep_at = now_ + (w.link().waits() ? 5 : 100) * kMillisecond;
    }
    if (rests(w) && !meets && !w.link().failed() && now_ >= w.next_begin &&
        w.begun < plan_.exchanges) {
      w.begin(now_);
    }
    w.link().send(now_, out);
    if (!was_joined && w.link().joined()) schedule_begin(w, index);
    if (w.link().failed()) {
      w.end = WorkerEnd::failed;
      return;
    }
    if (w.in_exchange && w.link().done()) {
      w.finish();
      schedule_begin(w, index);
    }
    if (rests(w) && !meets && w.begun == plan_.exchanges) {
      w.closing = true;
      w.closing_since = now_;
      w.link().close(now_);
      w.link().send(now_, out);
    }
    if (w.link().closed()) w.end = WorkerEnd::closed;
    // The driver has the last word on how long a link lingers.
    if (w.closing && now_ - w.closing_since > 20 * kSecond) w.end = WorkerEnd::closed;
  }

  void schedule_begin(Worker& w, uint32_t index) {
    w.keep_at = now_ + 200 * kMillisecond;
    w.next_begin = now_ + compute + dice_.below(200 * kMicrosecond) +
                   (lag_one_in == 1 || dice_.one_in(lag_one_in) ? lags_[index] : 0);
  }

  void post_to_group(Bytes header, Bytes payload) {
    ++to_group;
    for (uint32_t w = 0; w < workers_.size(); ++w) {
      if ((deaf >> w & 1U) == 0) post(0, w + 1, header, payload, true);
    }
  }

  void post(uint32_t from, uint32_t to, Bytes header, Bytes payload, bool by_group = false) {
    scratch_.assign(header.begin(), header.end());
    scratch_.insert(scratch_.end(), payload.begin(), payload.end());
    if (drop && drop(now_, from, to, scratch_)) return;
    const bool up = to == 0;
    Time& burst = up ? burst_up_ : burst_down_;
    const double loss = up ? weather_.loss_up : weather_.loss_down;
    if (now_ < burst) return;
    if (loss > 0 && dice_.chance(weather_.bursts ? loss / 8 : loss)) {
      burst = weather_.bursts ? now_ + kMillisecond / 2 : 0;
      return;
    }
    const int copies = weather_.duplicates > 0 && dice_.chance(weather_.duplicates) ? 2 : 1;
    for (int i = 0; i < copies; ++i) {
      Time time = now_ + weather_.delay + dice_.below(weather_.jitter + 1);
      if (weather_.rate != 0) {
        // After what is in the queue; Ethernet, IP and UDP take 66 bytes.
        const uint32_t worker = up ? from - 1 : to - 1;
        Time& free = wires_[2 * worker + (up ? 0 : 1)];
        free = std::max(free, now_) + (scratch_.size() + 66) * 8 * kSecond / weather_.rate;
        time += free - now_;
      }
      if (weather_.spikes > 0 && dice_.chance(weather_.spikes)) time += 5 * kMillisecond;
      put(time, from, to, scratch_, by_group);
    }
  }

  void put(Time time, uint32_t from, uint32_t to, const std::vector<uint8_t>& bytes,
           bool by_group = false) {
    std::size_t index = pool_.size();
    if (!free_.empty()) {
      index = free_.back();
      free_.pop_back();
    } else {
      pool_.emplace_back();
    }
    pool_[index] = bytes;
    flying_.push({time, order_++, from, to, by_group, index});
  }

  struct FromServer final : aggregation::Sender {
    explicit FromServer(Network& n) : network(n) {}
    void send(const aggregation::Address& to, Bytes header, Bytes payload, std::size_t) override {
      if (to == group_of_tests().address) return network.post_to_group(header, payload);
      const auto worker = load<uint64_t>(to.bytes.data());
      if (worker - 1 <= network.workers_.size() && worker > 1) {
        network.post(0, static_cast<uint32_t>(worker - 1), header, payload);
      }
    }
    void flush() override {}
    Network& network;
  };
  struct FromWorker final : aggregation::Sender {
    FromWorker(Network& n, uint32_t from_) : network(n), from(from_) {}
    void send(const aggregation::Address&, Bytes header, Bytes payload,
              std::size_t padding) override {
      std::vector<uint8_t> padded(payload.begin(), payload.end());
      padded.resize(padded.size() + padding);
      network.post(from, 0, header, padded);
    }
    void flush() override {}
    Network& network;
    uint32_t from;
  };

  Plan plan_;
  Weather weather_;
  Dice dice_;
  Time now_ = 0;
  uint64_t order_ = 0, steps_ = 0;
  std::unique_ptr<aggregation::Server> server_;
  bool server_up_ = false;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<Time> wires_ = std::vector<Time>(2 * protocol::kMaxWorkers);
  std::vector<Time> lags_;
  uint64_t closed_ports_ = 0;
  Time burst_up_ = 0, burst_down_ = 0;
  std::priority_queue<Flying, std::vector<Flying>, Later> flying_;
  std::vector<std::vector<uint8_t>> pool_;
  std::vector<std::size_t> free_;
  std::vector<std::size_t> staying_;  ///< what the server may still read
  std::size_t stay_ = 1;              ///< how many of them before it has to settle
  std::vector<uint8_t> scratch_;
  std::vector<Script> scripts_;
};

}  // namespace laconic::test
