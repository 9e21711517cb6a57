// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "ring.h"

#include <algorithm>

#include "../shared/ring_sum.h"
#include "../shared/steps.h"
#include "laconic/dtype.h"

namespace laconic::gloo {
namespace {

/// Smaller pieces cost more hand-overs between threads, larger ones leave less to add while others
/// travel.
constexpr uint64_t kPiece = uint64_t{2} << 20U;
constexpr uint64_t kAhead = 2;

}  // namespace

/// One sum. Receives are posted ahead, because Gloo sends nothing before.
class Ring::Round {
 public:
  Round(Group& group, const Step& step, uint8_t* terms)
      : step_(step),
        ring_(step, group.rank(), group.world(), kPiece),
        slot_(kSlots | step.tag),
        from_(static_cast<int>((group.rank() + 1) % group.world())),
        to_(static_cast<int>((group.rank() + group.world() - 1) % group.world())),
        terms_at_(terms),
        lanes_(group.buffer(step.recv, step.count * dtype_size(step.dtype))),
        terms_(group.buffer(terms, kAhead * kPiece)) {}

  void take() {
    for (uint64_t turn = 0; turn < ring_.turns(); ++turn) {
      while (received_ + kAhead <= turn || received_ + ring_.pieces() <= turn) end_receive();
      while (sent_ + kAhead <= turn) end_send();
      post_ahead(turn);
      const auto range = ring_.sent(turn);
      if (range.bytes != 0) lanes_->send(to_, slot_, range.offset, range.bytes);
    }
    while (received_ < ring_.turns()) {
      post_ahead(ring_.turns());
      end_receive();
    }
    while (sent_ < ring_.turns()) end_send();
  }

 private:
  void end_send() {
    if (ring_.sent(sent_++).bytes != 0) lanes_->waitSend(kForever);
  }
  void end_receive() {
    const uint64_t turn = received_++;
    const auto range = ring_.received(turn);
    if (range.bytes == 0) return;
    if (turn >= ring_.half()) return static_cast<void>(lanes_->waitRecv(kForever));
    terms_->waitRecv(kForever);
    detail::Lanes::add_lanes(
        step_.dtype, step_.recv + range.offset, step_.scale, terms_at_ + turn % kAhead * kPiece,
        turn < ring_.pieces() ? step_.scale : 1.0F, range.bytes / dtype_size(step_.dtype));
  }
  void post_ahead(uint64_t turn) {
    while (posted_ < std::min(received_ + kAhead, ring_.turns()) && post(turn)) {
    }
  }
  /// A sum comes to where a term was sent from. False: that term has not been sent before `turn`.
  bool post(uint64_t turn) {
    const auto range = ring_.received(posted_);
    if (posted_ >= ring_.half()) {
      const uint64_t term = posted_ - ring_.half();
      if (term >= turn) return false;
      while (sent_ <= term) end_send();
      if (range.bytes != 0) lanes_->recv(from_, slot_, range.offset, range.bytes);
    } else if (range.bytes != 0) {
      terms_->recv(from_, slot_, posted_ % kAhead * kPiece, range.bytes);
    }
    ++posted_;
    return true;
  }

  const Step& step_;
  const detail::RingSum ring_;
  const uint64_t slot_;
  const int from_, to_;
  uint8_t* const terms_at_;
  const Buffer lanes_, terms_;
  uint64_t received_ = 0, posted_ = 0, sent_ = 0;  // turns; sent: whose memory is free again
};

void Ring::open() { terms_ = std::make_unique_for_overwrite<uint8_t[]>(kAhead * kPiece); }

void Ring::sum(const Step& step) {
  if (step.count != 0 && group_.world() > 1) Round(group_, step, terms_.get()).take();
}

}  // namespace laconic::gloo
