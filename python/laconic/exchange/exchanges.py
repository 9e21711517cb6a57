# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Jobs in flight on a worker's thread, in the library's driver, and their failures."""

from __future__ import annotations

import contextlib
import threading
import time
import weakref

import torch

from ..core import errors
from ..core.errors import LaconicError
from .driver import ENGINE_FAILED, engine_failed
from .names import shorten
from .staging import copy_failed


# torch's profiler records the thread that started it, or all threads (profile_all_threads): for the first there is a range from
# submission to the mean, for the second ranges of the worker's phases. They cost less than a microsecond without a profiler.
_profiler_looks = torch.autograd._profiler_enabled  # noqa: SLF001
_span = torch._C._profiler._RecordFunctionFast  # noqa: SLF001


class Job:
    """One buffer on its way through the worker. `ended`: its future is set by another thread than the worker's. `failure`: why there are no
    gradients in it."""

    __slots__ = ("ended", "error", "failure", "future", "index", "layout", "over", "parts", "rates", "scale", "stage", "step", "submitted", "ticket")

    def __init__(self, layout, stage, ticket, step, index, scale, rates, ended, failure=None):
        self.layout, self.stage, self.ticket, self.step = layout, stage, ticket, step
        self.index, self.scale, self.rates, self.failure = index, scale, rates, failure
        self.over = False  #: all exchanges have ended
        self.parts, self.error = 0, None  #: exchanges that have ended, and the first failure of one
        self.future = torch.futures.Future(devices=stage.devices)
        self.ended: threading.Event | None = ended
        self.submitted = time.perf_counter()

    def seen_future(self):
        """The future, in the profiler's sight if it looks."""
        if not _profiler_looks():
            return self.future
        with torch.profiler.record_function("laconic::exchange") as seen:
            return seen._call_end_callbacks_on_future(self.future)  # noqa: SLF001

    def end(self) -> None:
        if self.ended is None:
            self.deliver()
        else:
            self.ended.set()

    def wait(self) -> None:
        self.ended.wait()

    def deliver(self) -> None:
        self.stage.deliver(self.ticket, self.future, self.error)

    def fail(self, error: LaconicError) -> None:
        """Sets the error on everything that waits, also after another failure."""
        self.error = self.error or error
        if self.ended is not None:
            self.ended.set()
        elif not self.future.done():
            self.future.set_result(self.error)


