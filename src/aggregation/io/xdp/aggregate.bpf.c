/* Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
 *
 * The slot machine in the kernel, for the datagrams that make up nearly all of a job: codes, and
 * acks, of jobs that wait for all their workers. What it does not know it hands to the process,
 * which works on the same slots (aggregation/server/shared.h, docs/decisions/0037). */
#include <linux/bpf.h>
/* Included after the types that they use. */
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/udp.h>

#include "aggregation/server/shared.h"
#include "aggregation/protocol/datagram_layout.h"

typedef laconic_u8 u8;
typedef laconic_u16 u16;
typedef laconic_u32 u32;
typedef laconic_u64 u64;

enum {
  LACONIC_AT_DATAGRAM = sizeof(struct ethhdr) + sizeof(struct iphdr) + sizeof(struct udphdr),
  LACONIC_LOCK_TRIES = 128,
  LACONIC_RAISE_TRIES = 32,
  LACONIC_FRONT_STEPS = 64,
};

struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, LACONIC_KERNEL_JOBS);
  __type(key, u32);
  __type(value, u32);
} laconic_ids SEC(".maps"); /* a job's id: its place in laconic_jobs */

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(map_flags, BPF_F_MMAPABLE);
  __uint(max_entries, LACONIC_KERNEL_JOBS);
  __type(key, u32);
  __type(value, struct laconic_kernel_job);
} laconic_jobs SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(map_flags, BPF_F_MMAPABLE);
  __uint(max_entries, 1); /* the loader knows how many */
  __type(key, u32);
  __type(value, struct laconic_kernel_slot);
} laconic_slots SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_DEVMAP_HASH);
  __uint(max_entries, 256);
  __type(key, u32);
  __type(value, struct bpf_devmap_val);
} laconic_ports SEC(".maps"); /* by the interface's index */

char _license[] SEC("license") = "Apache-2.0";

/* The parsed header of a job's datagram. */
struct seen {
  u64 number, ack;
  u64 epoch; /* of the job when it was looked up */
  u32 granule, settings, payload;
  u32 ahead;
  u16 norm;
  u8 type, flags, worker;
};

/* ---- words that several processors write ---- */

static __always_inline u64 look(const u64* at) { return *(volatile const u64*)at; }

static __always_inline int lock(u64* at) {
  for (int i = 0; i < LACONIC_LOCK_TRIES; ++i) {
    if (__sync_val_compare_and_swap(at, 0, 1) == 0) return 1;
  }
  return 0;
}

static __always_inline void unlock(u64* at) { __sync_lock_test_and_set(at, 0); }

static __always_inline void count(u64* at) { __sync_fetch_and_add(at, 1); }

static __noinline int raise(u64* at, u64 to) {
  if (!at) return 0;
  for (int i = 0; i < LACONIC_RAISE_TRIES; ++i) {
    const u64 old = look(at);
    if (old >= to || __sync_val_compare_and_swap(at, old, to) == old) return 0;
  }
  return 0;
}

/* ---- the ring ---- */

static __always_inline struct laconic_kernel_slot* slot_of(const struct laconic_kernel_job* job,
                                                           u64 number) {
  if (job->slots == 0) return 0;
  const u32 index = job->first_slot + (u32)(number % job->slots);
  return bpf_map_lookup_elem(&laconic_slots, &index);
}

static __noinline int raise_floor(struct laconic_kernel_job* job) {
  u64 lowest = ~0ULL;
  if (!job) return 0;
  for (u32 w = 0; w < LACONIC_MAX_WORKERS; ++w) {
    if (w >= job->world) break;
    const u64 ack = look(&job->ring.acks[w]);
    if (ack < lowest) lowest = ack;
  }
  return raise(&job->ring.floor, lowest);
}

static __noinline int raise_front(struct laconic_kernel_job* job) {
  if (!job) return 0;
  for (int i = 0; i < LACONIC_FRONT_STEPS; ++i) {
    const u64 front = look(&job->ring.front);
    const struct laconic_kernel_slot* slot = slot_of(job, front);
    if (!slot || look(&slot->slot.passed) != front + 1) break;
    __sync_val_compare_and_swap(&job->ring.front, front, front + 1);
  }
  return 0;
}

