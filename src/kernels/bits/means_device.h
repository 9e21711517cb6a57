// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Payloads of kernels/bits/means.h on the device. A tile is a chunk of kBitsChunk elements: a block
// makes its bits and sums, lane by lane as the CPU; then a block per unit adds the sums of chunks
// and makes the values; then tiles keep the rest, if there is a residual.
#pragma once

#include "device/batch.h"
#include "kernels/bits/means.h"
#include "kernels/core/terms_device.h"

namespace laconic::kernels {

/// Elements of a tile that are in shared memory at once: 8 for each thread.
inline constexpr uint32_t kMeansStage = 8 * device::kThreads;
static_assert(kBitsChunk % kMeansStage == 0 && kBitsLanes == device::kWarp);

/// EncodeRow::scratch: the sums of every chunk.
[[nodiscard]] LACONIC_HOST_DEVICE constexpr uint64_t means_scratch(uint64_t count) {
  return ceil_div(count, kBitsChunk) * sizeof(BitsSums);
}

/// A unit has values if the sums of its chunks are finite.
[[nodiscard]] LACONIC_HOST_DEVICE inline device::Verdict means_verdict(const device::Measured& m,
                                                                       bool residual,
                                                                       uint32_t limit) {
  return device::verdict_if(m.chunk_sum < 0x7F800000U, m, residual, limit);
}

/// The values of element i's group.
template <class B>
[[nodiscard]] LACONIC_DEVICE BitsValues values_at(B& b, const MeansFormat& format,
                                                  const uint8_t* payload, uint64_t i) {
  const uint64_t at = format.values_at(i);
  const auto first = b.template load<float>(payload, at);
  if (format.magnitude) return MeansFormat::both_signs(first);
  return {first, b.template load<float>(payload, at + sizeof(float))};
}

/// Bits and sums of a tile.
struct MeansPack {
  static constexpr const char* name = "laconic_MeansPack";
  struct Args {
    device::EncodeBatch batch;
    MeansFormat format;
  };
  template <class B>
  struct Shared {
    device::Cells<B, float, kMeansStage> inputs;
    device::Cells<B, uint32_t, device::kThreads> scan;
    device::Cells<B, uint32_t, device::kWarps> most;
  };
  /// Each thread's results.
  template <class B>
  struct Looked {
    device::PerThread<B, uint32_t> values, residual;  ///< largest absolute bits
    device::PerThread<B, float> sum;  ///< of a chunk: thread 0's of a < 0, thread kWarp's the other

    LACONIC_DEVICE explicit Looked(B& b) : values(b), residual(b), sum(b) {}
  };

  template <class B>
  LACONIC_DEVICE static void run(B& b, Shared<B>& shared, const Args& args) {
    const device::EncodeRow row = device::row_of(b, args.batch.rows, args.batch.units, b.index());
    Looked<B> looked(b);
    pack(b, shared, row, args.format, b.index() - row.first_tile, false, looked);
    const uint32_t values = device::block_max(b, looked.values, shared.most);
    const uint32_t residual =
        row.residual == nullptr ? 0 : device::block_max(b, looked.residual, shared.most);
    b.alone([&](uint32_t t) {
      if (t != 0 && t != device::kWarp) return;
      b.raise(&row.measured->chunk_sum, device::absolute_bits(looked.sum[t]));
      if (t != 0) return;
      b.raise(&row.measured->values, values);
      b.raise(&row.measured->residual, residual);
    });
  }

  /// A chunk's bits into the payload, its sums into scratch memory. `reset`: with a residual of
  /// zeros.
  template <class B>
  LACONIC_DEVICE static void pack(B& b, Shared<B>& shared, const device::EncodeRow& row,
                                  const MeansFormat& format, uint64_t chunk, bool reset,
                                  Looked<B>& looked) {
    const device::Range own = device::range_of(row, row.first_tile + chunk, kBitsChunk);
    const uint64_t bits_at = format.bits_at(row.count);
    device::PerThread<B, uint32_t> positives(b);
    device::PerThread<B, float> sum(b);
    for (uint64_t first = own.begin; first < own.end; first += kMeansStage) {
      const uint64_t left = own.end - first;
      const auto n = static_cast<uint32_t>(left < kMeansStage ? left : kMeansStage);
      b.each([&](uint32_t t) { load(b, shared, row, first, n, t, reset, looked); });
      b.each([&](uint32_t t) {
        if (8 * t < n) {
          const uint32_t byte = byte_of(b, shared, t, n);
          b.write(row.out, bits_at + first / 8 + t, static_cast<uint8_t>(byte));
          for (uint32_t bits = byte; bits != 0; bits &= bits - 1) ++positives[t];
        }
        if (t >= 2 * kBitsLanes) return;  // a lane of the negative or of the positive elements
        for (uint32_t i = t % kBitsLanes; i < n; i += kBitsLanes) {
          const float a = b.read(shared.inputs, i);
          if (bit_of(a) == (t >= kBitsLanes)) sum[t] += a;
        }
      });
    }
    b.warp_fold(sum, device::Sum{});
    const uint32_t all = device::scan<uint32_t>(b, positives, shared.scan, device::Sum{});
    b.alone([&](uint32_t t) {
      BitsSums* const sums = reinterpret_cast<BitsSums*>(row.scratch) + chunk;
      looked.sum[t] = sum[t];
      if (t == 0) {
        b.write(&sums->negative, 0, sum[t]);
        b.write(&sums->positives, 0, uint64_t{all});
      }
      if (t == kBitsLanes) b.write(&sums->positive, 0, sum[t]);
    });
  }

