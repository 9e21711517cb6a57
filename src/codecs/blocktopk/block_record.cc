// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "codecs/blocktopk/block_record.h"

#include <algorithm>
#include <cmath>

#include "codecs/sparse/index_packer.h"
#include "codecs/sparse/sparse_payload.h"
#include "kernels/cast/cast.h"

namespace laconic::codecs {
namespace {

using Values = BlockTopK::Values;

constexpr uint32_t kShortest = 8;  // bits of an index in a block of 256

// Values as two bits: bit 0 the sign, bit 1 which magnitude.
struct Magnitudes {
  float low = 0;
  float high = 0;
};

uint64_t value_bytes(Values values, uint32_t kept) {
  if (values == Values::two_bits) return sizeof(Magnitudes) + ceil_div(2 * kept, 8);
  return kept * dtype_size(values == Values::f32 ? DType::f32 : DType::bf16);
}

DType type_of(Values values) { return values == Values::f32 ? DType::f32 : DType::bf16; }

// Adds in double, lane l the elements l, l + 8, …; folded 4, 2, 1. The mean of no element is 0.
class LaneSum {
 public:
  /// Adds eight magnitudes, as keys, of those whose mask is all ones.
  void add(const uint32_t* keys, const uint32_t* mask) {
    for (uint32_t l = 0; l < 8; ++l) {
      lanes_[l] += static_cast<double>(bits_float(keys[l] & mask[l]));
    }
  }
  float mean(uint32_t count) {
    for (uint32_t half = 4; half != 0; half /= 2) {
      for (uint32_t l = 0; l < half; ++l) lanes_[l] += lanes_[l + half];
    }
    return count == 0 ? 0.0F : static_cast<float>(lanes_[0] / count);
  }

