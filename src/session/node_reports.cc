// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "session/node_reports.h"

#include <algorithm>
#include <vector>

namespace laconic::session {
namespace {

using control::Report;

/// At most the number that the note holds and `out` has memory for.
void load(Bytes note, std::vector<Report>& out) noexcept {
  const uint64_t held = (note.size() - sizeof(uint64_t)) / control::kReportBytes;
  const auto count =
      std::min({laconic::load<uint64_t>(note.data()), held, uint64_t{out.capacity()}});
  out.clear();
  const uint8_t* from = note.data() + sizeof(uint64_t);
  for (uint64_t i = 0; i < count; ++i, from += control::kReportBytes)
    out.push_back(control::load_report(
        std::span<const uint8_t, control::kReportBytes>(from, control::kReportBytes)));
}

}  // namespace

void store_node_reports(const Active& active, std::span<uint8_t> out) noexcept {
  std::ranges::fill(out, uint8_t{0});
  store(out.data(), uint64_t{active.heard.reports.size()});
  uint8_t* to = out.data() + sizeof(uint64_t);
  for (const Report& report : active.heard.reports) {
    control::store_report(
        report, std::span<uint8_t, control::kReportBytes>(to, to + control::kReportBytes));
    to += control::kReportBytes;
  }
}

void decide_by(Active& active, Bytes notes, uint64_t stride) noexcept {
  std::vector<Report>& reports = active.heard.reports;
  const auto world = static_cast<uint32_t>(active.model.options().world);
  const auto note = [&](uint64_t at) { return notes.subspan(at, node_report_bytes(world)); };
  uint64_t slowest = notes.size();
  double longest = 0.0;
  for (uint64_t at = 0; at + node_report_bytes(world) <= notes.size(); at += stride) {
    load(note(at), reports);
    const double network = control::agreed_network(reports).value();
    if (network <= longest) continue;
    longest = network;
    slowest = at;
  }
  reports.clear();
  if (slowest == notes.size()) return;
  load(note(slowest), reports);
  if (active.steering) active.steering->heard(active.heard.step, reports);
}

}  // namespace laconic::session
