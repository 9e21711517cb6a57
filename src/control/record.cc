// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "control/record.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <utility>

#include "base/concat.h"
#include "base/hex.h"
#include "base/json_reader.h"
#include "base/json_text.h"
#include "base/quoted.h"
#include "control/rules.h"

namespace laconic::control {
namespace {

constexpr std::size_t kMaxLine = std::size_t{4} << 20U;  // bytes
constexpr std::size_t kMaxRanks = 65536;
constexpr std::size_t kMaxState = std::size_t{1} << 16U;  // words
constexpr std::string_view kFormat = "laconic record";

// ---- writing ----

void put_range(JsonText& json, const Range& r) {
  json.open('{').field("name", std::string_view(r.name)).field("start", r.start);
  json.field("min", r.min).field("max", r.max).field("lowest", r.lowest);
  json.field("highest", r.highest).field("sends", r.sends == Sends::more ? "more" : "less");
  json.field("growth", r.growth == Growth::log ? "log" : "step").field("whole", r.whole);
  json.field("most_bytes", r.most_bytes).field("dense_bytes", r.dense_bytes).close('}');
}

void put_rule(JsonText& json, const RecordedRule& rule) {
  json.open('{').field("match", std::string_view(rule.match));
  json.field("spec", std::string_view(rule.spec));
  json.field("control", std::string_view(rule.control)).field("inherited", rule.inherited);
  json.field("parameters", rule.parameters).field("elements", rule.elements).key("range");
  if (rule.range) {
    put_range(json, *rule.range);
  } else {
    json.null();
  }
  json.close('}');
}

void put_decision(JsonText& json, const Decision& d) {
  json.open('{').field("rule", d.rule).field("from", d.from).field("to", d.to);
  json.field("uncompressed", d.uncompressed).field("reason", reason_name(d.reason));
  json.field("slowdown", d.slowdown).field("network_s", d.network_s);
  json.field("target_s", d.target_s).field("parts", d.parts).close('}');
}

std::string finished(JsonText& json) { return json.take() + "\n"; }

// ---- reading ----

/// Keys of an object that have to be there, each once; others are skipped.
class Keys {
 public:
  explicit Keys(std::vector<std::string_view> names)
      : names_(std::move(names)), seen_(names_.size()) {}
  bool take(JsonReader& json, std::string_view key) {
    const auto found = std::find(names_.begin(), names_.end(), key);
    if (found == names_.end()) {
      json.skip();
      return false;
    }
    auto seen = seen_[static_cast<std::size_t>(found - names_.begin())];
    if (seen) json.fail(concat({"key ", quoted(key), " appears twice"}));
    seen = true;
    return json.ok();
  }
  void complete(JsonReader& json) const {
    for (std::size_t i = 0; i < names_.size(); ++i) {
      if (!seen_[i]) json.fail(concat({"missing key ", quoted(names_[i])}));
    }
  }

 private:
  std::vector<std::string_view> names_;
  std::vector<bool> seen_;
};

/// Below 2^32.
uint32_t small(JsonReader& json) {
  const uint64_t n = json.whole();
  if (n > std::numeric_limits<uint32_t>::max()) json.fail("a number is too large");
  return static_cast<uint32_t>(n);
}

double number_or_nan(JsonReader& json) {
  return json.null() ? std::numeric_limits<double>::quiet_NaN() : json.number();
}

/// One of two words.
bool second_of(JsonReader& json, std::string_view first, std::string_view second) {
  const std::string word = json.text();
  if (word != first && word != second) json.fail(concat({quoted(word), " is not a choice"}));
  return word == second;
}

Range read_range(JsonReader& json) {
  Range r;
  Keys keys({"name", "start", "min", "max", "lowest", "highest", "sends", "growth", "whole",
             "most_bytes", "dense_bytes"});
  json.object([&](std::string_view key) {
    if (!keys.take(json, key)) return;
    if (key == "name") r.name = json.text();
    if (key == "start") r.start = json.number();
    if (key == "min") r.min = json.number();
    if (key == "max") r.max = json.number();
    if (key == "lowest") r.lowest = json.number();
    if (key == "highest") r.highest = json.number();
    if (key == "sends") r.sends = second_of(json, "more", "less") ? Sends::less : Sends::more;
    if (key == "growth") r.growth = second_of(json, "log", "step") ? Growth::step : Growth::log;
    if (key == "whole") r.whole = json.flag();
    if (key == "most_bytes") r.most_bytes = json.whole();
    if (key == "dense_bytes") r.dense_bytes = json.whole();
  });
  keys.complete(json);
  return r;
}

RecordedRule read_rule(JsonReader& json) {
  RecordedRule rule;
  Keys keys({"match", "spec", "control", "inherited", "parameters", "elements", "range"});
  json.object([&](std::string_view key) {
    if (!keys.take(json, key)) return;
    if (key == "match") rule.match = json.text();
    if (key == "spec") rule.spec = json.text();
    if (key == "control") rule.control = json.text();
    if (key == "inherited") rule.inherited = json.flag();
    if (key == "parameters") rule.parameters = json.whole();
    if (key == "elements") rule.elements = json.whole();
    if (key == "range" && !json.null()) rule.range = read_range(json);
  });
  keys.complete(json);
  return rule;
}

uint64_t read_word(JsonReader& json) {
  const std::string text = json.text();
  uint64_t word = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), word, 16);
  if (text.size() != 16 || status != std::errc{} || end != text.data() + text.size()) {
    json.fail("a word of state is not 16 hexadecimal digits");
  }
  return word;
}

