// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The calling thread's last failure in words.
#include <string>

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

}  // namespace

int32_t fail(const Error& error) {
  last_error() = {error.message.empty() ? std::string(errc_name(error.code)) : error.message,
                  error.hint};
  return static_cast<int32_t>(error.code);
}

int32_t fail(Errc code, const char* message, const char* hint) {
  return fail(Error{code, message, hint});
}

int32_t fail_briefly(Errc code, const char* message) noexcept {
  last_error().message.assign(message);
  last_error().hint.clear();
  return static_cast<int32_t>(code);
}

int32_t bad_struct(const char* what) {
  return fail(Errc::invalid_argument, what, "set struct_size to sizeof the struct of this header");
}

const char* last_message() noexcept { return last_error().message.c_str(); }
const char* last_hint() noexcept { return last_error().hint.c_str(); }

}  // namespace laconic::capi

extern "C" {

const char* laconic_error_name(int32_t code) {
  return laconic::errc_name(static_cast<laconic::Errc>(code)).data();
}
const char* laconic_last_message(void) { return laconic::capi::last_message(); }
const char* laconic_last_hint(void) { return laconic::capi::last_hint(); }

}  // extern "C"
