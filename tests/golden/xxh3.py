# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""XXH3-64 in plain Python, after the specification in the xxHash repository (doc/xxhash_spec.md)."""

import struct

_M32 = (1 << 32) - 1
_M64 = (1 << 64) - 1
_P32 = (0, 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D)
_P64 = (
    0,
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)
_SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
    "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb"
    "170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)


def _u32(data, at):
    return struct.unpack_from("<I", data, at)[0]


def _u64(data, at):
    return struct.unpack_from("<Q", data, at)[0]


def _swap64(x):
    return int.from_bytes(x.to_bytes(8, "little"), "big")


def _rotl(x, bits):
    return (x << bits | x >> (64 - bits)) & _M64


def _fold(a, b):
    product = a * b
    return (product & _M64) ^ (product >> 64)


def _avalanche(h):
    h ^= h >> 37
    h = h * 0x165667919E3779F9 & _M64
    return h ^ h >> 32


def _avalanche64(h):
    h ^= h >> 33
    h = h * _P64[2] & _M64
    h ^= h >> 29
    h = h * _P64[3] & _M64
    return h ^ h >> 32


def _mix16(data, at, secret, seed):
    low = _u64(data, at) ^ (_u64(_SECRET, secret) + seed & _M64)
    high = _u64(data, at + 8) ^ (_u64(_SECRET, secret + 8) - seed & _M64)
    return _fold(low, high)


def _to_16(data, seed):
    n = len(data)
    if n > 8:
        flip_low = (_u64(_SECRET, 24) ^ _u64(_SECRET, 32)) + seed & _M64
        flip_high = (_u64(_SECRET, 40) ^ _u64(_SECRET, 48)) - seed & _M64
        low = _u64(data, 0) ^ flip_low
        high = _u64(data, n - 8) ^ flip_high
        return _avalanche(n + _swap64(low) + high + _fold(low, high) & _M64)
    if n > 3:
        swapped = int.from_bytes((seed & _M32).to_bytes(4, "little"), "big")
        flip = (_u64(_SECRET, 8) ^ _u64(_SECRET, 16)) - (seed ^ swapped << 32) & _M64
        h = (_u32(data, n - 4) + (_u32(data, 0) << 32)) ^ flip
        h ^= _rotl(h, 49) ^ _rotl(h, 24)
        h = h * 0x9FB21C651E98DF25 & _M64
        h ^= (h >> 35) + n
        h = h * 0x9FB21C651E98DF25 & _M64
        return h ^ h >> 28
    if n > 0:
        word = data[0] << 16 | data[n >> 1] << 24 | data[n - 1] | n << 8
        return _avalanche64(word ^ ((_u32(_SECRET, 0) ^ _u32(_SECRET, 4)) + seed & _M64))
    return _avalanche64(seed ^ _u64(_SECRET, 56) ^ _u64(_SECRET, 64))


def _to_128(data, seed):
    n = len(data)
    h = n * _P64[1]
    for i in reversed(range((n - 1) // 32 + 1)):
        h += _mix16(data, 16 * i, 32 * i, seed) + _mix16(data, n - 16 * (i + 1), 32 * i + 16, seed)
    return _avalanche(h & _M64)


def _to_240(data, seed):
    n = len(data)
    h = n * _P64[1] + sum(_mix16(data, 16 * i, 16 * i, seed) for i in range(8))
    h = _avalanche(h & _M64)
    h += sum(_mix16(data, 16 * i, 16 * (i - 8) + 3, seed) for i in range(8, n // 16))
    return _avalanche(h + _mix16(data, n - 16, 119, seed) & _M64)


def _seeded_secret(seed):
    words = struct.unpack("<24Q", _SECRET)
    return struct.pack("<24Q", *((w - seed if i % 2 else w + seed) & _M64 for i, w in enumerate(words)))


def _accumulate(lanes, data, at, secret, secret_at):
    words = struct.unpack_from("<8Q", data, at)
    keys = struct.unpack_from("<8Q", secret, secret_at)
    for i in range(8):
        key = words[i] ^ keys[i]
        lanes[i ^ 1] = lanes[i ^ 1] + words[i] & _M64
        lanes[i] = lanes[i] + (key & _M32) * (key >> 32) & _M64


def _scramble(lanes, secret):
    keys = struct.unpack_from("<8Q", secret, 128)
    for i in range(8):
        lanes[i] = (lanes[i] ^ lanes[i] >> 47 ^ keys[i]) * _P32[1] & _M64


def _long(data, seed):
    secret = _seeded_secret(seed)
    lanes = [_P32[3], _P64[1], _P64[2], _P64[3], _P64[4], _P32[2], _P64[5], _P32[1]]
    blocks, stripes = divmod((len(data) - 1) // 64, 16)
    for block in range(blocks):
        for i in range(16):
            _accumulate(lanes, data, 1024 * block + 64 * i, secret, 8 * i)
        _scramble(lanes, secret)
    for i in range(stripes):
        _accumulate(lanes, data, 1024 * blocks + 64 * i, secret, 8 * i)
    _accumulate(lanes, data, len(data) - 64, secret, 121)
    h = len(data) * _P64[1]
    for i in range(4):
        h += _fold(lanes[2 * i] ^ _u64(secret, 11 + 16 * i), lanes[2 * i + 1] ^ _u64(secret, 19 + 16 * i))
    return _avalanche(h & _M64)


def xxh3_64(data, seed=0):
    """The 64-bit XXH3 of bytes under a 64-bit seed."""
    data = bytes(data)
    if len(data) <= 16:
        return _to_16(data, seed)
    if len(data) <= 128:
        return _to_128(data, seed)
    if len(data) <= 240:
        return _to_240(data, seed)
    return _long(data, seed)
