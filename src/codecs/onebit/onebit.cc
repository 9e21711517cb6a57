// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "codecs/onebit/onebit.h"

#include <atomic>

#include "codecs/dense/signs.h"
#include "kernels/core/basic.h"

namespace laconic::codecs {
namespace {

using kernels::BitsValues;

constexpr uint64_t kChunk = uint64_t{1} << 15;
static_assert(kChunk % kernels::kBitsChunk == 0 && kDenseChunk % kChunk == 0);

// Chunks of which both passes find the elements in the second-level cache, 8 bytes each.
constexpr uint64_t kCached = 4 * kChunk;

// Elements whose 8 bytes are half of a first-level cache or more.
constexpr uint64_t kPiece = 4096;

// Payload: for every chunk the means of the bits 0 and 1 (f32), then the bits of the unit.
constexpr uint64_t kMeansBytes = sizeof(BitsValues);
static_assert(kMeansBytes == 8);

uint64_t means_count(const OneBit::Params& params, uint64_t count) {
  return params.scale == OneBit::Scale::chunk ? ceil_div(count, kChunk) : count != 0 ? 1 : 0;
}

uint64_t bits_at(const OneBit::Params& params, uint64_t count) {
  return means_count(params, count) * kMeansBytes;
}

uint64_t payload_bytes(const OneBit::Params& params, uint64_t count) {
  return bits_at(params, count) + bit_bytes(count);
}

// The mean of no element is 0.
float mean_of(double sum, uint64_t count) {
  return count == 0 ? 0.0F : static_cast<float>(sum / static_cast<double>(count));
}

BitsValues means_of(const SignSums& sums, uint64_t count) {
  return {mean_of(sums.negative, count - sums.positives), mean_of(sums.positive, sums.positives)};
}

// One is finite and not negative, the other finite and not positive; 0 has no sign.
bool are_means(const uint8_t* p) {
  const auto zero = load<uint32_t>(p);
  const auto one = load<uint32_t>(p + sizeof(float));
  return (zero == 0 || (zero > 0x80000000U && zero < 0xFF800000U)) && one < 0x7F800000U;
}

Encoded encode_unit(const OneBit::Params& params, uint64_t count, Source source, Work& work,
                    MutBytes out) {
  const SignSums sums = pack_signs(count, source, work, out.data() + bits_at(params, count));
  if (!sums.finite()) return {0, false};
  const BitsValues means = means_of(sums, count);
  store(out.data(), means);
  if (source.residual != nullptr) keep_rest(count, source, means, work);
  return {payload_bytes(params, count), true};
}

// The two passes over a chunk.
struct ChunkEncoder {
  const kernels::BitsKernels& kernel;
  uint64_t count = 0;
  Source source;
  uint8_t* means = nullptr;
  uint8_t* bits = nullptr;

