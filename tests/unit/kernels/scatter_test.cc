// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "kernels/sparse/scatter.h"

#include <gtest/gtest.h>

#include <memory>

#include "unit/kernels/dense_inputs.h"

namespace laconic::kernels {
namespace {

class ScatterKernelsTest : public testing::TestWithParam<Isa> {
 protected:
  const ScatterKernels& simd_ = scatter_kernels(GetParam());
};
INSTANTIATE_TEST_SUITE_P(, ScatterKernelsTest, testing::ValuesIn(isas()), isa_param_name);

// Bit by bit: bit b of index i is bit i·width + b of the bytes.
std::vector<uint8_t> pack(const std::vector<uint32_t>& index, uint32_t width) {
  std::vector<uint8_t> bytes((index.size() * width + 7) / 8);
  for (size_t i = 0; i < index.size(); ++i) {
    for (uint32_t b = 0; b < width; ++b) {
      const size_t bit = i * width + b;
      if ((index[i] >> b & 1U) != 0) bytes[bit / 8] |= static_cast<uint8_t>(1U << (bit % 8));
    }
  }
  return bytes;
}

TEST_P(ScatterKernelsTest, EveryWidthUnpacksWithoutReadingPastEnd) {
  std::mt19937 random(3);
  for (uint32_t width = 0; width <= 32; ++width) {
    for (const uint64_t n : {1U, 7U, 8U, 9U, 31U, 64U, 200U}) {
      std::vector<uint32_t> index(n);
      for (uint32_t& i : index) {
        i = width == 0 ? 0 : static_cast<uint32_t>(random()) >> (32 - width);
      }
      const std::vector<uint8_t> bytes = pack(index, width);
      // Exactly as long as needed, on the heap: sanitizers see a byte read after the end.
      const auto exact = std::make_unique<uint8_t[]>(bytes.size());
      std::copy(bytes.begin(), bytes.end(), exact.get());
      const PackedIndices packed{exact.get(), bytes.size(), width};
      for (uint64_t first = 0; first < n; first += 8) {
        std::vector<uint32_t> out(n - first);
        simd_.unpack(packed, first, static_cast<uint32_t>(n - first), out.data());
        ASSERT_TRUE(std::equal(out.begin(), out.end(), index.begin() + static_cast<long>(first)))
            << "width " << width << " n " << n;
      }
      for (uint64_t i = 0; i < n; ++i) ASSERT_EQ(packed_index(packed, i), index[i]);
    }
  }
}

TEST_P(ScatterKernelsTest, ExactRangeIsCleared) {
  for (const uint64_t n : sizes()) {
    for (const uint64_t shift : {0U, 1U, 5U}) {
      std::vector<float> x(n + shift + 1, 7.0F);
      simd_.clear_streaming(x.data() + shift, n);
      for (uint64_t i = 0; i < x.size(); ++i) {
        ASSERT_EQ(x[i], i >= shift && i < shift + n ? 0.0F : 7.0F);
      }
    }
  }
}

TEST(ScatterAdd, ProductAndSumAreRoundedSeparately) {
  std::vector<float> target(100, 0.1F);
  std::vector<float> value(50);
  std::vector<uint32_t> index(50);
  std::vector<uint8_t> bytes(1 + 4 * value.size());
  for (uint32_t j = 0; j < 50; ++j) {
    index[j] = 2 * j;
    value[j] = 1.0F / static_cast<float>(j + 3);
    store(bytes.data() + 1 + 4 * j, value[j]);
  }
  scatter_add(target.data(), index.data(), bytes.data() + 1, 50, 0.7F);
  for (uint32_t j = 0; j < 50; ++j) {
    const volatile float product = 0.7F * value[j];
    EXPECT_EQ(target[2 * j], 0.1F + product);
    EXPECT_EQ(target[2 * j + 1], 0.1F);
  }
}

}  // namespace
}  // namespace laconic::kernels
