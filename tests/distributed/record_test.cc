// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Records of a session under simulated clocks: a replay has the same bits, whole or killed and
// resumed; errors of the file leave training unaffected.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <sstream>

#include "control/replay.h"
#include "session/describe.h"
#include "support/clocked.h"
#include "support/subset.h"

namespace laconic::test {
namespace {

constexpr uint32_t kWorld = 3;
const std::vector<Parameter> kModel{
    {"a.weight", 120, 40}, {"b.weight", 61, 67}, {"c.weight", 90, 33}, {"bias", 9, 1}};

std::string new_file(const std::string& name) {
  std::string file = testing::TempDir() + "laconic_record_" + name;
  std::remove(file.c_str());
  return file;
}
std::string text_of(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}
void write_file(const std::string& file, const std::string& text) {
  std::ofstream(file, std::ios::binary) << text;
}

double changing(uint64_t step) { return step / 15 % 2 == 0 ? 1e6 : 1e5; }
double constant(uint64_t /*step*/) { return 3e6; }
/// A clock that is missing in some steps.
double with_gaps(uint64_t step) {
  return step % 7 == 3 ? std::numeric_limits<double>::quiet_NaN() : changing(step);
}

test::Setup setup(const std::string& spec, StrategyKind strategy, const std::string& control,
                  const std::string& record = "") {
  test::Setup made{spec, kWorld, kModel, strategy, 16};
  made.control = control;
  made.record = record;
  return made;
}

Result<std::unique_ptr<Session>> session_with(const std::string& control, const std::string& record,
                                              const std::string& spec = "topk:ratio=0.1",
                                              uint32_t rank = 0) {
  Options o;
  o.rank = rank;
  o.world = kWorld;
  o.small_elements = 16;
  o.strategy = StrategyKind::gather_all;
  return Session::create(spec, kModel, o, {}, control, record);
}
std::string refused(const std::string& control, const std::string& record = "",
                    const std::string& spec = "topk:ratio=0.1") {
  const auto made = session_with(control, record, spec);
  return made ? "" : made.error().message;
}

void expect_same(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b,
                 const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i)
    ASSERT_TRUE(same_bits(a[i], b[i])) << what << ": step " << i;
}

/// `laconic replay` on it.
uint64_t expect_equal(const std::string& file) {
  const auto record = control::read_record(text_of(file));
  EXPECT_TRUE(record) << record.error().message;
  if (!record) return 0;
  const auto done = control::recompute(*record);
  EXPECT_TRUE(done) << done.error().message;
  if (!done) return 0;
  EXPECT_FALSE(done->difference) << "line " << done->difference->line << ": "
                                 << done->difference->what;
  return done->decisions.size();
}

/// Every step names what was decided two steps before it, and counts the changes.
void expect_settings(const control::RecordPart& part) {
  double value = part.steps.at(0).settings.at(0).value;
  uint32_t version = 0;
  for (const auto& step : part.steps) {
    for (const auto& earlier : part.steps) {
      if (earlier.decisions.empty() || earlier.step + control::kDelay != step.step) continue;
      value = earlier.decisions[0].to;
      ++version;
    }
    EXPECT_EQ(step.settings.at(0).value, value) << "step " << step.step;
    EXPECT_EQ(step.version, version) << "step " << step.step;
  }
}

using Case = std::tuple<const char*, StrategyKind, const char*>;
class Replayed : public testing::TestWithParam<Case> {
 protected:
  static constexpr uint64_t kSteps = 48;
  static test::Setup with(const std::string& control, const std::string& record = "") {
    return setup(std::get<0>(GetParam()), std::get<1>(GetParam()), control, record);
  }
  static std::string law() { return std::get<2>(GetParam()); }
  static std::string file() {
    return new_file(std::string(collective::strategy_name(std::get<1>(GetParam()))) +
                    std::to_string(law().size()) + ".jsonl");
  }
};

TEST_P(Replayed, ReplayHasSameBits) {
  const std::string record = file(), again = record + ".again";
  std::remove(again.c_str());
  Clocked first(with(law(), record), changing);
  const auto means = first.steps(0, kSteps);
  const uint64_t changes = first.session(0).stats().setting_changes;
  EXPECT_GT(changes, 2U);
  EXPECT_EQ(expect_equal(record), changes);
  expect_settings(control::read_record(text_of(record))->parts[0]);
  Clocked replay(with("replay:" + record, again), constant);
  expect_same(means, replay.steps(0, kSteps), "replayed");
  EXPECT_EQ(replay.session(0).stats().setting_changes, changes);
  EXPECT_EQ(expect_equal(again), changes);  // of the replay's own record
  // A record of a replay is one to replay.
  Clocked third(with("replay:" + again), constant);
  expect_same(means, third.steps(0, kSteps), "replayed again");
}

TEST_P(Replayed, KilledReplayResumes) {
  const std::string record = file();
  Clocked first(with(law(), record), changing);
  const auto means = first.steps(0, kSteps);
  const std::vector<uint64_t> stops{9, 22, 1, 20, 21, 23};
  for (const uint64_t stop : std::span(stops).first(kSanitized ? 2 : stops.size())) {
    const std::string again = record + ".again";
    std::remove(again.c_str());
    std::optional<Clocked> killed;
    killed.emplace(with("replay:" + record, again), constant);
    killed->steps(0, stop);
    Clocked saved(with("replay:" + record), constant);
    saved.load(*killed);
    killed->steps(stop, stop + 3);  // its record continues after the saved state
    killed.reset();
    const std::string elsewhere = record + ".copy";
    write_file(elsewhere, text_of(record));
    Clocked resumed(with("replay:" + elsewhere, again), constant);
    resumed.load(saved);
    const auto rest = resumed.steps(stop, kSteps);
    expect_same({means.begin() + static_cast<std::ptrdiff_t>(stop), means.end()}, rest,
                "stopped before " + std::to_string(stop));
    expect_equal(again);
  }
}

/// From the middle of a recorded run: with the state that the run itself saved, under its law.
TEST_P(Replayed, ReplayContinuesFromSavedState) {
  const std::string record = file();
  std::vector<std::vector<float>> means;
  std::map<uint64_t, std::unique_ptr<Clocked>> saved;
  {
    Clocked first(with(law(), record), changing);
    for (uint64_t step = 0; step < kSteps; ++step) {
      if (step % (kSanitized ? 20 : 4) == 2) {
        saved[step] = std::make_unique<Clocked>(with(law()), changing);
        saved[step]->load(first);
      }
      means.push_back(first.steps(step, step + 1)[0]);
    }
  }
  for (const auto& [stop, state] : saved) {
    const std::string again = record + ".again";
    std::remove(again.c_str());
    Clocked resumed(with("replay:" + record, again), constant);
    resumed.load(*state);
    expect_same({means.begin() + static_cast<std::ptrdiff_t>(stop), means.end()},
                resumed.steps(stop, kSteps), "from " + std::to_string(stop));
    expect_equal(again);
  }
}

/// A recorded run that was killed and resumed: its record has two parts.
TEST_P(Replayed, ResumedRunIsReplayed) {
  const std::string record = file();
  std::vector<std::vector<float>> means;
  {
    std::optional<Clocked> killed;
    killed.emplace(with(law(), record), changing);
    means = killed->steps(0, 21);
    Clocked saved(with(law()), changing);
    saved.load(*killed);
    killed->steps(21, 34);
    killed.reset();
    Clocked resumed(with(law(), record), changing);
    resumed.load(saved);
    const auto rest = resumed.steps(21, kSteps);
    means.insert(means.end(), rest.begin(), rest.end());
  }
  EXPECT_EQ(control::read_record(text_of(record))->parts.size(), 2U);
  expect_equal(record);
  Clocked replay(with("replay:" + record), constant);
  expect_same(means, replay.steps(0, kSteps), "replayed");
}

INSTANTIATE_TEST_SUITE_P(
    All, Replayed,
    testing::Values(Case{"topk:ratio=0.05", StrategyKind::gather_all, "dc2:deadline_ms=20"},
                    Case{"topk:ratio=0.05", StrategyKind::two_shot, "dc2:deadline_ms=20"},
                    Case{"randomk:ratio=0.05", StrategyKind::native_sum, "dc2:deadline_ms=20"},
                    Case{"topk:ratio=0.05", StrategyKind::gather_all,
                         "schedule:0=0.03,1=0.2,9=0.6,22=0.03"}),
    [](const auto& of) {
      return std::string(collective::strategy_name(std::get<1>(of.param))) + "_" +
             (std::get<2>(of.param)[0] == 'd' ? "dc2" : "schedule");
    });

/// With a rule that has a policy of its own.
test::Setup with(const std::string& control, const std::string& of_rule,
                 const std::string& record) {
  test::Setup made = setup("topk:ratio=0.05", StrategyKind::gather_all, control, record);
  made.rules = {rule("a.*", "3lc")};
  made.rules[0].control = of_rule;
  return made;
}

/// Rules with laws and records of their own.
TEST(Records, RulesAreRecordedSeparately) {
  const std::string record = new_file("rules.jsonl");
  Clocked first(with("dc2:deadline_ms=20", "schedule:0=1,7=1.5", record), changing);
  const auto means = first.steps(0, 40);
  EXPECT_GT(expect_equal(record), 2U);
  Clocked replay(with("replay:" + record, "", ""), constant);
  expect_same(means, replay.steps(0, 40), "both");
  Clocked half(with("replay:" + record, "schedule:0=1,7=1.5", ""), constant);
  expect_same(means, half.steps(0, 40), "the call's alone");
}

/// Only the record of the same run continues a saved run.
TEST(Records, StateOfAnotherRunIsRefused) {
  const std::string record = new_file("state.jsonl"), other = new_file("other_state.jsonl");
  const auto with = [](const std::string& control, const std::string& file = "") {
    return setup("topk:ratio=0.1", StrategyKind::gather_all, control, file);
  };
  Clocked first(with("dc2:deadline_ms=20", record), changing);
  first.steps(0, 30);
  Clocked second(with("dc2:deadline_ms=20", other), constant);
  second.steps(0, 30);
  const auto why = [&](const std::string& control, Clocked& state) {
    Clocked resumed(with(control), constant);
    resumed.load(state);
    const auto begun = resumed.session(0).begin_step(30);
    return begun ? std::string() : begun.error().message;
  };
  EXPECT_EQ(why("replay:" + record, first), "");
  EXPECT_EQ(why("replay:" + other, second), "");
  EXPECT_EQ(why("replay:" + record, second), "the state was not saved in the recorded run");
  Clocked replay(with("replay:" + record), changing);
  replay.steps(0, 30);
  EXPECT_EQ(why("replay:" + record, replay), "");
  EXPECT_EQ(why("dc2:deadline_ms=20", replay),
            "the control state was saved under other rules or controls");
}

/// Rules that are not replayed go on as they were.
TEST(Records, ReplayOfOneRuleContinuesFromSavedState) {
  const std::string record = new_file("half.jsonl"), law = "schedule:0=1,7=1.5,25=1.1";
  Clocked first(with("dc2:deadline_ms=20", law, record), changing);
  first.steps(0, 20);
  Clocked saved(with("dc2:deadline_ms=20", law, ""), changing);
  saved.load(first);
  const auto means = first.steps(20, 40);
  Clocked half(with("replay:" + record, law, ""), constant);
  half.load(saved);
  expect_same(means, half.steps(20, 40), "the call's alone");
  Clocked whole(with("replay:" + record, "", ""), constant);
  whole.load(saved);
  expect_same(means, whole.steps(20, 40), "both");
  Clocked other(with("replay:" + record, "schedule:0=1,7=1.6", ""), constant);
  other.load(saved);
  EXPECT_FALSE(other.session(0).begin_step(20));
}

/// Decisions of another policy on a run that no policy has changed.
TEST(Records, RunWithoutPolicyRecordsReports) {
  const std::string record = new_file("fixed.jsonl");
  Clocked plain(setup("topk:ratio=0.1", StrategyKind::gather_all, ""), changing);
  Clocked fixed(setup("topk:ratio=0.1", StrategyKind::gather_all, "", record), changing);
  expect_same(plain.steps(0, 40), fixed.steps(0, 40), "recorded");
  ASSERT_EQ(plain.session(0).active().store.entries().size(),
            fixed.session(0).active().store.entries().size());
  const auto read = control::read_record(text_of(record));
  ASSERT_TRUE(read) << read.error().message;
  const auto& part = read->parts.at(0);
  ASSERT_EQ(part.steps.size(), 39U);  // the last one has not ended
  EXPECT_EQ(part.run.world, kWorld);
  EXPECT_EQ(part.run.rules.at(0).parameters, kModel.size());
  for (const auto& step : part.steps) {
    EXPECT_EQ(step.version, 0U);
    EXPECT_EQ(step.reports.size(), step.step == 0 ? 0 : kWorld) << "step " << step.step;
    EXPECT_GT(step.bytes, 0U);
    EXPECT_EQ(step.rounds > 0, step.step > 0);
    for (const auto& r : step.reports) EXPECT_GT(r.network_s, 0.0);
  }
  EXPECT_EQ(expect_equal(record), 0U);
  EXPECT_GT(control::recompute(*read, "dc2:deadline_ms=20")->decisions.size(), 2U);
  EXPECT_EQ(fixed.session(1).recorder(), nullptr);
}

/// A missing value is null, and policies hold as before.
TEST(Records, MissingReportsAreRecorded) {
  const std::string record = new_file("gaps.jsonl");
  Clocked first(setup("topk:ratio=0.05", StrategyKind::two_shot, "dc2:deadline_ms=20", record),
                with_gaps);
  const auto means = first.steps(0, 48);
  EXPECT_GE(first.session(0).stats().held_steps, 6U);
  EXPECT_NE(text_of(record).find("[[null, "), std::string::npos);
  EXPECT_EQ(expect_equal(record), first.session(0).stats().setting_changes);
  Clocked replay(setup("topk:ratio=0.05", StrategyKind::two_shot, "replay:" + record), constant);
  expect_same(means, replay.steps(0, 48), "replayed");
}

/// In a step that failed no report was received.
TEST(Records, FailedStepsAreRecorded) {
  const std::string record = new_file("failed.jsonl");
  Clocked run(setup("topk:ratio=0.05", StrategyKind::gather_all, "aimd", record), changing);
  run.steps(0, 20);
  run.fail_on(1, 20);
  run.steps(21, 30);
  const auto read = control::read_record(text_of(record));
  ASSERT_TRUE(read) << read.error().message;
  const auto& steps = read->parts.at(0).steps;
  ASSERT_EQ(steps.size(), 29U);
  EXPECT_EQ(steps[20].reports.size(), kWorld);
  for (const auto& r : steps[20].reports) EXPECT_TRUE(std::isnan(r.network_s));
  expect_equal(record);
}

TEST(Records, ServerSumsAreRecorded) {
  const std::string record = new_file("server.jsonl");
  Clocked run(setup("thc", StrategyKind::server_sum, "", record), changing);
  run.steps(0, 6);
  const auto read = control::read_record(text_of(record));
  ASSERT_TRUE(read) << read.error().message;
  ASSERT_EQ(read->parts.at(0).steps.size(), 5U);
  EXPECT_EQ(read->parts.at(0).steps.back().reports.size(), kWorld);
}

/// A session that has ended does not prevent another from continuing its record.
TEST(Records, RecordEndsWithEngine) {
  const std::string record = new_file("engine.jsonl");
  Clocked run(setup("topk:ratio=0.1", StrategyKind::gather_all, "", record), changing);
  run.steps(0, 4);
  run.session(0).abort();
  EXPECT_EQ(refused("", record), "");
}

TEST(Records, RecordContinuesWithNewSettings) {
  const std::string record = new_file("others.jsonl");
  Clocked first(setup("topk:ratio=0.1", StrategyKind::gather_all, "aimd"), changing);
  Clocked second(setup("topk:ratio=0.2", StrategyKind::gather_all, "dc2"), changing);
  auto recorder = *session::Recorder::open(record, first.session(0).active().steering->run());
  const auto steps = [&](Clocked& run, uint64_t from) {
    for (uint64_t step = from; step < from + 6; ++step) {
      run.steps(step, step + 1);
      recorder->begin_step(*run.session(0).active().steering);
    }
  };
  steps(first, 0);
  recorder->go_on_with(second.session(0).active().steering->run());
  steps(second, 6);
  const auto read = control::read_record(text_of(record));
  ASSERT_TRUE(read) << read.error().message;
  ASSERT_EQ(read->parts.size(), 2U);
  EXPECT_EQ(read->parts[1].run.rules[0].spec, "topk:ratio=0.2");
  EXPECT_EQ(read->parts[1].steps.front().step, 6U);
  EXPECT_EQ(read->parts[1].steps.size(), 5U);
  expect_equal(record);
}

TEST(Records, RecordFailureIsReportedAndTrainingContinues) {
  Clocked full(setup("topk:ratio=0.1", StrategyKind::gather_all, "", "/dev/full"), changing);
  Clocked plain(setup("topk:ratio=0.1", StrategyKind::gather_all, ""), changing);
  expect_same(plain.steps(0, 5), full.steps(0, 5), "without a disk");
  const std::string told = session::explain(full.session(0));
  EXPECT_NE(told.find("\"steps\": 0, \"trouble\": \"cannot write '/dev/full': No space left"),
            std::string::npos)
      << told;
  EXPECT_NE(session::explain(full.session(1)).find("\"record\": null"), std::string::npos);
}

TEST(Records, NonIncreasingStepsEndRecord) {
  const std::string record = new_file("back.jsonl");
  Clocked run(setup("topk:ratio=0.1", StrategyKind::gather_all, "", record), changing);
  run.steps(0, 5);
  run.steps(2, 6);
  EXPECT_NE(run.session(0).recorder()->trouble().find("step 2"), std::string::npos);
  expect_equal(record);
}

TEST(Records, OnlyRecordsAreContinued) {
  const std::string other = new_file("other"), record = new_file("record.jsonl");
  write_file(other, "weights\n");
  EXPECT_EQ(refused("", other), "record '" + other + "': the file exists and is not a record");
  EXPECT_EQ(text_of(other), "weights\n");
  EXPECT_NE(refused("", testing::TempDir()).find("cannot write it"), std::string::npos);
  EXPECT_NE(refused("", testing::TempDir() + "no/such/folder").find("No such file"),
            std::string::npos);
  {
    Clocked run(setup("topk:ratio=0.1", StrategyKind::gather_all, "", record), changing);
    run.steps(0, 9);
    EXPECT_EQ(refused("", record), "record '" + record + "': another session is writing it");
  }
  // Killed in the middle of a line.
  const std::string whole = text_of(record);
  for (const size_t length : {whole.size() - 1, whole.size() - 30, size_t{20}, size_t{0}}) {
    write_file(record, whole.substr(0, length));
    Clocked run(setup("topk:ratio=0.1", StrategyKind::gather_all, "", record), changing);
    run.steps(0, 3);
    const auto read = control::read_record(text_of(record));
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_EQ(read->parts.size(), length > 20 ? 2U : 1U);
    EXPECT_EQ(read->parts.back().steps.size(), 2U);
  }
}

TEST(Records, UnreplayableRecordIsRefusedWithItsLine) {
  const std::string record = new_file("damaged.jsonl");
  const std::string replay = "replay:" + record, named = "record '" + record + "': ";
  EXPECT_NE(refused(replay).find(named + "cannot read it"), std::string::npos);
  {
    Clocked run(setup("topk:ratio=0.1", StrategyKind::gather_all, "schedule:0=0.1,5=0.2", record),
                changing);
    run.steps(0, 9);
  }
  EXPECT_EQ(refused(replay), "");
  EXPECT_EQ(refused(replay, "", "topk:ratio=0.2"),
            named + "line 1: the record is from a run with other rules or specs");
  const std::string whole = text_of(record);
  write_file(record, whole.substr(0, whole.size() - 10));
  EXPECT_EQ(refused(replay).substr(0, named.size() + 8), named + "line 9: ");
  const auto with = [&](const std::string& what, const std::string& instead) {
    std::string text = whole;
    text.replace(text.find(what), what.size(), instead);
    write_file(record, text);
    return refused(replay);
  };
  const std::string value = "'topk:ratio=0.1' does not accept the value ";
  EXPECT_EQ(with("\"to\": 0.2", "\"to\": 1.5"), named + "line 5: " + value + "1.5");
  EXPECT_EQ(with("\"value\": 0.1", "\"value\": -2"), named + "line 2: " + value + "-2");
  EXPECT_EQ(with("\"world\": 3", "\"world\": 4"),
            named + "line 1: the record is from a run with 4 ranks, not 3");
  write_file(record, "");
  EXPECT_EQ(refused(replay), named + "line 1: the record is empty");
}

/// Ranks continue by the contents of the file: every rank reads its own.
TEST(Records, RanksReplaySameDecisions) {
  const std::string one = new_file("one.jsonl"), two = new_file("two.jsonl"),
                    copy = new_file("copy");
  for (const auto& [file, schedule] :
       {std::pair{one, "schedule:0=0.1,5=0.2"}, {two, "schedule:0=0.1,5=0.3"}}) {
    Clocked run(setup("topk:ratio=0.1", StrategyKind::gather_all, schedule, file), changing);
    run.steps(0, 9);
  }
  write_file(copy, text_of(one));
  const auto agreed = [](const std::vector<std::string>& files) {
    std::vector<std::unique_ptr<Session>> sessions;
    std::vector<uint8_t> cards;
    for (uint32_t r = 0; r < kWorld; ++r) {
      sessions.push_back(*session_with("replay:" + files[r], "", "topk:ratio=0.1", r));
      const auto card = session::agreement_card(sessions.back()->active());
      cards.insert(cards.end(), card.begin(), card.end());
    }
    std::string said;
    for (const auto& session : sessions) {
      const auto result = session::check_agreement(session->active(), cards);
      if (result) continue;
      EXPECT_TRUE(said.empty() || said == result.error().message);
      said = result.error().message;
    }
    return said;
  };
  EXPECT_EQ(agreed({one, copy, one}), "");
  EXPECT_NE(agreed({one, one, two}).find("ranks disagree on the control: rank 0 has 'replay:#"),
            std::string::npos);
}

}  // namespace
}  // namespace laconic::test
