// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "codecs/sparse/counted_set.h"

namespace laconic::codecs {

Errc check_counted(Bytes payload, uint64_t most, uint64_t n) noexcept {
  if (n > kMaxSparseCount) return Errc::shape_unsupported;
  if (payload.size() < kCountBytes) return Errc::payload_malformed;
  const uint64_t count = load<uint32_t>(payload.data());
  if (count > most) return Errc::bound_exceeded;
  if (payload.size() != counted_bytes(count, n)) return Errc::payload_malformed;
  return check_sparse(counted_view(payload, n), n);
}

void decode_counted(std::span<const Term> terms, uint64_t n, const Work& work, Target target) {
  decode_sparse(terms, n, work, target, [n](Bytes payload) { return counted_view(payload, n); });
}

}  // namespace laconic::codecs
