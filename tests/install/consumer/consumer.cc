// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A C++ program against the installed package: every public header compiles, every codec's default
// spec is canonical, and ranks average.
#include <laconic/loopback.h>
#include <laconic/registry.h>
#include <laconic/session.h>
#include <laconic/spec.h>
#include <laconic/version.h>

#include <atomic>
#include <cstdio>
#include <thread>
#include <vector>

namespace {

/// The mean of 1 and 3 over two ranks that are threads.
int sessions_that_fail() {
  laconic::LoopbackHub hub(2);
  std::atomic<int> failed{0};
  {
    std::vector<std::jthread> ranks;
    for (uint32_t rank = 0; rank < 2; ++rank) {
      ranks.emplace_back([&, rank] {
        auto session = laconic::Session::create("3lc", {{"w", 100, 100}}, hub.engine(rank));
        std::vector<float> gradient(10000, rank == 0 ? 1.0F : 3.0F);
        if (!session || !(*session)->average(0, gradient) || gradient[9999] != 2.0F) ++failed;
      });
    }
  }
  return failed;
}

}  // namespace

int main() {
  int wrong = sessions_that_fail();
  for (const laconic::CodecTable* codec : laconic::all_codecs()) {
    const auto defaults = laconic::Spec::defaults(*codec);
    const auto parsed = laconic::Spec::parse(defaults.canonical());
    if (!parsed || parsed->hash() != defaults.hash()) ++wrong;
  }
  std::printf("C++: laconic %s, %zu codecs, %d things wrong\n", LACONIC_VERSION_STRING,
              laconic::all_codecs().size(), wrong);
  return laconic::all_codecs().empty() || wrong != 0 ? 1 : 0;
}
