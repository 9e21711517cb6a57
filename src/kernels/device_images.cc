// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "kernels/device_images.h"

#ifdef LACONIC_WITH_CUDA

// Files of cmake/LaconicCuda.cmake, which has the same architectures. A text of PTX ends with a
// zero byte; cubins do not mind one.
#define LACONIC_EMBED(name, file)                                                   \
  __asm__(                                                                          \
      ".pushsection .rodata.laconic_images,\"a\",@progbits\n.balign 64\n"           \
      ".globl laconic_image_" name "\n.hidden laconic_image_" name                  \
      "\n"                                                                          \
      ".globl laconic_image_" name "_end\n.hidden laconic_image_" name              \
      "_end\n"                                                                      \
      "laconic_image_" name ":\n.incbin \"" file "\"\n.byte 0\nlaconic_image_" name \
      "_end:\n.popsection\n");                                                      \
  static_assert(true)

LACONIC_EMBED("sm_80", "sm_80.cubin");
LACONIC_EMBED("sm_90", "sm_90.cubin");
LACONIC_EMBED("sm_100", "sm_100.cubin");
LACONIC_EMBED("sm_120", "sm_120.cubin");
LACONIC_EMBED("ptx", "kernels.ptx");

#define LACONIC_EMBEDDED __attribute__((visibility("hidden"))) extern const uint8_t
extern "C" {
LACONIC_EMBEDDED laconic_image_sm_80[], laconic_image_sm_80_end[];
LACONIC_EMBEDDED laconic_image_sm_90[], laconic_image_sm_90_end[];
LACONIC_EMBEDDED laconic_image_sm_100[], laconic_image_sm_100_end[];
LACONIC_EMBEDDED laconic_image_sm_120[], laconic_image_sm_120_end[];
LACONIC_EMBEDDED laconic_image_ptx[], laconic_image_ptx_end[];
}

#endif

namespace laconic::kernels {

std::span<const device::Image> device_images() noexcept {
#ifdef LACONIC_WITH_CUDA
  static const device::Image kImages[] = {
      {80, false, {laconic_image_sm_80, laconic_image_sm_80_end}},
      {90, false, {laconic_image_sm_90, laconic_image_sm_90_end}},
      {100, false, {laconic_image_sm_100, laconic_image_sm_100_end}},
      {120, false, {laconic_image_sm_120, laconic_image_sm_120_end}},
      {80, true, {laconic_image_ptx, laconic_image_ptx_end}},
  };
  return kImages;
#else
  return {};
#endif
}

}  // namespace laconic::kernels
