// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The expected state of every rank after an exchange, by plain loops over the codec's table alone:
// no pipeline, no strategy, no bundle. Written from ARCHITECTURE.md and docs/format/FRAME.md. One
// object plays all ranks of a group, on the scalar reference kernels.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "base/arena.h"
#include "base/hash.h"
#include "support/codes.h"
#include "support/lanes.h"
#include "support/ranks.h"

namespace laconic::test {

using Floats = std::vector<float>;

inline bool all_zero(const float* x, uint64_t n) {
  return std::all_of(x, x + n, [](float v) { return v == 0; });
}
inline bool all_finite(const float* x, uint64_t n) {
  return std::all_of(x, x + n, [](float v) { return std::isfinite(v); });
}

class Oracle {
 public:
  struct Counters {
    uint64_t elements = 0, dense_bytes = 0, wire_bytes = 0, rounds = 0;
    uint64_t zero_units = 0, non_finite_units = 0, fallbacks = 0, flushes = 0;
    uint64_t residual_resets = 0;
  };

  explicit Oracle(const Setup& setup, uint64_t seed = 42)
      : setup_(setup),
        legs_{Leg(setup.spec, setup.world),
              Leg(setup.down.empty() ? setup.spec : setup.down, setup.world)},
        spec_(legs_[0].spec),
        codec_(*legs_[0].codec),
        contract_(legs_[0].contract),
        seed_(seed),
        world_(setup.world),
        part_(1.0F / static_cast<float>(setup.world)),
        kind_(spec_.memory().kind),
        carries_(legs_[0].carries),
        memory_(world_),
        counters_(world_),
        pieces_(setup.parameters.size()) {
    hold();
    assign_pieces();
    for (uint32_t rank = 0; rank < world_; ++rank) remember(rank);
  }

  /// (first, elements) that the shard holds, by parameter.
  [[nodiscard]] const std::vector<std::pair<uint64_t, uint64_t>>& held() const { return held_; }
  /// "residual/P" or "mean/P", "momentum/P", "owner_residual/P@offset", "state/P@offset#hop",
  /// "state/flush".
  [[nodiscard]] std::map<std::string, Floats>& memory(uint32_t rank) { return memory_[rank]; }
  /// The last exchange, of owners with turns: something was not finite.
  [[nodiscard]] bool skipped() const { return skipped_; }
  [[nodiscard]] const Counters& counters(uint32_t rank) const { return counters_[rank]; }
  /// Are wire_bytes and rounds known beforehand? Not where capacities are predicted.
  [[nodiscard]] bool counts_bytes() const {
    return setup_.strategy == StrategyKind::native_sum || setup_.short_sends ||
           (contract_.exact_size && legs_[1].contract.exact_size);
  }

  /// One rank asks for a flush in that many steps; nothing while one is draining.
  void flush(uint32_t rank, uint32_t steps) {
    if (remembers() && memory_[rank].at(kFlush)[1] == 0)
      memory_[rank].at(kFlush)[0] = static_cast<float>(steps);
  }

  /// One exchange. `values[rank]`: a bucket of `dtype`, widened; becomes what the rank holds.
  void exchange(const Layout& layout, DType dtype, std::vector<Floats>& values, uint64_t step) {
    layout_ = &layout;
    dtype_ = dtype;
    units_ = units_of(layout);
    enter(step);
    for (Counters& c : counters_) {
      c.elements += layout.elements;
      c.dense_bytes += 2 * (world_ - 1) * layout.elements * 4 / world_;
      c.flushes += parts_ != 0 ? 1 : 0;
    }
    enroll();
    if (parts_ != 0 && !units_.empty()) return drain(values);
    const std::vector<Floats> gradients = values;
    skipped_ = !compressed(values);
    if (!skipped_) {
      for (Floats& v : values) narrow(v);
    } else if (!setup_.turn) {
      for (Counters& c : counters_) ++c.fallbacks;
      values = gradients;
      uncompressed(values);
    }
    hear_flush();
  }

 private:
  /// The codec of a hop: ranks' own gradients, means of owners.
  struct Leg {
    Spec spec;
    const CodecTable* codec;
    Contract contract;
    bool carries;  // floats without feedback carry NaN and infinity as they are

    Leg(const std::string& text, uint32_t world)
        : spec(*Spec::parse(text)), codec(&spec.codec()), contract(spec.contract()) {
      const std::string_view name = codec->info.name;
      carries = !spec.feedback() && (name == "fp16" || name == "bf16" || name == "none");
      spec.prepare(world);
    }
    [[nodiscard]] Plan plan(const Unit& unit, uint32_t world) const {
      return codec->plan(spec.params(), unit, world);
    }
    [[nodiscard]] bool compresses() const { return codec->info.name != "none"; }
  };
  [[nodiscard]] bool remembers() const {
    const bool owners = setup_.strategy == StrategyKind::two_shot && legs_[1].spec.feedback();
    return spec_.feedback() || owners;
  }

  struct Piece {
    Unit unit;
    uint64_t inside = 0;  // where it begins in what the shard holds
    uint32_t owner = 0;
    Plan plan, down;  // of both hops
    std::string parameter;
    [[nodiscard]] std::string at() const { return parameter + "@" + std::to_string(unit.offset); }
    [[nodiscard]] const Plan& at_hop(uint32_t hop) const { return hop == 0 ? plan : down; }
  };
  struct InBucket {  // a unit and its first element in the bucket
    const Piece* piece;
    uint64_t offset;
  };
  struct Coded {
    bool sent = false, non_finite = false;
    std::vector<uint8_t> bytes;
    Floats exact;  // of a rank to its own mean, where owners have turns: in place of a payload
  };
  using ByRank = std::vector<std::vector<Coded>>;  // [rank][unit of the bucket]

  // ---- what exists ----

