// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Which parameter gets what: the first rule that matches a parameter's full name and size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "laconic/error.h"
#include "laconic/rule.h"

namespace laconic::control {

/// Parameters of one rule are a class; class 0 has the call's own spec.
inline constexpr std::size_t kMaxClasses = 32;
inline constexpr std::size_t kMaxRules = kMaxClasses - 1;
inline constexpr std::size_t kMaxPattern = 256;  // bytes

using laconic::Rule;

/// Is `pattern` a glob? `*` is any bytes, `?` one byte, `[a-z_]` one of these, `[!a-z]` one of the
/// others; a first `]` and a last `-` stand for themselves, and so does everything outside
/// brackets.
Result<void> check_glob(std::string_view pattern);

/// Does all of `name` match? For patterns that check_glob accepts (others match less). Takes time
/// proportional to the product of the lengths, at worst.
[[nodiscard]] bool glob_matches(std::string_view pattern, std::string_view name) noexcept;

/// The class of each parameter: i + 1 for the first rules[i] that matches, else 0. Refuses bad
/// rules, and a rule that is left without a parameter unless it is optional. `names` and `elements`
/// are of one length.
Result<std::vector<uint32_t>> classes_of(std::span<const Rule> rules,
                                         std::span<const std::string_view> names,
                                         std::span<const uint64_t> elements);

}  // namespace laconic::control
