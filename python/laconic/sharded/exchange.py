# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""One rank's side of the parameter server: the library's session and driver, in a thread of their own."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import struct
import threading
import weakref

import torch
import torch.distributed as dist

from ..core import _lib, errors
from ..core.errors import LaconicError
from ..engines.c10d import Engine, begin_gather, broadcast, view
from ..engines.emulate import limiter_from_environment
from ..engines.group import Sibling
from ..engines.hosts import Hosts
from ..exchange import trace
from ..exchange.csession import CSession
from ..exchange.driver import cards_of_all, engine_failed
from ..exchange.lane import Lane
from .settings import differing

#: what residuals may be multiplied by
SMALLEST, LARGEST = torch.finfo(torch.float32).tiny, torch.finfo(torch.float32).max
_SIZE = struct.Struct("=QQ")


def gather(engine, data: bytes) -> list[bytes]:
    """Every rank's `data`, of any length, in rank order. Every rank makes the call."""
    sizes = [size for size, _ in _SIZE.iter_unpack(engine.gather_bytes(_SIZE.pack(len(data), 0)))]
    longest = max(sizes)
    everything = engine.gather_bytes(data.ljust(longest, b"\0")) if longest else b""
    return [everything[longest * r : longest * r + size] for r, size in enumerate(sizes)]


def compare(engine, settings: str) -> None:
    """Raises on every rank what differs first. Every rank makes the call."""
    error = differing([json.loads(said) for said in gather(engine, settings.encode())])
    if error is not None:
        raise error


