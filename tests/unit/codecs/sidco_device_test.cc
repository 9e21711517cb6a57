// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "kernels/sidco/sidco_device.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "codecs/sidco/sidco.h"

namespace laconic::codecs {
namespace {

class LaunchList final : public device::Queue {
 public:
  std::vector<std::string> names;

 protected:
  void enqueue(std::string_view kernel, uint64_t, Bytes) override { names.emplace_back(kernel); }
};

std::size_t launches(const Sidco::Params& p) {
  LaunchList list;
  Sidco::twin.encode(&p, {nullptr, 1, 1, true}, list);
  return list.names.size();
}

TEST(SidcoDeviceTest, FitOfThreeStagesTakesTwelveLaunches) {
  EXPECT_EQ(launches({}), 12U);
  Sidco::Params p;
  p.ratio = 0.01;
  EXPECT_EQ(launches(p), 10U);
  p.stages = 4;
  EXPECT_EQ(launches(p), 14U);
}

}  // namespace
}  // namespace laconic::codecs
