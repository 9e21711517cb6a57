# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""LACONIC_TRACE=FILE: a Chrome trace of encoding, network and decoding (chrome://tracing, ui.perfetto.dev).

One file per rank: for `trace.json`, rank 0 writes `trace.rank0.json`. Times are from the machine's clock, so that the files of
several ranks of one machine can be loaded together.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import time
from pathlib import Path

from ..core import environment

VARIABLE = "LACONIC_TRACE"
LIMIT = 200_000  # events of one rank
_PHASES = ("encode", "wire", "decode")
_COMPUTING, _WIRE = 0, 1  # rows: the worker's computation, then one row per exchange on the network


class Trace:
    """Writes an event when it has ended. Used by one thread."""

    def __init__(self, path: Path, rank: int, window: int):
        self._file = path.open("w", encoding="utf-8")
        self._rank, self._left = rank, LIMIT
        self._places: list[float] = []  # until when each row of the wire is taken
        self._offset = time.time() - time.perf_counter()
        self._file.write("[\n")
        self._name(_COMPUTING, "encode, decode")
        for _ in range(window):
            self._add_place()
        self._put({"name": "process_name", "ph": "M", "tid": 0, "args": {"name": f"rank {rank}"}})
        atexit.register(self.close)

    def close(self) -> None:
        atexit.unregister(self.close)
        if not self._file.closed:
            self._file.write('{"name": "end", "ph": "M", "pid": %d, "tid": 0, "args": {}}\n]\n' % self._rank)
            self._file.close()

    def phase(self, which: int, step: int, index: int, begin: float, end: float) -> None:
        """A phase of an exchange, as the library numbers them; times in seconds of time.perf_counter()."""
        name = _PHASES[which]
        self._event(name, begin, end, self._place(begin, end) if name == "wire" else _COMPUTING, step, index)

    def _place(self, begin: float, end: float) -> int:
        place = next((i for i, taken in enumerate(self._places) if taken <= begin), None)
        if place is None:  # short exchanges are in flight in addition to the window's
            place = self._add_place()
        self._places[place] = end
        return _WIRE + place

    def _add_place(self) -> int:
        self._places.append(0.0)
        self._name(_WIRE + len(self._places) - 1, f"wire {len(self._places)}")
        return len(self._places) - 1

    def _name(self, row: int, name: str) -> None:
        self._put({"name": "thread_name", "ph": "M", "tid": row, "args": {"name": name}})

    def _event(self, name: str, begin: float, end: float, row: int, step: int, index: int) -> None:
        bucket, part = index & 0xFFFF, index >> 16
        self._put({"name": f"{name} {bucket}" + (f".{part}" if part else ""), "cat": name, "ph": "X", "tid": row,
                   "ts": round(1e6 * (begin + self._offset), 1), "dur": round(1e6 * (end - begin), 1),
                   "args": {"step": step, "bucket": bucket, "part": part}})

    def _put(self, event: dict) -> None:
        if self._left == 0 or self._file.closed:
            return
        self._left -= 1
        self._file.write(json.dumps({**event, "pid": self._rank}) + ",\n")
        if self._left == 0:
            environment.say(f"rank {self._rank}: {VARIABLE} has reached its limit of {LIMIT} events and stops", logging.WARNING)
            self.close()


def from_environment(rank: int, window: int) -> Trace | None:
    """The trace that LACONIC_TRACE requests. A file that cannot be written is logged and does not stop training."""
    wanted = os.environ.get(VARIABLE, "")
    if not wanted:
        return None
    path = Path(wanted)
    path = path.with_name(f"{path.stem}.rank{rank}{path.suffix or '.json'}")
    number = 2
    while path in _written:  # another model of this process
        path = path.with_name(f"{Path(wanted).stem}.rank{rank}-{number}{Path(wanted).suffix or '.json'}")
        number += 1
    _written.add(path)
    try:
        return Trace(path, rank, window)
    except OSError as error:
        environment.say(f"rank {rank}: {VARIABLE}: {error}", logging.WARNING)
        return None


_written: set[Path] = set()
