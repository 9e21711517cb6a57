# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The table of errors in Python against the library's and the document's; the mirrors of laconic.h against the header."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import pytest

from laconic.core import _lib, errors

ROOT = Path(__file__).resolve().parents[2]


def test_names_match_library():
    said = {_lib.error_name(code): code for code in range(201)}
    del said["unknown"]
    assert errors.CODES == said


def test_names_match_document():
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \|", (ROOT / "docs/format/ERRORS.md").read_text(), re.M)
    assert errors.CODES == {name: int(code) for code, name in rows}


def test_error_number_comes_from_table():
    error = errors.error("state_corrupt", "it is damaged", "take another")
    assert (error.code, error.name, str(error)) == (81, "state_corrupt", "it is damaged (take another)")
    assert errors.error("internal", "a rule was broken").hint == ""
    with pytest.raises(KeyError):
        errors.error("no_such_name", "")


# ---- _lib.py ----

HEADER = re.sub(r"/\*.*?\*/", "", (ROOT / "include/laconic/laconic.h").read_text(), flags=re.S)
MIRRORS = {"tensor": _lib.Tensor, "place": _lib.Place, "frame_info": _lib.FrameInfo, "parameter": _lib.Parameter,
           "rule": _lib.Rule, "device_allocator": _lib.DeviceAllocator, "session_options": _lib.SessionOptions, "settings": _lib.Settings, "bucket": _lib.Bucket, "message": _lib.Message, "step": _lib.Step,
           "contribution": _lib.Contribution, "aggregate": _lib.Aggregate, "aggregator_options": _lib.AggregatorOptions,
           "state_header": _lib.StateHeader, "engine_table": _lib.EngineTable, "replica": _lib.Replica, "owned_range": _lib.OwnedRange, "turns": _lib.Turns,
           "failure": _lib.Failure, "ending": _lib.Ending, "driver_options": _lib.DriverOptions,
           "codec_call": _lib.CodecCall, "codec_table": _lib.CodecTable}


def fields_of(name):
    """(name, is a pointer, C type) of the fields in the header."""
    body = re.search(rf"typedef struct laconic_{name} \{{(.*?)\}}", HEADER, re.S)[1]
    for line in re.findall(r"\s*([^;]+);", body):
        if callback := re.match(r"\w+\*? \(\*(\w+)\)\(", line):
            yield callback[1], "*"
            continue
        kind, names = re.fullmatch(r"((?:const )?\w+(?:\* const)?\*?)\s+(.+)", line.strip(), re.S).groups()
        for field in names.split(","):
            yield field.strip().split("[")[0], kind


@pytest.mark.parametrize("name", MIRRORS)
def test_structs_match_headers(name):
    scalars = {"uint32_t": ctypes.c_uint32, "uint64_t": ctypes.c_uint64, "char": ctypes.c_char * 256, "double": ctypes.c_double, "int32_t": ctypes.c_int32,
               "uint16_t": ctypes.c_uint16, "uint8_t": ctypes.c_uint8}
    arrays = {("aggregate", "reserved"): ctypes.c_uint8 * 7}
    expected = list(fields_of(name))
    mirror = MIRRORS[name]._fields_
    assert [field for field, _ in mirror] == [field for field, _ in expected]
    for (field, ours), (_, kind) in zip(mirror, expected):
        if kind.endswith("*"):
            assert ctypes.sizeof(ours) == ctypes.sizeof(ctypes.c_void_p), field
        else:
            assert ours is arrays.get((name, field), scalars[kind]), field


def test_every_struct_is_mirrored():
    assert set(re.findall(r"typedef struct laconic_(\w+) \{", HEADER)) == set(MIRRORS)


def test_signatures_match_header():
    declared = re.findall(r"LACONIC_API ([\w ]+?[ *]+)(laconic_\w+)\(([^)]*)\)", HEADER)
    assert {name for _, name, _ in declared} == set(_lib._SIGNATURES)
    results = {"int32_t": ctypes.c_int32, "uint32_t": ctypes.c_uint32, "uint64_t": ctypes.c_uint64,
               "double": ctypes.c_double, "const char*": ctypes.c_char_p, "float*": ctypes.c_void_p, "void": None}
    scalars = {"int32_t": ctypes.c_int32, "uint32_t": ctypes.c_uint32, "uint64_t": ctypes.c_uint64,
               "size_t": ctypes.c_size_t, "float": ctypes.c_float, "double": ctypes.c_double}
    for result, name, arguments in declared:
        ours, takes = _lib._SIGNATURES[name]
        assert ours is results[result.strip()], name
        kinds = [] if arguments == "void" else [" ".join(a.split()[:-1]) for a in arguments.split(",")]
        assert len(kinds) == len(takes), name
        for kind, our in zip(kinds, takes):
            if kind in scalars:
                assert our is scalars[kind], f"{name}: {kind}"
            else:
                assert ctypes.sizeof(our) == ctypes.sizeof(ctypes.c_void_p), f"{name}: {kind}"


def test_constants_match_headers():
    for name in ("AGREEMENT_BYTES", "MAX_THREADS", "MAX_BATCH", "MAX_WINDOW", "SHORT_ELEMENTS", "ABI_VERSION"):
        assert getattr(_lib, name) == int(re.search(rf"#define LACONIC_{name} (\d+)", HEADER)[1])
    numbers = dict(re.findall(r"LACONIC_(\w+) = (\d+)", HEADER))
    for name in ("F32", "F16", "BF16", "U8", "ALL_REDUCE", "ALL_GATHER", "ALL_TO_ALL", "BUCKET_RAW"):
        assert getattr(_lib, name) == int(numbers[name]), name
