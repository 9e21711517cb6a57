# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The C library through ctypes: where it is, what its functions take, how its failures become LaconicError."""

from __future__ import annotations

import ctypes
import os
from ctypes import CFUNCTYPE, POINTER, c_char, c_char_p, c_double, c_float, c_int32, c_size_t, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from pathlib import Path

from . import errors
from .errors import LaconicError

ABI_VERSION = 3
F32, F16, BF16, U8, U16, I32 = range(6)
MEMORY_CUDA = 1
AGREEMENT_BYTES = 768
MAX_THREADS = 1024
MAX_BATCH = 8
MAX_WINDOW, SHORT_ELEMENTS = 8, 1 << 16
ALL_REDUCE, ALL_GATHER, ALL_TO_ALL, MESSAGES, AGGREGATE = range(5)
BUCKET_RAW = 2
KEEP = 0xFFFFFFFF
SUBMIT_APART, SUBMIT_WHOLE = 1, 2


class _Sized(ctypes.Structure):
    """A struct of laconic.h that begins with its own size."""

    def __init__(self, **fields):
        super().__init__(struct_size=ctypes.sizeof(type(self)), **fields)


class Tensor(_Sized):
    _fields_ = [("struct_size", c_uint32), ("dtype", c_uint32), ("rows", c_uint64), ("cols", c_uint64), ("data", c_void_p),
                ("memory", c_uint32), ("reserved", c_uint32)]


class Place(_Sized):
    _fields_ = [("struct_size", c_uint32), ("rank", c_uint32), ("world", c_uint32), ("reserved", c_uint32),
                ("seed", c_uint64), ("step", c_uint64), ("parameter", c_uint64)]


class FrameInfo(_Sized):
    _fields_ = [("struct_size", c_uint32), ("codec_id", c_uint32), ("payload_version", c_uint32), ("dtype", c_uint32),
                ("rows", c_uint64), ("cols", c_uint64), ("step", c_uint64), ("seed", c_uint64), ("rank", c_uint32),
                ("world", c_uint32), ("contributors", c_uint32), ("spec_bytes", c_uint32), ("spec", c_void_p),
                ("payload_offset", c_uint64), ("payload_bytes", c_uint64), ("frame_bytes", c_uint64)]


class Parameter(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("rows", c_uint64), ("cols", c_uint64)]


class Rule(ctypes.Structure):
    _fields_ = [("match", c_char_p), ("spec", c_char_p), ("min_elements", c_uint64), ("max_elements", c_uint64),
                ("control", c_char_p), ("optional", c_uint32), ("reserved", c_uint32)]


class CodecCall(ctypes.Structure):
    _fields_ = [("struct_size", c_uint32), ("rank", c_uint32), ("world", c_uint32), ("reserved", c_uint32), ("rows", c_uint64),
                ("cols", c_uint64), ("parameter", c_uint64), ("seed", c_uint64), ("step", c_uint64), ("state", c_void_p),
                ("state_floats", c_uint64)]


PLAN = ctypes.CFUNCTYPE(None, c_void_p, c_uint64, c_uint64, c_uint32, POINTER(c_uint64), POINTER(c_uint64))
ENCODE = ctypes.CFUNCTYPE(c_int32, c_void_p, POINTER(CodecCall), c_void_p, c_void_p, c_uint64, POINTER(c_uint64), c_void_p, c_uint64)
DECODE = ctypes.CFUNCTYPE(c_int32, c_void_p, POINTER(CodecCall), c_void_p, c_uint64, c_void_p, c_void_p, c_uint64)


class CodecTable(_Sized):
    _fields_ = [("struct_size", c_uint32), ("feedback", c_uint32), ("name", c_char_p), ("context", c_void_p), ("plan", PLAN),
                ("encode", ENCODE), ("decode", DECODE), ("commit", c_void_p)]


ALLOCATE, RELEASE = ctypes.CFUNCTYPE(c_void_p, c_void_p, c_uint64), ctypes.CFUNCTYPE(None, c_void_p, c_void_p)


class DeviceAllocator(_Sized):
    _fields_ = [("struct_size", c_uint32), ("reserved", c_uint32), ("context", c_void_p), ("allocate", ALLOCATE), ("release", RELEASE)]


class SessionOptions(_Sized):
    _fields_ = [("struct_size", c_uint32), ("rank", c_uint32), ("world", c_uint32), ("strategy", c_uint32),
                ("spec", c_char_p), ("seed", c_uint64), ("small_elements", c_uint64), ("engine_sums", c_uint32),
                ("threads", c_uint32), ("short_sends", c_uint32), ("window", c_uint32), ("part", c_uint64),
                ("aggregates", c_uint32), ("rule_count", c_uint32), ("rules", POINTER(Rule)), ("control", c_char_p),
                ("record", c_char_p), ("codecs", POINTER(POINTER(CodecTable))), ("codec_count", c_uint32),
                ("owner_turns", c_uint32), ("down", c_char_p), ("ranks_per_host", c_uint32), ("node_shards", c_uint32),
                ("node_shard", c_uint32), ("memory", c_uint32), ("gpu", c_uint32), ("reserved", c_uint32),
                ("allocator", POINTER(DeviceAllocator))]


