// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "transport/loopback/loopback.h"

#include <condition_variable>
#include <cstring>
#include <mutex>

namespace laconic::transport {
namespace {

float lane(const uint8_t* p, DType t, uint64_t i) {
  if (t == DType::f32) {
    float x;
    std::memcpy(&x, p + 4 * i, 4);
    return x;
  }
  uint16_t h;
  std::memcpy(&h, p + 2 * i, 2);
  return t == DType::f16 ? f16_to_float(h) : bf16_to_float(h);
}

void store_lane(uint8_t* p, DType t, uint64_t i, float x) {
  if (t == DType::f32) {
    std::memcpy(p + 4 * i, &x, 4);
    return;
  }
  const uint16_t h = t == DType::f16 ? float_to_f16(x) : float_to_bf16(x);
  std::memcpy(p + 2 * i, &h, 2);
}

}  // namespace

struct LoopbackHub::Impl {
  class RankEngine final : public Engine {
   public:
    RankEngine(Impl* hub, uint32_t rank) : hub_(hub), rank_(rank) {}
    [[nodiscard]] uint32_t rank() const noexcept override { return rank_; }
    [[nodiscard]] uint32_t world() const noexcept override { return hub_->world; }
    Result<void> run(std::span<const Step> batch) override;

   private:
    Result<void> run_one(const Step& step);
    void move(const Step& step);
    void sum(const Step& step);

    Impl* hub_;
    uint32_t rank_;
    std::vector<uint8_t> sum_;
  };

  /// All living ranks wait here; false when one is dead or late.
  bool meet() {
    std::unique_lock lock(mutex);
    if (broken) return false;
    const uint64_t turn = generation;
    if (++waiting == world) {
      waiting = 0;
      ++generation;
      met.notify_all();
      return true;
    }
    met.wait_for(lock, timeout, [&] { return generation != turn || broken; });
    if (generation == turn) broken = true;
    if (broken) met.notify_all();
    return generation != turn;
  }

  /// Every rank posted the same collective, with matching sizes. All ranks get the same answer.
  [[nodiscard]] bool agreed() const {
    for (uint32_t a = 0; a < world; ++a) {
      if (posted[a].kind != posted[0].kind || posted[a].dtype != posted[0].dtype) return false;
      if (posted[a].kind == StepKind::all_reduce) {
        if (posted[a].count != posted[0].count) return false;
        continue;
      }
      for (uint32_t b = 0; b < world; ++b) {
        const uint64_t sent_bytes = posted[a].send_counts[b], room = posted[b].recv_counts[a];
        if (sent_bytes > room || (sent_bytes != room && !posted[a].short_sends)) return false;
      }
    }
    return true;
  }

  uint32_t world;
  std::chrono::milliseconds timeout;
  mutable std::mutex mutex;
  std::condition_variable met;
  uint32_t waiting = 0;
  uint64_t generation = 0;
  bool broken = false;
  std::vector<Step> posted;
  std::vector<uint64_t> sent;
  std::vector<uint64_t> rounds;
  std::vector<RankEngine> engines;
};

Result<void> LoopbackHub::Impl::RankEngine::run(std::span<const Step> batch) {
  for (const Step& step : batch) {
    if (auto r = run_one(step); !r) return r;
  }
  return {};
}

Result<void> LoopbackHub::Impl::RankEngine::run_one(const Step& step) {
  const Error gone{Errc::peer_failed, "a rank of the loopback group is gone or late",
                   "restart the group"};
  hub_->posted[rank_] = step;
  if (!hub_->meet()) return gone;
  const bool agree = hub_->agreed();
  if (agree) step.kind == StepKind::all_reduce ? sum(step) : move(step);
  if (!hub_->meet()) return gone;  // no send buffer is used again before all have read it
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
    const Step& from = hub_->posted[r];
    const uint64_t bytes = from.send_counts[rank_];
    const uint64_t offset = step.kind == StepKind::all_to_all ? from.send_offsets[rank_] : 0;
    if (bytes != 0) std::memcpy(step.recv + step.recv_offsets[r], from.send + offset, bytes);
    if (r != rank_) hub_->sent[rank_] += step.send_counts[r];
  }
}

void LoopbackHub::Impl::RankEngine::sum(const Step& step) {
  const uint64_t size = dtype_size(step.dtype);
  sum_.resize(step.count * size);
  for (uint64_t i = 0; i < step.count; ++i) {
    float total = lane(hub_->posted[0].send, step.dtype, i);
    for (uint32_t r = 1; r < hub_->world; ++r) {
      store_lane(sum_.data(), step.dtype, i, total + lane(hub_->posted[r].send, step.dtype, i));
      total = lane(sum_.data(), step.dtype, i);
    }
    store_lane(sum_.data(), step.dtype, i, total);
  }
  hub_->sent[rank_] += 2 * step.count * size * (hub_->world - 1) / hub_->world;
}

LoopbackHub::LoopbackHub(uint32_t world, std::chrono::milliseconds timeout)
    : impl_(std::make_unique<Impl>()) {
  impl_->world = world;
  impl_->timeout = timeout;
  impl_->posted.resize(world);
  impl_->sent.resize(world);
  impl_->rounds.resize(world);
  impl_->engines.reserve(world);
  for (uint32_t r = 0; r < world; ++r) impl_->engines.emplace_back(impl_.get(), r);
}

LoopbackHub::~LoopbackHub() = default;

Engine& LoopbackHub::engine(uint32_t rank) { return impl_->engines[rank]; }

void LoopbackHub::break_off() {
  const std::lock_guard lock(impl_->mutex);
  impl_->broken = true;
  impl_->met.notify_all();
}

uint64_t LoopbackHub::sent_bytes(uint32_t rank) const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->sent[rank];
}

uint64_t LoopbackHub::rounds(uint32_t rank) const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->rounds[rank];
}

}  // namespace laconic::transport
