# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""One rank's worker: takes (layout, buffer), gives a future of the mean over all ranks. Knows no framework's hook.

What stands in front of it (laconic.ddp.hook) knows where gradients come from and which of them share a buffer.
"""

from __future__ import annotations

import functools
import threading

import torch

from ..core import _lib
from ..core._checks import whole
from ..core.errors import LaconicError
from ..engines.c10d import _TORCH_TYPES, Engine
from ..engines.texts import gather_texts
from .commands import Commands
from .counters import Counters, Reports
from .csession import CSession, Layout
from .delivery import EndOfBackward
from .exchanges import Exchanges, Job
from .lane import Lane
from .residuals import Residuals
from .staging import HostStage, InPlace

DTYPES = {dtype: code for code, dtype in _TORCH_TYPES.items() if code not in (_lib.U8, _lib.I32)}
#: steps between two checks of counters that may be unused: they include a norm, a pass over all residuals
LOOK_EVERY = 1000
#: steps before the first of them: what is wrong with a ratio shows soon
FIRST_LOOK = 20


def result(future):
    """The value of a worker's future; a failure is raised as RuntimeError with our text. Give it to `then`."""
    value = future.value()
    if isinstance(value, BaseException):
        raise RuntimeError(str(value)) from value
    return value


class Worker:
    """Queues buffers, in the order of whose submission its thread exchanges them. A step ends with none in flight.

    The first failure of the engine breaks it (see Exchanges), and so does whatever a call in the thread raises. `submit`, `next_step`,
    `drain` and `flush` belong to the thread that trains; `stats` and `explain` may be called by any thread at any time.
    """

    def __init__(self, session: CSession, engine: Engine, stage: InPlace | HostStage | None = None, lane: Lane | None = None, everyone=None):
        self.session = session
        #: between the caller's buffers and the host's memory
        self.stage = stage or InPlace()
        self._everyone = everyone
        #: iterations since attach (or since the saved run's attach): the step number of all random streams
        self.step = 0
        self._step_has_jobs = False
        lane = lane if lane is not None else Lane()
        self.counters = Counters()
        self._residuals = Residuals(session)
        #: what the thread has begun, and its failures
        self.exchanges = Exchanges(session, engine, self.stage, self._residuals, self.counters, lane)
        self._driver = self.exchanges.driver
        self._reports = Reports(session, self._driver, self.stage, self._residuals, self.counters)
        #: the thread, as this worker sees it
        self.commands = Commands(lane, session.rank)

    @property
    def engine(self) -> Engine:
        return self._driver.table.engine

    @property
    def everyone(self):
        """Gathers bytes of all ranks."""
        return self._everyone or self.engine

    @property
    def broken(self) -> LaconicError | None:
        """The failure after which nothing is exchanged any more."""
        return self.exchanges.broken

    # ---- the thread that trains -----------------------------------------------------------------------------------------

    def submit(self, layout: Layout, buffer: torch.Tensor | list, *, index: int = 0, scale=1.0, rates: dict | None = None,
               at_end: EndOfBackward | None = None, coalesce: bool = False, whole: bool = False, failure: LaconicError | None = None):
        """Queues a flat buffer on the stage's device; returns a torch future of it. Never waits for the device.

        `buffer`: a tensor, or [(first element, tensor), …], pieces that fill it. `scale`: the scale of its gradients (AMP), or an
        object whose float() is the scale. `rates`: learning rates by parameter, one dict per step: see `rates`. The future's value
        is the buffer (with pieces, the first), which then holds the mean, or the LaconicError that prevented it: see `result`. The
        worker's thread, or `at_end`, sets it. `coalesce`: a short buffer may wait for others of its step, up to `drain` or
        `next_step`, and share their exchange: its future must not be waited for before that. `whole`: it is not cut.
        `failure`: why this rank has no gradients; every rank reports it.
        """
        self.commands.check_open()
        ticket = self.stage.fetch(layout, buffer if isinstance(buffer, list) else [(0, buffer)])
        layout.dtype = DTYPES[ticket.value.dtype]
        job = Job(layout, self.stage, ticket, self.step, index, scale, rates, None if at_end is None else threading.Event(), failure)
        self.counters.submitted()
        future = job.seen_future()
        self._step_has_jobs = True
        self._queue(self.exchanges.serve, job, coalesce, whole)
        if at_end is not None:
            at_end.add(job)
        return future

    def drain(self) -> None:
        """Every buffer of this step that waits for others goes out; more may follow."""
        if self._step_has_jobs:
            self._queue(self.exchanges.drain)

    def next_step(self) -> None:
        """Every buffer of this step was submitted, or summed elsewhere."""
        self.step += 1
        self.counters.step_ended()
        if self._step_has_jobs:  # else the thread is left asleep
            self._step_has_jobs = False
            self._queue(self.exchanges.end_step)
        if self.counters.steps % LOOK_EVERY == 0 or self.counters.steps == FIRST_LOOK:
            self._queue(self._reports.look)

    def release(self, layout: Layout) -> None:
        """A layout that is not coming back, at least for a while: frees its buffers, between the same two jobs on every rank."""
        if layout.dtype is not None:  # has been exchanged
            self._queue(self._release, layout)

    def _release(self, layout: Layout) -> None:
        self._driver.release(self.stage.layout(layout))

    def _queue(self, task, *arguments) -> None:
        self.commands.put(functools.partial(self._run, task, *arguments))

    def _run(self, task, *arguments) -> None:
        """Runs on the worker's thread, without which no future would be set."""
        try:
            task(*arguments)
        except BaseException as error:  # noqa: BLE001  every rank gets it
            self.exchanges.thread_failed(error)

    # ---- what users ask -------------------------------------------------------------------------------------------------

    def stats(self) -> dict:
        """Counters since attach: those of the session and of the sums that were made elsewhere."""
        return self._reports.stats()

    def explain(self) -> dict:
        """The plan and its reasons: spec, strategy, reason, and each parameter's codec and largest payload."""
        return self._reports.explain()

    def flush(self, steps: int = 10) -> int:
        """See Handle.flush."""
        steps = whole("steps", steps, 1, 65535)
        left = self.commands.between_jobs(self.exchanges.flush, steps)
        return self.step + left - 1 if left else self.step + steps + (self.stage.nodes is not None)

    def set(self, spec: str | None, rules, control: str | None) -> bool:
        """Other settings: see Driver.set. Every rank makes the call between the same two steps."""
        return self.commands.between_jobs(self.exchanges.set, spec, rules, control)

    def set_what_waits(self) -> bool:
        """See Driver.set_what_waits."""
        return self._agree(self._driver.set_what_waits)

    def gather_texts(self, text: str) -> list[str]:
        """Every rank's text, in rank order: 500 bytes of each at most. Every rank makes the call between the same two jobs."""
        return self._agree(gather_texts, self.everyone, text)

    def _agree(self, what, *arguments):
        return self.commands.between_jobs(self.exchanges.agreed, what, *arguments)

    def state_dict(self) -> dict:
        """See Residuals.saved. Waits for queued jobs: after a failure they still add their gradients to the residuals. Called
        between two steps, or after the engine has failed: then exchanges in flight are rolled back."""
        return self.commands.between_jobs(self._state_dict)

    def _state_dict(self) -> dict:
        self.exchanges.undo_unfinished()
        self._reports.look()
        return self._residuals.saved(self.step)

    def prepare(self, state: dict):
        """Checks a state whole and changes nothing: a damaged one, or another's, is refused. Gives a call that loads it and cannot fail."""
        step, load = self.commands.between_jobs(self._residuals.prepare, state)

        def loads() -> None:
            self.commands.between_jobs(load)
            self.step = step

        return loads

    # ---- the end ----------------------------------------------------------------------------------------------------------

    def end(self) -> bool:
        """Ends the worker after all queued jobs and frees its memory, except the last counters. Does not wait: it may be called
        during garbage collection. False if it already ended, or belongs to another process."""
        return self.commands.end(functools.partial(self._run, self.exchanges.undo_unfinished), self._free)

    def _free(self) -> None:
        self.stage.close(self.engine.abandoned)
        self._reports.end(self.exchanges.free)

    def close(self) -> bool:
        """As `end`, and waits for it."""
        first = self.end()
        self.commands.wait()
        return first