def share(engine, text: str, values: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    """Every rank's text and float32 values, in rank order. Every rank makes the call."""
    texts = gather(engine, text.encode())
    counts = [int(count) for count, in struct.iter_unpack("=Q", engine.gather_bytes(struct.pack("=Q", values.numel())))]
    shared = []
    for root, (said, count) in enumerate(zip(texts, counts)):
        own = values.contiguous() if root == engine.rank else torch.empty(count, dtype=torch.float32, device="cpu")
        broadcast(engine, own, root)
        shared.append((said.decode(), own))
    return shared


class Turn:
    """The result of all pushes on this rank: whether the step is skipped, the address of each owned range's mean, and the norm of
    the whole mean gradient, if requested."""

    __slots__ = ("differs", "failure", "means", "norm", "skips")

    def __init__(self):
        self.differs = False  #: some rank's digest is another
        self.skips, self.means, self.norm = False, {}, 0.0
        self.failure: LaconicError | None = None  #: there is no turn


class Exchange:
    """Pushes, turns and pulls of one model on one rank. Methods are called by the thread that trains; all that touches the library or the
    engine runs in a thread of its own, in the order of the calls.

    The first failure of the engine, or of that thread, is `broken`: nothing is exchanged any more.
    """

    def __init__(self, group, meeting, trained, settings: str, **options):
        """All ranks together: they compare `settings`, a JSON object, and what sessions compare.

        options: of CSession. Raises LaconicError, the same on all ranks.
        """
        self._trained = trained
        self._sibling = Sibling(group, meeting, backend=trained.backend)
        self._engine = Engine(self._sibling.group, of=group)
        self.rank, self.world = self._engine.rank, self._engine.world
        self.broken: LaconicError | None = None
        self.unit = 1.0  #: of the residuals: what gradients are multiplied by
        self._lock = threading.RLock()  # of the counters, against the end
        self._last_words: tuple[dict, dict] | None = None
        self._process = os.getpid()
        self._lane = Lane()
        self._lane.join()
        self._leave = weakref.finalize(self, self._lane.leave)
        self._leave.atexit = False
        try:
            self._do(functools.partial(self._open, settings, options))
        except LaconicError:  # on every rank
            self._leave()
            self._sibling.release()
            raise

    def _open(self, settings: str, options: dict) -> None:
        """Everything that one rank may refuse, and the agreement of all of them."""
        session = failure = None
        hosts = Hosts.of(self._engine)
        try:
            self._engine.limiter = limiter_from_environment()
            if options["threads"] == "auto":
                options["threads"] = self._trained.threads_beside(hosts.sharing(self.rank) if self.world == dist.get_world_size() else None)
            session = CSession(parameters=self._trained.shapes(), rank=self.rank, world=self.world, engine_sums=0,
                               short_sends=self._engine.short_sends, strategy="auto", owner_turns=True,
                               ranks_per_host=hosts.fullest, **options)
        except LaconicError as error:  # the other ranks are about to compare cards with us
            failure = error
        except Exception as error:  # noqa: BLE001  an argument of a wrong type
            failure = errors.error("invalid_argument", f"{type(error).__name__}: {error}", "see help(laconic.ShardedOptimizer)")
        session.check(cards_of_all(self._engine, session, failure, "create its optimizer"))
        compare(self._engine, settings)
        self.session = session
        session.trace = trace.from_environment(self.rank, session.window)
        ours = weakref.WeakMethod(self._ended)
        self._driver = session.driver(self._engine, lambda *ending: ours()(*ending))
        self.owned = self._driver.owned()

    # ---- the thread ---------------------------------------------------------------------------------------------------------------

    def _do(self, what):
        """The result of `what()`, after all queued tasks."""
        self.check_open()
        got = self._lane.wait_for(lambda: (what(),))
        if got is None:
            raise self.broken or errors.error("engine_failed", "laconic's thread has ended", "restart from the last checkpoint")
        return got[0]

    def check_open(self) -> None:
        if os.getpid() != self._process:
            raise errors.error("unsupported", "this process is a fork of the training process and does not have laconic's thread",
                               "call it in the process that created the optimizer")
        if self._last_words is not None:
            raise errors.error("invalid_argument", "this optimizer is closed", "create another one")

    def _ended(self, _tokens, _parts, _error) -> None:
        """A bucket has ended; turns and pull report its failure."""

    def _break(self, error: BaseException) -> LaconicError:
        """Stops all exchanges. The other ranks wait for this one: if the engine can, it reports the failure to them."""
        if self.broken is None:
            known = self.session.broken
            self.broken = known or (error if isinstance(error, LaconicError) and error.name == "engine_failed" else engine_failed(error))
            with contextlib.suppress(BaseException):
                self._driver.break_off(self.broken)
            if known is None:
                with contextlib.suppress(BaseException):  # it raises what all ranks report
                    self._engine.fail(None, self.broken)
        return self.broken

    def _guarded(self, what, *arguments):
        """A call of the driver or the engine. LaconicError: of this step, or `broken`."""
        if self.broken is not None:
            raise self.broken
        try:
            return what(*arguments)
        except LaconicError as error:
            if self.session.broken is not None:
                raise self._break(error) from error
            raise
        except BaseException as error:  # noqa: BLE001  every rank gets it
            raise self._break(error) from error

    # ---- a step -------------------------------------------------------------------------------------------------------------------

    def set_replicas(self, begins: bool) -> None:
        """Parameters are where `trained` has them. `begins`: masters take their values."""
        self._do(functools.partial(self._guarded, self._driver.set_replicas, self._trained.replicas(), begins))

    def push(self, bucket, number: int, step: int, unit: float, failure: LaconicError | None) -> None:
        """Queues a bucket's gradients, each rank the same buckets in the same order. `unit`: what they are multiplied by."""
        self.check_open()
        self._lane.put(functools.partial(self._push, bucket, number, step, unit, failure))

    def _push(self, bucket, number, step, unit, failure) -> None:
        with contextlib.suppress(LaconicError):  # the turn reports it
            self._guarded(self._submit, bucket, number, step, unit, failure)

    def _submit(self, bucket, number, step, unit, failure) -> None:
        if unit != self.unit and SMALLEST <= unit / self.unit <= LARGEST:  # between two steps; else residuals stay as they are
            self.session.scale_residuals(unit / self.unit)
            self.unit = unit
        self._driver.submit(bucket.layout, bucket.values.data_ptr(), _lib.F32, step=step, index=number, token=number, failure=failure,
                            apart=True, whole=True)

    def turn(self, digest: bytes, norm: bool) -> Turn:
        """After all pushes of a step. `digest`: hash of what must be the same on all ranks. `pull` comes next in any case."""
        return self._do(functools.partial(self._turn, digest, norm))

    def _turn(self, digest: bytes, norm: bool) -> Turn:
        turn = Turn()
        try:
            gathered = self._guarded(begin_gather, self._engine, digest)
            squares = 0.0
            try:
                turn.skips, turn.means, squares = self._guarded(self._driver.turns)
            except LaconicError as error:
                turn.failure = error
            digests = self._guarded(gathered)
            if digests != digest * self.world:
                turn.differs = True
            elif norm:
                total = 0.0
                for square, in struct.iter_unpack("=d", self._guarded(self._engine.gather_bytes, struct.pack("=d", squares))):
                    total += square
                turn.norm = total**0.5
        except LaconicError as error:  # the engine's
            turn.failure = error
        return turn

    def compare(self, settings: str) -> None:
        """Raises on every rank what differs first. Every rank makes the call."""
        self._do(functools.partial(self._guarded, compare, self._engine, settings))

    def pull(self, failure: LaconicError | None) -> bool:
        """Moves the parameters' values on the host. False: the step was skipped."""
        return self._do(functools.partial(self._guarded, self._driver.pull, failure))

    # ---- between two steps ----------------------------------------------------------------------------------------------------------

    def share(self, text: str, values: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
        """Every rank's text and float32 values, in rank order. Every rank makes the call."""
        return self._do(functools.partial(self._guarded, share, self._engine, text, values))

    def broadcast(self, tensors) -> None:
        """Rank 0's values, in tensors on the host."""
        for tensor in tensors:
            self._do(functools.partial(self._guarded, broadcast, self._engine, tensor, 0))

    def masters(self) -> dict[tuple[int, int], torch.Tensor]:
        """(parameter, offset) → this rank's master, a view of the session's memory."""
        return {(p, offset): view(address, count, _lib.F32) for p, offset, count, address in self.owned}

    def between_steps(self, what, *arguments):
        """The result of `what(session, unit, *arguments)` in the thread; `unit`: that of the residuals."""
        return self._do(lambda: what(self.session, self.unit, *arguments))

    def stats(self) -> dict:
        with self._lock:
            return self.session.stats() if self._last_words is None else self._last_words[0].copy()

    def explain(self) -> dict:
        with self._lock:
            return self.session.explain() if self._last_words is None else self._last_words[1].copy()

    def close(self) -> None:
        if self._last_words is not None or os.getpid() != self._process:
            return
        thread = self._lane.thread
        self._lane.wait_for(lambda: None)
        with self._lock:
            self._last_words = self.session.stats(), self.session.explain()
            for thing in (self._driver, self.session):
                if self._engine.abandoned:
                    thing.abandon()
                thing.close()
        self._leave()
        if thread is not None:
            self._lane.rest(thread)
        if self.broken is None:
            self._sibling.release()
