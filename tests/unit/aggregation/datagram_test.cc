// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "aggregation/protocol/datagram.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <random>
#include <set>
#include <vector>

#include "golden/datagrams.h"

namespace laconic::aggregation::protocol {
namespace {

constexpr SipKey kKey{0x0123456789ABCDEFU, 0xFEDCBA9876543210U};

const UpHeader kUp{DatagramType::data,
                   kFirst | kTrouble,
                   0xA1B2C3D4,
                   0x01020304,
                   0x55667788,
                   0x99AA,
                   17,
                   0xBEEF,
                   63};
const DownHeader kDown{
    DatagramType::result, kTrouble, 0xA1B2C3D4, 0x01020304, 0x55667788, 0x99AA, 17, 0xBEEF, 2, 3,
    0x8000000000000005};

template <class Header>
std::vector<uint8_t> written(const Header& h, const std::vector<uint8_t>& payload, uint64_t era) {
  std::vector<uint8_t> bytes;
  if constexpr (std::is_same_v<Header, UpHeader>) {
    bytes.resize(kUpHeaderBytes);
    write_up(h, kKey, era, payload, bytes.data());
  } else {
    bytes.resize(kDownHeaderBytes);
    write_down(h, kKey, era, payload, bytes.data());
  }
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  return bytes;
}

TEST(Datagram, HeadersRoundTrip) {
  const std::vector<uint8_t> payload{1, 2, 3};
  UpHeader up;
  const auto u = written(kUp, payload, 3);
  ASSERT_EQ(parse_up(u, &up), DatagramFault::none);
  EXPECT_EQ(up, kUp);
  EXPECT_TRUE(tag_is_right(u, kUpHeaderBytes, kKey, 3));
  DownHeader down;
  const auto d = written(kDown, payload, 3);
  ASSERT_EQ(parse_down(d, &down), DatagramFault::none);
  EXPECT_EQ(down, kDown);
  EXPECT_TRUE(tag_is_right(d, kDownHeaderBytes, kKey, 3));
}

TEST(Datagram, TagCoversEveryBitOfHeader) {
  const auto sound = written(kUp, {1, 2, 3}, 0);
  for (std::size_t bit = 0; bit < 8 * kUpHeaderBytes; ++bit) {
    auto bytes = sound;
    bytes[bit / 8] ^= static_cast<uint8_t>(1U << (bit % 8));
    UpHeader h;
    const bool refused =
        parse_up(bytes, &h) != DatagramFault::none || !tag_is_right(bytes, kUpHeaderBytes, kKey, 0);
    EXPECT_TRUE(refused) << "bit " << bit;
  }
}

TEST(Datagram, TagCoversUnsentFields) {
  const auto sound = written(kUp, {1, 2, 3}, 5);
  EXPECT_FALSE(tag_is_right(sound, kUpHeaderBytes, kKey, 4));
  auto longer = sound;
  longer.push_back(0);
  EXPECT_FALSE(tag_is_right(longer, kUpHeaderBytes, kKey, 5));
}

TEST(Datagram, OnlyAFullTagCoversThePayload) {
  UpHeader full = kUp;
  full.flags |= kFull;
  for (const bool covered : {false, true}) {
    auto bytes = written(covered ? full : kUp, {1, 2, 3}, 0);
    bytes.back() ^= 1U;
    EXPECT_EQ(tag_is_right(bytes, kUpHeaderBytes, kKey, 0), !covered);
  }
}

TEST(Datagram, PaddingIsTaggedAsIfSent) {
  for (const uint8_t full : {uint8_t{0}, uint8_t{kFull}}) {
    for (const std::size_t size : {1U, 7U, 8U, 13U, 16U}) {
      for (const std::size_t padding : {0U, 1U, 3U, 8U, 17U}) {
        UpHeader h = kUp;
        h.flags |= full;
        std::vector<uint8_t> payload(size, 0xAB), bytes(kUpHeaderBytes);
        write_up(h, kKey, 1, payload, bytes.data(), padding);
        payload.resize(size + padding);
        bytes.insert(bytes.end(), payload.begin(), payload.end());
        EXPECT_TRUE(tag_is_right(bytes, kUpHeaderBytes, kKey, 1)) << size << " + " << padding;
      }
    }
  }
}

TEST(Datagram, EveryLengthIsChecked) {
  const auto up = written(kUp, std::vector<uint8_t>(40), 0);
  const auto down = written(kDown, std::vector<uint8_t>(40), 0);
  for (std::size_t size = 0; size < up.size(); ++size) {
    const std::vector<uint8_t> u(up.begin(), up.begin() + static_cast<std::ptrdiff_t>(size));
    const std::vector<uint8_t> d(down.begin(), down.begin() + static_cast<std::ptrdiff_t>(size));
    UpHeader uh;
    DownHeader dh;
    EXPECT_EQ(parse_up(u, &uh) == DatagramFault::none, size > kUpHeaderBytes) << size;
    EXPECT_EQ(parse_down(d, &dh) == DatagramFault::none, size > kDownHeaderBytes) << size;
  }
}

TEST(Datagram, BitmapAndItsCountsAgree) {
  for (const uint64_t bitmap : {uint64_t{1}, uint64_t{6}, ~uint64_t{0}}) {
    DownHeader h = kDown;
    h.bitmap = bitmap;
    h.divisor = static_cast<uint8_t>(std::popcount(bitmap));
    h.added = h.divisor;
    DownHeader back;
    EXPECT_EQ(parse_down(written(h, {1}, 0), &back), DatagramFault::none);
    ++h.divisor;
    EXPECT_EQ(parse_down(written(h, {1}, 0), &back), DatagramFault::field);
  }
}

TEST(Datagram, NumbersDecodeToNearest) {
  constexpr uint64_t kEra = uint64_t{1} << 32;
  EXPECT_EQ(nearest_number(5, 0), 5U);
  EXPECT_EQ(nearest_number(0xFFFFFFFFU, 0), 0xFFFFFFFFU);  // nothing is below zero
  EXPECT_EQ(nearest_number(0xFFFFFFFFU, kEra), kEra - 1);
  EXPECT_EQ(nearest_number(3, kEra - 2), kEra + 3);
  EXPECT_EQ(nearest_number(3, 7 * kEra + 100), 7 * kEra + 3);
  EXPECT_EQ(nearest_number(0xFFFFFF00U, 7 * kEra + 100), 7 * kEra - 0x100);
}

TEST(Datagram, RandomBytesAreReadWithinTheirLength) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 20000; ++i) {
    std::vector<uint8_t> bytes(random() % 80);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
    if (bytes.size() > 3 && i % 2 == 0) {
      store(bytes.data(), kDatagramMagic);
      bytes[2] = static_cast<uint8_t>(0x10U | (random() & 15U));
    }
    UpHeader up;
    DownHeader down;
    if (parse_up(bytes, &up) == DatagramFault::none) {
      EXPECT_FALSE(tag_is_right(bytes, kUpHeaderBytes, kKey, 0));
    }
    if (parse_down(bytes, &down) == DatagramFault::none) {
      EXPECT_FALSE(tag_is_right(bytes, kDownHeaderBytes, kKey, 0));
    }
  }
}