class Settings(_Sized):
    _fields_ = [("struct_size", c_uint32), ("strategy", c_uint32), ("spec", c_char_p), ("control", c_char_p), ("rules", POINTER(Rule)),
                ("rule_count", c_uint32), ("reserved", c_uint32), ("down", c_char_p)]


class Bucket(_Sized):
    _fields_ = [("struct_size", c_uint32), ("dtype", c_uint32), ("index", c_uint32), ("flags", c_uint32),
                ("step", c_uint64), ("buffer", c_void_p), ("elements", c_uint64), ("count", c_uint32),
                ("parameters", POINTER(c_uint32)), ("offsets", POINTER(c_uint64))]


class Message(ctypes.Structure):
    _fields_ = [("peer", c_uint32), ("reserved", c_uint32), ("send", c_void_p), ("send_bytes", c_uint64), ("recv", c_void_p),
                ("recv_room", c_uint64)]


class Contribution(ctypes.Structure):
    _fields_ = [("payload", c_void_p), ("payload_bytes", c_uint64), ("settings", c_uint32), ("norm", c_uint16), ("flags", c_uint8),
                ("reserved", c_uint8)]


class Aggregate(ctypes.Structure):
    _fields_ = [("lanes", c_void_p), ("room", c_uint64), ("bitmap", c_uint64), ("length", c_uint32), ("norm", c_uint16),
                ("flags", c_uint8), ("added", c_uint8), ("divisor", c_uint8), ("reserved", c_uint8 * 7)]


class Step(ctypes.Structure):
    _fields_ = [("kind", c_uint32), ("dtype", c_uint32), ("reserved", c_uint32), ("short_sends", c_uint32),
                ("count", c_uint64), ("send", c_void_p), ("recv", c_void_p), ("send_counts", POINTER(c_uint64)),
                ("recv_counts", POINTER(c_uint64)), ("send_bytes", c_uint64), ("recv_bytes", c_uint64),
                ("send_offsets", POINTER(c_uint64)), ("recv_offsets", POINTER(c_uint64)), ("tag", c_uint32),
                ("message_count", c_uint32), ("messages", POINTER(Message)), ("granules", c_uint64),
                ("contributions", POINTER(Contribution)), ("aggregates", POINTER(Aggregate))]


class AggregatorOptions(_Sized):
    _fields_ = [("struct_size", c_uint32), ("world", c_uint32), ("servers", c_char_p), ("token", c_char_p), ("quorum", c_double),
                ("deadline_us", c_uint32), ("timeout_ms", c_uint32), ("full_tags", c_uint32), ("multicast", c_uint32)]


class StateHeader(_Sized):
    _fields_ = [("struct_size", c_uint32), ("version", c_uint32), ("rank", c_uint32), ("world", c_uint32),
                ("model_hash", c_uint64), ("agreement", c_uint64), ("spec", c_char * 256), ("node_shards", c_uint32), ("node_shard", c_uint32)]


START = CFUNCTYPE(c_int32, c_void_p, POINTER(Step), c_uint32, c_uint32, POINTER(c_uint64), c_void_p, c_uint64)
WAIT = CFUNCTYPE(c_int32, c_void_p, c_uint64, c_double, c_void_p, c_uint64)
SETTLE = CFUNCTYPE(None, c_void_p, c_uint64)


class EngineTable(_Sized):
    _fields_ = [("struct_size", c_uint32), ("rank", c_uint32), ("world", c_uint32), ("reserved", c_uint32), ("context", c_void_p),
                ("timeout", c_double), ("start", START), ("wait", WAIT), ("settle", SETTLE), ("completed", POINTER(c_double))]


class Replica(ctypes.Structure):
    _fields_ = [("values", c_void_p), ("dtype", c_uint32), ("reserved", c_uint32)]


class OwnedRange(ctypes.Structure):
    _fields_ = [("parameter", c_uint32), ("reserved", c_uint32), ("offset", c_uint64), ("count", c_uint64), ("mean", c_void_p),
                ("master", c_void_p)]


class Turns(_Sized):
    _fields_ = [("struct_size", c_uint32), ("skips", c_uint32), ("ranges", POINTER(OwnedRange)), ("count", c_uint64),
                ("sum_of_squares", c_double)]


