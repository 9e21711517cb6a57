// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Any text gives a control or an error, and a control stays inside its bounds. What begins with '{'
// is a record: decisions follow from it, or an error with its line.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "control/replay.h"

namespace {

namespace control = laconic::control;

void require(bool condition) {
  if (!condition) std::abort();
}

control::Range ratio() {
  control::Range range;
  range.name = "ratio";
  range.start = 0.01;
  range.min = 0.001;
  range.max = 0.25;
  range.lowest = 1e-9;
  range.highest = 1;
  range.dense_bytes = 1000000;
  return range;
}

void try_control(std::string_view text) {
  const auto parsed = control::parse_control(text);
  if (!parsed) return require(!parsed.error().message.empty());
  const auto again = control::parse_control(parsed->canonical);
  require(again.ok() && again->canonical == parsed->canonical);
  auto made = control::Controller::create({{std::string(text), false, "topk", ratio()}});
  if (!made) return require(!made.error().message.empty());
  std::vector<uint64_t> state(made->state_words());
  for (uint64_t step = 0; step < 64; ++step) {
    const double time = 1e-3 * static_cast<double>(1 + step * 37 % 101);
    const control::Figures report{time, 0, 0, 2 * time, 1};
    for (const auto& d :
         made->observe(control::observe(step, std::span(&report, 1), 1000 + step * step))) {
      require(d.to >= made->bounds(0)->min && d.to <= made->bounds(0)->max);
    }
    made->save(state);
    require(made->load(state).ok());
  }
}

void try_record(std::string_view text) {
  const auto record = control::read_record(text);
  if (!record) return require(record.error().message.substr(0, 5) == "line ");
  std::string again;
  for (const auto& part : record->parts) {
    again += control::record_line(part.run);
    for (const auto& step : part.steps) again += control::record_line(step, part.run);
  }
  const auto twice = control::read_record(again);
  require(twice.ok() && twice->parts.size() == record->parts.size());
  (void)control::recompute(*record);
  (void)control::recompute(*record, "dc2:mean=0.01");
  (void)control::decisions_for(*record, record->parts.front().run);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (!text.empty() && text.front() == '{') {
    try_record(text);
  } else {
    try_control(text);
  }
  return 0;
}
