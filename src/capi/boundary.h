// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The C boundary: what every function of laconic.h does before and after its work. Checks what
// crosses it and keeps every failure's words for the calling thread.
#pragma once

#include <cstdint>
#include <new>

#include "laconic/error.h"
#include "laconic/laconic.h"

namespace laconic::capi {

/// Keeps the error for laconic_last_message() and laconic_last_hint() and gives its number.
int32_t fail(const Error& error);
int32_t fail(Errc code, const char* message, const char* hint = "");
/// Where there is no memory for a message: `message` fits into a string without an allocation.
int32_t fail_briefly(Errc code, const char* message) noexcept;
int32_t bad_struct(const char* what);
const char* last_message() noexcept;
const char* last_hint() noexcept;

/// Runs `body` (which returns a code); memory running out is the one exception that can come from
/// below.
template <class Body>
int32_t guarded(Body&& body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return fail_briefly(Errc::out_of_memory, "out of memory");
  } catch (...) {
    return fail_briefly(Errc::internal, "internal error");
  }
}

template <class T>
bool sized(const T* p) {
  return p != nullptr && p->struct_size >= sizeof(T);
}

}  // namespace laconic::capi
