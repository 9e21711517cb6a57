// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "codecs/sidco/exceedances.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>

#include "codecs/sparse/magnitude_sample.h"
#include "kernels/sparse/moments_elements.h"

namespace laconic::codecs::sidco {
namespace {

using kernels::ChunkMoments;
using kernels::kMomentsChunk;
using kernels::kMomentsLanes;
using kernels::MomentsInput;
using kernels::sidco::most_listed;

// Up to 16 MiB turning round finds enough of the last pass in the second-level cache to pay for the
// slower start of every chunk.
constexpr uint64_t kTurningCount = uint64_t{1} << 22;

// A list made for closing in holds at least this many times what is wanted: thresholds tried on the
// way select more.
constexpr double kListed = 2.4;

uint64_t sample_bytes(uint64_t n, uint64_t wanted) {
  return MagnitudeSample::pays(n, wanted) ? MagnitudeSample::size(n) * sizeof(uint32_t) : 0;
}

// The lanes of one sum of one chunk (kernels/sparse/moments.h), filled from a list.
struct LaneSum {
  float lane[kMomentsLanes] = {};

  double fold() {
    for (uint32_t half = kMomentsLanes / 2; half != 0; half /= 2) {
      for (uint32_t l = 0; l < half; ++l) lane[l] += lane[l + half];
    }
    const double sum = static_cast<double>(lane[0]);
    *this = LaneSum{};
    return sum;
  }
};

}  // namespace

uint64_t Exceedances::scratch_bytes(uint64_t n, uint64_t wanted) noexcept {
  return CandidateList::scratch_bytes(n, most_listed(n, wanted)) +
         ceil_div(n, kMomentsChunk) * sizeof(ChunkMoments) + sample_bytes(n, wanted);
}

Exceedances::Exceedances(Source from, uint64_t n, uint64_t wanted, Law law,
                         const Work& work) noexcept
    : from_(from),
      x_(from.values),
      n_(n),
      capacity_(most_listed(n, wanted)),
      law_(law),
      work_(work),
      chunk_(reinterpret_cast<ChunkMoments*>(work.scratch.data() +
                                             CandidateList::scratch_bytes(n, capacity_))),
      sample_(reinterpret_cast<uint32_t*>(chunk_ + ceil_div(n, kMomentsChunk))),
      list_(work.scratch, n, capacity_) {}

Pass Exceedances::next_pass() noexcept {
  backward_ = !backward_ && n_ <= kTurningCount;
  return backward_ ? Pass::backward : Pass::forward;
}

Totals Exceedances::pass_over_memory(Kernel kernel, MomentsInput in) {
  ++passes_;
  const uint64_t chunks = ceil_div(n_, kMomentsChunk);
  const auto look = [&](uint64_t begin, uint64_t end) {
    kernel(x_ + begin, static_cast<uint32_t>(end - begin), in, chunk_ + begin / kMomentsChunk);
  };
  for_slices(work_.pool, n_, kMomentsChunk, look, next_pass());
  Totals t;
  for (uint64_t c = 0; c < chunks; ++c) {
    const ChunkMoments& m = chunk_[c];
    t.count += m.count;
    t.min_key = std::min(t.min_key, m.min_key);
    t.max_key = std::max(t.max_key, m.max_key);
    t.sum += static_cast<double>(m.sum);
    t.square += static_cast<double>(m.square);
    t.log2_sum += static_cast<double>(m.exponent) + static_cast<double>(m.log_fraction);
  }
  return t;
}

// Adds to the same lanes in the same order as the kernels: skipped elements would have added 0.
Totals Exceedances::pass_over_list(MomentsInput in) const {
  Totals t;
  LaneSum sum;
  LaneSum square;
  uint64_t chunk = 0;
  const auto finish_chunk = [&] {
    t.sum += sum.fold();
    t.square += square.fold();
  };
  list_.for_each_piece([&](const uint32_t* index, const float* value, uint64_t m) {
    if (index[0] / kMomentsChunk != chunk) {  // a piece never crosses a chunk
      finish_chunk();
      chunk = index[0] / kMomentsChunk;
    }
    for (uint64_t j = 0; j < m; ++j) {
      const uint32_t key = kernels::magnitude_key(value[j]);
      if (key < in.floor) continue;
      const float z = kernels::exceedance(key, in);
      sum.lane[index[j] % kMomentsLanes] += z;
      square.lane[index[j] % kMomentsLanes] += z * z;
      ++t.count;
      t.min_key = std::min(t.min_key, key);
    }
  });
  finish_chunk();
  return t;
}

Moments Exceedances::all() {
  const kernels::MomentsKernels& k = kernels::moments_kernels(work_.isa);
  const Kernel kernel = law_ == Law::gamma_pareto ? k.log_mean
                        : law_ == Law::pareto     ? k.variance
                                                  : k.mean;
  Totals t = pass_over_memory(kernel, {});
  max_key_ = t.max_key;
  if (t.count != 0 && kernels::sidco::needs_scale(t.max_key)) {
    scale_ = kernels::sidco::scale_for(t.max_key);
    t = pass_over_memory(kernel, {1, scale_, 0});
  }
  Moments m = kernels::sidco::moments_of(t, 0);
  if (law_ == Law::gamma_pareto && t.count != 0)
    m.log_mean = kernels::sidco::log_mean_of(t, scale_);
  return m;
}

Moments Exceedances::above(Threshold eta, double* low) {
  const float shift = eta.value * scale_;
  const MomentsInput in{eta.key, scale_, shift};
  const kernels::MomentsKernels& k = kernels::moments_kernels(work_.isa);
  const Totals t = listed(eta)
                       ? pass_over_list(in)
                       : pass_over_memory(law_ == Law::exponential ? k.mean : k.variance, in);
  return kernels::sidco::moments_above(t, shift, scale_, low);
}

bool Exceedances::listed(Threshold eta) const noexcept {
  return has_list_ && eta.key >= list_.floor();
}

void Exceedances::expect_only_above(Threshold eta, double expected) {
  if (!listed(eta) && expected <= static_cast<double>(capacity_ / 2)) count(eta);
}

void Exceedances::expect_about(uint64_t wanted) {
  const bool enough = has_list_ && list_.count() >= wanted;  // later thresholds lie above its floor
  if (enough || !MagnitudeSample::pays(n_, wanted)) return;
  const MagnitudeSample sample(x_, n_, work_, sample_);
  collect(std::max(1U, sample.bound(static_cast<uint64_t>(kListed * static_cast<double>(wanted)))));
  keep_list_ = has_list_;
}

void Exceedances::collect(uint32_t floor) {
  ++passes_;
  // The pass that adds what is left of sums goes backward.
  list_.collect(from_, floor, work_, from_.residual == nullptr ? next_pass() : Pass::forward);
  has_list_ = list_.complete();
}

uint64_t Exceedances::count_in_memory(uint32_t floor) {
  ++passes_;
  constexpr uint64_t kSlice = uint64_t{1} << 16;
  const auto& kernels = kernels::select_kernels(work_.isa);
  std::atomic<uint64_t> found{0};
  for_slices(work_.pool, n_, kSlice, [&](uint64_t begin, uint64_t end) {
    found.fetch_add(kernels.count(x_ + begin, end - begin, floor), std::memory_order_relaxed);
  });
  return found.load(std::memory_order_relaxed);
}

uint64_t Exceedances::count(Threshold eta) {
  if (listed(eta)) return list_.count_from(eta.key, work_.isa);
  if (keep_list_) return count_in_memory(eta.key);
  collect(eta.key);
  return list_.count();
}

void Exceedances::write_from_memory(Cut cut, SparseWriter& writer) {
  ++passes_;
  write_cut(x_, n_, cut, work_.isa, writer);
}

void Exceedances::write_above(Threshold eta, SparseWriter& writer) {
  const Cut cut{eta.key - 1, 0};
  if (listed(eta)) {
    list_.write(cut, work_, writer);
  } else {
    write_from_memory(cut, writer);
  }
}

void Exceedances::write_largest(uint64_t wanted, SparseWriter& writer) {
  if (has_list_ && list_.count() >= wanted) {
    list_.write(list_.exact_cut(wanted), work_, writer);
  } else if (wanted == 1) {
    write_from_memory({max_key_, 1}, writer);
  } else {
    ++passes_;  // the first of exact_cut's
    write_from_memory(exact_cut(x_, n_, wanted), writer);
  }
}

}  // namespace laconic::codecs::sidco
