# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Process groups: a word from every rank before the first collective, and siblings for worker threads."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import json
import logging
import time
import weakref

import torch
import torch.distributed as dist

from ..core import _checks, environment, errors, threads
from ..core.errors import LaconicError
from . import addresses
from .texts import listed

_checks.supported_torch(torch.__version__)  # here, because all that trains imports this module

_TIMEOUT = datetime.timedelta(minutes=30)  # torch's default, if a group does not report its timeout
#: seconds after which a line names the ranks that are awaited
NAMED_AFTER = 60.0


def group_timeout(group):
    """The group's timeout, or None where torch does not tell: a sibling must not wait longer than its original."""
    for options in (
        lambda: group._get_backend(torch.device("cpu")).options,  # noqa: SLF001
        lambda: group._get_backend(torch.accelerator.current_accelerator()).options,  # noqa: SLF001
    ):
        try:
            return options()._timeout  # noqa: SLF001
        except (AttributeError, RuntimeError, TypeError):
            continue
    return None


def seconds(group) -> float:
    """Timeout of users' calls that wait for other ranks."""
    timeout = group_timeout(group)
    return 60.0 if timeout is None else timeout.total_seconds()


def set_timeout(group, timeout: datetime.timedelta) -> None:
    """Sets the timeout of later operations on the group's CPU backend, if torch can change it."""
    with contextlib.suppress(AttributeError, RuntimeError):  # backends that have none
        group._get_backend(torch.device("cpu"))._set_default_timeout(timeout)  # noqa: SLF001


def _store(group):
    """The store through which the group's ranks found each other; None where there is none (MPI)."""
    try:
        return dist.distributed_c10d._pg_map[group][1]  # noqa: SLF001
    except (AttributeError, KeyError, IndexError, TypeError):
        return None


class Meeting:
    """Every rank's word in one call of attach, exchanged through the group's store.

    No collective is involved, so ranks about to act differently learn of each other, and none of them waits in a collective that
    others never enter.

    Attributes: `words` of all ranks in rank order; `addresses`, from which they reach the store, none without one; `number` of the meeting, the same on all ranks (None without a store); `free`:
    numbers of the siblings that every rank has released without a failure; `shared`: those that wrappers of every rank use, of which `held` has
    this rank's lanes; `cards`: what each rank brought, in rank order, this one's alone without a store.
    """

    def __init__(self, group, word: str, held=None, card=None):
        """Blocks until every rank has said its word; LaconicError (timed_out) names those that did not in the group's time."""
        world, store = dist.get_world_size(group), _store(group)
        self.addresses: list[str] = []
        self.cards = [card]
        self.held = held
        self.words, self.number, self.free, self.shared = [word] * world, None, set(), set(held or ()) if world == 1 else set()
        if world == 1:
            self.number, self.free = next(_alone), set(_free_siblings.get(group, ()))
        if store is None or world == 1:
            return
        rank = dist.get_rank(group)
        # Counted in the store, so that a group that is destroyed and made again does not read its predecessor's words.
        self.number = store.add(f"laconic/meetings/{rank}", 1)
        keys = {r: f"laconic/{self.number}/{r}" for r in range(world)}
        store.set(keys[rank], json.dumps({"word": word, "free": sorted(_free_siblings.get(group, ())), "shared": list(held or ()),
                                          "address": addresses.towards_store(store), "card": card}))
        timeout = group_timeout(group) or _TIMEOUT
        try:
            _wait(store, keys, rank, timeout.total_seconds())
            said = [json.loads(store.get(key)) for key in keys.values()]
        except RuntimeError as error:
            raise _nobody_came(store, keys, rank, timeout, error) from None
        self.words, self.addresses, self.cards = ([entry[what] for entry in said] for what in ("word", "address", "card"))
        self.free, self.shared = (set.intersection(*(set(entry[which]) for entry in said)) for which in ("free", "shared"))
        if len(set(self.words)) > 1:
            _let_others_read(store, f"laconic/{self.number}/read", world)


