// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// kernels/int8/int8.h on the device. Blocks that share a scale: up to kWarpBlock elements a warp
// each, larger ones a block of threads each.
#pragma once

#include "device/batch.h"
#include "kernels/core/random_group.h"
#include "kernels/core/terms_device.h"
#include "kernels/int8/int8_elements.h"

namespace laconic::kernels {

inline constexpr uint32_t kWarpBlock = 1024;
/// Elements of a tile: whole blocks.
[[nodiscard]] LACONIC_HOST_DEVICE constexpr uint64_t int8_tile(uint32_t block) {
  return block > kWarpBlock ? block : 4096U / block * block;
}

struct Int8Encode {
  static constexpr const char* name = "laconic_Int8Encode";
  struct Args {
    device::EncodeBatch batch;
    uint32_t block = 0;  ///< elements that share a scale
    bool stochastic = false;
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
    const device::Range own = device::range_of(row, b.index(), int8_tile(args.block));
    // Lanes of a block's elements: a warp, or all threads.
    const uint32_t lanes = args.block > kWarpBlock ? device::kThreads : device::kWarp;
    const uint32_t together = device::kThreads / lanes;
    device::PerThread<B, uint32_t> most(b), tile_most(b);
    for (uint64_t first = own.begin; first < own.end; first += uint64_t{together} * args.block) {
      b.alone([&](uint32_t t) {
        const uint64_t from = first + uint64_t{t / lanes} * args.block;
        most[t] = 0;
        for (uint64_t i = from + t % lanes; i < from + args.block && i < own.end; i += lanes)
          most[t] =
              device::Max{}(most[t], device::absolute_bits(device::input_at(b, row, i, reset)));
        tile_most[t] = device::Max{}(tile_most[t], most[t]);
      });
      uint32_t of_all = 0;
      if (together > 1) {
        b.warp_max(most);
      } else {
        of_all = device::block_max(b, most, shared.cells);
      }
      b.alone([&](uint32_t t) {
        const uint64_t from = first + uint64_t{t / lanes} * args.block;
        if (from >= own.end) return;
        write_block(b, row, args, from, from + args.block < own.end ? from + args.block : own.end,
                    t % lanes, lanes, together > 1 ? most[t] : of_all, reset);
      });
    }
    if (!args.measure) return;
    device::raise_values(b, row, tile_most, shared.cells);
  }

 private:
  /// A lane's share of the codes of elements [from, to), whose largest absolute bits are `most`.
  template <class B>
  LACONIC_DEVICE static void write_block(B& b, const device::EncodeRow& row, const Args& args,
                                         uint64_t from, uint64_t to, uint32_t lane, uint32_t lanes,
                                         uint32_t most, bool reset) {
    const Int8Scale s = int8_scale(most);
    const uint64_t codes = (row.count + args.block - 1) / args.block * sizeof(float);
    if (lane == 0) b.store(row.out, from / args.block * sizeof(float), s.scale);
    const bool finite = most < 0x7F800000U;
    for (uint64_t i = from + lane; i < to; i += lanes) {
      const float a = device::input_at(b, row, i, reset);
      int8_t code = 0;
      if (finite && !args.stochastic) code = int8_nearest(a, s.inverse);
      if (finite && args.stochastic) {
        const uint64_t e = row.offset + i;
        code = int8_stochastic(a, s.inverse, random_fifteen(random_word(row.key, e), e));
      }
      b.store(row.out, codes + i, code);
      if (row.residual != nullptr)
        b.write(row.residual, i, a + -row.own_weight * int8_value(code, s.scale));
    }
  }
};

/// Scales of payloads are ones that an encoder writes, and no code is -128. Their lengths were
/// looked at.
struct Int8Check {
  static constexpr const char* name = "laconic_Int8Check";
  struct Args {
    device::CheckBatch batch;
    uint32_t block = 0;
    uint32_t largest_scale = 0;  ///< bits
  };
  template <class B>
  struct Shared {};

  template <class B>
  LACONIC_DEVICE static void run(B& b, Shared<B>&, const Args& args) {
    const device::CheckRow row = device::row_of(b, args.batch.rows, args.batch.units, b.index());
    const uint64_t scales = (row.count + args.block - 1) / args.block;
    if (row.bytes != scales * sizeof(float) + row.count) {
      b.alone([&](uint32_t t) {
        if (t == 0) b.raise(row.malformed, 1);
      });
      return;
    }
    const device::Range own = device::range_of(row, b.index(), int8_tile(args.block));
    b.alone([&](uint32_t t) {
      bool bad = false;
      for (uint64_t i = own.begin + t; i < own.end; i += device::kThreads) {
        if (i % args.block == 0)  // compares bits, so that NaN and all negative values are larger
          bad = bad || b.template load<uint32_t>(row.payload, i / args.block * sizeof(float)) >
                           args.largest_scale;
        bad = bad || b.template load<int8_t>(row.payload, scales * sizeof(float) + i) == -128;
      }
      if (bad) b.raise(row.malformed, 1);
    });
  }
};

struct Int8Decode {
  static constexpr const char* name = "laconic_Int8Decode";
  struct Args {
    device::DecodeBatch batch;
    uint32_t block = 0;
  };
  template <class B>
  struct Shared {};

  template <class B>
  LACONIC_DEVICE static void run(B& b, Shared<B>&, const Args& args) {
    const device::DecodeRow row = device::row_of(b, args.batch.rows, args.batch.units, b.index());
    const device::Range own = device::range_of(row, b.index(), int8_tile(args.block));
    const uint64_t codes = (row.count + args.block - 1) / args.block * sizeof(float);
    b.alone([&](uint32_t t) {
      sum_terms(b, row, own, t, [&](const uint8_t* payload, uint64_t i) {
        const auto scale = b.template load<float>(payload, i / args.block * sizeof(float));
        return int8_value(b.template load<int8_t>(payload, codes + i), scale);
      });
    });
  }
};

}  // namespace laconic::kernels