 private:
  std::array<double, 8> lanes_{};
};

// All ones where a key is above the bound: no branch, which would be a toss.
uint32_t above(uint32_t key, uint32_t bound) {
  return static_cast<uint32_t>(static_cast<int32_t>(bound - key) >> 31);
}

void write_two_bits(const float* value, uint32_t count, uint8_t* out) {
  alignas(64) std::array<uint32_t, kMostKept> keys;
  const auto padded = static_cast<uint32_t>(round_up(count, 8));
  for (uint32_t j = 0; j < count; ++j) keys[j] = kernels::magnitude_key(value[j]);
  std::fill(keys.begin() + count, keys.begin() + padded, 0U);  // adds nothing
  LaneSum all, low, high;
  for (uint32_t j = 0; j < padded; j += 8) all.add(keys.data() + j, keys.data() + j);
  const uint32_t mean = float_bits(all.mean(count));
  uint32_t highs = 0;
  for (uint32_t j = 0; j < padded; j += 8) {
    std::array<uint32_t, 8> is_high, is_low;
    for (uint32_t l = 0; l < 8; ++l) {
      is_high[l] = above(keys[j + l], mean);
      is_low[l] = ~is_high[l];
      highs += is_high[l] & 1U;
    }
    high.add(keys.data() + j, is_high.data());
    low.add(keys.data() + j, is_low.data());
  }
  store(out, Magnitudes{low.mean(count - highs), high.mean(highs)});
  alignas(64) std::array<uint8_t, kMostKept> codes{};
  for (uint32_t j = 0; j < count; ++j) {
    codes[j] = static_cast<uint8_t>(float_bits(value[j]) >> 31 | (above(keys[j], mean) & 2U));
  }
  out += sizeof(Magnitudes);
  for (uint32_t j = 0; j < count; j += 4) {
    const auto four = load<uint32_t>(codes.data() + j);
    out[j / 4] = static_cast<uint8_t>(four | four >> 6 | four >> 12 | four >> 18);
  }
}

// `value` holds kMostKept.
void read_two_bits(const uint8_t* in, uint32_t count, float* value) {
  const auto m = load<Magnitudes>(in);
  const std::array<float, 4> table{m.low, -m.low, m.high, -m.high};
  in += sizeof(Magnitudes);
  for (uint32_t j = 0; j < count; j += 4) {
    const uint32_t four = in[j / 4];
    for (uint32_t i = 0; i < 4; ++i) value[j + i] = table[four >> (2 * i) & 3U];
  }
}

// Neither negative nor infinite nor NaN.
bool is_magnitude(const uint8_t* p) { return load<uint32_t>(p) < 0x7F800000U; }

bool two_bits_valid(const uint8_t* in, uint32_t count) {
  const uint32_t last = 2 * count % 8;
  const uint8_t* const codes = in + sizeof(Magnitudes);
  const bool padding_zero = last == 0 || codes[2 * count / 8] >> last == 0;
  return padding_zero && is_magnitude(in) && is_magnitude(in + sizeof(float));
}

}  // namespace

BlockLayout::BlockLayout(const BlockTopK::Params& p, uint64_t count) noexcept
    : count_(count), width_(kShortest + p.block), keep_(p.keep), values_(p.values) {
  blocks_ = ceil_div(count, block_size());
  full_bytes_ = record_bytes(keep_);
}

uint64_t BlockLayout::record_bytes(uint32_t kept) const noexcept {
  return ceil_div(uint64_t{kept} * width_, 8) + value_bytes(values_, kept);
}

BlockRecord BlockLayout::record(uint64_t block) const noexcept {
  const uint64_t begin = block << width_;
  const auto length = static_cast<uint32_t>(std::min<uint64_t>(block_size(), count_ - begin));
  // Of a whole block this is keep_.
  return {begin, length, static_cast<uint32_t>(ceil_div(uint64_t{keep_} * length, block_size())),
          block * full_bytes_};
}

uint64_t BlockLayout::payload_bytes() const noexcept {
  if (blocks_ == 0) return 0;
  const BlockRecord last = record(blocks_ - 1);
  return last.at + record_bytes(last.kept);
}

void BlockLayout::write(const KeptOfBlock& kept, uint32_t count, uint8_t* out) const noexcept {
  IndexPacker indices(out, width_);
  indices.append(kept.index.data(), count);
  indices.finish();
  uint8_t* const values = out + ceil_div(uint64_t{count} * width_, 8);
  if (values_ == Values::two_bits) return write_two_bits(kept.value.data(), count, values);
  if (values_ == Values::f32) {
    std::memcpy(values, kept.value.data(), count * sizeof(float));
  } else {
    kernels::cast_kernels(best_isa()).narrow_bf16(values, 1.0F, kept.value.data(), count);
  }
}

void BlockLayout::read_indices(Bytes payload, const BlockRecord& r, Isa isa,
                               uint32_t* index) const noexcept {
  const kernels::PackedIndices packed{payload.data() + r.at, payload.size() - r.at, width_};
  kernels::scatter_kernels(isa).unpack(packed, 0, r.kept, index);
}

void BlockLayout::read_values(Bytes payload, const BlockRecord& r, Isa isa,
                              float* value) const noexcept {
  const uint8_t* const values = payload.data() + r.at + ceil_div(uint64_t{r.kept} * width_, 8);
  if (values_ == Values::two_bits) return read_two_bits(values, r.kept, value);
  if (values_ == Values::f32) {
    std::memcpy(value, values, r.kept * sizeof(float));
  } else {
    kernels::widen(kernels::cast_kernels(isa), DType::bf16, value, values, r.kept);
  }
}

Errc BlockLayout::check(Bytes payload, const BlockRecord& r) const noexcept {
  const Bytes rest = payload.subspan(r.at);
  const SparseView set = sparse_view(rest, r.kept, block_size(), type_of(values_));
  if (values_ != Values::two_bits) return check_sparse(set, r.length);
  const bool valid =
      indices_valid(set.index, r.kept, r.length) && two_bits_valid(set.values, r.kept);
  return valid ? Errc::ok : Errc::payload_malformed;
}

}  // namespace laconic::codecs