class Claims:
    """What ranks of the default group claim of each other, exchanged through its store before a group of theirs is used: a rank learns the claim
    of every rank that it mentions, then of those that these mention. So all of them learn the same, whatever one of them got wrong.

    Attributes: `of`, each rank's claim; this one's alone if the group has no store.
    """

    def __init__(self, subject: str, claim: dict, mentioned, timeout: datetime.timedelta):
        """`subject` is the same on all of them; mentioned(claim): ranks that a claim names. LaconicError (timed_out) names the ranks that claimed
        nothing in that time."""
        rank, self._store = dist.get_rank(), _store(dist.group.WORLD)
        self.of = {rank: claim}
        if self._store is None:
            return
        prefix = f"laconic/claims/{subject}"
        self._number = f"{prefix}/{self._store.add(f'{prefix}/{rank}', 1)}"
        self._store.set(f"{self._number}/{rank}", json.dumps(claim))
        while more := {other for known in self.of.values() for other in mentioned(known)} - set(self.of):
            keys = {other: f"{self._number}/{other}" for other in sorted({rank, *more})}
            try:
                _wait(self._store, keys, rank, timeout.total_seconds())
                self.of |= {other: json.loads(self._store.get(key)) for other, key in keys.items()}
            except RuntimeError as error:
                raise _nobody_came(self._store, keys, rank, timeout, error) from None
        self.of = dict(sorted(self.of.items()))

    def let_others_read(self) -> None:
        """Before this rank raises an error, after which it may end."""
        if self._store is not None:
            _let_others_read(self._store, f"{self._number}/read", len(self.of))


def meet(group, what: str, disabled: bool, refusal: LaconicError | None, held=None, card=None) -> Meeting:
    """Every rank learns, before any collective, what every other one is about to do. LaconicError on every rank, the same where they differ, if a
    rank has a `refusal`, its reason why it cannot `what` ("attach"), or if LACONIC_DISABLE is set on some of them."""
    try:
        meeting = Meeting(group, environment.DISABLED if disabled else "" if refusal is None else str(refusal), held, card)
    except LaconicError as error:  # the store may have ended with a rank that refuses, too
        raise refusal or error from None
    if len(set(meeting.words)) > 1:
        if some := disabled_on(range(len(meeting.words)), meeting.words):
            raise errors.error("ranks_disagree", some, "set it on all ranks or on none")
        rank, said = next((rank, said) for rank, said in enumerate(meeting.words) if said)
        raise errors.error("ranks_disagree", f"rank {rank} could not {what}: {said}", "give every rank the same call, file and LACONIC_* variables")
    if refusal is not None:
        raise refusal
    return meeting


def _let_others_read(store, key: str, world: int) -> None:
    """Ranks that differ are about to raise, and the one that hosts the store may end with it: it waits for the others a while."""
    deadline = time.monotonic() + 5
    try:
        read = store.add(key, 1)
        while read < world and time.monotonic() < deadline:
            time.sleep(0.01)
            read = store.add(key, 0)
    except RuntimeError:
        pass  # the host has received every rank's word, or has ended


def _wait(store, keys: dict[int, str], rank: int, timeout: float) -> None:
    """`keys`: by rank. RuntimeError if a key is missing at the timeout. A rank may load data for minutes, but after one minute the lowest rank that
    is here logs the missing ranks."""
    begin = time.monotonic()
    error, absent = _absent(store, keys, min(NAMED_AFTER, timeout))
    left = timeout - (time.monotonic() - begin)
    if absent and rank not in absent and left > 0:
        if rank == min(set(keys).difference(absent)):
            environment.say(f"waiting for rank {listed(absent)} to attach; the other ranks wait for at most {left:.0f} s more",
                            logging.WARNING)
        error, absent = _absent(store, keys, left)
    if absent:
        raise error


def _absent(store, keys: dict[int, str], seconds: float) -> tuple[RuntimeError | None, list[int]]:
    """The ranks whose key is missing after this time, and the store's error."""
    try:
        store.wait(list(keys.values()), datetime.timedelta(seconds=seconds))
    except RuntimeError as error:
        return error, [r for r, key in keys.items() if not _holds(store, key)]  # none: the last one came at the timeout
    return None, []


def _nobody_came(store, keys, rank, timeout, error) -> LaconicError:
    absent = [r for r, key in keys.items() if not _holds(store, key)]
    if not absent or rank in absent:  # this rank's own word is there, unless the store is gone
        return errors.error("engine_failed", f"the group's store failed: {error}", "restart from the last checkpoint")
    return errors.error("timed_out", f"rank {listed(absent)} did not attach within {timeout.total_seconds():g} s: is it running "
                        "without laconic?", "call laconic.attach on every rank of the group, or start every rank under laconic.run")


def speaks_for_node() -> bool:
    """One process per node reports what it found in the environment."""
    launcher = environment.launcher()
    local = None if launcher is None else environment.number(launcher.local_rank)
    return local == 0 if local is not None else dist.get_rank() == 0


