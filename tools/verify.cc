// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// laconic verify: whether a stand-alone frame is whole and decodes, and how far from the original;
// with --spec, what a spec makes of a gradient.
#include <fmt/format.h>

#include <memory>

#include "command.h"
#include "error_metrics.h"
#include "fidelity.h"
#include "files.h"
#include "frame_fields.h"
#include "laconic/tensor_codec.h"
#include "output.h"

namespace laconic::tools {
namespace {

struct Options {
  std::string file;
  std::string original;
  std::string output;
  std::string spec;
  std::string input;
  uint32_t steps = 8;
  bool json = false;
};

Result<std::vector<float>> decode(const FrameView& frame, Bytes bytes) {
  const auto codec = TensorCodec::create(frame.info.spec);
  if (!codec) return Error{Errc::frame_codec, codec.error().message, codec.error().hint};
  std::vector<float> values(frame.info.count);
  const TensorRef out{DType::f32, frame.info.rows, frame.info.cols, values.data()};
  const Bytes frames[] = {bytes};
  if (auto decoded = (*codec)->decode(frames, 1.0F, false, out); !decoded)
    return std::move(decoded).error();
  return values;
}

Result<ErrorMetrics> compare_with(const std::string& path, std::span<const float> decoded) {
  const auto original = read_floats(path);
  if (!original) return original.error();
  if (original->size() != decoded.size()) {
    return Error{
        Errc::invalid_argument,
        fmt::format("{} holds {} values, the frame {}", path, original->size(), decoded.size()),
        "pass the tensor that was encoded, as raw float32"};
  }
  return compare(*original, decoded);
}

int verify(const Options& options) {
  const auto bytes = read_file(options.file);
  if (!bytes) return fail(bytes.error(), options.json, kUsage);
  const auto frame = parse_frame(*bytes);
  if (!frame) return fail(frame.error(), options.json, kBadAnswer);
  const auto values = decode(*frame, *bytes);
  if (!values) return fail(values.error(), options.json, kBadAnswer);
  Json answer{{"ok", true}, {"frame", describe(*frame, bytes->size())}};
  if (!options.original.empty()) {
    const auto metrics = compare_with(options.original, *values);
    if (!metrics) return fail(metrics.error(), options.json, kUsage);
    answer["error_metrics"] = to_json(*metrics);
  }
  if (!options.output.empty()) {
    const auto written = write_file(options.output, values->data(), values->size() * sizeof(float));
    if (!written) return fail(written.error(), options.json, kUsage);
  }
  if (options.json) {
    print_json(answer);
    return kFine;
  }
  fmt::print("ok: {} of {} elements, {} ({:.1f} to 1)\n", frame->info.spec, frame->info.count,
             bytes_text(bytes->size()), ratio_of(*frame, bytes->size()));
  if (const Json* const metrics = answer.find("error_metrics")) print_fields(*metrics);
  return kFine;
}

int verify_spec(const Options& options) {
  const auto gradient = read_tensor(options.input);
  if (!gradient) return fail(gradient.error(), options.json, kUsage);
  const auto fidelity = fidelity_of(options.spec, *gradient, options.steps);
  if (!fidelity) return fail(fidelity.error(), options.json, kUsage);
  const Json figures = to_json(*fidelity);
  if (options.json) {
    print_json(figures);
  } else {
    for (const auto& [key, figure] : figures.members())
      fmt::print("{:<13} {:.4g}\n", key, figure.number());
  }
  return kFine;
}

}  // namespace

Run add_verify(Program& program) {
  const Command command = program.add_command(
      "verify", "check a stand-alone frame in full and decode it; or measure a spec on a gradient");
  const auto options = std::make_shared<Options>();
  const Option file = command.add_option("file", options->file, "the frame");
  command.add_option("--original", options->original, "raw float32 to measure the error against")
      .needs(file);
  command.add_option("--output", options->output, "write the decoded values here, raw float32")
      .needs(file);
  const Option spec =
      command.add_option("--spec", options->spec, "measure this spec on --input").excludes(file);
  const Option input = command.add_option(
      "--input", options->input, "a gradient: raw float32, or .npy of one or two dimensions");
  spec.needs(input);
  input.needs(spec);
  command.add_option("--steps", options->steps, "steps of the same gradient, for steady_*")
      .range(1, 65536)
      .capture_default_str()
      .needs(spec);
  command.add_flag("--json", options->json, "machine-readable");
  command.footer(std::string(fidelity_help()));
  command.require_either(file, spec, "a frame, or --spec and --input");
  return [options] { return options->spec.empty() ? verify(*options) : verify_spec(*options); };
}

}  // namespace laconic::tools
