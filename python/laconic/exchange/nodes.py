# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Two levels: what stands between a rank's buffers and the shard that its session exchanges."""

from __future__ import annotations

import collections
import contextlib
import functools
import re
import struct
import threading
import time
import weakref

import torch

from ..core import errors
from ..core.errors import LaconicError
from ..engines.c10d import swap, swap_near
from ..engines.nodes import Nodes
from .csession import Layout
from .driver import ENGINE_FAILED, engine_failed

#: whole elements for each shard above which a buffer is long: later ones let go of it within the step
LONG = 1 << 16
#: how a session begins what another rank reports
_OF_PEER = re.compile(r"\Arank (\d+) failed in bucket")
#: what a rank tells its node at the end of a step: a code, the steps of a flush, and a message; its shard's reports follow
_TOLD = struct.Struct("<iI632s")


class _Kept:
    """The shards of a layout. `segments`: sizes in the order of the buffer, `to`: their numbers in the order of shards, `back`: the other way."""

    def __init__(self, layout: Layout, held: list[list[tuple[int, int]]], shard: int):
        self.sizes = [0] * len(held)
        segments, keys, offsets, at = [], [], [], 0
        for place, (p, offset) in enumerate(zip(layout.parameters, layout.offsets)):
            if offset != at:
                raise errors.error("unsupported", "a bucket's parameters are not contiguous", 'attach with nodes="off"')
            offsets.append(self.sizes[shard])
            for first, count, s in sorted((*held[s][p], s) for s in range(len(held))):
                if count:
                    segments.append(count)
                    keys.append((s, place, first))
                    self.sizes[s] += count
                    at += count
        if at != layout.elements:
            raise errors.error("unsupported", "a bucket has elements that are no parameter's", 'attach with nodes="off"')
        self.segments = segments
        self.to = sorted(range(len(segments)), key=keys.__getitem__)
        self.back = sorted(range(len(segments)), key=self.to.__getitem__)
        self.layout = Layout(layout.parameters, offsets, self.sizes[shard])
        self.shard: torch.Tensor | None = None  #: the buffer that the session exchanges

    def permuted(self, buffer: torch.Tensor, out: torch.Tensor) -> None:
        parts = buffer.split(self.segments)
        torch.cat([parts[i] for i in self.to], out=out)

    def restored(self, permuted: torch.Tensor, out: torch.Tensor) -> None:
        parts = permuted.split([self.segments[i] for i in self.to])
        torch.cat([parts[i] for i in self.back], out=out)