RecordedRun read_run(JsonReader& json) {
  RecordedRun run;
  Keys keys({"format", "version", "laconic", "model", "world", "rules", "state"});
  json.object([&](std::string_view key) {
    if (!keys.take(json, key)) return;
    if (key == "format" && json.text() != kFormat) json.fail("not a laconic record");
    if (key == "version") {
      if (const uint64_t version = json.whole(); version != kRecordVersion) {
        json.fail(concat({"version ", std::to_string(version), " is unknown to this release"}));
      }
    }
    if (key == "laconic") run.laconic = json.text();
    if (key == "model") run.model = json.text();
    if (key == "world") run.world = small(json);
    if (key == "rules") {
      json.array([&] {
        if (run.rules.size() == kMaxClasses) return json.fail("there are more than 32 rules");
        run.rules.push_back(read_rule(json));
      });
    }
    if (key == "state") {
      json.array([&] {
        if (run.state.size() == kMaxState) return json.fail("the state is too long");
        run.state.push_back(read_word(json));
      });
    }
  });
  keys.complete(json);
  if (run.world == 0 || run.world > kMaxRanks) json.fail("the world must be 1 to 65536 ranks");
  if (run.rules.empty()) json.fail("it has no rules");
  return run;
}

Figures read_figures(JsonReader& json) {
  Figures f{};
  const std::array<double*, 5> places{&f.network_s, &f.encode_s, &f.decode_s, &f.step_s,
                                      &f.residual_ratio};
  if (json.null()) {
    f.network_s = std::numeric_limits<double>::quiet_NaN();
    return f;
  }
  std::size_t count = 0;
  json.array([&] {
    if (count == places.size()) return json.fail("a report has more than five numbers");
    *places[count++] = number_or_nan(json);
  });
  if (count != places.size()) json.fail("a report has fewer than five numbers");
  return f;
}

Reason read_reason(JsonReader& json) {
  const std::string name = json.text();
  for (const Reason reason : kReasons) {
    if (reason_name(reason) == name) return reason;
  }
  json.fail(concat({quoted(name), " is not a known reason"}));
  return Reason::held;
}

Decision read_decision(JsonReader& json, uint64_t step, std::size_t rules) {
  Decision d;
  d.step = step;
  Keys keys({"rule", "from", "to", "uncompressed", "reason", "slowdown", "network_s", "target_s",
             "parts"});
  json.object([&](std::string_view key) {
    if (!keys.take(json, key)) return;
    if (key == "rule") d.rule = small(json);
    if (key == "from") d.from = json.number();
    if (key == "to") d.to = json.number();
    if (key == "uncompressed") d.uncompressed = json.flag();
    if (key == "reason") d.reason = read_reason(json);
    if (key == "slowdown") d.slowdown = json.number();
    if (key == "network_s") d.network_s = json.number();
    if (key == "target_s") d.target_s = json.number();
    if (key == "parts") d.parts = small(json);
  });
  keys.complete(json);
  if (d.rule >= rules) json.fail("a decision refers to a rule that does not exist");
  if (d.parts > kMostParts) json.fail("a decision releases residuals over more than 64 steps");
  return d;
}

RecordedSetting read_setting(JsonReader& json) {
  RecordedSetting setting;
  Keys keys({"value", "uncompressed"});
  json.object([&](std::string_view key) {
    if (!keys.take(json, key)) return;
    if (key == "value") setting.value = json.number();
    if (key == "uncompressed") setting.uncompressed = json.flag();
  });
  keys.complete(json);
  return setting;
}