/* ---- sums ---- */

/* The next 8 codes of BITS bits, most significant bit first, in the lower bits of a word. */
static __always_inline u32 codes_of(const u8* p, int bits) {
  u32 word = (u32)p[0] << 8 | p[1];
  if (bits > 2) word = word << 8 | p[2];
  if (bits > 3) word = word << 8 | p[3];
  return word;
}

static __always_inline u32 pair_of(const struct laconic_kernel_job* job, u32 word, int bits,
                                   int which) {
  return job->pairs[(word >> (2 * bits * (3 - which))) & ((1U << (2 * bits)) - 1)];
}

/* Adds BITS bytes from FROM, 8 codes, to 8 lanes. Lanes never overflow into their neighbours: that
 * is judged before a job begins. `keep` is 0 for the first contribution, else all ones. */
#define LACONIC_ADD(BITS, LANE_BITS)                                                           \
  static __noinline int add_##BITS##_##LANE_BITS(struct xdp_md* ctx,                           \
                                                 const struct laconic_kernel_job* job,         \
                                                 struct laconic_kernel_slot* slot, u64 keep) { \
    const u8* p = (const u8*)(long)ctx->data + LACONIC_AT_DATAGRAM + LACONIC_UP_BYTES;         \
    const u8* end = (const u8*)(long)ctx->data_end;                                            \
    for (u32 i = 0; i < LACONIC_KERNEL_SUM / (LANE_BITS); ++i, p += (BITS)) {                  \
      if (8 * i >= job->lanes) return 0;                                                       \
      if (p + (BITS) > end) return 1;                                                          \
      if ((LANE_BITS) == 8) {                                                                  \
        u64 lanes;                                                                             \
        if ((BITS) == 8) {                                                                     \
          lanes = laconic_sip_load(p);                                                         \
        } else {                                                                               \
          const u32 codes = codes_of(p, (BITS));                                               \
          lanes = (u64)pair_of(job, codes, (BITS)&7, 0) |                                      \
                  (u64)pair_of(job, codes, (BITS)&7, 1) << 16 |                                \
                  (u64)pair_of(job, codes, (BITS)&7, 2) << 32 |                                \
                  (u64)pair_of(job, codes, (BITS)&7, 3) << 48;                                 \
        }                                                                                      \
        slot->sum[i] = (slot->sum[i] & keep) + lanes;                                          \
      } else {                                                                                 \
        u64 low, high;                                                                         \
        if ((BITS) == 8) {                                                                     \
          low = (u64)p[0] | (u64)p[1] << 16 | (u64)p[2] << 32 | (u64)p[3] << 48;               \
          high = (u64)p[4] | (u64)p[5] << 16 | (u64)p[6] << 32 | (u64)p[7] << 48;              \
        } else {                                                                               \
          const u32 codes = codes_of(p, (BITS));                                               \
          low = (u64)pair_of(job, codes, (BITS)&7, 0) | (u64)pair_of(job, codes, (BITS)&7, 1)  \
                                                            << 32;                             \
          high = (u64)pair_of(job, codes, (BITS)&7, 2) | (u64)pair_of(job, codes, (BITS)&7, 3) \
                                                             << 32;                            \
        }                                                                                      \
        slot->sum[2 * i] = (slot->sum[2 * i] & keep) + low;                                    \
        slot->sum[2 * i + 1] = (slot->sum[2 * i + 1] & keep) + high;                           \
      }                                                                                        \
    }                                                                                          \
    return 0;                                                                                  \
  }

LACONIC_ADD(2, 8)
LACONIC_ADD(3, 8)
LACONIC_ADD(4, 8)
LACONIC_ADD(8, 8)
LACONIC_ADD(2, 16)
LACONIC_ADD(3, 16)
LACONIC_ADD(4, 16)
LACONIC_ADD(8, 16)

