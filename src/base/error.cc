// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "laconic/error.h"

namespace laconic {

// No default: the compiler names a code that is missing here.
std::string_view errc_name(Errc code) noexcept {
  switch (code) {
    case Errc::ok:
      return "ok";
    case Errc::invalid_argument:
      return "invalid_argument";
    case Errc::spec_syntax:
      return "spec_syntax";
    case Errc::unknown_codec:
      return "unknown_codec";
    case Errc::unknown_key:
      return "unknown_key";
    case Errc::value_out_of_range:
      return "value_out_of_range";
    case Errc::dtype_unsupported:
      return "dtype_unsupported";
    case Errc::shape_unsupported:
      return "shape_unsupported";
    case Errc::buffer_too_small:
      return "buffer_too_small";
    case Errc::unsupported:
      return "unsupported";
    case Errc::frame_truncated:
      return "frame_truncated";
    case Errc::frame_extended:
      return "frame_extended";
    case Errc::frame_magic:
      return "frame_magic";
    case Errc::frame_version:
      return "frame_version";
    case Errc::frame_field:
      return "frame_field";
    case Errc::frame_checksum:
      return "frame_checksum";
    case Errc::frame_codec:
      return "frame_codec";
    case Errc::frame_count:
      return "frame_count";
    case Errc::payload_malformed:
      return "payload_malformed";
    case Errc::bound_exceeded:
      return "bound_exceeded";
    case Errc::non_finite:
      return "non_finite";
    case Errc::ranks_disagree:
      return "ranks_disagree";
    case Errc::peer_failed:
      return "peer_failed";
    case Errc::engine_failed:
      return "engine_failed";
    case Errc::timed_out:
      return "timed_out";
    case Errc::exchange_order:
      return "exchange_order";
    case Errc::residuals_left:
      return "residuals_left";
    case Errc::state_version:
      return "state_version";
    case Errc::state_corrupt:
      return "state_corrupt";
    case Errc::state_rank:
      return "state_rank";
    case Errc::state_world:
      return "state_world";
    case Errc::state_model:
      return "state_model";
    case Errc::state_spec:
      return "state_spec";
    case Errc::out_of_memory:
      return "out_of_memory";
    case Errc::internal:
      return "internal";
  }
  return "unknown";
}

}  // namespace laconic
