// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The payload of sparse codecs whose number of elements follows the data: u32 count, then the set
// (codecs/sparse/sparse_payload.h).
#pragma once

#include <cstdint>
#include <span>

#include "codecs/sparse/sparse_erase.h"
#include "codecs/sparse/sparse_payload.h"
#include "codecs/sparse/sparse_select.h"
#include "laconic/codec.h"

namespace laconic::codecs {

inline constexpr uint64_t kCountBytes = sizeof(uint32_t);

[[nodiscard]] inline uint64_t counted_bytes(uint64_t count, uint64_t n) noexcept {
  return kCountBytes + sparse_bytes(count, n);
}

/// `payload` is checked.
[[nodiscard]] inline SparseView counted_view(Bytes payload, uint64_t n) noexcept {
  return sparse_view(payload.subspan(kCountBytes), load<uint32_t>(payload.data()), n);
}

/// Writes all that the list holds.
inline void write_whole(CandidateList& list, const Work& work, SparseWriter& writer) noexcept {
  if (work.pool != nullptr) return list.write({list.floor() - 1, 0}, work, writer);
  list.for_each_piece([&](const uint32_t* index, const float* value, uint64_t m) {
    writer.append(index, value, m);
  });
}

/// Writes `count` elements by write(SparseWriter&). Not finite if one of them is not.
template <class Write>
[[nodiscard]] Encoded write_counted(MutBytes out, uint64_t count, uint64_t n, Write&& write) {
  store(out.data(), static_cast<uint32_t>(count));
  SparseWriter writer(out.data() + kCountBytes, count, n);
  write(writer);
  writer.finish();
  return {counted_bytes(count, n), values_finite(counted_view(out, n))};
}

/// At most `most` elements.
[[nodiscard]] Errc check_counted(Bytes payload, uint64_t most, uint64_t n) noexcept;

void decode_counted(std::span<const Term> terms, uint64_t n, const Work& work, Target target);

inline void erase_counted(Bytes payload, uint64_t n, const Work& work, float* values) noexcept {
  erase_sparse(counted_view(payload, n), n, work, values);
}

}  // namespace laconic::codecs
