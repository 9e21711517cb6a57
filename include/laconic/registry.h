// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string_view>

#include "laconic/codec.h"

namespace laconic {

/// All codecs of this build, in the order of codec_list.h.
std::span<const CodecTable* const> all_codecs() noexcept;
/// Null when there is none of that name / number.
const CodecTable* find_codec(std::string_view name) noexcept;
const CodecTable* find_codec(uint16_t id) noexcept;

}  // namespace laconic
