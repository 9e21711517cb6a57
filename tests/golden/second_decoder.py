#!/usr/bin/env python3
# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""A second decoder of stand-alone frames, in plain Python and written from docs/format/ alone.

It shares no code with the library, so what both decode alike is what the documents say. Speed is no aim.
usage: second_decoder.py FILE...      prints the header and the first values of each frame
"""

import struct
import sys
from dataclasses import dataclass

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


def codec(name, number, version=1):
    def register(function):
        DECODERS[name] = (number, version, function)
        return function

    return register


def well_formed(condition, message=""):
    require(condition, "payload_malformed", message)


# (codecs go here)


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
    return function(frame, keys)


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
