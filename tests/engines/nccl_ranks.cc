// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A rank over NCCL, for test_nccl.py: `nccl_ranks MODE RANK WORLD DEVICE LIBRARY FOLDER`, where
// FOLDER is the job's own. What it finds goes as JSON to FOLDER/RANK.json.
#include <laconic/engine/nccl.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "engines/engine_table.h"
#include "json.h"

namespace laconic::test {
namespace {

namespace fs = std::filesystem;
using std::chrono::seconds;
using tools::Json;
using Clock = std::chrono::steady_clock;

constexpr seconds kTimeout{60};
constexpr seconds kLate{3};  // of a batch that one rank does not start

/// Whole or not at all.
void write(const fs::path& path, std::string_view text) {
  const fs::path part = path.string() + ".part";
  std::ofstream(part, std::ios::binary) << text;
  fs::rename(part, path);
}

bool appears(const fs::path& path) {
  for (const auto last = Clock::now() + kTimeout; Clock::now() < last;) {
    if (fs::exists(path)) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

NcclShare through(const fs::path& path, bool first) {
  return [path, first](std::span<uint8_t> id) -> Result<void> {
    if (first) {
      write(path, {reinterpret_cast<const char*>(id.data()), id.size()});
      return {};
    }
    if (!appears(path)) return Error{Errc::timed_out, "rank 0 has shared nothing", {}};
    std::ifstream file(path, std::ios::binary);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
    if (bytes.size() != id.size()) return Error{Errc::internal, "an id of another size", {}};
    std::copy(bytes.begin(), bytes.end(), id.begin());
    return {};
  };
}

Json table(Engine& engine) {
  const TableOutcome outcome = run_engine_table(engine, false);
  return {{"cases", outcome.cases},
          {"failures", outcome.failures},
          {"first_failure", outcome.first_failure}};
}

/// A sum of all; then one that the last rank does not start: what the others report, and how soon.
Json stalls(Engine& engine, const fs::path& folder) {
  std::vector<float> lanes(1 << 20, static_cast<float>(engine.rank() + 1));
  auto* const at = reinterpret_cast<uint8_t*>(lanes.data());
  const Step step{.dtype = DType::f32, .count = lanes.size(), .send = at, .recv = at};
  const auto first = engine.run({&step, 1});
  Json found{{"first", first ? "ok" : first.error().message}, {"sum", lanes.back()}};
  const fs::path heard = folder / "heard";
  if (engine.rank() + 1 == engine.world()) {
    found["waited"] = appears(heard);
    return found;
  }
  const auto begin = Clock::now();
  const auto ticket = engine.start({&step, 1});
  const auto second = ticket ? engine.wait(*ticket, begin + kLate) : Result<void>(ticket.error());
  found["seconds"] = std::chrono::duration<double>(Clock::now() - begin).count();
  found["code"] = second ? "ok" : errc_name(second.error().code);
  found["message"] = second ? "" : second.error().message;
  const auto third = engine.run({&step, 1});
  found["afterwards"] = third ? "ok" : errc_name(third.error().code);
  if (engine.rank() == 0) write(heard, "");
  return found;
}

int main(const std::vector<std::string>& words) {
  if (words.size() != 6) return 2;
  const fs::path folder = words[5];
  NcclOptions options{.libraries = {.nccl = words[4], .cuda = "libcuda.so.1"},
                      .rank = static_cast<uint32_t>(std::stoul(words[1])),
                      .world = static_cast<uint32_t>(std::stoul(words[2])),
                      .device = static_cast<uint32_t>(std::stoul(words[3])),
                      .timeout = kTimeout};
  const auto engine = NcclEngine::create(options, through(folder / "id", options.rank == 0));
  Json found;
  if (!engine) {
    found["error"] = engine.error().message;
  } else {
    found = words[0] == "table" ? table(**engine) : stalls(**engine, folder);
  }
  write(folder / (words[1] + ".json"), found.dump());
  return engine ? 0 : 1;
}

}  // namespace
}  // namespace laconic::test

int main(int count, char** list) { return laconic::test::main({list + 1, list + count}); }