class NodeStage:
    """Around another stage: the worker's thread makes a node's mean of each buffer's shards, and collects their means of all nodes.

    Bytes move by all_to_all and are added here in rank order, in float32, and rounded once to the buffer's type: no engine's order of
    additions decides a bit. All of that happens where the other stage has the buffers, on the host or on a device: a shard alone goes from there
    to the session's memory and back. What it does not have is the other stage's.
    """

    def __init__(self, inner, nodes: Nodes, inside, held: list[list[tuple[int, int]]], near=None):
        """`inside`: the engine of the node's ranks. `held`: (first, count) of every parameter, by shard. `near`: for a DeviceStage, the ranks' group
        whose backend serves the device."""
        self._inner, self.nodes, self._inside, self._held = inner, nodes, inside, held
        self._move = swap if near is None else functools.partial(swap_near, near)
        self._kept: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()  # layout → _Kept
        self._scratch: dict[str, torch.Tensor] = {}
        self._lock = threading.Lock()  # of both: any thread may ask how many bytes they are
        #: why the ranks of the node exchange nothing any more
        self.over: LaconicError | None = None
        self.node_bytes, self.node_seconds = 0, 0.0

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def in_order(self, window: int, residuals) -> InOrder:
        return InOrder(self, window, residuals)

    def layout(self, layout: Layout) -> Layout:
        """What the session exchanges of it."""
        own = self._of(layout).layout
        own.dtype = layout.dtype
        return own

    def _of(self, layout: Layout) -> _Kept:
        kept = self._kept.get(layout)
        if kept is None:
            kept = _Kept(layout, self._held, self.nodes.local)
            with self._lock:
                self._kept[layout] = kept
        return kept

    @property
    def exchange_bytes(self) -> int:
        with self._lock:
            held = [*(kept.shard for kept in self._kept.values() if kept.shard is not None), *self._scratch.values()]
        return sum(buffer.numel() * buffer.element_size() for buffer in held)

    def fetch(self, layout: Layout, pieces):
        ticket = self._inner.fetch(layout, pieces)
        ticket.layout = layout
        return ticket

    def ready(self, ticket) -> int:
        """The address of the node's mean of this rank's shard. RuntimeError if this rank's gradients did not come, see `brought`, LaconicError
        (`over`) if the node's ranks cannot exchange."""
        trouble = None
        try:
            self._inner.ready(ticket)
        except RuntimeError as error:  # the others of the node wait for its share
            trouble = error
        with self._timed():
            try:
                with self._inner.working(ticket):
                    lost = self._bring(ticket, self._enter(ticket, trouble is not None))
                    trouble = trouble or lost
            except LaconicError:
                raise
            except RuntimeError as error:  # no memory: the others wait for what this rank cannot send
                self.fail(errors.error("engine_failed", f"rank {self.nodes.rank}, inside the node: {type(error).__name__}: {error}",
                                       "restart the ranks from the last checkpoint"))
                raise self.over from error
        if trouble is not None:
            raise trouble
        return self.brought(ticket)

    def brought(self, ticket) -> int:
        """The address of what the ranks of the node have brought of this rank's shard; 0: nothing."""
        return 0 if self.over is not None else self._of(ticket.layout).shard.data_ptr()

    def named(self, message: str) -> str:
        """A rank's number there is that of its node."""
        return _OF_PEER.sub(lambda found: f"rank {self.nodes.across[int(found[1])]} failed in bucket", message, count=1)

    def means(self, ticket) -> torch.Tensor:
        """The means of this rank's shard, once its exchange has ended."""
        kept = self._of(ticket.layout)
        return kept.shard[: kept.sizes[self.nodes.local]]

    def _bring(self, ticket, mean: torch.Tensor) -> RuntimeError | None:
        """The mean to the session's memory; or why it did not come. Zeros are there then."""
        shard = self.means(ticket)
        try:
            self._inner.down(mean, shard)
        except RuntimeError as error:
            shard.zero_()
            self._inner.settle()
            return error
        return None

    def _enter(self, ticket, absent: bool) -> torch.Tensor:
        """The node's mean of this rank's shard, where its ranks meet."""
        kept, size, own = self._of(ticket.layout), self.nodes.size, self._of(ticket.layout).sizes[self.nodes.local]
        dtype = ticket.value.dtype
        if kept.shard is None or kept.shard.dtype != dtype:
            kept.shard = self._inner.kept_for(ticket.layout, max(own, 1), dtype)
        send = self._buffer("sent", ticket.layout.elements, dtype)
        if absent:
            send.zero_()
        else:
            kept.permuted(ticket.host.view(-1), send)
        arrived = self._buffer("arrived", size * own, dtype)
        self._swap(arrived, send, [own] * size, kept.sizes)
        total = self._buffer("total", own, torch.float32)
        total.copy_(arrived[:own])
        for s in range(1, size):
            total.add_(arrived[s * own : (s + 1) * own])
        return total.mul_(1.0 / size)

    def leave(self, ticket) -> None:
        """The means of all shards, where the gradients were."""
        with self._timed(), self._inner.working(ticket):
            kept, size = self._of(ticket.layout), self.nodes.size
            own = kept.sizes[self.nodes.local]
            send = self._buffer("arrived", size * own, kept.shard.dtype)
            self._inner.up(kept.shard[:own], send[:own])
            for s in range(1, size):
                send[s * own : (s + 1) * own].copy_(send[:own])
            arrived = self._buffer("sent", ticket.layout.elements, kept.shard.dtype)
            self._swap(arrived, send, kept.sizes, [own] * size)
            if ticket.host is not None:  # no memory to collect it in
                kept.restored(arrived, ticket.host.view(-1))

    def _buffer(self, name: str, elements: int, dtype) -> torch.Tensor:
        """Memory for one call: longer ones grow it."""
        size = torch.empty(0, dtype=dtype, device="cpu").element_size() * elements
        if name not in self._scratch or self._scratch[name].numel() < size:
            grown = torch.empty(size, dtype=torch.uint8, device=self._inner.meets)
            with self._lock:
                self._scratch[name] = grown
        return self._scratch[name][:size].view(dtype)

    def _swap(self, arrives: torch.Tensor, sends: torch.Tensor, arriving: list[int], sent: list[int]) -> None:
        width, local = sends.element_size(), self.nodes.local
        self.node_bytes += width * (sum(sent) - sent[local])
        self._within(self._move, arrives.view(torch.uint8), sends.view(torch.uint8), [width * n for n in arriving], [width * n for n in sent])

    def _within(self, call, *arguments):
        try:
            return call(self._inside, *arguments)
        except RuntimeError as error:
            failure = engine_failed(error)
            if failure.code == ENGINE_FAILED:
                self.over = self.over or failure
            raise failure from error

    @contextlib.contextmanager
    def _timed(self):
        since = time.perf_counter()
        try:
            yield
        finally:
            self.node_seconds += time.perf_counter() - since

    def end_step(self, failure: LaconicError | None, flush: int, report: bytes) -> tuple[LaconicError | None, int, bytes]:
        """The step's failure on a rank of the node, of an engine if there is one, the longest flush that one has asked for, and all reports: the
        same on all of them."""
        code, message = (0, "") if failure is None else (failure.code, str(failure.message))
        with self._timed():
            told = self._within(lambda inside: inside.gather_bytes(_TOLD.pack(code, flush, message.encode()[:632]) + report))
        size = _TOLD.size + len(report)
        reports = b"".join(told[size * r + _TOLD.size : size * (r + 1)] for r in range(self.nodes.size))
        told = [_TOLD.unpack_from(told, size * r) for r in range(self.nodes.size)]
        failed = [rank for rank, (code, _, _) in enumerate(told) if code]
        if failed:
            first = min(failed, key=lambda rank: told[rank][0] != ENGINE_FAILED)
            code, _, text = told[first]
            if first != self.nodes.local:
                name = next((name for name, number in errors.CODES.items() if number == code), "peer_failed")
                failure = LaconicError(code, name, text.rstrip(b"\0").decode(errors="ignore"), None)
            if code == ENGINE_FAILED:
                self.over = failure
        return failure, max(steps for _, steps, _ in told), reports

    @property
    def within(self):
        """The engine and the ranks of this rank's node."""
        return self._inside, self.nodes.inside

    def fail(self, error: LaconicError) -> None:
        """This rank exchanges nothing any more: the others of the node hear why."""
        self.over = self.over or error
        with contextlib.suppress(BaseException):  # it raises what all of them report
            self._inside.fail(None, error)

    def close(self, abandoned: bool) -> None:
        if abandoned or self._inside.abandoned:
            _abandoned.append((list(self._kept.values()), self._scratch))
        self._inner.close(abandoned or self._inside.abandoned)
        with self._lock:
            self._kept.clear()
            self._scratch = {}