RecordedStep read_step(JsonReader& json, const RecordedRun& run) {
  RecordedStep s;
  Keys keys({"step", "version", "settings", "reports", "bytes", "rounds", "decision", "reason"});
  json.object([&](std::string_view key) {
    if (!keys.take(json, key)) return;
    if (key == "step") s.step = json.whole();
    if (key == "version") s.version = small(json);
    if (key == "bytes") s.bytes = json.whole();
    if (key == "rounds") s.rounds = small(json);
    if (key == "reason") (void)json.text();  // for people: made of the decisions
    if (key == "settings") {
      json.array([&] {
        if (s.settings.size() == run.rules.size())
          return json.fail("there are more settings than rules");
        s.settings.push_back(read_setting(json));
      });
    }
    if (key == "reports") {
      json.array([&] {
        if (s.reports.size() == run.world) return json.fail("there are more reports than ranks");
        s.reports.push_back(read_figures(json));
      });
    }
    if (key == "decision") {
      json.array([&] {
        if (s.decisions.size() == run.rules.size()) {
          return json.fail("there are more decisions than rules");
        }
        s.decisions.push_back(read_decision(json, 0, run.rules.size()));
      });
    }
  });
  keys.complete(json);
  for (Decision& d : s.decisions) d.step = s.step;
  if (json.ok() && s.settings.size() != run.rules.size()) {
    json.fail("there are fewer settings than rules");
  }
  return s;
}

/// Is it the first line of a run? Steps have no format, so their lines are parsed only once.
bool begins_run(std::string_view line) {
  if (line.find("\"format\"") == std::string_view::npos) return false;
  bool found = false;
  JsonReader json(line);
  json.object([&](std::string_view key) {
    if (key == "format") found = true;
    json.skip();
  });
  return found;
}

Result<void> read_line(std::string_view line, uint64_t number, Record& record) {
  if (line.size() > kMaxLine) return bad_line(number, "is longer than 4 MiB");
  JsonReader json(line);
  if (begins_run(line)) {
    RecordPart part{read_run(json), number, {}};
    json.end();
    if (json.ok()) record.parts.push_back(std::move(part));
  } else if (record.parts.empty()) {
    // Report errors in the line before an error in its position.
    json.skip();
    json.end();
    if (json.ok()) json.fail("the first line of a record must have a \"format\"");
  } else {
    RecordPart& part = record.parts.back();
    RecordedStep step = read_step(json, part.run);
    json.end();
    if (json.ok() && !part.steps.empty() && step.step <= part.steps.back().step) {
      json.fail(concat({"step ", std::to_string(step.step), " comes after step ",
                        std::to_string(part.steps.back().step)}));
    }
    if (json.ok()) part.steps.push_back(std::move(step));
  }
  if (!json.ok()) return bad_line(number, json.trouble());
  return {};
}
}  // namespace

std::string record_line(const RecordedRun& run) {
  JsonText json;
  json.open('{').field("format", kFormat).field("version", kRecordVersion);
  json.field("laconic", std::string_view(run.laconic)).field("model", std::string_view(run.model));
  json.field("world", run.world).key("rules").open('[');
  for (const RecordedRule& rule : run.rules) put_rule(json, rule);
  json.close(']').key("state").open('[');
  for (const uint64_t word : run.state) json.value(std::string_view(hex_digits(word)));
  json.close(']').close('}');
  return finished(json);
}

std::string record_line(const RecordedStep& step, const RecordedRun& run) {
  std::string line;
  put_line(step, run, line);
  return line;
}

std::size_t line_room(const RecordedRun& run) noexcept {
  constexpr std::size_t kStep = 512, kRank = 192, kRule = 1024;
  return kStep + kRank * run.world + kRule * run.rules.size();
}

void put_line(const RecordedStep& step, const RecordedRun& run, std::string& line) {
  JsonText json(std::move(line));
  json.open('{').field("step", step.step).field("version", step.version).key("settings").open('[');
  for (const RecordedSetting& setting : step.settings) {
    json.open('{').field("value", setting.value).field("uncompressed", setting.uncompressed);
    json.close('}');
  }
  json.close(']').key("reports").open('[');
  for (const Figures& f : step.reports) {
    json.open('[').value(f.network_s).value(f.encode_s).value(f.decode_s).value(f.step_s);
    json.value(f.residual_ratio).close(']');
  }
  json.close(']').field("bytes", step.bytes).field("rounds", step.rounds).key("decision").open('[');
  std::string reason;
  for (const Decision& d : step.decisions) {
    put_decision(json, d);
    if (d.rule >= run.rules.size()) continue;
    const RecordedRule& rule = run.rules[d.rule];
    reason += concat({reason.empty() ? "" : "; ",
                      decision_text(d, rule.spec, rule.range ? rule.range->name : "value")});
  }
  json.close(']').field("reason", std::string_view(reason)).close('}');
  line = json.take();
  line += '\n';
}

Error bad_line(uint64_t line, std::string_view what) {
  return {Errc::invalid_argument, concat({"line ", std::to_string(line), ": ", what}),
          "docs/format/RECORD.md describes the format; delete a truncated line"};
}

Result<Record> read_record(std::string_view text) {
  Record record;
  uint64_t number = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    ++number;
    if (auto read = read_line(line, number, record); !read) return std::move(read).error();
    if (end == text.size()) return bad_line(number, "it is truncated: no line feed at its end");
    text.remove_prefix(end + 1);
  }
  if (record.parts.empty()) return bad_line(1, "the record is empty");
  return record;
}

}  // namespace laconic::control
