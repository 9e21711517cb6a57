/* Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
 *
 * What the server shares with its program in the kernel (io/xdp): slots, the ring they are in, and
 * what the program has to know about a job. C99 as well as C++, no libc. Numbers are the machine's;
 * addresses and ports are as on the wire. docs/decisions/0037 says who may write what, and when. */
#ifndef LACONIC_AGGREGATION_SHARED_H
#define LACONIC_AGGREGATION_SHARED_H

#include "aggregation/protocol/siphash.h"

typedef __UINT8_TYPE__ laconic_u8;
typedef __UINT16_TYPE__ laconic_u16;
typedef __UINT32_TYPE__ laconic_u32;
typedef __UINT64_TYPE__ laconic_u64;

enum {
  LACONIC_MAX_WORKERS = 64,
  LACONIC_KERNEL_JOBS = 64,
  /* Bytes of a sum: with all headers and the kernel's own data of a frame, within a page. */
  LACONIC_KERNEL_SUM = 2048,
};

enum {
  LACONIC_SLOT_UNUSED,
  LACONIC_SLOT_OPEN,
  LACONIC_SLOT_FETCHING,
  LACONIC_SLOT_CLOSED,
};

struct laconic_slot {
  laconic_u64 number;
  laconic_u64 bitmap;  /* contributors */
  laconic_u64 passed;  /* number + 1 once closed or fetched: one word, written atomically */
  laconic_u64 holders; /* fetching: workers that have it */
  laconic_u64 since;   /* open: the first contribution; fetching: when it was asked for */
  laconic_u32 settings;
  laconic_u32 length; /* bytes of the sum; 0 while nothing was added */
  laconic_u16 norm;
  laconic_u16 before, behind; /* in the list of open slots */
  laconic_u8 flags;
  laconic_u8 added;
  laconic_u8 state;
};

/* All of them only grow. */
struct laconic_ring {
  laconic_u64 floor;  /* all workers have all results below it */
  laconic_u64 front;  /* the lowest sum that is not closed, or less */
  laconic_u64 opened; /* above all sums that were ever opened */
  laconic_u64 acks[LACONIC_MAX_WORKERS];
};

/* `slot` and `sum` belong to who holds the lock. */
struct laconic_kernel_slot {
  laconic_u64 lock;  /* 0: free */
  laconic_u64 asked; /* workers that the program has sent the closed sum to a second time */
  struct laconic_slot slot;
  laconic_u64 sum[LACONIC_KERNEL_SUM / 8];
};

struct laconic_kernel_member {
  laconic_u64 heard; /* last datagram with a right tag, CLOCK_MONOTONIC */
  laconic_u32 ip;
  laconic_u16 port;
  /* Learned by the program from the first datagram with a valid tag. */
  laconic_u8 mac[6];
  laconic_u8 host_mac[6]; /* to which it sends */
  laconic_u32 ifindex;
  laconic_u32 placed;
};

/* Datagrams of the job that went no further than the program. */
struct laconic_kernel_counts {
  laconic_u64 datagrams; /* all with a right tag */
  laconic_u64 duplicates;
  laconic_u64 stored; /* results sent again */
  laconic_u64 closed;
  laconic_u64 forged; /* wrong tags */
};

struct laconic_kernel_job {
  laconic_u64 epoch; /* 0: the entry is free */
  laconic_u64 open;  /* the program may add and answer; else all goes up */
  struct laconic_sip_key key;
  laconic_u32 id;
  laconic_u32 first_slot, slots;
  laconic_u32 lanes;
  laconic_u32 ip; /* the server's */
  laconic_u16 port;
  laconic_u8 world;
  laconic_u8 code_bits, lane_bits;
  laconic_u32 placed;  /* members */
  laconic_u64 placing; /* a lock */
  struct laconic_kernel_counts counts;
  struct laconic_ring ring;
  struct laconic_kernel_member members[LACONIC_MAX_WORKERS];
  /* Two lanes for each two codes of 2 to 4 bits, the first one in the lower half. */
  laconic_u32 pairs[256];
};

#endif /* LACONIC_AGGREGATION_SHARED_H */
