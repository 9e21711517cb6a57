// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The units of a bucket as kernels see them: rows in device memory, in their order. A launch covers
// all of them. A unit is cut into tiles, a block each, and `first_tile` counts those of the units
// before it.
#pragma once

#include <cstdint>
#include <limits>

#include "device/phases.h"
#include "laconic/dtype.h"
#include "laconic/random.h"

namespace laconic::device {

/// Results of encode for a unit; zeros before it. Largest absolute bits: infinity and NaN are on
/// top.
struct Measured {
  uint32_t values = 0;     ///< of x
  uint32_t residual = 0;   ///< of e
  uint32_t sum = 0;        ///< of x + e; thc: of its blocks' norms
  uint32_t chunk_sum = 0;  ///< of the sums of x + e over chunks, in codecs that send means
  uint32_t state = 0;      ///< of the codec state
  uint64_t bytes = 0;      ///< of the payload
};

/// Outcome of encode for a unit.
enum class Verdict : uint8_t {
  payload,
  zero,     ///< the gradient is: nothing is sent, the residual stays
  refused,  ///< not finite, or too large, or the codec state is not finite; nothing changes
  reset,    ///< a payload, of the gradient alone: the residual could not be used
};

/// `encodes`: whether the codec can encode x, with a residual x + e; `limit`: the bits of
/// Plan::largest_input.
[[nodiscard]] LACONIC_HOST_DEVICE constexpr Verdict verdict_if(bool encodes, const Measured& m,
                                                               bool residual, uint32_t limit) {
  if (m.values == 0) return Verdict::zero;
  if (m.state >= float_bits(std::numeric_limits<float>::infinity())) return Verdict::refused;
  if (encodes) return Verdict::payload;
  return residual && m.values <= limit && m.residual > limit ? Verdict::reset : Verdict::refused;
}
/// `fits(bits)`: whether the codec takes numbers of up to that size.
template <class Fits>
[[nodiscard]] LACONIC_HOST_DEVICE Verdict verdict_of(const Measured& m, bool residual,
                                                     uint32_t limit, Fits fits) {
  return verdict_if(fits(residual ? m.sum : m.values), m, residual, limit);
}

[[nodiscard]] LACONIC_HOST_DEVICE constexpr bool gives_payload(Verdict verdict) {
  return verdict == Verdict::payload || verdict == Verdict::reset;
}

/// The `fits` of codecs that take any number up to Plan::largest_input.
struct UpTo {
  uint32_t limit = 0;  ///< bits
  LACONIC_HOST_DEVICE bool operator()(uint32_t bits) const { return bits <= limit; }
};

struct EncodeRow {
  const void* values = nullptr;  ///< of `dtype`: f32, f16 or bf16
  float* residual = nullptr;     ///< null: none
  const float* state = nullptr;  ///< Plan::state_floats; null: as at the start
  uint8_t* out = nullptr;        ///< RoundPlan::bytes, at any alignment
  uint8_t* scratch = nullptr;    ///< Layout::encode, aligned to 16 bytes
  Measured* measured = nullptr;
  uint64_t count = 0;
  uint64_t offset = 0;  ///< Unit::offset
  uint64_t first_tile = 0;
  RandomKey key;            ///< own_key of unit and place
  float prescale = 1.0F;    ///< Place::prescale
  float own_weight = 1.0F;  ///< what a payload weighs in the residual
  uint32_t limit = 0;       ///< bits of Plan::largest_input
  DType dtype = DType::f32;
  /// For codecs with quantized values that add.
  struct Quantized {
    uint8_t* kept = nullptr;   ///< Work::kept; aligned to 64 bytes
    RandomKey shared;          ///< shared_key of unit and place
    uint8_t* lanes = nullptr;  ///< with EncodeBatch::lane_bytes: the elements, aligned to 4 bytes
  } quantized;
};

struct EncodeBatch {
  const EncodeRow* rows = nullptr;
  uint32_t units = 0;
  uint64_t tiles = 0;
  bool residual = false;  ///< rows have one
  uint32_t round = 0;
  /// No round of the rows was encoded before. Otherwise `measured` is as the first one left it.
  bool begins = true;
  /// Last rounds of quantized values: bytes of an element that adds. Rows with no payload get
  /// zeros. 0: no elements are wanted.
  uint32_t lane_bytes = 0;
};

/// A unit that was delivered.
struct CommitRow {
  float* state = nullptr;  ///< Plan::state_floats
  const uint8_t* sent = nullptr;
  uint64_t bytes = 0;  ///< 0: nothing was sent
  uint64_t count = 0;
};

struct CommitBatch {
  const CommitRow* rows = nullptr;
  uint32_t units = 0;
};

/// A received payload: any bytes. It has a tile even if the unit is empty.
struct CheckRow {
  const uint8_t* payload = nullptr;
  uint8_t* scratch = nullptr;
  uint32_t* malformed = nullptr;  ///< 0 before; not 0 afterwards: refused
  uint64_t bytes = 0;
  uint64_t count = 0;
  uint64_t offset = 0;  ///< Unit::offset
  uint64_t first_tile = 0;
};

struct CheckBatch {
  const CheckRow* rows = nullptr;
  uint32_t units = 0;
  uint64_t tiles = 0;
  uint32_t round = 0;
};

inline constexpr uint32_t kTerms = 8;

/// Checked payloads of one unit, in the order in which they are added.
struct DecodeRow {
  float* values = nullptr;
  uint8_t* scratch = nullptr;
  uint64_t count = 0;
  uint64_t first_tile = 0;
  const uint8_t* payload[kTerms] = {};
  uint64_t bytes[kTerms] = {};
  float weight[kTerms] = {};
  uint32_t terms = 0;
  bool add = false;  ///< to what is in `values`
  /// For codecs with quantized values that add.
  struct Quantized {
    const uint8_t* kept = nullptr;  ///< Work::kept; aligned to 64 bytes
    RandomKey shared;               ///< shared_key of unit and place
    uint64_t offset = 0;            ///< Unit::offset
    /// Not null: Term::contributors of the one term, a sum. Each is two words.
    const uint32_t* contributors = nullptr;
    bool by_block = false;              ///< contributors of each block, or of all
    const uint8_t* granules = nullptr;  ///< not null: Term::granules of the one term
  } quantized;
};

struct DecodeBatch {
  const DecodeRow* rows = nullptr;
  uint32_t units = 0;
  uint64_t tiles = 0;
};

/// A block's elements, of its unit.
struct Range {
  uint64_t begin = 0;
  uint64_t end = 0;
};
template <class Row>
[[nodiscard]] LACONIC_HOST_DEVICE Range range_of(const Row& row, uint64_t block, uint64_t tile) {
  const uint64_t begin = (block - row.first_tile) * tile;
  return {begin, begin + tile < row.count ? begin + tile : row.count};
}

/// Element i of a gradient.
template <class B>
[[nodiscard]] LACONIC_DEVICE float gradient_at(B& b, const EncodeRow& row, uint64_t i) {
  if (row.dtype == DType::f32) return b.read(static_cast<const float*>(row.values), i);
  const uint16_t half = b.read(static_cast<const uint16_t*>(row.values), i);
  return row.dtype == DType::f16 ? f16_to_float(half) : bf16_to_float(half);
}

/// Element i of the codec's input: the gradient, with the residual or, after a reset, with a zero
/// one.
template <class B>
[[nodiscard]] LACONIC_DEVICE float input_at(B& b, const EncodeRow& row, uint64_t i, bool reset) {
  const float x = gradient_at(b, row, i);
  if (row.residual == nullptr) return x;
  return (reset ? 0.0F : b.read(row.residual, i)) + x;
}

/// Results of a launch that measured, without `bytes`.
template <class B>
[[nodiscard]] LACONIC_DEVICE Measured measured_of(B& b, const EncodeRow& row) {
  return {b.read(&row.measured->values, 0), b.read(&row.measured->residual, 0),
          b.read(&row.measured->sum, 0),    b.read(&row.measured->chunk_sum, 0),
          b.read(&row.measured->state, 0),  0};
}

[[nodiscard]] LACONIC_HOST_DEVICE constexpr uint32_t absolute_bits(float x) {
  return float_bits(x) & 0x7FFFFFFFU;
}

/// The three maxima, raised. `values`, `residual` and `sum`: every thread's largest bits; used up.
template <class B>
LACONIC_DEVICE Measured raise_measured(B& b, const EncodeRow& row, PerThread<B, uint32_t>& values,
                                       PerThread<B, uint32_t>& residual,
                                       PerThread<B, uint32_t>& sum,
                                       Cells<B, uint32_t, kWarps>& cells) {
  Measured most;
  most.values = most.sum = block_max(b, values, cells);
  if (row.residual != nullptr) {
    most.residual = block_max(b, residual, cells);
    most.sum = block_max(b, sum, cells);
  }
  b.alone([&](uint32_t t) {
    if (t != 0) return;
    b.raise(&row.measured->values, most.values);
    b.raise(&row.measured->residual, most.residual);
    b.raise(&row.measured->sum, most.sum);
  });
  return most;
}

/// Measured::values, for kernels that do without Measure. `most`: every thread's largest bits; used
/// up.
template <class B>
LACONIC_DEVICE void raise_values(B& b, const EncodeRow& row, PerThread<B, uint32_t>& most,
                                 Cells<B, uint32_t, kWarps>& cells) {
  const uint32_t of_block = block_max(b, most, cells);
  b.alone([&](uint32_t t) {
    if (t == 0) b.raise(&row.measured->values, of_block);
  });
}

}  // namespace laconic::device
