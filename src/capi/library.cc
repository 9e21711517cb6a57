// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// What the library says about itself.
#include <string>

#include "laconic/laconic.h"
#include "laconic/version.h"
#include "session/describe.h"

extern "C" {

int32_t laconic_abi_version(void) { return LACONIC_ABI_VERSION; }
const char* laconic_version(void) { return LACONIC_VERSION_STRING; }

const char* laconic_build_info(void) {
  static const std::string text = laconic::session::describe_build();
  return text.c_str();
}

const char* laconic_codecs_json(void) {
  static const std::string text = laconic::session::describe_codecs();
  return text.c_str();
}

}  // extern "C"
