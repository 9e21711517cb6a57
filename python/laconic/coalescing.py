# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Short parts of buckets that wait for the next ones and travel as one exchange (decision 0045)."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from . import _lib
from ._arrays import zeros
from ._session import CSession, Layout
from .aggregation import AggregatingEngine

#: They wait for no more where a rank's payloads together may have so many bytes, or where so many elements have come together.
MOST_BYTES, MOST_ELEMENTS = 1 << 16, 4 * _lib.SHORT_ELEMENTS
#: bytes of the most that come together: the last may be as long as a short one can be
_ROOM = 4 * (MOST_ELEMENTS + _lib.SHORT_ELEMENTS)


@dataclass(frozen=True)
class Piece:
    """A part of a job's buffer on the host: an exchange of its own, or with others."""

    job: Any
    layout: Layout
    address: int
    index: int


class Coalesced:
    """Pieces back to back in a buffer of their own, from `address` on."""

    def __init__(self, pieces: list[Piece], layout: Layout, address: int, width: int):
        self.pieces, self.layout, self.address, self._width = pieces, layout, address, width
        self.failure = next((piece.job.failure for piece in pieces if piece.job.failure is not None), None)
        for place, piece, size in self._places():
            ctypes.memmove(place, piece.address, size)

    def _places(self):
        place = self.address
        for piece in self.pieces:
            size = piece.layout.elements * self._width
            yield place, piece, size
            place += size

    def copy_back(self) -> None:
        for place, piece, size in self._places():
            ctypes.memmove(piece.address, place, size)


class Coalescing:
    """The pieces that wait. What travels together is a function of their order and sizes, never of time: the same on all ranks."""

    def __init__(self, session, engine):
        # A server adds up by bucket, and a codec in Python is for trying ideas.
        self._session = session if isinstance(session, CSession) and not isinstance(engine, AggregatingEngine) else None
        self.waiting: list[Piece] = []
        self._parameters: set[int] = set()
        self._bytes = self._elements = 0
        self._layouts: dict[tuple[Layout, ...], Layout] = {}
        self._used: set[tuple[Layout, ...]] = set()
        self._used_before: set[tuple[Layout, ...]] = set()
        # As many as a window may have in flight. Memory that no step has touched is none.
        self._memory = zeros(_lib.MAX_WINDOW * _ROOM if self._session is not None else 0)
        self._free = [ctypes.addressof(self._memory) + place * _ROOM for place in range(_lib.MAX_WINDOW)]

    def takes(self, layout: Layout) -> bool:
        """May it travel with others? Sums of the engine's depend on what lies beside what."""
        return self._session is not None and not self._session.layout_matters and layout.elements <= _lib.SHORT_ELEMENTS

    def goes_with(self, job, layout: Layout) -> bool:
        """With those that wait? An iteration that was broken off may have left some to the next one."""
        first, part = self.waiting[0], self._session.part
        return ((part == 0 or 4 * (self._elements + layout.elements) <= part) and job.step == first.job.step
                and layout.dtype == first.layout.dtype and job.scale is first.job.scale and job.rates is first.job.rates
                and self._parameters.isdisjoint(layout.parameters))

    def add(self, piece: Piece) -> bool:
        """True: they wait for no more."""
        self.waiting.append(piece)
        self._parameters.update(piece.layout.parameters)
        self._bytes += self._session.most_bytes(piece.layout)
        self._elements += piece.layout.elements
        return self._bytes >= MOST_BYTES or self._elements >= MOST_ELEMENTS

    def take(self) -> list[Piece]:
        """Those that wait, who wait no more."""
        pieces, self.waiting = self.waiting, []
        self._parameters.clear()
        self._bytes = self._elements = 0
        return pieces

    def join(self, pieces: list[Piece], width: int) -> Coalesced:
        """Copies them together."""
        key = tuple(piece.layout for piece in pieces)
        layout = self._layouts.get(key)
        if layout is None or layout.dtype != key[0].dtype:
            layout = self._layouts[key] = _back_to_back(key)
        self._used.add(key)
        return Coalesced(pieces, layout, self._free.pop(), width)

    def give_back(self, together: Coalesced) -> None:
        self._free.append(together.address)

    def end_step(self) -> None:
        """Frees the layouts that came neither in this step nor in the one before."""
        for key in [key for key in self._layouts if key not in self._used | self._used_before]:
            self._session.release(self._layouts.pop(key))
        self._used, self._used_before = set(), self._used

    def close(self, abandoned: bool) -> None:
        """Frees the memory with this object; never, if a collective that has not ended uses it."""
        if abandoned:
            _abandoned.append(self._memory)


_abandoned: list = []


def _back_to_back(layouts) -> Layout:
    parameters, offsets, elements = [], [], 0
    for layout in layouts:
        parameters += layout.parameters
        offsets += [elements + offset for offset in layout.offsets]
        elements += layout.elements
    made = Layout(parameters, offsets, elements)
    made.dtype = layouts[0].dtype
    return made
