# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Aggregation servers (`laconic serve`): what users say of them, and an engine around another whose codes they add."""

from __future__ import annotations

import atexit
import ctypes
import dataclasses
import functools
import hashlib
import json
import logging
import math
import os
import secrets
import threading
import time
import weakref

from ..core import _lib, environment, errors
from ..core._checks import text
from ..core.background import Background
from ..core.errors import LaconicError
from .texts import gather_texts

#: seconds that a rank waits at attach for the servers and the others
JOIN = 60.0
#: seconds that a rank which has everything stays for those that have not
LINGER = 5.0
QUORUM, DEADLINE_MS = 1.0, 20.0
_HOUR_MS = 3_600_000


def _number(name: str, value, above: float, most: float, unit: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if isinstance(value, bool) or not above < number <= most:
        raise errors.error("invalid_argument", f"{name} is {value!r}", f"a number above {above:g}, at most {most:g}{unit}")
    return number


@dataclasses.dataclass(frozen=True)
class ServerOptions:
    """Options of aggregation servers in a call: see laconic.attach."""

    aggregator: str | None = None
    token: str | os.PathLike | None = None
    quorum: float = QUORUM
    deadline_ms: float = DEADLINE_MS
    auth: str = "header"
    multicast: bool = False


class Servers:
    """The aggregation servers named by a call or by the environment."""

    def __init__(self, addresses: list[str], token: str | None, quorum: float, deadline_ms: float, auth: str, multicast: bool):
        self.addresses, self.token, self.quorum, self.deadline_ms, self.auth = addresses, token, quorum, deadline_ms, auth
        self.multicast = multicast
        self.timeout = math.inf  #: seconds of silence after which they lose a rank, and it them
        self._handle: ctypes.c_void_p | None = None
        self._close: weakref.finalize | None = None

    @classmethod
    def of(cls, options: ServerOptions) -> Servers | None:
        """None if none are named. LACONIC_AGGREGATOR and LACONIC_TOKEN_FILE are the defaults of the call's arguments."""
        aggregator, token, auth, multicast = options.aggregator, options.token, options.auth, options.multicast
        quorum = _number("quorum", options.quorum, 0, 1, "")
        deadline_ms = _number("deadline_ms", options.deadline_ms, 0, _HOUR_MS, " ms")
        if auth not in ("header", "full"):
            raise errors.error("invalid_argument", f"auth is {auth!r}", '"header" or "full"')
        if not isinstance(multicast, bool):
            raise errors.error("invalid_argument", f"multicast is {multicast!r}", "True or False")
        named = os.environ.get("LACONIC_AGGREGATOR", "") if aggregator is None else aggregator
        text("aggregator", named)
        if not named:
            alone = [name for name, given in (("token", token is not None), ("quorum", quorum != QUORUM),
                                              ("deadline_ms", deadline_ms != DEADLINE_MS), ("auth", auth != "header"),
                                              ("multicast", multicast)) if given]
            if alone or aggregator is not None:
                raise errors.error("invalid_argument", f"{alone[0]} is set, but no aggregator" if alone else "aggregator is empty",
                                   'aggregator="HOST:PORT", where `laconic serve` listens')
            return None
        token = os.environ.get("LACONIC_TOKEN_FILE") or None if token is None else os.fspath(token)
        return cls([address.strip() for address in named.split(",")], token, quorum, deadline_ms, auth, multicast)

    def open(self, world: int, timeout: float) -> None:
        """Checks everything that one rank can check alone. `timeout`: seconds of silence after which a rank is lost."""
        options = _lib.AggregatorOptions(world=world, servers=text("aggregator", ",".join(self.addresses)),
                                         token=None if self.token is None else text("token", self.token), quorum=self.quorum,
                                         deadline_us=max(round(1000 * self.deadline_ms), 1),
                                         timeout_ms=int(1000 * min(max(timeout, 1.0), _HOUR_MS / 1000)), full_tags=int(self.auth == "full"),
                                         multicast=int(self.multicast))
        handle, self.timeout = ctypes.c_void_p(), timeout
        _lib.check(_lib.lib.laconic_aggregator_open(ctypes.byref(options), ctypes.byref(handle)))
        self._handle, self._close = handle, weakref.finalize(self, _lib.lib.laconic_aggregator_close, handle, 0)
        self._close.atexit = False

    def card(self) -> list:
        """The options that must be the same on all ranks. The token is 32 random bytes, which its hash does not reveal."""
        secret = b""
        if self.token is not None:
            with open(self.token, "rb") as file:
                secret = file.read(33)
        addresses = ", ".join(self.addresses)
        if len(addresses) > 2000:
            addresses = f"{addresses[:1900]}… ({hashlib.sha256(addresses.encode()).hexdigest()[:16]})"
        return [addresses, self.quorum, self.deadline_ms, self.auth, self.multicast,
                hashlib.sha256(b"laconic token" + secret).hexdigest()[:16]]

    def join(self, inner, session) -> AggregatingEngine:
        """Registers a CSession with all servers, all ranks together, and gives the engine that uses them. One rank's trouble is every rank's
        LaconicError, its cause before what others have seen of it."""
        number = int.from_bytes(inner.gather_bytes(secrets.token_bytes(8))[:8], "little")
        failure = None
        try:
            _lib.check(_lib.lib.laconic_aggregator_join(self._handle, session.handle, number, int(1000 * JOIN)))
        except LaconicError as error:
            failure = error
        said = ["", "", ""] if failure is None else [failure.name, failure.message[:250], failure.hint[:120]]
        said.append(self._heard() if failure is None else 0)
        limit = 1000
        gathered = inner.gather_bytes(json.dumps(said, ensure_ascii=False).encode()[:limit].ljust(limit))
        told = [_parsed(gathered[limit * rank : limit * (rank + 1)]) for rank in range(inner.world)]
        troubled = [rank for rank, (name, *_) in enumerate(told) if name]
        if not troubled:
            if self.multicast and inner.rank == 0:
                self._tell_of_multicast([heard for *_, heard in told])
            return AggregatingEngine(inner, self)
        hearsay = ("timed_out", "peer_failed")
        rank = next((rank for rank in troubled if told[rank][0] not in hearsay), troubled[0])
        name, message, hint, _ = told[rank]
        everybody = len(troubled) == inner.world and len({text for _, text, *_ in told}) == 1
        raise errors.error(name, message if everybody else f"rank {rank}: {message}", hint)

    def _heard(self) -> int:
        return json.loads(_lib.lib.laconic_aggregator_stats(self._handle).decode())["multicast_servers"]

    def _tell_of_multicast(self, heard: list[int]) -> None:
        """Logs the ranks that multicast does not reach."""
        deaf = [str(rank) for rank, servers in enumerate(heard) if servers < len(self.addresses)]
        if deaf:
            whom = f"rank {', '.join(deaf)}" if len(deaf) < len(heard) else "any rank"
            environment.say(f"multicast from {', '.join(self.addresses)} does not reach {whom}: sums go there by unicast",
                            logging.WARNING)

    def __str__(self) -> str:
        text = "aggregated at " + ", ".join(self.addresses)
        return text if self.quorum == QUORUM else f"{text}, quorum {self.quorum:g} after {self.deadline_ms:g} ms"

    def take(self) -> ctypes.c_void_p:
        """To be closed by the one that takes it."""
        self._close.detach()
        return self._handle


def _parsed(data: bytes) -> tuple[str, str, str, int]:
    try:
        name, message, hint, heard = json.loads(data)
        return (name if name in errors.CODES or not name else "engine_failed"), str(message), str(hint), int(heard)
    except (ValueError, TypeError):
        return "engine_failed", "it could not register with the aggregation servers", "", 0


class _Batch:
    """Steps on their way: to the servers, and by the engine inside."""

    __slots__ = ("inner", "runs")

    def __init__(self):
        self.inner, self.runs = None, []


_open: weakref.WeakSet[AggregatingEngine] = weakref.WeakSet()


class AggregatingEngine:
    """Another engine, but for AGGREGATE steps: a thread of its own hands these to the servers, in the order in which they came."""

    def __init__(self, inner, servers: Servers):
        self.inner, self.servers = inner, servers
        self.rank, self.world = inner.rank, inner.world
        self._handle = servers.take()
        self._lock = threading.Lock()  # of the handle's end, against those who ask for stats
        self._last: dict | None = None
        self._runs = Background("laconic-aggregator")
        self._under_way: list[Background.Call] = []
        _open.add(self)

    def __getattr__(self, name):
        return getattr(self.inner, name)

    # ---- batches ----------------------------------------------------------------------------------------------------------

    def start(self, steps, count: int) -> _Batch:
        self.inner.follow_timeout()
        batch, others = _Batch(), []
        for step in steps[:count]:
            if step.kind == _lib.AGGREGATE:
                batch.runs.append(self._begin(step))
            else:
                others.append(step)
        if others:
            try:
                batch.inner = self.inner.start((_lib.Step * len(others))(*others), len(others))
            except BaseException:
                self._end_runs(batch)
                raise
        return batch

    def _begin(self, step) -> Background.Call:
        kept = _lib.Step.from_buffer_copy(step)  # the caller's array serves the next batch
        run = self._runs.begin(functools.partial(self._run, self._handle, kept))
        self._under_way = [call for call in self._under_way if not call.ended.is_set()] + [run]
        return run

    @staticmethod
    def _run(handle, step) -> None:
        _lib.check(_lib.lib.laconic_aggregator_run(handle, ctypes.byref(step), ctypes.sizeof(step)))

    def _glance(self, since: float) -> None:
        """Servers know the timeout that the group had at attach: of a shorter one this rank has to think itself."""
        self.inner.glance()
        timeout = self.inner.timeout
        if timeout < self.servers.timeout and time.monotonic() - since > timeout:
            raise errors.error("timed_out", f"no sum from {', '.join(self.servers.addresses)} within {timeout:g} s",
                               "check whether a rank has stopped")

    def wait(self, batch: _Batch) -> None:
        glance = functools.partial(self._glance, time.monotonic())
        try:
            for run in batch.runs:
                run.wait(glance)
        except Exception as error:  # noqa: BLE001  as the engine inside does it
            self._end_runs(batch)
            self.inner.fail(batch.inner, error)
        if batch.inner is not None:
            self.inner.wait(batch.inner)

    def settle(self, batch: _Batch) -> None:
        self._end_runs(batch)
        if batch.inner is not None:
            self.inner.settle(batch.inner)

    def _end_runs(self, batch: _Batch) -> None:
        """After a failure: no run uses the memory of the batch any more."""
        if any(not run.ended.is_set() for run in batch.runs):
            _lib.lib.laconic_aggregator_interrupt(self._handle)
        for run in batch.runs:
            run.ended.wait()

    # ---- what users ask ------------------------------------------------------------------------------------------------------

    def stats(self) -> dict:
        """resent_datagrams, duplicate_datagrams, aggregator_restarts, rtt_us, multicast_datagrams, multicast_servers. Any thread."""
        with self._lock:
            if self._handle:
                self._last = json.loads(_lib.lib.laconic_aggregator_stats(self._handle).decode())
                self._last.pop("joined", None)
            return dict(self._last or {})

    def explain(self) -> dict:
        return {"aggregators": self.servers.addresses, "quorum": self.servers.quorum, "deadline_ms": self.servers.deadline_ms}

    # ---- the end -------------------------------------------------------------------------------------------------------------

    def leave(self, linger: float = LINGER) -> None:
        """Stays until all ranks have what they need, a few seconds at most, and closes the sockets. Nothing is under way; what
        is, is interrupted."""
        self.stats()
        if any(not run.ended.is_set() for run in self._under_way):
            _lib.lib.laconic_aggregator_interrupt(self._handle)
            for run in self._under_way:
                run.ended.wait(1.0)
        if any(not run.ended.is_set() for run in self._under_way):
            return  # the thread still has the handle
        with self._lock:
            handle, self._handle = self._handle, ctypes.c_void_p()
        _lib.lib.laconic_aggregator_close(handle, int(1000 * linger))


@atexit.register
def _leave_all() -> None:
    """Ranks leave together: if a rank left at once, the server would find its port closed, and others could not get the last
    result."""
    for engine in list(_open):
        engine.leave()


def of(options: ServerOptions, *, strategy: str, limiter=None) -> Servers | None:
    """As Servers.of, for an exchange by `strategy` over a network that `limiter` emulates."""
    servers = Servers.of(options)
    if servers is not None and strategy not in ("auto", "server_sum"):
        raise errors.error("invalid_argument", f"aggregator= excludes strategy {strategy!r}", "omit strategy")
    if servers is not None and limiter is not None:
        raise errors.error("unsupported", "an emulated link cannot limit datagrams", "use laconic lab without --emulate")
    return servers


def agree(engine, servers: Servers | None) -> None:
    """Raises the difference on every rank."""
    cards = gather_texts(engine, json.dumps(None if servers is None else servers.card()), limit=4000)
    other = next((rank for rank, card in enumerate(cards) if card != cards[0]), None)
    if other is None:
        return
    mine, theirs = json.loads(cards[0]) or ["none", *5 * [None]], json.loads(cards[other]) or ["none", *5 * [None]]
    at = next(i for i, (one, two) in enumerate(zip(mine, theirs)) if one != two)
    what = ("the aggregator", "quorum", "deadline_ms", "auth", "multicast")
    differs = f"{what[at]} is {mine[at]} on rank 0 and {theirs[at]} on rank {other}" if at < len(what) else \
        f"the token differs between rank 0 and rank {other}"
    raise errors.error("ranks_disagree", differs, "give every rank the same call, file and LACONIC_* variables")


def without_codes(error: LaconicError, spec: str) -> LaconicError:
    """The library's refusal, in the words of the call."""
    if error.name == "unsupported" and "not quantized values that add" in error.message:
        return errors.error("unsupported", f"{spec}: an aggregator adds quantized values, and this spec sends none",
                            'use thc ("thc:bits=4"), or remove aggregator= and LACONIC_AGGREGATOR')
    return error
