// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Saved state: named float arrays, one set per rank.
#include <algorithm>
#include <string>

#include "capi/handles.h"
#include "wire/bundle.h"

namespace {

using laconic::Errc;
using laconic::Error;
using laconic::capi::check_struct;
using laconic::capi::fail;
using laconic::capi::guarded;
using laconic::capi::guarded_value;
using laconic::capi::null_argument;
using laconic::capi::read_struct;
using laconic::capi::write_struct;

int32_t no_such_entry(uint32_t i, size_t entries) {
  return fail(Error{
      Errc::invalid_argument,
      "no entry " + std::to_string(i) + ": the state has " + std::to_string(entries) + " entries",
      {}});
}

int32_t corrupt(std::string what) {
  return fail(Error{Errc::state_corrupt, std::move(what), "use an older checkpoint"});
}

/// A canonical spec: 1 to 255 characters of '!' to '~', then only zeros.
bool is_spec_text(const char (&field)[sizeof laconic_state_header::spec]) {
  const auto printable = [](char c) { return c >= '!' && c <= '~'; };
  const char* const last = std::find_if_not(std::begin(field), std::end(field), printable);
  return last != std::begin(field) && last != std::end(field) &&
         std::all_of(last, std::end(field), [](char c) { return c == '\0'; });
}

/// Rejects headers that no session can have written, whatever its model.
int32_t check_possible(const laconic_state_header& saved) {
  if (saved.version == 0) return corrupt("the saved state has no version");
  if (saved.world == 0 || saved.world > laconic::kMaxWorld)
    return corrupt("the saved state has an invalid world: " + std::to_string(saved.world));
  if (saved.rank >= saved.world) {
    return corrupt("the saved state has an invalid rank: " + std::to_string(saved.rank) +
                   " in a world of " + std::to_string(saved.world));
  }
  if (saved.node_shards > laconic::kMaxWorld ||
      saved.node_shard >= std::max<uint32_t>(saved.node_shards, 1)) {
    return corrupt("the saved state has an invalid shard: " + std::to_string(saved.node_shard) +
                   " of " + std::to_string(saved.node_shards));
  }
  if (!is_spec_text(saved.spec))
    return corrupt("the spec in the saved state is not printable text");
  return 0;
}

}  // namespace

extern "C" {

int32_t laconic_session_state_header(const laconic_session* session, laconic_state_header* out) {
  return guarded([&]() -> int32_t {
    if (session == nullptr) return null_argument("session");
    if (const int32_t bad = check_struct(out, "out"); bad != 0) return bad;
    const auto header = session->session->active().state_header();
    laconic_state_header own{};
    own.version = header.version;
    own.rank = header.rank;
    own.world = header.world;
    own.model_hash = header.model_hash;
    own.agreement = header.agreement;
    std::copy_n(header.spec.data(), std::min(header.spec.size(), sizeof own.spec - 1), own.spec);
    own.node_shards = header.node_shards;
    own.node_shard = header.node_shard;
    write_struct(own, out);
    return 0;
  });
}

uint32_t laconic_session_state_count(const laconic_session* session) {
  return guarded_value<uint32_t>(0, [&](uint32_t& out) -> int32_t {
    if (session == nullptr) return null_argument("session");
    out = static_cast<uint32_t>(session->session->active().store.entries().size());
    return 0;
  });
}

int32_t laconic_session_state_entry(laconic_session* session, uint32_t i, const char** name,
                                    float** data, uint64_t* count) {
  return guarded([&]() -> int32_t {
    if (session == nullptr || name == nullptr || data == nullptr || count == nullptr)
      return null_argument("session, name, data and count");
    const auto settings = session->session->hold();
    auto& store = session->session->active().store;
    const auto& entries = store.entries();
    if (i >= entries.size()) return no_such_entry(i, entries.size());
    if (auto moved = store.to_host(); !moved) return fail(std::move(moved).error());
    *name = entries[i].name.c_str();
    *data = entries[i].values.data();
    *count = entries[i].values.size();
    return 0;
  });
}

int32_t laconic_session_state_accepts(const laconic_session* session,
                                      const laconic_state_header* header) {
  return guarded([&]() -> int32_t {
    if (session == nullptr) return null_argument("session");
    laconic_state_header h;
    if (const int32_t bad = read_struct(header, "header", &h); bad != 0) return bad;
    const auto mine = session->session->active().state_header();
    if (h.version <= mine.version) {  // another version has rules of its own
      if (const int32_t bad = check_possible(h); bad != 0) return bad;
    }
    h.spec[sizeof h.spec - 1] = '\0';
    auto ok = laconic::feedback::accepts(
        mine, {h.version, h.rank, h.world, h.model_hash, h.agreement, h.spec,
               std::max<uint32_t>(h.node_shards, 1), h.node_shard});
    return ok ? 0 : fail(std::move(ok).error());
  });
}

int32_t laconic_session_state_check(const laconic_session* session, uint32_t i, const float* values,
                                    uint64_t count) {
  return guarded([&]() -> int32_t {
    if (session == nullptr) return null_argument("session");
    const auto& entries = session->session->active().store.entries();
    if (i >= entries.size()) return no_such_entry(i, entries.size());
    const auto& entry = entries[i];
    if (values == nullptr && count != 0 && count == entry.values.size())
      return null_argument("values");
    auto fits =
        laconic::feedback::check_values(entry, reinterpret_cast<const uint8_t*>(values), count);
    return fits ? 0 : fail(std::move(fits).error());
  });
}

}  // extern "C"
