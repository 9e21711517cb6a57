// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "machine.h"

#include <sched.h>

#include <cstring>
#include <fstream>
#include <thread>

#include "laconic/isa.h"
#include "laconic/version.h"
#include "samples.h"

namespace laconic::tools {
namespace {

static_assert(sizeof(cpu_set_t) == 128);

constexpr const char* compiler() {
#ifdef __clang__
  return __VERSION__;  // says its own name
#else
  return "g++ " __VERSION__;
#endif
}

std::string after_colon(const std::string& line) {
  const auto at = line.find(':');
  return at == std::string::npos || at + 2 > line.size() ? std::string() : line.substr(at + 2);
}

}  // namespace

std::string cpu_model() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.rfind("model name", 0) == 0) return after_colon(line);
  }
  return "unknown";
}

uint32_t usable_cores() {
  cpu_set_t mask;
  if (sched_getaffinity(0, sizeof mask, &mask) != 0) return std::thread::hardware_concurrency();
  return static_cast<uint32_t>(CPU_COUNT(&mask));
}

std::string huge_page_setting() {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string line;
  std::getline(file, line);
  const auto open = line.find('['), close = line.find(']');
  return open == std::string::npos || close == std::string::npos
             ? "unknown"
             : line.substr(open + 1, close - open - 1);
}

std::vector<std::string_view> isa_names() {
  std::vector<std::string_view> names;
  for (const Isa isa : available_isas()) names.push_back(isa_name(isa));
  return names;
}

PinnedToCore::PinnedToCore() {
  cpu_set_t mask;
  if (sched_getaffinity(0, sizeof mask, &mask) != 0) return;
  std::memcpy(before_, &mask, sizeof mask);
  const int core = sched_getcpu();
  if (core < 0 || core >= CPU_SETSIZE) return;
  CPU_ZERO(&mask);
  CPU_SET(static_cast<unsigned>(core), &mask);
  if (sched_setaffinity(0, sizeof mask, &mask) == 0) core_ = core;
}

PinnedToCore::~PinnedToCore() {
  if (core_ < 0) return;
  cpu_set_t mask;
  std::memcpy(&mask, before_, sizeof mask);
  sched_setaffinity(0, sizeof mask, &mask);
}

double clock_ghz() {
  constexpr uint64_t kSteps = 2'000'000;
  constexpr double kLatency = 3;
  double best = 0;
  for (int run = 0; run < 3; ++run) {
    uint64_t x = 3;
    const double taken = seconds_of(Clock::thread, kSteps, [&] {
      x *= 0x9E3779B97F4A7C15U;  // not a number that shifts and additions make
      asm volatile("" : "+r"(x));
    });
    best = std::max(best, kLatency * static_cast<double>(kSteps) / taken / 1e9);
  }
  return best;
}

Json machine_json() {
  return {{"cpu", cpu_model()},
          {"cores", usable_cores()},
          {"isas", isa_names()},
          {"huge_pages", huge_page_setting()},
          {"laconic", LACONIC_VERSION_STRING},
          {"compiler", compiler()}};
}

}  // namespace laconic::tools