  /// Who has how much of what, among the shards of a node. From here on parameters are what this
  /// one holds.
  void hold() {
    const uint64_t granule = multiple_of_both(contract_.granule, legs_[1].contract.granule);
    const uint64_t shards = setup_.node_shards, own = setup_.node_shard;
    std::vector<uint64_t> load(shards);
    for (Parameter& p : setup_.parameters) {
      const uint64_t n = p.count(), granules = n / granule;
      small_.push_back(n <= setup_.small_elements);
      if (shards == 1) {
        held_.emplace_back(0, n);
      } else if (small_.back() || contract_.whole_parameter || n < shards * granule) {
        const auto least = std::min_element(load.begin(), load.end());
        *least += n;
        held_.emplace_back(0, static_cast<uint64_t>(least - load.begin()) == own ? n : 0);
      } else {
        uint64_t begin = 0;
        for (uint64_t s = 0; s < shards; ++s) {
          const uint64_t end = s + 1 == shards ? n : granules * (s + 1) / shards * granule;
          load[s] += end - begin;
          if (s == own) held_.emplace_back(begin, end - begin);
          begin = end;
        }
      }
      if (held_.back().second != n) p = {p.name, held_.back().second, 1};
    }
  }
  void assign_pieces() {
    std::vector<uint64_t> load(world_);
    const uint64_t granule = multiple_of_both(contract_.granule, legs_[1].contract.granule);
    const bool sends_as_is = !legs_[0].compresses() && !legs_[1].compresses();
    for (size_t i = 0; i < setup_.parameters.size(); ++i) {
      const Parameter& p = setup_.parameters[i];
      const auto [first, held] = held_[i];
      const Unit whole{held, p.rows, p.cols, name_hash(p.name), first};
      if (small_[i] || held == 0 || (sends_as_is && !setup_.turn)) continue;
      if (setup_.strategy != StrategyKind::two_shot) {
        add_piece(i, whole, 0);
      } else if (p.count() < uint64_t{world_} * granule) {
        const auto least = std::min_element(load.begin(), load.end()) - load.begin();
        load[static_cast<size_t>(least)] += p.count();
        add_piece(i, whole, static_cast<uint32_t>(least));
      } else {
        const uint64_t granules = p.count() / granule;
        for (uint64_t r = 0, begin = 0; r < world_; ++r) {
          const uint64_t end = r + 1 == world_ ? p.count() : granules * (r + 1) / world_ * granule;
          add_piece(i, {end - begin, end - begin, 1, whole.parameter, first + begin},
                    static_cast<uint32_t>(r));
          begin = end;
        }
      }
    }
  }
  void add_piece(size_t i, const Unit& unit, uint32_t owner) {
    pieces_[i].push_back({unit, unit.offset - held_[i].first, owner, legs_[0].plan(unit, world_),
                          legs_[1].plan(unit, world_), setup_.parameters[i].name});
  }
  /// The smallest, by trying.
  static uint64_t multiple_of_both(uint64_t a, uint64_t b) {
    uint64_t multiple = a;
    while (multiple % b != 0) multiple += a;
    return multiple;
  }
  static uint64_t name_hash(const std::string& name) { return hash64(name); }

  void remember(uint32_t rank) {
    if (remembers()) memory_[rank][kFlush] = {0, 0};
    for (size_t i = 0; i < pieces_.size(); ++i) {
      const Parameter& p = setup_.parameters[i];
      if (!pieces_[i].empty()) {
        if (spec_.feedback()) memory_[rank]["residual/" + p.name].resize(p.count());
        if (kind_ == MemoryKind::ema) memory_[rank]["mean/" + p.name].resize(p.count());
        if (kind_ == MemoryKind::momentum) memory_[rank]["momentum/" + p.name].resize(p.count());
      }
      for (const Piece& piece : pieces_[i]) {
        start_state(rank, piece, 0);
        if (setup_.strategy != StrategyKind::two_shot || piece.owner != rank) continue;
        start_state(rank, piece, 1);
        if (legs_[1].spec.feedback() && !setup_.turn)
          memory_[rank]["owner_residual/" + piece.at()].resize(piece.unit.count);
      }
    }
  }
  static std::string state_name(const Piece& piece, uint32_t hop) {
    return "state/" + piece.at() + "#" + std::to_string(hop) +
           (piece.at_hop(hop).state_may_lack ? "?" : "");
  }
  void start_state(uint32_t rank, const Piece& piece, uint32_t hop) {
    const uint64_t floats = piece.at_hop(hop).state_floats;
    if (floats == 0) return;
    Floats& values = memory_[rank][state_name(piece, hop)];
    values.resize(floats);
    const Place start{seed_, 0, rank, world_, hop, 1.0F};
    legs_[hop].codec->init(legs_[hop].spec.params(), piece.unit, start, values);
  }
  /// The input of encode, or null: e, m or v of a rank's own gradient, e of a mean that it owns.
  float* residual(uint32_t rank, const Piece& piece, uint32_t hop) {
    if (hop == 1) {
      if (kind_at(1) != MemoryKind::residual) return nullptr;
      return memory_[rank].at("owner_residual/" + piece.at()).data();
    }
    if (kind_ == MemoryKind::none) return nullptr;
    const char* name = kind_ == MemoryKind::ema ? "mean/" : "residual/";
    return memory_[rank].at(name + piece.parameter).data() + piece.inside;
  }
  float* momentum(uint32_t rank, const Piece& piece, uint32_t hop) {
    if (hop == 1 || kind_ != MemoryKind::momentum) return nullptr;
    return memory_[rank].at("momentum/" + piece.parameter).data() + piece.inside;
  }
  /// A mean that a rank owns has a residual at most.
  [[nodiscard]] MemoryKind kind_at(uint32_t hop) const {
    if (hop == 0) return kind_;
    return legs_[1].spec.feedback() && !setup_.turn ? MemoryKind::residual : MemoryKind::none;
  }
  [[nodiscard]] bool absorbs(uint32_t hop) const {
    return kind_at(hop) == MemoryKind::residual && legs_[hop].contract.feedback == Feedback::own;
  }
  /// Means are taken off every rank's residual: all ranks send if one has a gradient.
  [[nodiscard]] bool joint() const {
    return contract_.feedback == Feedback::aggregate && spec_.feedback();
  }
  /// So they have to report whether they have one.
  [[nodiscard]] uint64_t present_lanes() const {
    uint64_t parameters = 0;
    for (const uint32_t p : layout_->parameters) parameters += joint() && !pieces_[p].empty();
    return parameters;
  }
  [[nodiscard]] static bool nobody(const std::vector<Floats>& values, uint64_t at, uint64_t n) {
    return std::all_of(values.begin(), values.end(),
                       [&](const Floats& v) { return all_zero(v.data() + at, n); });
  }
  std::span<float> state(uint32_t rank, const Piece& piece, uint32_t hop) {
    const auto found = memory_[rank].find(state_name(piece, hop));
    return found == memory_[rank].end() ? std::span<float>() : std::span<float>(found->second);
  }
  [[nodiscard]] std::vector<InBucket> units_of(const Layout& layout) const {
    std::vector<InBucket> list;
    for (size_t i = 0; i < layout.parameters.size(); ++i) {
      for (const Piece& piece : pieces_[layout.parameters[i]])
        list.push_back({&piece, layout.offsets[i] + piece.inside});
    }
    return list;
  }
  /// body(offset, count) for every uncompressed parameter of the bucket.
  template <class Body>
  void for_raw(const Body& body) const {
    for (size_t i = 0; i < layout_->parameters.size(); ++i) {
      const uint32_t p = layout_->parameters[i];
      if (pieces_[p].empty()) body(layout_->offsets[i], setup_.parameters[p].count());
    }
  }
  [[nodiscard]] uint64_t raw_lanes() const {
    uint64_t lanes = 0;
    for_raw([&](uint64_t, uint64_t count) { lanes += count; });
    return lanes;
  }

