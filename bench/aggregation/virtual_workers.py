# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Workers of a group in one process: a session of the C ABI each, in lockstep. Steps are executed for all of them
together, sums in rank order; AGGREGATE steps by `laconic serve`, with a thread for each worker, as if they were
processes."""

from __future__ import annotations

import concurrent.futures
import ctypes
import json
import math
import random
import time

import numpy

from laconic.core import _lib
from laconic.exchange.csession import CSession, Layout

LANES = {_lib.F32: numpy.float32, _lib.I32: numpy.int32}
#: seconds after which a late worker comes in any case: one that was left out four exchanges in a row is waited for
TIMEOUT = 0.5


def view(address: int, count: int, dtype=numpy.float32) -> numpy.ndarray:
    """A view of memory that another object owns."""
    if not count:
        return numpy.empty(0, dtype)
    room = (ctypes.c_uint8 * (count * numpy.dtype(dtype).itemsize)).from_address(address)
    return numpy.frombuffer(room, dtype)


class VirtualWorkers:
    """`gradients`: a row for each worker, all parameters one after another; `exchange` replaces every row by the mean. `late`: so
    many workers, others in each exchange, send when the rest has its sums. parameters: (name, shape) pairs."""

    def __init__(self, spec: str, parameters, world: int, *, seed: int = 0, small_elements: int = 4096, server: str | None = None,
                 token: str | None = None, quorum: float = 1.0, deadline_ms: float = 20.0, late: int = 0):
        counts = [math.prod(shape) for _, shape in parameters]
        self.offsets = [sum(counts[:i]) for i in range(len(counts))]
        self.names, self.counts, self.world, self.step = [name for name, _ in parameters], counts, world, 0
        self.gradients = numpy.zeros((world, sum(counts)), numpy.float32)
        self.layout = Layout(range(len(counts)), self.offsets, sum(counts))
        self.sessions = [CSession(spec, parameters, rank=rank, world=world, seed=seed, small_elements=small_elements,
                                  strategy="auto", engine_sums=sum(1 << dtype for dtype in LANES), threads=1,
                                  aggregates=server is not None) for rank in range(world)]
        self._agree()
        self.late, self._deadline, self._chance = late, deadline_ms / 1000, random.Random(f"late {seed}")
        self._aggregators: list[ctypes.c_void_p] = []
        self._threads = None
        if server is not None:
            self._threads = concurrent.futures.ThreadPoolExecutor(world)
            self._join(server, token, quorum, deadline_ms)

    def _agree(self) -> None:
        cards = bytearray()
        for session in self.sessions:
            card = ctypes.create_string_buffer(_lib.AGREEMENT_BYTES)
            _lib.lib.laconic_session_agreement(session.handle, card)
            cards += card.raw
        for session in self.sessions:
            _lib.check(_lib.lib.laconic_session_check_agreement(session.handle, bytes(cards)))

    def _join(self, server, token, quorum, deadline_ms) -> None:
        options = _lib.AggregatorOptions(world=self.world, servers=server.encode(), token=None if token is None else token.encode(),
                                         quorum=quorum, deadline_us=round(1000 * deadline_ms), timeout_ms=60_000)
        for _ in self.sessions:
            handle = ctypes.c_void_p()
            _lib.check(_lib.lib.laconic_aggregator_open(ctypes.byref(options), ctypes.byref(handle)))
            self._aggregators.append(handle)
        number = random.SystemRandom().getrandbits(64)
        self._each(lambda rank: _lib.lib.laconic_aggregator_join(self._aggregators[rank], self.sessions[rank].handle, number, 60_000))

    def _each(self, call) -> None:
        """call(rank) → code, in a thread for each."""
        def checked(rank):
            _lib.check(call(rank))

        for done in [self._threads.submit(checked, rank) for rank in range(self.world)]:
            done.result()

    # ---- exchanges ----

    def exchange(self) -> None:
        exchanges = [ctypes.c_void_p() for _ in self.sessions]
        for session, exchange, row in zip(self.sessions, exchanges, self.gradients):
            bucket = self.layout.bucket(row.ctypes.data, _lib.F32, step=self.step)
            _lib.check(_lib.lib.laconic_exchange_begin(session.handle, ctypes.byref(bucket), ctypes.byref(exchange)))
        while batches := self._next(exchanges):
            for steps in zip(*batches):
                self._run(steps)
        self.step += 1

    @staticmethod
    def _next(exchanges) -> list:
        """Every rank's batch; none at the end."""
        batches, count = [(_lib.Step * _lib.MAX_BATCH)() for _ in exchanges], ctypes.c_uint32()
        for exchange, batch in zip(exchanges, batches):
            _lib.check(_lib.lib.laconic_exchange_next(exchange, batch, ctypes.sizeof(_lib.Step), len(batch), ctypes.byref(count)))
        return [batch[: count.value] for batch in batches] if count.value else []

    def _run(self, steps) -> None:
        kinds = {step.kind for step in steps}
        if len(kinds) != 1:
            raise RuntimeError(f"workers want different steps: {sorted(kinds)}")
        if steps[0].kind == _lib.ALL_REDUCE:
            self._add(steps)
        elif steps[0].kind == _lib.AGGREGATE:
            self._aggregate(steps)
        else:
            self._move(steps)

    @staticmethod
    def _add(steps) -> None:
        lanes = [view(step.send, step.count, LANES[step.dtype]) for step in steps]
        total = lanes[0].copy()
        for each in lanes[1:]:
            total += each
        for each in lanes:
            each[:] = total

    def _aggregate(self, steps) -> None:
        late = set(self._chance.sample(range(self.world), self.late)) if self.late else set()
        begun = []

        def run(rank):
            if rank in late:
                time.sleep(2 * self._deadline)
                concurrent.futures.wait(begun, TIMEOUT)
            _lib.check(_lib.lib.laconic_aggregator_run(self._aggregators[rank], ctypes.byref(steps[rank]), ctypes.sizeof(_lib.Step)))

        begun += [self._threads.submit(run, rank) for rank in range(self.world) if rank not in late]
        for done in [*begun, *[self._threads.submit(run, rank) for rank in late]]:
            done.result()

    def _move(self, steps) -> None:
        for to, receiver in enumerate(steps):
            for source, sender in enumerate(steps):
                count = min(sender.send_counts[to], receiver.recv_counts[source])
                if count:
                    ctypes.memmove(receiver.recv + receiver.recv_offsets[source], sender.send + sender.send_offsets[to], count)

    # ---- reports ----

    def residuals(self, rank: int) -> dict[str, numpy.ndarray]:
        """For each parameter; uncompressed ones have none."""
        found = {name: (address, count) for name, address, count in self.sessions[rank].entries()}
        return {name: view(*found[f"residual/{name}"])[:count] for name, count in zip(self.names, self.counts)
                if f"residual/{name}" in found}

    def explain(self) -> dict:
        return self.sessions[0].explain()

    def stats(self) -> list[dict]:
        """For each worker: the session's, and those of its link to the server."""
        found = [session.stats() for session in self.sessions]
        for stats, handle in zip(found, self._aggregators):
            stats.update(json.loads(_lib.lib.laconic_aggregator_stats(handle).decode()))
        return found

    def close(self) -> None:
        for handle in self._aggregators:
            _lib.lib.laconic_aggregator_close(handle, 0)
        if self._threads is not None:
            self._threads.shutdown()
        for session in self.sessions:
            session.close()
