# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Members that come and go: other exchanges, over another group, for the same fragments.

Everything is received and checked before anything is changed: a call that fails leaves an OuterStep as it was, and may be made again
with another group.
"""

from __future__ import annotations

import ctypes
import dataclasses
import io
import json

import torch

from ..core import errors
from ..core.errors import LaconicError
from ..engines.group import group_timeout, meet
from ..exchange.lane import Held
from . import exchange

#: entries of a session that are this rank's own, and go on under another one
_OWN = ("residual/", "mean/", "momentum/")


@dataclasses.dataclass(frozen=True)
class Call:
    """What a rank does in a meeting of its group. `what`: "create", "join", or "regroup". `source`: whose anchor all take."""

    what: str
    source: int | None = None

    def refusal(self) -> LaconicError | None:
        if self.source is None or (isinstance(self.source, int) and not isinstance(self.source, bool) and self.source >= 0):
            return None
        return errors.error("invalid_argument", f"source is {self.source!r}", "a rank of the new group")


def check_ddp(wrapped: bool) -> LaconicError | None:
    """The refusal of a wrapper over the group that changes."""
    if not wrapped:
        return None
    return errors.error("unsupported", "the model is a DistributedDataParallel wrapper, whose group cannot change", "give OuterStep the plain model")


def met(group, disabled: bool, refusal: LaconicError | None, what: str = "create its OuterStep"):
    """The meeting of a group's ranks; None: this rank is alone."""
    if group is None:
        if refusal is not None:
            raise refusal
        return None
    try:
        return meet(group, what, disabled, refusal, Held(group))
    except LaconicError as error:
        timeout = group_timeout(group)
        if error.name != "timed_out" or timeout is None:
            raise
        absent = error.message.partition(" did not ")[0]
        raise errors.error("timed_out", f"{absent} did not {what} within {timeout.total_seconds():g} s", "every rank of the group makes the call, or a group "
                           "of those that are alive does") from None


def opened(group, meeting, asked, pieces, stage, disabled: bool) -> list:
    """The exchange of each fragment: a session of its own, with streams of its own. Collective; LaconicError on every rank or on none."""
    exchanges: list = []
    try:
        for number, piece in enumerate(pieces):
            if group is None:
                exchanges.append(exchange.Alone())
                continue
            record = asked.record if number == 0 or asked.record is None else f"{asked.record}.{number + 1}"
            exchanges.append(exchange.Together(group, meeting if number == 0 else met(group, disabled, None), stage,
                                               dataclasses.replace(asked, seed=asked.seed + number, record=record), piece))
    except RuntimeError as error:
        close(exchanges)
        raise failed(error) from error
    return exchanges


def close(exchanges) -> None:
    for one in exchanges:
        one.close()


def failed(error: RuntimeError) -> LaconicError:
    return error if isinstance(error, LaconicError) else errors.error("engine_failed", f"a rank is gone, or its connection: {error}",
                                                                      "regroup with those that are alive")


def agreed_source(one, call: Call) -> int | None:
    """Whose anchor all ranks take; None: all of them create their OuterStep. LaconicError on every rank if they make different calls."""
    calls = [Call(**json.loads(text)) for text in one.gather_texts(json.dumps(dataclasses.asdict(call)))]
    for rank, other in enumerate(calls):
        if (other.what == "create") != (calls[0].what == "create"):
            told = {"create": "creates its OuterStep", "join": "joins", "regroup": "regroups"}
            raise errors.error("ranks_disagree", f"rank 0 {told[calls[0].what]} and rank {rank} {told[other.what]}", "newcomers: OuterStep(..., join=True)")
        if other.source != calls[0].source:
            raise errors.error("ranks_disagree", f"source is {calls[0].source} on rank 0 and {other.source} on rank {rank}", "the same on all ranks")
    if call.what == "create":
        return None
    members = [rank for rank, other in enumerate(calls) if other.what == "regroup"]
    if not members:
        raise errors.error("ranks_disagree", "every rank joins, and there is nobody to take the anchor from", "OuterStep without join=True")
    source = members[0] if call.source is None else call.source
    if source not in members:
        raise errors.error("ranks_disagree", f"the source is rank {source}, which is no member that regroups", f"one of {members}")
    return source


