// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "device/program.h"

#include <gmock/gmock.h>

namespace laconic::device {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr Image kImages[] = {{80, false, {}}, {90, false, {}}, {100, false, {}}, {80, true, {}}};

std::vector<std::string> chosen(uint32_t capability) {
  std::vector<std::string> names;
  for (const Image& image : choose_images(kImages, capability)) names.push_back(image.name());
  return names;
}

TEST(ChooseImages, CubinOfMajorVersionComesBeforePtx) {
  EXPECT_THAT(chosen(80), ElementsAre("sm_80", "PTX of compute_80"));
  EXPECT_THAT(chosen(89), ElementsAre("sm_80", "PTX of compute_80"));
  EXPECT_THAT(chosen(90), ElementsAre("sm_90", "PTX of compute_80"));
  EXPECT_THAT(chosen(103), ElementsAre("sm_100", "PTX of compute_80"));
}

TEST(ChooseImages, NewerMajorVersionGetsPtxAlone) {
  EXPECT_THAT(chosen(110), ElementsAre("PTX of compute_80"));
}

TEST(ChooseImages, OlderCardGetsNothing) { EXPECT_THAT(chosen(75), IsEmpty()); }

TEST(ChooseImages, NewestOfSeveralCubinsComesFirst) {
  const Image images[] = {{80, true, {}}, {80, false, {}}, {86, false, {}}, {89, false, {}}};
  const auto best = choose_images(images, 88);
  ASSERT_EQ(best.size(), 3U);
  EXPECT_EQ(best[0].name(), "sm_86");
  EXPECT_EQ(best[1].name(), "sm_80");
}

}  // namespace
}  // namespace laconic::device
