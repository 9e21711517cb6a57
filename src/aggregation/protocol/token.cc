// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "aggregation/protocol/token.h"

namespace laconic::aggregation::protocol {

// A cascade, half of the token in each step: y_i = F(b, m | i | F(a, m | i)) with F = SipHash-2-4.
SipKey derive_key(const Token& token, KeyUse use, std::span<const uint64_t> nonces) noexcept {
  const SipKey a{load<uint64_t>(token.data()), load<uint64_t>(token.data() + 8)};
  const SipKey b{load<uint64_t>(token.data() + 16), load<uint64_t>(token.data() + 24)};
  std::array<uint64_t, 2> out{};
  for (uint64_t i = 0; i < 2; ++i) {
    uint64_t inner = 0;
    for (const SipKey* key : {&a, &b}) {
      laconic_sip s = laconic_sip_begin(key);
      laconic_sip_word(&s, static_cast<uint64_t>(use));
      for (const uint64_t nonce : nonces) laconic_sip_word(&s, nonce);
      laconic_sip_word(&s, i);
      laconic_sip_word(&s, inner);
      inner = laconic_sip_end(&s, 8 * (nonces.size() + 3), 0);
    }
    out[i] = inner;
  }
  return {out[0], out[1]};
}

SipKey job_key(const Token& token, uint64_t job, uint64_t epoch) noexcept {
  const uint64_t nonces[] = {job, epoch};
  return derive_key(token, KeyUse::job, nonces);
}

}  // namespace laconic::aggregation::protocol
