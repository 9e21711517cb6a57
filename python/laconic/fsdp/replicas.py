# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The ranks that hold the same shard and exchange gradients, and the other ranks of a replica, to which failures are reported."""

from __future__ import annotations

import datetime
import hashlib

import torch
import torch.distributed as dist

from ..core import errors
from ..core.environment import DISABLED
from ..core.errors import LaconicError
from ..engines.group import Claims, Meeting, Sibling, disabled_on, group_timeout, listed
from ..exchange.driver import engine_failed
from ..exchange.lane import Held

_TEXT = 500  #: bytes of a message to the other shards
_TWO_LINES = ('mesh = init_device_mesh("cuda", (replicas, shards), mesh_dim_names=("replicate", "shard")); fully_shard(model, mesh=mesh["shard"]), '
              'then laconic.attach(model, spec, replicate=mesh["replicate"])')


def replicas_of(units: list, replicate):
    """The process group of the replicas, and the units whose gradients they exchange. `replicate`: that of laconic.attach."""
    native = [unit for unit in units if unit.native is not None]
    if native and replicate is not None:
        raise errors.error("invalid_argument", "replicate= was given, and the model's own mesh has replicas", "omit it: the replicas are taken from the mesh")
    if not native and replicate is None:
        raise errors.error("unsupported", "the model is sharded over a 1-D mesh, which does not identify the replicas", _TWO_LINES)
    if not native:
        return _group_of(replicate), units
    ranks = [dist.get_process_group_ranks(unit.native) for unit in native]
    other = next((i for i, some in enumerate(ranks) if some != ranks[0]), None)
    if other is not None:
        raise errors.error("unsupported", f"{native[0].module} has replicas on ranks {listed(ranks[0])}, {native[other].module} on ranks "
                           f"{listed(ranks[other])}", "use the same replicas for all parameters of a model")
    return native[0].native, native


def _group_of(replicate):
    if hasattr(replicate, "get_group") and getattr(replicate, "ndim", 0) == 1:
        replicate = replicate.get_group()
    if not isinstance(replicate, dist.ProcessGroup):
        raise errors.error("invalid_argument", f"replicate= is {replicate!r}"[:200], "a DeviceMesh of one dimension, or a ProcessGroup")
    if dist.get_rank(replicate) < 0:
        raise errors.error("invalid_argument", "replicate= is a group without this rank", "pass the group of the ranks that hold the same shards as this one")
    return replicate


def objection(model, units: list, replicas, given: dict, message: str) -> str:
    """The message of the first rank that cannot attach, or in what the ranks contradict each other; empty: all can attach. Every rank that holds a
    part of the model gives its own, and none waits for one that gave another group. `units`, `replicas` (None: not known): as far as this rank has
    them. `given`: "places" of its shards, and arguments that have to be equal."""
    native = next((unit.native for unit in units if unit.native is not None), None)
    groups = _axes_of(units, [] if native is None else dist.get_process_group_ranks(native))
    claim = {"message": message, "axes": [dist.get_process_group_ranks(g) for g in groups], "given": given,
             "replicas": [] if replicas is None else sorted(dist.get_process_group_ranks(replicas))}
    subject = hashlib.blake2b(repr([(name, tuple(p.shape)) for name, p in model.named_parameters()]).encode(), digest_size=8).hexdigest()
    timeout = group_timeout(next(iter(groups), replicas or dist.group.WORLD)) or datetime.timedelta(minutes=30)
    claims = Claims(subject, claim, lambda known: {rank for ranks in (*known["axes"], known["replicas"]) for rank in ranks}, timeout)
    message = _merged(list(claims.of), [known["message"] for known in claims.of.values()]) or _contradiction(claims.of)
    if message:
        claims.let_others_read()
    return message