class Adoption:
    """What all ranks have received from the source, in memory of its own: anchors, outer rules, the number of steps, buffers."""

    def __init__(self, one, rounds, buffers, source: int):
        """Collective, by the exchange `one`. LaconicError on every rank, but for ranks that go while the last word travels."""
        self._rounds, self._buffers, counts = rounds, buffers, rounds.counts
        own = {"inner_steps": counts.inner_steps, "rounds": counts.rounds, "rules": [part.fragment.rule.state_dict() for part in rounds.parts]}
        self.received = self._object(one, own, source)
        self.anchors = [part.fragment.anchor.clone() for part in rounds.parts]
        self.buffers = [buffer.detach().clone() for buffer in buffers]
        for tensor in (*self.anchors, *self.buffers):
            one.broadcast(tensor, source)

    @staticmethod
    def _object(one, own, source: int):
        packed = io.BytesIO()
        torch.save(own, packed)
        size = torch.tensor([packed.tell()], dtype=torch.int64, device="cpu")
        one.broadcast(size, source)
        values = torch.empty(int(size), dtype=torch.uint8, device="cpu")
        if one.rank == source:
            ctypes.memmove(values.data_ptr(), packed.getvalue(), values.numel())
        one.broadcast(values, source)
        return torch.load(io.BytesIO(ctypes.string_at(values.data_ptr(), values.numel())), map_location="cpu", weights_only=True)

    def apply(self, *, newcomer: bool) -> None:
        """Cannot fail. A member's parameters stay: its own change is measured from the new anchor."""
        rounds, received = self._rounds, self.received
        rounds.counts.inner_steps = rounds.since = received["inner_steps"]
        if newcomer:
            rounds.counts.rounds = received["rounds"]
        with torch.no_grad():
            for part, anchor, rule in zip(rounds.parts, self.anchors, received["rules"]):
                part.fragment.rule.load_state_dict(rule)
                part.fragment.take_anchor(anchor)
                part.last = 0  # some member may hold a change: what is known to be equal, the next round makes
                if newcomer:
                    part.fragment.restore()
            for buffer, values in zip(self._buffers if newcomer else (), self.buffers):
                buffer.copy_(values)


class Moved:
    """What a rank has not delivered under one exchange, on its way to another one."""

    def __init__(self, part, new):
        """LaconicError if it cannot be moved. Changes nothing."""
        fragment, old = part.fragment, part.exchange
        self.kept = {i: values.clone() for i, values in fragment.kept.items()}
        saved, state = old.state(), new.state()
        tensors = {} if state is None else dict(state["tensors"])
        for name, values in held(saved, old.world).items():
            if name in tensors and tensors[name].shape == values.shape:
                tensors[name] = values
            elif name.startswith("residual/"):
                keep(self.kept, fragment, name.removeprefix("residual/"), values)
        self._load = None if state is None else new.prepare({**state, "tensors": tensors})

    def apply(self, part) -> None:
        """Cannot fail."""
        if self._load is not None:
            self._load()
        part.fragment.kept = self.kept


def held(saved, world: int) -> dict[str, torch.Tensor]:
    """This rank's own entries of a session's saved state. A residual of a mean that it owned counts for all ranks, and is part of its own."""
    if saved is None:
        return {}
    own = {name: values.clone() for name, values in saved["tensors"].items() if name.startswith(_OWN)}
    for name, values in saved["tensors"].items():
        if name.startswith("owner_residual/"):
            parameter, _, begin = name.removeprefix("owner_residual/").rpartition("@")
            residual = own.setdefault(f"residual/{parameter}", torch.zeros(0, dtype=torch.float32, device="cpu"))
            end = int(begin) + values.numel()
            if residual.numel() < end:  # the way up has no feedback
                own[f"residual/{parameter}"] = residual = torch.nn.functional.pad(residual, (0, end - residual.numel()))
            residual[int(begin) : end] += world * values
    return own