  // ---- one unit ----

  /// 16-bit lanes that an engine adds are divided before the sum, so that it cannot overflow.
  [[nodiscard]] Place place(uint32_t rank, uint32_t hop, const RoundPlan& round) const {
    const bool half = round.lane == DType::f16 || round.lane == DType::bf16;
    const bool divided = setup_.strategy == StrategyKind::native_sum && half;
    return {seed_, step_, rank, world_, hop, divided ? part_ : 1.0F};
  }
  Work work(uint32_t rank, const Piece& piece, uint32_t hop) {
    Arena& kept = kept_[std::to_string(rank) + piece.at() + std::to_string(hop)];
    EXPECT_TRUE(kept.reserve(piece.at_hop(hop).kept_bytes + 64));
    EXPECT_TRUE(scratch_.reserve(piece.at_hop(hop).scratch_bytes + 64));
    return {kept.bytes(), scratch_.bytes(), Isa::scalar, nullptr};
  }
  void decode(uint32_t rank, const Piece& piece, uint32_t hop, std::span<const Term> terms,
              Target target) {
    Work lent = work(rank, piece, hop);
    const Place at = place(rank, hop, piece.at_hop(hop).round[0]);
    legs_[hop].codec->decode({legs_[hop].spec.params(), {}, piece.unit, at, 0, lent}, terms,
                             target);
  }
  [[nodiscard]] std::vector<uint8_t> encode_round(uint32_t rank, const Piece& piece, uint32_t hop,
                                                  uint32_t round, Source source) {
    const RoundPlan& plan = piece.at_hop(hop).round[round];
    std::vector<uint8_t> bytes(plan.bytes);
    Work lent = work(rank, piece, hop);
    const Encoded encoded =
        legs_[hop].codec->encode({legs_[hop].spec.params(), state(rank, piece, hop), piece.unit,
                                  place(rank, hop, plan), round, lent},
                                 source, bytes);
    EXPECT_TRUE(encoded.finite) << setup_.spec;
    bytes.resize(encoded.bytes);
    return bytes;
  }
  /// e·decay + g; m·β + g·(1 − β); or v + u, of u·μ + g, which replaces u.
  static void join(MemoryKind kind, const MemorySettings& memory, Floats& sum, const float* e,
                   Floats& u) {
    for (size_t k = 0; k < sum.size(); ++k) {
      if (kind == MemoryKind::residual) {
        sum[k] = memory.decay * e[k] + sum[k];
      } else if (kind == MemoryKind::ema) {
        sum[k] = memory.factor * e[k] + (1.0F - memory.factor) * sum[k];
      } else if (kind == MemoryKind::momentum) {
        u[k] = memory.factor * u[k] + sum[k];
        sum[k] = e[k] + u[k];
      }
    }
  }
  /// Round 0 with feedback: afterwards residual = residual + gradient - what was sent.
  Coded encode(uint32_t rank, const Piece& piece, uint32_t hop, const float* gradient) {
    const uint64_t n = piece.unit.count;
    const MemorySettings memory = legs_[hop].spec.memory();
    const MemoryKind kind = kind_at(hop);
    float* e = residual(rank, piece, hop);
    float* u = momentum(rank, piece, hop);
    if (all_zero(gradient, n) && !(hop == 0 && joint() && !all_zero(e, n))) return {};
    Floats sum(gradient, gradient + n), inertia;
    if (u != nullptr) inertia.assign(u, u + n);
    join(kind, memory, sum, e, inertia);
    const auto within_reach = [&](const float* x) { return this->within_reach(piece, hop, x); };
    if (!legs_[hop].carries && !within_reach(sum.data())) {
      const bool residual_alone = e != nullptr && within_reach(gradient) &&
                                  (!within_reach(e) || (u != nullptr && !within_reach(u)));
      if (!residual_alone) return {false, true, {}, {}};
      ++counters_[rank].residual_resets;
      std::fill_n(e, n, 0.0F);
      inertia.assign(inertia.size(), 0.0F);
      sum.assign(gradient, gradient + n);
      join(kind, memory, sum, e, inertia);
    }
    if (hop == 0 && setup_.turn && piece.owner == rank && absorbs(hop)) {
      std::fill_n(e, n, 0.0F);
      return {false, false, {}, sum};
    }
    const uint32_t first = first_round(rank, piece, hop);
    if (in_one_pass(hop))
      return {true, false, encode_round(rank, piece, hop, first, {gradient, e}), {}};
    if (e != nullptr) std::copy(sum.begin(), sum.end(), e);
    std::copy(inertia.begin(), inertia.end(), u);
    Coded coded{true, false, encode_round(rank, piece, hop, first, {sum.data(), nullptr}), {}};
    if (absorbs(hop) && first + 1 == piece.at_hop(hop).rounds)
      add_sent(rank, piece, hop, coded, -1);
    return coded;
  }
  /// Does encode change the residual itself?
  [[nodiscard]] bool in_one_pass(uint32_t hop) const {
    return kind_at(hop) == MemoryKind::residual && legs_[hop].spec.memory().decay == 1 &&
           legs_[hop].contract.fused;
  }
  /// Rounds before it are not needed: their outcome is in the codec state.
  uint32_t first_round(uint32_t rank, const Piece& piece, uint32_t hop) {
    const CodecTable& codec = *legs_[hop].codec;
    if (codec.start == nullptr) return 0;
    Work lent = work(rank, piece, hop);
    return codec.start(
        {legs_[hop].spec.params(), state(rank, piece, hop), piece.unit, {}, 0, lent});
  }
  /// Finite, and no more than the codec takes.
  static bool within_reach(const Piece& piece, uint32_t hop, const float* x) {
    return std::all_of(x, x + piece.unit.count,
                       [&](float v) { return std::abs(v) <= piece.at_hop(hop).largest_input; });
  }
  /// residual += sign · what was sent
  void add_sent(uint32_t rank, const Piece& piece, uint32_t hop, const Coded& coded, float sign) {
    const bool divided = place(rank, hop, piece.at_hop(hop).round[0]).prescale != 1.0F;
    const Term own{coded.bytes, divided ? sign * static_cast<float>(world_) : sign};
    decode(rank, piece, hop, {&own, 1}, {residual(rank, piece, hop), true});
  }
  /// The values travel another way: the residual returns to what it was, within one rounding.
  void take_back(uint32_t rank, const Piece& piece, uint32_t hop, const Coded& coded,
                 const float* values) {
    float* e = residual(rank, piece, hop);
    std::copy(coded.exact.begin(), coded.exact.end(), e);
    if ((!coded.sent && coded.exact.empty()) || e == nullptr) return;
    if (absorbs(hop) && !coded.bytes.empty()) add_sent(rank, piece, hop, coded, 1);
    const MemorySettings memory = legs_[hop].spec.memory();
    const MemoryKind kind = kind_at(hop);
    float* u = momentum(rank, piece, hop);
    const auto back = [](float x, float share, float weight, float g) {
      return x * (1.0F / share) - g * (weight / share);
    };
    for (uint64_t k = 0; k < piece.unit.count; ++k) {
      if (kind == MemoryKind::momentum) {
        e[k] -= u[k];
        u[k] = back(u[k], memory.factor, 1.0F, values[k]);
      } else if (kind == MemoryKind::ema) {
        e[k] = back(e[k], memory.factor, 1.0F - memory.factor, values[k]);
      } else {
        e[k] = memory.decay == 1 ? e[k] - values[k] : back(e[k], memory.decay, 1.0F, values[k]);
      }
    }
  }
  /// Velocity and momentum are 0 where something was sent, a zero, too: that turns one of two
  /// decodings into -0 into +0. Of the velocity stays what rounding left.
  void forget(uint32_t rank, const Piece& piece, const Coded& coded) {
    const std::string& spec = setup_.spec;
    const bool blocks = spec.starts_with("blocktopk");  // rounds unless told otherwise
    const bool rounds = blocks ? spec.find("values=f32") == std::string::npos
                               : spec.find("values=bf16") != std::string::npos;
    const uint64_t n = piece.unit.count;
    Floats plus(n, -0.0F), minus(n, -0.0F);
    const Term one{coded.bytes, 1.0F}, other{coded.bytes, -1.0F};
    decode(rank, piece, 0, {&one, 1}, {plus.data(), true});
    decode(rank, piece, 0, {&other, 1}, {minus.data(), true});
    for (uint64_t k = 0; k < n; ++k) {
      const bool held = plus[k] != 0 || !std::signbit(plus[k]) || !std::signbit(minus[k]);
      if (!held) continue;
      float& velocity = residual(rank, piece, 0)[k];
      velocity = rounds ? velocity - plus[k] : 0;
      momentum(rank, piece, 0)[k] = 0;
    }
  }
  void commit(uint32_t rank, const Piece& piece, uint32_t hop, const Coded& coded, Bytes merged,
              const float* mean) {
    Work lent = work(rank, piece, hop);
    const Plan& plan = piece.at_hop(hop);
    const Place at = place(rank, hop, plan.round[plan.rounds - 1]);
    legs_[hop].codec->commit(
        {legs_[hop].spec.params(), state(rank, piece, hop), piece.unit, at, 0, lent},
        state(rank, piece, hop), coded.bytes, merged, hop == 1 ? 1 : world_);
    if (momentum(rank, piece, hop) != nullptr && coded.sent) forget(rank, piece, coded);
    float* e = residual(rank, piece, hop);
    if (legs_[hop].contract.feedback != Feedback::aggregate || e == nullptr) return;
    for (uint64_t k = 0; k < piece.unit.count; ++k) e[k] -= mean[k];
  }

