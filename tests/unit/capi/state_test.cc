// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Saved state through the C ABI: whatever is not this session's own continuation is refused, with
// the code that says why, before anything is copied.
#include <limits>

#include "laconic/error.h"
#include "unit/capi/world.h"

namespace laconic::test {
namespace {

constexpr int32_t code_of(Errc code) { return static_cast<int32_t>(code); }

struct State : testing::Test {
  State() {
    EXPECT_EQ(world.exchange(), 0);
    header.struct_size = sizeof header;
    EXPECT_EQ(laconic_session_state_header(session, &header), 0);
  }
  int32_t accepts() { return laconic_session_state_accepts(session, &header); }

  World world{{"powersgd:rank=2", 2, LACONIC_STRATEGY_NATIVE_SUM}};
  laconic_session* const session = world.ranks[1].session;
  laconic_state_header header{};
};

TEST_F(State, HeaderNamesItsOwner) {
  EXPECT_EQ(header.struct_size, sizeof header);
  EXPECT_EQ(header.rank, 1U);
  EXPECT_EQ(header.world, 2U);
  EXPECT_STREQ(header.spec, "powersgd:rank=2");
  EXPECT_EQ(accepts(), 0);
}

TEST_F(State, ForeignStateHasItsOwnCode) {
  const laconic_state_header mine = header;
  const auto refused = [&](auto change) {
    header = mine;
    change();
    return accepts();
  };
  EXPECT_EQ(refused([&] { header.version += 1; }), code_of(Errc::state_version));
  EXPECT_EQ(refused([&] { header.world = 3; }), code_of(Errc::state_world));
  EXPECT_EQ(refused([&] { header.rank = 0; }), code_of(Errc::state_rank));
  EXPECT_EQ(refused([&] { header.node_shards = 2; }), code_of(Errc::state_world));
  EXPECT_EQ(refused([&] { header.model_hash ^= 1; }), code_of(Errc::state_model));
  EXPECT_EQ(refused([&] { header.spec[0] = 'q'; }), code_of(Errc::state_spec));
  EXPECT_EQ(refused([&] { header.agreement ^= 1; }), code_of(Errc::state_spec));
}

TEST_F(State, ImpossibleHeaderIsCorrupt) {
  const laconic_state_header mine = header;
  const auto corrupt = [&](auto change) {
    header = mine;
    change();
    return accepts() == code_of(Errc::state_corrupt);
  };
  EXPECT_TRUE(corrupt([&] { header.version = 0; }));
  EXPECT_TRUE(corrupt([&] { header.world = 0; }));
  EXPECT_TRUE(corrupt([&] { header.world = 65536; }));
  EXPECT_TRUE(corrupt([&] { header.world = static_cast<uint32_t>(-1); }));
  EXPECT_TRUE(corrupt([&] { header.rank = 2; })) << "of two ranks";
  EXPECT_TRUE(corrupt([&] { header.rank = static_cast<uint32_t>(-1); }));
  EXPECT_TRUE(corrupt([&] { header.node_shard = 1; })) << "of one shard";
  EXPECT_TRUE(corrupt([&] { header.node_shards = 65536; }));
  EXPECT_TRUE(corrupt([&] { header.spec[0] = '\0'; }));
  EXPECT_TRUE(corrupt([&] { header.spec[3] = '\n'; }));
  EXPECT_TRUE(corrupt([&] { header.spec[3] = '\0'; })) << "something behind the end";
  EXPECT_TRUE(corrupt([&] { std::memset(header.spec, 'x', sizeof header.spec); })) << "no end";
}

/// Another version may have ranks and texts that this one cannot judge.
TEST_F(State, OtherVersionIsNamedFirst) {
  header.version = 9;
  header.world = 0;
  std::memset(header.spec, 'x', sizeof header.spec);
  EXPECT_EQ(accepts(), code_of(Errc::state_version));
}

TEST_F(State, ShortHeaderIsTruncatedToFit) {
  for (const uint32_t size : {16U, 32U}) {
    laconic_state_header few;
    std::memset(&few, 0xFF, sizeof few);
    few.struct_size = size;
    ASSERT_EQ(laconic_session_state_header(session, &few), 0);
    EXPECT_EQ(few.struct_size, size);
    EXPECT_EQ(std::memcmp(&few.version, &header.version, 12), 0);
    for (size_t at = size; at < sizeof few; ++at)
      ASSERT_EQ(reinterpret_cast<const uint8_t*>(&few)[at], 0xFF) << "byte " << at;
  }
  laconic_state_header none{};
  none.struct_size = 12;
  EXPECT_EQ(laconic_session_state_header(session, &none), code_of(Errc::invalid_argument));
}

TEST_F(State, EveryEntryIsCheckedBeforeCopying) {
  const uint32_t entries = laconic_session_state_count(session);
  ASSERT_GE(entries, 2U) << "a residual and a codec's state";
  for (uint32_t i = 0; i < entries; ++i) {
    const char* name = nullptr;
    float* data = nullptr;
    uint64_t count = 0;
    ASSERT_EQ(laconic_session_state_entry(session, i, &name, &data, &count), 0);
    std::vector<float> values(data, data + count);
    EXPECT_EQ(laconic_session_state_check(session, i, values.data(), count), 0)
        << name << ": what the session wrote";
    const auto corrupt = [&](uint64_t n) {
      EXPECT_EQ(laconic_session_state_check(session, i, values.data(), n),
                code_of(Errc::state_corrupt));
      EXPECT_NE(std::string(laconic_last_message()).find(name), std::string::npos);
    };
    corrupt(count - 1);
    corrupt(0);
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
      std::swap(values.back(), values.front());
      const float kept = std::exchange(values.back(), bad);
      corrupt(count);
      values.back() = kept;
    }
  }
  EXPECT_EQ(laconic_session_state_check(session, entries, nullptr, 0),
            code_of(Errc::invalid_argument));
}

TEST(ResidualState, ResidualStateIsChecked) {
  laconic_residual* residual = nullptr;
  ASSERT_EQ(laconic_residual_create(4, &residual), 0);
  const float values[] = {1.0F, std::numeric_limits<float>::infinity()};
  EXPECT_EQ(laconic_residual_set_state(residual, values, 1), 0);
  EXPECT_EQ(laconic_residual_set_state(residual, values, 2), code_of(Errc::state_corrupt));
  uint64_t count = 0;
  EXPECT_EQ(*laconic_residual_state(residual, &count), 1.0F) << "as it was";
  EXPECT_EQ(count, 1U);
  laconic_residual_destroy(residual);
}

}  // namespace
}  // namespace laconic::test
