// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "aggregation/link/pace.h"

#include <algorithm>

namespace laconic::aggregation {
namespace {

constexpr uint32_t kFirstWindow = 64, kLeastWindow = 32, kWindowAfterTimeout = 4;
constexpr Time kTimeoutBeforeSamples = 100 * kMillisecond;
constexpr Time kLeastTimeout = 4 * kMillisecond;
/// The smallest round trip is measured again from time to time: paths change.
constexpr Time kLeastLives = 10000 * kMillisecond;
constexpr double kGrowth = 1.25;        // less is no growth
constexpr uint32_t kStalledRounds = 3;  // then the path is full
constexpr double kGain = 2.0;           // windows in bandwidth-delay products

}  // namespace

Pace::Pace(uint32_t most, Time longest) noexcept
    : most_(most),
      window_(std::min(most, kFirstWindow)),
      target_(most),
      longest_(std::max(longest, kLeastTimeout)) {}

// Jacobson's estimate, RFC 6298.
void Pace::sample(Time now, Time round_trip) noexcept {
  if (smoothed_ == 0) {
    smoothed_ = round_trip;
    deviation_ = round_trip / 2;
  } else {
    const Time off = round_trip > smoothed_ ? round_trip - smoothed_ : smoothed_ - round_trip;
    deviation_ = deviation_ - deviation_ / 4 + off / 4;
    smoothed_ = smoothed_ - smoothed_ / 8 + round_trip / 8;
  }
  if (least_ == 0 || round_trip < least_ || now - least_at_ > kLeastLives) {
    least_ = round_trip;
    least_at_ = now;
  }
}

Time Pace::timeout() const noexcept {
  const Time once =
      smoothed_ == 0 ? kTimeoutBeforeSamples : std::max(kLeastTimeout, smoothed_ + 4 * deviation_);
  return std::min(longest_, once << std::min(timeouts_, 16U));
}

void Pace::timed_out() noexcept {
  ++timeouts_;
  window_ = std::min(window_, kWindowAfterTimeout);
}

void Pace::delivered(Time now, bool limited) noexcept {
  timeouts_ = 0;
  ++in_round_;
  if (window_ < target_ && (limited || window_ < kLeastWindow))
    window_ = std::min(window_ + 1, most_);
  if (round_began_ == 0 || now - round_began_ >= std::max<Time>(smoothed_, 1))
    end_round(now, limited);
}

// A round is as long as a round trip. While the rate grows with the window, the window grows.
void Pace::end_round(Time now, bool limited) noexcept {
  const Time passed = now - round_began_;
  const auto rate = static_cast<double>(in_round_) / static_cast<double>(std::max<Time>(passed, 1));
  const bool first = round_began_ == 0;
  round_began_ = now;
  in_round_ = 0;
  if (first || (!limited && rate <= best_)) return;
  rates_[next_rate_++ % rates_.size()] = rate;
  if (stalled_ < kStalledRounds) {
    stalled_ = rate > best_ * kGrowth ? 0 : stalled_ + 1;
    best_ = std::max(best_, rate);
    if (stalled_ < kStalledRounds) return;
  }
  best_ = *std::max_element(rates_.begin(), rates_.end());
  const double product = kGain * best_ * static_cast<double>(least_);
  const auto wanted = static_cast<uint32_t>(std::min(product, static_cast<double>(most_)));
  target_ = std::clamp(wanted, std::min(kLeastWindow, most_), most_);
  window_ = std::min(window_, target_);
}

}  // namespace laconic::aggregation
