// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "codecs/sketchml/order_statistics.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "kernels/quantile/quantile_elements.h"

namespace laconic::codecs {
namespace {

using kernels::kQuantileBuckets;
using kernels::kQuantileRow;

// Tables of counters that threads fill concurrently. Their sums do not depend on the number of
// tables.
constexpr uint64_t kMostShards = 8;
constexpr uint64_t kShard = uint64_t{1} << 16;  // elements that are worth a table

uint64_t most_shards(uint64_t count) {
  return std::clamp<uint64_t>(count / kShard, 1, kMostShards);
}

uint64_t aligned(uint64_t bytes) { return round_up(bytes, 64); }

// Rows of counters: at most one per rank, then one for all other elements.
uint64_t row_counters(uint64_t wanted) { return (wanted + 1) * kQuantileRow; }
uint64_t counters(uint64_t wanted) {
  return std::max<uint64_t>(kQuantileBuckets, row_counters(wanted));
}
uint64_t group_bytes(uint64_t entries) { return aligned(entries * sizeof(uint16_t)); }

// Elements per batch whose members are collected: they stay in the first-level cache.
constexpr uint64_t kBatch = 4096;
constexpr uint64_t kBatchBytes = kBatch * sizeof(uint32_t);

struct Tables {
  uint32_t* counts;   // `shards` of them, `stride` apart
  uint32_t* members;  // of a batch, one array for each shard
  uint16_t* groups;
  uint16_t* subgroups;
  uint64_t shards;
  uint64_t stride;
};

// Members of a group that a shard has found and kept, if they fitted.
struct KeptMembers {
  uint8_t* data = nullptr;
  uint64_t room = 0;  // members
  uint64_t count = 0;
  [[nodiscard]] bool complete() const { return count <= room; }
  void add(const uint32_t* members, uint64_t n) {
    if (count + n <= room)
      std::memcpy(data + count * sizeof(uint32_t), members, n * sizeof(uint32_t));
    count += n;
  }
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
  t.members = reinterpret_cast<uint32_t*>(at);
  at += most * kBatchBytes;
  t.groups = reinterpret_cast<uint16_t*>(at);
  at += group_bytes(kQuantileBuckets);
  t.subgroups = reinterpret_cast<uint16_t*>(at);
  return t;
}

// count(shard, begin, end, table) over shares of the elements, `size` counters each; afterwards the
// first table holds the sum of all.
template <class Count>
void count_all(const Tables& t, uint64_t n, uint64_t size, ThreadPool* pool, Count&& count) {
  parallel_for(t.shards > 1 ? pool : nullptr, t.shards, [&](uint64_t s) {
    uint32_t* const table = t.counts + s * t.stride;
    std::fill_n(table, size, 0U);
    count(s, n * s / t.shards, n * (s + 1) / t.shards, table);
  });
  for (uint64_t s = 1; s < t.shards; ++s) {
    const uint32_t* const table = t.counts + s * t.stride;
    for (uint64_t i = 0; i < size; ++i) t.counts[i] += table[i];
  }
}

// each(members, count) for the images of x[begin, end) that are in a group, batch by batch.
template <class Each>
void for_members(const kernels::QuantileKernels& kernels, const Tables& t, uint64_t shard,
                 const float* x, uint64_t begin, uint64_t end, Each&& each) {
  uint32_t* const members = t.members + shard * (kBatchBytes / sizeof(uint32_t));
  for (uint64_t i = begin; i < end; i += kBatch) {
    each(members, kernels.collect(x + i, std::min(kBatch, end - i), t.groups, members));
  }
}

uint64_t middle_index(const Tables& t, uint32_t image) {
  return uint64_t{t.groups[image >> 16]} * kQuantileRow + (image >> 8) % kQuantileRow;
}
uint64_t lower_index(const Tables& t, uint32_t image) {
  return uint64_t{t.subgroups[middle_index(t, image)]} * kQuantileRow + image % kQuantileRow;
}

// Steps through counters to those that contain given ranks, which ascend.
class Walk {
 public:
  explicit Walk(const uint32_t* counts) : counts_(counts) {}