def disabled_on(ranks: list[int], words: list[str]) -> str:
    """Which ranks said that LACONIC_DISABLE is set, and which did not; empty: all said the same of it."""
    off, on = ([rank for rank, said in zip(ranks, words) if (said == environment.DISABLED) == wanted] for wanted in (True, False))
    return f"{environment.DISABLED} is set on rank {listed(off)} and not on rank {listed(on)}" if off and on else ""


def _holds(store, key: str) -> bool:
    try:
        return store.check([key])
    except RuntimeError:
        return False


_alone = itertools.count()
# group → number of the meeting that made it → (kind, groups of the sibling whose handle was closed)
_free_siblings: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


class Sibling:
    """A group of the same ranks, for one thread; of the same backend, unless another is named. With `nodes` two groups: `group`, of the ranks
    with this one's place in their nodes, and `inside`, of its node's; with `near`, the name of a backend, a third: `near`, of its node's as well.

    Collective over the group. Siblings are reused after `release`, never destroyed.
    """

    def __init__(self, of, meeting: Meeting, *, backend: str | None = None, nodes=None, near: str | None = None):
        self.of, self.nodes = of, nodes
        self.backend = self.backend_of(of, backend)
        self.kind = self.kind_of(of, backend, nodes, near)
        free = _free_siblings.get(of, {})
        fit = [number for number in meeting.free if free[number][0] == self.kind]
        if fit:
            self.number = min(fit)
            self.group, self.inside, self.near = free.pop(self.number)[1]
        else:
            self.number = meeting.number
            at = addresses.of_gloo(meeting.addresses, dist.get_rank(of)) if self.backend == "gloo" else ""
            with threads.that_wait(), addresses.gloo_at(at):
                self.group = _new_group(of, self.backend, f"{self.number}", nodes and nodes.across)
                self.inside = nodes and _new_group(of, self.backend, f"{self.number}/inside", nodes.inside)
                self.near = near and _new_group(of, near, f"{self.number}/near", nodes.inside)

    @staticmethod
    def backend_of(of, backend: str | None) -> str:
        return backend or _cpu_backend(of)

    @classmethod
    def kind_of(cls, of, backend: str | None, nodes, near: str | None) -> tuple:
        """Siblings of the same kind can replace each other."""
        return cls.backend_of(of, backend), nodes and nodes.ranks, near

    def release(self) -> None:
        """For the next attach to the same group. Not after a failed collective: stale messages may be on their way."""
        if self.number is not None:
            _free_siblings.setdefault(self.of, {})[self.number] = self.kind, (self.group, self.inside, self.near)


def _cpu_backend(group) -> str:
    """That which serves tensors on the CPU, where a group has several."""
    try:
        return group._get_backend(torch.device("cpu")).name()  # noqa: SLF001
    except (AttributeError, RuntimeError):
        return dist.get_backend(group)


def near_backend(group, device: torch.device) -> str | None:
    """The backend by which the ranks of a node can exchange tensors of their devices; None where they meet on the host: on the CPU, where Gloo alone
    serves the device, and where new groups are split off one of more ranks, which all of these would have to call."""
    if device.type == "cpu":
        return None
    if dist.get_world_size(group) < dist.get_world_size() and getattr(dist.group.WORLD, "bound_device_id", None) is not None:
        return None
    try:
        served = dict(pair.split(":") for pair in str(dist.get_backend_config(group)).split(","))
    except (RuntimeError, ValueError, AttributeError):
        return None
    backend = served.get(device.type)
    return None if backend in ("gloo", "mpi", "undefined") else backend


def _new_group(group, backend: str, name: str, some=None):
    """Of all ranks of a group, or of some of them. `name` is the same on these, and no other group's of these ranks."""
    ranks, timeout = dist.get_process_group_ranks(group), group_timeout(group)
    if some is not None:
        ranks = [ranks[rank] for rank in some]
    keywords = {"ranks": ranks, "backend": backend}
    if timeout is not None:
        keywords["timeout"] = timeout
    if len(ranks) == dist.get_world_size():
        return dist.new_group(**keywords)
    with _named(f"laconic/{group.group_name}/{name}/{'-'.join(map(str, ranks))}"):
        return dist.new_group(use_local_synchronization=True, **keywords)  # ranks outside the group know nothing of this call


@contextlib.contextmanager
def _named(name: str):
    """The name of groups that are made in this block. torch's own for a local group contains the number of groups that this process is in, which
    differs where ranks are in different groups of the user: they would wait for each other until the timeout."""
    module = dist.distributed_c10d
    kept = module._process_group_name  # noqa: SLF001
    module._process_group_name = lambda *_, **__: name  # noqa: SLF001
    try:
        yield
    finally:
        module._process_group_name = kept  # noqa: SLF001
