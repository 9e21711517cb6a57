// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "kernels/threelc/zero_run.h"

namespace laconic::kernels {
namespace {

uint64_t leading_zeros(const uint8_t* bytes, uint64_t n) {
  uint64_t i = 0;
  while (i < n && bytes[i] == kZeroByte) ++i;
  return i;
}

uint64_t trailing_zeros(const uint8_t* bytes, uint64_t n) {
  uint64_t i = n;
  while (i > 0 && bytes[i - 1] == kZeroByte) --i;
  return n - i;
}

uint64_t run_encode(const uint8_t* bytes, uint64_t n, uint8_t* coded) {
  uint64_t made = 0;
  for (uint64_t i = 0; i < n;) {
    uint64_t run = 0;
    while (run < kLongestRun && i + run < n && bytes[i + run] == kZeroByte) ++run;
    coded[made++] = run < 2 ? bytes[i] : static_cast<uint8_t>(kRunBase + run);
    i += run < 2 ? 1 : run;
  }
  return made;
}

uint64_t run_length(uint8_t code) { return code < kFirstRunCode ? 1 : code - kRunBase; }

Expanded expand(const uint8_t* coded, uint64_t n, uint64_t want, uint8_t* bytes) {
  Expanded done;
  while (done.consumed < n && done.produced < want) {
    const uint8_t code = coded[done.consumed++];
    const uint64_t length = run_length(code);
    std::memset(bytes + done.produced, code < kFirstRunCode ? code : kZeroByte, length);
    done.produced += length;
  }
  return done;
}

uint64_t expanded_size(const uint8_t* coded, uint64_t n) {
  uint64_t size = 0;
  for (uint64_t i = 0; i < n; ++i) size += run_length(coded[i]);
  return size;
}

bool no_run_codes(const uint8_t* bytes, uint64_t n) {
  for (uint64_t i = 0; i < n; ++i) {
    if (bytes[i] >= kFirstRunCode) return false;
  }
  return true;
}

}  // namespace

constinit const ZeroRunKernels kZeroRunScalar{&leading_zeros, &trailing_zeros, &run_encode,
                                              &expand,        &expanded_size,  &no_run_codes};

}  // namespace laconic::kernels
