// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// One bucket: begun, driven step by step, ended.
#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "capi/buckets.h"
#include "capi/handles.h"
#include "engines/c_step.h"

namespace {

using laconic::DType;
using laconic::Errc;
using laconic::Error;
using laconic::Result;
using laconic::capi::bad_struct;
using laconic::capi::fail;
using laconic::capi::guarded;
using laconic::capi::kRequired;
using laconic::capi::null_argument;
using laconic::capi::read_bucket;
using laconic::capi::read_layout;
using laconic::capi::to_bucket;
using laconic::capi::to_layout;

int32_t not_running() {
  return fail(Errc::exchange_order, "no exchange is running", "call laconic_exchange_begin first");
}

/// The exchange is over: the library's, whatever becomes of it, is not touched again.
laconic::collective::Exchange& end(laconic_exchange& e) {
  return *std::exchange(e.running, nullptr);
}

/// A place of the window in which nothing runs: the session has not refused to begin another.
laconic_exchange& idle_place(laconic_session& session) {
  return *std::ranges::find(session.exchanges, nullptr, &laconic_exchange::running);
}

/// The next batch of the library's exchange.
Result<uint32_t> advance(laconic_exchange& e) {
  e.started = true;
  auto steps = e.owner->session->next(*e.running, e.batch, std::exchange(e.timing, {}));
  if (!steps || *steps == 0) end(e);
  return steps;
}

int32_t check_room(uint32_t needed, uint32_t room) {
  if (needed <= room) return 0;
  return fail(
      Error{Errc::buffer_too_small,
            "the batch has " + std::to_string(needed) + " steps, the buffer holds " +
                std::to_string(room),
            "a buffer of LACONIC_MAX_BATCH steps is always enough; call again, nothing was lost"});
}

}  // namespace

extern "C" {

int32_t laconic_exchange_begin(laconic_session* session, const laconic_bucket* bucket,
                               laconic_exchange** out) {
  return guarded([&]() -> int32_t {
    if (out != nullptr) *out = nullptr;
    if (session == nullptr || out == nullptr) return null_argument("session and out");
    laconic_bucket b;
    if (const int32_t bad = read_bucket(bucket, &b); bad != 0) return bad;
    if (session->session->model().options().owner_turns) {
      return fail(Errc::unsupported, "this session was made with owner_turns",
                  "use laconic_driver_submit and laconic_driver_pull");
    }
    auto exchange = session->session->begin(to_bucket(b), to_layout(b));
    if (!exchange) return fail(std::move(exchange).error());
    laconic_exchange& handle = idle_place(*session);
    handle.running = *exchange;
    handle.started = false;
    handle.timing = {};
    handle.pending = 0;
    *out = &handle;
    return 0;
  });
}

int32_t laconic_exchange_fail(laconic_exchange* exchange, int32_t code, const char* message) {
  return guarded([&]() -> int32_t {
    if (exchange == nullptr) return null_argument("exchange");
    if (exchange->running == nullptr) return not_running();
    if (exchange->started) {
      return fail(Errc::exchange_order, "the exchange has already issued steps",
                  "call laconic_exchange_fail before the first laconic_exchange_next");
    }
    const auto known = static_cast<Errc>(code);
    const bool listed = known != Errc::ok && laconic::errc_name(known) != "unknown";
    Error error{listed ? known : Errc::internal, {}, {}};
    try {
      if (message != nullptr) error.message = message;
    } catch (const std::bad_alloc&) {  // report at least the code
    }
    exchange->owner->session->fail(*exchange->running, std::move(error));
    return 0;
  });
}

int32_t laconic_exchange_next(laconic_exchange* exchange, laconic_step* steps, uint32_t step_size,
                              uint32_t room, uint32_t* count) {
  return guarded([&]() -> int32_t {
    static_assert(laconic::kMaxBatch == LACONIC_MAX_BATCH);
    if (count != nullptr) *count = 0;
    if (exchange == nullptr || steps == nullptr || count == nullptr)
      return null_argument("exchange, steps and count");
    if (step_size < kRequired<laconic_step>)
      return bad_struct("step", step_size, kRequired<laconic_step>);
    if (exchange->running == nullptr) return not_running();
    if (exchange->pending == 0) {
      auto n = advance(*exchange);
      if (!n) return fail(std::move(n).error());
      exchange->pending = *n;
    }
    *count = exchange->pending;
    if (const int32_t bad = check_room(exchange->pending, room); bad != 0) return bad;
    exchange->pending = 0;
    for (uint32_t i = 0; i < *count; ++i) {
      const laconic_step step = laconic::engines::to_c(exchange->batch[i]);
      std::memcpy(reinterpret_cast<char*>(steps) + size_t{i} * step_size, &step,
                  std::min<size_t>(step_size, sizeof step));
    }
    return 0;
  });
}

int32_t laconic_exchange_timed(laconic_exchange* exchange, double issued, double completed) {
  return guarded([&]() -> int32_t {
    if (exchange == nullptr) return null_argument("exchange");
    if (exchange->running == nullptr) return not_running();
    exchange->timing = {issued, completed};
    return 0;
  });
}

int32_t laconic_session_summed(laconic_session* session, double issued, double completed) {
  return guarded([&]() -> int32_t {
    if (session == nullptr) return null_argument("session");
    session->session->summed({issued, completed});
    return 0;
  });
}

void laconic_exchange_abort(laconic_exchange* exchange) {
  (void)guarded([&]() -> int32_t {
    if (exchange == nullptr) return 0;
    if (exchange->running == nullptr) return 0;
    exchange->owner->session->abort();
    for (laconic_exchange& each : exchange->owner->exchanges) each.running = nullptr;
    return 0;
  });
}

int32_t laconic_session_release_layout(laconic_session* session, const laconic_bucket* bucket) {
  return guarded([&]() -> int32_t {
    if (session == nullptr) return null_argument("session");
    laconic_bucket b;
    if (const int32_t bad = read_layout(bucket, &b); bad != 0) return bad;
    session->session->release(to_layout(b), static_cast<DType>(b.dtype));
    return 0;
  });
}

}  // extern "C"
