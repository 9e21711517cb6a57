// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "frame_fields.h"

#include <fmt/format.h>

#include "laconic/registry.h"

namespace laconic::tools {
namespace {

std::string_view codec_name(const FrameInfo& info) {
  const CodecTable* codec = find_codec(info.codec);
  return codec != nullptr ? codec->info.name : "unknown to this build";
}

}  // namespace

double ratio_of(const FrameView& frame, uint64_t frame_bytes) {
  const double raw =
      static_cast<double>(frame.info.count) * static_cast<double>(dtype_size(frame.info.dtype));
  return raw / static_cast<double>(frame_bytes);
}

Json describe(const FrameView& frame, uint64_t frame_bytes) {
  const FrameInfo& info = frame.info;
  return {{"spec", info.spec},
          {"codec", codec_name(info)},
          {"codec_id", info.codec},
          {"payload_version", info.payload_version},
          {"dtype", dtype_name(info.dtype)},
          {"count", info.count},
          {"rows", info.rows},
          {"cols", info.cols},
          {"contributors", info.contributors},
          {"zero", info.flags.zero},
          {"non_finite", info.flags.non_finite},
          {"seed", info.seed},
          {"step", info.step},
          {"parameter", fmt::format("{:016x}", info.parameter)},
          {"offset", info.offset},
          {"rank", info.rank},
          {"world", info.world},
          {"hop", info.hop},
          {"frame_bytes", frame_bytes},
          {"payload_bytes", frame.payload.size()},
          {"checksum", "ok"},
          {"ratio", ratio_of(frame, frame_bytes)}};
}

void print_fields(const Json& fields) {
  for (const auto& [name, value] : fields.members()) {
    fmt::print("{:<16} {}\n", name, value.is_text() ? value.text() : value.dump());
  }
}

}  // namespace laconic::tools
