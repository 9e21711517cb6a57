// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "control/record.h"

#include <gtest/gtest.h>

#include <limits>

#include "control/replay.h"
#include "support/control_loop.h"

namespace laconic::control {
namespace {

struct Recorded {
  RecordedRun run;
  std::vector<RecordedStep> steps;

  [[nodiscard]] std::string text() const {
    std::string all = record_line(run);
    for (const RecordedStep& step : steps) all += record_line(step, run);
    return all;
  }
};

/// A record that a session writes, from a closed loop of two rules.
Recorded recorded(const std::string& control = "dc2:deadline_ms=30", uint64_t steps = 120) {
  test::Loop loop;
  Recorded made;
  made.run = {"0.0.0", "00000000000000ab", 2, {}, {}};
  made.run.rules = {{"", "fp16", control, true, 2, 2000, {}},
                    {"*embed\"*", "topk:ratio=0.01", control, false, 1, 100000, loop.range()}};
  auto controller = Controller::create(
      {{control, true, "fp16", {}}, {control, false, "topk:ratio=0.01", loop.range()}});
  std::mt19937_64 random(3);
  for (uint64_t step = 0; step < steps; ++step) {
    RecordedStep now;
    now.step = step;
    now.version = static_cast<uint32_t>(step / 7);
    now.settings = {{0, false}, {controller->value(1), controller->uncompressed(1)}};
    const double time = 0.02 + 0.05 * static_cast<double>(random() % 1000) / 1000;
    if (step % 11 != 3)
      now.reports = {{time, 0.001, 1.0 / 3, 0.1 + time, 2}, {2 * time, 0, 0, 1, 1e-9}};
    if (step % 17 == 5) now.reports[0].network_s = std::numeric_limits<double>::quiet_NaN();
    now.bytes = 100000 + random() % 1000;
    now.rounds = 3;
    const auto decisions = controller->observe(observe(step, now.reports, now.bytes));
    now.decisions.assign(decisions.begin(), decisions.end());
    made.steps.push_back(now);
  }
  return made;
}

std::string trouble(const std::string& text) {
  const auto record = read_record(text);
  return record ? "" : record.error().message;
}

std::string replaced(std::string text, const std::string& what, const std::string& with) {
  const auto at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return text.replace(at, what.size(), with);
}

TEST(Record, WrittenRecordReadsBack) {
  const Recorded made = recorded();
  const std::string text = made.text();
  const auto record = read_record(text);
  ASSERT_TRUE(record) << record.error().message;
  ASSERT_EQ(record->parts.size(), 1U);
  EXPECT_EQ(record->parts[0].run, made.run);
  ASSERT_EQ(record->parts[0].steps.size(), made.steps.size());
  std::string again = record_line(record->parts[0].run);
  for (std::size_t i = 0; i < made.steps.size(); ++i) {
    EXPECT_EQ(record->parts[0].steps[i].decisions, made.steps[i].decisions);
    again += record_line(record->parts[0].steps[i], record->parts[0].run);
  }
  EXPECT_EQ(again, text);
}

TEST(Record, RecordedReportsGiveRecordedDecisions) {
  for (const std::string control : {"dc2:deadline_ms=30", "dc2", "aimd", "bdp"}) {
    const auto record = read_record(recorded(control).text());
    ASSERT_TRUE(record) << record.error().message;
    const auto done = recompute(*record);
    ASSERT_TRUE(done) << done.error().message;
    EXPECT_FALSE(done->difference) << done->difference->what;
    EXPECT_GT(done->decisions.size(), 2U) << control;
  }
}

TEST(Record, FirstDifferenceIsFound) {
  Recorded made = recorded();
  std::size_t first = 0;
  while (made.steps[first].decisions.empty()) ++first;
  Decision& d = made.steps[first].decisions[0];
  const double right = d.to;
  d.to = 0.0099;
  auto done = recompute(*read_record(made.text()));
  ASSERT_TRUE(done->difference);
  EXPECT_EQ(done->difference->step, first);
  EXPECT_EQ(done->difference->line, first + 2);
  EXPECT_EQ(done->difference->rule, 1U);
  EXPECT_EQ(done->difference->what.substr(0, 26), "recorded 0.01 -> 0.0099, r");
  d.to = right;
  made.steps[first].decisions.clear();
  done = recompute(*read_record(made.text()));
  ASSERT_TRUE(done->difference);
  EXPECT_EQ(done->difference->what.substr(0, 14), "recorded none,");
}

TEST(Record, AnotherPolicySeesSameReports) {
  const auto record = read_record(recorded().text());
  const auto other = recompute(*record, "schedule:0=0.01,50=0.02");
  ASSERT_TRUE(other) << other.error().message;
  EXPECT_FALSE(other->difference);
  ASSERT_EQ(other->decisions.size(), 1U);
  EXPECT_EQ(other->decisions[0].step, 48U);
  EXPECT_EQ(recompute(*record, "dc3").error().message, "unknown control 'dc3'");
}

TEST(Record, ContinuedRunBeginsWithItsState) {
  const Recorded whole = recorded("dc2:deadline_ms=30", 120);
  Recorded first = whole;
  first.steps.resize(60);
  // From a checkpoint after step 49: steps 50 to 59 are there twice.
  auto controller = Controller::create(
      {{"dc2:deadline_ms=30", true, "fp16", {}},
       {"dc2:deadline_ms=30", false, "topk:ratio=0.01", whole.run.rules[1].range}});
  for (std::size_t i = 0; i < 50; ++i) {
    controller->observe(observe(i, whole.steps[i].reports, whole.steps[i].bytes));
  }
  Recorded second = whole;
  second.steps.erase(second.steps.begin(), second.steps.begin() + 50);
  second.run.state.resize(controller->state_words());
  controller->save(second.run.state);
  const auto record = read_record(first.text() + second.text());
  ASSERT_TRUE(record) << record.error().message;
  ASSERT_EQ(record->parts.size(), 2U);
  EXPECT_EQ(record->parts[1].line, 62U);
  const auto done = recompute(*record);
  ASSERT_TRUE(done) << done.error().message;
  EXPECT_FALSE(done->difference) << done->difference->what;
  ASSERT_EQ(done->ends.size(), 2U);
  EXPECT_EQ(done->ends[1], done->decisions.size());
  std::size_t before = 0;
  for (const RecordedStep& step : first.steps) before += step.decisions.size();
  EXPECT_EQ(done->ends[0], before);
  std::vector<Decision> expected;
  for (const RecordedStep& step : whole.steps) {
    expected.insert(expected.end(), step.decisions.begin(), step.decisions.end());
  }
  EXPECT_EQ(decisions_for(*record, whole.run)->decisions, expected);
}

TEST(Record, RecordOfAnotherModelIsRefused) {
  const Recorded made = recorded();
  const auto record = read_record(made.text());
  EXPECT_TRUE(decisions_for(*record, made.run).ok());
  RecordedRun other = made.run;
  other.rules[1].control = "replay:run.jsonl";
  EXPECT_TRUE(decisions_for(*record, other).ok());
  other.model = "00000000000000ac";
  EXPECT_EQ(decisions_for(*record, other).error().message,
            "line 1: the record is from another model");
  other = made.run;
  other.world = 3;
  EXPECT_EQ(decisions_for(*record, other).error().message,
            "line 1: the record is from a run with 2 ranks, not 3");
  other = made.run;
  other.rules[1].spec = "topk:ratio=0.02";
  EXPECT_EQ(decisions_for(*record, other).error().message,
            "line 1: the record is from a run with other rules or specs");
}

/// The settings were replaced while it ran: each has its own part.
TEST(Record, ReplacedSettingsAreRecorded) {
  Recorded first = recorded("dc2:deadline_ms=30", 40);
  Recorded second = recorded("dc2:deadline_ms=30", 90);
  second.run.rules[1].spec = "topk:ratio=0.02";
  second.steps.erase(second.steps.begin(), second.steps.begin() + 41);
  const auto record = read_record(first.text() + second.text());
  ASSERT_TRUE(record) << record.error().message;
  for (const Recorded* part : {&first, &second}) {
    std::vector<Decision> expected;
    for (const RecordedStep& step : part->steps) {
      expected.insert(expected.end(), step.decisions.begin(), step.decisions.end());
    }
    const auto replayed = decisions_for(*record, part->run);
    ASSERT_TRUE(replayed) << replayed.error().message;
    EXPECT_EQ(replayed->decisions, expected);
    EXPECT_EQ(replayed->first[1], part->steps[0].settings[1].value);
  }
  RecordedRun other = first.run;
  other.rules[1].spec = "topk:ratio=0.03";
  EXPECT_EQ(decisions_for(*record, other).error().message,
            "line 1: the record is from a run with other rules or specs");
}

TEST(Record, DamagedRecordIsRefusedWithItsLine) {
  const std::string text = recorded("dc2:deadline_ms=30", 20).text();
  EXPECT_EQ(trouble(""), "line 1: the record is empty");
  EXPECT_EQ(trouble(text.substr(0, text.size() - 1)),
            "line 21: it is truncated: no line feed at its end");
  EXPECT_EQ(trouble(text.substr(0, text.size() - 9)).substr(0, 9), "line 21: ");
  EXPECT_EQ(trouble(text.substr(text.find('\n') + 1)),
            "line 1: the first line of a record must have a \"format\"");
  EXPECT_EQ(trouble("no\n"), "line 1: expected a value");
  const std::vector<std::vector<std::string>> cases{
      {"\"version\": 1", "\"version\": 2", "line 1: version 2 is unknown to this release"},
      {"laconic record", "a record", "line 1: not a laconic record"},
      {"\"world\": 2", "\"world\": 0", "line 1: the world must be 1 to 65536 ranks"},
      {"\"world\": 2, ", "", "line 1: missing key 'world'"},
      {"\"world\": 2", "\"world\": 2, \"world\": 2", "line 1: key 'world' appears twice"},
      {"\"more\"", "\"most\"", "line 1: 'most' is not a choice"},
      {"\"state\": []", "\"state\": [\"12\"]",
       "line 1: a word of state is not 16 hexadecimal digits"},
      {"\"step\": 5,", "\"step\": 3,", "line 7: step 3 comes after step 4"},
      {"\"step\": 5,", "\"step\": -5,", "line 7: expected a whole number"},
      {"\"rule\": 1", "\"rule\": 2", "line 18: a decision refers to a rule that does not exist"},
      {"\"reports\": [[", "\"reports\": [[1, 1, 1, 1, 1], [1, 1, 1, 1, 1], [",
       "line 2: there are more reports than ranks"},
      {"\"reports\": [[", "\"reports\": [[1, ", "line 2: a report has more than five numbers"},
      {"\"reports\": [[", "\"reports\": [[1, 2], [",
       "line 2: a report has fewer than five numbers"},
      {"\"settings\": [", "\"settings\": [{\"value\": 0, \"uncompressed\": false}, ",
       "line 2: there are more settings than rules"},
  };
  for (const auto& c : cases) EXPECT_EQ(trouble(replaced(text, c[0], c[1])), c[2]) << c[1];
  EXPECT_EQ(trouble(replaced(text, "\"rounds\"", "\"later\": [1, {\"a\": null}], \"rounds\"")), "");
  // Numbers that no session writes are refused where they are used.
  const auto odd = read_record(replaced(text, "\"min\": ", "\"min\": -"));
  ASSERT_TRUE(odd) << odd.error().message;
  EXPECT_EQ(recompute(*odd).error().message,
            "the range of 'ratio' of 'topk:ratio=0.01' is invalid");
}

TEST(Record, CorruptBytesDoNoHarm) {
  const std::string text = recorded("dc2:deadline_ms=30", 12).text();
  std::mt19937_64 random(5);
  std::size_t accepted = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string bad = text;
    for (auto n = random() % 3 + 1; n > 0; --n) {
      const bool digit = random() % 4 != 0;  // most bytes of a record are
      bad[random() % bad.size()] =
          digit ? "0123456789"[random() % 10] : static_cast<char>(random() % 256);
    }
    const auto record = read_record(bad);
    if (!record) {
      ASSERT_EQ(record.error().message.substr(0, 5), "line ");
      continue;
    }
    ++accepted;
    (void)recompute(*record);
    (void)recompute(*record, "dc2:mean=0.01");
  }
  EXPECT_GT(accepted, 100U);
}

}  // namespace
}  // namespace laconic::control
