// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Parameters of a codec or of a control as an array of field descriptions. Parser, canonical text,
// JSON, keywords, docs and fuzz inputs loop over it.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace laconic {

/// Room for any Params; trivially copyable, nothing on the heap.
struct ParamBlock {
  alignas(8) std::array<unsigned char, 48> bytes{};
};

enum class FieldType : uint8_t { real, integer, word, flag };

/// A setting that may change while training runs: does a larger value send more, and is its
/// next value a share of it away or one.
enum class Sends : uint8_t { more, less };
enum class Growth : uint8_t { log, step };
struct Actuator {
  bool marked = false;
  Sends sends = Sends::more;
  Growth growth = Growth::log;
  double min = 0;  ///< default bounds for a control
  double max = 0;
};

struct Field {
  std::string_view name;
  FieldType type = FieldType::real;
  double fallback = 0;  ///< the default; index of the word for words; 0 or 1 for flags
  double min = 0;
  double max = 0;
  bool max_open = false;                    ///< the range is [min, max)
  std::span<const std::string_view> words;  ///< texts of a word field
  std::string_view help;
  double (*get)(const void* params) = nullptr;
  void (*set)(void* params, double value) = nullptr;  ///< converts to the member's type
  Actuator actuator{};

  /// The same field as one that a control may move between `low` and `high`; one of a codec's.
  [[nodiscard]] constexpr Field controlled(Sends sends, Growth growth, double low,
                                           double high) const {
    Field field = *this;
    field.actuator = {true, sends, growth, low, high};
    return field;
  }
};

namespace detail {
template <class M>
struct MemberOf;
template <class P, class T>
struct MemberOf<T P::*> {
  using Params = P;
  using Type = T;
};
template <auto Member>
double get_member(const void* params) {
  using M = MemberOf<decltype(Member)>;
  return static_cast<double>(static_cast<const typename M::Params*>(params)->*Member);
}
template <auto Member>
void set_member(void* params, double value) {
  using M = MemberOf<decltype(Member)>;
  static_cast<typename M::Params*>(params)->*Member = static_cast<typename M::Type>(value);
}
}  // namespace detail

template <auto Member>
constexpr Field real_field(std::string_view name, double fallback, double min, double max,
                           std::string_view help, bool max_open = false) {
  return {name,
          FieldType::real,
          fallback,
          min,
          max,
          max_open,
          {},
          help,
          &detail::get_member<Member>,
          &detail::set_member<Member>,
          {}};
}
template <auto Member>
constexpr Field integer_field(std::string_view name, double fallback, double min, double max,
                              std::string_view help) {
  return {name,
          FieldType::integer,
          fallback,
          min,
          max,
          false,
          {},
          help,
          &detail::get_member<Member>,
          &detail::set_member<Member>,
          {}};
}
template <auto Member>
constexpr Field word_field(std::string_view name, double fallback,
                           std::span<const std::string_view> words, std::string_view help) {
  return {name,
          FieldType::word,
          fallback,
          0,
          static_cast<double>(words.size()) - 1,
          false,
          words,
          help,
          &detail::get_member<Member>,
          &detail::set_member<Member>,
          {}};
}
template <auto Member>
constexpr Field flag_field(std::string_view name, bool fallback, std::string_view help) {
  return {name,
          FieldType::flag,
          fallback ? 1.0 : 0.0,
          0,
          1,
          false,
          {},
          help,
          &detail::get_member<Member>,
          &detail::set_member<Member>,
          {}};
}

}  // namespace laconic
