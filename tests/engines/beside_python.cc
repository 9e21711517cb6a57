// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A rank of C++ over Gloo in a job whose other ranks are Python's: started by
// python/tests/test_session.py. Prints the mean of each step, or the message.
//
//   beside_python RANK WORLD RENDEZVOUS SPEC STEPS
#include <cstdio>
#include <string>
#include <vector>

#include "laconic/engine/gloo.h"
#include "laconic/session.h"

int main(int argc, char** argv) {
  if (argc != 6) return 2;
  const auto rank = static_cast<uint32_t>(std::stoul(argv[1]));
  const auto fail = [](const laconic::Error& error) {
    std::printf("error %s\n", error.message.c_str());
    return 0;
  };
  auto engine = laconic::GlooEngine::create({.rank = rank,
                                             .world = static_cast<uint32_t>(std::stoul(argv[2])),
                                             .rendezvous = argv[3],
                                             .timeout = std::chrono::seconds(30)});
  if (!engine) return fail(engine.error());
  auto session = laconic::Session::create(argv[4], {{"w", 64, 200}, {"b", 200, 1}}, **engine,
                                          {.timeout = std::chrono::seconds(30)});
  if (!session) return fail(session.error());
  std::vector<float> gradient(65 * 200);
  for (uint64_t step = 0; step < std::stoul(argv[5]); ++step) {
    std::fill(gradient.begin(), gradient.end(), static_cast<float>(rank + 1));
    if (auto done = (*session)->average(step, gradient); !done) return fail(done.error());
    std::printf("mean %g %g\n", static_cast<double>(gradient.front()),
                static_cast<double>(gradient.back()));
  }
  return 0;
}
