// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The fixture of every law: one codec with one setting on one instruction set, taken from the
// registry. A new codec joins without an edit here.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "conformance/exchange.h"
#include "conformance/inputs.h"
#include "laconic/spec.h"

namespace laconic::conformance {

struct Case {
  std::string spec;
  Isa isa = Isa::scalar;
};
inline void PrintTo(const Case& c, std::ostream* out) {
  *out << c.spec << " on " << isa_name(c.isa);
}

/// Default, ends and middle of every field's range, every word: one field changed at a time.
/// isas_for() in cases_test.cc says which of them run on which instruction set.
std::vector<Case> all_cases();
std::string case_name(const testing::TestParamInfo<Case>& info);

class CodecLaw : public testing::TestWithParam<Case> {
 protected:
  CodecLaw() : spec_(*Spec::parse(GetParam().spec)), contract_(spec_.contract()) {}

  [[nodiscard]] Conditions conditions(const Unit& unit) const {
    Conditions conditions;
    conditions.unit = unit;
    conditions.isa = GetParam().isa;
    return conditions;
  }
  [[nodiscard]] Exchange exchange(const Unit& unit) const { return {spec_, conditions(unit)}; }

  Spec spec_;
  Contract contract_;
};

/// Shapes with every kind of tail for blocks of up to 256, and matrices.
inline std::vector<Unit> small_units() {
  std::vector<Unit> units;
  for (const uint64_t n : {0U,  1U,  2U,  3U,  5U,   7U,   8U,   15U,  16U,  17U,  31U,
                           33U, 63U, 64U, 65U, 100U, 127U, 129U, 255U, 257U, 1000U}) {
    units.push_back(vector_unit(n));
  }
  units.push_back(matrix_unit(3, 5));
  units.push_back(matrix_unit(1, 40));
  units.push_back(matrix_unit(65, 33));
  return units;
}

/// Several chunks of 16 Ki and a tail; a matrix of such a size.
inline std::vector<Unit> large_units() { return {vector_unit(50021), matrix_unit(211, 199)}; }

inline std::vector<Unit> all_units() {
  std::vector<Unit> units = small_units();
  for (const Unit& unit : large_units()) units.push_back(unit);
  return units;
}

inline std::string describe(const Unit& unit, Data data) {
  return std::to_string(unit.rows) + " x " + std::to_string(unit.cols) + " " +
         std::string(data_name(data));
}

/// Looked at first: element by element takes most of a sanitized law's time.
template <class T>
bool same_memory(std::span<const T> a, std::span<const T> b) {
  return a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

/// Equal bit for bit, but for the sign of zeros.
inline bool same_value(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) || (a == 0 && b == 0);
}
inline void expect_same_values(std::span<const float> a, std::span<const float> b,
                               std::string_view what) {
  ASSERT_EQ(a.size(), b.size());
  if (same_memory(a, b)) return;
  for (std::size_t i = 0; i < a.size(); ++i) {
    ASSERT_TRUE(same_value(a[i], b[i]))
        << what << ": element " << i << " is " << a[i] << " and " << b[i];
  }
}
inline void expect_same_bits(std::span<const float> a, std::span<const float> b,
                             std::string_view what) {
  ASSERT_EQ(a.size(), b.size());
  if (same_memory(a, b)) return;
  for (std::size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(a[i]), std::bit_cast<uint32_t>(b[i]))
        << what << ": element " << i << " is " << a[i] << " and " << b[i];
  }
}
inline void expect_same_bytes(Bytes a, Bytes b, std::string_view what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  if (same_memory(a, b)) return;
  for (std::size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(static_cast<int>(a[i]), static_cast<int>(b[i]))
        << what << ": byte " << i << " of " << a.size();
  }
}

inline double squared_norm(std::span<const float> x) {
  double sum = 0;
  for (const float v : x) sum += static_cast<double>(v) * v;
  return sum;
}
inline double squared_distance(std::span<const float> x, std::span<const float> y) {
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double d = static_cast<double>(x[i]) - y[i];
    sum += d * d;
  }
  return sum;
}

}  // namespace laconic::conformance