 private:
  /// A thread's share of n elements into shared memory.
  template <class B>
  LACONIC_DEVICE static void load(B& b, Shared<B>& shared, const device::EncodeRow& row,
                                  uint64_t first, uint32_t n, uint32_t t, bool reset,
                                  Looked<B>& looked) {
    const device::Max max;
    for (uint32_t i = t; i < n; i += device::kThreads) {
      const float x = device::gradient_at(b, row, first + i);
      looked.values[t] = max(looked.values[t], device::absolute_bits(x));
      float a = x;
      if (row.residual != nullptr) {
        const float e = reset ? 0.0F : b.read(row.residual, first + i);
        looked.residual[t] = max(looked.residual[t], device::absolute_bits(e));
        a = x + e;
      }
      b.write(shared.inputs, i, a);
    }
  }

  /// Bits of the elements from 8·t on. Threads begin at different ones: each has a bank of shared
  /// memory of its own.
  template <class B>
  LACONIC_DEVICE static uint32_t byte_of(B& b, Shared<B>& shared, uint32_t t, uint32_t n) {
    uint32_t byte = 0;
    for (uint32_t j = 0; j < 8; ++j) {
      const uint32_t k = (j + t / 4) % 8;
      if (8 * t + k < n)
        byte |= static_cast<uint32_t>(bit_of(b.read(shared.inputs, 8 * t + k))) << k;
    }
    return byte;
  }
};

/// Values of all groups: a block per unit.
struct MeansTotal {
  static constexpr const char* name = "laconic_MeansTotal";
  using Args = MeansPack::Args;
  template <class B>
  struct Shared {
    MeansPack::Shared<B> pack;
    device::Cells<B, float, device::kThreads> negative, positive;
    device::Cells<B, uint64_t, device::kThreads> positives;
  };

  template <class B>
  LACONIC_DEVICE static void run(B& b, Shared<B>& shared, const Args& args) {
    const device::EncodeRow row = b.read(args.batch.rows, b.index());
    if (row.count == 0) return;
    const auto verdict =
        means_verdict(device::measured_of(b, row), row.residual != nullptr, row.limit);
    if (!device::gives_payload(verdict)) return;
    if (verdict == device::Verdict::reset) pack_again(b, shared, row, args.format);
    if (args.format.group == 0) {
      add_all(b, shared, row, args.format);
    } else {
      add_groups(b, row, args.format);
    }
  }

 private:
  /// The gradient alone. It happens once: what this leaves in the residual can be used.
  template <class B>
  LACONIC_DEVICE static void pack_again(B& b, Shared<B>& shared, const device::EncodeRow& row,
                                        const MeansFormat& format) {
    typename MeansPack::Looked<B> looked(b);
    LACONIC_ROLLED
    for (uint64_t chunk = 0; chunk < ceil_div(row.count, kBitsChunk); ++chunk)
      MeansPack::pack(b, shared.pack, row, format, chunk, true, looked);
    b.meet();  // all sums are there
  }

  /// One group: a thread adds what the others fetch.
  template <class B>
  LACONIC_DEVICE static void add_all(B& b, Shared<B>& shared, const device::EncodeRow& row,
                                     const MeansFormat& format) {
    const auto* const chunks = reinterpret_cast<const BitsSums*>(row.scratch);
    const uint64_t count = ceil_div(row.count, kBitsChunk);
    device::PerThread<B, SignSums> sums(b);
    for (uint64_t first = 0; first < count; first += device::kThreads) {
      b.each([&](uint32_t t) {
        if (first + t >= count) return;
        const BitsSums chunk = b.read(chunks, first + t);
        b.write(shared.negative, t, chunk.negative);
        b.write(shared.positive, t, chunk.positive);
        b.write(shared.positives, t, chunk.positives);
      });
      b.each([&](uint32_t t) {
        for (uint32_t i = 0; t == 0 && i < device::kThreads && first + i < count; ++i)
          sums[t].add({b.read(shared.negative, i), b.read(shared.positive, i),
                       b.read(shared.positives, i)});
      });
    }
    b.alone([&](uint32_t t) {
      if (t == 0) write_values(b, row, format, 0, format.values(sums[t], row.count));
    });
  }

