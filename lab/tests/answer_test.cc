// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "../src/answer.h"

#include <gtest/gtest.h>

namespace laconic::lab {
namespace {

TEST(Answer, CoresOfAHost) {
  const auto cores = read_answer(R"({"ok":true,"host":"host1","cores":[0,3],"more":{"x":[1]}})");
  ASSERT_TRUE(cores);
  EXPECT_EQ(*cores, (std::vector<int>{0, 3}));
}

TEST(Answer, HostWithoutCoresHasNone) {
  const auto cores = read_answer(R"({"ok":true,"seconds":1.5,"per_host":[]})");
  ASSERT_TRUE(cores);
  EXPECT_TRUE(cores->empty());
}

TEST(Answer, RefusalsCarryTheirError) {
  const auto refused = read_answer(
      R"({"ok":false,"error":{"code":1,"name":"invalid_argument","message":"no","hint":"yes"}})");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Errc::invalid_argument);
  EXPECT_EQ(refused.error().message, "no");
  EXPECT_EQ(refused.error().hint, "yes");
}

TEST(Answer, MalformedAnswerIsError) {
  for (const char* line :
       {"", "{", "[]", "null", "{}", R"({"ok":1})", R"({"cores":[0]})", R"({"ok":true} x)",
        R"({"ok":true,"cores":["0"]})", R"({"ok":true,"cores":[-1]})", R"({"ok":false,"error":3})",
        R"({"ok":true,"host":"host1)"}) {
    const auto answer = read_answer(line);
    ASSERT_FALSE(answer) << line;
    EXPECT_EQ(answer.error().code, Errc::engine_failed) << line;
    EXPECT_EQ(answer.error().message, "the lab's answer is not understood") << line;
  }
}

}  // namespace
}  // namespace laconic::lab
