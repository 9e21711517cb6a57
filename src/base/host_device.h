// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Marks of functions that nvcc compiles as well: LACONIC_HOST_DEVICE for those of one element,
// which the CPU's loops call, too, LACONIC_DEVICE for kernel bodies. Constexpr functions need none
// (--expt-relaxed-constexpr). LACONIC_ROLLED stands before a loop that is not to be unrolled.
#pragma once

#ifdef __CUDACC__
#define LACONIC_HOST_DEVICE __host__ __device__
#define LACONIC_DEVICE __device__
#define LACONIC_ROLLED _Pragma("unroll 1")
#else
#define LACONIC_HOST_DEVICE
#define LACONIC_DEVICE
#define LACONIC_ROLLED
#endif
