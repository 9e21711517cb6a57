// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// laconic serve: an aggregation server for the workers of several jobs.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "aggregation/io/udp_server.h"
#include "aggregation/io/xdp/xdp.h"
#include "aggregation/link/token_file.h"
#include "command.h"
#include "metrics.h"
#include "output.h"
#include "privileges.h"

namespace laconic::tools {
namespace {

struct Options {
  std::string bind;
  std::string token;
  std::string new_token;
  std::string io = "auto";
  std::string auth = "header";
  std::string metrics;
  std::vector<std::string> interfaces;
  std::string multicast;
  std::string memory = "256mb";
  uint32_t jobs = 64;
  bool check = false;
  bool json = false;
};

// The one thing that a signal may touch.
std::atomic<bool> g_stop{false};
static_assert(std::atomic<bool>::is_always_lock_free);
void on_signal(int) { g_stop.store(true); }

void stop_on_signals() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
}

Error file_error(std::string_view what, const std::string& path) {
  return {Errc::invalid_argument, fmt::format("{} {}: {}", what, path, std::strerror(errno)), {}};
}

// ---- tokens ----

template <std::size_t N>
Result<std::array<uint8_t, N>> random_bytes() {
  std::array<uint8_t, N> bytes{};
  if (getrandom(bytes.data(), N, 0) != static_cast<ssize_t>(N)) {
    return Error{Errc::internal, fmt::format("getrandom: {}", std::strerror(errno)), {}};
  }
  return bytes;
}

/// Never over a file that is there: some job may be using it.
Result<void> write_token(const std::string& path) {
  const auto token = random_bytes<sizeof(aggregation::protocol::Token)>();
  if (!token) return token.error();
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return file_error("new token", path);
  const bool written =
      ::write(fd, token->data(), token->size()) == static_cast<ssize_t>(token->size());
  if (::close(fd) != 0 || !written) return file_error("new token", path);
  return {};
}

// ---- arguments ----

/// "256mb", "1gb", "64M": powers of 1024.
Result<uint64_t> parse_memory(const std::string& text) {
  uint64_t value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  std::string unit = text.substr(static_cast<std::size_t>(end - text.data()));
  std::transform(unit.begin(), unit.end(), unit.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  const std::size_t which = std::string_view("kmgt").find(unit.empty() ? ' ' : unit.front());
  const bool known = unit == "b" || unit.empty() ||
                     (which != std::string_view::npos &&
                      (unit.size() == 1 || unit.substr(1) == "b" || unit.substr(1) == "ib"));
  const uint64_t shift = which == std::string_view::npos ? 0 : 10 * (which + 1);
  if (status != std::errc{} || !known || value == 0 || value > (uint64_t{1} << 50U) >> shift) {
    return Error{Errc::invalid_argument, fmt::format("--memory '{}' is not an amount", text),
                 "for example 256mb or 2gb, powers of 1024"};
  }
  return value << shift;
}

Result<net::Io> choose_io(const std::string& name) {
  if (name == "gso") return net::Io::gso;
  if (name == "mmsg") return net::Io::mmsg;
  if (name == "auto" || name == "xdp") return net::has_gso() ? net::Io::gso : net::Io::mmsg;
  return Error{Errc::invalid_argument, fmt::format("--io '{}' is not known", name),
               "auto, gso, mmsg or xdp; laconic serve --check shows what works here"};
}

Result<aggregation::UdpServerSettings> settings_of(const Options& options) {
  aggregation::UdpServerSettings settings;
  settings.bind = options.bind;
  settings.server.jobs = options.jobs;
  settings.server.full_tags = options.auth == "full";
  const auto io = choose_io(options.io);
  if (!io) return io.error();
  settings.io = *io;
  if ((options.io == "xdp") == options.interfaces.empty()) {
    return Error{Errc::invalid_argument, "--io xdp and --interfaces must be given together",
                 "laconic serve --io xdp --interfaces PORT,PORT: the switch ports that the "
                 "workers are connected to"};
  }
  if (options.io == "xdp" && settings.server.full_tags) {
    return Error{Errc::invalid_argument,
                 "--io xdp cannot hash payloads and does not support --auth full",
                 "remove one of them"};
  }
  if (options.io == "xdp" && !options.multicast.empty()) {
    return Error{Errc::invalid_argument, "--io xdp does not support --multicast",
                 "the XDP program sends each sum to every port itself; remove one of them"};
  }
  settings.interfaces = options.interfaces;
  settings.multicast = options.multicast;
  const auto memory = parse_memory(options.memory);
  if (!memory) return memory.error();
  settings.server.memory = *memory;
  if (!options.token.empty()) {
    const auto token = aggregation::read_token(options.token);
    if (!token) return token.error();
    settings.server.token = *token;
  }
  const auto secret = random_bytes<32>();
  if (!secret) return secret.error();
  settings.server.secret = *secret;
  return settings;
}

// ---- what is said ----

void warn(const std::string& text) { fmt::print(stderr, "laconic: warning: {}\n", text); }

void warn_of_open_token(const std::string& path) {
  struct stat info {};
  if (path.empty() || ::stat(path.c_str(), &info) != 0 || (info.st_mode & S_IROTH) == 0) return;
  warn(fmt::format("token {0}: every user of this machine can read it; chmod o-r {0}", path));
}

std::string first_line(const Error& error) {
  std::string text = error.message.substr(0, error.message.find('\n'));
  if (!error.hint.empty()) text += "; " + error.hint;
  return text;
}

int check(const Options& options) {
  const bool gso = net::has_gso();
  const auto xdp = aggregation::Xdp::check();
  const Json found =
      Json::array({{{"io", "gso"},
                    {"works", gso},
                    {"why", gso ? "the kernel cuts and joins datagrams"
                                : "the kernel is older than Linux 5.0"}},
                   {{"io", "mmsg"}, {"works", true}, {"why", "recvmmsg and sendmmsg"}},
                   {{"io", "xdp"},
                    {"works", xdp.ok()},
                    {"why", xdp ? "the kernel accepts the program, for jobs that need all workers"
                                : first_line(xdp.error())}}});
  const std::string_view no_metrics = why_no_metrics();
  if (options.json) {
    print_json({{"back_ends", found},
                {"auto", gso ? "gso" : "mmsg"},
                {"metrics", {{"works", no_metrics.empty()}, {"why", no_metrics}}}});
    return kFine;
  }
  Table table({{"back end"}, {"works"}, {"why"}});
  for (const auto& [_, row] : found.members()) {
    table.add({row["io"].text(), row["works"].flag() ? "yes" : "no", row["why"].text()});
  }
  table.print();
  fmt::print("metrics: {}\n", no_metrics.empty() ? "yes" : no_metrics);
  return kFine;
}

/// One line, at once: who starts a server waits for it.
void say(const Json& json) {
  fmt::print("{}\n", json.dump());
  std::fflush(stdout);
}

void print_start(const Options& options, const aggregation::UdpServer& server, net::Io io,
                 const Metrics* metrics) {
  const char* name = io == net::Io::gso ? "gso" : "mmsg";
  if (!options.interfaces.empty()) name = "xdp";
  if (options.json) {
    Json line{{"serving", server.address()}, {"io", name}, {"token", !options.token.empty()}};
    if (!options.multicast.empty()) line["multicast"] = options.multicast;
    if (metrics != nullptr) line["metrics"] = metrics->address();
    return say(line);
  }
  fmt::print("serving at {} by {}{}\n", server.address(), name,
             options.token.empty() ? ", without a token: loopback only" : "");
  if (!options.multicast.empty())
    fmt::print("sums by multicast to {}, for jobs that request it\n", options.multicast);
  if (metrics != nullptr) fmt::print("metrics at http://{}/metrics\n", metrics->address());
  std::fflush(stdout);
}

void print_end(const Options& options, const aggregation::ServerStats& stats) {
  uint64_t rejected = 0;
  for (const uint64_t count : stats.rejected) rejected += count;
  if (options.json) {
    return say({{"datagrams", stats.datagrams},
                {"in_kernel", stats.in_kernel},
                {"rejected", rejected},
                {"strangers", stats.strangers},
                {"refusals", stats.refusals}});
  }
  fmt::print("{} datagrams, {} rejected, {} of no job, {} refusals\n", stats.datagrams, rejected,
             stats.strangers, stats.refusals);
}

int serve(const Options& options) {
  if (options.check) return check(options);
  if (!options.new_token.empty()) {
    const auto written = write_token(options.new_token);
    if (!written) return fail(written.error(), options.json, kBadAnswer);
    if (options.json) {
      print_json({{"token", options.new_token}});
    } else {
      fmt::print("{}: 32 random bytes, for the server and every worker\n", options.new_token);
    }
    return kFine;
  }
  if (options.bind.empty()) {
    return fail({Errc::invalid_argument, "--bind is missing",
                 "laconic serve --bind 127.0.0.1:7420, or an address of this machine and --token"},
                options.json, kUsage);
  }
  auto settings = settings_of(options);
  if (!settings) return fail(settings.error(), options.json, kUsage);
  warn_of_open_token(options.token);
  stop_on_signals();
  forbid_new_privileges();
  std::unique_ptr<Metrics> metrics;
  if (!options.metrics.empty()) {
    auto opened = open_metrics(options.metrics);
    if (!opened) return fail(opened.error(), options.json, kBadAnswer);
    metrics = *std::move(opened);
    settings->observe = [&](const aggregation::Server& server) {
      metrics->show(figures_of(server));
    };
  }
  const auto server = aggregation::UdpServer::open(*settings);
  if (!server) return fail(server.error(), options.json, kBadAnswer);
  if (auto dropped = drop_privileges(!options.interfaces.empty()); !dropped) {
    warn("root's privileges are kept: " + dropped.error().message);
  }
  print_start(options, **server, settings->io, metrics.get());
  (*server)->run(g_stop);
  print_end(options, (*server)->server().stats());
  return kFine;
}

}  // namespace

Run add_serve(Program& program) {
  const Command command = program.add_command("serve", "an aggregation server, until SIGTERM");
  const auto options = std::make_shared<Options>();
  command.add_option("--bind", options->bind, "ADDR:PORT; port 0: any");
  command.add_option("--token", options->token, "file of 32 bytes, the same on every worker");
  command.add_option("--new-token", options->new_token, "write such a file and exit");
  command.add_option("--io", options->io, "auto, gso, mmsg or xdp").capture_default_str();
  command
      .add_option("--interfaces", options->interfaces,
                  "with --io xdp: the ports that workers are connected to; an XDP program adds "
                  "there (root, Linux 5.15)")
      .delimiter(',');
  command.add_option(
      "--multicast", options->multicast,
      "GROUP or GROUP:PORT, e.g. 239.7.4.2: each sum is sent once to all workers of a job "
      "that requests it");
  command
      .add_option("--auth", options->auth,
                  "header, or full: jobs whose tags do not cover payloads are refused")
      .capture_default_str()
      .one_of({"header", "full"});
  command.add_option("--memory", options->memory, "memory of all jobs").capture_default_str();
  command.add_option("--jobs", options->jobs, "maximum number of jobs")
      .capture_default_str()
      .range(1, 4096);
  command.add_option("--metrics", options->metrics,
                     "ADDR:PORT of metrics for Prometheus; everyone who can connect can read them");
  command.add_flag("--check", options->check,
                   "show which back ends work here, and why others do not");
  command.add_flag("--json", options->json, "print one JSON object per line");
  return [options] { return serve(*options); };
}

}  // namespace laconic::tools
