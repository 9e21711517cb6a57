// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// laconic doctor: can this machine do it, what was chosen, and why.
#include <fmt/format.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "command.h"
#include "error_metrics.h"
#include "gradients.h"
#include "kernels/device_images.h"
#include "laconic/engine/nccl.h"
#include "laconic/isa.h"
#include "laconic/registry.h"
#include "laconic/tensor_codec.h"
#include "laconic/version.h"
#include "machine.h"
#include "output.h"

namespace laconic::tools {
namespace {

struct Options {
  bool json = false;
  bool test = false;
};

constexpr const char* kAboutPyTorch =
    "python -m laconic.doctor checks PyTorch, Gloo and the network, and runs an exchange";

// ---- findings ----

Json isa_findings() {
  const bool simd = available_isas().size() > 1;
#ifdef LACONIC_WITH_HWY
  const char* const why =
      simd ? "the best that this processor runs" : "this processor runs none of the compiled sets";
#else
  const char* const why = "this build has no SIMD kernels (LACONIC_HIGHWAY=OFF)";
#endif
  return {
      {"available", isa_names()}, {"chosen", isa_name(best_isa())}, {"why", why}, {"simd", simd}};
}

Json nccl_findings() {
  NcclLibraries libraries;
  const char* const named = std::getenv("LACONIC_NCCL_LIB");
  if (named != nullptr && *named != '\0') libraries.nccl = named;
  const auto found = find_nccl(libraries);
  return {{"found", found.ok()},
          {"able", found && found->why_not.empty()},
          {"library", libraries.nccl},
          {"version", found ? found->version : ""},
          {"gpus", found ? found->gpus : 0},
          {"why", found ? found->why_not : found.error().message},
          {"override", "LACONIC_NCCL_LIB"}};
}

Json device_findings() {
  const kernels::DeviceFound found = kernels::find_device();
  Json embedded = Json::array();
  for (const device::Image& image : kernels::device_images()) embedded.push_back(image.name());
  return {{"able", found.why_not.empty()}, {"gpu", found.gpu},     {"driver", found.driver},
          {"image", found.image},          {"why", found.why_not}, {"embedded", embedded}};
}

/// Tried in a child, so that this process keeps its own namespaces.
int try_namespaces(int flags) {
  const pid_t child = fork();
  if (child < 0) return errno;
  if (child == 0) _exit(unshare(flags) == 0 ? 0 : std::min(errno, 255));
  int status = 0;
  if (waitpid(child, &status, 0) != child || !WIFEXITED(status)) return EIO;
  return WEXITSTATUS(status);
}

Json namespace_findings() {
  if (try_namespaces(CLONE_NEWNET) == 0)
    return {{"able", true}, {"why", "this user may create network namespaces"}};
  const int refused = try_namespaces(CLONE_NEWUSER | CLONE_NEWNET);
  if (refused == 0) return {{"able", true}, {"why", "inside a user namespace"}};
  return {{"able", false},
          {"why", fmt::format("the kernel rejects it: {}", std::strerror(refused))}};
}

// ---- self-test ----

struct SelfTest {
  std::string codec;
  bool ok = true;
  std::string why;
  uint32_t rounds = 0;
  double seconds = 0;
};

/// One tensor there and back: a frame within its bound that decodes to finite values, the same
/// frame again.
Result<void> round_trip(const TensorCodec& codec, std::vector<float>& values, uint64_t step) {
  const TensorRef tensor{DType::f32, values.size() / 64, 64, values.data()};
  const auto bound = codec.max_frame_bytes(tensor.rows, tensor.cols);
  if (!bound) return bound.error();
  std::vector<uint8_t> frame(*bound), again(*bound);
  const Place place{1, step, 0, 1, 0, 1.0F};
  const auto bytes = codec.encode(tensor, place, 1, nullptr, frame);
  if (!bytes) return bytes.error();
  const auto repeated = codec.encode(tensor, place, 1, nullptr, again);
  if (!repeated) return repeated.error();
  if (*bytes != *repeated || std::memcmp(frame.data(), again.data(), *bytes) != 0) {
    return Error{Errc::internal, "two encodings of one tensor differ", "please report this"};
  }
  std::vector<float> decoded(values.size());
  const Bytes frames[] = {Bytes(frame).first(*bytes)};
  auto answer =
      codec.decode(frames, 1.0F, false, {DType::f32, tensor.rows, tensor.cols, decoded.data()});
  if (!answer) return answer;
  if (!std::isfinite(compare(values, decoded).relative_l2)) {
    return Error{Errc::internal, "decoded values are not finite", "please report this"};
  }
  return {};
}

SelfTest self_test(const CodecTable& codec) {
  using Clock = std::chrono::steady_clock;
  SelfTest test{std::string(codec.info.name), true, {}, 0, 0};
  const auto start = Clock::now();
  const auto passed = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  const auto ready = TensorCodec::create(codec.info.name);
  if (!ready) return {test.codec, false, ready.error().message, 0, passed()};
  std::vector<float> values(64 * 1024);
  for (; passed() < 1.0 && test.ok; ++test.rounds) {
    fill_gradient(GradientKind::layered, test.rounds, values);
    const auto round = round_trip(**ready, values, test.rounds);
    if (!round) test = {test.codec, false, round.error().message, test.rounds, 0};
  }
  test.seconds = passed();
  return test;
}

std::vector<SelfTest> self_tests() {
  std::vector<SelfTest> tests;
  for (const CodecTable* codec : all_codecs()) tests.push_back(self_test(*codec));
  return tests;
}

Json to_json(const std::vector<SelfTest>& tests) {
  Json json = Json::array();
  for (const SelfTest& t : tests) {
    json.push_back({{"codec", t.codec},
                    {"ok", t.ok},
                    {"why", t.why},
                    {"rounds", t.rounds},
                    {"seconds", t.seconds}});
  }
  return json;
}

// ---- report ----

void print_line(std::string_view name, std::string_view text) {
  fmt::print("{:<12} {}\n", name, text);
}

std::string yes_or_why(bool yes, const Json& finding) {
  return yes ? "yes" : fmt::format("no: {}", finding["why"].text());
}

std::string nccl_text(const Json& nccl) {
  const auto why = nccl["why"].text();
  if (!nccl["found"].flag()) return "no: " + why;
  const auto version = nccl["version"].text();
  if (!nccl["able"].flag()) return fmt::format("{}, and cannot run here: {}", version, why);
  return fmt::format("{}, GPUs: {}", version, nccl["gpus"].whole());
}

void print_report(const Json& report) {
  const Json& machine = report["machine"];
  print_line("laconic", report["version"].text() + ", " + machine["compiler"].text());
  print_line("processor", machine["cpu"].text());
  print_line("threads", fmt::format("{} usable", machine["cores"].whole()));
  const Json& isa = report["isa"];
  print_line("kernels", fmt::format("{} of {}: {}", isa["chosen"].text(),
                                    fmt::join(isa_names(), ", "), isa["why"].text()));
  print_line("huge pages", machine["huge_pages"].text());
  print_line("NCCL", nccl_text(report["nccl"]));
  const Json& device = report["device"];
  print_line("GPU kernels", device["able"].flag()
                                ? fmt::format("{} on {}; driver of CUDA {}", device["image"].text(),
                                              device["gpu"].text(), device["driver"].text())
                                : "no: " + device["why"].text());
  print_line("network lab",
             yes_or_why(report["network_lab"]["able"].flag(), report["network_lab"]));
  for (const auto& [_, t] : report["codecs"].members()) {
    print_line(t["codec"].text(), t["ok"].flag() ? fmt::format("ok, {} rounds", t["rounds"].whole())
                                                 : "FAILED: " + t["why"].text());
  }
  print_line("usable", report["ok"].flag() ? "yes" : "no");
  print_line("PyTorch", kAboutPyTorch);
}

int doctor(const Options& options) {
  const auto tests = options.test ? self_tests() : std::vector<SelfTest>{};
  const bool usable = !all_codecs().empty() && std::all_of(tests.begin(), tests.end(),
                                                           [](const SelfTest& t) { return t.ok; });
  const Json report{{"ok", usable},
                    {"version", LACONIC_VERSION_STRING},
                    {"machine", machine_json()},
                    {"isa", isa_findings()},
                    {"nccl", nccl_findings()},
                    {"device", device_findings()},
                    {"network_lab", namespace_findings()},
                    {"codecs", to_json(tests)}};
  options.json ? print_json(report) : print_report(report);
  return usable ? kFine : kBadAnswer;
}

}  // namespace

Run add_doctor(Program& program) {
  const Command command =
      program.add_command("doctor", "what this machine can do, and what was chosen");
  const auto options = std::make_shared<Options>();
  command.add_flag("--test", options->test, "also a self-test of one second per codec");
  command.add_flag("--json", options->json, "machine-readable");
  return [options] { return doctor(*options); };
}

}  // namespace laconic::tools
