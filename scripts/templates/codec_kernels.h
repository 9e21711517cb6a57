// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Kernels of @NAME@. A tile is a block of elements with its scale.
#pragma once

#include "device/batch.h"
#include "kernels/@NAME@/@NAME@_elements.h"

namespace laconic::kernels {

/// After Measure.
struct @TYPE@Encode {
  static constexpr const char* name = "laconic_@TYPE@Encode";
  struct Args {
    device::EncodeBatch batch;
    uint32_t block = 0;
  };
  template <class B>
  struct Shared {
    device::Cells<B, float, 1> scale;
  };

  template <class B>
  LACONIC_DEVICE static void run(B& b, Shared<B>& shared, const Args& args) {
    const device::EncodeRow row = device::row_of(b, args.batch.rows, args.batch.units, b.index());
    const auto verdict = device::verdict_of(device::measured_of(b, row), row.residual != nullptr,
                                            row.limit, device::UpTo{row.limit});
    if (!device::gives_payload(verdict)) return;
    const bool reset = verdict == device::Verdict::reset;
    const device::Range own = device::range_of(row, b.index(), args.block);
    const uint64_t at = (b.index() - row.first_tile) * @NAME@_block_bytes(args.block);

    device::PerThread<B, double> sum(b);
    b.alone([&](uint32_t t) {
      for (uint64_t i = own.begin + t; t < k@TYPE@Lanes && i < own.end; i += k@TYPE@Lanes) {
        const float a = device::input_at(b, row, i, reset);
        sum[t] += static_cast<double>(a < 0 ? -a : a);
      }
    });
    b.warp_fold(sum, device::Sum{});
    b.each([&](uint32_t t) {
      if (t != 0) return;
      const float scale = @NAME@_scale(sum[t], own.end - own.begin);
      b.write(shared.scale, 0, scale);
      b.store(row.out, at, scale);
    });
    const float scale = b.read(shared.scale, 0);
    b.alone([&](uint32_t t) {
      for (uint64_t i = own.begin + 8 * t; i < own.end; i += uint64_t{8} * device::kThreads) {
        uint32_t byte = 0;
        for (uint32_t k = 0; k < 8 && i + k < own.end; ++k) {
          const float a = device::input_at(b, row, i + k, reset);
          byte |= static_cast<uint32_t>(a < 0) << k;
          if (row.residual != nullptr)
            b.write(row.residual, i + k, a + -row.own_weight * (a < 0 ? -scale : scale));
        }
        b.write(row.out, at + k@TYPE@ScaleBytes + (i - own.begin) / 8, static_cast<uint8_t>(byte));
      }
    });
  }
};

struct @TYPE@Check {
  static constexpr const char* name = "laconic_@TYPE@Check";
  struct Args {
    device::CheckBatch batch;
    uint32_t block = 0;
  };
  template <class B>
  struct Shared {};

  template <class B>
  LACONIC_DEVICE static void run(B& b, Shared<B>&, const Args& args) {
    const device::CheckRow row = device::row_of(b, args.batch.rows, args.batch.units, b.index());
    const uint64_t at = (b.index() - row.first_tile) * @NAME@_block_bytes(args.block);
    b.alone([&](uint32_t t) {
      if (t != 0) return;
      bool good = row.bytes == @NAME@_bytes(row.count, args.block);
      if (good && row.count != 0)
        good = @NAME@_scale_is_valid(b.template load<float>(row.payload, at));
      if (!good) b.raise(row.malformed, 1);
    });
  }
};

struct @TYPE@Decode {
  static constexpr const char* name = "laconic_@TYPE@Decode";
  struct Args {
    device::DecodeBatch batch;
    uint32_t block = 0;
  };
  template <class B>
  struct Shared {};

  template <class B>
  LACONIC_DEVICE static void run(B& b, Shared<B>&, const Args& args) {
    const device::DecodeRow row = device::row_of(b, args.batch.rows, args.batch.units, b.index());
    const device::Range own = device::range_of(row, b.index(), args.block);
    const uint64_t at = (b.index() - row.first_tile) * @NAME@_block_bytes(args.block);
    b.alone([&](uint32_t t) {
      for (uint64_t i = own.begin + t; i < own.end; i += device::kThreads) {
        const uint64_t bit = i - own.begin;
        float sum = row.add ? b.read(row.values, i) : 0.0F;
        for (uint32_t k = 0; k < device::kTerms; ++k) {
          if (k >= row.terms) break;
          const float magnitude = row.weight[k] * b.template load<float>(row.payload[k], at);
          const uint32_t byte = b.read(row.payload[k], at + k@TYPE@ScaleBytes + bit / 8);
          sum += (byte >> (bit % 8) & 1) != 0 ? -magnitude : magnitude;
        }
        b.write(row.values, i, sum);
      }
    });
  }
};

}  // namespace laconic::kernels
