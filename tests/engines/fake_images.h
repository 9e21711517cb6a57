// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Images that the driver of the tests takes for kernels.
#pragma once

#include <span>
#include <vector>

#include "device/program.h"

namespace laconic::test {

inline constexpr char kCubin80[] = "fake cubin 80", kCubin90[] = "fake cubin 90";
inline constexpr char kPtx80[] = ".version 7.0\n.target sm_80\n";

template <std::size_t kSize>
laconic::Bytes text_bytes(const char (&text)[kSize]) {
  return {reinterpret_cast<const uint8_t*>(text), kSize};
}

inline std::vector<device::Image> fake_images() {
  return {{80, false, text_bytes(kCubin80)},
          {90, false, text_bytes(kCubin90)},
          {80, true, text_bytes(kPtx80)}};
}

/// The images of the library that a test program links: fake_images() unless a test gives others.
std::span<const device::Image>& library_images();

}  // namespace laconic::test
