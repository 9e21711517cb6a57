// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Version and build information.
#include <string>

#include "capi/boundary.h"
#include "laconic/registry.h"
#include "laconic/version.h"
#include "session/describe.h"

using laconic::capi::guarded_value;

extern "C" {

int32_t laconic_abi_version(void) { return LACONIC_ABI_VERSION; }
const char* laconic_version(void) { return LACONIC_VERSION_STRING; }

// The texts are made at the first call; one that finds no memory leaves the making to the next.
const char* laconic_build_info(void) {
  return guarded_value<const char*>("", [](const char*& out) {
    static const std::string text = laconic::session::describe_build();
    out = text.c_str();
    return 0;
  });
}

const char* laconic_codecs_json(void) {
  return guarded_value<const char*>("", [](const char*& out) {
    static const std::string text = laconic::session::describe_codecs(laconic::all_codecs());
    out = text.c_str();
    return 0;
  });
}

const char* laconic_device_info(const char* driver) {
  return guarded_value<const char*>("", [&](const char*& out) {
    out = laconic::capi::keep(laconic::session::describe_device(driver == nullptr ? "" : driver));
    return 0;
  });
}

}  // extern "C"