  template <class B>
  LACONIC_DEVICE static void add_groups(B& b, const device::EncodeRow& row,
                                        const MeansFormat& format) {
    const auto* const chunks = reinterpret_cast<const BitsSums*>(row.scratch);
    b.alone([&](uint32_t t) {
      for (uint64_t g = t; g < format.groups(row.count); g += device::kThreads) {
        const uint64_t begin = g * format.group;
        const uint64_t end = begin + format.group < row.count ? begin + format.group : row.count;
        SignSums sums;
        for (uint64_t i = begin; i < end; i += kBitsChunk) sums.add(b.read(chunks, i / kBitsChunk));
        write_values(b, row, format, begin, format.values(sums, end - begin));
      }
    });
  }

  template <class B>
  LACONIC_DEVICE static void write_values(B& b, const device::EncodeRow& row,
                                          const MeansFormat& format, uint64_t i,
                                          BitsValues values) {
    const uint64_t at = format.values_at(i);
    if (!format.magnitude) b.store(row.out, at, values.zero);
    b.store(row.out, at + (format.magnitude ? 0 : sizeof(float)), values.one);
  }
};

/// residual = a - value, of units that have both.
struct MeansRest {
  static constexpr const char* name = "laconic_MeansRest";
  using Args = MeansPack::Args;
  template <class B>
  struct Shared {};

  template <class B>
  LACONIC_DEVICE static void run(B& b, Shared<B>&, const Args& args) {
    const device::EncodeRow row = device::row_of(b, args.batch.rows, args.batch.units, b.index());
    if (row.residual == nullptr) return;
    const auto verdict = means_verdict(device::measured_of(b, row), true, row.limit);
    if (!device::gives_payload(verdict)) return;
    const bool reset = verdict == device::Verdict::reset;
    const device::Range own = device::range_of(row, b.index(), kBitsChunk);
    const BitsValues values = values_at(b, args.format, row.out, own.begin);
    b.alone([&](uint32_t t) {
      for (uint64_t i = own.begin + t; i < own.end; i += device::kThreads)
        b.write(row.residual, i, rest_of(device::input_at(b, row, i, reset), values));
    });
  }
};

/// The length, the values, and zeros after the last element: a block per payload.
struct MeansCheck {
  static constexpr const char* name = "laconic_MeansCheck";
  struct Args {
    device::CheckBatch batch;
    MeansFormat format;
  };
  template <class B>
  struct Shared {};

  template <class B>
  LACONIC_DEVICE static void run(B& b, Shared<B>&, const Args& args) {
    const device::CheckRow row = b.read(args.batch.rows, b.index());
    const bool right = row.bytes == args.format.bytes(row.count);
    const uint64_t bits_at = args.format.bits_at(row.count);
    const uint32_t padding = static_cast<uint32_t>(row.count % 8);
    b.alone([&](uint32_t t) {
      bool good = right || t != 0;
      if (right && t == 0 && padding != 0)
        good = b.read(row.payload, bits_at + row.count / 8) >> padding == 0;
      for (uint64_t g = t; right && g < args.format.groups(row.count); g += device::kThreads)
        good = valid(b, row, args.format, g * args.format.group_bytes()) && good;
      if (!good) b.raise(row.malformed, 1);
    });
  }

 private:
  template <class B>
  LACONIC_DEVICE static bool valid(B& b, const device::CheckRow& row, const MeansFormat& format,
                                   uint64_t at) {
    const auto first = b.template load<uint32_t>(row.payload, at);
    if (format.magnitude) return format.valid(0, first);
    return format.valid(first, b.template load<uint32_t>(row.payload, at + sizeof(float)));
  }
};

struct MeansDecode {
  static constexpr const char* name = "laconic_MeansDecode";
  struct Args {
    device::DecodeBatch batch;
    MeansFormat format;
  };
  template <class B>
  struct Shared {};

  template <class B>
  LACONIC_DEVICE static void run(B& b, Shared<B>&, const Args& args) {
    const device::DecodeRow row = device::row_of(b, args.batch.rows, args.batch.units, b.index());
    const device::Range own = device::range_of(row, b.index(), kBitsChunk);
    const uint64_t bits_at = args.format.bits_at(row.count);
    b.alone([&](uint32_t t) {
      BitsValues values[device::kTerms];  // times their weights
      for (uint32_t k = 0; k < device::kTerms; ++k) {
        if (k >= row.terms) break;
        const BitsValues v = values_at(b, args.format, row.payload[k], own.begin);
        values[k] = {row.weight[k] * v.zero, row.weight[k] * v.one};
      }
      sum_products(b, row, own, t, [&](uint32_t k, uint64_t i) {
        const bool bit = (b.read(row.payload[k], bits_at + i / 8) >> (i % 8) & 1) != 0;
        return value_of(bit, values[k]);
      });
    });
  }
};

}  // namespace laconic::kernels
