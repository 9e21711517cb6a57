// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "pipeline/unit_codec.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <optional>

#include "base/slices.h"
#include "codecs/registry/registered.h"

namespace laconic::pipeline {
namespace {

constexpr uint64_t kSlice = 1 << 16;  // 256 KiB of floats: one slice of a thread's share

/// The largest of body(begin, count) over the slices, compared by bits, as absolute floats may be:
/// infinity and NaN are on top.
template <class Body>
float max_over_slices(ThreadPool* pool, uint64_t n, Body&& body) {
  std::atomic<uint32_t> most{0};
  for_slices(pool, n, kSlice, [&](uint64_t begin, uint64_t end) {
    const uint32_t bits = float_bits(body(begin, end - begin));
    uint32_t seen = most.load(std::memory_order_relaxed);
    while (seen < bits && !most.compare_exchange_weak(seen, bits, std::memory_order_relaxed)) {
    }
  });
  return bits_float(most.load(std::memory_order_relaxed));
}

/// The slot with its memory in Work::kept, from where commit takes it back.
UnitSlot with_memory_aside(const UnitSlot& slot, const Work& work) {
  UnitSlot aside = slot;
  if (slot.memory.values == nullptr) return aside;
  std::memcpy(work.kept.data(), slot.memory.values, slot.unit.count * sizeof(float));
  aside.memory.values = reinterpret_cast<float*>(work.kept.data());
  return aside;
}

/// Lanes that were scaled for an engine's sum decode to 1/world of what was sent.
float own_weight(const Place& place) {
  return place.prescale == 1.0F ? 1.0F : static_cast<float>(place.world);
}

}  // namespace

void subtract_from(const UnitCodec& codec, float* out, const float* x, uint64_t n) {
  for_slices(codec.pool(), n, kSlice, [&](uint64_t begin, uint64_t end) {
    codec.kernels().axpy(out + begin, -1.0F, x + begin, end - begin);
  });
}

kernels::Scan scan(const UnitCodec& codec, const float* x, uint64_t n) {
  const float most = max_over_slices(codec.pool(), n, [&](uint64_t begin, uint64_t count) {
    return codec.kernels().scan(x + begin, count).max_abs;
  });
  return {most != 0, std::isfinite(most), most};
}

Errc check_unit(const Spec& spec, const Unit& unit) {
  uint64_t product = 0;
  uint64_t end = 0;
  const bool sane = checked_mul(unit.rows, unit.cols, &product) && product == unit.count &&
                    checked_add(unit.offset, unit.count, &end);
  return sane && unit.count <= spec.contract().max_count ? Errc::ok : Errc::shape_unsupported;
}

UnitCodec::UnitCodec(const Spec& spec, Isa isa, ThreadPool* pool)
    : spec_(&spec),
      contract_(spec.contract()),
      kernels_(&kernels::basic_kernels(isa)),
      pool_(pool),
      isa_(isa) {}

Plan UnitCodec::plan(const Unit& unit, uint32_t world) const {
  return spec_->codec().plan(spec_->params(), unit, world);
}

void UnitCodec::init(const UnitSlot& slot, const Place& place) const {
  spec_->codec().init(spec_->params(), slot.unit, place, slot.state);
}

Source UnitCodec::source_of(const UnitSlot& slot, const float* gradient) const noexcept {
  if (!remembers(slot)) return {gradient, nullptr};
  if (fused(slot)) return {gradient, slot.memory.values};
  return {slot.memory.values, nullptr};  // the gradient has joined it
}

/// Nothing overflows when these are encoded. A sum that is finite says the same of both its terms.
bool UnitCodec::within_reach(const UnitSlot& slot, const float* gradient) const {
  const uint64_t n = slot.unit.count;
  if (!remembers(slot)) return scan(*this, gradient, n).max_abs <= slot.plan.largest_input;
  const float most = max_over_slices(pool_, n, [&](uint64_t begin, uint64_t count) {
    return feedback::largest_corrected(*kernels_, slot.memory.from(begin), gradient + begin, count);
  });
  return most <= slot.plan.largest_input;  // not if NaN
}

/// After a refusal: true when memory alone was to blame; it is zero now.
bool UnitCodec::reset_unusable(const UnitSlot& slot, const float* gradient) const {
  if (!remembers(slot)) return false;
  const uint64_t n = slot.unit.count;
  const auto usable = [&](const float* x) {
    return x == nullptr || scan(*this, x, n).max_abs <= slot.plan.largest_input;
  };
  if (!usable(gradient)) return false;
  if (usable(slot.memory.values) && usable(slot.memory.momentum)) return false;
  std::fill_n(slot.memory.values, n, 0.0F);
  if (slot.memory.momentum != nullptr) std::fill_n(slot.memory.momentum, n, 0.0F);
  return true;
}

uint32_t UnitCodec::start(const UnitSlot& slot, Work& work) const {
  const CodecTable& codec = spec_->codec();
  return codec.start == nullptr
             ? 0
             : codec.start({spec_->params(), slot.state, slot.unit, {}, 0, work});
}

UnitEncoded UnitCodec::encode(const UnitSlot& given, const Place& place, const float* gradient,
                              Work& work, MutBytes out, uint32_t first) const {
  std::optional<UnitSlot> aside;
  if (spec_->registered() != nullptr) {
    aside = with_memory_aside(given, work);
    out = out.first(given.plan.round[0].bytes);
  }
  const UnitSlot& slot = aside ? *aside : given;
  const uint64_t n = slot.unit.count;
  const bool holds = joint(slot.memory) && kernels_->any_nonzero(slot.memory.values, n);
  if (!holds && !kernels_->any_nonzero(gradient, n)) return {Outcome::zero, 0};
  if (!scan(*this, slot.state.data(), slot.state.size()).all_finite) {
    return {Outcome::non_finite, 0};
  }
  // A codec that refuses non-finite input may look at it itself, unless it is about to join the
  // memory: from there it could not be taken out again bit for bit. What is within reach surely
  // encodes.
  const bool codec_looks = contract_.checks_finite && (fused(slot) || !remembers(slot));
  bool reset = false;
  if (!codec_looks && !within_reach(slot, gradient)) {
    reset = reset_unusable(slot, gradient);
    if (!reset) return {Outcome::non_finite, 0};
  }
  if (remembers(slot) && !fused(slot)) {
    // The look went before and left its ends in the cache; the codec begins at the beginning.
    const auto correct = [&](uint64_t begin, uint64_t end) {
      feedback::correct(*kernels_, slot.memory.from(begin), gradient + begin, end - begin);
    };
    for_slices(pool_, n, kSlice, correct, Pass::backward);
  }
  UnitEncoded encoded = run(slot, place, first, gradient, work, out);
  if (encoded.outcome != Outcome::payload && fused(slot) && reset_unusable(slot, gradient)) {
    reset = true;
    encoded = run(slot, place, first, gradient, work, out);
  }
  encoded.residual_reset = reset && encoded.outcome == Outcome::payload;
  return encoded;
}

UnitEncoded UnitCodec::encode_round(const UnitSlot& slot, const Place& place, uint32_t round,
                                    const float* gradient, Work& work, MutBytes out) const {
  return run(slot, place, round, gradient, work, out);
}

/// A round; after the last one own feedback takes out of the residual what is sent.
UnitEncoded UnitCodec::run(const UnitSlot& slot, const Place& place, uint32_t round,
                           const float* gradient, Work& work, MutBytes out) const {
  const codecs::Registered* own = spec_->registered();
  const Encoded encoded = spec_->codec().encode(
      {spec_->params(), slot.state, slot.unit, place, round, work}, source_of(slot, gradient), out);
  if (!encoded.finite) return {own != nullptr ? Outcome::failed : Outcome::non_finite, 0};
  if (round + 1 == slot.plan.rounds && absorbs(slot))
    take_out(slot, place, Bytes(out.data(), encoded.bytes), slot.memory.values, work);
  if (own != nullptr && own->failed()) return {Outcome::failed, 0};
  return {Outcome::payload, encoded.bytes};
}

/// values -= what the payload decodes to, values being what was encoded.
void UnitCodec::take_out(const UnitSlot& slot, const Place& place, Bytes sent, float* values,
                         Work& work) const {
  if (spec_->codec().erase != nullptr && contract_.exact_values) {
    return spec_->codec().erase({spec_->params(), {}, slot.unit, place, 0, work}, sent, values);
  }
  const Term own{sent, -own_weight(place), {}, {}, place.rank};
  decode(slot.unit, place, {&own, 1}, work, {values, true});
}

void UnitCodec::accept(const UnitSlot& slot, const Place& place, uint32_t round, MutBytes merged,
                       uint32_t contributors, Work& work) const {
  spec_->codec().accept({spec_->params(), {}, slot.unit, place, round, work}, merged, contributors);
}

Errc UnitCodec::check(const Unit& unit, uint32_t round, Bytes payload) const {
  return spec_->codec().check(spec_->params(), unit, round, payload);
}

void UnitCodec::decode(const Unit& unit, const Place& place, std::span<const Term> terms,
                       Work& work, Target target) const {
  spec_->codec().decode({spec_->params(), {}, unit, place, 0, work}, terms, target);
}

void UnitCodec::commit(const UnitSlot& slot, const Place& place, Bytes sent, Bytes merged,
                       uint32_t contributors, const float* mean, Work& work) const {
  spec_->codec().commit({spec_->params(), slot.state, slot.unit, place, 0, work}, slot.state, sent,
                        merged, contributors);
  if (joint(slot.memory)) {
    subtract_from(*this, slot.memory.values, mean, slot.unit.count);
  }
  if (spec_->registered() != nullptr && remembers(slot) && !sent.empty())
    std::memcpy(slot.memory.values, work.kept.data(), slot.unit.count * sizeof(float));
  forget_sent(slot, place, sent, work);
}

void UnitCodec::settle(const UnitSlot& slot, const Place& place, Bytes sent, Work& work) const {
  if (joint(slot.memory)) {
    const Term own{sent, -1.0F};  // its own mean
    decode(slot.unit, place, {&own, 1}, work, {slot.memory.values, true});
  }
  forget_sent(slot, place, sent, work);
}

/// DGC's mask (Lin et al., ICLR 2018, algorithm 1): velocity and momentum are 0 where
/// something was sent; of the velocity stays what rounding left. Only now, so that until delivery
/// nothing has to be put back.
void UnitCodec::forget_sent(const UnitSlot& slot, const Place& place, Bytes sent,
                            Work& work) const {
  if (!remembers(slot) || slot.memory.momentum == nullptr || sent.empty()) return;
  take_out(slot, place, sent, slot.memory.values, work);
  spec_->codec().erase({spec_->params(), {}, slot.unit, place, 0, work}, sent,
                       slot.memory.momentum);
}

void UnitCodec::undo(const UnitSlot& slot, const Place& place, Bytes sent, const float* gradient,
                     Undo why, Work& work) const {
  if (!remembers(slot)) return;
  // It ended before what changes the residual.
  if (spec_->registered() != nullptr || (fused(slot) && sent.empty())) {
    if (why == Undo::gradient_lost && gradient != nullptr) keep(slot, gradient);
    return;
  }
  if ((absorbs(slot) || fused(slot)) && !sent.empty()) {
    const Term own{sent, own_weight(place)};
    decode(slot.unit, place, {&own, 1}, work, {slot.memory.values, true});
  }
  if (why == Undo::gradient_travels) {
    for_slices(pool_, slot.unit.count, kSlice, [&](uint64_t begin, uint64_t end) {
      feedback::take_back(*kernels_, slot.memory.from(begin), gradient + begin, end - begin);
    });
  }
}

void UnitCodec::put_back(const UnitSlot& slot, const Place& place, Bytes sent,
                         std::span<const uint8_t> granules, Work& work) const {
  if (sent.empty() || !(absorbs(slot) || fused(slot))) return;
  const Term own{sent, own_weight(place), {}, granules};
  decode(slot.unit, place, {&own, 1}, work, {slot.memory.values, true});
}

bool UnitCodec::keep(const UnitSlot& slot, const float* gradient) const {
  const uint64_t n = slot.unit.count;
  if (!remembers(slot)) return false;
  const float most = max_over_slices(pool_, n, [&](uint64_t begin, uint64_t count) {
    return feedback::largest_kept(*kernels_, slot.memory.from(begin), gradient + begin, count);
  });
  if (!std::isfinite(most)) return false;
  for_slices(pool_, n, kSlice, [&](uint64_t begin, uint64_t end) {
    feedback::keep(*kernels_, slot.memory.from(begin), gradient + begin, end - begin);
  });
  return true;
}

}  // namespace laconic::pipeline
