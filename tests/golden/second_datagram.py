#!/usr/bin/env python3
# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""A second reader of aggregation's datagrams, in plain Python and written from docs/format/DATAGRAM.md alone.

usage: second_datagram.py HEX...      prints the fields of each datagram
"""

import ipaddress
import struct
import sys

MASK = (1 << 64) - 1
MAGIC, VERSION = 0x444C, 1
TYPES = ("hello", "challenge", "enrol", "welcome", "refusal", "stranger", "data", "pull", "ack", "leave", "held", "result",
         "status", "open", "fetch", "failed")
EMPTY, TROUBLE, VALUES, FIRST, FULL, GROUP, TRY = 1, 2, 4, 8, 16, 64, 128
COMPLETE, PAD, TAGGED = 1, 2, 32
LOST_WORKER = 11
UP = struct.Struct("<HBBIIIHHHBB")
DOWN = struct.Struct("<HBBIIIHHHBBQ")


class DatagramError(Exception):
    """`fault` is size, magic, version, type or field."""

    def __init__(self, fault):
        super().__init__(fault)
        self.fault = fault


def require(condition, fault):
    if not condition:
        raise DatagramError(fault)


# ---- SipHash-2-4 ----


def rotl(x, by):
    return ((x << by) | (x >> (64 - by))) & MASK


def sip_round(v):
    v[0] = (v[0] + v[1]) & MASK
    v[1] = rotl(v[1], 13) ^ v[0]
    v[0] = rotl(v[0], 32)
    v[2] = (v[2] + v[3]) & MASK
    v[3] = rotl(v[3], 16) ^ v[2]
    v[0] = (v[0] + v[3]) & MASK
    v[3] = rotl(v[3], 21) ^ v[0]
    v[2] = (v[2] + v[1]) & MASK
    v[1] = rotl(v[1], 17) ^ v[2]
    v[2] = rotl(v[2], 32)


def siphash(key, message):
    v = [key[0] ^ 0x736F6D6570736575, key[1] ^ 0x646F72616E646F6D, key[0] ^ 0x6C7967656E657261, key[1] ^ 0x7465646279746573]
    padded = message + bytes(7 - len(message) % 8) + bytes([len(message) & 255])
    for (word,) in struct.iter_unpack("<Q", padded):
        v[3] ^= word
        sip_round(v)
        sip_round(v)
        v[0] ^= word
    v[2] ^= 255
    for _ in range(4):
        sip_round(v)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


# ---- section 5: keys ----

CHALLENGE, ENROL, JOB, HELLO = 1, 2, 3, 4


def derive_key(token, use, nonces):
    halves = struct.unpack("<QQQQ", token)
    out = []
    for i in range(2):
        inner = 0
        for key in (halves[:2], halves[2:]):
            inner = siphash(key, struct.pack(f"<{len(nonces) + 3}Q", use, *nonces, i, inner))
        out.append(inner)
    return tuple(out)


# ---- sections 2 to 4 ----


def start_of(data):
    require(len(data) >= 8, "size")
    magic, version_type, flags, job = struct.unpack_from("<HBBI", data)
    require(magic == MAGIC, "magic")
    return version_type >> 4, TYPES[version_type & 15], flags, job


def parse_header(data, down):
    version, kind, flags, _ = start_of(data)
    require(version == VERSION, "version")
    require((TYPES.index(kind) >= 10) if down else (6 <= TYPES.index(kind) <= 9), "type")
    length = 40 if down else 32
    require(len(data) >= length, "size")
    names = ["job", "granule", "settings", "epoch", "ahead", "norm"]
    if down:
        *_, job, granule, settings, epoch, ahead, norm, added, divisor, bitmap = DOWN.unpack_from(data)
    else:
        *_, job, granule, settings, epoch, ahead, norm, worker, zero = UP.unpack_from(data)
    found = dict(zip(names, (job, granule, settings, epoch, ahead, norm)), type=kind, flags=flags, payload=data[length:])
    carries = kind in ("data", "held", "result")
    of_groups = 0 if down else GROUP | (TRY if kind == "ack" else 0)
    require(flags & ~((31 if carries else FULL) | of_groups) == 0, "field")
    if down:
        found |= {"added": added, "divisor": divisor, "bitmap": bitmap}
        if kind == "failed":
            require(bitmap == 0 or (divisor == LOST_WORKER and added < 64 and bitmap >> added & 1), "field")
        elif not carries:
            require(bitmap == added == divisor == norm == 0, "field")
        else:
            require(bitmap != 0 and divisor == bin(bitmap).count("1") and added <= divisor, "field")
            require((added == 0) == bool(flags & EMPTY), "field")
    else:
        found["worker"] = worker
        require(zero == 0 and worker < 64, "field")
        require(carries or norm == 0, "field")
    if carries:
        require((not found["payload"]) == bool(flags & EMPTY) and len(found["payload"]) <= 65000, "size")
    else:
        require(not found["payload"], "size")
    return found


def header_tag_is_right(data, length, key, era):
    hidden = era | (len(data) - length) << 32
    message = data[: length - 8] + struct.pack("<Q", hidden) + (data[length:] if data[3] & FULL else b"")
    return struct.unpack_from("<Q", data, length - 8)[0] == siphash(key, message)


def parse_message(data, kind):
    version, found_kind, flags, job = start_of(data)
    require(version == VERSION or kind == "refusal", "version")
    require(found_kind == kind, "type")
    if kind == "stranger":
        require(len(data) == 32, "size")
        return {"job": job}
    require(len(data) >= (136 if kind == "enrol" else 64), "size")
    number, instance, attempt, worker = struct.unpack_from("<QQIB", data, 8)
    allowed = {"enrol": FULL | GROUP, "welcome": COMPLETE | GROUP, "challenge": PAD, "hello": TAGGED}.get(kind, 0)
    require(flags & ~allowed == 0 and job == number & 0xFFFFFFFF and worker < 64, "field")
    found = {"job": number, "instance": instance, "attempt": attempt, "worker": worker}
    if kind == "enrol":
        return found | parse_enrolment(data, flags)
    require(len(data) == 64, "size")
    if kind == "hello":
        found["tagged"] = bool(flags & TAGGED)
        require(not any(data[29:56] if flags & TAGGED else data[29:]), "field")
    if kind == "challenge":
        found["epoch"], found["nonce"] = struct.unpack_from("<QQ", data, 32)
        found["pad"] = bool(flags & PAD)
    if kind == "welcome":
        found |= {"registered": data[29], "complete": bool(flags & COMPLETE), "epoch": struct.unpack_from("<Q", data, 32)[0]}
        if flags & GROUP:
            group = ipaddress.IPv6Address(data[40:56])
            found["group"] = str(group.ipv4_mapped or group), struct.unpack_from("<H", data, 30)[0]
            require((group.ipv4_mapped or group).is_multicast and found["group"][1] != 0, "field")
    if kind == "refusal":
        found["reason"] = data[29]
        found["expected"], found["found"] = struct.unpack_from("<QQ", data, 32)
        require(found["reason"] != 0, "field")
    return found


def parse_enrolment(data, flags):
    found = dict(zip(("world", "needed", "code_bits"), data[29:32]))
    names = ("epoch", "nonce", "spec", "deadline_us", "timeout_ms", "lanes", "ring", "values", "lane_bits", "table_size")
    found |= dict(zip(names, struct.unpack_from("<QQQIIIHHBB", data, 32)))
    found["table"] = struct.unpack_from("<16H", data, 76)
    found["ack"], found["kept"] = struct.unpack_from("<QQ", data, 112)
    require(found["ack"] <= 1 << 62 and found["kept"] <= found["ack"], "field")
    require(found["ring"] <= 4096 and found["ring"] % 8 == 0, "field")
    require(len(data) == 128 + found["ring"] // 8 + 8, "size")
    bits = data[128:-8]
    found["held"] = [found["ack"] + i for i in range(8 * len(bits)) if bits[i // 8] >> i % 8 & 1]
    return found | {"full_tags": bool(flags & FULL), "wants_group": bool(flags & GROUP)}


def message_tag_is_right(data, key):
    return struct.unpack("<Q", data[-8:])[0] == siphash(key, data[:-8])


def verdict(data, layout, token, job, instance, epoch, era):
    """sound, tag, or a fault."""
    try:
        if layout in ("up", "down"):
            parse_header(data, layout == "down")
            key = derive_key(token, JOB, (job, epoch))
            return "sound" if header_tag_is_right(data, 40 if layout == "down" else 32, key, era) else "tag"
        found = parse_message(data, layout)
    except DatagramError as error:
        return error.fault
    if layout == "stranger" or (layout == "hello" and not found["tagged"]):
        return "sound"
    if layout == "hello":
        key = derive_key(token, HELLO, ())
    elif layout == "enrol":
        key = derive_key(token, ENROL, (job, instance, found["epoch"], found["nonce"]))
    elif layout == "welcome":
        key = derive_key(token, JOB, (job, epoch))
    else:
        key = derive_key(token, CHALLENGE, (job, instance))
    return "sound" if message_tag_is_right(data, key) else "tag"


def main(argv):
    for text in argv[1:]:
        data = bytes.fromhex(text)
        kind = start_of(data)[1]
        down = TYPES.index(kind) >= 10
        print(parse_message(data, kind) if TYPES.index(kind) < 6 else parse_header(data, down))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
