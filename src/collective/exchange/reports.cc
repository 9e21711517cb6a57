// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "collective/exchange/reports.h"

#include <algorithm>
#include <array>

namespace laconic::collective {
namespace {

using control::kReportBytes;
using control::kReportWords;
using control::Report;
using Packed = std::array<uint8_t, kReportBytes>;

uint16_t narrow(DType type, uint8_t byte) noexcept {
  return type == DType::f16 ? float_to_f16(byte) : float_to_bf16(byte);
}
float widen(DType type, uint16_t lane) noexcept {
  return type == DType::f16 ? f16_to_float(lane) : bf16_to_float(lane);
}

/// False: `x` is no whole number from 0 to `most`.
bool whole(float x, float most, uint32_t* out) noexcept {
  if (!(x >= 0 && x <= most)) return false;
  *out = static_cast<uint32_t>(x);
  return static_cast<float>(*out) == x;
}

Report from_words(const uint8_t* lanes) noexcept {
  std::array<uint16_t, kReportWords> words{};
  for (std::size_t i = 0; i < words.size(); ++i) {
    uint32_t word = 0;
    if (!whole(load<float>(lanes + 4 * i), 65535, &word)) return {};
    words[i] = static_cast<uint16_t>(word);
  }
  return control::report_of_words(words);
}

Report from_bytes(DType type, const uint8_t* lanes) noexcept {
  Packed bytes{};
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    uint32_t byte = 0;
    if (!whole(widen(type, load<uint16_t>(lanes + 2 * i)), 255, &byte)) return {};
    bytes[i] = static_cast<uint8_t>(byte);
  }
  return control::load_report(bytes);
}

}  // namespace

SlotTurn slot_turn(uint32_t world, uint64_t turn) noexcept {
  const auto first = static_cast<uint32_t>(turn % ceil_div(world, kReportSlots) * kReportSlots);
  return {first, std::min(world - first, kReportSlots)};
}

uint64_t report_lanes(DType type) noexcept {
  if (type == DType::f32) return kReportWords;
  return type == DType::i32 ? kReportBytes / 4 : kReportBytes;
}

void put_report(DType type, const Report& report, uint8_t* lanes) noexcept {
  if (type == DType::f32) {
    for (const uint16_t word : control::report_words(report)) {
      store(lanes, static_cast<float>(word));
      lanes += sizeof(float);
    }
    return;
  }
  Packed bytes{};
  control::store_report(report, bytes);
  if (type == DType::i32) {
    store(lanes, bytes);
    return;
  }
  for (std::size_t i = 0; i < bytes.size(); ++i) store(lanes + 2 * i, narrow(type, bytes[i]));
}

Report get_report(DType type, const uint8_t* lanes) noexcept {
  if (type == DType::f32) return from_words(lanes);
  if (type == DType::i32) return control::load_report(load<Packed>(lanes));
  return from_bytes(type, lanes);
}

BundleReport bundle_report(const OwnReport* own) noexcept {
  BundleReport out;
  if (own == nullptr) return out;
  control::store_report(own->report, out.bytes);
  out.step = static_cast<uint32_t>(own->step);
  return out;
}

Report heard_report(const BundleReport& report, const OwnReport& own) noexcept {
  if (report.step != static_cast<uint32_t>(own.step)) return {};
  return control::load_report(report.bytes);
}

void ReportBook::hear(uint32_t rank, const BundleReport& report, const OwnReport* own) noexcept {
  if (own == nullptr || rank >= reports_.size()) return;
  if (heard_.reports.empty()) std::fill(reports_.begin(), reports_.end(), Report{});
  reports_[rank] = heard_report(report, *own);
  heard_ = {0, reports_};
}

void ReportBook::hear_lanes(SlotTurn turn, DType type, const uint8_t* lanes) noexcept {
  const uint64_t bytes = report_lanes(type) * dtype_size(type);
  for (uint32_t i = 0; i < turn.count; ++i) reports_[i] = get_report(type, lanes + i * bytes);
  heard_ = {turn.first, std::span(reports_).first(turn.count)};
}

}  // namespace laconic::collective
