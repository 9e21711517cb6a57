// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A codec of the caller's own: a table of callbacks of the C ABI as a CodecTable. Unlike others it
// may fail. Nothing that a callback writes or claims is believed: what it gets wrong is a failure
// of this rank. It has one round, and memory changes at commit alone: what a residual becomes waits
// in Work::kept.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "laconic/codec.h"

struct laconic_codec_table;

namespace laconic::codecs {

class Registered {
 public:
  /// Copies the table. invalid_argument for one without a name or a callback, or with the name of a
  /// codec of the library.
  static Result<std::shared_ptr<const Registered>> create(const laconic_codec_table& table);
  ~Registered();
  Registered(const Registered&) = delete;
  Registered& operator=(const Registered&) = delete;

  /// Lives as long as this.
  [[nodiscard]] const CodecTable& codec() const noexcept { return codec_; }
  /// True if encode or decode failed since failure() was taken. Their output must not be used then.
  [[nodiscard]] bool failed() const noexcept { return failure_.has_value(); }
  [[nodiscard]] std::optional<Error> take_failure() const {
    return std::exchange(failure_, std::nullopt);
  }

 private:
  struct Size {
    uint64_t bytes = 0;
    uint64_t state_floats = 0;
  };

  explicit Registered(const laconic_codec_table& table);
  /// The sizes that the callback returned for a shape in its first call.
  [[nodiscard]] Size size_of(const Unit& unit, uint32_t world) const;
  [[nodiscard]] Contract contract() const;
  [[nodiscard]] Plan plan(const Unit& unit, uint32_t world) const;
  [[nodiscard]] Encoded encode(const Call<>& call, Source source, MutBytes out) const;
  void decode(const Call<>& call, std::span<const Term> terms, Target target) const;
  [[nodiscard]] bool decode_one(const Call<>& call, const Term& term, float* out) const;
  void fail(std::string what) const;
  [[nodiscard]] static const Registered& of(const void* params) noexcept {
    return *static_cast<const Registered*>(params);
  }

  std::unique_ptr<const laconic_codec_table> theirs_;
  std::string name_;
  CodecTable codec_{};
  mutable std::map<std::array<uint64_t, 3>, Size> sizes_;  // by rows, columns, world
  mutable std::optional<Error> failure_;
};

}  // namespace laconic::codecs
