// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// One command of the `laconic` program: its options are declared on a Command, and the returned
// function runs if the command is chosen. CLI11, whose templates cost seconds of compiling, is
// hidden in command.cc.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "laconic/error.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace laconic::tools {

/// Exit statuses of every command.
enum Exit : int {
  kFine = 0,
  kBadAnswer = 1,  ///< the command worked and the answer is bad: broken frame, unusable machine
  kUsage = 2,      ///< it was asked in a way that cannot be answered
};

/// As CLI::Option has them.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}
  Option required() const;
  Option capture_default_str() const;
  Option range(int least, int most) const;
  Option range(uint32_t least, uint32_t most) const;
  Option range(double least, double most) const;
  Option one_of(std::initializer_list<const char*> words) const;
  Option needs(Option other) const;
  Option excludes(Option other) const;
  Option group(const char* name) const;
  Option delimiter(char c) const;
  Option allow_extra_args(bool allow) const;

 private:
  friend class Command;
  CLI::Option* option_;
};

/// As CLI::App has them.
class Command {
 public:
  explicit Command(CLI::App* app) : app_(app) {}
  Option add_option(const char* names, std::string& value, const char* help) const;
  Option add_option(const char* names, std::vector<std::string>& values, const char* help) const;
  Option add_option(const char* names, uint32_t& value, const char* help) const;
  Option add_option(const char* names, uint64_t& value, const char* help) const;
  Option add_option(const char* names, double& value, const char* help) const;
  Option add_flag(const char* names, bool& value, const char* help) const;
  [[nodiscard]] Option get_option(const char* name) const;
  /// How often the words had it.
  [[nodiscard]] std::size_t count(const char* name) const;
  void footer(std::string text) const;
  /// One of the two; else the words lack `what`.
  void require_either(Option one, Option other, const char* what) const;

 private:
  CLI::App* app_;
};

class Program {
 public:
  Program();
  ~Program();
  Command add_command(const char* name, const char* help);
  /// False where help or the version was requested, and has been printed; invalid_argument for
  /// unknown words.
  Result<bool> parse(int argc, char** argv);
  /// Whether the words named that command.
  [[nodiscard]] bool chose(const char* command) const;

 private:
  std::unique_ptr<CLI::App> app_;
};

using Run = std::function<int()>;

Run add_list(Program& program);
Run add_bench(Program& program);
Run add_inspect(Program& program);
Run add_verify(Program& program);
Run add_doctor(Program& program);
Run add_laws(Program& program);
Run add_serve(Program& program);
Run add_replay(Program& program);
Run add_rules(Program& program);

}  // namespace laconic::tools
