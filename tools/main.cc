// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The `laconic` program: finds the command and runs it. Exit status 0 fine, 1 bad answer, 2 usage.
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <new>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include "command.h"
#include "engines.h"
#include "lab/lab.h"
#include "output.h"

namespace laconic::tools {
namespace {

constexpr std::pair<const char*, Run (*)(Program&)> kCommands[] = {
    {"list", add_list},     {"bench", add_bench},   {"inspect", add_inspect},
    {"verify", add_verify}, {"doctor", add_doctor}, {"laws", add_laws},
    {"serve", add_serve},   {"replay", add_replay}, {"rules", add_rules},
};

bool asks_for_json(int argc, char** argv) {
  return std::any_of(argv, argv + argc,
                     [](const char* word) { return std::string_view(word) == "--json"; });
}

int run(int argc, char** argv) {
  Program program;
  std::vector<std::pair<const char*, Run>> commands;
  for (const auto& [name, add] : kCommands) commands.emplace_back(name, add(program));
  program.add_command("lab", "a network of several hosts on this machine, with given rates");
  const auto asked = program.parse(argc, argv);
  if (!asked) return fail_everywhere(asked.error(), asks_for_json(argc, argv), kUsage);
  if (!*asked) return kFine;
  for (const auto& [name, command] : commands) {
    if (program.chose(name)) return command();
  }
  return kUsage;
}

/// A file may claim more elements than there is memory for.
const Error kNoMemory{Errc::out_of_memory, "not enough memory for that many elements",
                      "`laconic inspect` shows what a frame claims without decoding it"};

}  // namespace
}  // namespace laconic::tools

int main(int argc, char** argv) {
  // The lab has many words of its own, some of them another program's: it reads them all itself.
  if (argc > 1 && std::string_view(argv[1]) == "lab")
    return laconic::lab::lab_main(argc - 2, argv + 2);
  using laconic::Error;
  namespace tools = laconic::tools;
  const auto failed = [&](const Error& error) {
    return tools::fail(error, tools::asks_for_json(argc, argv), tools::kBadAnswer);
  };
  try {
    return tools::run(argc, argv);
  } catch (const std::bad_alloc&) {
    return failed(tools::kNoMemory);
  } catch (const std::length_error&) {
    return failed(tools::kNoMemory);
  } catch (const std::exception& error) {
    return failed({laconic::Errc::internal, error.what(), "please report this"});
  }
}
