// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A step decides without asking for memory, so it cannot fail on one rank alone.
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>

#include "support/control_loop.h"

namespace {

thread_local bool counting = false;
thread_local std::size_t asked = 0;

void* allocate(std::size_t bytes) {
  if (counting) ++asked;
  void* const p = std::malloc(bytes);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}

}  // namespace

void* operator new(std::size_t bytes) { return allocate(bytes); }
void* operator new[](std::size_t bytes) { return allocate(bytes); }
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  if (counting) ++asked;
  return std::malloc(bytes);
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, const std::nothrow_t&) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t) noexcept { std::free(p); }

namespace laconic::control {
namespace {

TEST(ControlMemory, DecidingAllocatesNothing) {
  for (const PolicyTable* law : all_policies()) {
    test::Loop loop;
    loop.control = law->info.form;
    loop.steps = 300;
    loop.link.jitter = 0.3;
    const auto run = loop.run();
    ASSERT_EQ(run.steps.size(), 300U) << law->info.name;
    const Controlled rule{loop.control, false, "topk", loop.range()};
    auto made = Controller::create({rule, rule, rule}, run.decisions);
    ASSERT_TRUE(made);
    std::vector<uint64_t> state(made->state_words());
    std::size_t decisions = 0;
    asked = 0;
    counting = true;
    for (const Observation& seen : run.seen) {
      decisions += made->observe(seen).size();
      made->save(state);
      if (!made->load(state)) ++asked;
    }
    counting = false;
    EXPECT_EQ(asked, 0U) << law->info.name;
    EXPECT_EQ(decisions, 3 * run.decisions.size()) << law->info.name;
  }
}

}  // namespace
}  // namespace laconic::control
