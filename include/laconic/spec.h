// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "laconic/codec.h"

namespace laconic {
namespace codecs {
class Registered;
}

/// A parsed spec: one codec, its parameters, what it remembers. Grammar: docs/guide/specs.md.
/// `topk:ratio=0.01`, `3lc:s=1.5`, `int8:block=256+ef`, `sidco:ratio=0.001,law=gp+noef`,
/// `signsgd+ema=0.95`, `topk+ef+decay=0.9`.
class Spec {
 public:
  /// Errors name the nearest valid name or key and list the keys with ranges. The locale does not
  /// matter. `registered`: codecs besides those of the library. The name of one of these is all
  /// that stands before a modifier.
  static Result<Spec> parse(std::string_view text,
                            std::span<const codecs::Registered* const> registered = {});
  /// The spec of a codec with its default parameters.
  static Spec defaults(const CodecTable& codec);

  [[nodiscard]] const CodecTable& codec() const noexcept { return *codec_; }
  [[nodiscard]] const void* params() const noexcept {
    return registered_ != nullptr ? static_cast<const void*>(registered_) : params_.bytes.data();
  }
  /// The codec of the caller's own that it names; else null.
  [[nodiscard]] const codecs::Registered* registered() const noexcept { return registered_; }
  [[nodiscard]] Contract contract() const { return codec_->contract(params()); }
  [[nodiscard]] const MemorySettings& memory() const noexcept { return memory_; }
  /// Does what was not sent wait for the next step?
  [[nodiscard]] bool feedback() const noexcept {
    return memory_.kind == MemoryKind::residual || memory_.kind == MemoryKind::momentum;
  }
  /// Derives what the codec needs for exchanges among `world` ranks; for one, parse has done it.
  void prepare(uint32_t world);
  /// Another value of one of the codec's fields, for exchanges among `world` ranks, without taking
  /// memory: canonical() and hash() stay those of parse().
  void move(const Field& field, double value, uint32_t world);
  /// canonical() of what it is now.
  [[nodiscard]] std::string moved_text() const;
  /// Fixed option order, defaults left out, shortest numbers that read back exactly.
  /// parse(canonical()) == *this.
  [[nodiscard]] const std::string& canonical() const noexcept { return canonical_; }
  /// XXH3-64 of canonical(): travels in handshakes and frames.
  [[nodiscard]] uint64_t hash() const noexcept { return hash_; }

 private:
  explicit Spec(const CodecTable& codec, const codecs::Registered* registered = nullptr);
  void finish();  // fills canonical_ and hash_

  const CodecTable* codec_ = nullptr;
  const codecs::Registered* registered_ = nullptr;
  ParamBlock params_{};
  MemorySettings memory_;
  std::string canonical_;
  uint64_t hash_ = 0;
};

}  // namespace laconic
