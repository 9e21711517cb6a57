// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// code_sum over an engine's all-reduce of int32.
//
// A field is 8 or 16 bits that take the sum of one code over all ranks. An int32 lane holds four or
// two fields; the codec's headroom limits the number of ranks so that no field overflows into the
// next one. A slot is what one rank writes and the others leave at zero: its sum is a gather.
// Trouble is a lane that any rank sets when it cannot contribute, since integers have no NaN. The
// lanes, in this order:
//     trouble | flush request, a lane for each bit
//     for each unit: ranks that added | a slot of maxima for each rank, two in a lane | codes
//     in some exchanges a slot of three lanes for each rank's report
#include <algorithm>
#include <array>
#include <vector>

#include "base/slices.h"
#include "collective/exchange/held.h"
#include "collective/strategies/code_sum/code_carrier.h"
#include "kernels/rotate/grid.h"

namespace laconic::collective {
namespace {

constexpr uint64_t kSlice = 1 << 16;  // a multiple of 8: codes of a slice begin with a byte

class IntegerLanes final : public CodeCarrier {
 public:
  explicit IntegerLanes(const RankState& state) : state_(&state) {}

  void add_unit(const pipeline::UnitSlot& slot) override;
  void add_rides(uint32_t slots) override { room_ = slots * control::kReportBytes; }
  bool reserve() override {
    if (!memory_.reserve(bytes_ + room_)) return false;
    lanes_ = memory_.bytes().data();
    return true;
  }
  [[nodiscard]] uint64_t held_bytes() const noexcept override {
    return sizeof *this + held(regions_, memory_);
  }

  void begin(uint64_t, uint32_t report_slots) override {
    std::fill_n(at(0), kUnits, uint8_t{0});
    reports_ = report_slots * control::kReportBytes;
    std::fill_n(at(bytes_), reports_, uint8_t{0});
  }
  void report_trouble() override { store<uint32_t>(at(0), 1); }
  void put_nothing(uint64_t unit) override;
  void put(uint64_t unit, const Spec& spec, Bytes codes, Work& work) override;
  Rides rides_out() override { return {{at(kFlush), kUnits - kFlush}, {at(bytes_), reports_}}; }
  Step step() override;

  [[nodiscard]] bool trouble() const override { return load<uint32_t>(at(0)) != 0; }
  Rides rides_in() override { return rides_out(); }
  Term sum(uint64_t unit, Work& work) override;
  [[nodiscard]] std::span<const uint8_t> left_out(uint64_t) const override { return {}; }

 private:
  static constexpr uint64_t kFlush = 4;
  static constexpr uint64_t kUnits = kFlush + 4 * kWishLanes;

  struct Region {
    uint64_t added = 0;  // bytes, as all offsets
    uint64_t maxima = 0;
    uint64_t sums = 0;
    uint64_t sum_bytes = 0;
    uint64_t end = 0;
    uint64_t numbers = 0;  // maxima of one rank
    uint64_t lanes = 0;
    uint32_t code_bits = 0;
    uint64_t lane_bytes = 0;
    Contributors who;
  };
  [[nodiscard]] uint8_t* at(uint64_t offset) const { return lanes_ + offset; }

  const RankState* state_;
  std::vector<Region> regions_;
  uint64_t bytes_ = kUnits;
  uint64_t room_ = 0;     // bytes after them for reports,
  uint64_t reports_ = 0;  // and how many are used
  Arena memory_;
  uint8_t* lanes_ = nullptr;
};

void IntegerLanes::add_unit(const pipeline::UnitSlot& slot) {
  const RoundPlan& round = slot.plan.round[slot.plan.rounds - 1];
  Region r;
  r.numbers = round.maxima;
  r.added = bytes_;
  r.maxima = r.added + 4;
  r.sums = r.maxima + round_up(state_->world() * round.maxima * sizeof(uint16_t), 4);
  r.lanes = round.lanes;
  r.code_bits = round.code_bits;
  r.lane_bytes = dtype_size(round.lane);
  r.sum_bytes = r.lanes * r.lane_bytes;
  r.end = bytes_ = r.sums + round_up(r.sum_bytes, 4);
  regions_.push_back(r);
}

void IntegerLanes::put_nothing(uint64_t unit) {
  const Region& r = regions_[unit];
  std::fill_n(at(r.added), r.end - r.added, uint8_t{0});
}

void IntegerLanes::put(uint64_t unit, const Spec& spec, Bytes codes, Work& work) {
  const Region& r = regions_[unit];
  store<uint32_t>(at(r.added), 1);
  std::fill_n(at(r.maxima), r.sums - r.maxima, uint8_t{0});
  const uint64_t slot = r.numbers * sizeof(uint16_t);
  std::copy_n(work.kept.data(), slot, at(r.maxima + state_->rank() * slot));
  std::array<uint8_t, 16> table{};  // the kernels read all of it
  const auto values = spec.codec().table(spec.params());
  std::copy(values.begin(), values.end(), table.begin());
  const auto& kernels = kernels::grid_kernels(work.isa);
  for_slices(work.pool, r.lanes, kSlice, [&](uint64_t begin, uint64_t end) {
    (r.lane_bytes == 1 ? kernels.expand8 : kernels.expand16)(codes.data() + begin * r.code_bits / 8,
                                                             end - begin, r.code_bits, table.data(),
                                                             at(r.sums + begin * r.lane_bytes));
  });
  std::fill_n(at(r.sums + r.sum_bytes), r.end - r.sums - r.sum_bytes, uint8_t{0});
}

Step IntegerLanes::step() {
  return {.kind = StepKind::all_reduce,
          .dtype = DType::i32,
          .count = (bytes_ + reports_) / 4,
          .send = at(0),
          .recv = at(0)};
}

Term IntegerLanes::sum(uint64_t unit, Work& work) {
  Region& r = regions_[unit];
  for (uint64_t k = 0; k < r.numbers; ++k) {
    uint16_t most = 0;
    for (uint64_t rank = 0; rank < state_->world(); ++rank)
      most = std::max(most, load<uint16_t>(at(r.maxima + (rank * r.numbers + k) * 2)));
    store<uint16_t>(work.kept.data() + k * sizeof(uint16_t), most);
  }
  r.who = {load<uint32_t>(at(r.added)), state_->world()};
  return {Bytes(at(r.sums), r.sum_bytes), 1.0F, {&r.who, 1}};
}

}  // namespace

std::unique_ptr<CodeCarrier> make_integer_lanes(const RankState& state) {
  return std::make_unique<IntegerLanes>(state);
}

}  // namespace laconic::collective
