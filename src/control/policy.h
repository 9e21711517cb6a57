// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A policy: a name, fields, a state of 8-byte words, and a step that is a pure function. It sees no
// clock, takes no memory and calls nothing whose last bit depends on the machine.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "control/history.h"
#include "control/observation.h"
#include "control/range.h"
#include "laconic/error.h"
#include "laconic/fields.h"

namespace laconic::control {

struct PolicyTable;

/// Why a decision was taken, or none.
enum class Reason : uint8_t {
  held,
  slow,           ///< the network is slower than the target allows
  fast,           ///< it has room
  mean,           ///< the floor of the mean
  dense,          ///< float32 fits into the target
  dense_is_slow,  ///< it no longer does
  scheduled,
  recorded,
};
inline constexpr std::array kReasons{Reason::held,      Reason::slow,    Reason::fast,
                                     Reason::mean,      Reason::dense,   Reason::dense_is_slow,
                                     Reason::scheduled, Reason::recorded};
/// "slow"
[[nodiscard]] std::string_view reason_name(Reason reason) noexcept;

struct Decision {
  uint64_t step = 0;  ///< in which it was taken; it holds from step + kDelay
  uint32_t rule = 0;  ///< the class
  double from = 0;
  double to = 0;
  bool uncompressed = false;  ///< from then on, float32 by PyTorch's own all-reduce
  Reason reason = Reason::held;
  double slowdown = 0;  ///< r, where the policy has one
  double network_s = 0;
  double target_s = 0;
  uint32_t parts = 0;  ///< on the way to uncompressed: steps in which the residuals go out

  bool operator==(const Decision&) const = default;
};

/// Maximum of Decision::parts.
inline constexpr uint32_t kMostParts = 64;

/// Steps that residuals go out in which are `ratio` times as large as the gradients: at once they
/// would undo what training has learnt.
[[nodiscard]] uint32_t release_parts(double ratio) noexcept;

/// Steps between a decision and the first that it holds in: engines may run ahead of the host.
inline constexpr uint64_t kDelay = 2;

/// A parsed control text.
struct Control {
  const PolicyTable* policy = nullptr;
  ParamBlock params{};
  std::vector<std::pair<uint64_t, double>> points;  ///< of a schedule, by step
  std::string file;                                 ///< of a replay
  std::string canonical;                            ///< parsing it gives the same

  [[nodiscard]] const void* data() const noexcept { return params.bytes.data(); }
};

/// Inputs of a policy in addition to the observation.
struct Position {
  const Control& control;
  const Range& range;  ///< with the text's bounds
  const History& history;
  std::span<const Decision> recorded;  ///< of a replay, by step
  uint32_t rule;
  double value;  ///< decided last
  bool uncompressed;
  bool may_turn;  ///< no other rule has turned to float32 since what is seen
};

/// A policy's result; `reason` held: no change.
struct Move {
  double value = 0;
  bool uncompressed = false;
  Reason reason = Reason::held;
  double slowdown = 0;
  double target_s = 0;
  uint32_t parts = 0;  ///< parts of the decision; 0: as the residuals need

  static Move hold(const Position& at) {
    return {at.value, at.uncompressed, Reason::held, 0, 0, 0};
  }
};

struct PolicyInfo {
  std::string_view name;
  std::string_view summary;
  std::string_view form;  ///< a text to copy
  bool moves = true;      ///< needs a setting to move
  bool observes = true;   ///< decides by observations; else by the step alone
  bool dense = false;     ///< may turn to float32
};

struct PolicyTable {
  PolicyInfo info;
  std::span<const Field> fields;
  std::size_t words;  ///< of state
  void (*defaults)(void* params);
  /// Used instead of key=value: reads the text after the colon; may be null.
  Result<void> (*read)(std::string_view text, std::string_view options, Control& control);
  void (*write)(Control& control);  ///< canonical of such a text
  Result<void> (*check)(const Control& control, std::string_view text);
  /// The range with the text's bounds.
  Result<Range> (*bound)(const Control& control, const Range& range);
  void (*start)(const Control& control, const Range& range, std::span<uint64_t> state);
  Move (*step)(const Position& at, std::span<uint64_t> state, const Observation& seen);
  bool (*valid)(const Control& control, const Range& range, std::span<const uint64_t> state);
  double (*target)(std::span<const uint64_t> state);  ///< seconds, 0 while there is none
};

/// Shared by most policies: bounds from their `min` and `max` fields, 0 if not given.
Result<Range> narrowed(const Range& range, std::string_view control, double min, double max);

/// Turns a policy type into its table. Params and State are trivially copyable; State is made of
/// 8-byte members.
template <class L>
struct PolicyTableOf {
  using Params = typename L::Params;
  using State = typename L::State;
  static_assert(std::is_trivially_copyable_v<Params> && sizeof(Params) <= sizeof(ParamBlock));
  static_assert(std::is_trivially_copyable_v<State>);
  static constexpr std::size_t kWords = std::is_empty_v<State> ? 0 : sizeof(State) / 8;
  static_assert(std::is_empty_v<State> || sizeof(State) % 8 == 0);

  static const Params& as(const Control& control) {
    return *static_cast<const Params*>(control.data());
  }
  static State read_state(std::span<const uint64_t> words) {
    State state{};
    if constexpr (kWords > 0) std::memcpy(static_cast<void*>(&state), words.data(), sizeof(State));
    return state;
  }
  static void write_state(const State& state, std::span<uint64_t> words) {
    if constexpr (kWords > 0) std::memcpy(words.data(), &state, sizeof(State));
  }

  static void defaults(void* params) { *static_cast<Params*>(params) = Params{}; }
  static Result<void> check(const Control& control, std::string_view text) {
    if constexpr (requires { L::check(as(control), text); }) {
      return L::check(as(control), text);
    } else {
      return {};
    }
  }
  static Result<Range> bound(const Control& control, const Range& range) {
    if constexpr (requires { L::bound(control, as(control), range); }) {
      return L::bound(control, as(control), range);
    } else {
      return range;
    }
  }
  static void start(const Control& control, const Range& range, std::span<uint64_t> words) {
    write_state(L::start(as(control), range), words);
  }
  static Move step(const Position& at, std::span<uint64_t> words, const Observation& seen) {
    State state = read_state(words);
    const Move move = L::step(as(at.control), at, state, seen);
    write_state(state, words);
    return move;
  }
  static bool valid(const Control& control, const Range& range, std::span<const uint64_t> words) {
    return L::valid(as(control), range, read_state(words));
  }
  static double target(std::span<const uint64_t> words) {
    if constexpr (requires(const State& s) { L::target(s); }) {
      return L::target(read_state(words));
    } else {
      return 0;
    }
  }

  static constexpr PolicyTable make() {
    PolicyTable made{.info = L::info,
                     .fields = L::fields,
                     .words = kWords,
                     .defaults = &defaults,
                     .read = nullptr,
                     .write = nullptr,
                     .check = &check,
                     .bound = &bound,
                     .start = &start,
                     .step = &step,
                     .valid = &valid,
                     .target = &target};
    if constexpr (requires(std::string_view t, Control & c) { L::read(t, t, c); }) {
      made.read = &L::read;
      made.write = &L::write;
    }
    return made;
  }
  static constexpr PolicyTable value = make();
};

}  // namespace laconic::control
