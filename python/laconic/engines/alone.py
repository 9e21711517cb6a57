# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The engine of one rank, which needs no library. No torch in here."""

from __future__ import annotations

import ctypes

from ..core import _lib


class Alone:
    """What this rank sends it receives."""

    of_cpp = True  #: no round of Python's own
    name, library, rank, world, sums, short_sends = "none", "none", 0, 1, 0, True

    def probe_sums(self) -> int:
        return self.sums

    def start(self, steps, count: int) -> None:
        for step in steps[:count]:
            if step.kind in (_lib.ALL_GATHER, _lib.ALL_TO_ALL) and step.send_counts[0]:
                ctypes.memmove(step.recv + step.recv_offsets[0], step.send + step.send_offsets[0], step.send_counts[0])

    def wait(self, batch: None) -> None:
        """`start` has done it."""

    settle = wait

    def gather_bytes(self, data: bytes) -> bytes:
        return data

    def close(self) -> None:
        """There is nothing to free."""
