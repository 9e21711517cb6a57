// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// One bucket: encoded, driven step by step, decoded.
#include "capi/handles.h"

using laconic::DType;
using laconic::Errc;
using laconic::Error;
using laconic::capi::bad_struct;
using laconic::capi::fail;
using laconic::capi::guarded;
using laconic::capi::sized;

extern "C" {

int32_t laconic_exchange_begin(laconic_session* session, const laconic_bucket* bucket,
                               laconic_exchange** out) {
  return guarded([&]() -> int32_t {
    if (session == nullptr || out == nullptr) return fail(Errc::invalid_argument, "null argument");
    *out = nullptr;
    if (!sized(bucket) || bucket->dtype > LACONIC_BF16)
      return bad_struct("bucket is null, too old or of no float type");
    auto& layout = session->layout;
    layout.parameters.assign(bucket->parameters, bucket->parameters + bucket->count);
    layout.offsets.assign(bucket->offsets, bucket->offsets + bucket->count);
    layout.elements = bucket->elements;
    const laconic::collective::Bucket b{bucket->buffer,
                                        static_cast<DType>(bucket->dtype),
                                        bucket->step,
                                        bucket->index,
                                        (bucket->flags & LACONIC_BUCKET_RAW) != 0};
    auto exchange = session->session->begin(b, layout);
    if (!exchange) return fail(exchange.error());
    session->exchange.session = session->session.get();
    session->exchange.exchange = *exchange;
    *out = &session->exchange;
    return 0;
  });
}

void laconic_exchange_fail(laconic_exchange* exchange, int32_t code, const char* message) {
  (void)guarded([&]() -> int32_t {
    exchange->exchange->fail(Error{static_cast<Errc>(code), message == nullptr ? "" : message, {}});
    return 0;
  });
}

int32_t laconic_exchange_next(laconic_exchange* exchange, laconic_step* steps, uint32_t* count) {
  return guarded([&]() -> int32_t {
    static_assert(laconic::transport::kMaxBatch == LACONIC_MAX_BATCH);
    auto n = exchange->session->next(*exchange->exchange, exchange->batch);
    if (!n) return fail(n.error());
    *count = *n;
    for (uint32_t i = 0; i < *n; ++i) {
      const auto& s = exchange->batch[i];
      laconic_step& c = steps[i];
      c = {};
      c.kind = static_cast<uint32_t>(s.kind);
      c.dtype = static_cast<uint32_t>(s.dtype);
      c.short_sends = s.short_sends ? 1 : 0;
      c.needs_host = s.needs_host ? 1 : 0;
      c.count = s.count;
      c.send = s.send;
      c.recv = s.recv;
      c.send_counts = s.send_counts.data();
      c.recv_counts = s.recv_counts.data();
      if (s.kind == laconic::transport::StepKind::all_gather) {
        c.send_bytes = s.send_counts.empty() ? 0 : s.send_counts[0];
      } else {
        for (const uint64_t b : s.send_counts) c.send_bytes += b;
      }
      for (const uint64_t b : s.recv_counts) c.recv_bytes += b;
    }
    return 0;
  });
}

void laconic_exchange_abort(laconic_exchange* exchange) {
  (void)guarded([&]() -> int32_t {
    exchange->session->abort(*exchange->exchange);
    return 0;
  });
}

}  // extern "C"
