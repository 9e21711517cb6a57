// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The C boundary: what every function of laconic.h does before and after its work. The rules are in
// the head of that header.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <span>
#include <type_traits>

#include "laconic/error.h"
#include "laconic/laconic.h"

namespace laconic::capi {

/// Keeps the error for laconic_last_message() and laconic_last_hint() and gives its number.
int32_t fail(Error error);
int32_t fail(Errc code, const char* message, const char* hint = "");
/// `which`: the arguments that must not be null.
int32_t null_argument(const char* which);
/// Reports out_of_memory with a message that needs no memory.
int32_t fail_out_of_memory() noexcept;
int32_t fail_internal() noexcept;

/// Runs `body`, which returns a code. Below the boundary only memory running out throws.
template <class Body>
int32_t guarded(Body&& body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return fail_out_of_memory();
  } catch (...) {
    return fail_internal();
  }
}

/// The same for functions that return something else: `body(out)` fills it in and returns a code;
/// after a failure the caller gets `failed`.
template <class T, class Body>
T guarded_value(T failed, Body&& body) noexcept {
  T value = failed;
  return guarded([&] { return body(value); }) == 0 ? value : failed;
}

/// Stores the result of stats or explain until the calling thread's next call of one of them; both
/// may be called from any thread at any time.
const char* keep(std::string text);

// ---- structs that begin with struct_size ----

/// Bytes that a caller of the first release has: up to the line "may be missing" in laconic.h.
template <class T>
inline constexpr size_t kRequired = sizeof(T);
template <>
inline constexpr size_t kRequired<laconic_tensor> = offsetof(laconic_tensor, memory);
template <>
inline constexpr size_t kRequired<laconic_place> = offsetof(laconic_place, parameter);
template <>
inline constexpr size_t kRequired<laconic_frame_info> = offsetof(laconic_frame_info, step);
template <>
inline constexpr size_t kRequired<laconic_session_options> = offsetof(laconic_session_options,
                                                                      seed);
template <>
inline constexpr size_t kRequired<laconic_codec_table> = offsetof(laconic_codec_table, commit);
template <>
inline constexpr size_t kRequired<laconic_settings> = offsetof(laconic_settings, reserved);
template <>
inline constexpr size_t kRequired<laconic_step> = offsetof(laconic_step, tag);
template <>
inline constexpr size_t kRequired<laconic_engine_table> = offsetof(laconic_engine_table, settle);
template <>
inline constexpr size_t kRequired<laconic_driver_options> = offsetof(laconic_driver_options,
                                                                     traced);
template <>
inline constexpr size_t kRequired<laconic_aggregator_options> = offsetof(laconic_aggregator_options,
                                                                         token);
template <>
inline constexpr size_t kRequired<laconic_state_header> = offsetof(laconic_state_header,
                                                                   model_hash);

/// `size` is too small for `required` (or, 0, the struct is null): invalid_argument with a message.
int32_t bad_struct(const char* name, size_t size, size_t required);

template <class T>
int32_t check_struct(const T* theirs, const char* name) {
  if (theirs == nullptr) return null_argument(name);
  if (theirs->struct_size >= kRequired<T>) return 0;
  return bad_struct(name, theirs->struct_size, kRequired<T>);
}

/// *own = what the caller's struct says; what it lacks is zero.
template <class T>
int32_t read_struct(const T* theirs, const char* name, T* own) {
  static_assert(std::is_trivially_copyable_v<T>);
  if (const int32_t bad = check_struct(theirs, name); bad != 0) return bad;
  *own = {};
  std::memcpy(own, theirs, std::min<size_t>(theirs->struct_size, sizeof(T)));
  return 0;
}

/// As much of `own` as the caller's struct, already checked, has room for; its size stays.
template <class T>
void write_struct(T own, T* theirs) {
  own.struct_size = theirs->struct_size;
  std::memcpy(theirs, &own, std::min<size_t>(theirs->struct_size, sizeof(T)));
}

// ---- values ----

/// The place of the first value that is NaN or infinite; values.size() when there is none.
inline size_t first_not_finite(std::span<const float> values) {
  const auto bad = [](float x) { return !std::isfinite(x); };
  return static_cast<size_t>(std::find_if(values.begin(), values.end(), bad) - values.begin());
}

/// 0, or invalid_argument for more threads than a machine has use for (a negative number of them).
int32_t check_threads(uint32_t threads);

}  // namespace laconic::capi
