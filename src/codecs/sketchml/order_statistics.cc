// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "codecs/sketchml/order_statistics.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "base/slices.h"

namespace laconic::codecs {
namespace {

using kernels::kQuantileBuckets;
using kernels::kQuantileRow;

// Tables of counters that threads fill beside each other. What they hold in sum does not depend on
// how many there are.
constexpr uint64_t kMostShards = 8;
constexpr uint64_t kShard = uint64_t{1} << 16;  // elements that are worth a table

uint64_t most_shards(uint64_t count) {
  return std::clamp<uint64_t>(count / kShard, 1, kMostShards);
}

uint64_t aligned(uint64_t bytes) { return round_up(bytes, 64); }

// Rows of counters: one for each rank at most, and the one of what is not wanted.
uint64_t row_counters(uint64_t wanted) { return (wanted + 1) * kQuantileRow; }
uint64_t counters(uint64_t wanted) {
  return std::max<uint64_t>(kQuantileBuckets, row_counters(wanted));
}
uint64_t group_bytes(uint64_t entries) {
  return aligned(entries * sizeof(uint16_t) + kernels::kQuantileSlack);
}

struct Tables {
  uint32_t* counts;  // `shards` of them behind each other
  uint16_t* groups;
  uint16_t* subgroups;
  uint64_t shards;
  uint64_t stride;
};

Tables tables_in(MutBytes scratch, uint64_t wanted, uint64_t count, ThreadPool* pool) {
  const uint64_t threads = pool == nullptr ? 1 : pool->threads();
  const uint64_t most = most_shards(count);
  uint8_t* at = scratch.data();
  Tables t{};
  t.stride = counters(wanted);
  t.shards = std::min(threads, most);
  t.counts = reinterpret_cast<uint32_t*>(at);
  at += aligned(most * t.stride * sizeof(uint32_t));
  t.groups = reinterpret_cast<uint16_t*>(at);
  at += group_bytes(kQuantileBuckets);
  t.subgroups = reinterpret_cast<uint16_t*>(at);
  return t;
}

// count(begin, end, table) over shares of the elements, `size` counters each; afterwards the first
// table holds the sum of all.
template <class Count>
void count_all(const Tables& t, uint64_t n, uint64_t size, ThreadPool* pool, Count&& count) {
  parallel_for(t.shards > 1 ? pool : nullptr, t.shards, [&](uint64_t s) {
    uint32_t* const table = t.counts + s * t.stride;
    std::fill_n(table, size, 0U);
    count(n * s / t.shards, n * (s + 1) / t.shards, table);
  });
  for (uint64_t s = 1; s < t.shards; ++s) {
    const uint32_t* const table = t.counts + s * t.stride;
    for (uint64_t i = 0; i < size; ++i) t.counts[i] += table[i];
  }
}

// Steps through a table of counters to those that contain given ranks, which ascend.
class Walk {
 public:
  explicit Walk(const uint32_t* counts) : counts_(counts) {}

  // Goes to the counter that contains `rank`, counted from the first one.
  void to(uint64_t rank) {
    while (at_ % kBlock == 0) {
      const uint64_t block = std::accumulate(counts_ + at_, counts_ + at_ + kBlock, uint32_t{0});
      if (below_ + block > rank) break;
      below_ += block;
      at_ += kBlock;
    }
    while (below_ + counts_[at_] <= rank) {
      below_ += counts_[at_++];
      if (at_ % kBlock == 0) return to(rank);
    }
  }
  [[nodiscard]] uint32_t at() const { return static_cast<uint32_t>(at_); }
  [[nodiscard]] uint64_t below() const { return below_; }

 private:
  static constexpr uint64_t kBlock = kQuantileRow;
  const uint32_t* counts_;
  uint64_t at_ = 0;
  uint64_t below_ = 0;
};

// After a count of eight more bits: extends the images by them. `last`: they are complete.
void refine(const Tables& t, std::span<OrderStatistic> wanted) {
  uint32_t group = 0;
  Walk walk(t.counts);
  uint64_t before = 0;  // elements below the group
  for (OrderStatistic& w : wanted) {
    if (w.group != group) {
      group = w.group;
      walk = Walk(t.counts + uint64_t{group} * kQuantileRow);
      before = w.below;
    }
    walk.to(w.rank - before);
    w.image = w.image << 8 | walk.at();
    w.below = before + walk.below();
    w.equal = t.counts[uint64_t{group} * kQuantileRow + walk.at()];
  }
}

// Numbers the distinct images from 1 on, in `table` at key(statistic).
template <class Key>
uint64_t number_groups(std::span<OrderStatistic> wanted, uint16_t* table, Key&& key) {
  uint32_t groups = 0;
  const OrderStatistic* last = nullptr;
  for (OrderStatistic& w : wanted) {
    const uint64_t at = key(w);
    if (last == nullptr || last->image != w.image) ++groups;
    w.group = groups;
    table[at] = static_cast<uint16_t>(groups);
    last = &w;
  }
  return groups;
}

}  // namespace

uint64_t order_statistics_scratch(uint64_t wanted, uint64_t count) noexcept {
  return aligned(most_shards(count) * counters(wanted) * sizeof(uint32_t)) +
         group_bytes(kQuantileBuckets) + group_bytes(row_counters(wanted));
}

bool order_statistics(const kernels::QuantileKernels& kernels, const float* x, uint64_t count,
                      std::span<OrderStatistic> wanted, MutBytes scratch, ThreadPool* pool) {
  const Tables t = tables_in(scratch, wanted.size(), count, pool);
  std::array<uint32_t, kMostShards> most{};
  count_all(t, count, kQuantileBuckets, pool, [&](uint64_t begin, uint64_t end, uint32_t* table) {
    const auto shard = static_cast<uint64_t>(table - t.counts) / t.stride;
    most[shard] = kernels.count_upper(x + begin, end - begin, table);
  });
  if (*std::max_element(most.begin(), most.end()) >= 0x7F800000U) return false;
  Walk walk(t.counts);
  for (OrderStatistic& w : wanted) {
    walk.to(w.rank);
    w.image = walk.at();
    w.below = walk.below();
  }
  std::fill_n(t.groups, kQuantileBuckets, uint16_t{0});
  const uint64_t groups = number_groups(wanted, t.groups, [](auto& w) { return w.image; });
  count_all(t, count, (groups + 1) * kQuantileRow, pool,
            [&](uint64_t begin, uint64_t end, uint32_t* table) {
              kernels.count_middle(x + begin, end - begin, t.groups, table);
            });
  refine(t, wanted);
  std::fill_n(t.subgroups, (groups + 1) * kQuantileRow, uint16_t{0});
  const uint64_t subgroups = number_groups(wanted, t.subgroups, [](auto& w) {
    return uint64_t{w.group} * kQuantileRow + w.image % kQuantileRow;
  });
  count_all(t, count, (subgroups + 1) * kQuantileRow, pool,
            [&](uint64_t begin, uint64_t end, uint32_t* table) {
              kernels.count_lower(x + begin, end - begin, t.groups, t.subgroups, table);
            });
  refine(t, wanted);
  return true;
}

}  // namespace laconic::codecs
