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
constexpr uint64_t kBaseBytes = kQuantileBuckets + 64;
uint64_t sum_bytes(const SketchMl::Params& params, uint64_t count) {
  return round_up(chunks_of(count) * params.quantiles * sizeof(double), 64);
}

constexpr uint32_t kMostEdges = kQuantileBins + 1;

// The two neighbours of every edge: of edge j the elements of the ranks floor(p) and floor(p) + 1,
// p = j·(count - 1)/bins.
struct Neighbours {
  uint64_t remainder = 0;  // p - floor(p) in units of 1/bins
  OrderStatistic low, high;
};

class Edges {
 public:
  Edges(uint32_t bins, uint64_t count) : bins_(bins), count_(count) {}

  // Makes use of `spare` (order_statistics).
  bool find(const kernels::QuantileKernels& kernels, const float* x, MutBytes scratch,
            MutBytes spare, ThreadPool* pool);
  // The thresholds of codes, and which elements have each.
  void set(QuantileBins& bins, uint8_t* base);
  [[nodiscard]] uint64_t elements_of(uint32_t bin) const { return below_[bin + 1] - below_[bin]; }

 private:
  uint32_t bins_;
  uint64_t count_;
  std::array<Neighbours, kMostEdges> edges_;
  std::array<uint32_t, 2 * kQuantileBins> thresholds_;
  std::array<uint64_t, kMostEdges> below_;  // elements below a bin's threshold
};

bool Edges::find(const kernels::QuantileKernels& kernels, const float* x, MutBytes scratch,
                 MutBytes spare, ThreadPool* pool) {
  std::array<OrderStatistic, 2 * kMostEdges> wanted;
  std::array<uint32_t, kMostEdges> low, high;  // where the neighbours' ranks are in `wanted`
  std::array<uint64_t, kMostEdges> low_rank;
  for (uint64_t j = 0; j <= bins_; ++j) {
    low_rank[j] = j * (count_ - 1) / bins_;
    edges_[j].remainder = j * (count_ - 1) - low_rank[j] * bins_;
  }
  const auto high_rank = [&](uint64_t j) { return std::min(low_rank[j] + 1, count_ - 1); };
  uint32_t ranks = 0;
  const auto want = [&](uint64_t rank) {
    if (ranks == 0 || wanted[ranks - 1].rank != rank) wanted[ranks++].rank = rank;
    return ranks - 1;
  };
  // both neighbours ascend with the edges, so a merge has them in order
  for (uint64_t l = 0, h = 0; h <= bins_;) {
    if (l <= bins_ && low_rank[l] <= high_rank(h)) {
      low[l] = want(low_rank[l]);
      ++l;
    } else {
      high[h] = want(high_rank(h));
      ++h;
    }
  }
  const std::span<OrderStatistic> found(wanted.data(), ranks);
  if (!order_statistics(kernels, x, count_, found, scratch, spare, pool)) return false;
  for (uint64_t j = 0; j <= bins_; ++j) {
    edges_[j].low = found[low[j]];
    edges_[j].high = found[high[j]];
  }
  return true;
}

// Between its neighbours, linear in the rank.
uint32_t edge_image(const Neighbours& e, uint32_t bins) {
  const auto low = static_cast<double>(kernels::quantile_float(e.low.image));
  const auto high = static_cast<double>(kernels::quantile_float(e.high.image));
  const double part = static_cast<double>(e.remainder) / static_cast<double>(bins);
  return kernels::quantile_image(static_cast<float>(low + part * (high - low)));
}

// Elements with an image below the threshold, which is that of a value between the neighbours, or
// one more.
uint64_t elements_below(const Neighbours& e, uint32_t threshold) {
  if (threshold <= e.low.image) return e.low.below;
  if (threshold <= e.high.image) return e.low.below + e.low.equal;
  return e.high.below + e.high.equal;
}