  // ---- the three strategies; false: some gradient is not finite, everything was taken back ----

  bool compressed(std::vector<Floats>& values) {
    switch (setup_.strategy) {
      case StrategyKind::gather_all:
        return gather_all(values);
      case StrategyKind::two_shot:
        return two_shot(values);
      default:
        return native_sum(values);
    }
  }

  ByRank encode_all(const std::vector<Floats>& values) {
    ByRank all(world_);
    for (uint32_t r = 0; r < world_; ++r) {
      for (const InBucket& u : units_) {
        all[r].push_back(encode(r, *u.piece, 0, values[r].data() + u.offset));
        if (all[r].back().non_finite) {
          ++counters_[r].non_finite_units;
        } else if (!all[r].back().sent && all[r].back().exact.empty()) {
          ++counters_[r].zero_units;
        }
      }
    }
    return all;
  }
  bool take_all_back(const ByRank& coded, const std::vector<Floats>& values) {
    for (uint32_t r = 0; r < world_; ++r) {
      for (size_t i = 0; i < coded[r].size(); ++i) {
        take_back(r, *units_[i].piece, 0, coded[r][i], values[r].data() + units_[i].offset);
      }
    }
    return false;
  }
  /// Weighted terms of all ranks that sent something, in rank order; the others count in 1/world.
  [[nodiscard]] Floats mean_of(const ByRank& coded, size_t unit, const Piece& piece,
                               uint32_t reader) {
    std::vector<Term> terms;
    for (uint32_t r = 0; r < world_; ++r) {
      const bool vote = contract_.merge == Merge::vote;
      if (coded[r][unit].sent) terms.push_back({coded[r][unit].bytes, vote ? 1.0F : part_});
    }
    Floats mean(piece.unit.count);
    if (!terms.empty()) decode(reader, piece, 0, terms, {mean.data(), false});
    if (!terms.empty() && contract_.merge == Merge::vote) {
      for (float& x : mean) x = x < 0 ? -1.0F : 1.0F;  // a tie is +1
    }
    for (uint32_t r = 0; r < world_; ++r) {
      const Floats& exact = coded[r][unit].exact;
      for (size_t k = 0; k < exact.size(); ++k) mean[k] += part_ * exact[k];
    }
    return mean;
  }
  void set_raw_means(std::vector<Floats>& values) const {
    for_raw([&](uint64_t offset, uint64_t count) {
      for (uint64_t k = offset; k < offset + count; ++k) {
        float sum = values[0][k];
        for (uint32_t r = 1; r < world_; ++r) sum += values[r][k];
        for (Floats& v : values) v[k] = sum * part_;
      }
    });
  }
  void set(std::vector<Floats>& values, uint64_t offset, const Floats& mean) const {
    for (Floats& v : values)
      std::copy(mean.begin(), mean.end(), v.begin() + static_cast<ptrdiff_t>(offset));
  }