  // Goes to the counter that contains `rank`, counted from the first one.
  void to(uint64_t rank) {
    for (;;) {
      if (at_ % kStep == 0) {
        const uint32_t* const from = counts_ + at_;
        const uint64_t sum = std::accumulate(from, from + kStep, uint32_t{0});
        if (below_ + sum <= rank) {
          below_ += sum;
          at_ += kStep;
          continue;
        }
      }
      if (below_ + counts_[at_] > rank) return;
      below_ += counts_[at_++];
    }
  }
  [[nodiscard]] uint32_t at() const { return at_; }
  [[nodiscard]] uint64_t below() const { return below_; }

 private:
  static constexpr uint32_t kStep = 16;
  const uint32_t* counts_;
  uint32_t at_ = 0;
  uint64_t below_ = 0;
};

// After the count of the upper bits.
void begin(const Tables& t, std::span<OrderStatistic> wanted) {
  Walk walk(t.counts);
  for (OrderStatistic& w : wanted) {
    walk.to(w.rank);
    w.image = walk.at();
    w.below = walk.below();
  }
}

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
  if (count <= kernels::kQuantileSorted) {
    return 2 * count * sizeof(uint32_t);
  }
  const uint64_t shards = most_shards(count);
  return aligned(shards * counters(wanted) * sizeof(uint32_t)) + shards * kBatchBytes +
         group_bytes(kQuantileBuckets) + group_bytes(row_counters(wanted));
}

const uint32_t* sorted_images(const float* x, uint64_t count, MutBytes scratch) {
  auto* const images = reinterpret_cast<uint32_t*>(scratch.data());
  return kernels::quantile_sort(x, count, images, images + count) < 0x7F800000U ? images : nullptr;
}

bool order_statistics(const kernels::QuantileKernels& kernels, const float* x, uint64_t count,
                      std::span<OrderStatistic> wanted, MutBytes scratch, MutBytes spare,
                      ThreadPool* pool) {
  const Tables t = tables_in(scratch, wanted.size(), count, pool);
  std::array<uint32_t, kMostShards> most{};
  count_all(t, count, kQuantileBuckets, pool,
            [&](uint64_t shard, uint64_t begin, uint64_t end, uint32_t* table) {
              most[shard] = kernels.count_upper(x + begin, end - begin, table);
            });
  if (*std::max_element(most.begin(), most.end()) >= 0x7F800000U) return false;
  begin(t, wanted);
  std::fill_n(t.groups, kQuantileBuckets, uint16_t{0});
  const uint64_t groups = number_groups(wanted, t.groups, [](auto& w) { return w.image; });
  std::array<KeptMembers, kMostShards> kept;
  count_all(t, count, (groups + 1) * kQuantileRow, pool,
            [&](uint64_t shard, uint64_t begin, uint64_t end, uint32_t* table) {
              const uint64_t room = spare.size() / t.shards / sizeof(uint32_t);
              KeptMembers keep{spare.data() + shard * room * sizeof(uint32_t), room, 0};
              for_members(kernels, t, shard, x, begin, end, [&](const uint32_t* m, uint64_t n) {
                for (uint64_t i = 0; i < n; ++i) ++table[middle_index(t, m[i])];
                keep.add(m, n);
              });
              kept[shard] = keep;
            });
  refine(t, wanted);
  std::fill_n(t.subgroups, (groups + 1) * kQuantileRow, uint16_t{0});
  const uint64_t subgroups = number_groups(wanted, t.subgroups, [](auto& w) {
    return uint64_t{w.group} * kQuantileRow + w.image % kQuantileRow;
  });
  count_all(t, count, (subgroups + 1) * kQuantileRow, pool,
            [&](uint64_t shard, uint64_t begin, uint64_t end, uint32_t* table) {
              const KeptMembers& keep = kept[shard];
              if (keep.complete()) {
                for (uint64_t i = 0; i < keep.count; ++i) {
                  ++table[lower_index(t, load<uint32_t>(keep.data + i * sizeof(uint32_t)))];
                }
                return;
              }
              for_members(kernels, t, shard, x, begin, end, [&](const uint32_t* m, uint64_t n) {
                for (uint64_t i = 0; i < n; ++i) ++table[lower_index(t, m[i])];
              });
            });
  refine(t, wanted);
  return true;
}

}  // namespace laconic::codecs
