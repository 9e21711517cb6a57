// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "wire/bundle.h"
#include "wire/bundle_layout.h"
#include "wire/utf8.h"

namespace laconic {
namespace {

using namespace wire;

void put_header(const BundleId& id, const BundleShape& shape, uint8_t flags, uint64_t bytes,
                uint32_t flush, const BundleReport& report, uint8_t* p) noexcept {
  store(p + kMagicAt, kBundleMagic);
  store(p + kVersionAt, kBundleVersion);
  store(p + kKindAt, id.kind);
  store(p + kFlagsAt, flags);
  store(p + kRoundAt, id.round);
  store(p + kStepAt, id.step);
  store(p + kAgreementAt, id.agreement);
  store(p + kBytesAt, bytes);
  store(p + kSequenceAt, id.sequence);
  store(p + kRankAt, id.rank);
  store(p + kWorldAt, id.world);
  store(p + kSlotsAt, shape.slots);
  store(p + kLaneBytesAt, shape.lane_bytes);
  store(p + kFlushAt, flush);
  store(p + kReportAt, report.bytes);
  store(p + kReportStepAt, report.step);
}

void seal(MutBytes bundle) noexcept { store(bundle.data() + kChecksumAt, bundle_checksum(bundle)); }

// Copies whole characters while they fit; a byte that is not UTF-8 becomes '?'.
uint32_t put_text(std::string_view text, uint8_t* p) noexcept {
  Bytes left(reinterpret_cast<const uint8_t*>(text.data()), text.size());
  uint32_t written = 0;
  while (!left.empty()) {
    const uint32_t length = std::max(utf8_character(left), 1U);
    if (written + length > kMaxFailureText) break;
    if (utf8_character(left) == 0) {
      p[written] = '?';
    } else {
      std::memcpy(p + written, left.data(), length);
    }
    written += length;
    left = left.subspan(length);
  }
  return written;
}

}  // namespace

BundleWriter::BundleWriter(MutBytes out, const BundleShape& shape) noexcept
    : out_(out), shape_(shape), end_(bundle_front_bytes(shape)) {
  std::memset(out.data() + kBodyAt, 0, 4 * (uint64_t{shape.slots} + shape.seen));
}

MutBytes BundleWriter::lanes() noexcept {
  return out_.subspan(bundle_front_bytes(shape_) - shape_.lane_bytes, shape_.lane_bytes);
}

void BundleWriter::set_seen(uint64_t bundle_bytes) noexcept {
  const auto words = static_cast<uint32_t>(ceil_div(bundle_bytes, kBundleAlign));
  store(out_.data() + kBodyAt + 4 * uint64_t{shape_.slots}, words);
}

MutBytes BundleWriter::room() noexcept { return out_.subspan(end_); }

void BundleWriter::set_slot(uint32_t word) noexcept {
  store(out_.data() + kBodyAt + 4 * uint64_t{slot_}, word);
  ++slot_;
}

void BundleWriter::put(uint32_t bytes) noexcept {
  set_slot(bytes);
  const uint64_t padded = bundle_payload_bytes(bytes);
  std::memset(out_.data() + end_ + bytes, 0, padded - bytes);
  end_ += padded;
}

void BundleWriter::put(Bytes payload) noexcept {
  std::memcpy(out_.data() + end_, payload.data(), payload.size());
  put(static_cast<uint32_t>(payload.size()));
}

void BundleWriter::put_zero() noexcept { set_slot(kZeroSlot); }

void BundleWriter::put_non_finite() noexcept {
  set_slot(kNonFiniteSlot);
  non_finite_ = true;
}

BundleSize BundleWriter::finish(const BundleId& id, uint64_t capacity) noexcept {
  const bool overflow = end_ > capacity;
  const uint64_t valid = overflow ? kBundleHeaderBytes : end_;
  const auto flags = static_cast<uint8_t>(
      (non_finite_ ? kNonFiniteFlag : 0) | (overflow ? kOverflowFlag : 0) |
      (shape_.seen != 0 ? kSeenFlag : 0) | (incomplete_ ? kIncompleteFlag : 0));
  put_header(id, shape_, flags, end_, flush_, report_, out_.data());
  seal(out_.first(valid));
  return {valid, end_, overflow};
}

uint64_t write_failure_bundle(const BundleId& id, const BundleFailure& failure,
                              MutBytes out) noexcept {
  uint8_t* p = out.data();
  const uint32_t length = put_text(failure.text, p + kFailureTextAt);
  const uint64_t end = round_up(kFailureTextAt + length, kBundleAlign);
  std::memset(p + kFailureTextAt + length, 0, end - kFailureTextAt - length);
  store(p + kFailureCodeAt, failure.code);
  store(p + kFailureRankAt, failure.rank);
  store(p + kFailureBucketAt, failure.bucket);
  store(p + kFailureParameterAt, failure.parameter);
  store(p + kFailureLengthAt, length);
  put_header(id, {}, kFailedFlag, end, 0, {}, p);
  seal(out.first(end));
  return end;
}

}  // namespace laconic
