// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "codecs/onebit/onebit.h"

#include <atomic>

#include "codecs/dense/signs.h"
#include "kernels/core/basic.h"

namespace laconic::codecs {
namespace {

using kernels::BitsValues;

constexpr uint64_t kChunk = OneBit::kChunk;
static_assert(kChunk % kernels::kBitsChunk == 0 && kDenseChunk % kChunk == 0);

// Chunks of which both passes find the elements in the second-level cache, 8 bytes each.
constexpr uint64_t kCached = 4 * kChunk;

// Elements whose 8 bytes are half of a first-level cache or more.
constexpr uint64_t kPiece = 4096;

constexpr uint64_t kMeansBytes = sizeof(BitsValues);
static_assert(kMeansBytes == 8);

Encoded encode_unit(const kernels::MeansFormat& format, uint64_t count, Source source, Work& work,
                    MutBytes out) {
  const SignSums sums = pack_signs(count, source, work, out.data() + format.bits_at(count));
  if (!finite(sums)) return {0, false};
  const BitsValues means = format.values(sums, count);
  store(out.data(), means);
  if (source.residual != nullptr) keep_rest(count, source, means, work);
  return {format.bytes(count), true};
}

// The two passes over a chunk.
struct ChunkEncoder {
  const kernels::BitsKernels& kernel;
  kernels::MeansFormat format;
  uint64_t count = 0;
  Source source;
  uint8_t* means = nullptr;
  uint8_t* bits = nullptr;

  // Writes bits and means. False if something is not finite.
  [[nodiscard]] bool pack(uint64_t begin, uint64_t end) const {
    const SignSums sums = pack_signs(kernel, begin, end, source, bits);
    store(means + begin / kChunk * kMeansBytes, format.values(sums, end - begin));
    return finite(sums);
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
  plan.round[0].bytes = format(params).bytes(unit.count);
  plan.scratch_bytes = params.scale == Scale::unit ? sign_scratch(unit.count) : 0;
  plan.largest_input = kLargestForSums;
  return plan;
}

Encoded OneBit::encode(const Call<Params>& call, Source source, MutBytes out) {
  const uint64_t count = call.unit.count;
  const kernels::MeansFormat means = format(*call.params);
  if (count == 0) return {};
  if (call.params->scale == Scale::unit) return encode_unit(means, count, source, call.work, out);
  const ChunkEncoder encoder{kernels::bits_kernels(call.work.isa), means, count, source, out.data(),
                             out.data() + means.bits_at(count)};
  if (!encode_chunks(encoder, call.work)) return {0, false};
  return {means.bytes(count), true};
}

Errc OneBit::check(const Params& params, const Unit& unit, uint32_t, Bytes payload) {
  const kernels::MeansFormat means = format(params);
  if (payload.size() != means.bytes(unit.count)) return Errc::payload_malformed;
  const uint64_t bits = means.bits_at(unit.count);
  for (uint64_t i = 0; i < bits; i += kMeansBytes) {
    const uint8_t* const at = payload.data() + i;
    if (!means.valid(load<uint32_t>(at), load<uint32_t>(at + sizeof(float))))
      return Errc::payload_malformed;
  }
  return clean_padding(payload.data() + bits, unit.count) ? Errc::ok : Errc::payload_malformed;
}

void OneBit::decode(const Call<Params>& call, std::span<const Term> terms, Target target) {
  const kernels::MeansFormat means = format(*call.params);
  decode_signs(terms, call.work, target, call.unit.count, means.bits_at(call.unit.count),
               means.group != 0 ? means.group : kDenseChunk,
               [&](const uint8_t* payload, uint64_t element) {
                 return load<BitsValues>(payload + means.values_at(element));
               });
}

}  // namespace laconic::codecs
