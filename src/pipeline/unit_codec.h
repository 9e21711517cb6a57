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
  payload,     ///< encoded
  zero,        ///< the gradient is all zero: nothing is sent, the residual stays
  non_finite,  ///< the gradient is not finite: not encoded, the residual stays bit for bit
};

struct UnitEncoded {
  Outcome outcome = Outcome::payload;
  uint64_t bytes = 0;
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

  /// Round 0: scans the gradient, adds the residual, encodes; feedback of one-round codecs is
  /// complete afterwards: residual = residual + gradient − decode(payload) (contract: own) or
  /// residual + gradient (aggregate, so far). `out` holds at least the plan's bound.
  UnitEncoded encode(const UnitSlot& slot, const Place& place, const float* gradient, Work& work,
                     MutBytes out) const;
  /// Later rounds, after accept. Only for units whose round 0 gave a payload.
  uint64_t encode_round(const UnitSlot& slot, const Place& place, uint32_t round,
                        const float* gradient, Work& work, MutBytes out) const;
  void accept(const UnitSlot& slot, const Place& place, uint32_t round, MutBytes merged,
              uint32_t contributors, Work& work) const;

  [[nodiscard]] Errc check(const Unit& unit, uint32_t round, Bytes payload) const;
  void decode(const Unit& unit, const Place& place, std::span<const Term> terms, Work& work,
              Target target) const;

  /// Delivered: state moves on; aggregate feedback takes the mean out of the residual. `mean` is
  /// the decoded mean of this unit (for aggregate feedback), `sent` the own payload (empty when
  /// nothing was sent).
  void commit(const UnitSlot& slot, const Place& place, Bytes sent, Bytes merged,
              uint32_t contributors, const float* mean, Work& work) const;
  /// Not delivered, and the gradient is lost with it: residual takes back the payload, so it holds
  /// old + gradient.
  void put_back(const UnitSlot& slot, const Place& place, Bytes sent, Work& work) const;
  /// Not delivered, the gradient goes out another way: residual returns to what it was (within one
  /// rounding).
  void take_back(const UnitSlot& slot, const Place& place, Bytes sent, const float* gradient,
                 Work& work) const;

  [[nodiscard]] const kernels::BasicKernels& kernels() const noexcept { return *kernels_; }
  [[nodiscard]] ThreadPool* pool() const noexcept { return pool_; }
  [[nodiscard]] Isa isa() const noexcept { return isa_; }

 private:
  [[nodiscard]] Source source_of(const UnitSlot& slot, const float* gradient) const noexcept;
  [[nodiscard]] bool fused(const UnitSlot& slot) const noexcept {
    return contract_.fused && slot.residual != nullptr;
  }

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

}  // namespace laconic::pipeline