  bool gather_all(std::vector<Floats>& values) {
    const ByRank coded = encode_all(values);
    for (uint32_t r = 0; r < world_; ++r) {
      std::vector<size_t> everything(units_.size());
      for (size_t i = 0; i < units_.size(); ++i) everything[i] = i;
      sends(r, world_ - 1, bundle_bytes(everything, coded[r], raw_lanes(), 0));
      ++counters_[r].rounds;
    }
    if (any_non_finite(coded)) return take_all_back(coded, values);
    for (size_t i = 0; i < units_.size(); ++i) {
      const Floats mean = mean_of(coded, i, *units_[i].piece, 0);
      set(values, units_[i].offset, mean);
      for (uint32_t r = 0; r < world_; ++r)
        commit(r, *units_[i].piece, 0, coded[r][i], {}, mean.data());
    }
    set_raw_means(values);
    return true;
  }

  bool two_shot(std::vector<Floats>& values) {
    const ByRank coded = encode_all(values);
    std::vector<Floats> means(units_.size());
    std::vector<Coded> recoded(units_.size());
    bool bad = false;
    for (uint32_t o = 0; o < world_; ++o) {
      std::vector<size_t> owned;
      for (size_t i = 0; i < units_.size(); ++i) {
        if (units_[i].piece->owner == o) owned.push_back(i);
      }
      bool refused = false;  // an owner that got something not finite re-encodes nothing
      for (size_t i = 0; i < units_.size(); ++i) {
        if (!setup_.turn && units_[i].piece->owner != o) continue;
        for (uint32_t r = 0; r < world_; ++r) refused = refused || coded[r][i].non_finite;
      }
      for (const size_t i : owned) {
        means[i] = mean_of(coded, i, *units_[i].piece, o);
        if (setup_.turn && !refused)
          setup_.turn(units_[i].piece->parameter, units_[i].piece->unit.offset, means[i]);
        if (!refused) recoded[i] = encode(o, *units_[i].piece, 1, means[i].data());
        bad = bad || refused || recoded[i].non_finite;
      }
      const uint64_t lanes = raw_lanes() * (o + 1) / world_ - raw_lanes() * o / world_;
      for (uint32_t r = 0; r < world_; ++r) {
        if (r != o) sends(r, 1, bundle_bytes(owned, coded[r], lanes, 0));
      }
      sends(o, world_ - 1, bundle_bytes(owned, recoded, lanes, 1));
      counters_[o].rounds += 2;
    }
    for (size_t i = 0; i < units_.size(); ++i) {
      const InBucket& u = units_[i];
      const uint32_t o = u.piece->owner;
      if (bad) {
        take_back(o, *u.piece, 1, recoded[i], means[i].data());
        continue;
      }
      Floats out(u.piece->unit.count);
      const Term mean{recoded[i].bytes, 1.0F};
      if (recoded[i].sent) decode(o, *u.piece, 1, {&mean, 1}, {out.data(), false});
      set(values, u.offset, out);
      for (uint32_t r = 0; r < world_; ++r) commit(r, *u.piece, 0, coded[r][i], {}, out.data());
      commit(o, *u.piece, 1, recoded[i], {}, out.data());
    }
    if (bad) return take_all_back(coded, values);
    set_raw_means(values);
    return true;
  }

  // ---- sums of codes: docs/decisions/0030-integers-that-are-summed.md ----

  [[nodiscard]] bool sums_codes() const {
    return !units_.empty() && units_[0].piece->plan.round[last_of(*units_[0].piece)].code_bits != 0;
  }
  static uint32_t last_of(const Piece& piece) { return piece.plan.rounds - 1; }

