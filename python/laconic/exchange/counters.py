# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Counters of a worker, and their reports to the user: stats, explain and two log lines."""

from __future__ import annotations

import logging
import threading
import time

from ..core import environment
from ..engines.aggregation import AggregatingEngine
from ..engines.hosts import beyond_ring

#: below it a line says that more is sent than without compression; headers alone stay above it
RATIO_OF_NOTHING = 0.99


class Counters:
    """Counters of this rank's jobs, and of sums made without the worker. Seconds are sums: `queue`, from submission until the
    worker takes a job; `backward_wait`, from a step's last submission until its last job has ended: the time that backward()
    waited."""

    def __init__(self):
        # Objects may be collected while a thread holds it, this worker's wrapper among them.
        self._lock = threading.RLock()
        self.queue = self.backward_wait = 0.0
        self._jobs = 0
        self._waiting_since: float | None = None
        self.steps = 0  #: since attach, whatever was loaded
        self._rounds, self._elements, self._dense, self._bytes = 0, 0, 0, 0

    def submitted(self) -> None:
        with self._lock:
            self._jobs += 1

    def started(self, submitted: float) -> None:
        with self._lock:
            self.queue += time.perf_counter() - submitted

    def ended(self) -> None:
        with self._lock:
            self._jobs -= 1
            if self._jobs == 0 and self._waiting_since is not None:
                self.backward_wait += time.perf_counter() - self._waiting_since
                self._waiting_since = None

    def step_ended(self) -> None:
        with self._lock:
            if self._jobs > 0:
                self._waiting_since = time.perf_counter()
            self.steps += 1

    def summed_elsewhere(self, elements: int, dense: int, size: int) -> None:
        """Counts a buffer that needed nothing but the sum of the caller's own group: its bytes, dense and as they are."""
        with self._lock:
            self._rounds += 1
            self._elements += elements
            self._dense += dense
            self._bytes += size

    def add_to(self, stats: dict, world: int, nodes, one_host: bool) -> None:
        """To those of the session, which are a shard's with `nodes`."""
        with self._lock:
            dense, sent = (2 * (world - 1) * size // world for size in (self._dense, self._bytes))
            ring = (stats["dense_bytes"] if nodes is None else nodes.ring(stats["dense_bytes"])) + dense
            stats["elements"] += self._elements
            stats["rounds"] += self._rounds
            stats["dense_bytes"] += dense
            stats["wire_bytes"] += sent
            stats["steps"] = max(stats["steps"], self.steps)
            stats["ratio"] = stats["dense_bytes"] / stats["wire_bytes"] if stats["wire_bytes"] else stats["ratio"]
            if not one_host:  # a ring passes a port once
                stats["port_bytes"] = sent + stats["port_bytes"] * (1 if nodes is None else nodes.size)
                stats["port_ratio"] = ring / stats["port_bytes"] if stats["port_bytes"] else None
            stats.update(queue_seconds=self.queue, backward_wait_seconds=self.backward_wait)


class Reports:
    """Any thread may ask at any time, also when the worker has ended."""

    def __init__(self, session, driver, stage, residuals, counters: Counters):
        self._session, self._driver, self._stage = session, driver, stage
        self._residuals, self._counters = residuals, counters
        self._in_use = threading.RLock()  # the session, by a thread that asks, against the end
        self._last: tuple[dict, dict] | None = None  # stats and explain of a worker that has ended
        self._resets_told, self._ratio_told = False, False
        explained = session.explain()
        self._one_host = explained["port"] is None
        warning = beyond_ring(explained)
        if warning and session.rank == 0:
            self._ratio_told = True
            environment.say(warning, logging.WARNING)

    def stats(self) -> dict:
        return self._ask(self.look, 0)

    def explain(self) -> dict:
        return self._ask(self._explain, 1)

    def _ask(self, what, which: int) -> dict:
        with self._in_use:
            return what() if self._last is None else self._last[which].copy()

    def _explain(self) -> dict:
        engine, explained = self._driver.table.engine, self._session.explain()
        explained["exchange_bytes"] += self._stage.exchange_bytes
        if isinstance(engine, AggregatingEngine):
            explained.update(engine.explain())
        return explained

    def look(self) -> dict:
        engine, stage, stats = self._driver.table.engine, self._stage, self._driver.stats()
        self._counters.add_to(stats, self._session.world, stage.nodes, self._one_host)
        if isinstance(engine, AggregatingEngine):
            stats.update(engine.stats())
        stats.update(scales_ignored=self._residuals.scales_ignored, staged_bytes=stage.staged_bytes, copy_seconds=stage.copy_seconds,
                     pinned_bytes=stage.pinned_bytes, node_bytes=stage.node_bytes, node_seconds=stage.node_seconds)
        self._tell(stats)
        return stats

    def _tell(self, stats: dict) -> None:
        """One line, once: a residual that is lost is gradient that is lost, and a ratio below 1 is no compression."""
        with self._in_use:
            reset = stats["residual_resets"] > 0 and not self._resets_told
            of_port = stats["port_ratio"] is not None
            ratio = stats["port_ratio"] if of_port else stats["ratio"]
            longer = 0 < ratio < RATIO_OF_NOTHING and not self._ratio_told
            self._resets_told, self._ratio_told = self._resets_told or reset, self._ratio_told or longer
        if reset:
            environment.say(f"rank {self._session.rank}: a residual was not finite and was set to zero; "
                            'stats()["residual_resets"] counts them', logging.WARNING)
        if longer and self._session.rank == 0:
            what = "leaves a host" if of_port else "is sent"
            environment.say(f"more {what} than PyTorch's own all-reduce would send ({ratio:.2f} : 1 after "
                            f"{stats['steps']} steps): use another spec or strategy, or train without laconic",
                            logging.WARNING)

    def end(self, free) -> None:
        """Keeps the last of both; free() frees what they come from."""
        last = self.look(), self._explain()
        with self._in_use:
            self._last = last
            free()
