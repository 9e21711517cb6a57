// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <new>

#include "laconic/error.h"

namespace laconic::session {

/// Returns the result of `body`, or a short Error if memory is exhausted (also for the text of an
/// error).
template <class Body>
auto without_throwing(Body&& body) -> decltype(body()) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return Error{Errc::out_of_memory, "out of memory", {}};
  }
}

/// If memory for its texts is exhausted, only the code: payloads have to be put back.
inline Error copy_of(const Error& error) noexcept {
  try {
    return error;
  } catch (const std::bad_alloc&) {
    return {error.code, {}, {}};
  }
}

}  // namespace laconic::session