static __always_inline int add(struct xdp_md* ctx, const struct laconic_kernel_job* job,
                               struct laconic_kernel_slot* slot, u64 keep) {
  switch (job->code_bits + job->lane_bits) {
    case 2 + 8:
      return add_2_8(ctx, job, slot, keep);
    case 3 + 8:
      return add_3_8(ctx, job, slot, keep);
    case 4 + 8:
      return add_4_8(ctx, job, slot, keep);
    case 8 + 8:
      return add_8_8(ctx, job, slot, keep);
    default:
      return 1;
  }
}

static __always_inline int add_wide(struct xdp_md* ctx, const struct laconic_kernel_job* job,
                                    struct laconic_kernel_slot* slot, u64 keep) {
  switch (job->code_bits) {
    case 2:
      return add_2_16(ctx, job, slot, keep);
    case 3:
      return add_3_16(ctx, job, slot, keep);
    case 4:
      return add_4_16(ctx, job, slot, keep);
    case 8:
      return add_8_16(ctx, job, slot, keep);
    default:
      return 1;
  }
}

/* Turns the contribution in the frame, which is as long, into the result. */
static __noinline int write_result(struct xdp_md* ctx, const struct laconic_kernel_job* job,
                                   const struct laconic_kernel_slot* slot, const struct seen* s) {
  u8* p = (u8*)(long)ctx->data + LACONIC_AT_DATAGRAM;
  const u8* end = (const u8*)(long)ctx->data_end;
  if (p + LACONIC_DOWN_BYTES > end) return 1;
  const u64 floor = look(&job->ring.floor);
  const u64 ahead = s->number - floor;
  const u32 bytes = job->lanes * job->lane_bits / 8;
  u64 rest = slot->slot.bitmap, contributors = 0;
  for (int i = 0; i < LACONIC_MAX_WORKERS; ++i) contributors += rest >> i & 1;
  p[LACONIC_AT_TYPE] = LACONIC_DATAGRAM_VERSION << 4 | LACONIC_TYPE_RESULT;
  p[LACONIC_AT_FLAGS] = slot->slot.flags;
  *(u32*)(p + LACONIC_AT_GRANULE) = (u32)s->number;
  *(u32*)(p + LACONIC_AT_SETTINGS) = slot->slot.settings;
  *(u16*)(p + LACONIC_AT_AHEAD) = ahead > 0xFFFF ? 0xFFFF : (u16)ahead;
  *(u16*)(p + LACONIC_AT_NORM) = slot->slot.norm;
  p[LACONIC_AT_ADDED] = slot->slot.added;
  p[LACONIC_AT_DIVISOR] = (u8)contributors;
  *(u64*)(p + LACONIC_AT_BITMAP) = slot->slot.bitmap;
  *(u64*)(p + LACONIC_AT_DOWN_TAG) =
      laconic_sip_header(&job->key, p, LACONIC_AT_DOWN_TAG / 8, s->number >> 32 | (u64)bytes << 32);
  p += LACONIC_DOWN_BYTES;
  for (u32 i = 0; i < LACONIC_KERNEL_SUM / 8; ++i, p += 8) {
    if (8 * i >= bytes) return 0;
    if (p + 8 > end) return 1;
    *(u64*)p = slot->sum[i];
  }
  return 0;
}

/* ---- one datagram ---- */

/* Records the port of a worker. Results go to ports, so there may be one worker of a job per
 * port: with two, `placed` never reaches the world, and the process serves the job. */
static __noinline int place(struct xdp_md* ctx, struct laconic_kernel_job* job, u32 worker,
                            u64 epoch) {
  const struct ethhdr* eth = (const struct ethhdr*)(long)ctx->data;
  if (!job || worker >= LACONIC_MAX_WORKERS) return 0;
  if ((const u8*)(eth + 1) > (const u8*)(long)ctx->data_end || !lock(&job->placing)) return 0;
  struct laconic_kernel_member* member = &job->members[worker];
  int is_free = !member->placed && look(&job->epoch) == epoch;
  for (u32 w = 0; w < LACONIC_MAX_WORKERS; ++w) {
    if (w >= job->world) break;
    if (job->members[w].placed && job->members[w].ifindex == ctx->ingress_ifindex) is_free = 0;
  }
  if (is_free) {
    __builtin_memcpy(member->mac, eth->h_source, 6);
    __builtin_memcpy(member->host_mac, eth->h_dest, 6);
    member->ifindex = ctx->ingress_ifindex;
    __sync_lock_test_and_set(&member->placed, 1);
    __sync_fetch_and_add(&job->placed, 1);
  }
  unlock(&job->placing);
  return 0;
}

