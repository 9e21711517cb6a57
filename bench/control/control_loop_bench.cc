// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Laws in a closed loop with a link model, in virtual time: docs/results/control.md.
// usage: control_loop_bench      prints JSON
#include <string_view>

#include "../tests/support/control_loop.h"
#include "output.h"

namespace laconic {
namespace {

using tools::Json;

constexpr uint64_t kSeeds = 5;
constexpr uint64_t kFall = test::scenario::kFall;
constexpr uint64_t kRise = test::scenario::kRise;

struct Scenario {
  std::string_view name;
  test::Link link;
  bool steps = false;  // a fall and a rise
};

std::vector<Scenario> scenarios(uint32_t ranks) {
  std::vector<Scenario> all;
  const auto add = [&](std::string_view name, auto&& change, bool steps = false) {
    test::Link link;
    link.ranks = ranks;
    link.jitter = 0.05;
    change(link);
    all.push_back({name, link, steps});
  };
  add("constant", [](test::Link& l) { l.jitter = 0; });
  add("jitter 5 %", [](test::Link&) {});
  add("jitter 30 %", [](test::Link& l) { l.jitter = 0.3; });
  add("0 to 10 ms", [](test::Link& l) {
    l.jitter = 0;
    l.delay_s = 0.01;
  });
  add(
      "200, 20, 200 Mbit/s", [](test::Link& l) { l.mbit = test::scenario::fall_and_rise; }, true);
  add("200 and 80 Mbit/s in turn", [](test::Link& l) { l.mbit = test::scenario::square; });
  add("one rank 100 ms late", [](test::Link& l) {
    l.late_s = 0.1;
    l.late_from = kFall;
  });
  add("the same, by the maximum", [](test::Link& l) {
    l.late_s = 0.1;
    l.late_from = kFall;
    l.maximum = true;
  });
  add("100, 10000, 100 Mbit/s", [](test::Link& l) { l.mbit = test::scenario::wide_in_the_middle; });
  add("token bucket of 60 kB", [](test::Link& l) { l.burst_bytes = 60000; });
  return all;
}

/// Means over the seeds, of reaction times the longest.
Json measured(const Scenario& scenario, std::string_view control) {
  double share = 0;
  double above = 0;
  double swing = 0;
  double mean = 0;
  uint64_t fall = 0;
  uint64_t rise = 0;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    test::Loop loop;
    loop.link = scenario.link;
    loop.control = control;
    loop.seed = seed;
    const test::Loop::Run run = loop.run();
    share += test::share_of_oracle(run) / kSeeds;
    above += test::share_above(run) / kSeeds;
    swing += test::swing(run) / kSeeds;
    double sum = 0;
    for (const auto& step : run.steps) sum += step.value;
    mean += sum / static_cast<double>(run.steps.size()) / kSeeds;
    fall = std::max(fall, test::steps_until_near(run, kFall, 0.35));
    rise = std::max(rise, test::steps_until_near(run, kRise, 0.35));
  }
  Json json{{"ranks", scenario.link.ranks},
            {"scenario", scenario.name},
            {"control", control},
            {"share_of_oracle", share},
            {"steps_above", above},
            {"mean_ratio", mean},
            {"swing", swing},
            {"steps_after_fall", nullptr},
            {"steps_after_rise", nullptr}};
  if (scenario.steps) {
    const auto reached = [](uint64_t steps) { return steps < 1000 ? Json(steps) : Json("never"); };
    json["steps_after_fall"] = reached(fall);
    json["steps_after_rise"] = reached(rise);
  }
  return json;
}

}  // namespace
}  // namespace laconic

int main() {
  using namespace laconic;
  Json rows = Json::array();
  for (const uint32_t ranks : {8U, 2U, 64U}) {
    for (const Scenario& scenario : scenarios(ranks)) {
      for (const std::string_view control : {"dc2", "aimd", "bdp", "fixed"}) {
        if (ranks != 8 && control != "dc2") continue;
        rows.push_back(measured(scenario, control));
      }
    }
  }
  tools::print_json({{"closed_loop", rows}});
  return 0;
}