class Failure(ctypes.Structure):
    _fields_ = [("code", c_int32), ("rank", c_uint32), ("message", c_char_p), ("hint", c_char_p)]


class Ending(_Sized):
    _fields_ = [("struct_size", c_uint32), ("code", c_int32), ("message", c_char_p), ("hint", c_char_p), ("count", c_uint32),
                ("reserved", c_uint32), ("tokens", POINTER(c_uint64)), ("parts", POINTER(c_uint32))]


ENDED = CFUNCTYPE(None, c_void_p, POINTER(Ending))
TRACED = CFUNCTYPE(None, c_void_p, c_uint32, c_uint64, c_uint32, c_double, c_double)


class DriverOptions(_Sized):
    _fields_ = [("struct_size", c_uint32), ("reserved", c_uint32), ("engine", POINTER(EngineTable)), ("context", c_void_p),
                ("ended", ENDED), ("traced", TRACED), ("inside", POINTER(EngineTable)), ("ranks", POINTER(c_uint32))]


_P = c_void_p  # opaque handles
_SIGNATURES = {
    "laconic_abi_version": (c_int32, []),
    "laconic_version": (c_char_p, []),
    "laconic_build_info": (c_char_p, []),
    "laconic_error_name": (c_char_p, [c_int32]),
    "laconic_last_message": (c_char_p, []),
    "laconic_last_hint": (c_char_p, []),
    "laconic_codecs_json": (c_char_p, []),
    "laconic_device_info": (c_char_p, [c_char_p]),
    "laconic_codec_create": (c_int32, [c_char_p, c_size_t, c_uint32, POINTER(_P)]),
    "laconic_codec_destroy": (None, [_P]),
    "laconic_codec_spec": (c_char_p, [_P]),
    "laconic_codec_json": (c_char_p, [_P]),
    "laconic_codec_max_frame_bytes": (c_int32, [_P, c_uint64, c_uint64, POINTER(c_uint64)]),
    "laconic_encode": (c_int32, [_P, POINTER(Tensor), POINTER(Place), _P, c_void_p, c_uint64, POINTER(c_uint64),
                                 c_void_p]),
    "laconic_decode": (c_int32, [_P, c_void_p, c_uint64, c_float, c_int32, POINTER(Tensor), c_void_p]),
    "laconic_decode_many": (c_int32, [_P, POINTER(c_void_p), POINTER(c_uint64), c_uint32, c_float, c_int32,
                                      POINTER(Tensor), c_void_p]),
    "laconic_frame_parse": (c_int32, [c_void_p, c_uint64, POINTER(FrameInfo)]),
    "laconic_residual_create": (c_int32, [c_uint64, POINTER(_P)]),
    "laconic_residual_over": (c_int32, [POINTER(Tensor), POINTER(_P)]),
    "laconic_residual_destroy": (None, [_P]),
    "laconic_residual_data": (c_void_p, [_P]),
    "laconic_residual_count": (c_uint64, [_P]),
    "laconic_residual_state": (c_void_p, [_P, POINTER(c_uint64)]),
    "laconic_residual_set_state": (c_int32, [_P, c_void_p, c_uint64]),
    "laconic_parameter_id": (c_uint64, [c_char_p]),
    "laconic_session_create": (c_int32, [POINTER(SessionOptions), POINTER(Parameter), c_uint32, POINTER(_P)]),
    "laconic_session_destroy": (None, [_P]),
    "laconic_session_reports": (c_int32, [_P, c_void_p]),
    "laconic_session_decide_by": (c_int32, [_P, c_void_p, c_uint64]),
    "laconic_session_shard": (c_int32, [_P, c_uint32, POINTER(c_uint64), POINTER(c_uint64)]),
    "laconic_session_agreement": (c_int32, [_P, c_void_p]),
    "laconic_session_check_agreement": (c_int32, [_P, c_void_p]),
    "laconic_session_set": (c_int32, [_P, POINTER(Settings)]),
    "laconic_session_begin_step": (c_int32, [_P, c_uint64, POINTER(c_uint32)]),
    "laconic_session_explain": (c_char_p, [_P]),
    "laconic_session_stats": (c_char_p, [_P]),
    "laconic_session_layout_matters": (c_int32, [_P]),
    "laconic_session_all_raw": (c_int32, [_P]),
    "laconic_session_scale_residuals": (c_int32, [_P, c_float]),
    "laconic_session_flush": (c_int32, [_P, c_uint32]),
    "laconic_session_release_layout": (c_int32, [_P, POINTER(Bucket)]),
    "laconic_session_residual_norm": (c_double, [_P]),
    "laconic_exchange_begin": (c_int32, [_P, POINTER(Bucket), POINTER(_P)]),
    "laconic_exchange_fail": (c_int32, [_P, c_int32, c_char_p]),
    "laconic_exchange_next": (c_int32, [_P, POINTER(Step), c_uint32, c_uint32, POINTER(c_uint32)]),
    "laconic_exchange_timed": (c_int32, [_P, c_double, c_double]),
    "laconic_session_summed": (c_int32, [_P, c_double, c_double]),
    "laconic_exchange_abort": (None, [_P]),
    "laconic_aggregator_open": (c_int32, [POINTER(AggregatorOptions), POINTER(_P)]),
    "laconic_aggregator_join": (c_int32, [_P, _P, c_uint64, c_uint32]),
    "laconic_aggregator_run": (c_int32, [_P, POINTER(Step), c_uint32]),
    "laconic_aggregator_interrupt": (None, [_P]),
    "laconic_aggregator_stats": (c_char_p, [_P]),
    "laconic_aggregator_close": (None, [_P, c_uint32]),
    "laconic_agree": (c_int32, [POINTER(EngineTable), _P, POINTER(Failure), c_char_p, c_void_p]),
    "laconic_driver_create": (c_int32, [_P, POINTER(DriverOptions), POINTER(_P)]),
    "laconic_driver_destroy": (None, [_P]),
    "laconic_driver_submit": (c_int32, [_P, POINTER(Bucket), c_uint32, c_uint64, POINTER(Failure)]),
    "laconic_driver_drain": (c_int32, [_P]),
    "laconic_driver_finish": (c_int32, [_P]),
    "laconic_driver_break_off": (c_int32, [_P, POINTER(Failure)]),
    "laconic_driver_release": (c_int32, [_P, POINTER(Bucket)]),
    "laconic_driver_set": (c_int32, [_P, POINTER(Settings), POINTER(Failure), POINTER(c_uint32)]),
    "laconic_driver_set_what_waits": (c_int32, [_P, POINTER(c_uint32)]),
    "laconic_driver_set_replicas": (c_int32, [_P, POINTER(Replica), c_uint32, c_uint32]),
    "laconic_driver_owned": (c_int32, [_P, POINTER(OwnedRange), c_uint32, POINTER(c_uint32)]),
    "laconic_driver_turns": (c_int32, [_P, POINTER(Turns)]),
    "laconic_driver_pull": (c_int32, [_P, POINTER(Failure), POINTER(c_uint32)]),
    "laconic_driver_exchanges": (c_int32, [_P, POINTER(Bucket), c_uint32, c_uint32, POINTER(c_uint32)]),
    "laconic_session_state_header": (c_int32, [_P, POINTER(StateHeader)]),
    "laconic_session_state_count": (c_uint32, [_P]),
    "laconic_session_state_entry": (c_int32, [_P, c_uint32, POINTER(c_char_p), POINTER(c_void_p), POINTER(c_uint64)]),
    "laconic_session_state_accepts": (c_int32, [_P, POINTER(StateHeader)]),
    "laconic_session_state_check": (c_int32, [_P, c_uint32, c_void_p, c_uint64]),
}


