// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A codec's twin on the device: its launches (CodecTable::device). It writes the bytes and the
// residuals of the CPU, bit for bit. A unit has a residual without decay, or none.
//
// Codecs with rounds: CodecTable::start, accept and commit run on the host, over a copy of
// Work::kept, a few bytes per block of elements. encode and decode use the same bytes in the row's
// `quantized.kept`: ranges are read there, maxima written.
#pragma once

#include "device/batch.h"
#include "device/queue.h"
#include "laconic/codec.h"

namespace laconic::device {

struct Layout {
  uint64_t tile = 0;  ///< elements; the last tile of a unit may have less
  // Bytes of a row's scratch memory.
  uint64_t encode = 0;
  uint64_t check = 0;
  uint64_t decode = 0;
};

struct Codec {
  Layout (*layout)(const void* params, const Unit& unit);
  /// Payloads of a round to EncodeRow::out, and what decides about them to EncodeRow::measured. In
  /// the last round residuals of units that give a payload become x + e - decode(payload); a
  /// residual that is reset may be zeros from the first one on.
  void (*encode)(const void* params, const EncodeBatch& batch, Queue& queue);
  /// As verdict_of.
  Verdict (*verdict)(const void* params, const Measured& measured, bool residual, uint32_t limit);
  void (*check)(const void* params, const CheckBatch& batch, Queue& queue);
  /// values = ((base + w0·d0) + w1·d1) + …, each product and sum rounded on its own.
  void (*decode)(const void* params, const DecodeBatch& batch, Queue& queue);
  /// As CodecTable::finish, of DecodeRow::values. Null: nothing to do.
  void (*finish)(const void* params, const DecodeBatch& batch, Queue& queue);
  /// As CodecTable::commit, of frames. Null: the codec has no state.
  void (*commit)(const void* params, const CommitBatch& batch, Queue& queue) = nullptr;
};

}  // namespace laconic::device
