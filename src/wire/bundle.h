// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The bundle: what one rank sends to another in one exchange, all units of a bucket after one
// header.
//
//   header (76) | slot table (4 per unit) | seen length (4, or none) |
//   lanes (f32) | payloads, padded to 4
//
// A transport moves capacities that all ranks know beforehand; a bundle lies at the start of one
// and says how much of it is used. What does not fit is a value (`overflow`), and so is a rank's
// own failure (`failure`): both fit into kMinCapacity, which every exchange grants. Specification
// and order of checks: docs/format/FRAME.md.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "laconic/bytes.h"
#include "laconic/error.h"

namespace laconic {

inline constexpr uint8_t kBundleVersion = 3;
inline constexpr uint64_t kBundleHeaderBytes = 76;
/// Lanes and every payload start at a multiple of it (counted from the header, which a caller
/// aligns as it likes).
inline constexpr uint64_t kBundleAlign = 4;
/// The least that an exchange grants: the longest failure bundle takes 76 + 20 + 512 bytes.
inline constexpr uint64_t kMinCapacity = 640;
inline constexpr uint64_t kMaxFailureText = 512;
inline constexpr uint32_t kMaxWorld = 65535;
/// The longest payload of a unit, and the longest lane segment of a bundle.
inline constexpr uint32_t kMaxSlotBytes = 0xFFFFFFF0U;
/// The most draining steps that a flush may be spread over.
inline constexpr uint32_t kMaxFlushSteps = 65535;

/// The kind of a bundle.
enum class BundleKind : uint8_t {
  contribution = 0,  ///< a rank's own payloads, to all (one-shot) or to one owner (two-shot)
  mean = 1,          ///< an owner's re-encoded mean, to all
  agreement = 2,     ///< floats that are gathered and reduced in rank order; lanes only
};

/// Who sends what, where in the run. `sequence` counts the exchanges since attach; `round` the
/// rounds of one exchange.
struct BundleId {
  BundleKind kind = BundleKind::contribution;
  uint8_t round = 0;
  uint16_t rank = 0;  ///< the sender
  uint16_t world = 1;
  uint64_t step = 0;
  uint32_t sequence = 0;
  uint64_t agreement = 0;  ///< hash of specs, sizes and versions agreed at attach
};

/// The sender's report on an earlier step (control/report.h). Any bytes are accepted here.
struct BundleReport {
  std::array<uint8_t, 12> bytes{};  ///< zeros: nothing
  uint32_t step = 0;                ///< low half of the number of the step it is about
};

/// The fixed part of a bundle's body; agreed, so both sides know it.
struct BundleShape {
  uint32_t slots = 0;       ///< units
  uint32_t seen = 0;        ///< 0 or 1: how many lengths an owner repeats
  uint32_t lane_bytes = 0;  ///< a multiple of 4
};

/// Bytes in front of the first payload.
[[nodiscard]] constexpr uint64_t bundle_front_bytes(const BundleShape& shape) noexcept {
  return kBundleHeaderBytes + 4 * (uint64_t{shape.slots} + shape.seen) + shape.lane_bytes;
}
/// Bytes of a payload in a bundle. bundle_front_bytes plus the sum over all units is the size of a
/// bundle; with the plan's bounds it is the capacity that a writer needs.
[[nodiscard]] constexpr uint64_t bundle_payload_bytes(uint64_t payload) noexcept {
  return round_up(payload, kBundleAlign);
}

/// A local failure that every rank shall report in the same words.
struct BundleFailure {
  Errc code = Errc::internal;
  uint32_t rank = 0;  ///< where it happened
  uint32_t bucket = 0;
  uint32_t parameter = kNoParameter;  ///< index in the attached list
  std::string_view text = {};         ///< UTF-8, cut to kMaxFailureText

  static constexpr uint32_t kNoParameter = 0xFFFFFFFFU;
};

/// The result of BundleWriter::finish.
struct BundleSize {
  uint64_t bytes = 0;     ///< valid at the start of `out`: the whole bundle, or its header only
  uint64_t needed = 0;    ///< the size of the whole bundle
  bool overflow = false;  ///< needed > capacity
};

/// Writes a bundle into `out`, unit after unit in slot order, without a copy: ask for room, let the
/// codec encode into it, say how much it wrote. `out` has to hold the bounds of the plan (see
/// bundle_payload_bytes), which is more than the capacity that will travel. No allocation.
class BundleWriter {
 public:
  /// `out` must hold bundle_front_bytes(shape); the lanes are not cleared, seen length and slots
  /// are.
  BundleWriter(MutBytes out, const BundleShape& shape) noexcept;