/* Whether all workers have a port, and this one is where it was. */
static __always_inline int is_in_place(struct xdp_md* ctx, struct laconic_kernel_job* job,
                                       u32 worker, u64 epoch) {
  struct laconic_kernel_member* member = &job->members[worker & (LACONIC_MAX_WORKERS - 1)];
  if (*(volatile u32*)&member->placed == 0) place(ctx, job, worker, epoch);
  const struct ethhdr* eth = (const struct ethhdr*)(long)ctx->data;
  if ((const u8*)(eth + 1) > (const u8*)(long)ctx->data_end) return 0;
  const u16* mine = (const u16*)eth->h_source;
  const u16* known = (const u16*)member->mac;
  return *(volatile u32*)&job->placed == job->world && member->ifindex == ctx->ingress_ifindex &&
         mine[0] == known[0] && mine[1] == known[1] && mine[2] == known[2];
}

/* The number with these low bits that is nearest to `near` (wire::nearest_number). */
static __always_inline u64 nearest(u32 low, u64 near) {
  const u32 distance = low - (u32)near;
  if (distance < 0x80000000U) return near + distance;
  const u64 number = near - (0U - distance);
  return number > near ? number + (1ULL << 32) : number;
}

/* Under the lock of the datagram's slot: only there the job is certainly still this one. */
static __always_inline int take(struct xdp_md* ctx, struct laconic_kernel_job* job,
                                struct laconic_kernel_slot* slot, const struct seen* s) {
  const u32 w = s->worker & (LACONIC_MAX_WORKERS - 1);
  const u64 bit = 1ULL << w;
  struct laconic_slot* at = &slot->slot;
  if (look(&job->epoch) != s->epoch || look(&job->open) == 0) return XDP_PASS;
  if (s->ack > look(&job->ring.front)) return XDP_PASS; /* wrong, or the front lags */
  job->members[w].heard = bpf_ktime_get_ns();
  if (s->ack > look(&job->ring.acks[w])) {
    raise(&job->ring.acks[w], s->ack);
    raise_floor(job); /* always: the last of several concurrent acks sees all of them */
  }
  if (s->type == LACONIC_TYPE_ACK || s->number < look(&job->ring.acks[w])) goto taken;
  if (s->number >= look(&job->ring.floor) + job->slots || at->number > s->number) return XDP_PASS;
  const int here = at->number == s->number && at->state != LACONIC_SLOT_UNUSED;
  const u32 bytes = job->lanes * job->lane_bits / 8;
  if (here && at->state == LACONIC_SLOT_FETCHING) return XDP_PASS;
  const int is_open = here && at->state == LACONIC_SLOT_OPEN;
  if (is_open && (at->bitmap & bit)) {
    count(&job->counts.duplicates);
    goto taken;
  }
  /* Falls back if the result cannot be written in place. */
  if ((s->flags & ~LACONIC_SUM_FLAGS) || s->payload != bytes + 8) return XDP_PASS;
  if (here && ((at->flags & (LACONIC_FLAG_VALUES | LACONIC_FLAG_EMPTY)) ||
               (at->length != 0 && at->length != bytes))) {
    return XDP_PASS;
  }
  if (here && !is_open) {
    /* A result that was lost twice is sent another way. */
    if ((slot->asked & bit) || write_result(ctx, job, slot, s)) return XDP_PASS;
    slot->asked |= bit;
    count(&job->counts.stored);
    count(&job->counts.datagrams);
    return (int)bpf_redirect_map(&laconic_ports, ctx->ingress_ifindex, XDP_DROP);
  }
  if (is_open && at->settings != s->settings) return XDP_PASS;
  if (!is_open) {
    at->number = s->number;
    at->bitmap = at->passed = at->holders = at->since = 0;
    at->settings = s->settings;
    at->length = 0;
    at->norm = 0;
    at->flags = at->added = 0;
    at->state = LACONIC_SLOT_OPEN;
    slot->asked = 0;
    raise(&job->ring.opened, s->number + 1);
  }
  /* A frame that ends early was found before, so nothing is half added. */
  const u64 keep = at->added ? ~0ULL : 0;
  if (job->lane_bits == 8 ? add(ctx, job, slot, keep) : add_wide(ctx, job, slot, keep)) {
    return XDP_PASS;
  }
  at->bitmap |= bit;
  at->length = bytes;
  at->added += 1;
  at->flags |= s->flags & LACONIC_SUM_FLAGS;
  if (s->norm > at->norm) at->norm = s->norm;
  if (at->bitmap != ~0ULL >> ((LACONIC_MAX_WORKERS - job->world) & (LACONIC_MAX_WORKERS - 1))) {
    goto taken;
  }
  at->state = LACONIC_SLOT_CLOSED;
  __sync_lock_test_and_set(&at->passed, s->number + 1);
  raise_front(job);
  count(&job->counts.closed);
  count(&job->counts.datagrams);
  if (write_result(ctx, job, slot, s)) return XDP_DROP; /* the workers ask again */
  return (int)bpf_redirect_map(&laconic_ports, 0, BPF_F_BROADCAST);
taken:
  count(&job->counts.datagrams);
  return XDP_DROP;
}

