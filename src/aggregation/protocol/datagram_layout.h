/* Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
 *
 * Where the fields of a datagram's header are, and what a program in the kernel has to know of
 * them: docs/format/DATAGRAM.md sections 2 and 3. C99 as well as C++. */
#ifndef LACONIC_AGGREGATION_DATAGRAM_LAYOUT_H
#define LACONIC_AGGREGATION_DATAGRAM_LAYOUT_H

enum {
  LACONIC_DATAGRAM_MAGIC = 0x444C, /* "LD" */
  LACONIC_DATAGRAM_VERSION = 1,
  LACONIC_UP_BYTES = 32,
  LACONIC_DOWN_BYTES = 40,
};

enum {
  LACONIC_TYPE_DATA = 6,
  LACONIC_TYPE_ACK = 8,
  LACONIC_TYPE_RESULT = 11,
};

enum {
  LACONIC_FLAG_EMPTY = 1,
  LACONIC_FLAG_TROUBLE = 2,
  LACONIC_FLAG_VALUES = 4,
  LACONIC_FLAG_FIRST = 8,
  LACONIC_FLAG_FULL = 16,
  LACONIC_FLAG_GROUP = 64,
  LACONIC_FLAG_TRY = 128,
  LACONIC_SUM_FLAGS = LACONIC_FLAG_TROUBLE | LACONIC_FLAG_FIRST, /* OR-ed into the result */
};

/* Both headers begin in the same way. */
enum {
  LACONIC_AT_MAGIC = 0,
  LACONIC_AT_TYPE = 2, /* version in the upper four bits */
  LACONIC_AT_FLAGS = 3,
  LACONIC_AT_JOB = 4,
  LACONIC_AT_GRANULE = 8,
  LACONIC_AT_SETTINGS = 12,
  LACONIC_AT_EPOCH = 16,
  LACONIC_AT_AHEAD = 18,
  LACONIC_AT_NORM = 20,
  LACONIC_AT_WORKER = 22, /* up */
  LACONIC_AT_ZERO = 23,
  LACONIC_AT_UP_TAG = 24,
  LACONIC_AT_ADDED = 22, /* down */
  LACONIC_AT_DIVISOR = 23,
  LACONIC_AT_BITMAP = 24,
  LACONIC_AT_DOWN_TAG = 32,
};

#endif /* LACONIC_AGGREGATION_DATAGRAM_LAYOUT_H */
