// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Signs and votes of kernels/bits/bits.h on the device: one bit per element, [x >= 0].
#pragma once

#include "device/batch.h"
#include "kernels/core/terms_device.h"
#include "laconic/bytes.h"

namespace laconic::kernels {

inline constexpr uint64_t kSignTile = 8192;  ///< elements: whole bytes

struct SignEncode {
  static constexpr const char* name = "laconic_SignEncode";
  struct Args {
    device::EncodeBatch batch;
  };
  template <class B>
  struct Shared {
    device::Cells<B, uint32_t, device::kWarps> cells;
  };

  template <class B>
  LACONIC_DEVICE static void run(B& b, Shared<B>& shared, const Args& args) {
    const device::EncodeRow row = device::row_of(b, args.batch.rows, args.batch.units, b.index());
    const device::Range own = device::range_of(row, b.index(), kSignTile);
    device::PerThread<B, uint32_t> most(b);
    b.alone([&](uint32_t t) {
      for (uint64_t i = own.begin + 8 * t; i < own.end; i += uint64_t{8} * device::kThreads) {
        uint32_t byte = 0;
        for (uint32_t k = 0; k < 8 && i + k < own.end; ++k) {
          const float x = device::gradient_at(b, row, i + k);
          most[t] = device::Max{}(most[t], device::absolute_bits(x));
          byte |= static_cast<uint32_t>(x >= 0) << k;
        }
        b.write(row.out, i / 8, static_cast<uint8_t>(byte));
      }
    });
    device::raise_values(b, row, most, shared.cells);
  }
};

/// The length, and zeros after the last element.
struct SignCheck {
  static constexpr const char* name = "laconic_SignCheck";
  struct Args {
    device::CheckBatch batch;
  };
  template <class B>
  struct Shared {};

  template <class B>
  LACONIC_DEVICE static void run(B& b, Shared<B>&, const Args& args) {
    const device::CheckRow row = device::row_of(b, args.batch.rows, args.batch.units, b.index());
    b.alone([&](uint32_t t) {
      if (t != 0 || b.index() != row.first_tile) return;
      const bool good =
          row.bytes == ceil_div(row.count, 8) &&
          (row.count % 8 == 0 || b.read(row.payload, row.count / 8) >> (row.count % 8) == 0);
      if (!good) b.raise(row.malformed, 1);
    });
  }
};

struct SignDecode {
  static constexpr const char* name = "laconic_SignDecode";
  struct Args {
    device::DecodeBatch batch;
  };
  template <class B>
  struct Shared {};

  template <class B>
  LACONIC_DEVICE static void run(B& b, Shared<B>&, const Args& args) {
    const device::DecodeRow row = device::row_of(b, args.batch.rows, args.batch.units, b.index());
    const device::Range own = device::range_of(row, b.index(), kSignTile);
    b.alone([&](uint32_t t) {
      sum_terms(b, row, own, t, [&](const uint8_t* payload, uint64_t i) {
        return (b.read(payload, i / 8) >> (i % 8) & 1) != 0 ? 1.0F : -1.0F;
      });
    });
  }
};

/// The majority: signs of sums of votes.
struct SignVotes {
  static constexpr const char* name = "laconic_SignVotes";
  using Args = SignDecode::Args;
  template <class B>
  struct Shared {};

  template <class B>
  LACONIC_DEVICE static void run(B& b, Shared<B>&, const Args& args) {
    const device::DecodeRow row = device::row_of(b, args.batch.rows, args.batch.units, b.index());
    const device::Range own = device::range_of(row, b.index(), kSignTile);
    b.alone([&](uint32_t t) {
      for (uint64_t i = own.begin + t; i < own.end; i += device::kThreads)
        b.write(row.values, i, b.read(row.values, i) >= 0 ? 1.0F : -1.0F);
    });
  }
};

}  // namespace laconic::kernels
