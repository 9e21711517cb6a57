// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "laconic/loopback.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engines/lanes.h"
#include "laconic/engine/names_of.h"

namespace laconic {
namespace {

constexpr std::string_view kEnded = "the group has ended";

const Message* message_with(const Step& step, uint32_t peer) {
  const auto at = std::find_if(step.messages.begin(), step.messages.end(),
                               [&](const Message& m) { return m.peer == peer; });
  return at == step.messages.end() ? nullptr : &*at;
}

/// Data from one rank to another in a step that is not a sum.
struct Sent {
  const uint8_t* data = nullptr;
  uint64_t bytes = 0;
};
Sent sent_to(const Step& step, uint32_t peer) {
  if (step.kind != StepKind::messages)
    return {step.send + step.send_offsets[peer], step.send_counts[peer]};
  const Message* m = message_with(step, peer);
  return m == nullptr ? Sent{} : Sent{m->send, m->send_bytes};
}

struct Room {
  uint8_t* data = nullptr;
  uint64_t bytes = 0;
};
Room room_from(const Step& step, uint32_t peer) {
  if (step.kind != StepKind::messages)
    return {step.recv + step.recv_offsets[peer], step.recv_counts[peer]};
  const Message* m = message_with(step, peer);
  return m == nullptr ? Room{} : Room{m->recv, m->recv_room};
}

/// Every peer exists and is listed once.
bool lists_peers(const Step& step, uint32_t rank, uint32_t world) {
  return std::all_of(step.messages.begin(), step.messages.end(), [&](const Message& m) {
    return m.peer < world && m.peer != rank && message_with(step, m.peer) == &m;
  });
}

/// Nothing where something is expected, or the other way round, would leave a peer waiting.
bool fits(uint64_t bytes, uint64_t room, bool short_sends) {
  return bytes == room || (short_sends && bytes < room && bytes != 0);
}

}  // namespace

struct LoopbackHub::Impl {
  class RankEngine final : public Engine {
   public:
    RankEngine(Impl* hub, uint32_t rank) : hub_(hub), rank_(rank) {}
    ~RankEngine() override { stop(); }
    [[nodiscard]] uint32_t rank() const noexcept override { return rank_; }
    [[nodiscard]] uint32_t world() const noexcept override { return hub_->world; }
    [[nodiscard]] EngineCaps caps() const noexcept override { return hub_->caps; }
    Result<void> run(std::span<const Step> batch) override;
    Result<void> join(const AggregationJob& wanted, std::chrono::milliseconds) override;

   private:
    Result<void> run_one(const Step& step);
    void move(const Step& step);
    void sum(const Step& step);
    void aggregate(const Step& step);

    Impl* hub_;
    uint32_t rank_;
    std::vector<uint8_t> sum_;
  };

  /// All living ranks wait here; false when one is gone or late.
  bool meet(uint32_t rank) {
    std::unique_lock lock(mutex);
    if (!gone.empty()) return false;
    const uint64_t turn = generation;
    here[rank] = true;
    if (++waiting == world) {
      waiting = 0;
      here.assign(world, false);
      ++generation;
      met.notify_all();
      return true;
    }
    met.wait_for(lock, timeout, [&] { return generation != turn || !gone.empty(); });
    if (generation == turn && gone.empty()) {
      gone = late_ranks();
      met.notify_all();
    }
    return generation != turn;
  }

  /// "ranks 1 and 3 did not arrive within 30000 ms"
  [[nodiscard]] std::string late_ranks() const {
    std::vector<uint32_t> late;
    for (uint32_t r = 0; r < world; ++r) {
      if (!here[r]) late.push_back(r);
    }
    return names_of(late) + " did not arrive within " + std::to_string(timeout.count()) + " ms";
  }

  /// Every rank posted the same step, with sizes that fit. All ranks get the same answer.
  [[nodiscard]] bool agreed() const {
    for (uint32_t a = 0; a < world; ++a) {
      const Step &first = posted[0], &own = posted[a];
      if (own.kind != first.kind || own.dtype != first.dtype) return false;
      if (own.kind == StepKind::all_reduce) {
        if (own.count != first.count) return false;
        continue;
      }
      if (own.kind == StepKind::aggregate) {
        if (own.contributions.size() != first.contributions.size()) return false;
        if (own.aggregates.size() != own.contributions.size() || !has_job) return false;
        continue;
      }
      if (!lists_peers(own, a, world)) return false;
      for (uint32_t b = 0; b < world; ++b) {
        if (!fits(sent_to(own, b).bytes, room_from(posted[b], a).bytes, own.short_sends))
          return false;
      }
    }
    return true;
  }

  void end(std::string_view why) {
    const std::lock_guard lock(mutex);
    if (gone.empty()) gone = why;
    met.notify_all();
  }

  Error failure() const {
    const std::lock_guard lock(mutex);
    return {Errc::peer_failed, "loopback: " + gone, "restart the group"};
  }