SEC("xdp")
int laconic_aggregate(struct xdp_md* ctx) {
  const u8* start = (const u8*)(long)ctx->data;
  const u8* end = (const u8*)(long)ctx->data_end;
  const struct ethhdr* eth = (const struct ethhdr*)start;
  const struct iphdr* ip = (const struct iphdr*)(eth + 1);
  const struct udphdr* udp = (const struct udphdr*)(ip + 1);
  const u8* p = start + LACONIC_AT_DATAGRAM;
  if (p + LACONIC_UP_BYTES > end) return XDP_PASS;
  if (eth->h_proto != bpf_htons(ETH_P_IP) || *(const u8*)ip != 0x45 ||
      ip->protocol != IPPROTO_UDP || (ip->frag_off & bpf_htons(0x3FFF)) != 0) {
    return XDP_PASS;
  }
  if (*(const u16*)p != LACONIC_DATAGRAM_MAGIC) return XDP_PASS;
  struct seen s = {};
  s.type = p[LACONIC_AT_TYPE];
  if (s.type != (LACONIC_DATAGRAM_VERSION << 4 | LACONIC_TYPE_DATA) &&
      s.type != (LACONIC_DATAGRAM_VERSION << 4 | LACONIC_TYPE_ACK)) {
    return XDP_PASS;
  }
  s.type &= 15;
  const u32 id = *(const u32*)(p + LACONIC_AT_JOB);
  const u32* index = bpf_map_lookup_elem(&laconic_ids, &id);
  if (!index) return XDP_PASS;
  struct laconic_kernel_job* job = bpf_map_lookup_elem(&laconic_jobs, index);
  if (!job) return XDP_PASS;
  s.epoch = look(&job->epoch);
  s.flags = p[LACONIC_AT_FLAGS];
  s.granule = *(const u32*)(p + LACONIC_AT_GRANULE);
  s.settings = *(const u32*)(p + LACONIC_AT_SETTINGS);
  s.ahead = *(const u16*)(p + LACONIC_AT_AHEAD);
  s.norm = *(const u16*)(p + LACONIC_AT_NORM);
  s.worker = p[LACONIC_AT_WORKER];
  if (!look(&job->open) || job->id != id || *(const u16*)(p + LACONIC_AT_EPOCH) != (u16)s.epoch ||
      p[LACONIC_AT_ZERO] != 0 || s.worker >= job->world || s.worker >= LACONIC_MAX_WORKERS) {
    return XDP_PASS;
  }
  const u32 size = bpf_ntohs(udp->len);
  if (size < sizeof(*udp) + LACONIC_UP_BYTES || bpf_ntohs(ip->tot_len) != sizeof(*ip) + size ||
      (u32)(end - (const u8*)udp) < size) {
    return XDP_PASS;
  }
  s.payload = size - sizeof(*udp) - LACONIC_UP_BYTES;
  const u8 allowed = s.type == LACONIC_TYPE_DATA
                         ? LACONIC_FLAG_EMPTY | LACONIC_FLAG_VALUES | LACONIC_SUM_FLAGS
                         : 0;
  const int has_payload = s.type == LACONIC_TYPE_DATA && !(s.flags & LACONIC_FLAG_EMPTY);
  if ((s.flags & ~allowed) || (s.payload != 0) != has_payload ||
      (s.type != LACONIC_TYPE_DATA && s.norm != 0)) {
    return XDP_PASS;
  }
  struct laconic_kernel_member* member = &job->members[s.worker];
  if (ip->daddr != job->ip || udp->dest != job->port || ip->saddr != member->ip ||
      udp->source != member->port) {
    return XDP_PASS;
  }
  s.number = nearest(s.granule, look(&job->ring.floor));
  const u64 tag = laconic_sip_header(&job->key, p, LACONIC_AT_UP_TAG / 8,
                                     s.number >> 32 | (u64)s.payload << 32);
  if (*(const u64*)(p + LACONIC_AT_UP_TAG) != tag) {
    count(&job->counts.forged);
    return XDP_DROP;
  }
  if (s.ahead > s.number) return XDP_PASS;
  s.ack = s.number - s.ahead;
  if (!is_in_place(ctx, job, s.worker, s.epoch)) return XDP_PASS;
  struct laconic_kernel_slot* slot = slot_of(job, s.number);
  if (!slot || !lock(&slot->lock)) return XDP_PASS;
  const int verdict = take(ctx, job, slot, &s);
  unlock(&slot->lock);
  return verdict;
}

