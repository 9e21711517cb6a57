// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "fault.h"

#include <chrono>
#include <string>
#include <thread>
#include <utility>

namespace laconic::gloo {

std::optional<Error> Fault::known() {
  const std::lock_guard lock(mutex_);
  return known_;
}

Error Fault::fail(Error why, const char* said) noexcept {
  const std::lock_guard lock(mutex_);
  const detail::NoSigpipe guard;
  if (!known_) {
    const Errc code = why.code;
    try {
      known_ = agree(std::move(why), said);
    } catch (...) {
      known_ = Error{code, {}, {}};
    }
    group_.tear_down();  // not before the others can read why
  }
  try {
    return *known_;
  } catch (...) {
    return {known_->code, {}, {}};
  }
}

/// All ranks report the same failure: the first one that detects it puts it on the board.
Error Fault::agree(Error own, const char* said) {
  if (!group_.connected()) return own;  // one rank
  rendezvous::Board& board = group_.board();
  const std::string news_of_fault(rendezvous::kFault);
  const auto told = board.get(news_of_fault, soon());
  if (told && !told->empty()) return rendezvous::read_news(*told, hint());
  own.hint = hint();
  if (!told) {
    if (board.kept_by_rank_0()) return without_board(std::move(own), told.error());
  }
  const bool no_memory = own.code == Errc::out_of_memory;
  if (no_memory)
    own.message = "rank " + std::to_string(group_.rank()) + " is out of memory";
  else if (own.message.empty())
    own.message = group_.who_is_gone(said);
  Error news{no_memory ? Errc::peer_failed : own.code, own.message, {}};
  const auto first = board.put(news_of_fault, rendezvous::write_news(news), soon());
  if (!first || no_memory) return own;
  return rendezvous::read_news(*first, hint());
}

/// The board is lost, and rank 0 with it, unless that one ended in peace.
Error Fault::without_board(Error own, const Error& lost) {
  if (lost.code == Errc::timed_out) return {Errc::timed_out, "rank 0 did not answer", hint()};
  // Before others leave because of it.
  if (own.message.empty()) own.message = group_.who_is_gone("");
  for (const Deadline until = soon(); group_.rank() != 0 && Clock::now() < until;) {
    if (group_.is_gone(0)) return {Errc::peer_failed, "rank 0 is gone", hint()};
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return own;
}

bool Fault::glance() {
  const std::lock_guard lock(mutex_);
  return group_.somebody_is_gone();
}

}  // namespace laconic::gloo
