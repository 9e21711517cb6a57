// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "large_sums.h"

#include <algorithm>
#include <utility>

#include "../shared/steps.h"

namespace laconic::mpi {

void LargeSums::open() {
  pace_ = LargeSum::pace(group_.world(), group_.one_host());
  pace_.piece_bytes = std::min(pace_.piece_bytes, group_.options().largest_call);
  terms_ =
      std::make_shared_for_overwrite<uint8_t[]>(pace_.ahead * group_.world() * pace_.piece_bytes);
}

void LargeSums::begin(Started& started, const Step& step) {
  sum_ = LargeSum(step, group_.rank(), group_.world(), pace_.piece_bytes);
  batch_ = &started;
  posted_ = summed_ = 0;
  pending_ = {};
  ++started.pending;
  go_on();
}

void LargeSums::go_on() {
  const uint64_t pieces = sum_.pieces();
  while (status_ && batch_ != nullptr) {
    while (posted_ < pieces && posted_ < summed_ + pace_.ahead) exchange_terms(posted_++);
    if (summed_ == pieces) {
      --std::exchange(batch_, nullptr)->pending;
      return;
    }
    if (pending_of(summed_) != 0) return;
    add_terms(summed_);
    hand_round(summed_++);
  }
}

void LargeSums::exchange_terms(uint64_t number) {
  const uint64_t mine = sum_.piece_of(group_.rank(), number).bytes;
  detail::for_peers(group_.rank(), group_.world(), [&](uint32_t before, uint32_t) {
    post(Kind::receive, before, {term_of(before, number), mine}, &pending_of(number));
  });
  detail::for_peers(group_.rank(), group_.world(), [&](uint32_t, uint32_t behind) {
    post(Kind::send, behind, sum_.piece_of(behind, number), &pending_of(number));
  });
}

void LargeSums::add_terms(uint64_t number) {
  sum_.add_piece(
      number, [&](uint32_t peer) { return term_of(peer, number); },
      [](DType type, uint8_t* total, float of_total, const uint8_t* x, float of_x, uint64_t count) {
        detail::Lanes::add_lanes(type, total, of_total, x, of_x, count);
      });
}

/// Terms of this piece have left the memory that the sums of others come to.
void LargeSums::hand_round(uint64_t number) {
  detail::for_peers(group_.rank(), group_.world(), [&](uint32_t before, uint32_t) {
    post(Kind::receive, before, sum_.piece_of(before, number), nullptr);
  });
  detail::for_peers(group_.rank(), group_.world(), [&](uint32_t, uint32_t behind) {
    post(Kind::send, behind, sum_.piece_of(group_.rank(), number), nullptr);
  });
}

void LargeSums::post(Kind kind, uint32_t peer, LargeSum::Extent range, uint32_t* term) {
  transfers_.exchange_all(*batch_, group_.tag_of(sum_.step()), kind, peer, range, term);
}

}  // namespace laconic::mpi