void Edges::set(QuantileBins& bins, uint8_t* base) {
  thresholds_.fill(~0U);
  uint32_t last = edges_[0].low.image;  // the edge before
  below_[0] = 0;
  for (uint32_t j = 1; j < bins_; ++j) {
    // What equals several edges belongs to the bin of the first one: only more than it passes the
    // others.
    const uint32_t image = edge_image(edges_[j], bins_);
    thresholds_[j - 1] = image + (image == last ? 1 : 0);
    below_[j] = elements_below(edges_[j], thresholds_[j - 1]);
    last = image;
  }
  below_[bins_] = count_;
  // base: thresholds that the smallest image of a bucket reaches, for the buckets of elements
  const uint32_t buckets = (edges_[bins_].high.image >> 16) + 1;
  uint32_t most = 0;  // the most that lie inside of a bucket
  uint32_t from = edges_[0].low.image >> 16;
  const auto fill_to = [&](uint32_t to, uint32_t code) {
    if (to > from) std::fill(base + from, base + to, static_cast<uint8_t>(code));
    from = std::max(from, to);
  };
  for (uint32_t j = 0; j < bins_ - 1; ++j) {
    // the first bucket that is above the threshold
    fill_to(std::min((thresholds_[j] + 0xFFFFU) >> 16, buckets), j);
  }
  fill_to(buckets, bins_ - 1);
  for (uint32_t j = 0, inside = 0; j < bins_ - 1; ++j) {
    const bool same = j > 0 && thresholds_[j] >> 16 == thresholds_[j - 1] >> 16;
    inside = same ? inside + 1 : 1;
    most = std::max(most, inside);
  }
  bins = {base, thresholds_.data(), static_cast<uint32_t>(std::bit_width(most)), bins_,
          width_of(bins_)};
}

float mean_of(const double* sums, uint64_t stride, uint64_t chunks, uint64_t elements) {
  if (elements == 0) return 0;
  double sum = 0;
  for (uint64_t c = 0; c < chunks; ++c) sum += sums[c * stride];
  return static_cast<float>(sum / static_cast<double>(elements));
}

// Whether no code names a bin beyond the last, and nothing lies behind the last code.
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

Encoded SketchMl::encode(const Params& params, std::span<const float>, const Unit& unit,
                         const Place&, uint32_t, Source source, Work& work, MutBytes out) {
  const uint64_t n = unit.count;
  if (n == 0) return {};
  const auto& kernels = kernels::quantile_kernels(work.isa);
  uint8_t* const base = work.scratch.data();
  auto* const sums = reinterpret_cast<double*>(base + kBaseBytes);
  const MutBytes rest = work.scratch.subspan(kBaseBytes + sum_bytes(params, n));
  Edges edges(params.quantiles, n);
  // the codes' own place is free until they are written
  const MutBytes spare = out.subspan(value_bytes(params), code_bytes(params, n));
  if (!edges.find(kernels, source.values, rest, spare, work.pool)) return {0, false};
  QuantileBins bins;
  edges.set(bins, base);
  uint8_t* const codes = out.data() + value_bytes(params);
  const uint64_t stride = params.quantiles;
  for_slices(work.pool, n, kDenseChunk, [&](uint64_t begin, uint64_t end) {
    kernels.encode(source.values + begin, end - begin, bins, codes + begin / 8 * bins.width,
                   sums + begin / kDenseChunk * stride);
  });
  for (uint32_t b = 0; b < params.quantiles; ++b) {
    store(out.data() + b * sizeof(float),
          mean_of(sums + b, stride, chunks_of(n), edges.elements_of(b)));
  }
  return {payload_bytes(params, n), true};
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

void SketchMl::decode(const Params& params, const Unit& unit, const Place&,
                      std::span<const Term> terms, Work& work, Target target) {
  const auto& kernels = kernels::quantile_kernels(work.isa);
  const kernels::QuantileLayout layout{params.quantiles, width_of(params.quantiles),
                                       code_bytes(params, unit.count)};
  decode_dense(terms, target, unit.count, kDenseChunk, work.pool,
               [&](float* out, kernels::Output output, const kernels::Weighted* operands,
                   uint32_t count, uint64_t begin, uint64_t end) {
                 kernels.decode(out, output, operands, count, layout, begin, end);
               });
}

}  // namespace laconic::codecs
