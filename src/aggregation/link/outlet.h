// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "laconic/bytes.h"

namespace laconic::aggregation {

/// Takes what a link sends. The header is copied during the call; the payload is the caller's of
/// Link::begin(), or a result that is kept: it is valid until the link is called again. `padding`
/// zeros follow it.
class Outlet {
 public:
  virtual ~Outlet() = default;
  virtual void send(Bytes header, Bytes payload, std::size_t padding) = 0;
};

}  // namespace laconic::aggregation
