// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Values and ranges of a codec's fields as text: what specs are made of and what tools show.
#pragma once

#include <string>
#include <string_view>

#include "laconic/error.h"
#include "laconic/fields.h"

namespace laconic {

/// The shortest decimal text that reads back as exactly `value`; no plus sign in the exponent ("+"
/// starts a modifier).
std::string number_text(double value);

/// "real", "integer", "word" or "flag".
std::string_view field_type_name(FieldType type) noexcept;

/// The text of a field's value as it stands in a spec: "0.01", "256", "exp", "on".
std::string value_text(const Field& field, double value);

/// The accepted values of a field: "1e-6 to 1", "1 to 2 (exclusive)", "exp or gp", "on or off".
std::string range_text(const Field& field);

/// The value of the field in `params` as text; reading it back gives the same bits in `params`.
std::string member_text(const Field& field, const void* params);

/// Reads `text` into the field of `params`: type and range, the latter before and after conversion
/// to the member's type. On error `params` is unchanged. Message without spec or codec: the caller
/// knows those.
Result<void> read_member(const Field& field, std::string_view text, void* params);

}  // namespace laconic
