// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "codecs/threelc/threelc_layout.h"
#include "codecs/threelc/threelc_work.h"
#include "kernels/core/output.h"
#include "kernels/threelc/zero_run.h"

namespace laconic::codecs::threelc {
namespace {

using kernels::kMaxUnpackTerms;
using kernels::ThreeLcKernels;
using kernels::ThreeLcTerm;
using kernels::ZeroRunKernels;

// Digit bytes that are expanded at once: of eight terms, 24 KiB.
constexpr uint64_t kBlock = 2048;

// The digit bytes of one term in order, run codes expanded as they are needed.
class DigitFeed {
 public:
  void open(const ZeroRunKernels& kernel, bool zre, Bytes coded) {
    kernel_ = &kernel;
    if (zre) {
      coded_ = coded;
      at_ = buffer_;
      ready_ = 0;
    } else {
      coded_ = {};
      at_ = coded.data();
      ready_ = coded.size();
    }
  }

  // Makes min(want, what is left) bytes ready; want ≤ kBlock.
  void fill(uint64_t want) {
    if (ready_ >= want || coded_.empty()) return;
    std::memmove(buffer_, at_, ready_);
    at_ = buffer_;
    const auto done =
        kernel_->expand(coded_.data(), coded_.size(), want - ready_, buffer_ + ready_);
    ready_ += done.produced;
    coded_ = coded_.subspan(done.consumed);
  }

  // Leaves out the first `columns`.
  void skip(uint64_t columns) {
    for (const uint64_t piece : {uint64_t{256}, uint64_t{32}}) {
      while (coded_.size() >= piece) {
        const uint64_t size = kernel_->expanded_size(coded_.data(), piece);
        if (size > columns) break;
        columns -= size;
        coded_ = coded_.subspan(piece);
      }
    }
    fill(columns);
    take(columns);
  }

  [[nodiscard]] const uint8_t* bytes() const { return at_; }
  [[nodiscard]] uint64_t ready() const { return ready_; }
  void take(uint64_t columns) {
    at_ += columns;
    ready_ -= columns;
  }

 private:
  const ZeroRunKernels* kernel_ = nullptr;
  Bytes coded_;
  const uint8_t* at_ = nullptr;
  uint64_t ready_ = 0;
  alignas(64) uint8_t buffer_[kBlock + kernels::kExpandSlack];
};

// Terms that are decoded together, column by column, into one output.
struct Decoder {
  const ThreeLcKernels& kernel;
  const ZeroRunKernels& runs;
  bool zre = true;
  kernels::Output output = kernels::Output::set;
  uint32_t terms = 0;
};

// The values that −1, 0, +1 add to the output: weight · (M · q).
void set_values(ThreeLcTerm& term, float m, float weight) {
  term.value[0] = weight * -m;
  term.value[1] = weight * 0.0F;
  term.value[2] = weight * m;
}

void unpack_partial(const Decoder& d, const ThreeLcTerm* terms, const Rows& rows, uint64_t column,
                    uint64_t offset, float* out) {
  for (uint32_t i = 0; i < kDigits; ++i) {
    const uint64_t at = i * rows.columns + column;
    if (at >= rows.count) return;
    float sum = d.output == kernels::Output::add ? out[at] : 0.0F;
    for (uint32_t t = 0; t < d.terms; ++t) {
      sum += terms[t].value[kernels::digit_of(terms[t].bytes[offset], kernels::kDigitWeight[i])];
    }
    out[at] = sum;
  }
}

// A stretch of columns whose digit bytes start at terms[].bytes.
struct Stretch {
  uint64_t begin = 0;
  uint64_t end = 0;
  bool first = true;  // no column before it is decoded with it
  bool last = true;   // no column after it either
};

void unpack_columns(const Decoder& d, const ThreeLcTerm* terms, const Rows& rows,
                    const Stretch& stretch, float* out) {
  const auto [begin, end, first, last] = stretch;
  const uint64_t complete = std::clamp(rows.complete, begin, end);
  if (d.output == kernels::Output::stream) {
    const uint64_t follow =
        last ? 0 : std::min(kernels::kStreamFollow, std::max(rows.complete, end) - end);
    d.kernel.unpack_stream(terms, d.terms, complete - begin, follow, first, out + begin,
                           rows.columns);
  } else {
    d.kernel.unpack(terms, d.terms, complete - begin, out + begin, rows.columns,
                    d.output == kernels::Output::add);
  }
  for (uint64_t j = complete; j < end; ++j) unpack_partial(d, terms, rows, j, j - begin, out);
}

// The number of columns that can be decoded now: `left`, or whole vectors that leave kStreamFollow
// columns after them.
uint64_t ready_columns(DigitFeed* feeds, uint32_t count, uint64_t left) {
  uint64_t least = left;
  for (uint32_t t = 0; t < count; ++t) {
    feeds[t].fill(std::min(left, kBlock));
    least = std::min(least, feeds[t].ready());
  }
  if (least == left) return left;
  return (least - std::min(least, kernels::kStreamFollow)) & ~uint64_t{63};
}

// Columns [begin, end) of feeds that stand at `begin`.
void decode_columns(const Decoder& d, DigitFeed* feeds, ThreeLcTerm* terms, const Rows& rows,
                    uint64_t begin, uint64_t end, float* out) {
  for (uint64_t at = begin; at < end;) {
    const uint64_t n = ready_columns(feeds, d.terms, end - at);
    if (n == 0) return;  // only with payloads that check() refuses
    for (uint32_t t = 0; t < d.terms; ++t) terms[t].bytes = feeds[t].bytes();
    unpack_columns(d, terms, rows, {at, at + n, at == begin, at + n == end}, out);
    for (uint32_t t = 0; t < d.terms; ++t) feeds[t].take(n);
    at += n;
  }
}

// ---- one scale for the unit ----

// starts[t][i]: the column at which slice i of term t's coded bytes begins. A slice is kTaskColumns
// coded bytes, so there is at most one per task.
struct Starts {
  uint64_t* at = nullptr;
  uint64_t tasks = 0;

