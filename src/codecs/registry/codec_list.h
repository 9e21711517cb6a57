// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Every codec of this build: one #include and one line of CodecList each. The conformance suite,
// the fuzz targets, the command line, the Python classes and the table in docs/guide/specs.md
// follow from this list. It is explicit, as a linker drops objects that only a static constructor
// uses.
#pragma once

#include "codecs/adaq/adaq.h"
#include "codecs/blocktopk/blocktopk.h"
#include "codecs/cast/cast.h"
#include "codecs/dgc/dgc.h"
#include "codecs/efsignsgd/efsignsgd.h"
#include "codecs/inceptionn/inceptionn.h"
#include "codecs/int8/int8.h"
#include "codecs/natural/natural.h"
#include "codecs/none/none.h"
#include "codecs/onebit/onebit.h"
#include "codecs/powersgd/powersgd.h"
#include "codecs/qsgd/qsgd.h"
#include "codecs/randomk/randomk.h"
#include "codecs/sidco/sidco.h"
#include "codecs/signsgd/signsgd.h"
#include "codecs/sketchml/sketchml.h"
#include "codecs/terngrad/terngrad.h"
#include "codecs/thc/thc.h"
#include "codecs/threelc/threelc.h"
#include "codecs/threshold/threshold.h"
#include "codecs/topk/topk.h"
#include "codecs/u8/u8.h"

namespace laconic::codecs {

template <class... C>
struct TypeList {};

using CodecList = TypeList<None, Fp16, Bf16, Int8, PowerSgd, TopK, RandomK, Sidco, ThreeLc, U8,
                           OneBit, SignSgd, Signum, EfSignSgd, Qsgd, TernGrad, Natural, Inceptionn,
                           Threshold, Dgc, AdaQ, SketchMl, Thc, BlockTopK>;

}  // namespace laconic::codecs
