// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>

#include "codecs/threelc/threelc_layout.h"
#include "codecs/threelc/threelc_work.h"
#include "kernels/core/simd.h"
#include "kernels/threelc/zero_run.h"

namespace laconic::codecs::threelc {
namespace {

using kernels::ThreeLcKernels;
using kernels::ThreeLcScale;
using kernels::ZeroRunKernels;

// A tensor that has one M: the unit, or a chunk of it.
struct Tensor {
  Rows rows;
  const float* values = nullptr;
  float* residual = nullptr;  // may be null
  bool fetch_next = false;    // the next elements come from memory

  [[nodiscard]] float* residual_at(uint64_t i) const noexcept {
    return residual == nullptr ? nullptr : residual + i;
  }
};

// The result of a task: runs at its ends belong to its neighbours as well.
struct Coded {
  const uint8_t* at = nullptr;  // where the body is now
  uint64_t place = 0;           // where it belongs, from the first body on
  uint32_t head = 0;            // zero bytes before the body
  uint32_t body = 0;            // coded bytes
  uint32_t tail = 0;            // zero bytes after the body
  uint32_t max_bits = 0;        // of a chunk of a cached tensor: its largest absolute bits
  bool finite = true;
};

struct Encoder {
  const ThreeLcKernels& kernel;
  const ZeroRunKernels& runs;
  ThreeLc::Params params;
  ThreadPool* pool = nullptr;
  Coded* coded = nullptr;    // one per task
  uint8_t* slots = nullptr;  // kTaskColumns per task
  bool prefetch = false;
};

// Up to this number of elements, values and residual stay in the second-level cache: 1 MiB.
constexpr uint64_t kCachedCount = uint64_t{1} << 17;

// Whether to prefetch by software: what comes next of a maximum, and the next chunk, 320 KiB with
// its residual, while one is packed. It pays where it was measured with a second-level cache of
// 2 MiB (Intel), and costs more than it brings where that has 1 MiB (Zen 5):
// laconic bench --size 256Mi --spec 3lc:scale=chunk.
bool prefetches() { return kernels::second_level_cache_bytes() >= uint64_t{2} << 20; }

constexpr uint64_t slots_at(uint64_t tasks) { return round_up(tasks * sizeof(Coded), 64); }

Encoder make_encoder(const ThreeLc::Params& params, uint64_t columns, Work& work) {
  const uint64_t tasks = task_count(columns);
  return {kernels::threelc_kernels(work.isa),
          kernels::zero_run_kernels(work.isa),
          params,
          useful_pool(work, tasks),
          reinterpret_cast<Coded*>(work.scratch.data()),
          work.scratch.data() + slots_at(tasks),
          prefetches()};
}

// ---- scale ----

// Empty when s · max overflows or a value is not finite.
std::optional<ThreeLcScale> scale_of(float s, uint32_t max_bits) {
  ThreeLcScale scale;
  return kernels::threelc_scale(s, max_bits, &scale) ? std::optional(scale) : std::nullopt;
}

void raise_to(std::atomic<uint32_t>& most, uint32_t bits) {
  uint32_t seen = most.load(std::memory_order_relaxed);
  while (seen < bits && !most.compare_exchange_weak(seen, bits, std::memory_order_relaxed)) {
  }
}

// Largest absolute bits of the columns of one task.
uint32_t max_of_columns(const Encoder& encoder, const Tensor& t, uint64_t task) {
  const uint64_t begin = task * kTaskColumns;
  uint32_t most = 0;
  for (uint32_t i = 0; i < kDigits; ++i) {
    const uint64_t row = i * t.rows.columns;
    const uint64_t from = std::min(row + begin, t.rows.count);
    const uint64_t to = std::min({row + begin + kTaskColumns, row + t.rows.columns, t.rows.count});
    most = std::max(most, encoder.kernel.max_abs_bits(t.values + from, t.residual_at(from),
                                                      to - from, encoder.prefetch));
  }
  return most;
}

// From the last task to the first, so that packing, which starts at the first, finds it in the
// cache.
uint32_t max_abs_bits(const Encoder& encoder, const Tensor& t) {
  std::atomic<uint32_t> most{0};
  const uint64_t tasks = task_count(t.rows.columns);
  parallel_for(encoder.pool, tasks,
               [&](uint64_t i) { raise_to(most, max_of_columns(encoder, t, tasks - 1 - i)); });
  return most.load(std::memory_order_relaxed);
}

// ---- digits ----

// A column that reaches beyond the tensor.
uint8_t pack_partial(const Tensor& t, ThreeLcScale scale, bool pad_one, uint64_t column) {
  int32_t byte = kernels::kZeroByte;
  for (uint32_t i = 0; i < kDigits; ++i) {
    const uint64_t at = i * t.rows.columns + column;
    kernels::Quantized r{pad_one ? 0 : -1, 0};
    if (at < t.rows.count) {
      const float a = t.residual == nullptr ? t.values[at] : t.values[at] + t.residual[at];
      r = kernels::quantize(a, scale);
      if (t.residual != nullptr) t.residual[at] = r.rest;
    }
    byte += r.q * static_cast<int32_t>(kernels::kDigitWeight[i]);
  }
  return static_cast<uint8_t>(byte);
}

// Steps 1, 3, 4 and 5 for the columns of one task. Returns how many there are.
uint64_t pack_task(const Encoder& encoder, const Tensor& t, ThreeLcScale scale, uint64_t task,
                   uint8_t* bytes) {
  const uint64_t begin = task * kTaskColumns;
  const uint64_t end = std::min(begin + kTaskColumns, t.rows.columns);
  const uint64_t complete = std::clamp(t.rows.complete, begin, end);
  encoder.kernel.pack(t.values + begin, t.residual_at(begin), t.rows.columns, complete - begin,
                      scale, t.fetch_next, bytes);
  for (uint64_t j = complete; j < end; ++j) {
    bytes[j - begin] = pack_partial(t, scale, encoder.params.pad_one, j);
  }
  return end - begin;
}

// ---- runs ----

// Writes a payload whose runs may continue from task to task.
struct RunWriter {
  uint8_t* to = nullptr;
  uint64_t run = 0;  // zero bytes not yet written