  [[nodiscard]] uint64_t* of(uint32_t term) const { return at + term * (tasks + 1); }
};

Bytes slice(Bytes coded, uint64_t i) {
  const uint64_t from = std::min<uint64_t>(i * kTaskColumns, coded.size());
  return coded.subspan(from, std::min<uint64_t>(kTaskColumns, coded.size() - from));
}

void find_starts(const Decoder& d, Bytes coded, ThreadPool* pool, uint64_t tasks,
                 uint64_t* starts) {
  starts[0] = 0;
  parallel_for(pool, tasks, [&](uint64_t i) {
    const Bytes part = slice(coded, i);
    starts[i + 1] = d.runs.expanded_size(part.data(), part.size());
  });
  for (uint64_t i = 0; i < tasks; ++i) starts[i + 1] += starts[i];
}

// A feed that stands at `column`.
void open_at(const Decoder& d, Bytes coded, const Starts& starts, uint32_t term, uint64_t column,
             DigitFeed& feed) {
  if (!d.zre) return feed.open(d.runs, false, coded.subspan(column));
  const uint64_t* const first = starts.of(term);
  const uint64_t* const after = std::upper_bound(first, first + starts.tasks, column);
  const auto i = static_cast<uint64_t>(after - first - 1);
  feed.open(d.runs, true, coded.subspan(std::min<uint64_t>(i * kTaskColumns, coded.size())));
  feed.skip(column - first[i]);
}

void decode_unit(const Decoder& d, uint64_t count, std::span<const Term> payloads, Work& work,
                 float* out) {
  const Rows rows = rows_of(count);
  Starts starts{reinterpret_cast<uint64_t*>(work.scratch.data()), task_count(rows.columns)};
  ThreadPool* const pool = useful_pool(work, starts.tasks);
  const auto coded = [&](uint32_t t) { return payloads[t].payload.subspan(kScaleBytes); };
  const auto decode_range = [&](uint64_t begin, uint64_t end, const auto& open) {
    DigitFeed feeds[kMaxUnpackTerms];
    ThreeLcTerm terms[kMaxUnpackTerms];
    for (uint32_t t = 0; t < d.terms; ++t) {
      set_values(terms[t], load<float>(payloads[t].payload.data()), payloads[t].weight);
      open(t, feeds[t]);
    }
    decode_columns(d, feeds, terms, rows, begin, end, out);
  };
  if (pool == nullptr) {
    return decode_range(0, rows.columns,
                        [&](uint32_t t, DigitFeed& feed) { feed.open(d.runs, d.zre, coded(t)); });
  }
  for (uint32_t t = 0; t < d.terms && d.zre; ++t) {
    find_starts(d, coded(t), pool, starts.tasks, starts.of(t));
  }
  parallel_for(pool, starts.tasks, [&](uint64_t i) {
    const uint64_t begin = i * kTaskColumns;
    const uint64_t end = std::min(begin + kTaskColumns, rows.columns);
    decode_range(begin, end, [&](uint32_t t, DigitFeed& feed) {
      open_at(d, coded(t), starts, t, begin, feed);
    });
  });
}

// ---- one scale per chunk ----

// starts[c]: where the coded bytes of chunk c begin.
void find_bodies(const Chunks& chunks, Bytes payload, uint64_t* starts) {
  starts[0] = chunks.header_bytes();
  for (uint64_t c = 0; c < chunks.count; ++c) {
    starts[c + 1] = starts[c] + load<uint16_t>(payload.data() + chunks.length_at(c));
  }
}

void decode_chunks(const Decoder& d, uint64_t count, std::span<const Term> payloads, Work& work,
                   float* out) {
  const Chunks chunks = chunks_of(count);
  const Starts starts{reinterpret_cast<uint64_t*>(work.scratch.data()), chunks.count};
  for (uint32_t t = 0; t < d.terms; ++t) find_bodies(chunks, payloads[t].payload, starts.of(t));
  parallel_for(useful_pool(work, chunks.count), chunks.count, [&](uint64_t c) {
    DigitFeed feeds[kMaxUnpackTerms];
    ThreeLcTerm terms[kMaxUnpackTerms];
    for (uint32_t t = 0; t < d.terms; ++t) {
      const Bytes payload = payloads[t].payload;
      const uint64_t* const at = starts.of(t) + c;
      set_values(terms[t], load<float>(payload.data() + chunks.scale_at(c)), payloads[t].weight);
      feeds[t].open(d.runs, d.zre, payload.subspan(at[0], at[1] - at[0]));
    }
    const Rows rows = chunks.rows(c);
    decode_columns(d, feeds, terms, rows, 0, rows.columns, out + chunks.first(c));
  });
}

}  // namespace

uint64_t decode_scratch(uint64_t columns) noexcept {
  return kMaxUnpackTerms * (task_count(columns) + 1) * sizeof(uint64_t);
}

void decode_terms(const ThreeLc::Params& params, uint64_t count, std::span<const Term> terms,
                  Work& work, Target target) {
  const Decoder d{kernels::threelc_kernels(work.isa), kernels::zero_run_kernels(work.isa),
                  params.zre, kernels::choose_output(target.add, count * sizeof(float)),
                  static_cast<uint32_t>(terms.size())};
  if (params.scale == ThreeLc::Scale::unit) {
    decode_unit(d, count, terms, work, target.values);
  } else {
    decode_chunks(d, count, terms, work, target.values);
  }
}

}  // namespace laconic::codecs::threelc
