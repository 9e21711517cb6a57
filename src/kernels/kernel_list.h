// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Every kernel of the device, a line each: symbols of kernels.cu, and what the host's checked
// device runs.
#pragma once

#include "kernels/bits/bits_device.h"
#include "kernels/bits/means_device.h"
#include "kernels/cast/cast_device.h"
#include "kernels/core/measure_device.h"
#include "kernels/int8/int8_device.h"
#include "kernels/rotate/thc_device.h"
#include "kernels/sidco/sidco_device.h"
#include "kernels/sparse/radix_device.h"
#include "kernels/sparse/select_device.h"
#include "kernels/sparse/sparse_device.h"
#include "kernels/threelc/threelc_device.h"

#define LACONIC_FOR_EACH_KERNEL(X) \
  X(Measure)                       \
  X(CastEncode)                    \
  X(CastCheck)                     \
  X(CastDecode)                    \
  X(Int8Encode)                    \
  X(Int8Check)                     \
  X(Int8Decode)                    \
  X(ThreeLcPack)                   \
  X(ThreeLcJoin)                   \
  X(ThreeLcPut)                    \
  X(ThreeLcSizes)                  \
  X(ThreeLcStarts)                 \
  X(ThreeLcDecode)                 \
  X(ThreeLcOutline)                \
  X(ThreeLcCheck)                  \
  X(ThreeLcTotal)                  \
  X(SignEncode)                    \
  X(SignCheck)                     \
  X(SignDecode)                    \
  X(SignVotes)                     \
  X(SparseCheck)                   \
  X(SparseStarts)                  \
  X(SparseDecode)                  \
  X(SelectCollect)                 \
  X(SelectCount)                   \
  X(SelectPlace)                   \
  X(SelectPut)                     \
  X(SelectFinish)                  \
  X(RadixSample)                   \
  X(RadixDigits)                   \
  X(RadixNarrow)                   \
  X(MeansPack)                     \
  X(MeansTotal)                    \
  X(MeansRest)                     \
  X(MeansCheck)                    \
  X(MeansDecode)                   \
  X(SidcoBegin)                    \
  X(SidcoMoments)                  \
  X(SidcoFit)                      \
  X(SidcoChoose)                   \
  X(SidcoCommit)                   \
  X(ThcMeasure)                    \
  X(ThcEncode)                     \
  X(ThcLanes)                      \
  X(ThcCheck)                      \
  X(ThcDecode)
