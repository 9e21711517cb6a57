// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Faults that the host's block notices, in bodies that are wrong on purpose.
#include "device/checked_block.h"

#include <gmock/gmock.h>

#include <cmath>
#include <numeric>

namespace laconic::device {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class CheckedBlockTest : public testing::Test {
 protected:
  CheckedBlockTest() : order_(kThreads) {
    std::iota(order_.begin(), order_.end(), 0U);
    memory_.begin_launch();
  }
  CheckedBlock block(uint32_t index = 0) { return {"kernel", index, memory_, order_}; }
  uint32_t* words(uint32_t count) {
    return memory_.allocate<uint32_t>("words", std::vector<uint32_t>(count));
  }
  [[nodiscard]] const std::vector<std::string>& faults() const { return memory_.faults(); }

  CheckedMemory memory_;
  std::vector<uint32_t> order_;
};

TEST_F(CheckedBlockTest, TwoWritersInOnePhaseRace) {
  uint32_t* const to = words(1);
  CheckedBlock b = block(3);
  b.each([&](uint32_t t) {
    if (t < 2) b.write(to, 0, t);
  });
  EXPECT_THAT(faults(),
              ElementsAre(AllOf(HasSubstr("kernel, line "), HasSubstr("block 3, thread 1"),
                                HasSubstr("race for words[0]"), HasSubstr("thread 0"))));
}

TEST_F(CheckedBlockTest, ReaderOfAnothersWriteRacesWithoutBarrier) {
  for (const bool barrier : {true, false}) {
    CheckedBlock b = block();
    CheckedBlock::Cells<uint32_t, kThreads> cells;
    b.alone([&](uint32_t t) { b.write(cells, t, t); });
    if (barrier) b.meet();
    b.each([&](uint32_t t) {
      if (t == 0) {
        EXPECT_EQ(b.read(cells, 1), 1U);
      }
    });
    EXPECT_EQ(faults().empty(), barrier);
  }
}

TEST_F(CheckedBlockTest, WriterAfterAnothersReadRacesInAnyOrder) {
  std::reverse(order_.begin(), order_.end());
  uint32_t* const at = words(2);
  CheckedBlock b = block();
  b.each([&](uint32_t t) {
    if (t == 5) b.write(at, 0, t);
    if (t == 9) (void)b.read(at, 0);
  });
  EXPECT_THAT(faults(), ElementsAre(HasSubstr("read in line")));
}

TEST_F(CheckedBlockTest, OneOfTwoReadersMayNotWrite) {
  uint32_t* const at = words(1);
  CheckedBlock b = block();
  b.each([&](uint32_t t) {
    if (t < 2) (void)b.read(at, 0);
    if (t == 1) b.write(at, 0, t);
  });
  EXPECT_THAT(faults(), ElementsAre(HasSubstr("by thread 0")));
}

TEST_F(CheckedBlockTest, UniformReadRacesWithNextPhase) {
  uint32_t* const at = words(1);
  CheckedBlock b = block();
  (void)b.read(at, 0);
  b.each([&](uint32_t t) {
    if (t == 0) b.write(at, 0, t);
  });
  EXPECT_EQ(faults().size(), 1U);
}

TEST_F(CheckedBlockTest, BlocksOfOneLaunchRaceAndThoseOfTwoDoNot) {
  uint32_t* const at = words(1);
  const auto write = [&](uint32_t index) {
    CheckedBlock b = block(index);
    b.each([&](uint32_t t) {
      if (t == 0) b.write(at, 0, index);
    });
  };
  write(0);
  memory_.begin_launch();
  write(1);
  EXPECT_THAT(faults(), IsEmpty());
  write(2);
  EXPECT_THAT(faults(), ElementsAre(HasSubstr("by block 1 of the launch")));
}

TEST_F(CheckedBlockTest, AtomicsRaceWithOthersAlone) {
  uint32_t* const at = words(1);
  CheckedBlock b = block();
  b.each([&](uint32_t t) { b.raise(at, t); });
  EXPECT_EQ(*at, kThreads - 1);
  CheckedBlock other = block(1);
  other.each([&](uint32_t t) { other.raise(at, t); });
  EXPECT_THAT(faults(), IsEmpty());
  (void)other.read(at, 0);
  EXPECT_EQ(faults().size(), 1U);
}

TEST_F(CheckedBlockTest, AtomicSumsRaceWithOthersAlone) {
  uint32_t* const at = words(2);
  CheckedBlock b = block();
  CheckedBlock::Cells<uint32_t, 2> cells;
  b.each([&](uint32_t t) {
    if (t < 2) b.write(cells, t, 0U);
  });
  b.each([&](uint32_t t) {
    b.add(at, 1, t);
    b.add(cells, 1, 2);
  });
  EXPECT_EQ(at[1], kThreads * (kThreads - 1) / 2);
  EXPECT_EQ(b.read(cells, 1), 2 * kThreads);
  CheckedBlock other = block(1);
  other.each([&](uint32_t t) { other.add(at, 1, t); });
  EXPECT_THAT(faults(), IsEmpty());
  (void)other.read(at, 1);
  b.meet();
  b.each([&](uint32_t t) { t == 0 ? b.write(cells, 0, 1U) : b.add(cells, 0, 1); });
  ASSERT_GE(faults().size(), 2U);
  EXPECT_THAT(faults()[0], HasSubstr("race for words[1]"));
  EXPECT_THAT(faults()[1], HasSubstr("race for cell 0"));
}

TEST_F(CheckedBlockTest, SumInFreshCellIsFault) {
  CheckedBlock b = block();
  CheckedBlock::Cells<uint32_t, 1> fresh;
  b.alone([&](uint32_t t) {
    if (t == 0) b.add(fresh, 0, 1);
  });
  EXPECT_THAT(faults(), ElementsAre(HasSubstr("a cell that was never written")));
}

TEST_F(CheckedBlockTest, StrayAccessesAreFaults) {
  uint32_t* const at = words(2);
  CheckedBlock b = block();
  (void)b.read(at, 2);
  b.write(at, 0, 1U);  // between phases
  const uint8_t* const fresh = memory_.allocate("fresh", 4, 1);
  (void)b.read(fresh, 0);
  EXPECT_THAT(faults(), ElementsAre(HasSubstr("outside every allocation"),
                                    HasSubstr("written between phases"),
                                    HasSubstr("never written: fresh[0]")));
}

TEST_F(CheckedBlockTest, OthersVariablesAreFaults) {
  CheckedBlock b = block();
  CheckedBlock::PerThread<uint32_t> mine(b);
  b.each([&](uint32_t t) {
    if (t == 1) mine[0] = 1;
  });
  EXPECT_THAT(faults(), ElementsAre(HasSubstr("thread 1: a variable of another thread")));
}

TEST_F(CheckedBlockTest, MaximaAndScansAreThoseOfAllThreads) {
  CheckedBlock b = block();
  PerThread<CheckedBlock, uint32_t> value(b), other(b);
  b.each([&](uint32_t t) { value[t] = other[t] = t * 37 % 256; });
  CheckedBlock::Cells<uint32_t, kWarps> most;
  EXPECT_EQ(block_max(b, value, most), 255U);
  CheckedBlock::Cells<uint32_t, kThreads> cells;
  EXPECT_EQ(scan<uint32_t>(b, other, cells, Sum{}), 255U * 128);
  b.each([&](uint32_t t) {
    uint32_t before = 0;
    for (uint32_t i = 0; i < t; ++i) before += i * 37 % 256;
    EXPECT_EQ(other[t], before);
  });
  EXPECT_THAT(faults(), IsEmpty());
}

TEST_F(CheckedBlockTest, FoldOfWarpAddsDistantThreadsFirst) {
  CheckedBlock b = block();
  PerThread<CheckedBlock, float> value(b);
  const auto of = [](uint32_t t) {
    return std::ldexp(1.0F + static_cast<float>(t), static_cast<int>(t % 7) * 9);
  };
  b.alone([&](uint32_t t) { value[t] = of(t); });
  b.warp_fold(value, Sum{});
  b.alone([&](uint32_t t) {
    std::array<float, kWarp> lane;
    for (uint32_t l = 0; l < kWarp; ++l) lane[l] = of(t / kWarp * kWarp + l);
    for (const uint32_t half : {16U, 8U, 4U, 2U, 1U})
      for (uint32_t l = 0; l < half; ++l) lane[l] += lane[l + half];
    EXPECT_EQ(value[t], lane[0]) << t;
  });
  EXPECT_THAT(faults(), IsEmpty());
}

}  // namespace
}  // namespace laconic::device
