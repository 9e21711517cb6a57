# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Which ranks share a node, and what they exchange with each other there.

Ranks with the same place in their nodes exchange one shard of the model; inside a node its ranks make the shards' means of their gradients.
"""

from __future__ import annotations

import dataclasses
import logging
import os

from ..core import environment, errors
from .texts import gather_texts

WORDS = ("auto", "on", "off")
#: reasons for flat exchanges, where nobody would expect others
ONE_HOST, ONE_RANK_EACH, NOTHING = "all ranks are on one host", "each host has one rank", "nothing is compressed"


def asked(nodes) -> str:
    """The argument of laconic.attach, or LACONIC_NODES where it is None, else "auto": a word, or a number of ranks as text."""
    if nodes is None:
        nodes = os.environ.get("LACONIC_NODES", "").strip().lower() or "auto"
    text = str(nodes)
    if isinstance(nodes, bool) or not (text in WORDS or (text.isdecimal() and int(text) > 0)):
        raise errors.error("invalid_argument", f"nodes={nodes!r}: expected auto, on, off or the number of ranks of a node",
                           'nodes="on" finds the ranks of each host')
    return text


def refuse(nodes, why: str) -> None:
    """Raises LaconicError where the argument `nodes` requests nodes of something that exchanges flat."""
    if nodes is not None and asked(nodes) not in ("auto", "off"):
        raise errors.error("unsupported", f"nodes={nodes!r}: {why}", "leave nodes out")


def report_unused(by: str) -> None:
    """Logs that LACONIC_NODES requests nodes of something that exchanges flat."""
    setting = os.environ.get("LACONIC_NODES", "").strip().lower()
    if setting not in ("", "auto", "off"):
        environment.say(f"LACONIC_NODES={setting} is not used: {by} exchanges flat", logging.WARNING)


@dataclasses.dataclass(frozen=True)
class Nodes:
    """At least two nodes of as many ranks, at least two. `ranks`: of each node, in rank order; `rank`: this one."""

    ranks: tuple[tuple[int, ...], ...]
    rank: int

    @property
    def count(self) -> int:
        return len(self.ranks)

    @property
    def size(self) -> int:
        """Ranks of a node."""
        return len(self.ranks[0])

    @property
    def inside(self) -> tuple[int, ...]:
        """Ranks of this one's node."""
        return next(ranks for ranks in self.ranks if self.rank in ranks)

    @property
    def local(self) -> int:
        """Its place there, which is the number of its shard."""
        return self.inside.index(self.rank)

    @property
    def across(self) -> tuple[int, ...]:
        """Those with the same place, by node."""
        return tuple(ranks[self.local] for ranks in self.ranks)

    def ring(self, bytes_of_shard: int) -> int:
        """Bytes that a float32 ring of all ranks sends out of a host. bytes_of_shard: those of each rank in a ring of one shard's ranks."""
        return bytes_of_shard * (self.count * self.size - 1) // (self.count - 1)

    def __str__(self) -> str:
        return f"{self.count} nodes of {self.size} ranks"


@dataclasses.dataclass(frozen=True)
class Levels:
    """Two levels, or none (`nodes` is None). `why`: the reason; `announced`: the start line has it."""

    nodes: Nodes | None = None
    why: str = ""
    announced: bool = False


FLAT = Levels()


def seated(setting: str, places: list[str], rank: int, hosts: list[str]) -> tuple[Nodes | None, str]:
    """The nodes of ranks in these places (environment.place, in rank order) on `hosts`, by name; or none, and why. The same on every rank."""
    world = len(places)
    if setting == "off":
        return None, "not requested"
    if setting.isdecimal():
        size = int(setting)
        if world % size:
            raise errors.error("invalid_argument", f"nodes={size}: {world} ranks are no whole number of nodes", 'use nodes="off"')
        ranks = [tuple(range(first, first + size)) for first in range(0, world, size)]
    else:
        by_place: dict[str, list[int]] = {}
        for each, place in enumerate(places):
            by_place.setdefault(place, []).append(each)
        ranks = [tuple(own) for own in by_place.values()]
    sizes = {len(own) for own in ranks}
    if len(ranks) == 1:
        return None, ONE_HOST
    if len(sizes) > 1:
        (most, fullest), (least, emptiest) = ((len(own), hosts[own[0]]) for own in (max(ranks, key=len), min(ranks, key=len)))
        return None, f"{fullest} has {most} ranks and {emptiest} {least}"
    if sizes == {1}:
        return None, ONE_RANK_EACH
    return Nodes(tuple(ranks), rank), "requested"


class Everyone:
    """All ranks of the job, for texts: by the engine of a node and that across nodes."""

    def __init__(self, nodes: Nodes, across, inside):
        self._nodes, self._across, self._inside = nodes, across, inside
        self.rank, self.world = nodes.rank, nodes.count * nodes.size

    def gather_bytes(self, data: bytes) -> bytes:
        """Every rank's `data` (equal lengths), in rank order."""
        gathered, size = self._across.gather_bytes(self._inside.gather_bytes(data)), len(data)
        order = [rank for ranks in self._nodes.ranks for rank in ranks]
        at = {rank: size * place for place, rank in enumerate(order)}
        return b"".join(gathered[at[rank] : at[rank] + size] for rank in range(self.world))


def failure_in(inside, nodes: Nodes, text: str, failure):
    """A node's ranks compare `text` before each tells the ranks across. The node's failure, or that texts differ, and a rank whose it is; or
    (None, None)."""
    said = "" if failure is None else f"{failure.name}\n{failure.message}\n{failure.hint or ''}"
    told = gather_texts(inside, f"{said}\0{text}" if said else f"\0{text}", 1000)
    told = [one.partition("\0") for one in told]
    if failure is not None and len({words for words, _, _ in told}) == 1:  # the same on all of them
        return failure, nodes.inside[0]
    for rank, (words, _, _) in zip(nodes.inside, told):
        if words:
            name, message, hint, *_ = words.split("\n") + ["", "", ""]
            return errors.error(name, message, hint or None), rank
    first = told[0][2]
    for rank, (_, _, own) in zip(nodes.inside, told):
        if own != first:
            return errors.error("ranks_disagree", f"rank {nodes.inside[0]} has {first[:150]}, rank {rank} has {own[:150]}",
                                "give every rank the same call, file and LACONIC_* variables"), rank
    return None, None
