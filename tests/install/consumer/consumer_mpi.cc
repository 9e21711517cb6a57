// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A C++ program over MPI against the installed package: two ranks average 1 and 3.
#include <laconic/engine/mpi_nodes.h>
#include <laconic/session.h>

#include <cstdio>
#include <vector>

int main(int argc, char** argv) {
  laconic::MpiNodes nodes(&argc, &argv);  // of ranks of one host: one level
  laconic::Engine& engine = nodes.across();
  laconic::SessionOptions options;
  options.inside = nodes.inside();
  auto session = laconic::Session::create("3lc", {{"w", 100, 100}}, engine, options);
  std::vector<float> gradient(10000, engine.rank() == 0 ? 1.0F : 3.0F);
  const bool fine =
      engine.world() == 2 && session && (*session)->average(0, gradient) && gradient[9999] == 2.0F;
  if (engine.rank() == 0)
    std::printf("C++ over MPI: the mean %s\n", fine ? "is right" : "is wrong");
  return fine ? 0 : 1;
}