def _candidates():
    """Candidate paths of the library, best first: an explicit path, the wheel, a build tree in this checkout."""
    explicit = os.environ.get("LACONIC_LIBRARY")
    if explicit:
        return [Path(explicit)]
    here = Path(__file__).resolve().parents[1]  # the package
    found = [here / "lib" / "liblaconic.so"]
    found += [here.parents[1] / "build" / preset / "lib" / "liblaconic.so" for preset in ("release", "debug")]
    return found


def _load() -> ctypes.CDLL:
    tried = _candidates()
    for path in tried:
        if path.exists():
            lib = ctypes.CDLL(str(path))
            break
    else:
        raise errors.error("unsupported", "liblaconic.so was not found; looked at " + ", ".join(map(str, tried)),
                           "install the wheel, run `make build`, or set LACONIC_LIBRARY to its path")
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(lib, name, None)
        if function is None:
            raise errors.error("unsupported", f"{path} lacks {name}: it is another version of laconic",
                               "reinstall laconic, or rebuild with `make build`")
        function.restype, function.argtypes = result, arguments
    abi = lib.laconic_abi_version()
    if abi != ABI_VERSION:
        raise errors.error("unsupported", f"{path} has ABI {abi}, the Python package at {__file__} needs {ABI_VERSION}",
                           "install both from the same version")
    lib.path = path
    return lib


lib = _load()


def error_name(code: int) -> str:
    return lib.laconic_error_name(code).decode()


def last_error(code: int) -> LaconicError:
    """The calling thread's last failure as an exception."""
    return LaconicError(code, error_name(code), lib.laconic_last_message().decode(errors="replace"),
                        lib.laconic_last_hint().decode(errors="replace"))


def check(code: int) -> None:
    """Raises the failure of a non-zero code."""
    if code != 0:
        raise last_error(code)
