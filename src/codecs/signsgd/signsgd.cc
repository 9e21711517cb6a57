// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "codecs/signsgd/signsgd.h"

#include <algorithm>
#include <atomic>
#include <bit>

#include "codecs/dense/signs.h"

namespace laconic::codecs {
namespace {

Contract vote_contract() {
  Contract c;
  c.merge = Merge::vote;
  c.memories = memory_set(MemoryKind::ema);
  c.checks_finite = true;
  c.granule = 64;
  return c;
}

/// Votes can be counted as integers: every partial sum is a multiple of one power of two by less
/// than 2^24, which a float holds.
bool countable(std::span<const Term> terms) {
  if (terms.empty() || terms.size() >= (1U << 24)) return false;
  constexpr uint32_t kFraction = 0x007FFFFFU;
  const float weight = terms.front().weight;
  const bool power_of_two = weight >= 0x1p-100F && weight <= 0x1p100F &&
                            (std::bit_cast<uint32_t>(weight) & kFraction) == 0;
  return power_of_two && std::all_of(terms.begin(), terms.end(),
                                     [&](const Term& term) { return term.weight == weight; });
}

void count_votes(uint64_t count, std::span<const Term> terms, Work& work, float* out) {
  const auto& kernel = kernels::bits_kernels(work.isa);
  const auto output = kernels::choose_output(
      false, terms.size() <= kernels::kVoteTerms ? count * sizeof(float) : 0);
  for_slices(work.pool, count, kDenseChunk, [&](uint64_t begin, uint64_t end) {
    std::array<const uint8_t*, kernels::kVoteTerms> bits;
    for (uint64_t done = 0; done < terms.size();) {
      const uint64_t batch = std::min<uint64_t>(bits.size(), terms.size() - done);
      for (uint64_t t = 0; t < batch; ++t) bits[t] = terms[done + t].payload.data() + begin / 8;
      kernel.vote(out + begin, done == 0 ? output : kernels::Output::add, bits.data(),
                  static_cast<uint32_t>(batch), terms.front().weight, end - begin);
      done += batch;
    }
  });
}

}  // namespace

Plan SignVote::plan(const Params&, const Unit& unit, uint32_t) {
  Plan plan;
  plan.round[0].bytes = bit_bytes(unit.count);
  return plan;
}

Encoded SignVote::encode(const Call<Params>& call, Source source, MutBytes out) {
  const auto& kernel = kernels::bits_kernels(call.work.isa);
  std::atomic<bool> finite{true};
  for_slices(call.work.pool, call.unit.count, kDenseChunk, [&](uint64_t begin, uint64_t end) {
    if (!kernel.pack(source.values + begin, end - begin, out.data() + begin / 8)) {
      finite.store(false, std::memory_order_relaxed);
    }
  });
  return {bit_bytes(call.unit.count), finite.load(std::memory_order_relaxed)};
}

Errc SignVote::check(const Params&, const Unit& unit, uint32_t, Bytes payload) {
  const bool good =
      payload.size() == bit_bytes(unit.count) && clean_padding(payload.data(), unit.count);
  return good ? Errc::ok : Errc::payload_malformed;
}

void SignVote::decode(const Call<Params>& call, std::span<const Term> terms, Target target) {
  if (!target.add && countable(terms))
    return count_votes(call.unit.count, terms, call.work, target.values);
  decode_signs(terms, call.work, target, call.unit.count, 0, kDenseChunk,
               [](const uint8_t*, uint64_t) {
                 return kernels::BitsValues{-1, 1};
               });
}

void SignVote::finish(const Call<Params>& call, std::span<float> mean) {
  const auto& kernel = kernels::bits_kernels(call.work.isa);
  for_slices(call.work.pool, mean.size(), kDenseChunk,
             [&](uint64_t begin, uint64_t end) { kernel.sign(mean.data() + begin, end - begin); });
}

Contract SignSgd::contract(const Params&) { return vote_contract(); }

Contract Signum::contract(const Params&) {
  Contract c = vote_contract();
  c.memory_default = MemoryKind::ema;
  c.memory_factor = 0.9F;
  return c;
}

}  // namespace laconic::codecs
