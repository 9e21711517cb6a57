// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Laws about received bytes: check is total, and whatever it lets through decodes within bounds.
// Every input has its own allocation, so that AddressSanitizer sees over-reads.
#include <algorithm>
#include <cmath>

#include "conformance/codec_law.h"

namespace laconic::conformance {
namespace {

class Attack {
 public:
  Attack(const Spec& spec, const Conditions& conditions, Data data) : exchange_(spec, conditions) {
    const std::vector<float> values = make(data, conditions.unit.count);
    EXPECT_TRUE(exchange_.encode(values.data()));
    const Bytes payload = exchange_.payload();
    payload_.assign(payload.begin(), payload.end());
  }

  [[nodiscard]] const std::vector<uint8_t>& payload() const { return payload_; }

  Errc offer(const std::vector<uint8_t>& bytes) {
    const std::vector<uint8_t> exact(bytes.begin(), bytes.end());
    const Errc answer = exchange_.check(exact);
    if (answer == Errc::ok) {
      const Term terms[2] = {{exact, 0.5F}, {exact, 0.5F}};
      static_cast<void>(exchange_.decoded(terms));
      const Term whole{exact, 1.0F};
      const std::vector<float> values = exchange_.decoded({&whole, 1});
      // Lanes carry NaN and infinity: they are sums, and what an engine makes of them is looked at.
      EXPECT_TRUE(
          exchange_.last().kind == RoundKind::lanes ||
          std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); }))
          << "check accepts what does not decode to finite values";
      exchange_.expect_intact();
    }
    return answer;
  }

 private:
  Exchange exchange_;
  std::vector<uint8_t> payload_;
};

std::vector<Unit> units() {
  return {vector_unit(0), vector_unit(1), vector_unit(19), vector_unit(1000), matrix_unit(17, 9)};
}

/// All lengths of a short payload, a sample of a long one's.
std::vector<std::size_t> lengths_below(std::size_t size, Random& random) {
  std::vector<std::size_t> lengths;
  if (size <= 128) {
    for (std::size_t n = 0; n < size; ++n) lengths.push_back(n);
    return lengths;
  }
  for (const std::size_t n :
       {std::size_t{0}, std::size_t{1}, std::size_t{4}, size / 2, size - 4, size - 1}) {
    lengths.push_back(n);
  }
  for (int i = 0; i < 64; ++i) lengths.push_back(random.below(size));
  return lengths;
}

TEST_P(CodecLaw, TruncatedPayloadsAreRefusedOrDecode) {
  Random random(1);
  for (const Unit& unit : units()) {
    SCOPED_TRACE(describe(unit, Data::laplace));
    Attack attack(spec_, conditions(unit), Data::laplace);
    for (const std::size_t length : lengths_below(attack.payload().size(), random)) {
      const Errc answer =
          attack.offer({attack.payload().begin(),
                        attack.payload().begin() + static_cast<std::ptrdiff_t>(length)});
      if (contract_.exact_size) {
        ASSERT_EQ(answer, Errc::payload_malformed) << length << " bytes";
      }
    }
  }
}

TEST_P(CodecLaw, ExtendedPayloadsAreRefusedOrDecode) {
  for (const Unit& unit : units()) {
    SCOPED_TRACE(describe(unit, Data::laplace));
    Attack attack(spec_, conditions(unit), Data::laplace);
    for (const std::size_t extra : {1U, 2U, 3U, 4U, 8U, 1000U}) {
      for (const uint8_t byte : {uint8_t{0x00}, uint8_t{0xFF}}) {
        std::vector<uint8_t> longer = attack.payload();
        longer.resize(longer.size() + extra, byte);
        const Errc answer = attack.offer(longer);
        if (contract_.exact_size) {
          ASSERT_EQ(answer, Errc::payload_malformed) << extra << " bytes too many";
        }
      }
    }
  }
}

TEST_P(CodecLaw, FlippedBitsAreRefusedOrDecode) {
  Random random(2);
  for (const Unit& unit : units()) {
    for (const Data data : {Data::laplace, Data::sparse}) {
      SCOPED_TRACE(describe(unit, data));
      Attack attack(spec_, conditions(unit), data);
      const std::size_t bits = attack.payload().size() * 8;
      const std::size_t trials = std::min<std::size_t>(bits, 400);
      for (std::size_t trial = 0; trial < trials; ++trial) {
        const std::size_t bit = bits <= 400 ? trial : trial < 64 ? trial : random.below(bits);
        std::vector<uint8_t> flipped = attack.payload();
        flipped[bit / 8] = static_cast<uint8_t>(flipped[bit / 8] ^ (1U << (bit % 8)));
        attack.offer(flipped);
      }
    }
  }
}

TEST_P(CodecLaw, RandomBytesAreRefusedOrDecode) {
  Random random(3);
  for (const Unit& unit : units()) {
    SCOPED_TRACE(describe(unit, Data::laplace));
    Attack attack(spec_, conditions(unit), Data::laplace);
    const std::size_t size = attack.payload().size();
    for (int trial = 0; trial < 200; ++trial) {
      std::vector<uint8_t> bytes(trial % 4 == 0 ? random.below(2 * size + 8) : size);
      for (uint8_t& b : bytes) {
        const uint64_t r = random.next();
        b = trial % 3 == 0 ? static_cast<uint8_t>(r)
            : (r & 7) == 0 ? static_cast<uint8_t>(r >> 8)
                           : 0;
      }
      attack.offer(bytes);
    }
    attack.offer(std::vector<uint8_t>(size, 0xFF));
    attack.offer(std::vector<uint8_t>(size, 0x00));
  }
}

/// A field in the front of the payload set to the extremes: counts, lengths and scales live there.
TEST_P(CodecLaw, HugeCountsAreRefused) {
  for (const Unit& unit : units()) {
    SCOPED_TRACE(describe(unit, Data::laplace));
    Attack attack(spec_, conditions(unit), Data::laplace);
    for (std::size_t at = 0; at + 4 <= std::min<std::size_t>(attack.payload().size(), 32); ++at) {
      for (const uint32_t value :
           {0xFFFFFFFFU, 0x80000000U, 0x7FFFFFFFU, 0x7F7FFFFFU, static_cast<uint32_t>(unit.count),
            static_cast<uint32_t>(unit.count + 1), 0U}) {
        std::vector<uint8_t> bytes = attack.payload();
        store(bytes.data() + at, value);
        attack.offer(bytes);
      }
    }
  }
}

/// check is asked about every round of an exchange, also of those whose payloads are merged.
TEST_P(CodecLaw, EarlierRoundsAreCheckedToo) {
  const Unit unit = matrix_unit(65, 33);
  Exchange exchange = this->exchange(unit);
  const std::vector<float> values = make(Data::laplace, unit.count);
  ASSERT_TRUE(exchange.encode(values.data()));
  for (uint32_t round = 0; round < exchange.plan().rounds; ++round) {
    const Bytes payload = exchange.payload(0, round);
    EXPECT_EQ(spec_.codec().check(spec_.params(), unit, round, payload), Errc::ok)
        << "round " << round;
    if (payload.empty()) continue;
    const Bytes shorter = payload.first(payload.size() - 1);
    if (contract_.exact_size) {
      EXPECT_NE(spec_.codec().check(spec_.params(), unit, round, shorter), Errc::ok)
          << "round " << round;
    }
  }
}

}  // namespace
}  // namespace laconic::conformance
