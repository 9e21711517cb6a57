// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// laconic replay: a run's decisions again, from the reports in its record.
#include "control/replay.h"

#include <fmt/format.h>

#include <memory>

#include "command.h"
#include "files.h"
#include "output.h"

namespace laconic::tools {
namespace {

using control::Decision;
using control::Recomputed;
using control::Record;

struct Options {
  std::string file;
  std::string control;
  bool json = false;
};

/// With the number of its part: what `rule` counts is the rules of that one.
Json decision_json(const Decision& d, std::size_t part) {
  return {{"part", part},
          {"step", d.step},
          {"rule", d.rule},
          {"from", d.from},
          {"to", d.to},
          {"uncompressed", d.uncompressed},
          {"reason", control::reason_name(d.reason)}};
}

/// Calls `visit(part, decision)` for each.
template <class F>
void for_decisions(const Recomputed& done, const F& visit) {
  std::size_t i = 0;
  for (std::size_t part = 0; part < done.ends.size(); ++part) {
    for (; i < done.ends[part]; ++i) visit(part, done.decisions[i]);
  }
}

void print_answer_json(const Options& options, const Recomputed& done) {
  Json answer;
  if (options.control.empty()) {
    answer["equal"] = !done.difference;
    answer["first_difference"] = nullptr;
    if (done.difference) {
      answer["first_difference"] = {{"line", done.difference->line},
                                    {"step", done.difference->step},
                                    {"rule", done.difference->rule},
                                    {"what", done.difference->what}};
    }
  }
  answer["decisions"] = Json::array();
  for_decisions(done, [&](std::size_t part, const Decision& d) {
    answer["decisions"].push_back(decision_json(d, part));
  });
  print_json(answer);
}

void print_answer(const Options& options, const Record& record, const Recomputed& done) {
  for_decisions(done, [&](std::size_t part, const Decision& d) {
    const auto& rule = record.parts[part].run.rules[d.rule];
    fmt::print("step {}: {}\n", d.step,
               control::decision_text(d, rule.spec, rule.range ? rule.range->name : "value"));
  });
  uint64_t steps = 0;
  for (const control::RecordPart& part : record.parts) steps += part.steps.size();
  if (!options.control.empty()) {
    fmt::print("{} steps, {} decisions of {} on the reports of this run\n", steps,
               done.decisions.size(), options.control);
  } else if (done.difference) {
    fmt::print("line {}, step {}, rule {}: {}\n", done.difference->line, done.difference->step,
               done.difference->rule, done.difference->what);
  } else {
    fmt::print("{} steps, {} decisions: equal\n", steps, done.decisions.size());
  }
}

int replay(const Options& options) {
  const auto bytes = read_file(options.file);
  if (!bytes) return fail(bytes.error(), options.json, kUsage);
  const std::string_view text(reinterpret_cast<const char*>(bytes->data()), bytes->size());
  const auto record = control::read_record(text);
  if (!record) return fail(record.error(), options.json, kBadAnswer);
  if (!options.control.empty()) {
    const auto parsed = control::parse_control(options.control);
    if (!parsed) return fail(parsed.error(), options.json, kUsage);
  }
  const auto done = control::recompute(*record, options.control);
  if (!done) return fail(done.error(), options.json, kBadAnswer);
  if (options.json) {
    print_answer_json(options, *done);
  } else {
    print_answer(options, *record, *done);
  }
  return done->difference ? kBadAnswer : kFine;
}

}  // namespace

Run add_replay(Program& program) {
  const Command command =
      program.add_command("replay", "recomputes the decisions of a recorded run from its reports");
  const auto options = std::make_shared<Options>();
  command.add_option("record", options->file, "the file that record= wrote").required();
  command.add_option("--control", options->control,
                     "show what this control would have decided on the same reports");
  command.add_flag("--json", options->json, "machine-readable");
  return [options] { return replay(*options); };
}

}  // namespace laconic::tools
