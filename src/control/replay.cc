// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "control/replay.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "base/concat.h"
#include "base/field_text.h"
#include "base/quoted.h"

namespace laconic::control {
namespace {

/// May the rules of `mine` have what this step holds?
Result<void> check_values(const RecordedStep& step, uint64_t line, const RecordedRun& mine) {
  const auto check = [&](std::size_t rule, double value) -> Result<void> {
    const auto& range = mine.rules[rule].range;
    const bool fits = range ? value >= range->lowest && value <= range->highest &&
                                  (!range->whole || value == std::floor(value))
                            : value == 0;
    if (fits) return {};
    return bad_line(line, concat({quoted(mine.rules[rule].spec), " does not accept the value ",
                                  number_text(value)}));
  };
  for (std::size_t i = 0; i < step.settings.size(); ++i) {
    const double value = step.settings[i].value;
    if (value == 0) continue;  // nothing could be moved
    if (auto fine = check(i, value); !fine) return fine;
  }
  for (const Decision& d : step.decisions) {
    if (auto fine = check(d.rule, d.to); !fine) return fine;
    const auto& range = mine.rules[d.rule].range;
    if (!d.uncompressed || (range && range->dense_bytes != 0)) continue;
    return bad_line(line,
                    concat({quoted(mine.rules[d.rule].spec), " cannot go uncompressed here"}));
  }
  return {};
}

std::vector<double> first_values(const RecordPart& part) {
  std::vector<double> values;
  if (part.steps.empty()) return values;
  for (const RecordedSetting& setting : part.steps.front().settings) {
    values.push_back(setting.value);
  }
  return values;
}

std::vector<Controlled> controlled(const RecordedRun& run, std::string_view control) {
  std::vector<Controlled> rules;
  for (const RecordedRule& rule : run.rules) {
    const bool other = !control.empty();
    rules.push_back({other ? std::string(control) : rule.control, other || rule.inherited,
                     rule.spec, rule.range});
    const auto parsed = parse_control(rules.back().control);
    if (!parsed || parsed->file.empty() || !rule.range) continue;
    // The replayed record is not here, and went wherever it went.
    rules.back().range->min = rule.range->lowest;
    rules.back().range->max = rule.range->highest;
  }
  return rules;
}

std::string in_words(const Decision* d) {
  if (d == nullptr) return "none";
  const std::string parts = concat({" uncompressed in ", std::to_string(d->parts), " parts"});
  return concat({number_text(d->from), " -> ", number_text(d->to), d->uncompressed ? parts : ""});
}

bool same(const Decision& a, const Decision& b) {
  return a.from == b.from && a.to == b.to && a.uncompressed == b.uncompressed && a.parts == b.parts;
}

const Decision* of_rule(std::span<const Decision> decisions, uint32_t rule) {
  const auto found = std::find_if(decisions.begin(), decisions.end(),
                                  [rule](const Decision& d) { return d.rule == rule; });
  return found == decisions.end() ? nullptr : &*found;
}

std::optional<Recomputed::Difference> difference(const RecordedStep& step, uint64_t line,
                                                 std::span<const Decision> now, std::size_t rules) {
  for (uint32_t rule = 0; rule < rules; ++rule) {
    const Decision* was = of_rule(step.decisions, rule);
    const Decision* is = of_rule(now, rule);
    if ((was == nullptr && is == nullptr) || (was != nullptr && is != nullptr && same(*was, *is))) {
      continue;
    }
    return Recomputed::Difference{
        line, step.step, rule, concat({"recorded ", in_words(was), ", recomputed ", in_words(is)})};
  }
  return {};
}

Result<void> recompute_part(const RecordPart& part, std::string_view control, Recomputed& done) {
  std::vector<Decision> recorded;
  for (const RecordedStep& step : part.steps) {
    recorded.insert(recorded.end(), step.decisions.begin(), step.decisions.end());
  }
  auto rules = controlled(part.run, control);
  const auto first = first_values(part);
  for (std::size_t i = 0; i < first.size(); ++i) rules[i].first = first[i];
  auto controller = Controller::create(std::move(rules), std::move(recorded));
  if (!controller) return std::move(controller).error();
  if (control.empty() && !part.run.state.empty()) {
    if (auto loaded = controller->load(part.run.state); !loaded) {
      return bad_line(part.line, loaded.error().message);
    }
  }
  for (std::size_t i = 0; i < part.steps.size(); ++i) {
    const RecordedStep& step = part.steps[i];
    const auto now = controller->observe(observe(step.step, step.reports, step.bytes));
    done.decisions.insert(done.decisions.end(), now.begin(), now.end());
    if (control.empty() && !done.difference) {
      done.difference = difference(step, part.line + 1 + i, now, part.run.rules.size());
    }
  }
  return {};
}
}  // namespace

Result<Replayed> decisions_for(const Record& record, const RecordedRun& mine) {
  Replayed replayed;
  std::vector<Decision>& decisions = replayed.decisions;
  bool found = false;
  for (const RecordPart& part : record.parts) {
    const RecordedRun& run = part.run;
    if (run.model != mine.model) return bad_line(part.line, "the record is from another model");
    if (run.world != mine.world) {
      return bad_line(part.line,
                      concat({"the record is from a run with ", std::to_string(run.world),
                              " ranks, not ", std::to_string(mine.world)}));
    }
    const bool rules =
        std::equal(run.rules.begin(), run.rules.end(), mine.rules.begin(), mine.rules.end(),
                   [](const RecordedRule& a, const RecordedRule& b) {
                     return a.match == b.match && a.spec == b.spec &&
                            a.parameters == b.parameters && a.elements == b.elements;
                   });
    found = found || rules;
    if (rules) replayed.rules = controlled(run, {});
    if (!rules || part.steps.empty()) continue;
    const uint64_t first = part.steps.front().step;
    decisions.erase(std::find_if(decisions.begin(), decisions.end(),
                                 [first](const Decision& d) { return d.step >= first; }),
                    decisions.end());
    for (std::size_t i = 0; i < part.steps.size(); ++i) {
      const RecordedStep& step = part.steps[i];
      if (auto fine = check_values(step, part.line + 1 + i, mine); !fine) {
        return std::move(fine).error();
      }
      decisions.insert(decisions.end(), step.decisions.begin(), step.decisions.end());
    }
    if (replayed.first.empty()) replayed.first = first_values(part);
  }
  if (!found)
    return bad_line(record.parts.front().line,
                    "the record is from a run with other rules or specs");
  for (std::size_t i = 0; i < replayed.first.size(); ++i)
    replayed.rules[i].first = replayed.first[i];
  return replayed;
}

Result<Recomputed> recompute(const Record& record, std::string_view control) {
  Recomputed done;
  for (const RecordPart& part : record.parts) {
    if (auto part_done = recompute_part(part, control, done); !part_done) {
      return std::move(part_done).error();
    }
    done.ends.push_back(done.decisions.size());
  }
  return done;
}

}  // namespace laconic::control
