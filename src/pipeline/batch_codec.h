// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The units that one way of an exchange carries, encoded, checked, decoded and taken back together.
// Strategies ask for whole ways, so that a device can do each in a few launches; they know neither
// where gradients, residuals and codec state are, nor which codecs run there.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "laconic/error.h"
#include "pipeline/unit_codec.h"
#include "wire/bundle.h"

namespace laconic::pipeline {

struct BatchUnit {
  const UnitCodec* codec = nullptr;
  const UnitSlot* slot = nullptr;
  std::string_view name;  ///< of its parameter, for messages
  bool encodes = true;    ///< false: it is decoded alone
};

/// Floats of a batch's units, at `at` (by unit) of `base`, or, if `there` is not null, of `there`,
/// in the device's memory. `base` then takes what is needed on the host.
struct UnitFloats {
  float* base = nullptr;
  std::span<const uint64_t> at;
  float* there = nullptr;

  [[nodiscard]] float* of(uint32_t unit) const { return base + at[unit]; }
  [[nodiscard]] float* there_of(uint32_t unit) const { return there + at[unit]; }
};

/// Takes payloads, unit after unit.
class PayloadSink {
 public:
  /// Memory for a unit's payload, of its plan's bound at least.
  virtual MutBytes room(uint32_t unit) = 0;
  /// The payload is the first `encoded.bytes` of the room. Gives it as it stays until the exchange
  /// ends; empty: nobody decodes it here.
  virtual Bytes put(uint32_t unit, const UnitEncoded& encoded) = 0;

 protected:
  ~PayloadSink() = default;
};

/// Has the sums of payloads that were added on the way.
class SumSource {
 public:
  virtual Term sum(uint32_t unit) = 0;
  /// A byte per granule of the unit, 1 if this rank's values are not in the sum. Empty: all are.
  [[nodiscard]] virtual std::span<const uint8_t> left_out(uint32_t) const { return {}; }

 protected:
  ~SumSource() = default;
};

/// Payloads of these units that `rank` sent.
struct Received {
  std::span<const uint32_t> units;
  uint32_t rank = 0;
  SlotCursor slots;
};

/// The calls that bundles and sums have in common.
class BatchCodec {
 public:
  using Units = std::span<const uint32_t>;
  virtual ~BatchCodec() = default;

  // ---- between two exchanges ----

  /// Units are to be added, which count from 0.
  virtual void restart() = 0;
  virtual void add(const BatchUnit& unit) = 0;
  /// For their plans as they are now. False: no memory.
  [[nodiscard]] virtual bool reserve() = 0;
  [[nodiscard]] virtual uint64_t held_bytes() const noexcept = 0;
  /// All of them, in order.
  [[nodiscard]] virtual Units all() const noexcept = 0;

  // ---- in an exchange ----

  /// Nothing was sent yet. `place`: without a prescale.
  virtual void begin(const Place& place) = 0;
  /// First rounds of `units`, in order. After an error memory has changed for those whose outcome
  /// is `payload`, as encode left it, and for no others.
  virtual Result<void> encode(Units units, UnitFloats gradients, PayloadSink& sink) = 0;
  /// That of its first round; zero before, and after undo.
  [[nodiscard]] virtual Outcome outcome(uint32_t unit) const noexcept = 0;
  /// Not delivered: memory of what was sent is as UnitCodec::undo has it.
  virtual void undo(Units units, UnitFloats gradients, Undo why) = 0;
  /// As UnitCodec::keep.
  virtual void keep(Units units, UnitFloats gradients) = 0;
};

/// Units of bundles, which receivers decode: one round.
class FrameBatch : public BatchCodec {
 public:
  /// Memory for floats of units, where this decodes: for means that are encoded again. It stays
  /// until the next call. Without `base`: there is none.
  [[nodiscard]] virtual UnitFloats lend(std::span<const uint64_t> at, uint64_t floats) = 0;
  /// May mean() see them? If not: payload_malformed, naming rank and parameter of the first.
  virtual Result<void> check(std::span<const Received> received) = 0;
  /// Means of `units` over checked bundles, in rank order, which hold these units and no others
  /// before them.
  virtual Result<void> mean(Units units, std::span<SlotCursor> bundles, UnitFloats means) = 0;
  /// Delivered: codec state moves on, aggregate feedback takes the mean out of the residual.
  virtual void commit(Units units, uint32_t contributors, UnitFloats means) = 0;
};

/// Units whose payloads are added before they are decoded, in one round or several.
class SumBatch : public BatchCodec {
 public:
  /// The first round that a unit needs, the same on all ranks: known after begin().
  [[nodiscard]] virtual uint32_t first(uint32_t unit) const noexcept = 0;
  /// Memory lent to its codec, with what it keeps between two calls of an exchange.
  [[nodiscard]] virtual Work work(uint32_t unit) = 0;
  /// That round of all units which began before and still have it. One whose first round gave no
  /// payload has `zero`.
  virtual Result<void> encode_round(uint32_t round, UnitFloats gradients, PayloadSink& sink) = 0;
  /// The sum of a round that is not the unit's last.
  virtual void accept(uint32_t unit, uint32_t round, MutBytes sum) = 0;
  /// Delivered: means of sums, and what is FrameBatch::commit for these.
  virtual Result<void> take_sums(Units units, SumSource& sums, UnitFloats means) = 0;
};

class DeviceBatches;

class Batches {
 public:
  /// Null: gradients and means are on the host.
  [[nodiscard]] virtual const DeviceBatches* device() const noexcept { return nullptr; }
  /// For the payloads of `world` ranks.
  [[nodiscard]] virtual std::unique_ptr<FrameBatch> frames(uint32_t world) const = 0;
  [[nodiscard]] virtual std::unique_ptr<SumBatch> sums() const = 0;

 protected:
  ~Batches() = default;
};

/// On the host: loops over UnitCodec.
[[nodiscard]] const Batches& host_batches() noexcept;

}  // namespace laconic::pipeline
