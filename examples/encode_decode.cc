// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// One tensor to frames and back, with error feedback: what a frame leaves out is added to the next
// step, so the sum of all decoded frames follows the sum of all inputs. Public headers only.
#include <laconic/random.h>
#include <laconic/tensor_codec.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <vector>

namespace {

constexpr uint64_t kRows = 256;
constexpr uint64_t kCols = 512;
constexpr uint64_t kCount = kRows * kCols;
constexpr uint64_t kSteps = 20;

int fail(const laconic::Error& error) {
  std::fprintf(stderr, "error %d: %s (%s)\n", static_cast<int>(error.code), error.message.c_str(),
               error.hint.c_str());
  return 1;
}

/// A "gradient" of one step: heavy-tailed, the same on every machine.
void fill(std::vector<float>& x, uint64_t step) {
  for (uint64_t i = 0; i < x.size(); ++i) {
    const uint32_t word = laconic::philox({2026, 7}, i / 4, step)[i % 4];
    const float unit = (static_cast<float>(word >> 8) + 0.5F) / 16777216.0F * 2.0F - 1.0F;
    x[i] = unit * unit * unit;
  }
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += std::pow(double{a[i]} - double{b[i]}, 2);
  return std::sqrt(sum);
}

int run(std::string_view spec) {
  const auto codec = laconic::TensorCodec::create(spec);
  if (!codec) return fail(codec.error());
  const auto residual = laconic::Residual::create(kCount);
  if (!residual) return fail(residual.error());
  const auto bound = (*codec)->max_frame_bytes(kRows, kCols);
  if (!bound) return fail(bound.error());

  std::vector<uint8_t> frame(*bound);
  std::vector<float> gradient(kCount), sent(kCount), wanted(kCount);
  uint64_t bytes = 0;
  for (uint64_t step = 0; step < kSteps; ++step) {
    fill(gradient, step);
    for (uint64_t i = 0; i < kCount; ++i) wanted[i] += gradient[i];

    laconic::Place place;
    place.step = step;
    const laconic::TensorRef source{laconic::DType::f32, kRows, kCols, gradient.data()};
    const auto size = (*codec)->encode(source, place, 0, residual->get(), frame);
    if (!size) return fail(size.error());
    bytes += *size;

    const std::array<laconic::Bytes, 1> frames{laconic::Bytes(frame.data(), *size)};
    const laconic::TensorRef target{laconic::DType::f32, kRows, kCols, sent.data()};
    const auto added = (*codec)->decode(frames, 1.0F, true, target);  // sent += decoded
    if (!added) return fail(added.error());
  }

  // The sent and the waiting part add up to the input.
  std::vector<float> total = sent;
  for (uint64_t i = 0; i < kCount; ++i) total[i] += (*residual)->values()[i];
  const double off = distance(total, wanted) / distance(wanted, std::vector<float>(kCount));
  std::printf("%-18s %6.1f to 1, sent + residual differs from the input by %.1e\n",
              (*codec)->spec().canonical().c_str(),
              static_cast<double>(kSteps * kCount * sizeof(float)) / static_cast<double>(bytes),
              off);
  return off < 1e-5 ? 0 : 1;
}

}  // namespace

int main() {
  int failures = 0;
  for (const char* spec : {"none", "int8+ef", "3lc:s=1.5", "topk:ratio=0.01", "powersgd:rank=4"}) {
    failures += run(spec);
  }
  return failures == 0 ? 0 : 1;
}