/* A copy of a result that leaves a port: to the worker on it. */
SEC("xdp/devmap")
int laconic_address(struct xdp_md* ctx) {
  u8* start = (u8*)(long)ctx->data;
  const u8* end = (const u8*)(long)ctx->data_end;
  struct ethhdr* eth = (struct ethhdr*)start;
  struct iphdr* ip = (struct iphdr*)(eth + 1);
  struct udphdr* udp = (struct udphdr*)(ip + 1);
  const u8* p = start + LACONIC_AT_DATAGRAM;
  if (p + LACONIC_DOWN_BYTES > end) return XDP_DROP;
  const u32 id = *(const u32*)(p + LACONIC_AT_JOB);
  const u32* index = bpf_map_lookup_elem(&laconic_ids, &id);
  if (!index) return XDP_DROP;
  const struct laconic_kernel_job* job = bpf_map_lookup_elem(&laconic_jobs, index);
  if (!job) return XDP_DROP;
  for (u32 w = 0; w < LACONIC_MAX_WORKERS; ++w) {
    if (w >= job->world) break;
    const struct laconic_kernel_member* member = &job->members[w];
    if (member->ifindex != ctx->egress_ifindex) continue;
    __builtin_memcpy(eth->h_dest, member->mac, 6);
    __builtin_memcpy(eth->h_source, member->host_mac, 6);
    ip->tos = 0;
    ip->id = 0;
    ip->frag_off = bpf_htons(0x4000);
    ip->ttl = 64;
    ip->check = 0;
    ip->saddr = job->ip;
    ip->daddr = member->ip;
    u32 sum = 0;
    const u16* words = (const u16*)ip;
    for (int i = 0; i < 10; ++i) sum += words[i];
    sum = (sum & 0xFFFF) + (sum >> 16);
    sum = (sum & 0xFFFF) + (sum >> 16);
    ip->check = (u16)~sum;
    udp->source = job->port;
    udp->dest = member->port;
    udp->check = 0;
    return XDP_PASS;
  }
  return XDP_DROP;
}
