// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Functions for one unit, and errors, shared by the strategies that send bundles.
#pragma once

#include <functional>

#include "collective/exchange/strategy.h"
#include "pipeline/batch_codec.h"
#include "wire/bundle.h"

namespace laconic::collective {

/// Fills the bundle's next slot with the result of a unit, whose payload is already in place. An
/// empty payload is delivered by other means: an empty slot.
inline void put_unit(const pipeline::UnitEncoded& encoded, BundleWriter& writer,
                     Counters& counters) {
  if (encoded.residual_reset) ++counters.residual_resets;
  switch (encoded.outcome) {
    case pipeline::Outcome::payload:
      encoded.bytes == 0 ? writer.put_zero() : writer.put(static_cast<uint32_t>(encoded.bytes));
      break;
    case pipeline::Outcome::zero:
      writer.put_zero();
      ++counters.zero_units;
      break;
    case pipeline::Outcome::non_finite:
      writer.put_non_finite();
      ++counters.non_finite_units;
      break;
    case pipeline::Outcome::failed:  // the bundle will not go out
      break;
  }
}

/// Payloads go where they travel, into the slots of a bundle.
class BundleSink final : public pipeline::PayloadSink {
 public:
  BundleSink(BundleWriter& writer, Counters& counters) : writer_(&writer), counters_(&counters) {}
  MutBytes room(uint32_t) override { return room_ = writer_->room(); }
  Bytes put(uint32_t, const pipeline::UnitEncoded& encoded) override {
    put_unit(encoded, *writer_, *counters_);
    return room_.first(encoded.bytes);
  }

 private:
  BundleWriter* writer_;
  Counters* counters_;
  MutBytes room_;
};

/// After an encode of `units` that failed: nothing is sent, and memory has the gradients of all.
inline void keep_all(pipeline::BatchCodec& batch, pipeline::BatchCodec::Units units,
                     pipeline::UnitFloats gradients) {
  for (size_t k = 0; k < units.size(); ++k) {
    if (batch.outcome(units[k]) != pipeline::Outcome::payload)
      batch.keep(units.subspan(k, 1), gradients);
  }
  batch.undo(units, gradients, pipeline::Undo::gradient_lost);
}

/// The gradient of a parameter (at `gradient`) travels no way: into its residual with it.
inline void keep_gradient(const RankState& state, uint32_t parameter, const float* gradient) {
  const RankParameter& p = state.parameter(parameter);
  for (const RankPiece& piece : p.pieces)
    p.codec->keep(piece.send, gradient + (piece.send.unit.offset - p.first));
  p.codec->keep(p.fixed, gradient);
}
/// Copies bytes to the host. False: it could not.
using Reading = std::function<bool(void* to, const void* from, uint64_t bytes)>;
/// The same for a gradient of any type, that `read` fetches; empty: it is on the host. False: it
/// could not be read, and memory has not all of it.
bool keep_gradient(const RankState& state, uint32_t parameter, const uint8_t* gradient, DType dtype,
                   const Reading& read = {});
/// Those of a whole bucket on the host, of any type. Needs no memory.
void keep_gradients(const RankState& state, const LayoutView& layout, const void* buffer,
                    DType dtype);

/// Converts a 16-bit bucket of `elements` to Input::gradient, and back.
void widen(const RankState& state, const Input& input, uint64_t elements) noexcept;
void narrow(const RankState& state, const Input& input, uint64_t elements) noexcept;

inline Error no_exchange_memory() {
  return {Errc::out_of_memory, "not enough memory for the exchange buffers", "use smaller buckets"};
}

inline Error exchange_has_ended() {
  return {Errc::exchange_order, "next() was called after the exchange ended",
          "begin another exchange first"};
}

/// A sender said twice that its bundle does not fit: what it needs was granted after the first.
inline Error too_many_rounds() {
  return {Errc::bound_exceeded, "a rank requests more repeat rounds than any bundle needs",
          "all ranks must run the same version of laconic"};
}

}  // namespace laconic::collective
