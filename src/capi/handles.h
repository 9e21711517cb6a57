// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The handles of sessions and exchanges.
#pragma once

#include <array>
#include <memory>

#include "capi/boundary.h"
#include "session/session.h"

/// A place in a session's window: begin gives one in which no exchange runs.
struct laconic_exchange {
  laconic_session* owner = nullptr;
  laconic::collective::Exchange* running = nullptr;  // null: none, or it has ended
  bool started = false;                              // next was called
  laconic::session::Timing timing;                   // of the batch that was given last
  uint32_t pending = 0;  // steps of `batch` that the caller had no room for
  std::array<laconic::Step, laconic::kMaxBatch> batch;
};

struct laconic_session {
  std::unique_ptr<laconic::session::Session> session;
  std::array<laconic_exchange, laconic::collective::kMaxWindow> exchanges;
};
