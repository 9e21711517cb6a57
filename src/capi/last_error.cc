// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The calling thread's last failure in words.
#include <string>
#include <utility>

#include "capi/boundary.h"

namespace laconic::capi {
namespace {

struct LastError {
  std::string message;
  std::string hint;
};
LastError& last_error() {
  thread_local LastError last;
  return last;
}

/// Short enough for a string without an allocation.
template <size_t N>
int32_t fail_briefly(Errc code, const char (&message)[N]) noexcept {
  static_assert(N <= 16);
  last_error().message.assign(message);
  last_error().hint.clear();
  return static_cast<int32_t>(code);
}

}  // namespace

int32_t fail(Error error) {
  if (error.message.empty()) error.message = errc_name(error.code);
  last_error() = {std::move(error.message), std::move(error.hint)};
  return static_cast<int32_t>(error.code);
}

int32_t fail(Errc code, const char* message, const char* hint) {
  return fail(Error{code, message, hint});
}

int32_t null_argument(const char* which) {
  return fail(Error{Errc::invalid_argument, std::string(which) + " must not be null", {}});
}

int32_t fail_out_of_memory() noexcept { return fail_briefly(Errc::out_of_memory, "out of memory"); }
int32_t fail_internal() noexcept { return fail_briefly(Errc::internal, "internal error"); }

int32_t bad_struct(const char* name, size_t size, size_t required) {
  return fail(Error{Errc::invalid_argument,
                    std::string(name) + " is a struct of " + std::to_string(size) +
                        " bytes, at least " + std::to_string(required) + " are needed",
                    "set struct_size to sizeof the struct in your header"});
}

const char* keep(std::string text) {
  thread_local std::string kept;
  kept = std::move(text);
  return kept.c_str();
}

int32_t check_threads(uint32_t threads) {
  if (threads <= LACONIC_MAX_THREADS) return 0;
  return fail(Errc::invalid_argument, "threads is above 1024", "0 or 1: only the calling thread");
}

}  // namespace laconic::capi

extern "C" {

const char* laconic_error_name(int32_t code) {
  return laconic::errc_name(static_cast<laconic::Errc>(code)).data();
}
const char* laconic_last_message(void) { return laconic::capi::last_error().message.c_str(); }
const char* laconic_last_hint(void) { return laconic::capi::last_error().hint.c_str(); }

}  // extern "C"
