#!/usr/bin/env python3
# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""A second decoder of stand-alone frames, in plain Python and written from docs/format/ alone.

It shares no code with the library, so what both decode to the same values is what the documents say. Speed is no aim.
usage: second_decoder.py FILE...      prints the header and the first values of each frame
"""

import math
import struct
import sys
from dataclasses import dataclass
from fractions import Fraction

from xxh3 import xxh3_64

# ---- numbers -------------------------------------------------------------------------------------------------------


def f32(x):
    """The nearest binary32 of a double (ties to even), as a Python float; infinity when it is too large."""
    try:
        return struct.unpack("<f", struct.pack("<f", x))[0]
    except OverflowError:
        return float("inf") if x > 0 else float("-inf")


def f32_array(data):
    return list(struct.unpack(f"<{len(data) // 4}f", data))


def upper_halves(data):
    """bfloat16s are the upper halves of floats."""
    return f32_array(b"".join(b"\0\0" + data[i : i + 2] for i in range(0, len(data), 2)))


def f32_bits(values):
    """Little-endian bytes; what the golden files hold."""
    return struct.pack(f"<{len(values)}f", *values)


# ---- errors --------------------------------------------------------------------------------------------------------


class FrameError(Exception):
    """`errc` is a name of ERRORS.md."""

    def __init__(self, errc, message=""):
        super().__init__(f"{errc}: {message}")
        self.errc = errc


def require(condition, errc, message=""):
    if not condition:
        raise FrameError(errc, message)


# ---- FRAME.md, sections 2 and 3 ------------------------------------------------------------------------------------

MAGIC = b"LACF"
FIXED = 98
LAYOUT = struct.Struct("<4sBBHQHBBIQQQQQQQQIIBB")  # up to and with the spec's length
assert LAYOUT.size == FIXED
DTYPES = ("f32", "f16", "bf16")


@dataclass
class Frame:
    zero: bool
    non_finite: bool
    codec: int
    payload_version: int
    dtype: str
    contributors: int
    count: int
    rows: int
    cols: int
    step: int
    seed: int
    parameter: int
    offset: int
    rank: int
    world: int
    hop: int
    spec: str
    payload: bytes


def parse_frame(data):
    """Rules 1 to 18, in their order."""
    data = bytes(data)
    require(data[:4] == MAGIC[: len(data)], "frame_magic")
    require(len(data) >= 5, "frame_truncated")
    require(data[4] == 1, "frame_version", f"{data[4]}")
    require(len(data) >= FIXED, "frame_truncated")
    (_, _, flags, header_bytes, checksum, codec, payload_version, dtype, contributors, count, rows, cols, step, seed,
     parameter, offset, payload_bytes, rank, world, hop, spec_length) = LAYOUT.unpack_from(data)
    require(spec_length >= 1, "frame_field", "spec length")
    require(header_bytes == (FIXED + spec_length + 7) // 8 * 8, "frame_field", "header_bytes")
    total = header_bytes + payload_bytes
    require(total < 1 << 64, "frame_field", "payload_bytes")
    require(len(data) >= total, "frame_truncated")
    require(len(data) <= total, "frame_extended")
    require(checksum == xxh3_64(data[16:], int.from_bytes(data[:8], "little")), "frame_checksum")
    require(flags < 4, "frame_field", "flags")
    require(not any(data[FIXED + spec_length : header_bytes]), "frame_field", "padding")
    require(flags != 3, "frame_field", "flags")
    require(flags == 0 or payload_bytes == 0, "frame_field", "payload_bytes")
    require(codec >= 1 and payload_version >= 1, "frame_field", "codec")
    require(dtype < len(DTYPES), "frame_field", "dtype")
    require(count <= 1 << 40 and rows * cols == count, "frame_count")
    require(offset + count < 1 << 64, "frame_field", "offset")
    require(world >= 1 and rank < world and 1 <= contributors <= world, "frame_field", "world, rank, contributors")
    spec = data[FIXED : FIXED + spec_length]
    require(all(0x21 <= c <= 0x7E for c in spec), "frame_field", "spec")
    return Frame(bool(flags & 1), bool(flags & 2), codec, payload_version, DTYPES[dtype], contributors, count, rows,
                 cols, step, seed, parameter, offset, rank, world, hop, spec.decode("ascii"), data[header_bytes:])


def parse_spec(text):
    """name[:key=value,...][+modifier...] to name and a dictionary. The text is canonical: defaults are left out."""
    text = text.split("+")[0] if "+" in text else text
    name, _, rest = text.partition(":")
    return name, dict(item.split("=", 1) for item in rest.split(",") if item)


# ---- codecs, each after its page in docs/format/codecs/ ------------------------------------------------------------

DECODERS = {}  # name -> (number, payload version, function of (frame, keys) that gives the values)
#: whose pages start without a base: -0 stays -0
COPIES = {"none", "fp16", "bf16", "int8", "onebit", "signsgd", "signum", "efsignsgd", "u8", "qsgd", "terngrad", "natural", "inceptionn", "sketchml",
          "thc"}


def codec(name, number, version=1):
    def register(function):
        DECODERS[name] = (number, version, function)
        return function

    return register


def well_formed(condition, message=""):
    require(condition, "payload_malformed", message)


def exactly(frame, size):
    well_formed(len(frame.payload) == size, f"{size} bytes expected, {len(frame.payload)} found")


def is_scale(x):
    """Finite, not negative, not -0."""
    return 0.0 <= x < float("inf") and struct.pack("<f", x) != b"\0\0\0\x80"


@codec("none", 1)
def decode_none(frame, keys):
    exactly(frame, 4 * frame.count)
    return f32_array(frame.payload)


@codec("fp16", 2)
def decode_fp16(frame, keys):
    exactly(frame, 2 * frame.count)
    return list(struct.unpack(f"<{frame.count}e", frame.payload))


@codec("bf16", 3)
def decode_bf16(frame, keys):
    exactly(frame, 2 * frame.count)
    return upper_halves(frame.payload)


INT8_LARGEST_SCALE = float.fromhex("0x1.020406p121")


@codec("int8", 8)
def decode_int8(frame, keys):
    block = int(keys.get("block", 256))
    blocks = -(-frame.count // block)
    exactly(frame, 4 * blocks + frame.count)
    scales = f32_array(frame.payload[: 4 * blocks])
    codes = struct.unpack(f"<{frame.count}b", frame.payload[4 * blocks :])
    well_formed(all(map(is_scale, scales)) and max(scales, default=0.0) <= INT8_LARGEST_SCALE and -128 not in codes)
    return [f32(scales[i // block] * code) for i, code in enumerate(codes)]


# ---- levels ----


def unpack_fields(data, count, width):
    bits = int.from_bytes(data, "little")
    well_formed(bits >> (count * width) == 0, "padding")
    return [bits >> (i * width) & ((1 << width) - 1) for i in range(count)]


def signed_codes(data, count, width):
    """Two's complement codes of `width` bits, from the lowest bit of the first byte on."""
    codes = unpack_fields(data, count, width)
    return [c - (1 << width) if c >> (width - 1) else c for c in codes]


