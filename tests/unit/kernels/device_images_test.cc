// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "kernels/device_images.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace laconic::kernels {
namespace {

TEST(DeviceImages, EveryImageIsOfItsArchitecture) {
  if (device_images().empty()) GTEST_SKIP() << "built without nvcc";
  std::set<std::string> names;
  for (const device::Image& image : device_images()) {
    names.insert(image.name());
    EXPECT_EQ(image.bytes.back(), 0) << image.name();
    const std::string text(image.bytes.begin(), image.bytes.end() - 1);
    if (image.ptx) {
      EXPECT_NE(text.find("\n.version 7.0\n.target sm_80\n"), std::string::npos);
      EXPECT_EQ(text.find('\0'), std::string::npos);
      continue;
    }
    EXPECT_EQ(text.substr(0, 4), "\177ELF");
    EXPECT_EQ(static_cast<unsigned char>(text[49]), image.architecture);
  }
  EXPECT_EQ(names,
            (std::set<std::string>{"sm_80", "sm_90", "sm_100", "sm_120", "PTX of compute_80"}));
}

TEST(DeviceImages, EveryImageHasEveryKernel) {
  EXPECT_GE(device_kernels().size(), 20U);
  for (const device::Image& image : device_images()) {
    const std::string text(image.bytes.begin(), image.bytes.end());
    for (const std::string_view kernel : device_kernels())
      EXPECT_NE(text.find(kernel), std::string::npos) << image.name() << " " << kernel;
  }
}

}  // namespace
}  // namespace laconic::kernels
