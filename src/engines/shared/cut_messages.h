// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// CutMessages, for engines: messages that need several calls of a library, and the steps that they
// delay.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace laconic::detail {

class CutMessages {
 public:
  struct Call {
    uint8_t* at = nullptr;
    uint64_t bytes = 0;
  };
  static constexpr size_t kNone = ~size_t{0};

  /// Adds a message of `bytes`, in calls of `call` bytes. `ends_short`: the last call is not full,
  /// and may be empty. Returns its number, valid until all of its calls have ended.
  size_t add(int tag, uint8_t* at, uint64_t bytes, uint64_t call, bool ends_short) {
    if (free_.empty()) {
      messages_.emplace_back();
      free_.reserve(messages_.capacity());  // for ended(), which takes no memory
      free_.push_back(messages_.size() - 1);
    }
    const size_t number = free_.back();
    free_.pop_back();
    messages_[number] = {at, bytes, call, 0, tag, ends_short, true};
    return number;
  }
  /// Starts and returns the next call; nothing after the last.
  std::optional<Call> next(size_t number) noexcept {
    Message& m = messages_[number];
    if (!m.open) return std::nullopt;
    const Call call{m.at, std::min(m.left, m.call)};
    m.at += call.bytes;
    m.left -= call.bytes;
    m.open = m.left != 0 || (m.ends_short && call.bytes == m.call);
    ++m.under_way;
    return call;
  }
  /// Ends a call. `last`: no other will follow. Returns false if no more can be requested.
  bool ended(size_t number, bool last) noexcept {
    Message& m = messages_[number];
    m.open = m.open && !last;
    --m.under_way;
    if (!m.open && m.under_way == 0) free_.push_back(number);
    return m.open;
  }
  /// True if calls of a message with this tag are still to come.
  [[nodiscard]] bool hold_up(int tag) const noexcept {
    return std::any_of(messages_.begin(), messages_.end(),
                       [tag](const Message& m) { return m.open && m.tag == tag; });
  }

 private:
  struct Message {
    uint8_t* at = nullptr;        // of the next call
    uint64_t left = 0, call = 0;  // bytes
    uint32_t under_way = 0;       // calls
    int tag = 0;
    bool ends_short = false;
    bool open = false;  // calls are to come
  };
  std::vector<Message> messages_;
  std::vector<size_t> free_;  // numbers
};

}  // namespace laconic::detail
