// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// mpi_send BYTES FOLDER: rank 0 sends BYTES to the last rank, which prints the seconds that this took.
// mpi_send wait: says "up" and waits to be killed.
#define _GNU_SOURCE
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// MPICH 4.0 over UCX hangs in MPI_Finalize when a rank is there before another one has stopped making
// progress (pmodels/mpich#6596). So all ranks have talked to each other, and wait for all outside of MPI.
static void meet(const char* folder, int rank, int size) {
  char path[4096], all[2 * size];
  MPI_Alltoall(MPI_IN_PLACE, 1, MPI_CHAR, memset(all, 0, size), 1, MPI_CHAR, MPI_COMM_WORLD);
  MPI_Barrier(MPI_COMM_WORLD);
  for (int peer = -1; peer < size; ++peer) {
    snprintf(path, sizeof path, "%s/%d", folder, peer < 0 ? rank : peer);
    if (peer < 0) fclose(fopen(path, "w"));
    while (access(path, F_OK) != 0) usleep(1000);
  }
}

int main(int argc, char** argv) {
  int rank, size, local;
  char host[64];
  MPI_Comm node;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node);
  MPI_Comm_size(node, &local);
  gethostname(host, sizeof host);
  if (strcmp(argv[1], "wait") == 0) {
    printf("up\n");
    fflush(stdout);
    for (;;) pause();
  }
  const int bytes = atoi(argv[1]);
  char* block = calloc(bytes, 1);
  MPI_Barrier(MPI_COMM_WORLD);
  cpu_set_t cores;
  sched_getaffinity(0, sizeof cores, &cores);
  int core = 0;
  while (!CPU_ISSET(core, &cores)) ++core;
  const double start = MPI_Wtime();
  if (rank == 0) MPI_Send(block, bytes, MPI_CHAR, size - 1, 0, MPI_COMM_WORLD);
  if (rank == size - 1) MPI_Recv(block, bytes, MPI_CHAR, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  printf("rank %d of %d on %s with %d, %d cores from %d: %f s\n", rank, size, host, local, CPU_COUNT(&cores), core,
         MPI_Wtime() - start);
  fflush(stdout);
  meet(argv[2], rank, size);
  MPI_Finalize();
  return 0;
}
