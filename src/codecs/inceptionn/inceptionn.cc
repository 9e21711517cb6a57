// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "codecs/inceptionn/inceptionn.h"

#include <algorithm>
#include <atomic>

#include "codecs/dense/dense_decode.h"

namespace laconic::codecs {
namespace {

using kernels::InceptionnCounts;

// Payload: elements of class 32 and of class 16 (uint32 each), a tag of two bits for every element,
// then the elements of class 32, of class 16 and of class 8.
constexpr uint64_t kTagsAt = 2 * sizeof(uint32_t);

uint64_t tag_bytes(uint64_t count) { return ceil_div(count, 4); }

uint64_t stream_bytes(const InceptionnCounts& c) {
  return c.full * sizeof(float) + c.half * sizeof(uint16_t) + c.byte;
}

uint64_t bound_of(uint64_t count) {
  return count == 0 ? 0 : kTagsAt + tag_bytes(count) + count * sizeof(float);
}

// Expected bytes of normal elements of standard deviation 1e-3 without their tags, in 1/10000 of a
// byte: the probability that one reaches 2^-bound. None of them reaches 2^-7, where class 16 begins
// at the latest.
constexpr std::array<uint32_t, kernels::kInceptionnBound + 1> kExpected{
    0, 0, 0, 0, 0, 0, 0, 0, 1, 508, 3288, 6254, 8071, 9028, 9513, 9757};

// A task's share begins at multiples of it.
constexpr uint64_t kChunk = kDenseChunk;
static_assert(kChunk % 4 == 0);

uint64_t chunks_of(uint64_t count) { return ceil_div(count, kChunk); }

struct Streams {
  uint64_t full = 0, half = 0, byte = 0;  // offsets in the payload
};

// Turns the counts of chunks into the elements before each; returns those of all.
InceptionnCounts accumulate(InceptionnCounts* counts, uint64_t chunks) {
  InceptionnCounts before;
  for (uint64_t c = 0; c < chunks; ++c) {
    const InceptionnCounts here = counts[c];
    counts[c] = before;
    before.full += here.full;
    before.half += here.half;
    before.byte += here.byte;
  }
  return before;
}

Streams streams_of(uint64_t count, uint64_t full, uint64_t half) {
  const uint64_t full_at = kTagsAt + tag_bytes(count);
  const uint64_t half_at = full_at + full * sizeof(float);
  return {full_at, half_at, half_at + half * sizeof(uint16_t)};
}

InceptionnCounts* scratch_counts(const Work& work) {
  return reinterpret_cast<InceptionnCounts*>(work.scratch.data());
}

// Floats of the output to which all terms are added before the next ones: 16 KiB.
constexpr uint64_t kTurn = 4096;

struct Decoder {
  const kernels::InceptionnKernels& kernels;
  kernels::InceptionnForm form;
  uint64_t count;
  kernels::Output output;  // of the first term; the others are added

  [[nodiscard]] kernels::InceptionnIn open(Bytes payload, const InceptionnCounts& before) const {
    const uint8_t* const data = payload.data();
    const Streams at = streams_of(count, load<uint32_t>(data), load<uint32_t>(data + 4));
    return {data + at.full + before.full * sizeof(float),
            data + at.half + before.half * sizeof(uint16_t), data + at.byte + before.byte,
            data + payload.size()};
  }

  // Adds all terms on [begin, end), from where `in` has them.
  void decode(std::span<const Term> terms, std::span<kernels::InceptionnIn> in, float* out,
              uint64_t begin, uint64_t end) const {
    const uint64_t turn = terms.size() == 1 ? end - begin : kTurn;
    for (uint64_t i = begin; i < end; i += turn) {
      for (uint64_t t = 0; t < terms.size(); ++t) {
        const uint8_t* tags = terms[t].payload.data() + kTagsAt + i / 4;
        kernels.unpack(tags, std::min(turn, end - i), form, &in[t], terms[t].weight,
                       t == 0 ? output : kernels::Output::add, out + i);
      }
    }
  }

  void decode_in_order(std::span<const Term> terms, float* out) const {
    std::array<kernels::InceptionnIn, kDenseTerms> in;
    for (uint64_t t = 0; t < terms.size(); ++t) in[t] = open(terms[t].payload, {});
    decode(terms, in, out, 0, count);
  }

