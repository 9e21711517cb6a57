// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// server_sum: code_sum by an aggregation server in place of the engine.
//
// A granule is what travels in one datagram: one block of codes (the integers that a codec makes of
// elements), or a block of 32-bit lanes. The server adds the granules of all ranks and sends the
// sum back, with a bitmap of the ranks that are in it; a rank that is not in it puts those codes
// back into its residual. Each block of a unit is a granule. In their order:
//     parameters without a codec (32-bit lanes) | codes | flush request | in some exchanges reports
#include <algorithm>
#include <vector>

#include "collective/strategies/code_sum/code_carrier.h"
#include "collective/strategies/server_sum/granules.h"

namespace laconic::collective {
namespace {

class CodeGranules final : public CodeCarrier {
 public:
  CodeGranules(const RankState& state, Counters& counters)
      : state_(&state), granules_(state, counters), values_(state, granules_) {}
  CodeGranules(const CodeGranules&) = delete;  // its parts point at each other
  CodeGranules& operator=(const CodeGranules&) = delete;

  void add_unit(const pipeline::UnitSlot& slot) override;
  void add_rides(uint32_t report_slots) override {
    flush_ = values_.add(kWishLanes);
    reports_ = values_.add(report_lanes(DType::i32) * report_slots);
  }
  bool reserve() override;
  [[nodiscard]] uint64_t held_bytes() const noexcept override {
    return sizeof *this + held(granules_, values_, regions_, who_, left_out_);
  }

  void begin(uint64_t exchange, uint32_t report_slots) override;
  void report_trouble() override { granules_.report_trouble(); }
  void put_nothing(uint64_t unit) override;
  void put(uint64_t unit, const Spec& spec, Bytes codes, Work& work) override;
  Rides rides_out() override {
    return {bytes_of(values_.room(flush_)), bytes_of(values_.room(reports_))};
  }
  Step step() override { return granules_.step(); }

  [[nodiscard]] bool trouble() const override { return granules_.trouble(); }
  /// A rank that is not in a sum left its elements at zero, as are those that no rank added to.
  Rides rides_in() override { return {values_.sums(flush_), values_.sums(reports_)}; }
  Term sum(uint64_t unit, Work& work) override;
  [[nodiscard]] std::span<const uint8_t> left_out(uint64_t unit) const override;
  [[nodiscard]] ValueGranules* values() noexcept override { return &values_; }

 private:
  struct Region {
    uint64_t first = 0, granules = 0;
    uint64_t lanes = 0;       // where they lie
    uint64_t lane_bytes = 0;  // of a granule
    uint64_t numbers = 0;     // maxima
    bool missing = false;     // some granule is without this rank
  };
  static MutBytes bytes_of(std::span<int32_t> lanes) {
    return {reinterpret_cast<uint8_t*>(lanes.data()), lanes.size_bytes()};
  }

  const RankState* state_;
  Granules granules_;
  ValueGranules values_;
  std::vector<Region> regions_;
  uint64_t flush_ = 0, reports_ = 0;  // arrays of values
  std::vector<Contributors> who_;     // by granule
  std::vector<uint8_t> left_out_;     // one per granule
};

void CodeGranules::add_unit(const pipeline::UnitSlot& slot) {
  const RoundPlan& round = slot.plan.round[slot.plan.rounds - 1];
  const uint64_t size = state_->model().spec_of_codes().contract().granule;
  Region r;
  r.granules = round.lanes / size;
  r.first = granules_.add(r.granules);
  r.lane_bytes = size * dtype_size(round.lane);
  r.lanes = granules_.take(r.granules * r.lane_bytes);
  r.numbers = round.maxima;
  regions_.push_back(r);
}

bool CodeGranules::reserve() {
  if (!granules_.reserve()) return false;
  who_.resize(granules_.size());
  left_out_.resize(granules_.size());
  for (const Region& r : regions_) {
    uint64_t at = r.lanes;
    for (Aggregate& a : granules_.ins(r.first, r.granules))
      a.lanes = granules_.bytes(std::exchange(at, at + r.lane_bytes), r.lane_bytes);
  }
  values_.place();
  return true;
}

void CodeGranules::begin(uint64_t exchange, uint32_t report_slots) {
  const uint64_t silent = report_slots == 0 ? values_.granules_of(reports_) : 0;
  granules_.begin(static_cast<uint32_t>(state_->model().agreement() ^ exchange),
                  granules_.size() - silent);
  values_.begin();
  for (const uint64_t rides : {flush_, reports_}) {
    std::ranges::fill(values_.room(rides), 0);
    values_.put(rides, 0);
  }
}

void CodeGranules::put_nothing(uint64_t unit) {
  const Region& r = regions_[unit];
  for (Contribution& c : granules_.outs(r.first, r.granules)) {
    c.payload = {};
    c.norm = 0;
    c.flags |= kGranuleEmpty;
  }
}

void CodeGranules::put(uint64_t unit, const Spec&, Bytes codes, Work& work) {
  const Region& r = regions_[unit];
  const uint64_t bytes = r.granules == 0 ? 0 : codes.size() / r.granules;
  for (uint64_t k = 0; k < r.granules; ++k) {
    Contribution& c = granules_.outs(r.first, r.granules)[k];
    c.payload = codes.subspan(k * bytes, bytes);
    c.norm = r.numbers == 0 ? uint16_t{0} : load<uint16_t>(work.kept.data() + 2 * k);
    c.flags &= static_cast<uint8_t>(~kGranuleEmpty);
  }
}

Term CodeGranules::sum(uint64_t unit, Work& work) {
  Region& r = regions_[unit];
  r.missing = false;
  for (uint64_t k = 0; k < r.granules; ++k) {
    const Aggregate& a = granules_.ins(r.first, r.granules)[k];
    if (a.length == 0) std::fill(a.lanes.begin(), a.lanes.end(), uint8_t{0});
    const bool in = granules_.is_in(a);
    who_[r.first + k] = {a.added, std::max<uint32_t>(a.divisor, 1)};
    left_out_[r.first + k] = in ? 0 : 1;
    r.missing = r.missing || !in;
    if (r.numbers != 0) store<uint16_t>(work.kept.data() + 2 * k, a.norm);
  }
  return {granules_.bytes(r.lanes, r.granules * r.lane_bytes), 1.0F,
          std::span(who_).subspan(r.first, r.granules)};
}

std::span<const uint8_t> CodeGranules::left_out(uint64_t unit) const {
  const Region& r = regions_[unit];
  if (!r.missing) return {};
  return std::span(left_out_).subspan(r.first, r.granules);
}

}  // namespace

std::unique_ptr<CodeCarrier> make_code_granules(const RankState& state, Counters& counters) {
  return std::make_unique<CodeGranules>(state, counters);
}

}  // namespace laconic::collective
