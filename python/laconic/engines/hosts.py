# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Which ranks are on which host, and on which of its cores."""

from __future__ import annotations

import json
import os

from ..core.environment import place
from .texts import gather_texts


def seat() -> list[str]:
    """Equal for processes that have the same cores of the same host."""
    return [place(), f"{hash(frozenset(os.sched_getaffinity(0))):x}"]


class Hosts:
    """`ranks`: by host, in the order of their first ranks."""

    def __init__(self, seats: list):
        """`seats`: of all ranks, in rank order."""
        self._seats = seats
        by_host: dict[str, list[int]] = {}
        for rank, (host, _) in enumerate(seats):
            by_host.setdefault(host, []).append(rank)
        self.ranks = list(by_host.values())

    @classmethod
    def of(cls, engine) -> Hosts:
        """Collective over the engine."""
        return cls([json.loads(text) for text in gather_texts(engine, json.dumps(seat()))])

    @property
    def fullest(self) -> int:
        """Ranks of the host that has the most: those behind one port. All of them where there is one host."""
        return max(map(len, self.ranks))

    def sharing(self, rank: int) -> int:
        """Ranks that have the cores of this one, itself included."""
        return self._seats.count(self._seats[rank])

    def __str__(self) -> str:
        count, least, most = len(self.ranks), min(map(len, self.ranks)), self.fullest
        of = f"{most}" if least == most else f"{least} to {most}"
        return f"{count} host{'s' if count > 1 else ''} of {of} rank{'s' if most > 1 else ''}"


def over_port(explained: dict) -> str:
    """What a host with several ranks sends, beside a float32 ring; empty where each has a port of its own or nothing leaves a host.
    `explained`: of the session."""
    port = explained.get("port")
    if not port or port["ranks"] < 2 or not port["bytes"]:
        return ""
    return f"; {port['ring_bytes'] / port['bytes']:.2g} to 1 out of a host of {port['ranks']} ranks"


def beyond_ring(explained: dict) -> str:
    """A warning where several ranks of a host send more out of it than uncompressed gradients would in a ring; else empty."""
    port = explained.get("port")
    if not port or port["ranks"] < 2 or port["bytes"] <= port["ring_bytes"]:
        return ""
    return (f"the {port['ranks']} ranks of a host send {_megabytes(port['bytes'])} MB out of it in a step, a float32 ring would send "
            f"{_megabytes(port['ring_bytes'])} MB: use another spec, or train without laconic")


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.3g}"
