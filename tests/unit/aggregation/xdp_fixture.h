// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Shared by the tests of `--io xdp`: networks of their own, and when to skip.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "aggregation/io/xdp/xdp.h"
#include "unit/aggregation/network.h"

namespace laconic::test {

namespace protocol = aggregation::protocol;

/// A network namespace that lasts as long as the object.
class Namespace {
 public:
  Namespace() : before_(::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC)) {
    if (unshare(CLONE_NEWNET) == 0) fd_ = ::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
    leave();
  }
  ~Namespace() {
    if (fd_ >= 0) ::close(fd_);
    if (before_ >= 0) ::close(before_);
  }
  Namespace(const Namespace&) = delete;
  Namespace& operator=(const Namespace&) = delete;
  [[nodiscard]] bool ok() const { return fd_ >= 0; }
  [[nodiscard]] std::string path() const {
    return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(fd_);
  }
  void enter() const { EXPECT_EQ(setns(fd_, CLONE_NEWNET), 0); }
  void leave() const { EXPECT_EQ(setns(before_, CLONE_NEWNET), 0); }

 private:
  int before_ = -1, fd_ = -1;
};

inline bool run(const std::string& command) { return std::system(command.c_str()) == 0; }
inline bool ip(const std::string& words) { return run("ip " + words); }

class XdpTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto works = aggregation::Xdp::check();
    if (works) return;
    const std::string why = works.error().message;
    for (const char* excuse : {"not in this build", "not permitted", "not implemented"}) {
      if (why.find(excuse) != std::string::npos) GTEST_SKIP() << why;
    }
    FAIL() << why;  // the verifier has something to say
  }
};

inline protocol::JobSettings settings_of(uint8_t world, uint8_t code_bits, uint8_t lane_bits,
                                         uint32_t lanes) {
  protocol::JobSettings s;
  s.world = s.needed = world;
  s.code_bits = code_bits;
  s.lane_bits = lane_bits;
  s.table_size = code_bits == 8 ? 0 : static_cast<uint8_t>(1U << code_bits);
  s.ring = 32;
  s.values = 16;
  s.lanes = lanes;
  s.deadline_us = 20000;
  s.timeout_ms = 60000;
  // Not linear, and over 255 where lanes allow it.
  for (uint16_t i = 0; i < s.table_size; ++i) {
    s.table[i] = static_cast<uint16_t>(lane_bits == 8 ? (i * i) % 61 : 300 + 33 * i * i);
  }
  return s;
}

}  // namespace laconic::test
