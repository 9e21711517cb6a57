/* Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
 *
 * SipHash-2-4 with 64 bits of output (Aumasson and Bernstein, INDOCRYPT 2012), written from the
 * paper. One source for the library and for programs of the kernel: C99 as well as C++, no include,
 * no libc. With a constant number of words all loops unroll, which the kernel's verifier wants. */
#ifndef LACONIC_AGGREGATION_SIPHASH_H
#define LACONIC_AGGREGATION_SIPHASH_H

typedef __UINT8_TYPE__ laconic_sip_u8;
typedef __UINT64_TYPE__ laconic_sip_u64;

#define LACONIC_SIP_FN static inline __attribute__((always_inline, unused))

struct laconic_sip_key {
  laconic_sip_u64 k0, k1;
};

struct laconic_sip {
  laconic_sip_u64 v0, v1, v2, v3;
};

LACONIC_SIP_FN laconic_sip_u64 laconic_sip_rotl(laconic_sip_u64 x, int by) {
  return (x << by) | (x >> (64 - by));
}

LACONIC_SIP_FN void laconic_sip_round(struct laconic_sip* s) {
  s->v0 += s->v1;
  s->v1 = laconic_sip_rotl(s->v1, 13) ^ s->v0;
  s->v0 = laconic_sip_rotl(s->v0, 32);
  s->v2 += s->v3;
  s->v3 = laconic_sip_rotl(s->v3, 16) ^ s->v2;
  s->v0 += s->v3;
  s->v3 = laconic_sip_rotl(s->v3, 21) ^ s->v0;
  s->v2 += s->v1;
  s->v1 = laconic_sip_rotl(s->v1, 17) ^ s->v2;
  s->v2 = laconic_sip_rotl(s->v2, 32);
}

LACONIC_SIP_FN struct laconic_sip laconic_sip_begin(const struct laconic_sip_key* key) {
  struct laconic_sip s;
  s.v0 = key->k0 ^ 0x736f6d6570736575ULL;
  s.v1 = key->k1 ^ 0x646f72616e646f6dULL;
  s.v2 = key->k0 ^ 0x6c7967656e657261ULL;
  s.v3 = key->k1 ^ 0x7465646279746573ULL;
  return s;
}

LACONIC_SIP_FN void laconic_sip_word(struct laconic_sip* s, laconic_sip_u64 word) {
  s->v3 ^= word;
  laconic_sip_round(s);
  laconic_sip_round(s);
  s->v0 ^= word;
}

/* 8 bytes, little-endian, at any alignment. */
LACONIC_SIP_FN laconic_sip_u64 laconic_sip_load(const laconic_sip_u8* p) {
  laconic_sip_u64 word;
  __builtin_memcpy(&word, p, sizeof(word));
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
  word = __builtin_bswap64(word);
#endif
  return word;
}

/* `count` words from `p`. */
LACONIC_SIP_FN void laconic_sip_words(struct laconic_sip* s, const laconic_sip_u8* p, int count) {
  for (int i = 0; i < count; ++i) laconic_sip_word(s, laconic_sip_load(p + 8 * i));
}

/* The end of a message of `bytes` bytes, whose bytes % 8 last ones are the low ones of `tail`. */
LACONIC_SIP_FN laconic_sip_u64 laconic_sip_end(struct laconic_sip* s, laconic_sip_u64 bytes,
                                               laconic_sip_u64 tail) {
  laconic_sip_word(s, (bytes << 56) | tail);
  s->v2 ^= 0xff;
  laconic_sip_round(s);
  laconic_sip_round(s);
  laconic_sip_round(s);
  laconic_sip_round(s);
  return s->v0 ^ s->v1 ^ s->v2 ^ s->v3;
}

/* The end of a message whose first `before` bytes, a multiple of 8, have been taken already: takes
 * the `size` bytes from `p`. Not for the kernel's programs: the loop has no constant bound. */
LACONIC_SIP_FN laconic_sip_u64 laconic_sip_rest(struct laconic_sip* s, laconic_sip_u64 before,
                                                const laconic_sip_u8* p, laconic_sip_u64 size) {
  laconic_sip_u64 tail = 0;
  for (; size >= 8; size -= 8, p += 8, before += 8) laconic_sip_word(s, laconic_sip_load(p));
  for (laconic_sip_u64 i = 0; i < size; ++i) tail |= (laconic_sip_u64)p[i] << (8 * i);
  return laconic_sip_end(s, before + size, tail);
}

LACONIC_SIP_FN laconic_sip_u64 laconic_siphash(const struct laconic_sip_key* key,
                                               const laconic_sip_u8* p, laconic_sip_u64 size) {
  struct laconic_sip s = laconic_sip_begin(key);
  return laconic_sip_rest(&s, 0, p, size);
}

/* The tag of a header: over its `words` words of 8 bytes and one that does not travel, the upper
 * half of the granule's number and, above it, the payload's length. */
LACONIC_SIP_FN laconic_sip_u64 laconic_sip_header(const struct laconic_sip_key* key,
                                                  const laconic_sip_u8* header, int words,
                                                  laconic_sip_u64 hidden) {
  struct laconic_sip s = laconic_sip_begin(key);
  laconic_sip_words(&s, header, words);
  laconic_sip_word(&s, hidden);
  return laconic_sip_end(&s, 8 * (laconic_sip_u64)words + 8, 0);
}

#endif /* LACONIC_AGGREGATION_SIPHASH_H */