TEST(Enrolment, MessagesRoundTrip) {
  const Token token = golden::golden_token();
  const SipKey key = derive_key(token, KeyUse::challenge, {});
  std::array<uint8_t, kMaxEnrolmentBytes> out{};
  Enrolment e;
  e.from = golden::kGoldenApplicant;
  e.epoch = 77;
  e.nonce = 88;
  e.settings = golden::golden_settings();
  e.settings.full_tags = true;
  e.ack = 1000;
  e.kept = 960;
  const std::vector<uint8_t> held{1, 2, 3, 4, 5, 6, 7, 8};
  e.held = held;
  const Bytes bytes = Bytes(out).first(write_enrolment(e, key, out.data()));
  Enrolment back;
  ASSERT_EQ(parse_enrolment(bytes, &back), DatagramFault::none);
  EXPECT_TRUE(message_tag_is_right(bytes, key));
  EXPECT_EQ(back.from, e.from);
  EXPECT_EQ(back.settings, e.settings);
  EXPECT_FALSE(back.wants_group);
  EXPECT_EQ(back.epoch, 77U);
  EXPECT_EQ(back.nonce, 88U);
  EXPECT_EQ(back.ack, 1000U);
  EXPECT_EQ(back.kept, 960U);
  EXPECT_TRUE(std::equal(back.held.begin(), back.held.end(), held.begin(), held.end()));
}

TEST(Enrolment, WelcomeNamesMulticastGroupOrNone) {
  std::array<uint8_t, kHelloBytes> out{};
  for (const Group& group : {Group{}, golden::kGoldenGroup, golden::kGoldenGroup6}) {
    const Welcome welcome{golden::kGoldenApplicant, 3, true, 77, group};
    ASSERT_EQ(write_welcome(welcome, kKey, out.data()), kHelloBytes);
    Welcome back{{}, 0, false, 0, golden::kGoldenGroup};
    ASSERT_EQ(parse_welcome(out, &back), DatagramFault::none);
    EXPECT_EQ(back, welcome);
    EXPECT_EQ(is_multicast(group), group.exists());
  }
  for (int first = 0; first < 256; ++first) {
    Group four = golden::kGoldenGroup, six = golden::kGoldenGroup6;
    four.address[12] = six.address[0] = static_cast<uint8_t>(first);
    EXPECT_EQ(is_multicast(four), first >= 224 && first < 240) << first;
    EXPECT_EQ(is_multicast(six), first == 255) << first;
  }
}