  /// The lane segment, shape.lane_bytes long.
  [[nodiscard]] MutBytes lanes() noexcept;
  /// Lanes that hold NaN or infinity: sets the bundle's flag (a non-finite slot sets it by itself).
  void mark_non_finite() noexcept { non_finite_ = true; }
  /// The sender asks for a flush in that many steps, at most kMaxFlushSteps; 0: it does not.
  void set_flush(uint32_t steps) noexcept { flush_ = steps; }
  void set_report(const BundleReport& report) noexcept { report_ = report; }
  /// An owner's bundle that holds only its seen length: some contributions have to travel again.
  void mark_incomplete() noexcept { incomplete_ = true; }
  /// With shape.seen: the size of the largest bundle that was sent to this owner.
  void set_seen(uint64_t bundle_bytes) noexcept;

  /// The space for the next slot's payload: the rest of `out`.
  [[nodiscard]] MutBytes room() noexcept;
  /// The next slot holds the first `bytes` of room(), at least 1. One of these four for every slot,
  /// in order.
  void put(uint32_t bytes) noexcept;
  /// The next slot holds a copy of `payload` (not empty, fits into room()).
  void put(Bytes payload) noexcept;
  /// The unit is all zeros, or this rank has nothing for it.
  void put_zero() noexcept;
  /// The unit is not finite and was not encoded.
  void put_non_finite() noexcept;

  /// Writes header and checksum after the last slot. When the bundle is larger than `capacity` (at
  /// least kMinCapacity), only its header is valid, with the flag; the payloads stay where they
  /// are, and a second finish with a larger capacity completes the bundle for the repeat round.
  BundleSize finish(const BundleId& id, uint64_t capacity) noexcept;

 private:
  void set_slot(uint32_t word) noexcept;

  MutBytes out_;
  BundleShape shape_;
  uint64_t end_ = 0;
  uint32_t slot_ = 0;
  uint32_t flush_ = 0;
  BundleReport report_;
  bool non_finite_ = false;
  bool incomplete_ = false;
};

/// A bundle that says only that this rank failed. `out` holds at least kMinCapacity. Gives the
/// size. Bytes that are not UTF-8 become '?'.
uint64_t write_failure_bundle(const BundleId& id, const BundleFailure& failure,
                              MutBytes out) noexcept;

/// The receiver's expectations; all of them are verified.
struct BundleExpect {
  BundleId id;  ///< rank: of the sender
  BundleShape shape;
  /// Largest payload of each slot, shape.slots long: the plan's bounds.
  std::span<const uint32_t> slot_bounds;
  uint64_t seen_bound = 0;  ///< the largest bundle that anyone may have sent to the sender
};

enum class SlotKind : uint8_t { payload, zero, non_finite };

struct Slot {
  SlotKind kind = SlotKind::zero;
  Bytes payload;
};

/// Reads the slots of a verified bundle in order: one 4-byte load each. A plain value: copy it to
/// start again.
class SlotCursor {
 public:
  SlotCursor() = default;
  SlotCursor(const uint8_t* table, uint32_t slots, const uint8_t* payloads) noexcept
      : table_(table), left_(slots), payload_(payloads) {}
  [[nodiscard]] uint32_t left() const noexcept { return left_; }
  /// left() > 0.
  Slot next() noexcept;

 private:
  const uint8_t* table_ = nullptr;
  uint32_t left_ = 0;
  const uint8_t* payload_ = nullptr;
};

/// A verified bundle. Points into the bytes that were parsed; holds nothing else.
struct BundleView {
  bool non_finite = false;  ///< a slot, the lanes, or what the sender has for another owner
  bool overflow = false;    ///< did not fit: no slots, lanes or seen length
  bool incomplete = false;  ///< an owner's: only the seen length means something
  bool failed = false;      ///< the sender failed: only `failure` is there
  uint32_t flush = 0;       ///< steps of the flush that the sender asks for; 0: none
  BundleReport report;      ///< of an overflow, too
  uint64_t bytes = 0;       ///< size of the bundle; with overflow, what it would have taken
  BundleFailure failure;    ///< text points into the parsed bytes
  BundleShape shape;        ///< as expected; zeros when overflow or failed
  Bytes lanes;
  Bytes table;
  Bytes seen_word;
  const uint8_t* payloads = nullptr;

  [[nodiscard]] SlotCursor slots() const noexcept { return {table.data(), shape.slots, payloads}; }
  /// With shape.seen: the largest bundle that was sent to the owner, in bytes.
  [[nodiscard]] uint64_t seen() const noexcept {
    return uint64_t{load<uint32_t>(seen_word.data())} * kBundleAlign;
  }
};

/// Parses any bytes to a view or a numbered error. `capacity`: the bytes from the transport; those
/// after the bundle are ignored. Sender, world and (for a healthy sender) step, sequence, kind,
/// round, agreement and shape are compared with `expect`, every length with its bound. A failure
/// bundle passes with any step, sequence and agreement, because the sender's message is more
/// useful. Allocates only on failure.
Result<BundleView> parse_bundle(Bytes capacity, const BundleExpect& expect);

/// A peer's failure as an Error: code peer_failed, the message with rank, bucket and parameter;
/// the same on all ranks.
Error to_error(const BundleFailure& failure);

}  // namespace laconic
