// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The only place where codec and error feedback meet. One unit on one rank: correct (add the
// residual), encode, and afterwards either absorb what was delivered or undo what was not.
#pragma once

#include <cstdint>
#include <span>

#include "feedback/memory.h"
#include "kernels/core/basic.h"
#include "laconic/codec.h"
#include "laconic/spec.h"

namespace laconic::pipeline {

/// A unit with its memory, which has no arrays without feedback.
struct UnitSlot {
  Unit unit;
  Plan plan;
  feedback::Memory memory;
  std::span<float> state;
};

enum class Outcome : uint8_t {
  payload,  ///< encoded
  /// The gradient is all zero, and so is the memory if it is sent all the same (`joint`): nothing
  /// is sent, the memory stays.
  zero,
  /// The gradient, or what memory makes of it, is not finite or more than the codec can take
  /// (Plan::largest_input), or the codec state is not finite. Not encoded; memory and state stay
  /// bit for bit.
  non_finite,
  failed,  ///< of a registered codec, which has why. Memory and state stay
};

struct UnitEncoded {
  Outcome outcome = Outcome::payload;
  uint64_t bytes = 0;
  /// The memory could not be used (it held NaN, infinity, or more than the codec can take) and was
  /// set to zero before the gradient was encoded.
  bool residual_reset = false;
};

/// Can the codec take such a unit? shape_unsupported when it has more elements than the codec can
/// index (Contract::max_count), when rows · cols is not count, or when the offset of its end does
/// not fit 64 bits; else ok, and no size in the unit's plan has wrapped.
[[nodiscard]] Errc check_unit(const Spec& spec, const Unit& unit);

/// How the gradient of a failed exchange is delivered.
enum class Undo : uint8_t {
  gradient_lost,     ///< lost with the exchange: the residual has to keep it
  gradient_travels,  ///< on its way uncompressed: the residual must not keep it as well
};

/// A spec with the means to run it. Stateless: everything that changes lies in UnitSlot and Work.
class UnitCodec {
 public:
  UnitCodec(const Spec& spec, Isa isa, ThreadPool* pool);

  [[nodiscard]] const Spec& spec() const noexcept { return *spec_; }
  /// The spec has moved (Spec::move).
  void refresh() { contract_ = spec_->contract(); }
  [[nodiscard]] const Contract& contract() const noexcept { return contract_; }
  [[nodiscard]] Plan plan(const Unit& unit, uint32_t world) const;
  /// True if delivery subtracts the mean from this memory on every rank (Feedback::aggregate).
  /// Residuals of ranks then balance each other: if one rank has a gradient all of them send,
  /// otherwise none.
  [[nodiscard]] bool joint(const feedback::Memory& memory) const noexcept {
    return contract_.feedback == Feedback::aggregate && memory.values != nullptr;
  }
  /// Puts a unit's state to its start.
  void init(const UnitSlot& slot, const Place& place) const;

  /// The first round that an exchange by lanes needs, and what it has to begin with (CodecTable::
  /// start): before encode, which may not be called at all.
  uint32_t start(const UnitSlot& slot, Work& work) const;
  /// Round `first`: scans gradient and memory, brings them together, encodes. With a residual and
  /// own feedback it is complete after the last round: residual = residual + gradient −
  /// decode(payload), decode being of that round; with aggregate feedback, and under momentum,
  /// commit completes it. `out` holds at least the plan's bound. Casts without feedback carry NaN
  /// and infinity: for them that is a payload. Joint memory is encoded without a gradient, too.
  UnitEncoded encode(const UnitSlot& slot, const Place& place, const float* gradient, Work& work,
                     MutBytes out, uint32_t first = 0) const;
  /// Later rounds, after accept. Only for units whose first round gave a payload. non_finite when
  /// the merged lanes that accept was given lead to infinity or NaN: then `out` is not to be sent,
  /// and the unit is undone like any other whose exchange failed.
  UnitEncoded encode_round(const UnitSlot& slot, const Place& place, uint32_t round,
                           const float* gradient, Work& work, MutBytes out) const;
  void accept(const UnitSlot& slot, const Place& place, uint32_t round, MutBytes merged,
              uint32_t contributors, Work& work) const;

  [[nodiscard]] Errc check(const Unit& unit, uint32_t round, Bytes payload) const;
  void decode(const Unit& unit, const Place& place, std::span<const Term> terms, Work& work,
              Target target) const;

  /// Delivered: state moves on; aggregate feedback takes the mean out of the residual, momentum
  /// forgets what was sent. `mean` is the decoded mean of this unit (for aggregate feedback),
  /// `sent` the rank's own payload of the last round (empty when nothing was sent).
  void commit(const UnitSlot& slot, const Place& place, Bytes sent, Bytes merged,
              uint32_t contributors, const float* mean, Work& work) const;
  /// The part of commit for a lone contributor that concerns memory: no mean is at hand.
  void settle(const UnitSlot& slot, const Place& place, Bytes sent, Work& work) const;
  /// Not delivered after an encode that gave a payload, `sent` (that of the last round; empty when
  /// it did not come to that). The residual takes the payload back and holds old residual +
  /// gradient (gradient_lost; `gradient` may be null), or memory returns to what it was, within the
  /// roundings of its operations (gradient_travels). Codec state needs nothing: only commit changes
  /// it.
  void undo(const UnitSlot& slot, const Place& place, Bytes sent, const float* gradient, Undo why,
            Work& work) const;
  /// Delivered, but for some granules of `sent` (by granule, 0 where it was): the residual takes
  /// those back.
  void put_back(const UnitSlot& slot, const Place& place, Bytes sent,
                std::span<const uint8_t> granules, Work& work) const;
  /// The exchange never began and the gradient is lost: memory takes it, all of it or, unless every
  /// sum is finite, nothing. False when it took nothing (or there is none).
  bool keep(const UnitSlot& slot, const float* gradient) const;

  [[nodiscard]] const kernels::BasicKernels& kernels() const noexcept { return *kernels_; }
  [[nodiscard]] ThreadPool* pool() const noexcept { return pool_; }
  [[nodiscard]] Isa isa() const noexcept { return isa_; }

 private:
  [[nodiscard]] Source source_of(const UnitSlot& slot, const float* gradient) const noexcept;
  [[nodiscard]] static bool remembers(const UnitSlot& slot) noexcept {
    return slot.memory.values != nullptr;
  }
  /// Does encode take what was sent out of the residual, from a payload that was encoded?
  [[nodiscard]] bool absorbs(const UnitSlot& slot) const noexcept {
    return remembers(slot) && slot.memory.settings.kind == MemoryKind::residual &&
           contract_.feedback == Feedback::own && !fused(slot);
  }
  [[nodiscard]] UnitEncoded run(const UnitSlot& slot, const Place& place, uint32_t round,
                                const float* gradient, Work& work, MutBytes out) const;
  void forget_sent(const UnitSlot& slot, const Place& place, Bytes sent, Work& work) const;
  void take_out(const UnitSlot& slot, const Place& place, Bytes sent, float* values,
                Work& work) const;
  [[nodiscard]] bool fused(const UnitSlot& slot) const noexcept {
    return contract_.fused && remembers(slot) && slot.memory.plain();
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
void subtract_from(const UnitCodec& codec, float* out, const float* x, uint64_t n);
kernels::Scan scan(const UnitCodec& codec, const float* x, uint64_t n);

}  // namespace laconic::pipeline
