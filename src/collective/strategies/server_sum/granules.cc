// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// On the way to an aggregator: 32-bit lanes of parameters without a codec; codes, one granule a
// block; a granule of 32-bit lanes that carries the wish to flush; and in some exchanges granules
// of the ranks' reports. Who is in a sum is said by its bitmap, the same on all ranks; a rank that
// is not in it puts those granules back.
#include <algorithm>
#include <vector>

#include "base/hash.h"
#include "collective/exchange/held.h"
#include "collective/strategies/native_sum/code_carrier.h"
#include "collective/strategies/server_sum/values.h"

namespace laconic::collective {
namespace {

constexpr uint64_t kHeaderBytes = 32;  // of a datagram, docs/format/DATAGRAM.md
constexpr uint64_t kWishBytes = 4 * kWishLanes;
constexpr uint8_t kNoValues = kGranuleValues | kGranuleEmpty;

class Granules final : public CodeCarrier, public ValueCarrier {
 public:
  Granules(const RankState& state, Counters& counters)
      : state_(&state),
        counters_(&counters),
        values_per_granule_(state.model().values_per_granule()) {}

  void add_unit(const pipeline::UnitSlot& slot) override;
  void add_reports(uint32_t slots) override;
  bool reserve() override;
  [[nodiscard]] uint64_t held_bytes() const noexcept override {
    return sizeof *this + held(regions_, arrays_, out_, in_, who_, left_out_, memory_);
  }

  void begin(uint64_t exchange, uint32_t report_slots) override;
  void report_trouble() override {
    for (Contribution& c : out()) c.flags |= kGranuleTrouble;
  }
  void put_wish(uint32_t bits) override;
  void put_nothing(uint64_t unit) override;
  void put(uint64_t unit, const Spec& spec, Bytes codes, Work& work) override;
  MutBytes report_room() override;
  Step step() override;
  [[nodiscard]] uint64_t wire_bytes() const noexcept override;

  /// Or sums of a length that nobody sent.
  [[nodiscard]] bool trouble() const override {
    return std::ranges::any_of(std::span(in_).first(granules_now()), [](const Aggregate& a) {
      return (a.flags & kGranuleTrouble) != 0 || (a.length != 0 && a.length != a.lanes.size());
    });
  }
  [[nodiscard]] uint32_t wish() const override;
  [[nodiscard]] Bytes reports() override;
  Term sum(uint64_t unit, Work& work) override;
  [[nodiscard]] std::span<const uint8_t> left_out(uint64_t unit) const override;

  [[nodiscard]] ValueCarrier* values() noexcept override { return this; }
  void add_values(uint64_t count) override;
  std::span<int32_t> room_for_values(uint64_t array) override;
  void set_scale(uint64_t array, float scale) override;
  void put_values(uint64_t array, uint16_t norm) override;
  void put_norm(uint64_t array, uint16_t norm) override;
  [[nodiscard]] uint16_t largest_norm(uint64_t array) const override;
  [[nodiscard]] uint64_t granules_of(uint64_t array) const override {
    return over_of(arrays_[array].count);
  }
  [[nodiscard]] Sum sum_of(uint64_t array, uint64_t granule) override;

 private:
  struct Region {
    uint64_t first = 0, granules = 0;
    uint64_t lanes = 0;       // bytes, from the start of all sums
    uint64_t lane_bytes = 0;  // of a granule
    uint64_t numbers = 0;     // maxima
    bool missing = false;     // some granule is without this rank
  };
  struct Array {
    uint64_t first = 0;  // granule
    uint64_t count = 0;  // lanes
    uint64_t sent = 0;   // bytes, from the start of all sums; what comes back lies behind it
    [[nodiscard]] uint64_t bytes() const { return sizeof(int32_t) * count; }
    [[nodiscard]] uint64_t sums() const { return sent + round_up(bytes(), 64); }
  };
  [[nodiscard]] bool is_in(const Aggregate& a) const {
    return (a.bitmap >> state_->rank() & 1U) != 0;
  }
  /// Who is missing.
  void count(const Aggregate& a);
  /// body(granule, first lane, lanes) for all granules of an array.
  template <class Body>
  void over_granules(const Array& a, Body&& body) const {
    uint64_t granule = a.first;
    for (uint64_t at = 0; at < a.count; at += values_per_granule_)
      body(granule++, at, std::min(values_per_granule_, a.count - at));
  }

  [[nodiscard]] uint64_t granules_now() const {
    return granules_ + 1 + (reports_now_ ? over_of(reports_.count) : 0);
  }
  [[nodiscard]] uint64_t over_of(uint64_t lanes) const {
    return ceil_div(lanes, values_per_granule_);
  }
  [[nodiscard]] std::span<Contribution> out() { return std::span(out_).first(granules_now()); }

