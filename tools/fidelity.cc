// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "fidelity.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>

#include "laconic/frame.h"
#include "laconic/tensor_codec.h"

namespace laconic::tools {
namespace {

/// One encoder and decoder of one gradient.
class Rank {
 public:
  static Result<Rank> create(std::string_view spec, const FileTensor& gradient) {
    auto codec = TensorCodec::create(spec);
    if (!codec) return std::move(codec).error();
    const auto bound = (*codec)->max_frame_bytes(gradient.rows, gradient.cols);
    if (!bound) return bound.error();
    return Rank(*std::move(codec), gradient, *bound);
  }

  /// Encodes the gradient, decodes it into `decoded` and gives the payload's bytes.
  Result<uint64_t> step(uint64_t number, Residual* residual) {
    Place place;
    place.step = number;
    const auto size = codec_->encode(tensor(source_), place, 0, residual, frame_);
    if (!size) return size.error();
    const Bytes frames[] = {Bytes(frame_).first(*size)};
    if (auto ok = codec_->decode(frames, 1.0F, false, tensor(decoded)); !ok)
      return std::move(ok).error();
    const auto parsed = parse_frame(frames[0]);
    if (!parsed) return parsed.error();
    return parsed->payload.size();
  }

  std::vector<float> decoded;

 private:
  Rank(std::unique_ptr<TensorCodec> codec, const FileTensor& gradient, uint64_t bound)
      : decoded(gradient.values.size()),
        codec_(std::move(codec)),
        source_(gradient.values),
        frame_(bound),
        rows_(gradient.rows),
        cols_(gradient.cols) {}

  TensorRef tensor(std::vector<float>& values) const {
    return {DType::f32, rows_, cols_, values.data()};
  }

  std::unique_ptr<TensorCodec> codec_;
  std::vector<float> source_;
  std::vector<uint8_t> frame_;
  uint64_t rows_, cols_;
};

Result<void> check(const FileTensor& gradient) {
  const auto& values = gradient.values;
  if (values.empty()) return Error{Errc::invalid_argument, "the gradient has no elements", {}};
  const auto wrong =
      std::find_if(values.begin(), values.end(), [](float x) { return !std::isfinite(x); });
  if (wrong != values.end()) {
    return Error{Errc::non_finite,
                 fmt::format("element {} of the gradient is {}", wrong - values.begin(), *wrong),
                 "use the gradient of a step that the optimizer would apply"};
  }
  if (std::all_of(values.begin(), values.end(), [](float x) { return x == 0; })) {
    return Error{Errc::invalid_argument,
                 "every element of the gradient is zero: there is nothing to measure against",
                 {}};
  }
  return {};
}

double ratio_of(double raw_bytes, double payload_bytes) {
  return raw_bytes / std::max(payload_bytes, 1.0);
}

void compare_once(std::span<const float> original, std::span<const float> decoded, Fidelity& f) {
  double xx = 0, yy = 0, xy = 0, dd = 0;
  for (std::size_t i = 0; i < original.size(); ++i) {
    const double x = original[i], y = decoded[i];
    xx += x * x;
    yy += y * y;
    xy += x * y;
    dd += (x - y) * (x - y);
    f.max_error = std::max(f.max_error, std::fabs(x - y));
  }
  f.cosine = yy == 0 ? 0 : xy / std::sqrt(xx * yy);
  f.nmse = dd / xx;
  f.bias = xy / xx - 1;
}

double nmse_of_mean(std::span<const float> original, std::span<const double> sum, uint32_t steps) {
  double xx = 0, dd = 0;
  for (std::size_t i = 0; i < original.size(); ++i) {
    const double x = original[i], error = x - sum[i] / steps;
    xx += x * x;
    dd += error * error;
  }
  return dd / xx;
}

}  // namespace

std::string_view fidelity_help() {
  return "Figures of --spec: x is the gradient, y what it decodes to after one encoding without\n"
         "feedback; steady_* take --steps steps of x with the memory that the spec has.\n"
         "  ratio         bytes of x / bytes of the payload; blind to the frame's header, to how "
         "the\n"
         "                exchange multiplies payloads by ranks, and to time\n"
         "  cosine        x.y / (|x||y|); blind to scale: y and 100 y have the same\n"
         "  nmse          |x - y|^2 / |x|^2; blind to where the error is, and high for what "
         "feedback\n"
         "                sends later; a sign has no scale, and its nmse says nothing\n"
         "  max_error     max |x_i - y_i|; blind to all elements but one\n"
         "  bias          x.y / |x|^2 - 1: 0 for an unbiased codec, -0.3 where 30 % of |x|^2 stays "
         "out;\n"
         "                blind to errors at a right angle to x, which is what noise is\n"
         "  steady_ratio  bytes of x / mean bytes of a step; blind to how gradients change from "
         "step\n"
         "                to step\n"
         "  steady_nmse   |x - m|^2 / |x|^2, m the mean of what the steps decoded to; blind to how "
         "late\n"
         "                an element arrives within them, and real gradients do not stand still";
}

Result<Fidelity> fidelity_of(std::string_view spec, const FileTensor& gradient, uint32_t steps) {
  auto rank = Rank::create(spec, gradient);
  if (!rank) return std::move(rank).error();
  if (auto ok = check(gradient); !ok) return std::move(ok).error();
  const std::span<const float> x(gradient.values);
  const auto raw = static_cast<double>(x.size_bytes());

  Fidelity f;
  const auto alone = rank->step(0, nullptr);
  if (!alone) return alone.error();
  f.ratio = ratio_of(raw, static_cast<double>(*alone));
  compare_once(x, rank->decoded, f);

  const auto residual = Residual::create(x.size());
  if (!residual) return residual.error();
  std::vector<double> sum(x.size());
  double bytes = 0;
  for (uint32_t step = 0; step < steps; ++step) {
    const auto sent = rank->step(step, residual->get());
    if (!sent) return sent.error();
    bytes += static_cast<double>(*sent);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += rank->decoded[i];
  }
  f.steady_ratio = ratio_of(raw, bytes / steps);
  f.steady_nmse = nmse_of_mean(x, sum, steps);
  return f;
}

Json to_json(const Fidelity& f) {
  return {{"ratio", f.ratio},
          {"cosine", f.cosine},
          {"nmse", f.nmse},
          {"max_error", f.max_error},
          {"bias", f.bias},
          {"steady_ratio", f.steady_ratio},
          {"steady_nmse", f.steady_nmse}};
}

}  // namespace laconic::tools
