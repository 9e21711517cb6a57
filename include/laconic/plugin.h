/* Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
 *
 * An engine in a separate library, opened at run time: liblaconic_mpi_openmpi.so,
 * liblaconic_mpi_mpich.so, liblaconic_gloo.so. A plug-in is built with the engine's own library;
 * the program that opens it (the command, the Python package) does not need that library.
 * docs/guide/engines.md.
 *
 * The rules of laconic.h apply: codes, null pointers, structs that begin with struct_size. For
 * errors the caller passes `message`, a buffer of `room` bytes (may be null and 0), and gets a
 * text, truncated to fit, NUL-terminated; "" after success. An engine is used from one thread at
 * a time. */
#ifndef LACONIC_PLUGIN_H_
#define LACONIC_PLUGIN_H_

#include "laconic/laconic.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Increased with every incompatible change. */
#define LACONIC_PLUGIN_VERSION 1

typedef struct laconic_engine laconic_engine;

typedef struct laconic_engine_options {
  uint32_t struct_size;
  uint32_t reserved;
  double timeout; /* timeout for ranks to join, in seconds; 0: 30 minutes */
  /* The remaining fields are for engines without a launcher. MPI ignores them, and rejects a
   * world that differs from the launcher's. */
  uint32_t rank, world; /* world 0: from the launcher */
  /* NUL-terminated: "file:FOLDER", an empty shared folder, or "tcp:HOST:PORT" of rank 0 */
  const char* rendezvous;
  /* NUL-terminated: name of the network interface; null: that of this host's name */
  const char* interface_;
} laconic_engine_options;

typedef struct laconic_engine_info {
  uint32_t struct_size;
  uint32_t rank, world;
  uint32_t sums;        /* types that it adds, a bit per LACONIC_F32, _F16, _BF16, _I32 */
  uint32_t short_sends; /* 1: a rank may send fewer bytes than the receiver's buffer holds */
  uint32_t reserved;
} laconic_engine_info;

typedef struct laconic_plugin {
  uint32_t struct_size;
  uint32_t version;    /* LACONIC_PLUGIN_VERSION */
  const char* engine;  /* "mpi", "gloo" */
  const char* library; /* name and version of its library, "Open MPI 4.1.4" */

  /* Collective. */
  int32_t (*open)(const laconic_engine_options* options, laconic_engine** out, char* message,
                  uint64_t room);
  /* After a failure the engine may use memory of its steps until this returns; MPI may use it as
   * long as the process lives. */
  void (*close)(laconic_engine* engine);
  int32_t (*describe)(const laconic_engine* engine, laconic_engine_info* out);
  /* Starts a batch of `count` steps (at most LACONIC_MAX_BATCH), `step_size` bytes apart. Up to
   * 16 batches may be started and not waited for; all ranks start the same batches in the same
   * order. Memory that the steps point to, including their lists, must stay valid until `wait`
   * has returned 0. */
  int32_t (*start)(laconic_engine* engine, const laconic_step* steps, uint32_t step_size,
                   uint32_t count, uint64_t* ticket, char* message, uint64_t room);
  /* Returns when the batch has completed or failed, or after `timeout` seconds (timed_out: the
   * engine can no longer be used). Called once per ticket. */
  int32_t (*wait)(laconic_engine* engine, uint64_t ticket, double timeout, char* message,
                  uint64_t room);
} laconic_plugin;

/* The only symbol of a plug-in. Valid as long as the library is open. */
#if defined(__GNUC__)
__attribute__((visibility("default")))
#endif
const laconic_plugin*
laconic_plugin_v1(void);

#ifdef __cplusplus
}
#endif

#endif /* LACONIC_PLUGIN_H_ */