  // Chunk by chunk: first the elements before each are counted.
  void decode_in_parallel(std::span<const Term> terms, float* out, Work& work) const {
    const uint64_t chunks = chunks_of(count);
    InceptionnCounts* const counts = scratch_counts(work);
    parallel_for(work.pool, terms.size() * chunks, [&](uint64_t task) {
      const uint64_t begin = task % chunks * kChunk;
      const uint8_t* tags = terms[task / chunks].payload.data() + kTagsAt + begin / 4;
      counts[task] = kernels.count(tags, std::min(kChunk, count - begin));
    });
    for (uint64_t t = 0; t < terms.size(); ++t) accumulate(counts + t * chunks, chunks);
    for_slices(work.pool, count, kChunk, [&](uint64_t begin, uint64_t end) {
      std::array<kernels::InceptionnIn, kDenseTerms> in;
      for (uint64_t t = 0; t < terms.size(); ++t) {
        in[t] = open(terms[t].payload, counts[t * chunks + begin / kChunk]);
      }
      decode(terms, in, out, begin, end);
    });
  }
};

}  // namespace

Contract Inceptionn::contract(const Params&) {
  Contract c;
  c.zero_stays_zero = true;
  c.feedback = Feedback::own;
  c.memories = memory_set(MemoryKind::residual, MemoryKind::ema);
  c.checks_finite = true;
  c.exact_size = false;
  c.max_count = ~uint32_t{0};
  c.granule = 64;
  return c;
}

Plan Inceptionn::plan(const Params& params, const Unit& unit, uint32_t) {
  Plan plan;
  plan.round[0].bytes = bound_of(unit.count);
  if (unit.count > 0) {
    plan.round[0].expected =
        kTagsAt + tag_bytes(unit.count) + unit.count * kExpected[params.bound] / 10000;
  }
  plan.scratch_bytes = kDenseTerms * chunks_of(unit.count) * sizeof(InceptionnCounts);
  return plan;
}

Encoded Inceptionn::encode(const Call<Params>& call, Source source, MutBytes out) {
  const uint64_t n = call.unit.count;
  if (n == 0) return {};
  const auto& kernels = kernels::inceptionn_kernels(call.work.isa);
  const auto form = kernels::inceptionn_form(call.params->bound);
  InceptionnCounts* const counts = scratch_counts(call.work);
  uint8_t* const tags = out.data() + kTagsAt;
  std::atomic<bool> finite{true};
  for_slices(call.work.pool, n, kChunk, [&](uint64_t begin, uint64_t end) {
    InceptionnCounts here;
    if (!kernels.classify(source.values + begin, end - begin, form, tags + begin / 4, &here)) {
      finite.store(false, std::memory_order_relaxed);
    }
    counts[begin / kChunk] = here;
  });
  if (!finite.load(std::memory_order_relaxed)) return {0, false};
  const InceptionnCounts all = accumulate(counts, chunks_of(n));
  store(out.data(), static_cast<uint32_t>(all.full));
  store(out.data() + sizeof(uint32_t), static_cast<uint32_t>(all.half));
  const Streams at = streams_of(n, all.full, all.half);
  const auto pack = [&](uint64_t begin, uint64_t end) {
    const InceptionnCounts& before = counts[begin / kChunk];
    kernels.pack(source.values + begin, end - begin, form,
                 {out.data() + at.full + before.full * sizeof(float),
                  out.data() + at.half + before.half * sizeof(uint16_t),
                  out.data() + at.byte + before.byte});
  };
  for_slices(call.work.pool, n, kChunk, pack, Pass::backward);
  return {kTagsAt + tag_bytes(n) + stream_bytes(all), true};
}

Errc Inceptionn::check(const Params&, const Unit& unit, uint32_t, Bytes payload) {
  const uint64_t n = unit.count;
  if (n == 0) return payload.empty() ? Errc::ok : Errc::payload_malformed;
  const uint64_t full_at = kTagsAt + tag_bytes(n);
  if (payload.size() < full_at) return Errc::payload_malformed;
  const auto& kernels = kernels::inceptionn_kernels(best_isa());
  const uint8_t* tags = payload.data() + kTagsAt;
  const InceptionnCounts counts = kernels.count(tags, n);
  const bool padded = n % 4 == 0 || tags[n / 4] >> n % 4 * 2 == 0;
  const bool counted = load<uint32_t>(payload.data()) == counts.full &&
                       load<uint32_t>(payload.data() + 4) == counts.half;
  if (!padded || !counted || payload.size() != full_at + stream_bytes(counts) ||
      !kernels.all_finite(payload.data() + full_at, counts.full)) {
    return Errc::payload_malformed;
  }
  return Errc::ok;
}

void Inceptionn::decode(const Call<Params>& call, std::span<const Term> terms, Target target) {
  const uint64_t n = call.unit.count;
  if (n == 0) return;
  if (terms.empty()) {
    if (!target.add) std::fill_n(target.values, n, 0.0F);
    return;
  }
  // Past the caches only what is not read again for the next term.
  const auto output = kernels::choose_output(target.add, terms.size() == 1 ? n * sizeof(float) : 0);
  Decoder decoder{kernels::inceptionn_kernels(call.work.isa),
                  kernels::inceptionn_form(call.params->bound), n, output};
  const bool alone =
      call.work.pool == nullptr || call.work.pool->threads() == 1 || chunks_of(n) == 1;
  while (!terms.empty()) {
    const auto batch = terms.first(std::min<uint64_t>(terms.size(), kDenseTerms));
    if (alone) {
      decoder.decode_in_order(batch, target.values);
    } else {
      decoder.decode_in_parallel(batch, target.values, call.work);
    }
    terms = terms.subspan(batch.size());
    decoder.output = kernels::Output::add;
  }
}

}  // namespace laconic::codecs
