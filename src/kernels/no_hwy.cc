// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A build without Highway: every family's accessor gives the scalar reference.
#include "kernels/bits/bits.h"
#include "kernels/cast/cast.h"
#include "kernels/core/basic.h"
#include "kernels/int8/int8.h"
#include "kernels/levels/levels.h"
#include "kernels/lowrank/lowrank.h"
#include "kernels/minifloat/inceptionn.h"
#include "kernels/natural/natural.h"
#include "kernels/quantile/quantile.h"
#include "kernels/rotate/grid.h"
#include "kernels/rotate/rotate.h"
#include "kernels/sparse/moments.h"
#include "kernels/sparse/permute.h"
#include "kernels/sparse/scatter.h"
#include "kernels/sparse/select.h"
#include "kernels/threelc/threelc.h"
#include "kernels/threelc/zero_run.h"

namespace laconic::kernels {

const BasicKernels& basic_kernels(Isa) noexcept { return kBasicScalar; }
const BitsKernels& bits_kernels(Isa) noexcept { return kBitsScalar; }
const CastKernels& cast_kernels(Isa) noexcept { return kCastScalar; }
const Int8Kernels& int8_kernels(Isa) noexcept { return kInt8Scalar; }
const LevelsKernels& levels_kernels(Isa) noexcept { return kLevelsScalar; }
const LowRankKernels& lowrank_kernels(Isa) noexcept { return kLowRankScalar; }
const MomentsKernels& moments_kernels(Isa) noexcept { return kMomentsScalar; }
const InceptionnKernels& inceptionn_kernels(Isa) noexcept { return kInceptionnScalar; }
const NaturalKernels& natural_kernels(Isa) noexcept { return kNaturalScalar; }
const QuantileKernels& quantile_kernels(Isa) noexcept { return kQuantileScalar; }
const GridKernels& grid_kernels(Isa) noexcept { return kGridScalar; }
const RotateKernels& rotate_kernels(Isa) noexcept { return kRotateScalar; }
const PermuteKernels& permute_kernels(Isa) noexcept { return kPermuteScalar; }
const ScatterKernels& scatter_kernels(Isa) noexcept { return kScatterScalar; }
const SelectKernels& select_kernels(Isa) noexcept { return kSelectScalar; }
const ThreeLcKernels& threelc_kernels(Isa) noexcept { return kThreeLcScalar; }
const ZeroRunKernels& zero_run_kernels(Isa) noexcept { return kZeroRunScalar; }

}  // namespace laconic::kernels
