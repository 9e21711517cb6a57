// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A script of contributions, pulls, acks and ticks from workers that do what they like: no memory
// is misused, every worker counts at most once, and what was closed never changes. The bytes are
// one operation each, or two.
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <vector>

#include "aggregation/server/slots.h"

namespace {

using namespace laconic;
using namespace laconic::aggregation;

void require(bool condition) {
  if (!condition) std::abort();
}

protocol::JobSettings settings_of(const uint8_t* p) {
  protocol::JobSettings s;
  s.world = static_cast<uint8_t>(1 + p[0] % 8);
  s.needed = static_cast<uint8_t>(1 + p[1] % s.world);
  s.code_bits = 2;
  s.lane_bits = 8;
  s.table_size = 4;
  s.table = {0, 1, 2, 3};
  s.ring = 8;
  s.values = 8;
  s.lanes = 8;
  s.deadline_us = 1;
  s.timeout_ms = 1000;
  return s;
}

struct Closed {
  uint64_t bitmap = 0;
  std::vector<uint8_t> sum;
};

class Script {
 public:
  explicit Script(const uint8_t* start) : settings_(settings_of(start)), slots_(settings_) {
    std::vector<Holding> holdings(settings_.world);
    held_.assign(settings_.world, std::vector<uint8_t>(1));
    for (uint32_t w = 0; w < settings_.world; ++w) {
      held_[w][0] = start[2 + w % 4];
      holdings[w] = {start[2 + w % 4] % 8U, 0, held_[w]};
    }
    lost_ = slots_.restore(holdings) >= 0;
  }
  [[nodiscard]] bool is_over() const { return lost_; }

  void step(uint8_t what, uint8_t how) {
    const uint32_t worker = (what >> 3U) % settings_.world;
    const uint64_t number =
        slots_.ring().floor() + how % 12U - (slots_.ring().floor() >= 2 ? 2U : 0U);
    switch (what & 7U) {
      case 0:
      case 1:
      case 2:
        return tally(worker, number, (how & 0x80U) != 0);
      case 3:
        (void)slots_.pull(worker, number);
        break;
      case 4:
        (void)slots_.acknowledge(worker, slots_.ring().ack(worker) + how % 4U);
        break;
      case 5:
        (void)slots_.acknowledge(worker, slots_.ring().front());
        break;
      case 6:
        slots_.tick(now_ += how * 100U);
        break;
      default:
        bring(worker, number, how);
    }
    check();
  }

 private:
  // Worker w adds 1 to lane w.
  void tally(uint32_t worker, uint64_t number, bool empty) {
    std::vector<uint8_t> payload(empty ? 0 : 32);
    if (!empty) payload[4 * worker] = 1;
    const auto flags =
        static_cast<uint8_t>(empty ? protocol::kEmpty | protocol::kValues : protocol::kValues);
    const Verdict verdict = slots_.add(now_, {worker, number, 1, 2, flags, payload});
    require(verdict != Verdict::differs);
    check();
  }

  void bring(uint32_t worker, uint64_t number, uint8_t how) {
    Fetch fetch;
    (void)slots_.next_fetch(now_, 50, &fetch);
    protocol::DownHeader header;
    header.flags = protocol::kValues;
    header.bitmap = how & ((uint64_t{1} << settings_.world) - 1);
    header.added = static_cast<uint8_t>(std::popcount(header.bitmap));
    std::vector<uint8_t> payload(32);
    for (uint32_t w = 0; w < settings_.world; ++w) payload[4 * w] = header.bitmap >> w & 1U;
    if (header.bitmap != 0) (void)slots_.take_held(worker, number, header, payload);
  }

  void check() {
    for (const uint64_t number : slots_.newly_closed()) {
      const Slot& slot = slots_.ring().slot(number);
      require(slot.number == number && slot.state == SlotState::closed);
      require(closed_.count(number) == 0);
      const Bytes sum = slots_.ring().sum(slot);
      closed_[number] = {slot.bitmap, {sum.begin(), sum.end()}};
      for (uint32_t w = 0; 4 * w < sum.size(); ++w) require(sum[4 * w] <= (slot.bitmap >> w & 1U));
    }
    slots_.forget_closed();
    require(slots_.ring().floor() <= slots_.ring().front());
    for (uint64_t number = slots_.ring().floor(); number < slots_.ring().floor() + settings_.ring;
         ++number) {
      const Slot& slot = slots_.ring().slot(number);
      const auto known = closed_.find(number);
      if (known == closed_.end()) continue;
      require(slot.number == number && slot.bitmap == known->second.bitmap);
      const Bytes sum = slots_.ring().sum(slot);
      require(std::vector<uint8_t>(sum.begin(), sum.end()) == known->second.sum);
    }
  }

  protocol::JobSettings settings_;
  Slots slots_;
  std::vector<std::vector<uint8_t>> held_;
  bool lost_ = false;
  Time now_ = 1;
  std::map<uint64_t, Closed> closed_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 8 || size > 1024) return 0;
  Script script(data);
  if (script.is_over()) return 0;
  for (std::size_t i = 6; i + 1 < size; i += 2) script.step(data[i], data[i + 1]);
  return 0;
}