TEST(Enrolment, AnswerIsNoLongerThanItsRequest) {
  std::array<uint8_t, kMaxEnrolmentBytes> out{};
  const SipKey key{};
  EXPECT_LE(write_challenge({}, key, out.data()), write_hello({}, nullptr, out.data()));
  EXPECT_LE(write_refusal({}, key, out.data()), write_hello({}, nullptr, out.data()));
}

TEST(Enrolment, ImpossibleSettingsAreRefused) {
  const JobSettings sound = golden::golden_settings();
  EXPECT_EQ(judge_settings(sound), Reason::none);
  const auto with = [&](auto change) {
    JobSettings s = sound;
    change(s);
    return judge_settings(s);
  };
  EXPECT_EQ(with([](auto& s) { s.world = 0; }), Reason::malformed);
  EXPECT_EQ(with([](auto& s) { s.world = 65; }), Reason::malformed);
  EXPECT_EQ(with([](auto& s) { s.needed = 0; }), Reason::malformed);
  EXPECT_EQ(with([](auto& s) { s.needed = 5; }), Reason::malformed);
  EXPECT_EQ(with([](auto& s) { s.code_bits = 5; }), Reason::malformed);
  EXPECT_EQ(with([](auto& s) { s.code_bits = 3; }), Reason::malformed);  // the table is of 4 bits
  EXPECT_EQ(with([](auto& s) { s.lane_bits = 32; }), Reason::malformed);
  EXPECT_EQ(with([](auto& s) { s.table_size = 15; }), Reason::malformed);
  EXPECT_EQ(with([](auto& s) { s.ring = 0; }), Reason::malformed);
  EXPECT_EQ(with([](auto& s) { s.ring = 4104; }), Reason::malformed);
  EXPECT_EQ(with([](auto& s) { s.lanes = 0; }), Reason::malformed);
  EXPECT_EQ(with([](auto& s) { s.lanes = 1028; }), Reason::malformed);
  EXPECT_EQ(with([](auto& s) { s.lanes = 8200; }), Reason::malformed);
  EXPECT_EQ(with([](auto& s) { s.values = 8200; }), Reason::malformed);
  EXPECT_EQ(with([](auto& s) { s.timeout_ms = 0; }), Reason::malformed);
  // 30 * 8 = 240 and 30 * 9 = 270: the lane rule, by world.
  EXPECT_EQ(with([](auto& s) { s.world = 8; }), Reason::none);
  EXPECT_EQ(with([](auto& s) { s.world = 9; }), Reason::lane_overflow);
  EXPECT_EQ(with([](auto& s) { s.world = 64, s.lane_bits = 16; }), Reason::none);
  EXPECT_EQ(with([](auto& s) { s.table[3] = 65535, s.lane_bits = 16; }), Reason::lane_overflow);
}

TEST(Enrolment, FirstDifferenceIsNamed) {
  const JobSettings a = golden::golden_settings();
  const auto with = [&](auto change) {
    JobSettings s = a;
    change(s);
    return compare_settings(a, s);
  };
  EXPECT_EQ(compare_settings(a, a), Reason::none);
  EXPECT_EQ(with([](auto& s) { s.world = 5; }), Reason::world);
  EXPECT_EQ(with([](auto& s) { s.needed = 4; }), Reason::quorum);
  EXPECT_EQ(with([](auto& s) { s.spec ^= 1; }), Reason::spec);
  EXPECT_EQ(with([](auto& s) { s.ring = 128; }), Reason::settings);
  EXPECT_EQ(with([](auto& s) { s.table[1] = 4; }), Reason::settings);
  EXPECT_EQ(with([](auto& s) { s.full_tags = true; }), Reason::settings);
}

TEST(Token, KeysDifferInEveryArgument) {
  Token token = golden::golden_token();
  const uint64_t nonces[] = {1, 2, 3, 4};
  std::set<std::pair<uint64_t, uint64_t>> keys;
  std::size_t made = 0;
  const auto add = [&](const SipKey& key) {
    keys.insert({key.k0, key.k1});
    EXPECT_NE(key.k0, key.k1);
    ++made;
  };
  for (const auto use : {KeyUse::challenge, KeyUse::enrol, KeyUse::job}) {
    for (std::size_t n = 0; n <= 4; ++n) add(derive_key(token, use, std::span(nonces, n)));
  }
  for (std::size_t i = 0; i < token.size(); ++i) {
    Token other = token;
    other[i] ^= 1U;
    add(derive_key(other, KeyUse::job, nonces));
  }
  EXPECT_EQ(keys.size(), made);
}

}  // namespace
}  // namespace laconic::aggregation::protocol