def _contradiction(claims: dict[int, dict]) -> str:
    first = min(claims)
    for rank, known in claims.items():
        for name in ("reduce", "sync_parameters"):
            if known["given"][name] != claims[first]["given"][name]:
                return f"{name}= is {claims[first]['given'][name]} on rank {first} and {known['given'][name]} on rank {rank}"
        replicas = known["replicas"]
        for other in replicas:
            if claims[other]["replicas"] != replicas:
                return f"replicate= is {_ranks(replicas)} on rank {rank} and {_ranks(claims[other]['replicas'])} on rank {other}"
            if (theirs := claims[other]["given"]["places"]) != (own := known["given"]["places"]):
                return f"replicate= has ranks of other shards: rank {rank} holds {own or 'all'}, rank {other} {theirs or 'all'}"
        beside = {other for replica in replicas for axis in claims[replica]["axes"] for other in axis}
        for other in {other for axis in known["axes"] for other in axis}:
            theirs = claims[other]["replicas"]
            if len(theirs) != len(replicas) or not beside.issuperset(theirs):
                return (f"replicate= is {_ranks(replicas)} on rank {rank} and {_ranks(theirs)} on rank {other}, which holds another shard: these are not "
                        "the same replicas")
    return ""


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {listed(ranks)}"


def _axes_of(units: list, replicas: list[int]) -> list:
    """Process groups along which a replica is cut, each once."""
    return list({tuple(dist.get_process_group_ranks(g)): g for unit in units for g in unit.other_groups(replicas)}.values())


class Shards:
    """The other ranks of a replica. Messages are exchanged along one axis after the other, every axis that is not replicated; then they have
    reached all ranks.

    Attributes, which outlive the groups: `replica_ranks`; `ranks`, that hold a replica together with this one; `count`, on the longest axis; `first`,
    whether this rank is the first on every axis: it logs for its replica."""

    def __init__(self, units: list, replicas):
        self.replicas = replicas
        self.replica_ranks = dist.get_process_group_ranks(replicas)
        self._axes = _axes_of(units, self.replica_ranks)
        self._lines: list = []  # the groups for host tensors
        self.first = all(dist.get_rank(g) == 0 for g in self._axes)
        self.count = max((dist.get_world_size(g) for g in self._axes), default=1)
        self.ranks = sorted({rank for g in self._axes for rank in dist.get_process_group_ranks(g)} or {dist.get_rank()})

    # ---- attach -----------------------------------------------------------------------------------------------------------------

    def meet(self, backend: str) -> Meeting:
        """Makes the groups for host tensors of the engine `backend`, and returns the meeting of the replicas."""
        self._lines = [Sibling(group, Meeting(group, ""), backend=backend).group for group in self._axes]
        return Meeting(self.replicas, "", Held(self.replicas))

    def reported(self, message: str) -> str:
        """The first message that a rank of this replica reports, through the store."""
        for group in self._axes:
            message = _merged(dist.get_process_group_ranks(group), Meeting(group, message).words)
        return message

    # ---- training ---------------------------------------------------------------------------------------------------------------

    def agree(self, failure: LaconicError | None) -> LaconicError | None:
        """At the end of backward(): this rank's failure, or that of another shard. Exchanges one byte on each axis; without it the other shards
        would start the next step and wait there for this rank."""
        for line in self._lines:
            try:
                failure = _agreed(line, failure)
            except RuntimeError as error:
                failure = failure or engine_failed(error)
        return failure


def _agreed(line, failure: LaconicError | None) -> LaconicError | None:
    byte = torch.tensor([failure is not None], dtype=torch.uint8, device="cpu")
    dist.all_reduce(byte, op=dist.ReduceOp.MAX, group=line)
    if not byte.item():
        return None
    text = b"" if failure is None else str(failure).encode()[:_TEXT]
    own = torch.frombuffer(bytearray(text.ljust(_TEXT, b"\0")), dtype=torch.uint8)
    gathered = [torch.empty_like(own) for _ in range(dist.get_world_size(line))]
    dist.all_gather(gathered, own, group=line)
    if failure is not None:
        return failure
    texts = [bytes(some.tolist()).rstrip(b"\0").decode(errors="replace") for some in gathered]
    rank = next((r for r, some in enumerate(texts) if some), 0)
    return errors.error("peer_failed", f"another shard of this replica has failed, on rank {dist.get_process_group_ranks(line)[rank]}: {texts[rank]}",
                        "gradients of this step are lost; training can continue with the next step, unless the engine has failed")


def _merged(ranks: list[int], words: list[str]) -> str:
    """The message of all of them; the first error if they differ."""
    if len(set(words)) == 1:
        return words[0]
    return next((text for text in words if text and text != DISABLED), "") or disabled_on(ranks, words)
