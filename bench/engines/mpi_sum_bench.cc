// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// `none` by native_sum over MpiEngine next to MPI_Allreduce. Prints JSON.
//
//   mpirun -n 2 mpi_sum_bench_openmpi [ITERATIONS MIB...]
//   laconic lab --hosts 2 --per-host 2 --rate 1gbit --launcher --
//       mpirun -n 4 mpi_sum_bench_openmpi nodes [ITERATIONS MIB...]          (one command)
//
// `nodes`: in two levels, by MpiNodes.
#include <cstring>
#include <optional>

#include "laconic/engine/mpi_nodes.h"
#include "sum_bench.h"

int main(int argc, char** argv) {
  std::optional<laconic::MpiNodes> nodes;
  const bool two_levels = argc > 1 && std::strcmp(argv[1], "nodes") == 0;
  if (two_levels) {
    nodes.emplace(&argc, &argv);
    if (!nodes->why().empty())
      return std::fprintf(stderr, "no nodes: %s\n", nodes->why().c_str()), 1;
  }
  laconic::MpiEngine engine(&argc, &argv);
  laconic::bench::SumBench bench;
  if (nodes) bench.across = &nodes->across(), bench.inside = nodes->inside();
  bench.engine = "mpi";
  bench.library = laconic::MpiEngine::library();
  bench.ranks = &engine;
  bench.own = [](std::span<float> x) {
    MPI_Allreduce(MPI_IN_PLACE, x.data(), static_cast<int>(x.size()), MPI_FLOAT, MPI_SUM,
                  MPI_COMM_WORLD);
  };
  const int first = two_levels ? 2 : 1;
  laconic::bench::read_sizes(bench, {argv + first, static_cast<size_t>(argc - first)});
  const int status = laconic::bench::run(bench);
  if (status != 0) MPI_Abort(MPI_COMM_WORLD, status);
  return status;
}
