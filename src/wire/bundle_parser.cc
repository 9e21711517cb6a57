// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <utility>

#include "wire/bundle.h"
#include "wire/bundle_layout.h"
#include "wire/message.h"
#include "wire/utf8.h"

namespace laconic {
namespace {

using namespace wire;

constexpr std::string_view kOtherSettings =
    "the ranks were attached with different specs, models, world sizes or releases, exchange their "
    "buckets in different orders, or have not all loaded the same run's state";
constexpr std::string_view kOtherOrder = "the ranks do not run the same sequence of exchanges";

Error bundle_error(Errc code, std::string_view field, const Said& expected, const Said& found,
                   std::string_view hint = {}) {
  return mismatch(code, "bundle", field, expected, found, std::string(hint));
}

// The header's numbers, not yet judged.
struct Header {
  BundleId id;
  BundleShape shape;
  uint8_t flags = 0;
  uint64_t bytes = 0;
  uint32_t flush = 0;
  BundleReport report;

  [[nodiscard]] bool has(uint8_t flag) const noexcept { return (flags & flag) != 0; }
  [[nodiscard]] uint64_t valid_bytes() const noexcept {
    return has(kOverflowFlag) ? kBundleHeaderBytes : bytes;
  }
};

Header get_header(const uint8_t* p) noexcept {
  Header h;
  h.id.kind = static_cast<BundleKind>(load<uint8_t>(p + kKindAt));
  h.id.round = load<uint8_t>(p + kRoundAt);
  h.id.rank = load<uint16_t>(p + kRankAt);
  h.id.world = load<uint16_t>(p + kWorldAt);
  h.id.step = load<uint64_t>(p + kStepAt);
  h.id.sequence = load<uint32_t>(p + kSequenceAt);
  h.id.agreement = load<uint64_t>(p + kAgreementAt);
  h.flags = load<uint8_t>(p + kFlagsAt);
  h.shape.slots = load<uint32_t>(p + kSlotsAt);
  h.shape.seen = h.has(kSeenFlag) ? 1 : 0;
  h.shape.lane_bytes = load<uint32_t>(p + kLaneBytesAt);
  h.bytes = load<uint64_t>(p + kBytesAt);
  h.flush = load<uint32_t>(p + kFlushAt);
  h.report.bytes = load<decltype(h.report.bytes)>(p + kReportAt);
  h.report.step = load<uint32_t>(p + kReportStepAt);
  return h;
}

// The caller's own numbers: a mistake here must not look like a peer's.
Result<void> check_expectation(const BundleExpect& expect) {
  const BundleShape& shape = expect.shape;
  const bool fits = expect.id.rank < expect.id.world && expect.slot_bounds.size() == shape.slots &&
                    shape.lane_bytes % kBundleAlign == 0 && shape.seen <= 1;
  if (fits) return {};
  return Error{Errc::invalid_argument, "bundle: the receiver's expectation is inconsistent",
               "an error in this program, not in a peer: please report it"};
}

Result<void> check_start(Bytes in) {
  const uint64_t found = in.size();
  const auto magic = found < 4 ? 0 : load<uint32_t>(in.data());
  if (found >= 4 && magic != kBundleMagic) {
    return bundle_error(Errc::frame_magic, "magic", hex(kBundleMagic, 8), hex(magic, 8),
                        "the peer did not send a bundle here");
  }
  if (found > kVersionAt && in[kVersionAt] != kBundleVersion) {
    return bundle_error(Errc::frame_version, "version", kBundleVersion, in[kVersionAt],
                        "the peer runs another release of Laconic");
  }
  if (found >= kBundleHeaderBytes) return {};
  return bundle_error(Errc::frame_truncated, "length", at_least(kBundleHeaderBytes), found);
}

Result<void> check_integrity(Bytes in, const Header& h) {
  const uint64_t valid = h.valid_bytes();
  if (valid < kBundleHeaderBytes || valid % kBundleAlign != 0) {
    return bundle_error(Errc::frame_field, "bytes", "a multiple of 4, at least 76", valid);
  }
  if (valid > in.size()) {
    return bundle_error(Errc::frame_truncated, "length", at_least(valid), in.size());
  }
  const auto said = load<uint64_t>(in.data() + kChecksumAt);
  const uint64_t actual = bundle_checksum(in.first(valid));
  if (said == actual) return {};
  return bundle_error(Errc::frame_checksum, "checksum", hex(actual, 16), hex(said, 16),
                      "the bytes changed in transit");
}

Result<void> check_flags(const Header& h) {
  const bool known = (h.flags & ~kAllFlags) == 0;
  const bool alone = !h.has(kFailedFlag) || h.flags == kFailedFlag;
  const bool owner = !h.has(kIncompleteFlag) || h.id.kind == BundleKind::mean;
  if (!known || !alone || !owner) {
    return bundle_error(Errc::frame_field, "flags",
                        "known flags, failed only alone, incomplete only of a mean",
                        uint64_t{h.flags});
  }
  if (h.flush <= kMaxFlushSteps) return {};
  return bundle_error(Errc::frame_field, "flush", at_most(kMaxFlushSteps), h.flush);
}

Result<void> check_sender(const BundleId& id, const BundleId& expect) {
  if (id.world != expect.world) {
    return bundle_error(Errc::ranks_disagree, "world", uint64_t{expect.world}, uint64_t{id.world},
                        kOtherSettings);
  }
  if (id.rank != expect.rank) {
    return bundle_error(Errc::ranks_disagree, "rank", uint64_t{expect.rank}, uint64_t{id.rank},
                        "the transport delivered another rank's bytes");
  }
  return {};
}

Result<void> check_moment(const BundleId& id, const BundleId& expect) {
  const auto out_of_order = [](std::string_view field, uint64_t wanted, uint64_t found) {
    return bundle_error(Errc::exchange_order, field, wanted, found, kOtherOrder);
  };
  if (id.agreement != expect.agreement) {
    return bundle_error(Errc::ranks_disagree, "agreement", hex(expect.agreement, 16),
                        hex(id.agreement, 16), kOtherSettings);
  }
  if (id.step != expect.step) return out_of_order("step", expect.step, id.step);
  if (id.sequence != expect.sequence) {
    return out_of_order("sequence", expect.sequence, id.sequence);
  }
  if (id.kind != expect.kind) {
    return out_of_order("kind", static_cast<uint8_t>(expect.kind), static_cast<uint8_t>(id.kind));
  }
  if (id.round != expect.round) return out_of_order("round", expect.round, id.round);
  return {};
}

Result<void> check_shape(const BundleShape& shape, const BundleShape& expect) {
  if (shape.slots != expect.slots) {
    return bundle_error(Errc::frame_count, "slots", expect.slots, shape.slots, kOtherSettings);
  }
  if (shape.seen != expect.seen) {
    return bundle_error(Errc::frame_count, "seen lengths", expect.seen, shape.seen);
  }
  if (shape.lane_bytes != expect.lane_bytes) {
    return bundle_error(Errc::frame_count, "lane bytes", expect.lane_bytes, shape.lane_bytes,
                        kOtherSettings);
  }
  return {};
}

// Limits the size that a sender requests in the repeat round, which this rank allocates, to the
// plan's bound.
Result<void> check_needed(uint64_t needed, uint64_t capacity, const BundleExpect& expect) {
  uint64_t most = bundle_front_bytes(expect.shape);
  for (const uint32_t bound : expect.slot_bounds) most += bundle_payload_bytes(bound);
  if (needed > most) {
    return bundle_error(Errc::bound_exceeded, "needed bytes", at_most(most), needed);
  }
  if (needed <= capacity || needed % kBundleAlign != 0) {
    return bundle_error(Errc::frame_field, "needed bytes",
                        "a multiple of 4 above " + std::to_string(capacity), needed);
  }
  return {};
}

bool is_zero(Bytes bytes) noexcept {
  return std::all_of(bytes.begin(), bytes.end(), [](uint8_t b) { return b == 0; });
}

Result<BundleFailure> get_failure(Bytes bundle) {
  const uint8_t* p = bundle.data();
  if (bundle.size() < kFailureTextAt) {
    return bundle_error(Errc::frame_field, "bytes", at_least(kFailureTextAt), bundle.size());
  }
  const auto length = load<uint32_t>(p + kFailureLengthAt);
  if (length > kMaxFailureText ||
      round_up(kFailureTextAt + length, kBundleAlign) != bundle.size()) {
    return bundle_error(Errc::frame_field, "length of the failure's text",
                        bundle.size() - kFailureTextAt, length);
  }
  const Bytes text = bundle.subspan(kFailureTextAt, length);
  if (!is_zero(bundle.subspan(kFailureTextAt + length))) {
    return bundle_error(Errc::frame_field, "padding of the failure", "zeros", "other bytes");
  }
  if (!is_utf8(text)) {
    return bundle_error(Errc::frame_field, "text of the failure", "UTF-8", "other bytes");
  }
  BundleFailure failure;
  failure.code = static_cast<Errc>(load<int32_t>(p + kFailureCodeAt));
  failure.rank = load<uint32_t>(p + kFailureRankAt);
  failure.bucket = load<uint32_t>(p + kFailureBucketAt);
  failure.parameter = load<uint32_t>(p + kFailureParameterAt);
  failure.text = {reinterpret_cast<const char*>(text.data()), text.size()};
  if (failure.code == Errc::ok || errc_name(failure.code) == "unknown") {
    return bundle_error(Errc::frame_field, "code of the failure", "a number in ERRORS.md",
                        std::to_string(static_cast<int32_t>(failure.code)));
  }
  return failure;
}

// Walks the table once; afterwards every payload is known to lie inside.
Result<void> check_slots(Bytes bundle, const Header& h, const BundleExpect& expect) {
  const auto slot_error = [](Errc code, std::size_t slot, const Said& wanted, const Said& found) {
    return bundle_error(code, "slot " + std::to_string(slot), wanted, found);
  };
  uint64_t end = bundle_front_bytes(expect.shape);
  if (end > bundle.size()) {
    return bundle_error(Errc::frame_truncated, "bytes", at_least(end), bundle.size());
  }
  for (std::size_t i = 0; i < expect.slot_bounds.size(); ++i) {
    const auto word = load<uint32_t>(bundle.data() + kBodyAt + 4 * i);
    if (word == kNonFiniteSlot && !h.has(kNonFiniteFlag)) {
      return slot_error(Errc::frame_field, i, "no non-finite slot without the flag", "one");
    }
    if (word == kZeroSlot || word == kNonFiniteSlot) continue;
    const uint32_t bound = std::min(expect.slot_bounds[i], kMaxSlotBytes);
    if (word > bound) return slot_error(Errc::bound_exceeded, i, at_most(bound), word);
    const uint64_t padded = bundle_payload_bytes(word);
    if (padded > bundle.size() - end) {
      return slot_error(Errc::frame_truncated, i, at_most(bundle.size() - end), word);
    }
    if (!is_zero(bundle.subspan(end + word, padded - word))) {
      return slot_error(Errc::frame_field, i, "zeros as padding", "other bytes");
    }
    end += padded;
  }
  if (end == bundle.size()) return {};
  return bundle_error(Errc::frame_extended, "bytes", end, bundle.size());
}

// The length that an owner claims to have seen becomes memory and a message of ours: bounded by
// what could have been sent at all.
Result<void> check_seen(const BundleView& view, const BundleExpect& expect) {
  if (view.shape.seen == 0 || view.seen() <= expect.seen_bound) return {};
  return bundle_error(Errc::bound_exceeded, "seen length", at_most(expect.seen_bound), view.seen());
}

BundleView make_view(Bytes bundle, const Header& h) noexcept {
  const uint64_t table = 4 * uint64_t{h.shape.slots};
  const uint64_t seen = 4 * uint64_t{h.shape.seen};
  BundleView view;
  view.non_finite = h.has(kNonFiniteFlag);
  view.incomplete = h.has(kIncompleteFlag);
  view.flush = h.flush;
  view.report = h.report;
  view.bytes = h.bytes;
  view.shape = h.shape;
  view.table = bundle.subspan(kBodyAt, table);
  view.seen_word = bundle.subspan(kBodyAt + table, seen);
  view.lanes = bundle.subspan(kBodyAt + table + seen, h.shape.lane_bytes);
  view.payloads = bundle.data() + bundle_front_bytes(h.shape);
  return view;
}

Result<BundleView> parse_failed(Bytes bundle, const Header& h) {
  if (h.shape.slots != 0 || h.shape.lane_bytes != 0) {
    return bundle_error(Errc::frame_field, "slots and lane bytes of a failure", 0,
                        uint64_t{h.shape.slots} + h.shape.lane_bytes);
  }
  auto failure = get_failure(bundle);
  if (!failure) return std::move(failure).error();
  BundleView view;
  view.failed = true;
  view.bytes = bundle.size();
  view.failure = *failure;
  return view;
}

Result<BundleView> parse_overflow(const Header& h, uint64_t capacity, const BundleExpect& expect) {
  if (auto r = check_needed(h.bytes, capacity, expect); !r) return std::move(r).error();
  BundleView view;
  view.non_finite = h.has(kNonFiniteFlag);
  view.overflow = true;
  view.report = h.report;
  view.bytes = h.bytes;
  return view;
}

}  // namespace

Slot SlotCursor::next() noexcept {
  const auto word = load<uint32_t>(table_);
  table_ += 4;
  --left_;
  if (word == kZeroSlot) return {SlotKind::zero, {}};
  if (word == kNonFiniteSlot) return {SlotKind::non_finite, {}};
  const Bytes payload(payload_, word);
  payload_ += bundle_payload_bytes(word);
  return {SlotKind::payload, payload};
}

Result<BundleView> parse_bundle(Bytes capacity, const BundleExpect& expect) {
  if (auto r = check_expectation(expect); !r) return std::move(r).error();
  if (auto r = check_start(capacity); !r) return std::move(r).error();
  const Header h = get_header(capacity.data());
  if (auto r = check_integrity(capacity, h); !r) return std::move(r).error();
  if (auto r = check_flags(h); !r) return std::move(r).error();
  if (auto r = check_sender(h.id, expect.id); !r) return std::move(r).error();
  const Bytes bundle = capacity.first(h.valid_bytes());
  if (h.has(kFailedFlag)) return parse_failed(bundle, h);
  if (auto r = check_moment(h.id, expect.id); !r) return std::move(r).error();
  if (auto r = check_shape(h.shape, expect.shape); !r) return std::move(r).error();
  if (h.has(kOverflowFlag)) return parse_overflow(h, capacity.size(), expect);
  if (auto r = check_slots(bundle, h, expect); !r) return std::move(r).error();
  const BundleView view = make_view(bundle, h);
  if (auto r = check_seen(view, expect); !r) return std::move(r).error();
  return view;
}

Error to_error(const BundleFailure& failure) {
  std::string text = "rank " + std::to_string(failure.rank);
  text += " failed in bucket " + std::to_string(failure.bucket & 0xFFFFU);
  if (failure.bucket >> 16U != 0) text += ", part " + std::to_string(failure.bucket >> 16U);
  if (failure.parameter != BundleFailure::kNoParameter) {
    text += ", parameter " + std::to_string(failure.parameter);
  }
  text.append(" (").append(errc_name(failure.code)).append("): ").append(failure.text);
  return Error{Errc::peer_failed, std::move(text),
               "see the error of rank " + std::to_string(failure.rank) +
                   "; undelivered values stay in the residuals"};
}

}  // namespace laconic