  bool sum_codes(std::vector<Floats>& values) {
    std::vector<bool> agrees(units_.size());  // units that have to agree on something first
    for (size_t i = 0; i < units_.size(); ++i) {
      for (uint32_t r = 0; r < world_; ++r) agrees[i] = first_round(r, *units_[i].piece, 0) == 0;
    }
    const bool folded = std::none_of(agrees.begin(), agrees.end(), [](bool x) { return x; });
    ByRank coded = encode_all(values);
    const auto back = [&](size_t i, bool encoded) {
      for (uint32_t r = 0; r < world_; ++r) {
        Coded gone = coded[r][i];
        if (in_one_pass(0) && !encoded) continue;  // the residual is what it was
        if (!in_one_pass(0) && !encoded) gone.bytes.clear();
        take_back(r, *units_[i].piece, 0, gone, values[r].data() + units_[i].offset);
      }
    };
    bool bad_norms = false, bad = any_non_finite(coded);
    for (size_t i = 0; i < units_.size(); ++i) {
      for (uint32_t r = 0; r < world_; ++r)
        bad_norms = bad_norms || (agrees[i] && coded[r][i].non_finite);
    }
    if (!folded) count_agreement(agrees);
    if (!folded && bad_norms) {
      for (size_t i = 0; i < units_.size(); ++i) back(i, !agrees[i]);
      tell_all();
      return false;
    }
    for (size_t i = 0; i < units_.size(); ++i) {
      if (agrees[i]) agree_and_encode(i, coded, values);
    }
    count_codes(folded);
    if (bad) {
      for (size_t i = 0; i < units_.size(); ++i) back(i, true);
      tell_all();
      return false;
    }
    for (size_t i = 0; i < units_.size(); ++i) take_sum(i, coded, values);
    average_raw(values);
    return true;
  }
  /// The largest of what all ranks sent in round 0; then codes.
  void agree_and_encode(size_t i, ByRank& coded, const std::vector<Floats>& values) {
    const Piece& piece = *units_[i].piece;
    Floats most(piece.plan.round[0].bytes / sizeof(float));
    for (uint32_t r = 0; r < world_; ++r) {
      for (size_t k = 0; k < most.size() && coded[r][i].sent; ++k)
        most[k] = std::max(most[k], load<float>(&coded[r][i].bytes[4 * k]));
    }
    for (uint32_t r = 0; r < world_; ++r) {
      std::vector<uint8_t> merged(4 * most.size());
      for (size_t k = 0; k < most.size(); ++k) store(&merged[4 * k], most[k]);
      Work lent = work(r, piece, 0);
      codec_.accept({spec_.params(), {}, piece.unit, place(r, 0, piece.plan.round[0]), 0, lent},
                    merged, world_);
      if (!coded[r][i].sent) continue;
      float* e = residual(r, piece, 0);
      const float* g = values[r].data() + units_[i].offset;
      const bool one_pass = in_one_pass(0);
      const Source source{one_pass || e == nullptr ? g : e, one_pass ? e : nullptr};
      coded[r][i].bytes = encode_round(r, piece, 0, 1, source);
      if (absorbs(0) && !one_pass) add_sent(r, piece, 0, coded[r][i], -1);
    }
  }
  void take_sum(size_t i, const ByRank& coded, std::vector<Floats>& values) {
    const Piece& piece = *units_[i].piece;
    const RoundPlan& plan = piece.plan.round[last_of(piece)];
    const uint64_t size = dtype_size(plan.lane);
    const auto table = codec_.table(spec_.params());
    std::vector<uint32_t> total(plan.lanes);
    std::vector<uint16_t> maxima(plan.maxima);
    Contributors who{0, world_};
    for (uint32_t r = 0; r < world_; ++r) {
      if (!coded[r][i].sent) continue;
      ++who.added;
      for (size_t k = 0; k < total.size(); ++k)
        total[k] += table[code_at(coded[r][i].bytes, k, plan.code_bits)];
      Work lent = work(r, piece, 0);
      for (size_t k = 0; k < maxima.size(); ++k)
        maxima[k] = std::max(maxima[k], load<uint16_t>(&lent.kept[2 * k]));
    }
    std::vector<uint8_t> sums(plan.lanes * size);
    for (size_t k = 0; k < total.size(); ++k) {
      EXPECT_LT(total[k], 1U << 8 * size) << "lanes overflow";
      for (uint64_t byte = 0; byte < size; ++byte)
        sums[size * k + byte] = static_cast<uint8_t>(total[k] >> 8 * byte);
    }
    const Term sum{sums, 1.0F, {&who, 1}};
    for (uint32_t r = 0; r < world_; ++r) {
      Work lent = work(r, piece, 0);
      for (size_t k = 0; k < maxima.size(); ++k) store(&lent.kept[2 * k], maxima[k]);
      Floats mean(piece.unit.count);
      decode(r, piece, 0, {&sum, 1}, {mean.data(), false});
      std::copy(mean.begin(), mean.end(),
                values[r].begin() + static_cast<ptrdiff_t>(units_[i].offset));
      commit(r, piece, 0, coded[r][i], sums, mean.data());
    }
  }
  void average_raw(std::vector<Floats>& values) const {
    for_raw([&](uint64_t offset, uint64_t count) {
      for (uint64_t k = offset; k < offset + count; ++k) {
        float sum = values[0][k] * part_;
        for (uint32_t r = 1; r < world_; ++r) sum += values[r][k] * part_;
        for (Floats& v : values) v[k] = sum;
      }
    });
  }
  /// Uncompressed parameters. What is agreed on is gathered; the request rides with the codes.
  void count_raw() {
    if (raw_lanes() == 0) return;
    for (Counters& c : counters_)
      c.wire_bytes += 2 * 4 * raw_lanes() * (world_ - 1) / world_, ++c.rounds;
  }
  void count_agreement(const std::vector<bool>& agrees) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < agrees.size(); ++i) bytes += units_[i].piece->plan.round[0].bytes;
    count_raw();
    for (Counters& c : counters_) c.wire_bytes += bytes * (world_ - 1), ++c.rounds;
  }
  void count_codes(bool folded) {
    if (folded) count_raw();
    uint64_t lanes = 1 + kWishLanes;
    for (const InBucket& u : units_) {
      const RoundPlan& plan = u.piece->plan.round[last_of(*u.piece)];
      lanes += 1 + (world_ * plan.maxima + 1) / 2 + plan.lanes * dtype_size(plan.lane) / 4;
    }
    for (Counters& c : counters_) c.wire_bytes += 2 * 4 * lanes * (world_ - 1) / world_, ++c.rounds;
  }

  bool native_sum(std::vector<Floats>& values) {
    if (sums_codes()) return sum_codes(values);
    ByRank coded = encode_all(values);
    uint32_t rounds = 1;
    for (const InBucket& u : units_) rounds = std::max(rounds, u.piece->plan.rounds);
    std::vector<std::vector<uint8_t>> sums(units_.size());
    ByRank first = coded;
    bool bad = any_non_finite(coded);
    for (uint32_t round = 0; round < rounds && !bad; ++round) {
      for (size_t i = 0; i < units_.size(); ++i) {
        const Piece& piece = *units_[i].piece;
        if (round >= piece.plan.rounds) continue;
        for (uint32_t r = 0; r < world_ && round > 0; ++r) {
          std::vector<uint8_t> merged = sums[i];
          Work lent = work(r, piece, 0);
          codec_.accept({spec_.params(),
                         {},
                         piece.unit,
                         place(r, 0, piece.plan.round[round - 1]),
                         round - 1,
                         lent},
                        merged, world_);
          if (!coded[r][i].sent) continue;
          const float* e = residual(r, piece, 0);
          coded[r][i].bytes = encode_round(r, piece, 0, round,
                                           {e ? e : values[r].data() + units_[i].offset, nullptr});
        }
        bad = !sum_lanes(piece.plan.round[round], coded, i, sums[i]) || bad;
      }
      count_sums(round);
      if (round == 0 && !bad && joint()) leave_absent(coded, first, sums, values);
    }
    if (bad) {
      if (any_non_finite(coded)) count_sums(0);
      tell_all();
      return take_all_back(first, values);
    }
    for (size_t i = 0; i < units_.size(); ++i) {
      const Piece& piece = *units_[i].piece;
      const bool divided = place(0, 0, piece.plan.round[piece.plan.rounds - 1]).prescale != 1.0F;
      const Term sum{sums[i], divided ? 1.0F : part_};
      Floats mean(piece.unit.count);
      decode(0, piece, 0, {&sum, 1}, {mean.data(), false});
      set(values, units_[i].offset, mean);
      for (uint32_t r = 0; r < world_; ++r) commit(r, piece, 0, coded[r][i], sums[i], mean.data());
    }
    average_raw(values);
    return true;
  }
  /// A parameter without a gradient on all ranks was not sent.
  void leave_absent(ByRank& coded, ByRank& first, std::vector<std::vector<uint8_t>>& sums,
                    const std::vector<Floats>& values) {
    for (size_t i = 0; i < units_.size(); ++i) {
      const Piece& piece = *units_[i].piece;
      if (!nobody(values, units_[i].offset, piece.unit.count)) continue;
      std::fill(sums[i].begin(), sums[i].end(), uint8_t{0});
      for (uint32_t r = 0; r < world_; ++r) {
        if (!coded[r][i].sent) continue;
        ++counters_[r].zero_units;
        take_back(r, piece, 0, coded[r][i], values[r].data() + units_[i].offset);
        coded[r][i] = first[r][i] = {};
      }
    }
  }
  /// Rank order, rounded to the lane's type after every addition. False: the sum is not finite and
  /// must not reach residual or state.
  bool sum_lanes(const RoundPlan& plan, const ByRank& coded, size_t unit,
                 std::vector<uint8_t>& sum) const {
    const uint64_t size = dtype_size(plan.lane);
    sum.assign(plan.bytes, 0);
    bool finite = true;
    for (uint64_t at = 0; at < plan.bytes; at += size) {
      float total = 0;
      for (uint32_t r = 0; r < world_; ++r) {
        const float x = coded[r][unit].sent ? load_lane(plan.lane, &coded[r][unit].bytes[at]) : 0;
        total = r == 0 ? x : round_to(plan.lane, total + x);
      }
      store_lane(plan.lane, &sum[at], total);
      finite = finite && std::isfinite(total);
    }
    return finite || carries_;
  }

  // ---- the uncompressed way ----

  void narrow(Floats& values) const {
    for (float& x : values) x = round_to(dtype_, x);
  }
  /// The bucket's type where the engine adds it, float32 otherwise.
  [[nodiscard]] DType travelling() const {
    return (setup_.sums >> static_cast<uint32_t>(dtype_) & 1U) != 0 ? dtype_ : DType::f32;
  }
  void uncompressed(std::vector<Floats>& values) {
    const DType type = travelling();
    for (uint64_t k = 0; k < layout_->elements; ++k) {
      float sum = 0;
      for (uint32_t r = 0; r < world_; ++r) {
        const float x = round_to(type, round_to(type, values[r][k]) * part_);
        sum = r == 0 ? x : round_to(type, sum + x);
      }
      for (Floats& v : values) v[k] = round_to(dtype_, sum);
    }
    for (Counters& c : counters_) {
      c.wire_bytes += 2 * layout_->elements * dtype_size(type) * (world_ - 1) / world_;
      ++c.rounds;
    }
  }
  /// "state/flush" is {this rank's request, draining steps to come}: the step after the request is
  /// the first to drain, and takes a part of 1/steps.
  void enter(uint64_t step) {
    if (step == step_) return;
    step_ = step;
    parts_ = 0;
    for (auto& memory : memory_) {
      if (!remembers()) continue;
      float& left = memory.at(kFlush)[1];
      parts_ = static_cast<uint32_t>(left);
      if (left != 0) --left;
    }
  }
  /// Flush requests are sent with compressed data; one rank's is enough, several are joined by OR.
  void hear_flush() {
    uint32_t steps = 0;
    for (uint32_t r = 0; r < world_ && remembers(); ++r)
      steps |= static_cast<uint32_t>(memory_[r].at(kFlush)[0]);
    if (steps == 0 || (units_.empty() && setup_.strategy == StrategyKind::native_sum)) return;
    for (auto& memory : memory_) memory.at(kFlush) = {0, static_cast<float>(steps)};
  }
  /// In a flush gradient + residual/parts is sent, and the residual loses that. An owner's residual
  /// belongs to the mean, so it counts `world` times: it joins the owner's own or, where ranks have
  /// none, is sent by itself.
  void drain(std::vector<Floats>& values) {
    const float part = 1.0F / static_cast<float>(parts_);
    const DType type = travelling();
    const std::vector<Floats> gradients = values;
    const auto absent = [&](size_t i) {
      const uint64_t n = setup_.parameters[layout_->parameters[i]].count();
      return joint() && nobody(gradients, layout_->offsets[i], n);
    };
    for (uint32_t r = 0; r < world_; ++r) {
      for (size_t i = 0; i < layout_->parameters.size(); ++i) {
        const Parameter& p = setup_.parameters[layout_->parameters[i]];
        const auto kept = memory_[r].find("residual/" + p.name);
        float* g = values[r].data() + layout_->offsets[i];
        // A parameter without a local gradient keeps its residual: DDP may discard the result.
        const bool stays = joint() ? absent(i) : all_zero(g, p.count());
        if (stays) continue;
        if (kept == memory_[r].end()) {
          drain_owned(r, layout_->parameters[i], g);
          continue;
        }
        float* e = kept->second.data();
        for (const Piece& piece : pieces_[layout_->parameters[i]]) {
          if (setup_.strategy != StrategyKind::two_shot || piece.owner != r) continue;
          float* owned = residual(r, piece, 1);
          for (uint64_t k = 0; owned != nullptr && k < piece.unit.count; ++k) {
            e[piece.inside + k] += static_cast<float>(world_) * owned[k];
            owned[k] = 0;
          }
        }
        for (uint64_t k = 0; k < p.count(); ++k) {
          const float share = part * e[k];
          g[k] += share;
          e[k] -= share;
          if (type != DType::f32) e[k] += g[k] - round_to(type, g[k]);
        }
        if (kind_ == MemoryKind::momentum) memory_[r].at("momentum/" + p.name).assign(p.count(), 0);
      }
    }
    uncompressed(values);
    if (present_lanes() == 0) return;
    for (Counters& c : counters_) {
      c.wire_bytes += 2 * 4 * (kWishLanes + present_lanes()) * (world_ - 1) / world_;
      ++c.rounds;
    }
  }

  void drain_owned(uint32_t rank, uint32_t parameter, float* g) {
    const float part = 1.0F / static_cast<float>(parts_);
    const auto times = static_cast<float>(world_);
    for (const Piece& piece : pieces_[parameter]) {
      if (setup_.strategy != StrategyKind::two_shot || piece.owner != rank) continue;
      float* owned = residual(rank, piece, 1);
      for (uint64_t k = 0; owned != nullptr && k < piece.unit.count; ++k) {
        float& out = g[piece.inside + k];
        out += times * part * owned[k];
        owned[k] -= part * owned[k];
        if (travelling() != DType::f32) owned[k] += (out - round_to(travelling(), out)) / times;
      }
    }
  }

  // ---- bytes ----

  static bool any_non_finite(const ByRank& coded) {
    return std::any_of(coded.begin(), coded.end(), [](const std::vector<Coded>& rank) {
      return std::any_of(rank.begin(), rank.end(), [](const Coded& c) { return c.non_finite; });
    });
  }
  void sends(uint32_t rank, uint64_t receivers, uint64_t bytes) {
    counters_[rank].wire_bytes += receivers * bytes;
  }
  /// FRAME.md, section 4, without the lengths that predictions need. Without short sends the whole
  /// capacity is sent: the bounds, and at least the size of a failure.
  [[nodiscard]] uint64_t bundle_bytes(const std::vector<size_t>& slots,
                                      const std::vector<Coded>& coded, uint64_t lanes,
                                      uint32_t hop) const {
    uint64_t bytes = kHeader + 4 * (slots.size() + lanes);
    for (const size_t i : slots) {
      const uint64_t payload =
          setup_.short_sends ? coded[i].bytes.size() : units_[i].piece->at_hop(hop).round[0].bytes;
      bytes += (payload + 3) / 4 * 4;
    }
    return setup_.short_sends ? bytes : std::max<uint64_t>(bytes, 640);
  }
  /// The first use of a layout begins with a message from every rank that it is ready.
  void enroll() {
    const auto known = std::pair(layout_->parameters, dtype_);
    if (std::find(enrolled_.begin(), enrolled_.end(), known) != enrolled_.end()) return;
    enrolled_.push_back(known);
    tell_all();
  }
  void tell_all() {
    for (uint32_t r = 0; r < world_; ++r) sends(r, world_ - 1, 640), ++counters_[r].rounds;
  }
  void count_sums(uint32_t round) {
    std::map<DType, uint64_t> bytes;
    if (round == 0 && raw_lanes() != 0) bytes[DType::f32] += 4 * raw_lanes();
    for (const InBucket& u : units_) {
      if (round < u.piece->plan.rounds)
        bytes[u.piece->plan.round[round].lane] += u.piece->plan.round[round].bytes;
    }
    if (round == 0 && present_lanes() != 0) bytes[DType::f32] += 4 * present_lanes();
    // The flush request rides after the first lanes.
    if (round == 0 && spec_.feedback() && !units_.empty())
      bytes.begin()->second += kWishLanes * dtype_size(bytes.begin()->first);
    for (const auto& [type, sum] : bytes) {
      for (Counters& c : counters_) {
        c.wire_bytes += 2 * sum * (world_ - 1) / world_;
        ++c.rounds;
      }
    }
  }

  static constexpr const char* kFlush = "state/flush";
  static constexpr uint64_t kHeader = 76;
  static constexpr uint64_t kWishLanes = 16;

  Setup setup_;
  std::vector<std::pair<uint64_t, uint64_t>> held_;
  std::vector<bool> small_;
  std::array<Leg, 2> legs_;  // by hop
  const Spec& spec_;         // of hop 0, as what follows
  const CodecTable& codec_;
  const Contract& contract_;
  uint64_t seed_;
  uint32_t world_;
  float part_;
  MemoryKind kind_;
  bool carries_;
  std::vector<std::map<std::string, Floats>> memory_;
  bool skipped_ = false;
  std::vector<Counters> counters_;
  std::vector<std::vector<Piece>> pieces_;  // by parameter; none: uncompressed
  std::map<std::string, Arena> kept_;
  Arena scratch_;
  std::vector<std::pair<std::vector<uint32_t>, DType>> enrolled_;
  const Layout* layout_ = nullptr;
  std::vector<InBucket> units_;  // of the bucket
  DType dtype_ = DType::f32;
  uint64_t step_ = ~uint64_t{0};
  uint32_t parts_ = 0;  // of this step: 1/parts of every residual goes out; 0: no flush
};

}  // namespace laconic::test