class Exchanges:
    """Exchanges jobs in order, several in flight, by the library's driver, and sets their futures.

    The first failure of the engine breaks it: every later job fails at once with that failure's message and does not use the
    network, where a late message could meet an old receive of another rank. Gradients of such jobs go into the residuals. All but
    `failed` and `break_off` is called on the worker's thread only.
    """

    def __init__(self, session, engine, stage, residuals, counters, lane):
        self._session, self._stage, self._residuals, self._counters, self._lane = session, stage, residuals, counters, lane
        #: the last failure of an exchange on this rank
        self.last_error: LaconicError | None = None
        #: the failure that broke it; the same object is every later job's
        self.broken: LaconicError | None = None
        self._lock = threading.RLock()
        self._unit_of: tuple = None, None  # scale and rates of the last job
        self._token = self._step = 0  # of the last job
        self._begun: dict[int, Job] = {}  # that have not ended, by token
        self._order = stage.in_order(session.window, residuals)
        ours = weakref.WeakMethod(self._ended)  # queued jobs hold this object, the driver does not
        self.driver = session.driver(engine, lambda *ending: ours()(*ending), _span, stage.within)

    def serve(self, job: Job, coalesce: bool, whole: bool) -> None:
        self._token += 1
        self._step = job.step
        self._begun[self._token] = job
        if self._order is not None:
            self._order.add(job)
        self._counters.started(job.submitted)
        if self._unit_of[0] is not job.scale or self._unit_of[1] is not job.rates:
            self._unit_of = job.scale, job.rates
            self.driver.drain()  # what an iteration that was broken off has left has another unit
        address, failure = self._fetch(job)
        self._undo_if_broken()
        self.driver.submit(self._stage.layout(job.layout), address, job.layout.dtype, step=job.step, index=job.index, token=self._token,
                           failure=failure, apart=not coalesce, whole=whole)
        if self._order is not None:
            self._leave(self._order.served, job, self.driver.drain)

    def _fetch(self, job: Job) -> tuple[int, LaconicError | None]:
        """The address of a job's gradients, in the unit of the residuals, or the error that all ranks report."""
        if self._stage.over is not None:
            return 0, self.broken
        failure = job.failure
        try:
            address = self._stage.ready(job.ticket)
        except RuntimeError as error:
            if self._stage.over is not None:
                return 0, self.failed(self._stage.over, job.layout.parameters, job.step, f"bucket {job.index}")
            address, failure = self._stage.brought(job.ticket), self._copy_failed(error)
        try:
            self._residuals.follow(float(job.scale), job.rates)
        except RuntimeError as error:
            return 0, self._copy_failed(error)
        return (address if job.failure is None else 0), failure

    def _copy_failed(self, error: RuntimeError) -> LaconicError:
        return copy_failed(error, f"from {self._stage.device} to the host")

    def drain(self) -> None:
        """Ends what was served, and not the step."""
        self._undo_if_broken()
        self.driver.drain()
        if self._order is not None:
            self._leave(self._order.drained)

    def end_step(self) -> None:
        self._undo_if_broken()
        self.driver.finish()
        if self._order is None:
            return
        self._order.failure = self.broken or self._order.failure
        failure = self._leave(self._order.meet, self._session)
        if failure is None:
            self._leave(self._order.end_step)
        else:
            self._heard(failure)
            self._order.give_up(failure)

    def _heard(self, failure: LaconicError) -> None:
        """All ranks of the node do, between the same two jobs."""
        if failure is not self.broken:
            self.last_error = failure
        if failure.code == ENGINE_FAILED:
            self.break_off(failure)

    def _leave(self, leave, *arguments):
        """The result of `leave`, by which jobs leave, unless nothing is exchanged any more."""
        if self._stage.over is None:
            try:
                return leave(*arguments)
            except LaconicError as error:  # the ranks of the node are at different places now
                self.break_off(self.failed(error, (), self._step, "inside the node"))
                self._stage.fail(self.broken)
        self._undo_if_broken()

    def flush(self, steps: int) -> int:
        """See CSession.flush. The other ranks of a node hear of it at the end of the next step."""
        if self._order is not None:
            self._order.flush = max(self._order.flush, steps)
        return self._session.flush(steps)

    def set(self, spec, rules, control) -> bool:
        """See Driver.set."""
        return self.agreed(self.driver.set, spec, rules, control)

    def _ended(self, tokens, parts, error: LaconicError | None) -> None:
        jobs = [self._begun[token] for token in tokens]
        if error is not None:
            error = self._error_of(jobs, error)
        for token, job, of in zip(tokens, jobs, parts):
            job.error = job.error or error
            job.parts += 1
            if job.parts == of:
                self._counters.ended()
                job.over = True
                if self._order is None:
                    job.end()
                del self._begun[token]

    # ---- failures ---------------------------------------------------------------------------------------------------------

    def _error_of(self, jobs: list[Job], error: LaconicError) -> LaconicError:
        first = jobs[0]
        if first.error is not None and len(jobs) == 1:  # the first failure of its parts is reported
            return first.error
        others = len({id(job) for job in jobs}) - 1
        parameters = [p for job in jobs for p in job.layout.parameters]
        return self.failed(error, parameters, first.step, f"bucket {first.index}" + (f" and {others} more" if others else ""))

    def failed(self, error: LaconicError, parameters, step: int, what: str) -> LaconicError:
        """Reports that `what` of these parameters failed. Returns the reported error: if exchanges are no longer possible, the
        failure that broke it."""
        of_engine = error.code == ENGINE_FAILED or error is self._session.broken
        if self.broken is not None and of_engine:  # all that follows is this one
            return self.broken
        names = [self._session.names[i] for i in parameters]
        what += f" ({shorten(names)})" if names else ""
        message = f"rank {self._session.rank}, {what}, step {step}: {self._stage.named(error.message)}"
        self.last_error = LaconicError(error.code, error.name, message, error.hint)
        self.last_error.__cause__ = error.__cause__  # what a registered codec has raised
        if of_engine:
            self.break_off(self.last_error)
        elif self._order is not None:
            self._order.failure = self._order.failure or self.last_error
        return self.broken or self.last_error

    def sum_failed(self, error: BaseException, layout, step: int) -> LaconicError:
        """The caller's own sum of a buffer failed: nothing may go out any more. Gives the first failure."""
        return self.broken or self.failed(engine_failed(error), layout.parameters, step, "an uncompressed bucket")

    def break_off(self, error: LaconicError) -> None:
        """Stops all exchanges. The other ranks wait for this one: if the engine can, it reports the failure to them. Those of a node hear it at
        the end of the step."""
        with self._lock:
            first, self.broken = self.broken is None, self.broken or error
        if first and hasattr(self._lane, "spoil"):
            self._lane.spoil()
        if first and threading.current_thread() is self._lane.thread:
            with contextlib.suppress(BaseException):  # it raises what all ranks report
                self.driver.table.engine.fail(None, self.broken)

    def thread_failed(self, error: BaseException) -> None:
        """A call in the worker's thread has raised: what waits for a job that was begun gets the reason."""
        said = error.message if isinstance(error, LaconicError) else f"{type(error).__name__}: {error}"
        self.break_off(errors.error("engine_failed", f"rank {self._session.rank}: laconic's thread failed: {said}",
                                    "restart the ranks from the last checkpoint"))
        self.last_error = self.broken
        self._stage.fail(self.broken)
        with contextlib.suppress(BaseException):  # the end of an exchange may raise, too
            self._undo_if_broken()
        if self._order is not None:
            self._order.give_up(self.broken)
        while self._begun:
            self._begun.popitem()[1].fail(self.broken)

    def _undo_if_broken(self) -> None:
        if self.broken is not None:
            self.driver.break_off(self.broken)
            if self._stage.over is not None:
                self._order.give_up(self.broken)

    def undo_unfinished(self) -> None:
        """The engine has failed, or the worker ends, in the middle of a step: what is in flight, or waits for it, goes back into the
        residuals, and nothing is exchanged any more."""
        why = self.broken or engine_failed(RuntimeError("the handle was closed mid-step; its exchanges were rolled back"))
        if self._begun:
            self.driver.break_off(why)
        if self._order is not None:
            self._order.give_up(why)

    def agreed(self, what, *arguments):
        """The result of `what(*arguments)`, a round between two jobs in which every rank takes part."""
        if self.broken is not None:
            raise self.broken
        try:
            return what(*arguments)
        finally:
            why = self._session.broken or self._stage.over
            if why is not None:
                self.break_off(why)
                self._stage.fail(why)

    def of(self, layouts: list, apart: bool) -> list[tuple[int, ...]]:
        """The parameters of each exchange in which a step brings these buffers, in the order of their ends."""
        numbered = {p: number for number, layout in enumerate(layouts) for p in layout.parameters}
        sums = [layout.parameters for layout in layouts if layout.direct]
        sent = self.driver.exchanges([layout for layout in layouts if not layout.direct], apart)
        return sorted(sums + sent, key=lambda parameters: max((numbered[p] for p in parameters), default=0))

    def free(self) -> None:
        """The worker's last: nothing is under way."""
        abandoned = self.driver.abandoned
        for thing in (self.driver, self._session):
            if abandoned:
                thing.abandon()
            thing.close()
