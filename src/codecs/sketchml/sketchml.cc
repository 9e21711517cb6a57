// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "codecs/sketchml/sketchml.h"

#include <algorithm>
#include <bit>

#include "codecs/dense/dense_decode.h"
#include "codecs/sketchml/order_statistics.h"
#include "kernels/quantile/quantile_elements.h"

namespace laconic::codecs {
namespace {

using kernels::kQuantileBins;
using kernels::kQuantileBuckets;
using kernels::QuantileBins;

static_assert(kDenseTerms <= kernels::kQuantileTerms);
static_assert(kDenseChunk % 64 == 0);  // codes of a chunk begin with a byte

uint32_t width_of(uint32_t bins) { return static_cast<uint32_t>(std::bit_width(bins - 1)); }

uint64_t value_bytes(const SketchMl::Params& params) { return params.quantiles * sizeof(float); }
uint64_t code_bytes(const SketchMl::Params& params, uint64_t count) {
  return ceil_div(count * width_of(params.quantiles), 8);
}
uint64_t payload_bytes(const SketchMl::Params& params, uint64_t count) {
  return count == 0 ? 0 : value_bytes(params) + code_bytes(params, count);
}

uint64_t chunks_of(uint64_t count) { return ceil_div(count, kDenseChunk); }

// Scratch: the bins' base, sums of every chunk, then what finding the order statistics takes.
constexpr uint64_t kBaseBytes = kQuantileBuckets;
uint64_t sum_bytes(const SketchMl::Params& params, uint64_t count) {
  return round_up(chunks_of(count) * params.quantiles * sizeof(double), 64);
}

constexpr uint32_t kMostEdges = kQuantileBins + 1;

// The two neighbours of an edge: of edge j the elements of the ranks floor(p) and floor(p) + 1,
// p = j·(count - 1)/bins.
struct Ranks {
  Ranks(uint64_t j, uint64_t count, uint32_t bins)
      : low(j * (count - 1) / bins),
        high(std::min(low + 1, count - 1)),
        remainder(j * (count - 1) - low * bins) {}
  uint64_t low, high;
  uint64_t remainder;  // p - floor(p) in units of 1/bins
};

class Edges {
 public:
  Edges(uint32_t bins, uint64_t count) : bins_(bins), count_(count) {}

  // The thresholds of codes, and how many elements are below each. Small units are sorted; of
  // others `spare` is made use of (order_statistics).
  bool find(const kernels::QuantileKernels& kernels, const float* x, MutBytes scratch,
            MutBytes spare, ThreadPool* pool) {
    thresholds_.fill(~0U);
    below_[0] = 0;
    below_[bins_] = count_;
    return count_ <= kernels::kQuantileSorted ? by_sorting(x, scratch)
                                              : by_counting(kernels, x, scratch, spare, pool);
  }
  QuantileBins bins(uint8_t* base) const;
  [[nodiscard]] uint64_t elements_of(uint32_t bin) const { return below_[bin + 1] - below_[bin]; }

 private:
  bool by_sorting(const float* x, MutBytes scratch);
  bool by_counting(const kernels::QuantileKernels& kernels, const float* x, MutBytes scratch,
                   MutBytes spare, ThreadPool* pool);
  // A value equal to several edges belongs to the bin of the first one: only larger values pass the
  // others.
  uint32_t set_threshold(uint32_t j, uint32_t edge) {
    thresholds_[j - 1] = edge + (edge == last_edge_ ? 1 : 0);
    last_edge_ = edge;
    return thresholds_[j - 1];
  }
  uint32_t fill_base(uint8_t* base) const;

