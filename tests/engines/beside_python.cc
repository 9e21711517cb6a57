// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A rank of C++ in a job whose other ranks are Python's: started by python/tests/test_session.py.
// Prints the mean of each step, or the message.
//
//   beside_python SPEC STEPS RANK WORLD RENDEZVOUS      over Gloo
//   beside_python_openmpi SPEC STEPS                    over MPI, which knows the rest
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "laconic/session.h"
#ifdef BESIDE_PYTHON_OVER_MPI
#include "laconic/engine/mpi.h"
#else
#include "laconic/engine/gloo.h"
#endif

namespace {

constexpr auto kTimeout = std::chrono::seconds(600);  // longer than the test waits

void train(laconic::Engine& engine, const char* spec, uint64_t steps) {
  const auto fail = [](const laconic::Error& error) {
    std::printf("error %s\n", error.message.c_str());
  };
  auto session = laconic::Session::create(spec, {{"w", 64, 200}, {"b", 200, 1}}, engine,
                                          {.timeout = kTimeout});
  if (!session) return fail(session.error());
  std::vector<float> gradient(65 * 200);
  for (uint64_t step = 0; step < steps; ++step) {
    std::fill(gradient.begin(), gradient.end(), static_cast<float>(engine.rank() + 1));
    if (auto done = (*session)->average(step, gradient); !done) return fail(done.error());
    std::printf("mean %g %g\n", static_cast<double>(gradient.front()),
                static_cast<double>(gradient.back()));
  }
}

}  // namespace

int main(int argc, char** argv) {
#ifdef BESIDE_PYTHON_OVER_MPI
  if (argc != 3) return 2;
  laconic::MpiEngine engine(&argc, &argv, {.timeout = kTimeout});
  train(engine, argv[1], std::stoul(argv[2]));
#else
  if (argc != 6) return 2;
  auto engine = laconic::GlooEngine::create({.rank = static_cast<uint32_t>(std::stoul(argv[3])),
                                             .world = static_cast<uint32_t>(std::stoul(argv[4])),
                                             .rendezvous = argv[5],
                                             .timeout = kTimeout});
  if (!engine) {
    std::printf("error %s\n", engine.error().message.c_str());
    return 0;
  }
  train(**engine, argv[1], std::stoul(argv[2]));
#endif
  return 0;
}
