// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Granules that are under way, and those of them that were lost: two lists through the places of a
// ring.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "aggregation/link/granule.h"
#include "aggregation/link/pace.h"
#include "aggregation/protocol/clock.h"

namespace laconic::aggregation {

class Flights {
 public:
  explicit Flights(uint32_t ring) : flights_(ring) {}

  [[nodiscard]] uint32_t under_way() const noexcept { return under_way_.size; }
  /// When the one that has been under way for the longest was sent; there is one.
  [[nodiscard]] Time oldest() const noexcept { return flights_[under_way_.first].sent; }
  [[nodiscard]] bool any_lost() const noexcept { return lost_.size != 0; }
  /// The lowest one; there is one.
  [[nodiscard]] uint64_t first_lost() const noexcept { return flights_[lost_.first].number; }

  /// `pull`: without the contribution. True: it was lost before.
  bool send(Time now, uint64_t number, bool pull) noexcept;
  /// Its result came, which says what was lost before it.
  void arrived(Time now, uint64_t number, Pace& pace) noexcept;
  /// Marks all datagrams as lost.
  void lose_all() noexcept;
  /// True: there were any.
  bool lose_from(uint64_t number) noexcept;
  void lose_pulls_from(uint64_t number) noexcept;

 private:
  enum class Where : uint8_t { nowhere, under_way, lost };
  struct Flight {
    uint64_t number = 0;
    uint64_t order = 0;  ///< of its last send
    Time sent = 0;
    uint16_t before = 0, behind = 0;
    Where where = Where::nowhere;
    bool again = false;  ///< sent more than once: no sample of the round trip
    bool pull = false;
  };
  struct List {
    uint16_t first = 0xFFFFU, last = 0xFFFFU;
    uint32_t size = 0;
  };
  struct LargestThree {
    std::array<uint64_t, 3> values{};
    void add(uint64_t value) noexcept {
      uint64_t* least = std::min_element(values.begin(), values.end());
      *least = std::max(*least, value);
    }
    [[nodiscard]] uint64_t third() const noexcept {
      return *std::min_element(values.begin(), values.end());
    }
  };

  [[nodiscard]] Flight& flight(uint64_t number) noexcept {
    return flights_[number % flights_.size()];
  }
  void append(List& list, Flight& f, Where where) noexcept;
  void remove(Flight& f) noexcept;
  void lose(Flight& f) noexcept;
  template <class Which>
  bool lose_those(Which&& which) noexcept;
  void find_holes(Time now, const Pace& pace) noexcept;

  std::vector<Flight> flights_;
  List under_way_, lost_;
  uint64_t order_ = 0;
  LargestThree latest_sends_;    ///< orders of first sends that were answered
  LargestThree latest_numbers_;  ///< numbers of results, and 1
};

}  // namespace laconic::aggregation
