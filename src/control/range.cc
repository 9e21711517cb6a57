// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "control/range.h"

#include <algorithm>
#include <cmath>

namespace laconic::control {
namespace {

double bounded(const Range& range, double value) noexcept {
  return std::min(std::max(value, range.min), range.max);
}

}  // namespace

Range range_of(const Field& field, double start, uint32_t gathered) {
  Range range;
  range.name = std::string(field.name);
  range.start = start;
  range.lowest = field.min;
  range.highest = field.max_open ? std::nextafter(field.max, field.min) : field.max;
  range.sends = field.actuator.sends;
  range.growth = field.actuator.growth;
  range.whole = field.type == FieldType::integer;
  range.min = std::max(field.actuator.min, range.lowest);
  range.max = std::min(field.actuator.max, range.highest);
  const bool share = range.sends == Sends::more && !range.whole && field.max <= 1;
  if (share && gathered > 1) range.max = std::min(range.max, 1.0 / gathered);
  range.min = std::min(range.min, start);
  range.max = std::max(range.max, start);
  return range;
}

double amount(const Range& range, double value) noexcept {
  return range.sends == Sends::more ? value : 1 / value;
}

double value_of(const Range& range, double amount) noexcept {
  const bool more = range.sends == Sends::more;
  double value = more ? amount : 1 / amount;
  if (range.whole) value = more ? std::ceil(value) : std::floor(value);
  return bounded(range, value);
}

double least(const Range& range) noexcept {
  return range.sends == Sends::more ? range.min : range.max;
}

double most(const Range& range) noexcept {
  return range.sends == Sends::more ? range.max : range.min;
}

double shrunk(const Range& range, double value, double factor) noexcept {
  const bool more = range.sends == Sends::more;
  double next = more ? value * factor : value / factor;
  if (range.whole) {
    next = more ? std::min(std::floor(next), value - 1) : std::max(std::ceil(next), value + 1);
  }
  return bounded(range, next);
}

double grown(const Range& range, double value, double share) noexcept {
  const bool more = range.sends == Sends::more;
  double next = more ? value + share * value : value / (1 + share);
  if (range.growth == Growth::step) next = more ? value + 1 : value - 1;
  if (range.whole) {
    next = more ? std::max(std::floor(next), value + 1) : std::min(std::ceil(next), value - 1);
  }
  return bounded(range, next);
}

}  // namespace laconic::control