@codec("qsgd", 15)
def decode_qsgd(frame, keys):
    n, levels, bucket = frame.count, int(keys.get("levels", 127)), int(keys.get("bucket", 512))
    width = (2 * levels).bit_length()
    at = 4 * -(-n // bucket)
    exactly(frame, at + (n * width + 7) // 8)
    steps = f32_array(frame.payload[:at])
    codes = signed_codes(frame.payload[at:], n, width)
    well_formed(all(is_scale(step) and f32(step * levels) < float("inf") for step in steps))
    well_formed(all(-levels <= code <= levels for code in codes))
    return [f32(steps[i // bucket] * code) for i, code in enumerate(codes)]


@codec("terngrad", 16)
def decode_terngrad(frame, keys):
    n, quartic = frame.count, keys.get("pack", "2bit") == "quartic"
    if n == 0:
        exactly(frame, 0)
        return []
    exactly(frame, 4 + (-(-n // 5) if quartic else -(-n // 4)))
    s, data = f32_array(frame.payload[:4])[0], frame.payload[4:]
    well_formed(is_scale(s))
    if quartic:
        well_formed(all(byte < 243 for byte in data))
        codes = [byte // 3 ** (4 - i) % 3 - 1 for i in range(5) for byte in data]
        well_formed(not any(codes[n:]))
        return [s * code + 0.0 for code in codes[:n]]  # from 0 on: no -0
    codes = signed_codes(data, n, 2)
    well_formed(-2 not in codes)
    return [s * code for code in codes]


def tree_values():
    """In exact fractions, then the nearest binary32."""
    values = [Fraction(0)]
    for e in range(-6, 0):
        m, decade = 2 ** (e + 6), Fraction(10) ** e
        for low, high in ((Fraction(1), Fraction(9, 2)), (Fraction(9, 2), Fraction(10))):
            values += [decade * (low + (high - low) * Fraction(2 * j + 1, 2 * m)) for j in range(m)]
    values.append((values[-1] + 1) / 2)
    return [f32(float(v)) for v in values]


@codec("u8", 10)
def decode_u8(frame, keys):
    n = frame.count
    exactly(frame, 4 + n if n else 0)
    if n == 0:
        return []
    s, table = f32_array(frame.payload[:4])[0], tree_values()
    codes = struct.unpack(f"<{n}b", frame.payload[4:])
    well_formed(is_scale(s) and -128 not in codes)
    return [f32(s * table[abs(code)]) * (-1.0 if code < 0 else 1.0) for code in codes]
@codec("natural", 17)
def decode_natural(frame, keys):
    exactly(frame, frame.count)
    magnitudes = [0.0] + [2.0 ** (e - 109) for e in range(1, 128)]
    return [(-1.0 if code & 128 else 1.0) * magnitudes[code & 127] for code in frame.payload]


@codec("inceptionn", 18)
def decode_inceptionn(frame, keys):
    n, data, h = frame.count, frame.payload, int(keys.get("bound", 10)) // 2
    if n == 0:
        exactly(frame, 0)
        return []
    tag_bytes = (n + 3) // 4
    well_formed(len(data) >= 8 + tag_bytes)
    tags = unpack_fields(data[8 : 8 + tag_bytes], n, 2)
    counts = [tags.count(tag) for tag in range(4)]
    well_formed(struct.unpack_from("<II", data) == (counts[3], counts[2]))
    exactly(frame, 8 + tag_bytes + 4 * counts[3] + 2 * counts[2] + counts[1])
    at = 8 + tag_bytes
    fields = []
    for tag, kind, size in ((3, "f", 4), (2, "H", 2), (1, "B", 1)):
        fields.append((tag, iter(struct.unpack_from(f"<{counts[tag]}{kind}", data, at))))
        at += counts[tag] * size
    streams = dict(fields)

    def value(tag):
        if tag == 0:
            return 0.0
        field = next(streams[tag])
        if tag == 3:
            well_formed(abs(field) < float("inf"))
            return field
        if tag == 2:
            return (-1.0 if field >> 15 else 1.0) * (field & 0x7FFF) / 2**14
        return (-1.0 if field >> 7 else 1.0) * ((field & 0x7F) + 0.5) / 2 ** (7 + h)

    return [value(tag) for tag in tags]


@codec("sketchml", 22)
def decode_sketchml(frame, keys):
    n, q = frame.count, int(keys.get("quantiles", 64))
    width = (q - 1).bit_length()
    if n == 0:
        exactly(frame, 0)
        return []
    exactly(frame, 4 * q + (n * width + 7) // 8)
    means = f32_array(frame.payload[: 4 * q])
    codes = unpack_fields(frame.payload[4 * q :], n, width)
    well_formed(all(abs(mean) < float("inf") for mean in means) and all(code < q for code in codes))
    return [means[code] for code in codes]


# ---- sparse sets ----


def kept_of(ratio, n):
    return min(n, max(1, int(ratio * n))) if n else 0


def sparse_values(n, indices, values):
    well_formed(all(abs(v) < float("inf") for v in values))
    out = [0.0] * n
    for index, value in zip(indices, values):
        out[index] = value
    return out


def decode_set(data, k, n, size=4):
    """k indices below n in ascending order, packed, then k values of `size` bytes."""
    width = (n - 1).bit_length() if n > 1 else 0
    index_bytes = (k * width + 7) // 8
    well_formed(len(data) == index_bytes + size * k)
    indices = unpack_fields(data[:index_bytes], k, width)
    well_formed(all(a < b for a, b in zip(indices, indices[1:])) and all(i < n for i in indices[-1:]))
    values = data[index_bytes:]
    return sparse_values(n, indices, f32_array(values) if size == 4 else upper_halves(values))


@codec("topk", 4)
def decode_topk(frame, keys):
    n = frame.count
    return decode_set(frame.payload, kept_of(float(keys.get("ratio", 0.01)), n), n, 2 if keys.get("values") == "bf16" else 4)


@codec("blocktopk", 24)
def decode_blocktopk(frame, keys):
    """A record for every block: packed indices, then values, or two magnitudes and codes of two bits."""
    block, keep, kind = int(keys.get("block", 4096)), int(keys.get("keep", 64)), keys.get("values", "bf16")
    width, data, out = block.bit_length() - 1, frame.payload, []
    for begin in range(0, frame.count, block):
        m = min(block, frame.count - begin)
        k = -(-keep * m // block)
        index_bytes = (k * width + 7) // 8
        size = {"f32": 4 * k, "bf16": 2 * k, "2bit": 8 + (2 * k + 7) // 8}[kind]
        record, data = data[: index_bytes + size], data[index_bytes + size :]
        well_formed(len(record) == index_bytes + size)
        indices = unpack_fields(record[:index_bytes], k, width)
        well_formed(all(a < b for a, b in zip(indices, indices[1:])) and indices[-1] < m)
        rest = record[index_bytes:]
        if kind == "2bit":
            magnitudes = f32_array(rest[:8])
            well_formed(all(0 <= x < float("inf") and math.copysign(1, x) == 1 for x in magnitudes))
            values = [-magnitudes[c >> 1] if c & 1 else magnitudes[c >> 1] for c in unpack_fields(rest[8:], k, 2)]
        else:
            values = f32_array(rest) if kind == "f32" else upper_halves(rest)
        out += sparse_values(m, indices, values)
    well_formed(not data)
    return out


@codec("sidco", 7)
def decode_sidco(frame, keys):
    """Two counts (sent; fitted, for the encoder alone), then a set of at most 1.2 k elements."""
    n, data = frame.count, frame.payload
    k = kept_of(float(keys.get("ratio", 0.001)), n)
    well_formed(len(data) >= 8)
    sent = struct.unpack_from("<I", data)[0]
    require(sent <= min(n, k + -(-k // 5)), "bound_exceeded")
    return decode_set(data[8:], sent, n)


def counted_set(frame, most):
    """A count, then a set of that size."""
    well_formed(len(frame.payload) >= 4)
    count = struct.unpack_from("<I", frame.payload)[0]
    require(count <= most, "bound_exceeded")
    return decode_set(frame.payload[4:], count, frame.count)


@codec("threshold", 19)
def decode_threshold(frame, keys):
    return counted_set(frame, kept_of(float(keys.get("cap", 0.1)), frame.count))


@codec("dgc", 20)
def decode_dgc(frame, keys):
    ratio = float(keys.get("ratio", 0.001))
    if int(keys.get("warmup", 0)) > 0:
        ratio = max(ratio, 0.25)
    k = kept_of(ratio, frame.count)
    return counted_set(frame, min(frame.count, k + k // 4))


@codec("adaq", 21)
def decode_adaq(frame, keys):
    """Two means, two counts, the indices of both sides in one string."""
    n, data = frame.count, frame.payload
    well_formed(len(data) >= 16)
    positive, negative, p, q = struct.unpack_from("<ffII", data)
    wanted = min(n, max(1, math.ceil(float(keys.get("ratio", 0.01)) * n))) + 2 if n else 0
    require(p + q <= min(n, wanted + wanted // 4), "bound_exceeded")
    width = (n - 1).bit_length() if n > 1 else 0
    exactly(frame, 16 + ((p + q) * width + 7) // 8)
    indices = unpack_fields(data[16:], p + q, width)
    out = [0.0] * n
    for side, mean, sign, bits in ((indices[:p], positive, 1, data[:4]), (indices[p:], negative, -1, data[4:8])):
        well_formed(0 < sign * mean < float("inf") if side else bits == b"\0\0\0\0")
        well_formed(all(a < b for a, b in zip(side, side[1:])) and all(i < n for i in side[-1:]))
        for i in side:
            well_formed(out[i] == 0.0, "an index on both sides")
            out[i] = mean
    return out


# ---- random-k: FRAME.md, section 6 ----

M32, M64 = (1 << 32) - 1, (1 << 64) - 1


def mix(x):
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & M64
    x = (x ^ x >> 27) * 0x94D049BB133111EB & M64
    return x ^ x >> 31


def shared_key(seed, step, parameter):
    golden = 0x9E3779B97F4A7C15
    h = 0x6A09E667F3BCC908
    for value in (seed, step, parameter):
        h = mix((h ^ mix(value + golden & M64)) + golden & M64)
    return h & M32, h >> 32


def philox(key, counter, stream):
    c = [counter & M32, counter >> 32, stream & M32, stream >> 32]
    k0, k1 = key
    for _ in range(10):
        p0, p1 = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [(p1 >> 32) ^ c[1] ^ k0, p1 & M32, (p0 >> 32) ^ c[3] ^ k1, p0 & M32]
        k0, k1 = (k0 + 0x9E3779B9) & M32, (k1 + 0xBB67AE85) & M32
    return c


def shuffled(key, stream, n, k):
    order = list(range(n))
    for j in range(k):
        other = j + (philox(key, j // 4, stream)[j % 4] * (n - j) >> 32)
        order[j], order[other] = order[other], order[j]
    return order[:k]


def round_hash(x, key):
    h = (x ^ key) * 0x9E3779B1 & M32
    h = (h ^ h >> 15) * 0x85EBCA77 & M32
    return h ^ h >> 13


def permuted(key, stream, n, k):
    low_bits = ((n - 1).bit_length() + 1) // 2
    mask, high_count = (1 << low_bits) - 1, -(-n >> low_bits)
    keys = philox(key, 0, stream) + philox(key, 1, stream)

    def feistel(i):
        low, high = i & mask, i >> low_bits
        for r in (0, 2, 4):
            low ^= round_hash(high, keys[r]) & mask
            high = (high + (round_hash(low, keys[r + 1]) * high_count >> 32)) % high_count
        return high << low_bits | low

    def place(i):
        to = feistel(i)
        while to >= n:
            to = feistel(to)
        return to

    return [place(i) for i in range(k)]


@codec("randomk", 5)
def decode_randomk(frame, keys):
    n = frame.count
    k = kept_of(float(keys.get("ratio", 0.01)), n)
    exactly(frame, 4 * k)
    draw = shuffled if n <= 1024 else permuted
    indices = draw(shared_key(frame.seed, frame.step, frame.parameter), frame.offset, n, k) if n else []
    out = [0.0] * n
    for index, value in zip(indices, f32_array(frame.payload)):
        out[index] = value
    return out


# ---- 3lc ----

CHUNK = 40960


def expand_runs(coded, columns):
    """Bytes from 243 on are runs of 2 to 14 bytes 121."""
    out = bytearray()
    for byte in coded:
        out += bytes([byte]) if byte < 243 else b"\x79" * (byte - 241)
        well_formed(len(out) <= columns)
    well_formed(len(out) == columns)
    return out


def ternary(coded, scale, count, zero_runs):
    """Digit i of byte j is element i * columns + j, most significant digit first."""
    well_formed(is_scale(scale))
    columns = -(-count // 5)
    well_formed(len(coded) <= columns)
    if zero_runs:
        coded = expand_runs(coded, columns)
    well_formed(len(coded) == columns and all(byte < 243 for byte in coded))
    digits = [byte // 3 ** (4 - i) % 3 - 1 for i in range(5) for byte in coded]
    return [scale if d > 0 else -scale if d < 0 else 0.0 for d in digits[:count]]


@codec("3lc", 6)
def decode_3lc(frame, keys):
    n, data = frame.count, frame.payload
    zero_runs = keys.get("zre", "on") == "on"
    if n == 0:
        exactly(frame, 0)
        return []
    if keys.get("scale", "unit") == "unit":
        well_formed(len(data) >= 4)
        return ternary(data[4:], f32_array(data[:4])[0], n, zero_runs)
    chunks = -(-n // CHUNK)
    well_formed(len(data) >= 6 * chunks)
    scales = f32_array(data[: 4 * chunks])
    lengths = struct.unpack(f"<{chunks}H", data[4 * chunks : 6 * chunks])
    exactly(frame, 6 * chunks + sum(lengths))
    out, at = [], 6 * chunks
    for c in range(chunks):
        out += ternary(data[at : at + lengths[c]], scales[c], min(CHUNK, n - c * CHUNK), zero_runs)
        at += lengths[c]
    return out


# ---- one bit per element ----

ONEBIT_CHUNK = 32768


def sign_bits(data, n):
    well_formed(len(data) == (n + 7) // 8)
    bits = int.from_bytes(data, "little")
    well_formed(bits >> n == 0, "padding")
    return [bits >> i & 1 for i in range(n)]


@codec("signsgd", 12)
def decode_signsgd(frame, keys):
    return [1.0 if bit else -1.0 for bit in sign_bits(frame.payload, frame.count)]


codec("signum", 13)(decode_signsgd)


@codec("efsignsgd", 14)
def decode_efsignsgd(frame, keys):
    n, data = frame.count, frame.payload
    exactly(frame, 4 + (n + 7) // 8 if n else 0)
    scale = f32_array(data[:4])[0] if n else 0.0
    well_formed(is_scale(scale))
    return [scale if bit else -scale for bit in sign_bits(data[4:], n)]


@codec("onebit", 11)
def decode_onebit(frame, keys):
    n, data = frame.count, frame.payload
    share = ONEBIT_CHUNK if keys.get("scale", "unit") == "chunk" else max(n, 1)
    pairs = -(-n // share)
    exactly(frame, 8 * pairs + (n + 7) // 8)
    means = f32_array(data[: 8 * pairs])
    well_formed(all(map(is_scale, means[1::2])))
    well_formed(all(m < 0.0 and m > -float("inf") or struct.pack("<f", m) == bytes(4) for m in means[0::2]))
    return [means[i // share * 2 + bit] for i, bit in enumerate(sign_bits(data[8 * pairs :], n))]


# ---- powersgd ----


def dot(x, y):
    """In double, over 16 virtual lanes, folded 8, 4, 2, 1; pieces of 16384 added in order."""
    total = 0.0
    for first in range(0, len(x), 16384):
        lanes = [0.0] * 16
        for i in range(first, min(first + 16384, len(x))):
            lanes[i % 16] += x[i] * y[i]
        for half in (8, 4, 2, 1):
            lanes = [lanes[i] + lanes[i + half] for i in range(half)]
        total += lanes[0]
    return total


def without(vector, basis):
    for u in basis:
        c = dot(vector, u)
        vector = [f32(v - c * x) for v, x in zip(vector, u)]
    return vector


def orthonormal(vectors):
    basis = []
    for vector in vectors:
        came_with = dot(vector, vector) ** 0.5
        vector = without(vector, basis)
        left = dot(vector, vector) ** 0.5
        if left < 0.5 * came_with:
            vector = without(vector, basis)
            left = dot(vector, vector) ** 0.5
        if left == 0.0 or left < 2.0**-20 * came_with:
            basis.append([0.0] * len(vector))
        else:
            inverse = 1.0 / left
            basis.append([f32(inverse * v) for v in vector])
    return basis


@codec("powersgd", 9)
def decode_powersgd(frame, keys):
    rows, cols, n = frame.rows, frame.cols, frame.count
    r = min(int(keys.get("rank", 4)), rows, cols)
    if rows < 2 or cols < 2 or r * (rows + cols) >= n:
        return decode_none(frame, keys)
    exactly(frame, 4 * r * (rows + cols))
    lanes = f32_array(frame.payload)
    p = orthonormal([lanes[k * rows : (k + 1) * rows] for k in range(r)])
    q = [lanes[r * rows + k * cols : r * rows + (k + 1) * cols] for k in range(r)]
    out = []
    for i in range(rows):
        for j in range(cols):
            d = f32(p[0][i] * q[0][j])
            for k in range(1, r):
                d = f32(d + f32(p[k][i] * q[k][j]))
            out.append(d)
    return out


# ---- thc: its page, "Table, lanes, ranks" ----


def density(x):
    return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def step_cost(left, right):
    share = (math.erfc(-right / math.sqrt(2)) - math.erfc(-left / math.sqrt(2))) / 2
    mean = density(left) - density(right)
    square = share + left * density(left) - right * density(right)
    return -square + (left + right) * mean - left * right * share


def symmetric_table(bits, g, t):
    """The cheapest one and its cost; of equal ones the first."""
    q = [-t + 2 * t * i / g for i in range(g + 1)]
    best = {(0,): 0.0}  # lower halves by their last value: (half of the table): cost so far
    for _ in range((1 << bits) // 2 - 1):
        longer = {}
        for half, cost in best.items():
            for j in range(half[-1] + 1, (g + 1) // 2):
                entry = (cost + 2 * step_cost(q[half[-1]], q[j]), half + (j,))
                if j not in longer or entry[0] < longer[j][0] * (1 - 1e-9) or \
                        (entry[0] <= longer[j][0] * (1 + 1e-9) and entry[1] < longer[j][1]):
                    longer[j] = entry
        best = {half: cost for cost, half in longer.values()}
    whole = sorted((cost + step_cost(q[half[-1]], q[g - half[-1]]), half) for half, cost in best.items())
    tied = [entry for entry in whole if entry[0] <= whole[0][0] * (1 + 1e-9)]
    cost, half = min(tied, key=lambda entry: entry[1])
    return cost, [*half, *(g - value for value in reversed(half))]


def table_for_one(bits, t):
    best = None
    for g in range((1 << bits) - 1, 64):
        cost, table = symmetric_table(bits, g, t)
        if best is None or cost < best[0] * (1 - 1e-9):
            best = cost, table
    return best[1]


def clamping_point(p):
    t = 1.0
    for _ in range(100):
        t += (math.erfc(t / math.sqrt(2)) - p) / (2 * density(t))
    return t


@codec("thc", 23)
def decode_thc(frame, keys):
    bits, block, n = int(keys.get("bits", 4)), int(keys.get("block", 1024)), frame.count
    t = clamping_point(f32(float(keys.get("p", 0.03125))))
    uniform = keys.get("table", "optimal") == "uniform"
    table = list(range(1 << bits)) if uniform else table_for_one(bits, t)
    blocks, code_bytes = -(-n // block), block * bits // 8
    exactly(frame, blocks * (4 + code_bytes))
    well_formed(frame.offset % block == 0)
    norms = f32_array(frame.payload[: 4 * blocks])
    well_formed(all(0 <= norm <= 2.0**116 and math.copysign(1, norm) > 0 for norm in norms))
    key, g, out = shared_key(frame.seed, frame.step, frame.parameter), table[-1], []
    for b in range(blocks):
        reach = f32(f32(f32(t) * norms[b]) / f32(math.sqrt(block)))
        if reach < 2.0**-100:
            out += [0.0] * block
            continue
        data = frame.payload[4 * blocks + b * code_bytes :][:code_bytes]
        packed = int.from_bytes(data, "big")
        indices = [packed >> bits * (block - 1 - i) & (1 << bits) - 1 for i in range(block)]
        y = [f32((2 * table[z] - g) * f32(reach / g)) for z in indices]
        distance = 1
        while distance < block:
            for i in range(block):
                if i & distance == 0:
                    y[i], y[i + distance] = f32(y[i] + y[i + distance]), f32(y[i] - y[i + distance])
            distance *= 2
        scale = f32(1 / math.sqrt(block))
        for i in range(block):
            e = frame.offset + b * block + i
            minus = philox(key, e // 128, 0)[e // 32 % 4] >> e % 32 & 1
            out.append(f32(y[i] * scale) * (-1.0 if minus else 1.0))
    return out[:n]


def decode(data):
    """Values of a frame, as Python floats that are exact binary32 numbers."""
    frame = parse_frame(data)
    name, keys = parse_spec(frame.spec)
    require(name in DECODERS, "frame_codec", name)
    number, version, function = DECODERS[name]
    require((frame.codec, frame.payload_version) == (number, version), "frame_codec")
    require(not frame.non_finite, "non_finite")
    if frame.zero:
        return [0.0] * frame.count
    values = function(frame, keys)
    return values if name in COPIES else [0.0 + value for value in values]  # base + decoded: a -0 becomes +0


def main(files):
    for file in files:
        with open(file, "rb") as f:
            data = f.read()
        frame = parse_frame(data)
        for name, value in vars(frame).items():
            print(f"{name:16} {value if name != 'payload' else str(len(value)) + ' bytes'}")
        print("values          ", *(f"{v:.9g}" for v in decode(data)[:8]), "...")


if __name__ == "__main__":
    main(sys.argv[1:])
