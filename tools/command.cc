// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "command.h"

#include <CLI/CLI.hpp>
#include <utility>

#include "laconic/version.h"

namespace laconic::tools {

Option Option::required() const { return Option(option_->required()); }
Option Option::capture_default_str() const { return Option(option_->capture_default_str()); }
Option Option::range(int least, int most) const {
  return Option(option_->check(CLI::Range(least, most)));
}
Option Option::range(uint32_t least, uint32_t most) const {
  return Option(option_->check(CLI::Range(least, most)));
}
Option Option::range(double least, double most) const {
  return Option(option_->check(CLI::Range(least, most)));
}
Option Option::one_of(std::initializer_list<const char*> words) const {
  return Option(
      option_->check(CLI::IsMember(std::vector<std::string>(words.begin(), words.end()))));
}
Option Option::needs(Option other) const { return Option(option_->needs(other.option_)); }
Option Option::excludes(Option other) const { return Option(option_->excludes(other.option_)); }
Option Option::group(const char* name) const { return Option(option_->group(name)); }
Option Option::delimiter(char c) const { return Option(option_->delimiter(c)); }
Option Option::allow_extra_args(bool allow) const {
  return Option(option_->allow_extra_args(allow));
}

Option Command::add_option(const char* names, std::string& value, const char* help) const {
  return Option(app_->add_option(names, value, help));
}
Option Command::add_option(const char* names, std::vector<std::string>& values,
                           const char* help) const {
  return Option(app_->add_option(names, values, help));
}
Option Command::add_option(const char* names, uint32_t& value, const char* help) const {
  return Option(app_->add_option(names, value, help));
}
Option Command::add_option(const char* names, uint64_t& value, const char* help) const {
  return Option(app_->add_option(names, value, help));
}
Option Command::add_option(const char* names, double& value, const char* help) const {
  return Option(app_->add_option(names, value, help));
}
Option Command::add_flag(const char* names, bool& value, const char* help) const {
  return Option(app_->add_flag(names, value, help));
}
Option Command::get_option(const char* name) const { return Option(app_->get_option(name)); }
std::size_t Command::count(const char* name) const { return app_->count(name); }
void Command::footer(std::string text) const { app_->footer(std::move(text)); }
void Command::require_either(Option one, Option other, const char* what) const {
  app_->final_callback([one = one.option_, other = other.option_, what] {
    if (one->empty() && other->empty()) throw CLI::RequiredError(what);
  });
}

Program::Program()
    : app_(std::make_unique<CLI::App>("Compressed communication for distributed training.",
                                      "laconic")) {
  app_->set_version_flag("--version", "laconic " LACONIC_VERSION_STRING);
  app_->require_subcommand(1);
  app_->footer("Exit status: 0 fine, 1 the answer is bad, 2 usage. Every command takes --json.");
}
Program::~Program() = default;

Command Program::add_command(const char* name, const char* help) {
  return Command(app_->add_subcommand(name, help));
}

Result<bool> Program::parse(int argc, char** argv) {
  try {
    app_->parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != static_cast<int>(CLI::ExitCodes::Success)) {
      return Error{Errc::invalid_argument, error.what(),
                   "laconic --help, or laconic COMMAND --help"};
    }
    app_->exit(error);
    return false;
  }
  return true;
}

bool Program::chose(const char* command) const { return app_->got_subcommand(command); }

}  // namespace laconic::tools
