// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace laconic {

/// Instruction sets that kernels are compiled for. `scalar` is the reference: always there, oracle
/// of the tests.
enum class Isa : uint8_t { scalar = 0, sse4 = 1, avx2 = 2, avx512 = 3, neon = 4 };

std::string_view isa_name(Isa isa) noexcept;
/// The sets that this build has and this processor runs, slowest first; never empty.
std::span<const Isa> available_isas() noexcept;
/// The last of available_isas().
Isa best_isa() noexcept;

}  // namespace laconic
