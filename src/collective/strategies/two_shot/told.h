// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <optional>

#include "collective/exchange/strategy.h"
#include "wire/bundle.h"

namespace laconic::collective {

/// The first failure that this rank knows of, its own or a received one: it reports it in every
/// bundle from then on. Needs no memory, because the failure may be out_of_memory.
class Told {
 public:
  void clear() noexcept { failure_.reset(); }
  explicit operator bool() const noexcept { return failure_.has_value(); }
  [[nodiscard]] const BundleFailure* failure() const noexcept {
    return failure_ ? &*failure_ : nullptr;
  }

  void note(const BundleFailure& failure) {
    if (failure_) return;
    const size_t length = std::min(failure.text.size(), text_.size());
    std::copy_n(failure.text.data(), length, text_.data());
    failure_ = failure;
    failure_->text = {text_.data(), length};
  }
  void note(uint32_t rank, uint32_t bucket, const Error& error) {
    note({error.code, rank, bucket, BundleFailure::kNoParameter, error.message});
  }
  uint64_t write(const BundleId& id, MutBytes out) const {
    return write_failure_bundle(id, *failure_, out);
  }

 private:
  std::optional<BundleFailure> failure_;
  std::array<char, kMaxFailureText> text_{};
};

}  // namespace laconic::collective
