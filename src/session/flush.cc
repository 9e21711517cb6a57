// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "session/flush.h"

#include <algorithm>

#include "control/policy.h"
#include "wire/bundle.h"

namespace laconic::session {
namespace {

/// A number of steps in the saved values; anything else there (it can be loaded) counts as none.
uint32_t steps_in(float value) noexcept {
  const auto most = static_cast<float>(kMaxFlushSteps);
  return value >= 1.0F && value <= most ? static_cast<uint32_t>(value) : 0;
}

}  // namespace

Result<void> Flush::bind(feedback::Store& store) {
  auto values = store.add(feedback::StateKind::codec_state, "state/flush", 2);
  if (!values) return std::move(values).error();
  values_ = *values;
  return {};
}

void Flush::take_over(const Flush& before) noexcept {
  if (!before.values_.empty() && !values_.empty())
    std::ranges::copy(before.values_, values_.begin());
  releasing_ = before.releasing_ && !values_.empty();
  sent_before_ = before.sent_before_;
  parts_ = before.parts_;
}

uint32_t Flush::requested() const noexcept {
  if (values_.empty()) return 0;
  const uint32_t own = steps_in(values_[0]);
  return own == 0 && releasing_ ? kReleaseSteps : own;  // a state may have been loaded meanwhile
}

uint32_t Flush::to_come() const noexcept { return values_.empty() ? 0 : steps_in(values_[1]); }

uint32_t Flush::steps_left() const noexcept { return std::max(to_come(), requested()); }

void Flush::request(uint32_t steps) noexcept {
  if (!values_.empty() && to_come() == 0) values_[0] = static_cast<float>(steps);
}

void Flush::release(control::Ratio residual) noexcept {
  if (values_.empty() || to_come() != 0) return;
  const uint32_t steps =
      residual.missing() ? kReleaseSteps : control::release_parts(residual.value());
  values_[0] = static_cast<float>(steps);
  releasing_ = true;
}

void Flush::heard(uint32_t steps) noexcept {
  if (steps == 0 || values_.empty() || to_come() != 0) return;
  releasing_ = false;
  values_[0] = 0.0F;
  values_[1] = static_cast<float>(steps);
}

void Flush::begin_step(bool dense) noexcept {
  sent_before_ = parts_ != 0 && !dense;
  parts_ = to_come();
  if (parts_ != 0) values_[1] = parts_ == 1 ? 0.0F : values_[1] - 1;
}

}  // namespace laconic::session
