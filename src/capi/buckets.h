// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Buckets of callers.
#pragma once

#include "capi/boundary.h"
#include "session/session.h"

namespace laconic::capi {

inline int32_t read_layout(const laconic_bucket* theirs, laconic_bucket* b) {
  if (const int32_t bad = read_struct(theirs, "bucket", b); bad != 0) return bad;
  if (b->dtype > LACONIC_BF16) {
    return fail(Errc::invalid_argument, "the bucket's dtype is not a float type",
                "LACONIC_F32, LACONIC_F16 or LACONIC_BF16");
  }
  if ((b->flags & ~uint32_t{LACONIC_BUCKET_RAW}) != 0)
    return fail(Errc::invalid_argument, "the bucket has an unknown flag");
  if (b->count != 0 && (b->parameters == nullptr || b->offsets == nullptr))
    return null_argument("the parameters and offsets of a bucket");
  return 0;
}

inline int32_t read_bucket(const laconic_bucket* theirs, laconic_bucket* b) {
  if (const int32_t bad = read_layout(theirs, b); bad != 0) return bad;
  if (b->elements != 0 && b->buffer == nullptr) return null_argument("the buffer of a bucket");
  return 0;
}

inline collective::LayoutView to_layout(const laconic_bucket& b) {
  return {{b.parameters, b.count}, {b.offsets, b.count}, b.elements};
}

inline collective::Bucket to_bucket(const laconic_bucket& b) {
  collective::Bucket bucket;
  bucket.buffer = b.buffer;
  bucket.dtype = static_cast<DType>(b.dtype);
  bucket.step = b.step;
  bucket.index = b.index;
  bucket.raw = (b.flags & LACONIC_BUCKET_RAW) != 0;
  return bucket;
}

}  // namespace laconic::capi
