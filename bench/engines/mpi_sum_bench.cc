// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// `none` by native_sum over MpiEngine next to MPI_Allreduce. Prints JSON.
//
//   mpirun -n 2 mpi_sum_bench_openmpi [ITERATIONS MIB...]
#include "laconic/engine/mpi.h"
#include "sum_bench.h"

int main(int argc, char** argv) {
  laconic::MpiEngine engine(&argc, &argv);
  laconic::bench::SumBench bench;
  bench.engine = "mpi";
  bench.library = laconic::MpiEngine::library();
  bench.ranks = &engine;
  bench.own = [](std::span<float> x) {
    MPI_Allreduce(MPI_IN_PLACE, x.data(), static_cast<int>(x.size()), MPI_FLOAT, MPI_SUM,
                  MPI_COMM_WORLD);
  };
  laconic::bench::read_sizes(bench, {argv + 1, static_cast<size_t>(argc - 1)});
  const int status = laconic::bench::run(bench);
  if (status != 0) MPI_Abort(MPI_COMM_WORLD, status);
  return status;
}