  uint32_t world;
  std::chrono::milliseconds timeout;
  EngineCaps caps;
  mutable std::mutex mutex;
  std::condition_variable met;
  uint32_t waiting = 0;
  uint64_t generation = 0;
  std::vector<bool> here;
  std::string gone;  // ranks and reason; empty: none
  std::vector<Step> posted;
  bool has_job = false;
  AggregationJob job;
  std::array<uint8_t, 16> table{};
  std::vector<uint64_t> sent;
  std::vector<uint64_t> rounds;
  std::vector<std::unique_ptr<RankEngine>> engines;
};

Result<void> LoopbackHub::Impl::RankEngine::run(std::span<const Step> batch) {
  for (const Step& step : batch) {
    if (auto r = run_one(step); !r) return r;
  }
  return {};
}

Result<void> LoopbackHub::Impl::RankEngine::run_one(const Step& step) {
  hub_->posted[rank_] = step;
  if (!hub_->meet(rank_)) return hub_->failure();
  const bool agree = hub_->agreed();
  if (agree) {
    step.kind == StepKind::aggregate    ? aggregate(step)
    : step.kind == StepKind::all_reduce ? sum(step)
                                        : move(step);
  }
  if (!hub_->meet(rank_))
    return hub_->failure();  // no buffer is used again before all have read it
  if (!agree)
    return Error{Errc::exchange_order, "ranks issued different collectives",
                 "issue the same ones in the same order on all ranks"};
  if (step.kind == StepKind::all_reduce && !sum_.empty())
    std::memcpy(step.recv, sum_.data(), sum_.size());
  ++hub_->rounds[rank_];
  return {};
}

void LoopbackHub::Impl::RankEngine::move(const Step& step) {
  for (uint32_t r = 0; r < hub_->world; ++r) {
    const Sent from = sent_to(hub_->posted[r], rank_);
    if (from.bytes != 0) std::memcpy(room_from(step, r).data, from.data, from.bytes);
    if (r != rank_) hub_->sent[rank_] += sent_to(step, r).bytes;
  }
}

void LoopbackHub::Impl::RankEngine::sum(const Step& step) {
  const uint64_t bytes = step.count * dtype_size(step.dtype);
  const uint8_t* first = hub_->posted[0].send;
  sum_.assign(first, first + bytes);
  for (uint32_t r = 1; r < hub_->world; ++r)
    engines::add_lanes(step.dtype, sum_.data(), hub_->posted[r].send, step.count);
  hub_->sent[rank_] += 2 * bytes * (hub_->world - 1) / hub_->world;
}

/// The same job on all ranks; the first one's is kept.
Result<void> LoopbackHub::Impl::RankEngine::join(const AggregationJob& wanted,
                                                 std::chrono::milliseconds) {
  if (!hub_->caps.aggregates) return Engine::join(wanted, {});
  const std::lock_guard lock(hub_->mutex);
  if (hub_->has_job) return {};
  std::copy(wanted.table.begin(), wanted.table.end(), hub_->table.begin());
  hub_->job = wanted;
  hub_->has_job = true;
  return {};
}

/// Every rank is in every sum. Values are read bit by bit: a reference.
void LoopbackHub::Impl::RankEngine::aggregate(const Step& step) {
  const AggregationJob& added = hub_->job;
  for (uint64_t g = 0; g < step.contributions.size(); ++g) {
    Aggregate& sum = step.aggregates[g];
    const bool values = (step.contributions[g].flags & kGranuleValues) != 0;
    const uint64_t lane = values ? 4 : added.lane_bits / 8;
    sum = {sum.lanes, 0, 0, 0, 0, 0, 0};
    if (values) sum.flags = kGranuleValues;
    for (uint32_t r = 0; r < hub_->world; ++r) {
      const Contribution& c = hub_->posted[r].contributions[g];
      sum.bitmap |= uint64_t{1} << r;
      ++sum.divisor;
      sum.norm = std::max(sum.norm, c.norm);
      sum.flags |= c.flags & kGranuleTrouble;
      hub_->sent[rank_] += r == rank_ ? c.payload.size() : 0;
      if ((c.flags & kGranuleEmpty) != 0) continue;
      const uint64_t given = values ? c.payload.size() / 4 : c.payload.size() * 8 / added.code_bits;
      const uint64_t lanes = std::min(given, sum.lanes.size() / lane);
      if (sum.added++ == 0) {
        sum.length = static_cast<uint32_t>(lanes * lane);
        std::fill_n(sum.lanes.begin(), sum.length, uint8_t{0});
      }
      for (uint64_t i = 0; i < lanes; ++i) {
        uint32_t code = 0;
        for (uint64_t bit = i * added.code_bits; !values && bit < (i + 1) * added.code_bits; ++bit)
          code = code << 1U | (uint32_t{c.payload[bit / 8]} >> (7 - bit % 8) & 1U);
        uint8_t* at = sum.lanes.data() + i * lane;
        const uint32_t more =
            values ? load<uint32_t>(c.payload.data() + 4 * i) : hub_->table[code & 15U];
        if (lane == 4) store(at, load<uint32_t>(at) + more);
        if (lane == 2) store(at, static_cast<uint16_t>(load<uint16_t>(at) + more));
        if (lane == 1) *at = static_cast<uint8_t>(*at + more);
      }
    }
    if (sum.added == 0) sum.flags |= kGranuleEmpty;
  }
}

LoopbackHub::LoopbackHub(uint32_t world, std::chrono::milliseconds timeout, EngineCaps caps)
    : impl_(std::make_unique<Impl>()) {
  impl_->gone.reserve(kEnded.size());  // a destructor may lack the memory
  impl_->world = world;
  impl_->timeout = timeout;
  impl_->caps = caps;
  impl_->here.resize(world);
  impl_->posted.resize(world);
  impl_->sent.resize(world);
  impl_->rounds.resize(world);
  for (uint32_t r = 0; r < world; ++r)
    impl_->engines.push_back(std::make_unique<Impl::RankEngine>(impl_.get(), r));
}

/// Batches that still wait for a rank end now: their threads use what is about to go.
LoopbackHub::~LoopbackHub() { impl_->end(kEnded); }

Engine& LoopbackHub::engine(uint32_t rank) { return *impl_->engines[rank]; }

void LoopbackHub::break_off(uint32_t rank) {
  impl_->end("rank " + std::to_string(rank) + " is gone");
}

uint64_t LoopbackHub::sent_bytes(uint32_t rank) const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->sent[rank];
}

uint64_t LoopbackHub::rounds(uint32_t rank) const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->rounds[rank];
}

}  // namespace laconic
