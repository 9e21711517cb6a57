// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "collective/exchange/reports.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "laconic/loopback.h"
#include "support/on_all.h"

namespace laconic::collective {
namespace {

using control::Duration;
using control::kReportBytes;
using control::kReportWords;
using control::Ratio;
using control::Report;

constexpr std::array<DType, 4> kLanes{DType::f32, DType::f16, DType::bf16, DType::i32};

Report words_from(uint32_t first) {
  std::array<uint16_t, kReportWords> words{};
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = static_cast<uint16_t>(first + i);
  return control::report_of_words(words);
}

/// Every rank's slots, summed by the hub's engines.
std::vector<Report> gathered(LoopbackHub& hub, DType type, uint32_t first) {
  const uint32_t world = hub.engine(0).world();
  const uint64_t bytes = report_lanes(type) * dtype_size(type);
  std::vector<std::vector<uint8_t>> lanes(world, std::vector<uint8_t>(world * bytes));
  test::on_all(world, [&](uint32_t r) {
    put_report(type, words_from(first + 6 * r), lanes[r].data() + r * bytes);
    const Step sum{.kind = StepKind::all_reduce,
                   .dtype = type,
                   .count = world * report_lanes(type),
                   .send = lanes[r].data(),
                   .recv = lanes[r].data()};
    ASSERT_TRUE(hub.engine(r).run({&sum, 1}));
  });
  std::vector<Report> out;
  for (uint32_t r = 0; r < world; ++r) {
    EXPECT_EQ(lanes[r], lanes[0]);
    out.push_back(get_report(type, lanes[0].data() + r * bytes));
  }
  return out;
}

TEST(ReportSlots, EveryWordArrivesInEveryElement) {
  LoopbackHub hub(2, std::chrono::seconds(60));
  for (const DType type : kLanes) {
    for (uint32_t first = 0; first < 65536; first += 12) {
      const std::vector<Report> heard = gathered(hub, type, first);
      ASSERT_EQ(heard[0], words_from(first)) << dtype_name(type) << ' ' << first;
      ASSERT_EQ(heard[1], words_from(first + 6)) << dtype_name(type) << ' ' << first;
    }
  }
}

TEST(ReportSlots, UpTo64RanksReportInOneSum) {
  for (const uint32_t world : {2U, 3U, 7U, 64U}) {
    LoopbackHub hub(world, std::chrono::seconds(60));
    for (const DType type : kLanes) {
      // The largest words, all bytes of which are set, and some in the middle.
      for (const uint32_t first : {65536U - 6 * world, 0x7FF0U, 0xFEF0U}) {
        const std::vector<Report> heard = gathered(hub, type, first);
        for (uint32_t r = 0; r < world; ++r)
          ASSERT_EQ(heard[r], words_from(first + 6 * r)) << dtype_name(type) << ' ' << world;
      }
    }
  }
}

TEST(ReportSlots, MoreRanksTakeTurns) {
  EXPECT_EQ(slot_turn(1, 5).count, 1U);
  EXPECT_EQ(slot_turn(64, 5).first, 0U);
  EXPECT_EQ(slot_turn(64, 5).count, 64U);
  for (const uint32_t world : {65U, 128U, 200U, 65535U}) {
    std::vector<int> heard(world);
    const uint64_t turns = (world + 63) / 64;
    for (uint64_t turn = 7 * turns; turn < 8 * turns; ++turn) {
      const SlotTurn t = slot_turn(world, turn);
      ASSERT_LE(t.count, kReportSlots);
      for (uint32_t r = t.first; r < t.first + t.count; ++r) ++heard[r];
    }
    EXPECT_EQ(heard, std::vector<int>(world, 1)) << world;
  }
  EXPECT_EQ(slot_turn(65, 1).first, 64U);
  EXPECT_EQ(slot_turn(65, 1).count, 1U);
}

TEST(ReportSlots, SumsWithInvalidReportsAreMissing) {
  std::vector<float> f32(6, 3);
  EXPECT_FALSE(get_report(DType::f32, reinterpret_cast<uint8_t*>(f32.data())).missing());
  for (const float lie : {-1.0F, 0.5F, 65536.0F, 1e30F, std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()}) {
    for (std::size_t at = 0; at < 6; ++at) {
      std::vector<float> lanes = f32;
      lanes[at] = lie;
      EXPECT_EQ(get_report(DType::f32, reinterpret_cast<uint8_t*>(lanes.data())), Report()) << lie;
    }
  }
  for (const DType type : {DType::f16, DType::bf16}) {
    const auto lane = [&](float x) {
      return type == DType::f16 ? float_to_f16(x) : float_to_bf16(x);
    };
    for (uint32_t bits = 0; bits < 65536; ++bits) {
      std::vector<uint16_t> lanes(12, lane(1));
      lanes[5] = static_cast<uint16_t>(bits);
      const float x = type == DType::f16 ? f16_to_float(lanes[5]) : bf16_to_float(lanes[5]);
      bool is_byte = false;
      for (int b = 0; b < 256; ++b) is_byte = is_byte || x == static_cast<float>(b);
      const Report got = get_report(type, reinterpret_cast<uint8_t*>(lanes.data()));
      ASSERT_EQ(got == Report(), !is_byte) << dtype_name(type) << ' ' << x;
    }
  }
}

TEST(ReportBook, ReportAboutAnotherStepIsMissing) {
  const OwnReport own{words_from(100), (uint64_t{7} << 32) + 41, 3};
  BundleReport sent = bundle_report(&own);
  EXPECT_EQ(sent.step, 41U);
  EXPECT_EQ(heard_report(sent, own), own.report);
  sent.step = 42;
  EXPECT_TRUE(heard_report(sent, own).missing());
  EXPECT_EQ(bundle_report(nullptr).bytes, BundleReport().bytes);

  ReportBook book;
  book.reserve(true, 3);
  book.begin();
  EXPECT_TRUE(book.heard().reports.empty());
  book.hear(2, bundle_report(&own), &own);
  ASSERT_EQ(book.heard().reports.size(), 3U);
  EXPECT_TRUE(book.heard().reports[0].missing());
  EXPECT_EQ(book.heard().reports[2], own.report);
  book.begin();
  book.hear(1, bundle_report(&own), &own);
  EXPECT_TRUE(book.heard().reports[2].missing());
  book.begin();
  book.hear(1, bundle_report(&own), nullptr);
  EXPECT_TRUE(book.heard().reports.empty());
}

}  // namespace
}  // namespace laconic::collective
