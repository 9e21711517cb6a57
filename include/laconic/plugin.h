/* Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
 *
 * An engine in a library of its own, opened at run time: liblaconic_mpi_openmpi.so,
 * liblaconic_mpi_mpich.so, liblaconic_gloo.so. They are built where the engine's own library is;
 * what opens one (the command, the Python package) needs nothing of it. docs/guide/engines.md.
 *
 * The rules of laconic.h hold: codes, null pointers, structs that begin with struct_size. Errors
 * have no place of their own here: who calls lends `message` with `room` bytes (may be null and 0),
 * and gets a text, cut to fit, NUL-terminated; "" after success. An engine is used by one thread
 * at a time. */
#ifndef LACONIC_PLUGIN_H_
#define LACONIC_PLUGIN_H_

#include "laconic/laconic.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Raised with every change that an older caller would not survive. */
#define LACONIC_PLUGIN_VERSION 1

typedef struct laconic_engine laconic_engine;

typedef struct laconic_engine_options {
  uint32_t struct_size;
  uint32_t reserved;
  double timeout; /* seconds that ranks wait for each other to come; 0: 30 minutes */
  /* The rest is for engines that no launcher tells. MPI takes none of it, and refuses a world that
   * is not the launcher's. */
  uint32_t rank, world; /* world 0: as the launcher says */
  /* NUL-terminated: "file:FOLDER", empty and seen by all, or "tcp:HOST:PORT": rank 0 listens */
  const char* rendezvous;
  /* NUL-terminated: the network to use, by its name; null: that of this host's name */
  const char* interface_;
} laconic_engine_options;

typedef struct laconic_engine_info {
  uint32_t struct_size;
  uint32_t rank, world;
  uint32_t sums;        /* types that it adds, bits by LACONIC_F32, _F16, _BF16, _I32 */
  uint32_t short_sends; /* 1: a rank may send less than the receiver has room for */
  uint32_t reserved;
} laconic_engine_info;

typedef struct laconic_plugin {
  uint32_t struct_size;
  uint32_t version;    /* LACONIC_PLUGIN_VERSION */
  const char* engine;  /* "mpi", "gloo" */
  const char* library; /* name and version of what it stands on, "Open MPI 4.1.4" */

  /* All ranks together. */
  int32_t (*open)(const laconic_engine_options* options, laconic_engine** out, char* message,
                  uint64_t room);
  /* After a failure memory of its steps may be used until here; MPI may use it as long as the
   * process lives. */
  void (*close)(laconic_engine* engine);
  int32_t (*describe)(const laconic_engine* engine, laconic_engine_info* out);
  /* Begins a batch of `count` steps (at most LACONIC_MAX_BATCH), `step_size` bytes apart. Up to 16
   * batches may have been started and not waited for; all ranks start the same ones in the same
   * order. What the steps point to, their lists included, has to live until `wait` has returned
   * 0. */
  int32_t (*start)(laconic_engine* engine, const laconic_step* steps, uint32_t step_size,
                   uint32_t count, uint64_t* ticket, char* message, uint64_t room);
  /* Returns when the batch is complete, or has failed, or after `timeout` seconds (timed_out: the
   * engine is of no use any more). Once for each ticket. */
  int32_t (*wait)(laconic_engine* engine, uint64_t ticket, double timeout, char* message,
                  uint64_t room);
} laconic_plugin;

/* The one symbol of a plug-in. Lives as long as the library is open. */
#if defined(__GNUC__)
__attribute__((visibility("default")))
#endif
const laconic_plugin*
laconic_plugin_v1(void);

#ifdef __cplusplus
}
#endif

#endif /* LACONIC_PLUGIN_H_ */