  uint32_t bins_;
  uint64_t count_;
  uint32_t least_ = 0, most_ = 0;  // images of the outer edges
  uint32_t last_edge_ = 0;
  std::array<uint32_t, 2 * kQuantileBins> thresholds_;
  std::array<uint64_t, kMostEdges> below_;  // elements below a bin's threshold
};

// Between its neighbours, linear in the rank.
uint32_t edge_image(uint32_t low_image, uint32_t high_image, uint64_t remainder, uint32_t bins) {
  const auto low = static_cast<double>(kernels::quantile_float(low_image));
  const auto high = static_cast<double>(kernels::quantile_float(high_image));
  const double part = static_cast<double>(remainder) / static_cast<double>(bins);
  return kernels::quantile_image(static_cast<float>(low + part * (high - low)));
}

// Elements with an image below the threshold, which is that of a value between the neighbours, or
// one more.
uint64_t elements_below(const OrderStatistic& low, const OrderStatistic& high, uint32_t threshold) {
  if (threshold <= low.image) return low.below;
  if (threshold <= high.image) return low.below + low.equal;
  return high.below + high.equal;
}

bool Edges::by_sorting(const float* x, MutBytes scratch) {
  const uint32_t* const images = sorted_images(x, count_, scratch);
  if (images == nullptr) return false;
  least_ = last_edge_ = images[0];
  most_ = images[count_ - 1];
  for (uint32_t j = 1; j < bins_; ++j) {
    const Ranks ranks(j, count_, bins_);
    const uint32_t low = images[ranks.low], high = images[ranks.high];
    const uint32_t threshold = set_threshold(j, edge_image(low, high, ranks.remainder, bins_));
    const bool between = low < threshold && threshold <= high;
    below_[j] =
        between
            ? ranks.high
            : static_cast<uint64_t>(std::lower_bound(images, images + count_, threshold) - images);
  }
  return true;
}

bool Edges::by_counting(const kernels::QuantileKernels& kernels, const float* x, MutBytes scratch,
                        MutBytes spare, ThreadPool* pool) {
  std::array<OrderStatistic, 2 * kMostEdges> wanted;
  std::array<uint32_t, kMostEdges> low, high;  // where the neighbours' ranks are in `wanted`
  uint32_t ranks = 0;
  const auto want = [&](uint64_t rank) {
    if (ranks == 0 || wanted[ranks - 1].rank != rank) wanted[ranks++].rank = rank;
    return ranks - 1;
  };
  // both neighbours ascend with the edges, so a merge has them in order
  for (uint32_t l = 0, h = 0; h <= bins_;) {
    const uint64_t high_rank = Ranks(h, count_, bins_).high;
    if (l <= bins_ && Ranks(l, count_, bins_).low <= high_rank) {
      low[l] = want(Ranks(l, count_, bins_).low);
      ++l;
    } else {
      high[h] = want(high_rank);
      ++h;
    }
  }
  const std::span<OrderStatistic> found(wanted.data(), ranks);
  if (!order_statistics(kernels, x, count_, found, scratch, spare, pool)) return false;
  least_ = last_edge_ = found[low[0]].image;
  most_ = found[high[bins_]].image;
  for (uint32_t j = 1; j < bins_; ++j) {
    const OrderStatistic &below = found[low[j]], &above = found[high[j]];
    const uint64_t remainder = Ranks(j, count_, bins_).remainder;
    below_[j] = elements_below(
        below, above, set_threshold(j, edge_image(below.image, above.image, remainder, bins_)));
  }
  return true;
}

// Thresholds that the smallest image of a bucket reaches, for the buckets of elements. Returns the
// most that lie inside of a bucket.
uint32_t Edges::fill_base(uint8_t* base) const {
  const uint32_t buckets = (most_ >> 16) + 1;
  uint32_t from = least_ >> 16;
  const auto fill_to = [&](uint32_t to, uint32_t code) {
    if (to > from) std::fill(base + from, base + to, static_cast<uint8_t>(code));
    from = std::max(from, to);
  };
  for (uint32_t j = 0; j < bins_ - 1; ++j) {
    // the first bucket that is above the threshold
    fill_to(std::min((thresholds_[j] + 0xFFFFU) >> 16, buckets), j);
  }
  fill_to(buckets, bins_ - 1);
  uint32_t most = 0;
  for (uint32_t j = 0, inside = 0; j < bins_ - 1; ++j) {
    const bool same = j > 0 && thresholds_[j] >> 16 == thresholds_[j - 1] >> 16;
    inside = same ? inside + 1 : 1;
    most = std::max(most, inside);
  }
  return most;
}

QuantileBins Edges::bins(uint8_t* base) const {
  const uint32_t most = fill_base(base);
  return {base, thresholds_.data(), static_cast<uint32_t>(std::bit_width(most)), bins_,
          width_of(bins_)};
}

float mean_of(const double* sums, uint64_t stride, uint64_t chunks, uint64_t elements) {
  if (elements == 0) return 0;
  double sum = 0;
  for (uint64_t c = 0; c < chunks; ++c) sum += sums[c * stride];
  return static_cast<float>(sum / static_cast<double>(elements));
}

// True if no value names a bin beyond the last, and the bits after the last value are zero.
bool codes_valid(const uint8_t* codes, uint64_t count, uint32_t bins) {
  const uint32_t width = width_of(bins);
  const uint64_t bits = count * width;
  if (bits % 8 != 0 && codes[bits / 8] >> bits % 8 != 0) return false;
  if (bins == 1U << width) return true;
  for (uint64_t i = 0; i < count; ++i) {
    if (kernels::quantile_packed(codes, i, width) >= bins) return false;
  }
  return true;
}

}  // namespace

Contract SketchMl::contract(const Params&) {
  Contract c;
  c.feedback = Feedback::own;
  c.memories = memory_set(MemoryKind::residual, MemoryKind::ema);
  c.checks_finite = true;
  c.max_count = ~uint32_t{0};
  c.granule = 64;
  return c;
}

Plan SketchMl::plan(const Params& params, const Unit& unit, uint32_t) {
  Plan plan;
  plan.round[0].bytes = payload_bytes(params, unit.count);
  plan.scratch_bytes = kBaseBytes + sum_bytes(params, unit.count) +
                       order_statistics_scratch(2 * (params.quantiles + 1), unit.count);
  // an element and the mean of its bin may have different signs
  plan.largest_input = std::numeric_limits<float>::max() / 2;
  return plan;
}

Encoded SketchMl::encode(const Call<Params>& call, Source source, MutBytes out) {
  const uint64_t n = call.unit.count;
  if (n == 0) return {};
  const auto& kernels = kernels::quantile_kernels(call.work.isa);
  uint8_t* const base = call.work.scratch.data();
  auto* const sums = reinterpret_cast<double*>(base + kBaseBytes);
  const MutBytes rest = call.work.scratch.subspan(kBaseBytes + sum_bytes(*call.params, n));
  Edges edges(call.params->quantiles, n);
  // the codes' own place is free until they are written
  const MutBytes spare = out.subspan(value_bytes(*call.params), code_bytes(*call.params, n));
  if (!edges.find(kernels, source.values, rest, spare, call.work.pool)) return {0, false};
  const QuantileBins bins = edges.bins(base);
  uint8_t* const codes = out.data() + value_bytes(*call.params);
  const uint64_t stride = call.params->quantiles;
  for_slices(call.work.pool, n, kDenseChunk, [&](uint64_t begin, uint64_t end) {
    kernels.encode(source.values + begin, end - begin, bins, codes + begin / 8 * bins.width,
                   sums + begin / kDenseChunk * stride);
  });
  for (uint32_t b = 0; b < call.params->quantiles; ++b) {
    store(out.data() + b * sizeof(float),
          mean_of(sums + b, stride, chunks_of(n), edges.elements_of(b)));
  }
  return {payload_bytes(*call.params, n), true};
}

Errc SketchMl::check(const Params& params, const Unit& unit, uint32_t, Bytes payload) {
  if (payload.size() != payload_bytes(params, unit.count)) return Errc::payload_malformed;
  if (unit.count == 0) return Errc::ok;
  for (uint64_t b = 0; b < params.quantiles; ++b) {
    const uint32_t bits = load<uint32_t>(payload.data() + b * sizeof(float));
    if ((bits & 0x7FFFFFFFU) >= 0x7F800000U) return Errc::payload_malformed;
  }
  const bool valid =
      codes_valid(payload.data() + value_bytes(params), unit.count, params.quantiles);
  return valid ? Errc::ok : Errc::payload_malformed;
}

void SketchMl::decode(const Call<Params>& call, std::span<const Term> terms, Target target) {
  const auto& kernels = kernels::quantile_kernels(call.work.isa);
  const kernels::QuantileLayout layout{call.params->quantiles, width_of(call.params->quantiles),
                                       code_bytes(*call.params, call.unit.count)};
  decode_dense(terms, target, call.unit.count, kDenseChunk, call.work.pool,
               [&](float* out, kernels::Output output, const kernels::Weighted* operands,
                   uint32_t count, uint64_t begin, uint64_t end) {
                 kernels.decode(out, output, operands, count, layout, begin, end);
               });
}

}  // namespace laconic::codecs
