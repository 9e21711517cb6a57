// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// What the handles of sessions and exchanges are.
#pragma once

#include <array>
#include <memory>
#include <string>

#include "capi/boundary.h"
#include "session/session.h"

struct laconic_exchange {
  laconic::session::Session* session = nullptr;
  laconic::collective::Exchange* exchange = nullptr;
  std::array<laconic::transport::Step, laconic::transport::kMaxBatch> batch;
};
struct laconic_session {
  std::unique_ptr<laconic::session::Session> session;
  laconic_exchange exchange;
  laconic::collective::Layout layout;
  std::string text;
};