  void flush() {
    const uint64_t longest = run / kernels::kLongestRun;
    const uint64_t rest = run % kernels::kLongestRun;
    std::memset(to, 255, longest);
    to += longest;
    if (rest == 1) *to++ = kernels::kZeroByte;
    if (rest > 1) *to++ = static_cast<uint8_t>(kernels::kRunBase + rest);
    run = 0;
  }
  // Reserves space for a body after the open run and the zeros at its head.
  uint8_t* open(const Coded& c) {
    run += c.head;
    if (c.body == 0) return to;
    flush();
    uint8_t* const place = to;
    to += c.body;
    run = c.tail;
    return place;
  }
};

Coded cut_ends(const ZeroRunKernels& kernel, const uint8_t* bytes, uint64_t n) {
  Coded c;
  c.head = static_cast<uint32_t>(kernel.leading_zeros(bytes, n));
  if (c.head < n) c.tail = static_cast<uint32_t>(kernel.trailing_zeros(bytes, n));
  return c;
}

uint32_t encode_body(const ZeroRunKernels& kernel, const uint8_t* bytes, uint64_t n, const Coded& c,
                     uint8_t* to) {
  return static_cast<uint32_t>(kernel.run_encode(bytes + c.head, n - c.head - c.tail, to));
}

void append(const ZeroRunKernels& kernel, const uint8_t* bytes, uint64_t n, RunWriter& writer) {
  const Coded c = cut_ends(kernel, bytes, n);
  writer.run += c.head;
  if (c.head == n) return;
  writer.flush();
  writer.to += encode_body(kernel, bytes, n, c, writer.to);
  writer.run = c.tail;
}

uint8_t* slot(const Encoder& encoder, uint64_t task) { return encoder.slots + task * kTaskColumns; }

void copy_bodies(const Encoder& encoder, uint64_t tasks, uint8_t* to) {
  parallel_for(encoder.pool, tasks, [&](uint64_t i) {
    const Coded& c = encoder.coded[i];
    if (c.body != 0) std::memcpy(to + c.place, c.at, c.body);
  });
}

// ---- one scale for the unit ----

uint64_t encode_in_order(const Encoder& encoder, const Tensor& t, ThreeLcScale scale, uint8_t* to) {
  alignas(64) uint8_t bytes[kTaskColumns];
  RunWriter writer{to, 0};
  for (uint64_t task = 0; task < task_count(t.rows.columns); ++task) {
    const uint64_t n = pack_task(encoder, t, scale, task, bytes);
    append(encoder.runs, bytes, n, writer);
  }
  writer.flush();
  return static_cast<uint64_t>(writer.to - to);
}

// Every task codes its body into its slot; then the runs between bodies are joined, in order.
uint64_t encode_in_parallel(const Encoder& encoder, const Tensor& t, ThreeLcScale scale,
                            uint8_t* to) {
  const uint64_t tasks = task_count(t.rows.columns);
  parallel_for(encoder.pool, tasks, [&](uint64_t i) {
    alignas(64) uint8_t bytes[kTaskColumns];
    const uint64_t n = pack_task(encoder, t, scale, i, bytes);
    Coded c = cut_ends(encoder.runs, bytes, n);
    c.at = slot(encoder, i);
    if (c.head < n) c.body = encode_body(encoder.runs, bytes, n, c, slot(encoder, i));
    encoder.coded[i] = c;
  });
  RunWriter writer{to, 0};
  for (uint64_t i = 0; i < tasks; ++i) {
    encoder.coded[i].place = static_cast<uint64_t>(writer.open(encoder.coded[i]) - to);
  }
  writer.flush();
  copy_bodies(encoder, tasks, to);
  return static_cast<uint64_t>(writer.to - to);
}

uint64_t pack_in_place(const Encoder& encoder, const Tensor& t, ThreeLcScale scale, uint8_t* to) {
  parallel_for(encoder.pool, task_count(t.rows.columns),
               [&](uint64_t i) { pack_task(encoder, t, scale, i, to + i * kTaskColumns); });
  return t.rows.columns;
}

// ---- one scale per chunk ----

Tensor chunk_of(const Chunks& chunks, Source source, uint64_t c) {
  const Tensor whole{chunks.rows(c), source.values, source.residual};
  return {whole.rows, source.values + chunks.first(c), whole.residual_at(chunks.first(c))};
}

uint32_t encode_chunk_body(const Encoder& encoder, const Tensor& t, ThreeLcScale scale,
                           uint8_t* to) {
  if (!encoder.params.zre) return static_cast<uint32_t>(pack_task(encoder, t, scale, 0, to));
  alignas(64) uint8_t bytes[kTaskColumns];
  RunWriter writer{to, 0};
  append(encoder.runs, bytes, pack_task(encoder, t, scale, 0, bytes), writer);
  writer.flush();
  return static_cast<uint32_t>(writer.to - to);
}

// Codes a chunk at `to`, its M and length into the header at `header`. A chunk whose M overflows is
// left as it is.
void encode_chunk(const Encoder& encoder, const Chunks& chunks, Source source, uint64_t c,
                  uint8_t* header, uint8_t* to) {
  Tensor t = chunk_of(chunks, source, c);
  // With several threads another one has the next chunk.
  t.fetch_next = encoder.pool == nullptr && chunks.elements > kCachedCount && encoder.prefetch;
  Coded& coded = encoder.coded[c];
  const bool known = source.residual != nullptr && chunks.elements <= kCachedCount;
  const uint32_t max_bits = known ? coded.max_bits : max_of_columns(encoder, t, 0);
  const auto scale = scale_of(encoder.params.s, max_bits);
  coded = Coded{};
  coded.at = to;
  coded.finite = scale.has_value();
  if (!coded.finite) return;
  coded.body = encode_chunk_body(encoder, t, *scale, to);
  store(header + chunks.scale_at(c), scale->m);
  store(header + chunks.length_at(c), static_cast<uint16_t>(coded.body));
}

uint32_t max_of_chunks(const Encoder& encoder, const Chunks& chunks, Source source) {
  std::atomic<uint32_t> most{0};
  parallel_for(encoder.pool, chunks.count, [&](uint64_t i) {
    const uint64_t c = chunks.count - 1 - i;  // so that the first is in the cache when it is packed
    encoder.coded[c].max_bits = max_of_columns(encoder, chunk_of(chunks, source, c), 0);
    raise_to(most, encoder.coded[c].max_bits);
  });
  return most.load(std::memory_order_relaxed);
}

// Can x + e be coded? A chunk changes the residual before the next one is looked at, so this has to
// be known before the first. What the caches hold is looked at once. Of other tensors the values
// alone decide, nearly always: no finite e is lost in the sum with a small x, and one that makes M
// overflow all the same lies beyond kLargestInput itself.
bool sums_fit(const Encoder& encoder, const Chunks& chunks, Source source) {
  const auto fit = [&](uint32_t max_bits) {
    return scale_of(encoder.params.s, max_bits).has_value();
  };
  if (chunks.elements > kCachedCount) {
    constexpr uint32_t kSmall = std::bit_cast<uint32_t>(0x1p102F);
    const uint32_t values = max_of_chunks(encoder, chunks, {source.values, nullptr});
    if (values < kSmall) return true;
    if (!fit(values)) return false;
  }
  return fit(max_of_chunks(encoder, chunks, source));
}

// Encodes all chunks: in sequence if one thread does it, else each into its slot.
void encode_every_chunk(const Encoder& encoder, const Chunks& chunks, Source source,
                        uint8_t* header) {
  uint8_t* const bodies = header + chunks.header_bytes();
  if (encoder.pool == nullptr) {
    uint8_t* to = bodies;
    for (uint64_t c = 0; c < chunks.count; ++c) {
      encode_chunk(encoder, chunks, source, c, header, to);
      to += encoder.coded[c].body;
    }
    return;
  }
  parallel_for(encoder.pool, chunks.count, [&](uint64_t c) {
    uint8_t* const to = encoder.params.zre ? slot(encoder, c) : bodies + c * kTaskColumns;
    encode_chunk(encoder, chunks, source, c, header, to);
  });
}

bool all_finite(const Encoder& encoder, uint64_t tasks) {
  return std::all_of(encoder.coded, encoder.coded + tasks, [](const Coded& c) { return c.finite; });
}

}  // namespace

uint64_t encode_scratch(uint64_t columns) noexcept {
  const uint64_t tasks = task_count(columns);
  return slots_at(tasks) + (tasks > 1 ? tasks * kTaskColumns : 0);
}

Encoded encode_unit(const ThreeLc::Params& params, uint64_t count, Source source, Work& work,
                    MutBytes out) {
  const Tensor t{rows_of(count), source.values, source.residual};
  const Encoder encoder = make_encoder(params, t.rows.columns, work);
  const auto scale = scale_of(params.s, max_abs_bits(encoder, t));
  if (!scale.has_value()) return {0, false};
  store(out.data(), scale->m);
  const auto code = !params.zre               ? pack_in_place
                    : encoder.pool == nullptr ? encode_in_order
                                              : encode_in_parallel;
  return {kScaleBytes + code(encoder, t, *scale, out.data() + kScaleBytes), true};
}

Encoded encode_chunks(const ThreeLc::Params& params, uint64_t count, Source source, Work& work,
                      MutBytes out) {
  const Chunks chunks = chunks_of(count);
  const Encoder encoder = make_encoder(params, rows_of(count).columns, work);
  if (source.residual != nullptr && !sums_fit(encoder, chunks, source)) return {0, false};
  encode_every_chunk(encoder, chunks, source, out.data());
  if (!all_finite(encoder, chunks.count)) return {0, false};
  uint64_t made = 0;
  for (uint64_t c = 0; c < chunks.count; ++c) {
    encoder.coded[c].place = made;
    made += encoder.coded[c].body;
  }
  if (encoder.pool != nullptr && params.zre) {
    copy_bodies(encoder, chunks.count, out.data() + chunks.header_bytes());
  }
  return {chunks.header_bytes() + made, true};
}

}  // namespace laconic::codecs::threelc
