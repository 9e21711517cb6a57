# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""`laconic.bench`: measures the speed of a codec, also a registered one, against memcpy in the same run."""

from __future__ import annotations

import re
import time

from ..core import _arrays, errors
from .codec import Codec, Residual

_SIZE = re.compile(r"([1-9]\d*)(k|M|G|Ki|Mi|Gi)?")
_FACTORS = {None: 1, "k": 10**3, "M": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}


def bench(spec: str, size: int | str = "4Mi", *, seconds: float = 1.0, **options) -> dict:
    """Times whole frames of `laconic.Codec(spec)`: encode, with error feedback if the spec has it, and decode.

    Args:
        spec: as for `Codec`; may be a registered codec.
        size: bytes of float32, such as 4194304 or "4Mi". The values are drawn from a Laplace distribution.
        seconds: approximate duration of the measurement.
        options: settings of the codec.

    Returns:
        dict: codec, elements, encode_x_memcpy and decode_x_memcpy (medians of pairs, each of one call and one memcpy of the same
            bytes), encode_s, decode_s, memcpy_s (seconds), frame_bytes, ratio, samples. Times are CPU seconds of this thread, so
            other processes hardly affect them. `laconic bench` measures the kernels without Python.
    """
    numpy = _arrays.numpy_or_none()
    if numpy is None:
        raise errors.error("unsupported", "laconic.bench needs NumPy", "the command `laconic bench` does not")
    codec = Codec(spec, **options)
    elements = _elements(size)
    values = numpy.random.default_rng(1).laplace(scale=1e-3, size=elements).astype(numpy.float32)
    copy, out = numpy.empty_like(values), numpy.empty_like(values)
    residual = Residual(elements) if codec.feedback else None
    frame = codec.encode(values, residual=residual)
    codec.decode(frame, out)
    calls = {"memcpy": lambda: numpy.copyto(copy, values), "encode": lambda: codec.encode(values, residual=residual),
             "decode": lambda: codec.decode(frame, out)}
    repeats = max(1, int(1e-3 / max(_seconds(calls["memcpy"], 1), 1e-7)))  # a millisecond of copies: beyond the clock's grain
    times: dict[str, list] = {"memcpy": [], "encode": [], "decode": []}
    ratios: dict[str, list] = {"encode": [], "decode": []}
    end = time.monotonic() + seconds
    while not ratios["decode"] or time.monotonic() < end:
        for what in ratios:
            before = _seconds(calls["memcpy"], repeats)
            taken = _seconds(calls[what], 1)
            copied = (before + _seconds(calls["memcpy"], repeats)) / 2
            times["memcpy"].append(copied)
            times[what].append(taken)
            ratios[what].append(copied / max(taken, 1e-9))
    median = {what: float(numpy.median(found)) for what, found in times.items()}
    return {"codec": codec.spec, "elements": elements, "encode_x_memcpy": float(numpy.median(ratios["encode"])),
            "decode_x_memcpy": float(numpy.median(ratios["decode"])), "encode_s": median["encode"], "decode_s": median["decode"],
            "memcpy_s": median["memcpy"], "frame_bytes": len(frame), "ratio": 4 * elements / len(frame), "samples": len(ratios["decode"])}


def _elements(size) -> int:
    given = _SIZE.fullmatch(str(size)) if not isinstance(size, bool) else None
    elements = int(given[1]) * _FACTORS[given[2]] // 4 if given else 0
    if not 1 <= elements <= 2**32:
        raise errors.error("invalid_argument", f"size is {size!r}", 'bytes of float32, at least 4: 4194304 or "4Mi"')
    return elements


def _seconds(call, repeats: int) -> float:
    """Seconds of one call, in this thread's CPU time."""
    start = time.thread_time()
    for _ in range(repeats):
        call()
    return (time.thread_time() - start) / repeats
