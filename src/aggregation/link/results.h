// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The results of one server: they go into the exchange under way, and are kept until all workers
// have them, because a server that is started again fetches them.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "aggregation/link/failure.h"
#include "aggregation/link/granule.h"
#include "aggregation/link/settings.h"

namespace laconic::aggregation {

class Results {
 public:
  /// All of a result but its sum.
  struct Header {
    uint64_t number = ~uint64_t{0};
    uint64_t bitmap = 0;
    uint32_t settings = 0, length = 0;
    uint16_t norm = 0;
    uint8_t flags = 0, added = 0;
  };
  enum class Judgement : uint8_t { wanted, duplicate, beyond };

  /// `settings` outlive it.
  explicit Results(const LinkSettings& settings);

  /// Begins an exchange of `count` granules, out[0], out[stride], ..., after the previous one.
  /// Other workers may be ahead by a whole exchange: results that are already here are used before
  /// advance().
  [[nodiscard]] Failure begin(const Outgoing* out, Incoming* in, uint64_t count,
                              uint64_t stride) noexcept;
  [[nodiscard]] bool done() const noexcept { return ack_ == end_; }
  [[nodiscard]] uint64_t first() const noexcept { return first_; }
  [[nodiscard]] uint64_t end() const noexcept { return end_; }
  /// All below it are here.
  [[nodiscard]] uint64_t ack() const noexcept { return ack_; }
  [[nodiscard]] bool in_exchange(uint64_t number) const noexcept {
    return number >= first_ && number < end_;
  }
  [[nodiscard]] const Outgoing& outgoing(uint64_t number) const noexcept {
    return out_[(number - first_) * stride_];
  }

  [[nodiscard]] bool has(uint64_t number) const noexcept { return kept(number).number == number; }
  [[nodiscard]] const Header& kept(uint64_t number) const noexcept {
    return kept_[number % kept_.size()];
  }
  [[nodiscard]] Bytes sum(uint64_t number) const noexcept {
    return {sums_.data() + place_of(number), kept(number).length};
  }

  [[nodiscard]] Judgement judge(uint64_t number, uint64_t bytes) const noexcept;
  /// One that is wanted: keeps it, and delivers it if it is of the exchange.
  [[nodiscard]] Failure store(uint64_t number, const protocol::DownHeader& h,
                              Bytes payload) noexcept;
  void advance() noexcept;

  /// The others are ahead, by a sum without this worker: it catches up before it contributes.
  [[nodiscard]] bool behind() const noexcept { return behind_; }
  void caught_up() noexcept { behind_ = false; }

  /// The server asks for one.
  void ask(uint64_t number) noexcept;
  [[nodiscard]] std::span<const uint64_t> asked() const noexcept {
    return {asked_.data(), asked_count_};
  }
  void forget_asked() noexcept { asked_count_ = 0; }

  /// Those from there to ack() are still here.
  [[nodiscard]] uint64_t lowest_kept() const noexcept;
  /// Bit i: ack() + i is here. ring / 8 bytes of zeros.
  void write_held(uint8_t* bits) const noexcept;
  void add_to(LinkStats& stats) const noexcept;

 private:
  [[nodiscard]] uint64_t place_of(uint64_t number) const noexcept {
    return number % kept_.size() * slot_bytes_;
  }
  [[nodiscard]] Failure deliver(uint64_t number) noexcept;

  const LinkSettings* settings_;
  const Outgoing* out_ = nullptr;
  Incoming* in_ = nullptr;
  uint64_t stride_ = 1;
  uint64_t first_ = 0, end_ = 0, ack_ = 0;
  uint64_t top_ = 0;  ///< above all that were ever here
  std::vector<Header> kept_;
  std::vector<uint8_t> sums_;
  uint64_t slot_bytes_;
  bool behind_ = false;
  std::array<uint64_t, 64> asked_{};
  std::size_t asked_count_ = 0;
  struct Counts {
    uint64_t excluded = 0, partial = 0;
  } counts_;
};

}  // namespace laconic::aggregation
