// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/codec.h"
#include "laconic/codec.h"

namespace laconic::codecs {

/// The kernels for GPUs of a codec of the list, its member `twin`. Null: it has none, and gradients
/// are copied to the host.
[[nodiscard]] const device::Codec* find_twin(const CodecTable& codec) noexcept;

}  // namespace laconic::codecs
