// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Saved state: named float arrays, one set per rank.
#include <algorithm>
#include <cstring>
#include <string>

#include "capi/handles.h"

using laconic::Errc;
using laconic::capi::bad_struct;
using laconic::capi::fail;
using laconic::capi::guarded;
using laconic::capi::sized;

extern "C" {

void laconic_session_state_header(const laconic_session* session, laconic_state_header* out) {
  const auto header = session->session->state_header();
  *out = {};
  out->struct_size = sizeof *out;
  out->version = header.version;
  out->rank = header.rank;
  out->world = header.world;
  out->model_hash = header.model_hash;
  out->agreement = header.agreement;
  std::copy_n(header.spec.data(), std::min(header.spec.size(), sizeof out->spec - 1), out->spec);
}

uint32_t laconic_session_state_count(const laconic_session* session) {
  return static_cast<uint32_t>(session->session->store().entries().size());
}

int32_t laconic_session_state_entry(laconic_session* session, uint32_t i, const char** name,
                                    float** data, uint64_t* count) {
  const auto& entries = session->session->store().entries();
  if (i >= entries.size()) return fail(Errc::invalid_argument, "no such entry");
  *name = entries[i].name.c_str();
  *data = entries[i].values.data();
  *count = entries[i].values.size();
  return 0;
}

int32_t laconic_session_state_accepts(const laconic_session* session,
                                      const laconic_state_header* header) {
  return guarded([&]() -> int32_t {
    if (!sized(header)) return bad_struct("header is null or of an older version");
    const char* end = static_cast<const char*>(std::memchr(header->spec, 0, sizeof header->spec));
    if (end == nullptr)
      return fail(Errc::state_corrupt, "the spec in the saved state is not terminated");
    const laconic::feedback::StateHeader saved{header->version,   header->rank,
                                               header->world,     header->model_hash,
                                               header->agreement, std::string(header->spec, end)};
    auto ok = laconic::feedback::accepts(session->session->state_header(), saved);
    return ok ? 0 : fail(ok.error());
  });
}

}  // extern "C"
