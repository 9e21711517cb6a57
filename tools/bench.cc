// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// laconic bench: how fast codecs are here, in multiples of memcpy; with --engine, what they are
// worth on a network.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <memory>

#include "bench_device.h"
#include "bench_engine.h"
#include "bench_point.h"
#include "command.h"
#include "engines.h"
#include "files.h"
#include "gradients.h"
#include "laconic/registry.h"
#include "machine.h"
#include "output.h"
#include "pipeline/device_batch.h"

namespace laconic::tools {
namespace {

struct Options {
  std::vector<std::string> specs;
  std::vector<std::string> sizes{"4Mi"};
  std::vector<std::string> isas;
  std::string data = "laplace";
  std::string input;
  std::string decode = "auto";
  uint32_t threads = 1;
  uint32_t peers = 1;
  uint32_t units = 1;
  double seconds = 1.0;
  bool codec_only = false;
  bool device = false;
  bool json = false;
  EngineBench over;
};

// ---- arguments ----

Result<uint64_t> parse_size(std::string_view text) {
  constexpr std::pair<std::string_view, uint64_t> kSuffixes[] = {
      {"", 1},         {"k", 1000},     {"M", 1000000}, {"G", 1000000000},
      {"Ki", 1 << 10}, {"Mi", 1 << 20}, {"Gi", 1 << 30}};
  uint64_t value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string_view suffix = text.substr(static_cast<std::size_t>(end - text.data()));
  for (const auto& [name, factor] : kSuffixes) {
    if (status != std::errc{} || suffix != name) continue;
    if (value > (uint64_t{1} << 40) / factor) break;
    if (value * factor >= sizeof(float)) return value * factor;
  }
  return Error{Errc::invalid_argument,
               fmt::format("--size '{}' is not a size of at least 4 bytes", text),
               "bytes of float32, with k, M, G, Ki, Mi or Gi: --size 4Mi is 1048576 elements"};
}

Result<Isa> parse_isa(const std::string& text) {
  for (const Isa isa : available_isas()) {
    if (isa_name(isa) == text) return isa;
  }
  return Error{Errc::invalid_argument,
               fmt::format("--isa {}: not in this build or not on this processor", text),
               fmt::format("here: {}", fmt::join(isa_names(), ", "))};
}

Result<std::vector<Spec>> parse_specs(const std::vector<std::string>& texts) {
  std::vector<Spec> specs;
  if (texts.empty()) {
    for (const CodecTable* codec : all_codecs()) specs.push_back(Spec::defaults(*codec));
  }
  for (const std::string& text : texts) {
    auto spec = Spec::parse(text);
    if (!spec) return std::move(spec).error();
    specs.push_back(*std::move(spec));
  }
  return specs;
}

Result<std::vector<Isa>> parse_isas(const std::vector<std::string>& texts) {
  if (texts.empty()) return std::vector<Isa>{best_isa()};
  if (texts.size() == 1 && texts[0] == "all")
    return std::vector<Isa>(available_isas().begin(), available_isas().end());
  std::vector<Isa> isas;
  for (const std::string& text : texts) {
    const auto isa = parse_isa(text);
    if (!isa) return isa.error();
    isas.push_back(*isa);
  }
  return isas;
}

/// One tensor per size, or the one in the file.
Result<std::vector<std::vector<float>>> tensors(const Options& options) {
  std::vector<std::vector<float>> tensors;
  if (!options.input.empty()) {
    auto tensor = read_tensor(options.input);
    if (!tensor) return std::move(tensor).error();
    tensors.push_back(std::move(tensor->values));
    return tensors;
  }
  const auto kind = static_cast<GradientKind>(
      std::find(std::begin(kGradientKinds), std::end(kGradientKinds), options.data) -
      std::begin(kGradientKinds));
  for (const std::string& text : options.sizes) {
    const auto bytes = parse_size(text);
    if (!bytes) return bytes.error();
    tensors.emplace_back(*bytes / sizeof(float));
    fill_gradient(kind, 1, tensors.back());
  }
  return tensors;
}

// ---- results ----

Json spread_json(const Spread& spread) { return {{"low", spread.low}, {"high", spread.high}}; }

Json cycles_json(const Point& point) {
  const Cycles cycles = cycles_per_element(point);
  return {{"encode", cycles.encode}, {"decode", cycles.decode}};
}

Json point_json(const Point& point, const Options& options) {
  return {{"codec", point.spec},
          {"elements", point.elements},
          {"isa", isa_name(point.options.isa)},
          {"threads", point.options.threads},
          {"data", options.input.empty() ? options.data : options.input},
          {"feedback", point.feedback},
          {"codec_only", point.options.codec_only},
          {"scanned", point.scanned},
          {"encode_x_memcpy", point.encode.x_memcpy.median},
          {"decode_x_memcpy", point.decode.x_memcpy.median},
          {"encode_s", point.encode.seconds.median},
          {"decode_s", point.decode.seconds.median},
          {"memcpy_s", point.encode.memcpy_seconds.median},
          {"cycles_per_element", cycles_json(point)},
          {"clock_ghz", point.clock_ghz},
          {"payload_bytes", point.payload_bytes},
          {"ratio", point.ratio},
          {"decode", point.adds ? "add" : "write"},
          {"peers", point.options.peers},
          {"encode_spread", spread_json(point.encode.x_memcpy)},
          {"decode_spread", spread_json(point.decode.x_memcpy)},
          {"samples", point.encode.samples + point.decode.samples},
          {"rejected", point.encode.rejected + point.decode.rejected},
          {"error_metrics", to_json(point.error)}};
}

std::string spread_text(const Spread& x) {
  return fmt::format("{:.2f} ({:.2f}-{:.2f})", x.median, x.low, x.high);
}

std::vector<std::string> row_of(const Point& point) {
  const uint32_t rejected = point.encode.rejected + point.decode.rejected;
  const double gigabytes = static_cast<double>(point.elements) * sizeof(float) / 1e9;
  const Cycles cycles = cycles_per_element(point);
  return {point.spec + (point.feedback ? " (ef)" : ""),
          bytes_text(point.elements * sizeof(float)),
          std::string(isa_name(point.options.isa)),
          fmt::format("{:.1f}", point.ratio),
          spread_text(point.encode.x_memcpy),
          spread_text(point.decode.x_memcpy),
          point.adds ? "add" : "write",
          fmt::format("{:.1f}", gigabytes / point.encode.seconds.median),
          fmt::format("{:.1f}", gigabytes * point.options.peers / point.decode.seconds.median),
          fmt::format("{:.1f}", gigabytes / point.encode.memcpy_seconds.median),
          fmt::format("{:.2f}", cycles.encode),
          fmt::format("{:.2f}", cycles.decode),
          fmt::format("{:.3g}", point.error.relative_l2),
          fmt::format("{:.4f}", point.error.cosine),
          fmt::format("{:.2g}", point.error.max_abs),
          rejected > 0 ? fmt::format("{} of {}", rejected,
                                     point.encode.samples + point.decode.samples + rejected)
                       : ""};
}

void print_table(const std::vector<Point>& points, const Options& options) {
  using A = Table::Align;
  Table table({{"codec"},
               {"size"},
               {"isa"},
               {"ratio", A::right},
               {"encode x memcpy", A::right},
               {"decode x memcpy", A::right},
               {"how"},
               {"enc GB/s", A::right},
               {"dec GB/s", A::right},
               {"cpy GB/s", A::right},
               {"enc cyc", A::right},
               {"dec cyc", A::right},
               {"rel L2", A::right},
               {"cosine", A::right},
               {"max err", A::right},
               {"rejected", A::right}});
  for (const Point& point : points) table.add(row_of(point));
  table.print();
  fmt::print(
      "\n{}, {} thread{}, {} data. x memcpy: medians (quartiles) of paired ratios to memcpy of the "
      "same float bytes.\n"
      "(ef): error feedback is inside the encode time. how: decode writes every element or adds "
      "the sent ones.\n"
      "cyc: cycles of the core per element, at the clock that dependent multiplications show.\n"
      "rejected: samples whose memcpy was more than 30 % off the median.\n",
      cpu_model(), options.threads, options.threads == 1 ? ", pinned" : "s",
      options.input.empty() ? options.data : options.input);
  if (options.peers > 1) {
    fmt::print("decode: {} payloads in one call, against as many memcpys.\n", options.peers);
  }
}

DecodeMode decode_mode(const std::string& word) {
  return word == "add"     ? DecodeMode::add
         : word == "write" ? DecodeMode::write
                           : DecodeMode::automatic;
}

int bench(const Options& options) {
  const auto specs = parse_specs(options.specs);
  if (!specs) return fail(specs.error(), options.json, kUsage);
  const auto isas = parse_isas(options.isas);
  if (!isas) return fail(isas.error(), options.json, kUsage);
  const auto inputs = tensors(options);
  if (!inputs) return fail(inputs.error(), options.json, kUsage);

  std::vector<Point> points;
  for (const std::vector<float>& values : *inputs) {
    for (const Spec& spec : *specs) {
      for (const Isa isa : *isas) {
        const auto point = measure(spec, values,
                                   {isa, options.threads, options.seconds, options.peers,
                                    decode_mode(options.decode), options.codec_only});
        if (!point) return fail(point.error(), options.json, kBadAnswer);
        points.push_back(*point);
      }
    }
  }
  if (!options.json) {
    print_table(points, options);
    return kFine;
  }
  Json results = Json::array();
  for (const Point& point : points) results.push_back(point_json(point, options));
  print_json({{"machine", machine_json()}, {"results", results}});
  return kFine;
}

Error too_many(uint32_t units, uint64_t elements) {
  return {Errc::invalid_argument, fmt::format("--units {}: there are {} elements", units, elements),
          "at most one unit for each element"};
}

/// Without --spec: all that have kernels.
int bench_on_device(const Options& options) {
  auto specs = parse_specs(options.specs);
  if (!specs) return fail(specs.error(), options.json, kUsage);
  if (options.specs.empty()) {
    specs->erase(
        std::remove_if(specs->begin(), specs->end(),
                       [](const Spec& spec) { return !pipeline::DeviceBatch::encodes(spec); }),
        specs->end());
  }
  auto inputs = tensors(options);
  if (!inputs) return fail(inputs.error(), options.json, kUsage);
  for (const std::vector<float>& values : *inputs) {
    if (values.size() < options.units)
      return fail(too_many(options.units, values.size()), options.json, kUsage);
  }
  return bench_device(
      {*std::move(specs), *std::move(inputs), options.units, options.seconds, options.json});
}

int bench_over(const Command& command, const Options& options) {
  const auto specs = parse_specs(options.specs);
  if (!specs) return fail_everywhere(specs.error(), options.json, kUsage);
  return bench_engine(command, options.over, *specs, options.threads, options.json);
}

}  // namespace

Run add_bench(Program& program) {
  const Command command =
      program.add_command("bench", "speed, ratio and error of codecs on this machine");
  const auto options = std::make_shared<Options>();
  command.add_option("--spec", options->specs,
                     "spec to measure; may be repeated (default: all codecs)");
  command
      .add_option("--size", options->sizes,
                  "bytes of float32 with k, M, G, Ki, Mi, Gi; may be repeated")
      .capture_default_str();
  command.add_option("--isa", options->isas,
                     "instruction sets, or all (default: the best one here)");
  command.add_option("--threads", options->threads, "threads of the codec")
      .range(1U, 1024U)
      .capture_default_str();
  command.add_option("--seconds", options->seconds, "time per point")
      .range(0.01, 3600.0)
      .capture_default_str();
  const Option data = command.add_option("--data", options->data, "kind of gradient")
                          .one_of({"laplace", "gaussian", "layered"})
                          .capture_default_str();
  command.add_option("--input", options->input, "your own gradient: raw float32, or .npy")
      .excludes(data);
  command.add_option("--peers", options->peers, "payloads that one call decodes")
      .range(1U, 1024U)
      .capture_default_str();
  command
      .add_option("--decode", options->decode,
                  "write every element, add the sent ones, or what suits the codec")
      .one_of({"auto", "write", "add"})
      .capture_default_str();
  command.add_flag(
      "--codec-only", options->codec_only,
      "the codec's own encode: no scan for NaN before it, no feedback unless it is fused");
  const Option device = command.add_flag("--device", options->device,
                                         "the codecs' kernels on this machine's first GPU");
  for (const char* other : {"--isa", "--threads", "--peers", "--decode", "--codec-only"})
    command.get_option(other).excludes(device);
  command
      .add_option("--units", options->units,
                  "with --device: measures also that number of units, encoded by one batch")
      .range(1U, 65536U)
      .needs(device);
  command.add_flag("--json", options->json, "machine-readable");
  const Option engine = add_engine_options(command, options->over);
  for (const char* alone : {"--size", "--isa", "--seconds", "--data", "--input", "--peers",
                            "--decode", "--codec-only", "--device"})
    command.get_option(alone).excludes(engine);
  return [command, options] {
    if (options->device) return bench_on_device(*options);
    return options->over.engine.empty() ? bench(*options) : bench_over(command, *options);
  };
}

}  // namespace laconic::tools
