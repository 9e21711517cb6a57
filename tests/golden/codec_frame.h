// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// One tensor to a stand-alone frame and back, by nothing but codec table and wire: FRAME.md,
// sections 2 and 3.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "laconic/frame.h"
#include "laconic/isa.h"
#include "laconic/spec.h"

namespace laconic::golden {

inline Unit unit_of(const FrameInfo& info) {
  return {info.count, info.rows, info.cols, info.parameter, info.offset};
}
inline Place place_of(const FrameInfo& info) {
  return {info.seed, info.step, info.rank, 1, info.hop, 1.0F};
}

/// Memory that a codec asks for, with what ties it to an instruction set.
class Lent {
 public:
  Lent(const Plan& plan, Isa isa)
      : kept_(plan.kept_bytes / 64 + 1),
        scratch_(plan.scratch_bytes / 64 + 1),
        isa_(isa),
        plan_(plan) {}
  [[nodiscard]] Work work() {
    return {MutBytes(kept_[0].bytes, plan_.kept_bytes),
            MutBytes(scratch_[0].bytes, plan_.scratch_bytes), isa_, nullptr};
  }

 private:
  struct Line {
    alignas(64) uint8_t bytes[64];
  };
  std::vector<Line> kept_;
  std::vector<Line> scratch_;
  Isa isa_;
  Plan plan_;
};

/// `info` lacks codec, payload_version and flags, which the spec and the values give.
inline std::vector<uint8_t> encode_frame(const Spec& spec, FrameInfo info,
                                         std::span<const float> values, Isa isa) {
  const CodecTable& codec = spec.codec();
  const Unit unit = unit_of(info);
  const Place place = place_of(info);
  const Plan plan = codec.plan(spec.params(), unit, 1);
  Lent lent(plan, isa);
  std::vector<float> state(plan.state_floats);
  codec.init(spec.params(), unit, place, state);
  std::vector<uint8_t> payload;
  for (uint32_t round = 0; round < plan.rounds; ++round) {
    std::vector<uint8_t> out(plan.round[round].bytes);
    Work work = lent.work();
    const Encoded encoded = codec.encode({spec.params(), state, unit, place, round, work},
                                         {values.data(), nullptr}, out);
    out.resize(encoded.bytes);
    payload.insert(payload.end(), out.begin(), out.end());
    if (round + 1 < plan.rounds)
      codec.accept({spec.params(), {}, unit, place, round, work}, out, 1);
  }
  info.codec = codec.info.id;
  info.payload_version = codec.info.version;
  info.spec = spec.canonical();
  std::vector<uint8_t> frame(frame_header_bytes(info.spec.size()) + payload.size());
  const auto size = write_frame(info, payload, frame);
  if (!size) return {};
  return frame;
}

/// Rules 19 to 21 of FRAME.md, then the values.
inline Result<std::vector<float>> decode_frame(Bytes bytes, Isa isa) {
  const auto view = parse_frame(bytes);
  if (!view) return view.error();
  const FrameInfo& info = view->info;
  if (info.flags.non_finite) return Errc::non_finite;
  const auto spec = Spec::parse(info.spec);
  if (!spec || spec->canonical() != info.spec) return Errc::frame_codec;
  const CodecTable& codec = spec->codec();
  if (codec.info.id != info.codec || codec.info.version != info.payload_version)
    return Errc::frame_codec;
  std::vector<float> values(info.count);
  if (info.flags.zero) return values;

  const Unit unit = unit_of(info);
  const Place place = place_of(info);
  const Plan plan = codec.plan(spec->params(), unit, 1);
  Lent lent(plan, isa);
  Work work = lent.work();
  Bytes rest = view->payload;
  for (uint32_t round = 0; round + 1 < plan.rounds; ++round) {
    if (rest.size() < plan.round[round].bytes) return Errc::payload_malformed;
    std::vector<uint8_t> lanes(rest.begin(),
                               rest.begin() + static_cast<std::ptrdiff_t>(plan.round[round].bytes));
    const Errc code = codec.check(spec->params(), unit, round, lanes);
    if (code != Errc::ok) return code;
    codec.accept({spec->params(), {}, unit, place, round, work}, lanes, 1);
    rest = rest.subspan(lanes.size());
  }
  const Errc code = codec.check(spec->params(), unit, plan.rounds - 1, rest);
  if (code != Errc::ok) return code;
  const Term term{rest, 1.0F};
  codec.decode({spec->params(), {}, unit, place, 0, work}, {&term, 1}, {values.data(), false});
  return values;
}

}  // namespace laconic::golden
