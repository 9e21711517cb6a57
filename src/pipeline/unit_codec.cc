// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "pipeline/unit_codec.h"

#include <algorithm>
#include <atomic>

namespace laconic::pipeline {
namespace {

constexpr uint64_t kSlice = 1 << 16;  // 256 KiB of floats: a thread's share at a time

template <class Body>
void over_slices(ThreadPool* pool, uint64_t n, Body&& body) {
  parallel_for(pool, ceil_div(n, kSlice), [&](uint64_t i) {
    const uint64_t begin = i * kSlice;
    body(begin, std::min(kSlice, n - begin));
  });
}

/// Lanes that were scaled for an engine's sum decode to 1/world of what was sent.
float own_weight(const Place& place) {
  return place.prescale == 1.0F ? 1.0F : static_cast<float>(place.world);
}

}  // namespace

void add_to(const UnitCodec& codec, float* out, const float* x, uint64_t n) {
  over_slices(codec.pool(), n, [&](uint64_t begin, uint64_t count) {
    codec.kernels().add(out + begin, x + begin, count);
  });
}

void subtract_from(const UnitCodec& codec, float* out, const float* x, uint64_t n) {
  over_slices(codec.pool(), n, [&](uint64_t begin, uint64_t count) {
    codec.kernels().axpy(out + begin, -1.0F, x + begin, count);
  });
}

kernels::Scan scan(const UnitCodec& codec, const float* x, uint64_t n) {
  std::atomic<bool> nonzero{false};
  std::atomic<bool> finite{true};
  over_slices(codec.pool(), n, [&](uint64_t begin, uint64_t count) {
    const kernels::Scan s = codec.kernels().scan(x + begin, count);
    if (s.any_nonzero) nonzero.store(true, std::memory_order_relaxed);
    if (!s.all_finite) finite.store(false, std::memory_order_relaxed);
  });
  return {nonzero.load(), finite.load(), 0.0F};
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
  if (slot.residual == nullptr) return {gradient, nullptr};
  if (contract_.fused) return {gradient, slot.residual};
  return {slot.residual, nullptr};  // residual + gradient was accumulated there
}

UnitEncoded UnitCodec::encode(const UnitSlot& slot, const Place& place, const float* gradient,
                              Work& work, MutBytes out) const {
  const uint64_t n = slot.unit.count;
  if (!kernels_->any_nonzero(gradient, n)) return {Outcome::zero, 0};
  // A codec that refuses non-finite input may look at it itself, unless we are about to add it to
  // the residual.
  const bool codec_looks = contract_.checks_finite && (fused(slot) || slot.residual == nullptr);
  if (!codec_looks && !scan(*this, gradient, n).all_finite) return {Outcome::non_finite, 0};
  if (slot.residual != nullptr && !fused(slot)) add_to(*this, slot.residual, gradient, n);
  const Encoded encoded = spec_->codec().encode(spec_->params(), slot.state, slot.unit, place, 0,
                                                source_of(slot, gradient), work, out);
  if (!encoded.finite) return {Outcome::non_finite, 0};
  if (slot.residual != nullptr && !fused(slot) && contract_.feedback == Feedback::own) {
    const Term own{Bytes(out.data(), encoded.bytes), -own_weight(place)};
    decode(slot.unit, place, {&own, 1}, work, {slot.residual, true});
  }
  return {Outcome::payload, encoded.bytes};
}

uint64_t UnitCodec::encode_round(const UnitSlot& slot, const Place& place, uint32_t round,
                                 const float* gradient, Work& work, MutBytes out) const {
  return spec_->codec()
      .encode(spec_->params(), slot.state, slot.unit, place, round, source_of(slot, gradient), work,
              out)
      .bytes;
}

void UnitCodec::accept(const UnitSlot& slot, const Place& place, uint32_t round, MutBytes merged,
                       uint32_t contributors, Work& work) const {
  spec_->codec().accept(spec_->params(), slot.unit, place, round, merged, contributors, work);
}

Errc UnitCodec::check(const Unit& unit, uint32_t round, Bytes payload) const {
  return spec_->codec().check(spec_->params(), unit, round, payload);
}

void UnitCodec::decode(const Unit& unit, const Place& place, std::span<const Term> terms,
                       Work& work, Target target) const {
  spec_->codec().decode(spec_->params(), unit, place, terms, work, target);
}

void UnitCodec::commit(const UnitSlot& slot, const Place& place, Bytes sent, Bytes merged,
                       uint32_t contributors, const float* mean, Work& work) const {
  spec_->codec().commit(spec_->params(), slot.state, slot.unit, place, sent, merged, contributors,
                        work);
  if (contract_.feedback == Feedback::aggregate && slot.residual != nullptr) {
    subtract_from(*this, slot.residual, mean, slot.unit.count);
  }
}

void UnitCodec::put_back(const UnitSlot& slot, const Place& place, Bytes sent, Work& work) const {
  if (slot.residual == nullptr || contract_.feedback != Feedback::own) return;
  const Term own{sent, own_weight(place)};
  decode(slot.unit, place, {&own, 1}, work, {slot.residual, true});
}

void UnitCodec::take_back(const UnitSlot& slot, const Place& place, Bytes sent,
                          const float* gradient, Work& work) const {
  if (slot.residual == nullptr) return;
  put_back(slot, place, sent, work);
  subtract_from(*this, slot.residual, gradient, slot.unit.count);
}

}  // namespace laconic::pipeline
