// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// kernels/cast/cast.h on the device.
#pragma once

#include "device/batch.h"
#include "kernels/cast/cast_elements.h"
#include "kernels/core/terms_device.h"

namespace laconic::kernels {

inline constexpr uint64_t kCastTile = 4096;  ///< elements

struct CastFormat {
  bool half = false;      ///< IEEE half; else bfloat16
  bool saturate = false;  ///< of halves
};

struct CastEncode {
  static constexpr const char* name = "laconic_CastEncode";
  struct Args {
    device::EncodeBatch batch;
    CastFormat format;
    bool measure = false;  ///< no launch before has: there is no residual
  };
  template <class B>
  struct Shared {
    device::Cells<B, uint32_t, device::kWarps> cells;
  };

  template <class B>
  LACONIC_DEVICE static void run(B& b, Shared<B>& shared, const Args& args) {
    const device::EncodeRow row = device::row_of(b, args.batch.rows, args.batch.units, b.index());
    bool reset = false;
    if (!args.measure) {
      const auto verdict =
          device::verdict_of(device::measured_of(b, row), true, row.limit, device::UpTo{row.limit});
      if (!device::gives_payload(verdict)) return;
      reset = verdict == device::Verdict::reset;
    }
    const device::Range own = device::range_of(row, b.index(), kCastTile);
    device::PerThread<B, uint32_t> most(b);
    b.alone([&](uint32_t t) {
      for (uint64_t i = own.begin + t; i < own.end; i += device::kThreads) {
        const float a = device::input_at(b, row, i, reset);
        most[t] = device::Max{}(most[t], device::absolute_bits(a));
        const uint16_t code = args.format.half ? encode_f16(row.prescale, a, args.format.saturate)
                                               : encode_bf16(row.prescale, a);
        b.store(row.out, 2 * i, code);
        if (row.residual == nullptr) continue;
        b.write(
            row.residual, i,
            a + -row.own_weight * (args.format.half ? f16_to_float(code) : bf16_to_float(code)));
      }
    });
    if (!args.measure) return;
    device::raise_values(b, row, most, shared.cells);
  }
};

struct CastDecode {
  static constexpr const char* name = "laconic_CastDecode";
  struct Args {
    device::DecodeBatch batch;
    bool half = false;
  };
  template <class B>
  struct Shared {};

  template <class B>
  LACONIC_DEVICE static void run(B& b, Shared<B>&, const Args& args) {
    const device::DecodeRow row = device::row_of(b, args.batch.rows, args.batch.units, b.index());
    const device::Range own = device::range_of(row, b.index(), kCastTile);
    b.alone([&](uint32_t t) {
      sum_terms(b, row, own, t, [&](const uint8_t* payload, uint64_t i) {
        const auto code = b.template load<uint16_t>(payload, 2 * i);
        return args.half ? f16_to_float(code) : bf16_to_float(code);
      });
    });
  }
};

/// Lanes of 16 bits: the length alone can be wrong.
struct CastCheck {
  static constexpr const char* name = "laconic_CastCheck";
  struct Args {
    device::CheckBatch batch;
  };
  template <class B>
  struct Shared {};

  template <class B>
  LACONIC_DEVICE static void run(B& b, Shared<B>&, const Args& args) {
    const device::CheckRow row = device::row_of(b, args.batch.rows, args.batch.units, b.index());
    b.alone([&](uint32_t t) {
      if (t == 0 && row.bytes != 2 * row.count) b.raise(row.malformed, 1);
    });
  }
};

}  // namespace laconic::kernels