_abandoned: list = []


class InOrder:
    """When the jobs of a step leave: at places that follow from the order and sizes of whole buffers, the same on all ranks of a node, whatever
    their shards' exchanges do.

    After the failure of a shard's exchange, also of its engine, its rank goes on until the end of the step, when the node hears of it: what the
    others bring is in its residuals then. Jobs that have not left by then fail on all ranks, and the means of their shards go back into the
    residuals.
    """

    def __init__(self, stage: NodeStage, window: int, residuals):
        self._stage, self._window, self._residuals = stage, window, residuals
        self._jobs: collections.deque = collections.deque()  # that have not left
        self._long: collections.deque = collections.deque()  # of the step's long jobs, the last ones
        self.failure: LaconicError | None = None  #: the step's first
        self.flush = 0  #: steps of a flush that this rank asks for

    def add(self, job) -> None:
        """The newest."""
        self._jobs.append(job)

    def served(self, job, drain) -> None:
        """The newest is in the driver's hands. `drain`: ends all exchanges that have begun."""
        if job.layout.elements <= LONG * self._stage.nodes.size:
            return
        self._long.append(job)
        while len(self._long) > self._window:
            self._long.popleft()
        if len(self._long) < self._window:
            return
        # Those whose exchanges the driver has ended to make place, unless they are short for some shards.
        last = self._long[0] if self._window > 1 else self._jobs[-2] if len(self._jobs) > 1 else None
        while last is not None and any(one is last for one in self._jobs):
            self._leave_first(drain)

    def _leave_first(self, drain) -> None:
        job = self._jobs[0]
        if not job.over:
            drain()
        self._leave()

    def _leave(self) -> None:
        job = self._jobs[0]
        if job.error is not None:
            self._stage.means(job.ticket).zero_()  # what the residuals have is not given out, too
        self._stage.leave(job.ticket)
        self._jobs.popleft()
        job.end()

    def drained(self) -> None:
        """All exchanges have ended; the newest job waits for the end of the step."""
        while len(self._jobs) > 1:
            self._leave_first(lambda: None)

    def meet(self, session) -> LaconicError | None:
        """All exchanges of the step have ended: its failure on a rank of the node. The session receives the reports of all shards, and a flush
        that a rank of the node asks for."""
        failure, steps, reports = self._stage.end_step(self.failure, self.flush, session.report())
        if self._stage.over is None:
            session.decide_by(reports)
        if steps:
            session.flush(steps)
        self.failure, self.flush = None, 0
        self._long.clear()
        return failure

    def end_step(self) -> None:
        """After `meet`: the jobs that are left."""
        while self._jobs:
            self._leave()

    def give_up(self, error: LaconicError) -> None:
        """The jobs that are left fail."""
        while self._jobs:
            job = self._jobs.popleft()
            if job.over and job.error is None:
                self._residuals.take_back(self._stage.layout(job.layout), self._stage.means(job.ticket))
            job.error = job.error or error
            job.end()
