// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Errors are values. A number, once released, never changes its meaning; the same numbers are used
// by C (laconic.h), the command line (exit texts, JSON) and Python (LaconicError.code).
// docs/format/ERRORS.md lists them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace laconic {

enum class Errc : int32_t {
  ok = 0,
  // Arguments and specs.
  invalid_argument = 1,
  spec_syntax = 2,
  unknown_codec = 3,
  unknown_key = 4,
  value_out_of_range = 5,
  dtype_unsupported = 6,
  shape_unsupported = 7,
  buffer_too_small = 8,
  unsupported = 9,
  // Bytes from elsewhere.
  frame_truncated = 20,
  frame_extended = 21,
  frame_magic = 22,
  frame_version = 23,
  frame_field = 24,
  frame_checksum = 25,
  frame_codec = 26,
  frame_count = 27,
  payload_malformed = 28,
  bound_exceeded = 29,
  // Numbers.
  non_finite = 40,
  // Ranks and engines.
  ranks_disagree = 60,
  peer_failed = 61,
  engine_failed = 62,
  timed_out = 63,
  exchange_order = 64,
  residuals_left = 65,
  // Saved state.
  state_version = 80,
  state_corrupt = 81,
  state_rank = 82,
  state_world = 83,
  state_model = 84,
  state_spec = 85,
  // Laconic itself.
  out_of_memory = 100,
  internal = 101,
};

/// The stable name of a code, e.g. "frame_checksum"; "unknown" for a number that is not listed
/// above.
std::string_view errc_name(Errc code) noexcept;

/// A failure: what happened and where, and a hint what to try. Empty strings allocate nothing.
struct Error {
  Errc code = Errc::internal;
  std::string message;
  std::string hint;
};

/// A value or an Error (std::expected is C++23). Test with `if (!r) return std::move(r).error();`.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}       // NOLINT(google-explicit-constructor)
  Result(Error error) : error_(std::move(error)) {}   // NOLINT(google-explicit-constructor)
  Result(Errc code) : error_(Error{code, {}, {}}) {}  // NOLINT(google-explicit-constructor)

  explicit operator bool() const noexcept { return value_.has_value(); }
  [[nodiscard]] bool ok() const noexcept { return value_.has_value(); }
  T& operator*() & noexcept { return *value_; }
  const T& operator*() const& noexcept { return *value_; }
  T&& operator*() && noexcept { return std::move(*value_); }
  T* operator->() noexcept { return &*value_; }
  const T* operator->() const noexcept { return &*value_; }
  [[nodiscard]] const Error& error() const& noexcept { return error_; }
  [[nodiscard]] Error&& error() && noexcept { return std::move(error_); }

 private:
  std::optional<T> value_;
  Error error_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error)
      : error_(std::move(error)), ok_(false) {}  // NOLINT(google-explicit-constructor)
  Result(Errc code) : error_(Error{code, {}, {}}), ok_(code == Errc::ok) {}  // NOLINT

  explicit operator bool() const noexcept { return ok_; }
  [[nodiscard]] bool ok() const noexcept { return ok_; }
  [[nodiscard]] const Error& error() const& noexcept { return error_; }
  [[nodiscard]] Error&& error() && noexcept { return std::move(error_); }

 private:
  Error error_;
  bool ok_ = true;
};

}  // namespace laconic
