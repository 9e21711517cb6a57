// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The only place where codec and error feedback meet. One unit on one rank: correct (add the
// residual), encode, and afterwards either absorb what was delivered or undo what was not.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/core/basic.h"
#include "laconic/codec.h"
#include "laconic/spec.h"

namespace laconic::pipeline {

/// A unit with its memory. `residual` is null without error feedback.
struct UnitSlot {
  Unit unit;
  Plan plan;
  float* residual = nullptr;
  std::span<float> state;
};

enum class Outcome : uint8_t {
  payload,  ///< encoded
  zero,     ///< the gradient is all zero: nothing is sent, the residual stays
  /// The gradient, or its sum with the residual, is not finite or more than the codec can take
  /// (Plan::largest_input), or the codec state is not finite. Not encoded; residual and state stay
  /// bit for bit.
  non_finite,
};

struct UnitEncoded {
  Outcome outcome = Outcome::payload;
  uint64_t bytes = 0;
  /// The residual could not be used (it held NaN, infinity, or more than the codec can take) and
  /// was set to zero before the gradient was encoded.
  bool residual_reset = false;
};

/// Can the codec take such a unit? shape_unsupported when it has more elements than the codec can
/// index (Contract::max_count), when rows · cols is not count, or when the offset of its end does
/// not fit 64 bits; else ok, and no size in the unit's plan has wrapped.
[[nodiscard]] Errc check_unit(const Spec& spec, const Unit& unit);

/// Where the gradient of a failed exchange is.
enum class Undo : uint8_t {
  gradient_lost,     ///< lost with the exchange: the residual has to keep it
  gradient_travels,  ///< on its way uncompressed: the residual must not keep it as well
};

/// A spec with the means to run it. Stateless: everything that changes lies in UnitSlot and Work.
class UnitCodec {
 public:
  UnitCodec(const Spec& spec, Isa isa, ThreadPool* pool);

  [[nodiscard]] const Spec& spec() const noexcept { return *spec_; }
  [[nodiscard]] const Contract& contract() const noexcept { return contract_; }
  [[nodiscard]] Plan plan(const Unit& unit, uint32_t world) const;
  /// Puts a unit's state to its start.
  void init(const UnitSlot& slot, const Place& place) const;

  /// Round 0: scans gradient and residual, adds them, encodes; feedback of one-round codecs is
  /// complete afterwards: residual = residual + gradient − decode(payload) (contract: own) or
  /// residual + gradient (aggregate, so far). `out` holds at least the plan's bound. Casts without
  /// feedback carry NaN and infinity: for them that is a payload.
  UnitEncoded encode(const UnitSlot& slot, const Place& place, const float* gradient, Work& work,
                     MutBytes out) const;
  /// Later rounds, after accept. Only for units whose round 0 gave a payload. non_finite when the
  /// merged lanes that accept was given lead to infinity or NaN: then `out` is not to be sent, and
  /// the unit is undone like any other whose exchange failed.
  UnitEncoded encode_round(const UnitSlot& slot, const Place& place, uint32_t round,
                           const float* gradient, Work& work, MutBytes out) const;
  void accept(const UnitSlot& slot, const Place& place, uint32_t round, MutBytes merged,
              uint32_t contributors, Work& work) const;

  [[nodiscard]] Errc check(const Unit& unit, uint32_t round, Bytes payload) const;
  void decode(const Unit& unit, const Place& place, std::span<const Term> terms, Work& work,
              Target target) const;

  /// Delivered: state moves on; aggregate feedback takes the mean out of the residual. `mean` is
  /// the decoded mean of this unit (for aggregate feedback), `sent` the rank's own payload (empty
  /// when nothing was sent).
  void commit(const UnitSlot& slot, const Place& place, Bytes sent, Bytes merged,
              uint32_t contributors, const float* mean, Work& work) const;
  /// Not delivered after an encode that gave a payload, `sent`. The residual takes the payload back
  /// and holds old residual + gradient (gradient_lost; `gradient` may be null), or returns to the
  /// old residual within one rounding (gradient_travels). Codec state needs nothing: only commit
  /// changes it.
  void undo(const UnitSlot& slot, const Place& place, Bytes sent, const float* gradient, Undo why,
            Work& work) const;
  /// The exchange never began and the gradient is lost: residual += gradient, all of it or, unless
  /// every sum is finite, nothing. False when nothing was added (or there is no residual).
  bool keep(const UnitSlot& slot, const float* gradient) const;

  [[nodiscard]] const kernels::BasicKernels& kernels() const noexcept { return *kernels_; }
  [[nodiscard]] ThreadPool* pool() const noexcept { return pool_; }
  [[nodiscard]] Isa isa() const noexcept { return isa_; }

 private:
  [[nodiscard]] Source source_of(const UnitSlot& slot, const float* gradient) const noexcept;
  [[nodiscard]] bool fused(const UnitSlot& slot) const noexcept {
    return contract_.fused && slot.residual != nullptr;
  }
  [[nodiscard]] bool within_reach(const UnitSlot& slot, const float* gradient) const;
  [[nodiscard]] bool reset_unusable(const UnitSlot& slot, const float* gradient) const;

  const Spec* spec_;
  Contract contract_;
  const kernels::BasicKernels* kernels_;
  ThreadPool* pool_;
  Isa isa_;
};

/// Loops over fixed slices of a span on the pool; what they compute must not depend on the slicing.
void add_to(const UnitCodec& codec, float* out, const float* x, uint64_t n);
void subtract_from(const UnitCodec& codec, float* out, const float* x, uint64_t n);
kernels::Scan scan(const UnitCodec& codec, const float* x, uint64_t n);
/// max |x + y|, by absolute bits: infinity or NaN when not all sums are finite.
float max_abs_sum(const UnitCodec& codec, const float* x, const float* y, uint64_t n);

}  // namespace laconic::pipeline