  // Writes bits and means. False if something is not finite.
  [[nodiscard]] bool pack(uint64_t begin, uint64_t end) const {
    const SignSums sums = pack_signs(kernel, begin, end, source, bits);
    store(means + begin / kChunk * kMeansBytes, means_of(sums, end - begin));
    return sums.finite();
  }
  // Begins at the end, which is in the first-level cache still.
  void keep_rest(uint64_t begin, uint64_t end) const {
    const auto values = load<BitsValues>(means + begin / kChunk * kMeansBytes);
    const auto rest = [&](uint64_t from, uint64_t to) {
      kernel.keep_rest(source.values + begin + from, source.residual + begin + from, to - from,
                       values);
    };
    for_slices(nullptr, end - begin, kPiece, rest, Pass::backward);
  }
};

// body(begin, end) of every chunk; false if any is.
template <class Body>
bool all_chunks(ThreadPool* pool, uint64_t count, Body&& body) {
  std::atomic<bool> good{true};
  for_slices(pool, count, kChunk, [&](uint64_t begin, uint64_t end) {
    if (!body(begin, end)) good.store(false, std::memory_order_relaxed);
  });
  return good.load(std::memory_order_relaxed);
}

// Small values alone decide that the sums are finite, unless a residual lies beyond
// Plan::largest_input itself. From the last to the first, where encoding begins.
bool values_are_small(uint64_t count, Source source, Work& work) {
  const auto& kernel = kernels::basic_kernels(work.isa);
  std::atomic<bool> small{true};
  const auto look = [&](uint64_t begin, uint64_t end) {
    if (!(kernel.scan(source.values + begin, end - begin).max_abs <= kLargestForSums)) {
      small.store(false, std::memory_order_relaxed);
    }
  };
  for_slices(work.pool, count, kDenseChunk, look, Pass::backward);
  return small.load(std::memory_order_relaxed);
}

// A chunk changes the residual before the next one is looked at, so what could make a sum infinite
// has to be known before the first.
bool encode_chunks(const ChunkEncoder& encoder, Work& work) {
  const auto pack = [&](uint64_t begin, uint64_t end) { return encoder.pack(begin, end); };
  const auto both = [&](uint64_t begin, uint64_t end) {
    const bool finite = encoder.pack(begin, end);
    if (finite) encoder.keep_rest(begin, end);
    return finite;
  };
  if (encoder.source.residual == nullptr) return all_chunks(work.pool, encoder.count, pack);
  if (encoder.count > kCached && values_are_small(encoder.count, encoder.source, work)) {
    return all_chunks(work.pool, encoder.count, both);
  }
  if (!all_chunks(work.pool, encoder.count, pack)) return false;
  const auto rest = [&](uint64_t begin, uint64_t end) { encoder.keep_rest(begin, end); };
  for_slices(work.pool, encoder.count, kChunk, rest, Pass::backward);
  return true;
}

}  // namespace

Contract OneBit::contract(const Params& params) {
  Contract c;
  c.feedback = Feedback::own;
  c.memory_default = MemoryKind::residual;
  c.memories = memory_set(MemoryKind::residual, MemoryKind::ema);
  c.fused = true;
  c.checks_finite = true;
  c.granule = params.scale == Scale::chunk ? static_cast<uint32_t>(kChunk) : 64;
  // The error is the spread on both sides of 0: delta is as small as 1/n.
  c.contraction = 0;
  return c;
}

Plan OneBit::plan(const Params& params, const Unit& unit, uint32_t) {
  Plan plan;
  plan.round[0].bytes = payload_bytes(params, unit.count);
  plan.scratch_bytes = params.scale == Scale::unit ? sign_scratch(unit.count) : 0;
  plan.largest_input = kLargestForSums;
  return plan;
}

Encoded OneBit::encode(const Call<Params>& call, Source source, MutBytes out) {
  if (call.unit.count == 0) return {};
  if (call.params->scale == Scale::unit)
    return encode_unit(*call.params, call.unit.count, source, call.work, out);
  const ChunkEncoder encoder{kernels::bits_kernels(call.work.isa), call.unit.count, source,
                             out.data(), out.data() + bits_at(*call.params, call.unit.count)};
  if (!encode_chunks(encoder, call.work)) return {0, false};
  return {payload_bytes(*call.params, call.unit.count), true};
}

Errc OneBit::check(const Params& params, const Unit& unit, uint32_t, Bytes payload) {
  if (payload.size() != payload_bytes(params, unit.count)) return Errc::payload_malformed;
  const uint64_t bits = bits_at(params, unit.count);
  for (uint64_t i = 0; i < bits; i += kMeansBytes) {
    if (!are_means(payload.data() + i)) return Errc::payload_malformed;
  }
  return clean_padding(payload.data() + bits, unit.count) ? Errc::ok : Errc::payload_malformed;
}

void OneBit::decode(const Call<Params>& call, std::span<const Term> terms, Target target) {
  const bool chunked = call.params->scale == Scale::chunk;
  decode_signs(terms, call.work, target, call.unit.count, bits_at(*call.params, call.unit.count),
               chunked ? kChunk : kDenseChunk, [&](const uint8_t* payload, uint64_t element) {
                 return load<BitsValues>(payload + (chunked ? element / kChunk * kMeansBytes : 0));
               });
}

}  // namespace laconic::codecs