def keep(kept: dict, fragment, name: str, values: torch.Tensor) -> None:
    """Adds the values of a parameter, of which the last may be missing, to what the next change gets."""
    i = fragment.names.index(name)
    if i not in kept:
        kept[i] = torch.zeros_like(fragment.anchors[i].detach())
    kept[i].view(-1)[: values.numel()] += values.view(-1).to(kept[i].device)


def said_goodbye(part, leaves: bool, stay: int) -> None:
    """What those that leave have not delivered, uncompressed and in equal parts, becomes a part of what the `stay` others hold. Collective."""
    fragment, one = part.fragment, part.exchange
    undelivered = {i: values.clone() for i, values in fragment.kept.items()} if leaves else {}
    if leaves:
        for name, values in held(one.state(), one.world).items():
            if name.startswith("residual/"):
                keep(undelivered, fragment, name.removeprefix("residual/"), values)
    given = torch.zeros_like(fragment.anchor)
    for i, values in undelivered.items():
        given[fragment.offsets[i] : fragment.offsets[i] + values.numel()] = values.view(-1)
    mean, = one.average([given])
    if leaves or not bool(mean.any()):
        return
    share = mean.mul_(one.world / stay)
    for name, offset, anchor in zip(fragment.names, fragment.offsets, fragment.anchors):
        keep(fragment.kept, fragment, name, share[offset : offset + anchor.numel()])


def say_goodbye(rounds, leaves: bool) -> None:
    """After a round of everything, each rank says whether it leaves. Collective."""
    if rounds.parts[0].exchange.world == 1:
        return
    try:
        said = rounds.parts[0].exchange.gather_texts("leave" if leaves else "")
        stay = said.count("")
        if 0 < stay < len(said):
            for part in rounds.parts:
                said_goodbye(part, leaves, stay)
    except exchange.Failed as failure:
        raise failure.error from failure
    except RuntimeError as error:
        raise failed(error) from error


def regrouped(group, call: Call, asked, rounds, trained, disabled: bool, refusal: LaconicError | None) -> None:
    """The exchanges of the rounds are those of another group. LaconicError: all is as it was, and another call may follow."""
    rounds.finish()
    pieces, stage = [part.fragment for part in rounds.parts], trained.staged()
    new = opened(group, met(group, disabled, refusal, "regroup"), asked, pieces, stage, disabled)
    try:
        adoption, moved = received(new[0], call, rounds, trained, new)
    except RuntimeError as error:
        close(new)
        raise failed(error) from error
    for part, one, own in zip(rounds.parts, new, moved):
        own.apply(part)
        part.exchange.close()
        part.exchange = one
    trained.stage = stage
    adoption.apply(newcomer=False)


def received(one, call: Call, rounds, trained, new=None):
    """What the source sends, and what this rank moves to its `new` exchanges. Collective: every rank has all of it, or all raise."""
    source = agreed_source(one, call)
    one.agree({**rounds.settings.by_name(), "the number of buffers": len(trained.buffers)})
    adoption = Adoption(one, rounds, trained.buffers, source)
    moved, problem = [], ""
    try:
        moved = [Moved(part, exchange) for part, exchange in zip(rounds.parts, new or ())]
    except LaconicError as error:
        problem = str(error)
    said = one.gather_texts(problem)
    rank = next((rank for rank, text in enumerate(said) if text), None)
    if rank is not None:
        raise errors.error("ranks_disagree", f"rank {rank} could not move its residuals: {said[rank]}", "it may join as a newcomer")
    return adoption, moved
