// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "lab/lab.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <filesystem>
#include <iostream>

#include "answer.h"
#include "control.h"
#include "features.h"
#include "launcher.h"
#include "sandbox.h"
#include "supervisor.h"

namespace laconic::lab {
namespace {

int fail(const Error& error, bool json) {
  if (json)
    std::cout << to_json(error) << std::endl;
  else
    std::cerr << to_text(error) << std::flush;
  return exit_status(error);
}

int print(const Report& report, bool json) {
  if (json)
    std::cout << to_json(report) << std::endl;
  else
    std::cerr << to_text(report) << std::flush;
  return report.error ? exit_status(*report.error) : 0;
}

int send(const Options& options) {
  const auto answer = ask_lab("--send", options.send);
  if (!answer) return fail(answer.error(), options.json);
  std::cout << answer->line << std::endl;
  return read_answer(answer->line) ? 0 : 1;
}

/// A port that is free on loopback now: emulated hosts share the machine's ports.
int free_port() {
  const Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (bind(fd.get(), generic, size) != 0 || getsockname(fd.get(), generic, &size) != 0)
    return 29500;
  return ntohs(address.sin_port);
}

/// The inside of the sandbox: COMMANDs, report.
int live(const Options& options, Isolation isolation, Result<std::unique_ptr<Link>> link,
         const OpenFileLimit& files, int lifeline) {
  if (!link) return fail(link.error(), options.json);
  Supervisor supervisor(options, std::move(*link), files);
  Report report = supervisor.run(lifeline);
  report.isolation = isolation_name(isolation);
  return print(report, options.json);
}

Result<Isolation> isolation_for(const Options& options) {
  for (const char* tool : {"ip", "tc"})
    if (find_program(tool).empty())
      return Error{
          Errc::unsupported, std::string("the program '") + tool + "' is missing",
          "apt install iproute2 (Debian, Ubuntu); dnf install iproute iproute-tc (Fedora)"};
  const auto isolation = choose_isolation();
  if (!isolation) return isolation;
  if (auto missing = missing_for(options, probe(*isolation))) return *missing;
  return isolation;
}

int run_in_namespaces(const Options& options) {
  const auto isolation = isolation_for(options);
  if (!isolation) return fail(isolation.error(), options.json);
  const OpenFileLimit files;
  const auto status = run_sandboxed(*isolation, [&](int lifeline) {
    return live(options, *isolation, make_kernel_link(options), files, lifeline);
  });
  return status ? *status : fail(status.error(), options.json);
}

int run_emulated(const Options& options) {
  const std::string folder = unused_folder();
  const OpenFileLimit files;
  const auto tidy = [&] {
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);
  };
  const auto guarded = [&](int lifeline, const Body& body) {
    const auto status = run_guarded(lifeline, tidy, body);
    return status ? *status : fail(status.error(), options.json);
  };
  return guarded(kNoLifeline, [&](int outer) {
    return guarded(outer, [&](int inner) {
      return live(options, Isolation::none, make_loopback_link(options, folder), files, inner);
    });
  });
}

int run(Options options) {
  if (find_program(options.command.front()).empty())
    return fail({Errc::invalid_argument, "there is no program '" + options.command.front() + "'",
                 "COMMAND is looked up in PATH"},
                options.json);
  if (options.emulate && !options.port_given) options.port = free_port();
  return options.emulate ? run_emulated(options) : run_in_namespaces(options);
}

}  // namespace

int lab_main(int argc, char** argv) {
  const std::vector<std::string> words(argv, argv + argc);
  const auto options = parse_options(words);
  if (!options) return fail(options.error(), wants_json(words));
  if (!options->help.empty()) {
    std::cout << options->help;
    return 0;
  }
  if (options->check) return print_check(options->json);
  if (!options->send.empty()) return send(*options);
  if (!options->on.empty()) return fail(become_command_on_host(*options), options->json);
  return run(*options);
}

}  // namespace laconic::lab