  const RankState* state_;
  Counters* counters_;
  uint64_t values_per_granule_;
  uint32_t settings_ = 0;  // of the exchange
  std::vector<Region> regions_;
  std::vector<Array> arrays_;
  Array reports_;  // behind the wish
  bool reports_now_ = false;
  std::vector<Contribution> out_;
  std::vector<Aggregate> in_;
  std::vector<Contributors> who_;
  std::vector<uint8_t> left_out_;
  uint64_t granules_ = 0, lane_bytes_ = 0;
  Arena memory_;  // sums; the wish that goes out and the one that comes back; reports likewise
};

void Granules::add_unit(const pipeline::UnitSlot& slot) {
  const RoundPlan& round = slot.plan.round[slot.plan.rounds - 1];
  Region r;
  const uint64_t size = state_->model().spec_of_codes().contract().granule;
  r.first = granules_;
  r.granules = round.lanes / size;
  r.lanes = lane_bytes_;
  r.lane_bytes = size * dtype_size(round.lane);
  r.numbers = round.maxima;
  granules_ += r.granules;
  lane_bytes_ += round_up(r.granules * r.lane_bytes, 64);
  regions_.push_back(r);
}

void Granules::add_values(uint64_t count) {
  const Array a{granules_, count, lane_bytes_};
  arrays_.push_back(a);
  granules_ += granules_of(arrays_.size() - 1);
  lane_bytes_ = a.sums() + round_up(a.bytes(), 64);
}

void Granules::add_reports(uint32_t slots) {
  reports_ = {granules_ + 1, report_lanes(DType::i32) * slots, lane_bytes_ + 2 * kWishBytes};
}

bool Granules::reserve() {
  const uint64_t reports = reports_.count == 0 ? 0 : reports_.sums() + reports_.bytes();
  if (!memory_.reserve(std::max(lane_bytes_ + 2 * kWishBytes, reports))) return false;
  uint8_t* const lanes = memory_.bytes().data();
  const uint64_t granules = granules_ + 1 + over_of(reports_.count);
  out_.resize(granules);
  in_.resize(granules);
  who_.resize(granules_);
  left_out_.resize(granules_);
  for (const Region& r : regions_) {
    for (uint64_t k = 0; k < r.granules; ++k)
      in_[r.first + k].lanes = {lanes + r.lanes + k * r.lane_bytes, r.lane_bytes};
  }
  const auto place = [&](const Array& a) {
    over_granules(a, [&](uint64_t granule, uint64_t at, uint64_t count) {
      in_[granule].lanes = {lanes + a.sums() + sizeof(int32_t) * at, sizeof(int32_t) * count};
    });
  };
  for (const Array& a : arrays_) place(a);
  place(reports_);
  out_[granules_].payload = Bytes(lanes + lane_bytes_, kWishBytes);
  in_[granules_].lanes = {lanes + lane_bytes_ + kWishBytes, kWishBytes};
  return true;
}

void Granules::begin(uint64_t exchange, uint32_t report_slots) {
  settings_ = static_cast<uint32_t>(state_->model().agreement() ^ exchange);
  for (Contribution& c : out_) c = {{}, settings_, 0, kGranuleEmpty};
  for (uint64_t i = 0; i < arrays_.size(); ++i) put_norm(i, 0);
  const MutBytes wish = memory_.bytes().subspan(lane_bytes_, kWishBytes);
  std::fill(wish.begin(), wish.end(), uint8_t{0});
  out_[granules_] = {wish, settings_, 0, kGranuleValues};
  reports_now_ = report_slots != 0;
  if (!reports_now_) return;
  const MutBytes slots = report_room();
  std::fill(slots.begin(), slots.end(), uint8_t{0});
  over_granules(reports_, [&](uint64_t granule, uint64_t at, uint64_t count) {
    const Bytes part = slots.subspan(sizeof(int32_t) * at, sizeof(int32_t) * count);
    out_[granule] = {part, settings_, 0, kGranuleValues};
  });
}

MutBytes Granules::report_room() {
  return memory_.bytes().subspan(reports_.sent, reports_.bytes());
}

/// A rank that is not in a sum has left its slot at zero; so it is where nobody added.
Bytes Granules::reports() {
  const MutBytes sums = memory_.bytes().subspan(reports_.sums(), reports_.bytes());
  over_granules(reports_, [&](uint64_t granule, uint64_t, uint64_t) {
    const Aggregate& a = in_[granule];
    if (a.length != a.lanes.size()) std::fill(a.lanes.begin(), a.lanes.end(), uint8_t{0});
  });
  return sums;
}

void Granules::put_wish(uint32_t bits) {
  uint8_t* const lanes = memory_.bytes().data() + lane_bytes_;
  for (uint32_t bit = 0; bit < kWishLanes; ++bit)
    store<uint32_t>(lanes + uint64_t{4} * bit, bits >> bit & 1U);
}

uint32_t Granules::wish() const {
  uint32_t bits = 0;
  const Aggregate& sum = in_[granules_];
  for (uint32_t bit = 0; bit < kWishLanes && sum.added != 0; ++bit)
    bits |= load<uint32_t>(sum.lanes.data() + uint64_t{4} * bit) != 0 ? 1U << bit : 0U;
  return bits;
}

void Granules::put_nothing(uint64_t unit) {
  const Region& r = regions_[unit];
  for (uint64_t g = r.first; g < r.first + r.granules; ++g) {
    out_[g].payload = {};
    out_[g].norm = 0;
    out_[g].flags |= kGranuleEmpty;
  }
}

void Granules::put(uint64_t unit, const Spec&, Bytes codes, Work& work) {
  const Region& r = regions_[unit];
  const uint64_t bytes = r.granules == 0 ? 0 : codes.size() / r.granules;
  for (uint64_t k = 0; k < r.granules; ++k) {
    Contribution& c = out_[r.first + k];
    c.payload = codes.subspan(k * bytes, bytes);
    c.norm = r.numbers == 0 ? uint16_t{0} : load<uint16_t>(work.kept.data() + 2 * k);
    c.flags &= static_cast<uint8_t>(~kGranuleEmpty);
  }
}

Step Granules::step() {
  return {.kind = StepKind::aggregate,
          .contributions = out(),
          .aggregates = std::span(in_).first(granules_now())};
}

uint64_t Granules::wire_bytes() const noexcept {
  const auto now = std::span(out_).first(granules_now());
  uint64_t bytes = kHeaderBytes * now.size();
  for (const Contribution& c : now) bytes += c.payload.size();
  return bytes;
}

Term Granules::sum(uint64_t unit, Work& work) {
  Region& r = regions_[unit];
  r.missing = false;
  for (uint64_t k = 0; k < r.granules; ++k) {
    const Aggregate& a = in_[r.first + k];
    if (a.length == 0) std::fill(a.lanes.begin(), a.lanes.end(), uint8_t{0});
    who_[r.first + k] = {a.added, std::max<uint32_t>(a.divisor, 1)};
    left_out_[r.first + k] = is_in(a) ? 0 : 1;
    r.missing = r.missing || !is_in(a);
    count(a);
    if (r.numbers != 0) store<uint16_t>(work.kept.data() + 2 * k, a.norm);
  }
  return {Bytes(memory_.bytes()).subspan(r.lanes, r.granules * r.lane_bytes), 1.0F,
          std::span(who_).subspan(r.first, r.granules)};
}

void Granules::count(const Aggregate& a) {
  counters_->excluded_granules += is_in(a) ? 0U : 1U;
  counters_->partial_granules += a.divisor < state_->world() ? 1U : 0U;
}

std::span<int32_t> Granules::room_for_values(uint64_t array) {
  const Array& a = arrays_[array];
  return {reinterpret_cast<int32_t*>(memory_.bytes().data() + a.sent), a.count};
}

/// Ranks whose scales differ are told so by the server: a sum would not show it.
void Granules::set_scale(uint64_t array, float scale) {
  over_granules(arrays_[array], [&](uint64_t granule, uint64_t, uint64_t) {
    out_[granule].settings = settings_ ^ float_bits(scale) * 0x9E3779B1U;
  });
}

void Granules::put_norm(uint64_t array, uint16_t norm) {
  over_granules(arrays_[array], [&](uint64_t granule, uint64_t, uint64_t) {
    out_[granule].norm = norm;
    out_[granule].flags |= kNoValues;
  });
}

void Granules::put_values(uint64_t array, uint16_t norm) {
  const Array& a = arrays_[array];
  over_granules(a, [&](uint64_t granule, uint64_t at, uint64_t count) {
    Contribution& c = out_[granule];
    c.payload =
        Bytes(memory_.bytes()).subspan(a.sent + sizeof(int32_t) * at, sizeof(int32_t) * count);
    c.norm = norm;
    c.flags &= static_cast<uint8_t>(~kGranuleEmpty);
  });
}

uint16_t Granules::largest_norm(uint64_t array) const {
  uint16_t most = 0;
  over_granules(arrays_[array], [&](uint64_t granule, uint64_t, uint64_t) {
    most = std::max(most, in_[granule].norm);
  });
  return most;
}

ValueCarrier::Sum Granules::sum_of(uint64_t array, uint64_t granule) {
  const Array& of = arrays_[array];
  const Aggregate& a = in_[of.first + granule];
  Sum sum;
  sum.begin = granule * values_per_granule_;
  sum.count = std::min(values_per_granule_, of.count - sum.begin);
  sum.divisor = std::max<uint32_t>(a.divisor, 1);
  sum.left_out = !is_in(a);
  if (a.length != 0) sum.lanes = {reinterpret_cast<const int32_t*>(a.lanes.data()), sum.count};
  count(a);
  return sum;
}

std::span<const uint8_t> Granules::left_out(uint64_t unit) const {
  const Region& r = regions_[unit];
  if (!r.missing) return {};
  return std::span(left_out_).subspan(r.first, r.granules);
}

}  // namespace

std::unique_ptr<CodeCarrier> make_granules(const RankState& state, Counters& counters) {
  return std::make_unique<Granules>(state, counters);
}

}  // namespace laconic::collective
