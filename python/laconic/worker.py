# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""One rank's worker: takes (layout, buffer), gives a future of the mean over all ranks. Knows no framework's hook.

It owns the queue, the thread, the unit of the residuals, flush, state and counters. What stands in front of it
(laconic.ddp) knows where gradients come from and which of them share a buffer.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import os
import threading
import time
import weakref

import torch

from . import _lib, environment, errors
from ._checks import U64, whole
from ._session import CSession, Layout, gather_texts
from .aggregation import AggregatingEngine
from .background import GLANCE
from .delivery import EndOfBackward
from .driver import ENGINE_FAILED, engine_failed
from .engine import _TORCH_TYPES, Engine, view
from .errors import LaconicError
from .lane import Lane
from .rates import changes, parameter_of
from .staging import HostStage, InPlace, copy_failed
from .state import VERSION, check_fields, check_header, check_number, check_rates, check_tensors, check_version

DTYPES = {dtype: code for code, dtype in _TORCH_TYPES.items() if code not in (_lib.U8, _lib.I32)}


def shorten(names, limit: int = 3) -> str:
    names = list(names)
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def result(future):
    """The value of a worker's future; a failure is raised as RuntimeError with our text. Give it to `then`."""
    value = future.value()
    if isinstance(value, BaseException):
        raise RuntimeError(str(value)) from value
    return value


#: steps between two looks at what nobody may have asked for: the counters include a norm, a pass over all residuals
LOOK_EVERY = 1000
#: steps before the first of them: what is wrong with a ratio shows soon
FIRST_LOOK = 20
#: float32 of full precision: what residuals may be multiplied by
SMALLEST_FACTOR, LARGEST_FACTOR = torch.finfo(torch.float32).tiny, torch.finfo(torch.float32).max
#: below it a line says that more is sent than without compression; headers alone stay above it
RATIO_OF_NOTHING = 0.99


class Job:
    """One buffer on its way through the worker."""

    __slots__ = ("address", "ended", "error", "failure", "future", "index", "layout", "nothing", "parts", "rates", "scale", "stage", "step",
                 "submitted", "ticket")

    def __init__(self, layout, stage, ticket, step, index, scale, rates, ended):
        self.layout, self.stage, self.ticket, self.step = layout, stage, ticket, step
        self.index, self.scale, self.rates = index, scale, rates
        self.address, self.failure = 0, None  #: of its gradients on the host, and why they did not come
        self.nothing = None  #: in place of gradients that did not come
        self.parts, self.error = 0, None  #: exchanges that have ended, and the first failure of one
        self.future = torch.futures.Future(devices=stage.devices)
        self.ended: threading.Event | None = ended
        self.submitted = time.perf_counter()

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
        """What waits for it gets the error, also behind another failure."""
        self.error = self.error or error
        if self.ended is not None:
            self.ended.set()
        elif not self.future.done():
            self.future.set_result(self.error)


# torch's profiler looks at the thread that started it, or at all (profile_all_threads): a range from submission to the mean
# for the one, ranges of the worker's parts for the other. The latter cost less than a microsecond where nobody looks.
_profiler_looks = torch.autograd._profiler_enabled  # noqa: SLF001
_span = torch._C._profiler._RecordFunctionFast  # noqa: SLF001


def _seen_by_the_profiler(future):
    with torch.profiler.record_function("laconic::exchange") as seen:
        return seen._call_end_callbacks_on_future(future)  # noqa: SLF001


class Clock:
    """Seconds of this rank's jobs, in sums: `queue`, from submission until the worker turns to a job; `backward_wait`, from a
    step's last submission until its last job has ended: what backward() had to wait for."""

    def __init__(self):
        self.queue = self.backward_wait = 0.0
        self._jobs = 0
        self._waiting_since: float | None = None

    def submitted(self) -> None:
        self._jobs += 1

    def started(self, job: Job) -> None:
        self.queue += time.perf_counter() - job.submitted

    def step_ended(self) -> None:
        if self._jobs > 0:
            self._waiting_since = time.perf_counter()

    def ended(self) -> None:
        self._jobs -= 1
        if self._jobs == 0 and self._waiting_since is not None:
            self.backward_wait += time.perf_counter() - self._waiting_since
            self._waiting_since = None


class Worker:
    """Exchanges buffers in the order of their submission, several in flight, by the library's driver. A step ends with none.

    The first failure of the engine breaks it, and so does whatever a task of the thread raises: everything queued or submitted
    afterwards fails at once with that failure's message and touches no network, where a late message could meet an old receive
    of another rank. Gradients of such jobs go into the residuals. `submit`, `next_step`, `summed_elsewhere` and `flush` belong to
    the thread that trains; `stats` and `explain` may be called by any thread at any time.
    """

    def __init__(self, session: CSession, engine: Engine, stage: InPlace | HostStage | None = None, lane: Lane | None = None):
        self.session = session
        #: between the caller's buffers and the host's memory
        self.stage = stage or InPlace()
        #: iterations since attach (or since the saved run's attach): the step number of all random streams
        self.step = 0
        #: the last failure of an exchange on this rank
        self.last_error: LaconicError | None = None
        #: the failure that broke this worker; the same object is every later job's
        self.broken: LaconicError | None = None
        # Of the counters. Objects may be collected while a thread holds it, this worker's wrapper among them: see `end`.
        self._lock = threading.RLock()
        self._iterations = 0  # since attach, whatever was loaded
        self._unit = 1.0  # of the residuals; only the worker's thread changes it
        # The learning rates that residuals are good for, by parameter, and the step's rates that were looked at last.
        self._rates: dict[str, float] = {}
        self._rates_seen: dict[str, float] | None = None
        self._rounds, self._elements, self._dense, self._bytes = 0, 0, 0, 0  # of sums that the worker did not make
        self._scales_ignored = 0  # changes of the loss scale that residuals could not follow
        self._scale_seen = repr(self._unit)  # of the last job
        self._unit_of: tuple = None, None  # scale and rates of the last job
        self._resets_reported, self._ratio_reported = False, False
        self._clock = Clock()
        self._token = 0  # of the last job
        self._driver = self._new_driver(engine)
        self._closed = False
        self._step_has_jobs = False
        self._begun: dict[int, Job] = {}  # that the thread has turned to and that have not ended, by token
        self._at_end: list = []
        self._last_words: tuple[dict, dict] | None = None  # stats and explain of a worker that has ended
        self._session_in_use = threading.RLock()  # by a thread that asks, against the end
        self._process = os.getpid()
        self._over = threading.Event()
        self._lane = lane if lane is not None else Lane()
        self._lane.join()
        self._thread = self._lane.thread
        self._leave = weakref.finalize(self, self._lane.leave)  # where it is dropped unclosed
        self._leave.atexit = False

    def _new_driver(self, engine):
        ours = weakref.WeakMethod(self._exchange_ended)  # tasks hold this worker, the driver does not
        return self.session.driver(engine, lambda *ending: ours()(*ending), _span)

    # ---- the thread that trains -----------------------------------------------------------------------------------------

    def submit(self, layout: Layout, buffer: torch.Tensor | list, *, index: int = 0, scale=1.0, rates: dict | None = None,
               at_end: EndOfBackward | None = None, coalesce: bool = False, whole: bool = False):
        """Queues a flat buffer on the stage's device; gives a torch future of it. Never waits for the device.

        `buffer`: a tensor, or [(first element, tensor), …], pieces that fill it. `scale`: what its gradients are multiplied by
        (AMP), or what float() gives it for. `rates`: learning rates by parameter, one dict a step: see `rates`. The value is
        the buffer (of pieces, the first), which then holds the mean, or the LaconicError that kept it from coming: see `result`.
        It is set by the worker's thread, or by `at_end`. `coalesce`: a short buffer may wait for others of its step, up to
        `next_step`, and travel with them: nobody may ask for its future before. `whole`: it is not cut.
        """
        self.check_open()
        ticket = self.stage.fetch(layout, buffer if isinstance(buffer, list) else [(0, buffer)])
        dtype = DTYPES[ticket.value.dtype]
        layout.dtype = dtype
        job = Job(layout, self.stage, ticket, self.step, index, scale, rates, None if at_end is None else threading.Event())
        with self._lock:
            self._clock.submitted()
        future = _seen_by_the_profiler(job.future) if _profiler_looks() else job.future
        self._step_has_jobs = True
        self._queue(self._serve, job, coalesce, whole)
        if at_end is not None:
            at_end.add(job)
        return future

    @property
    def engine(self) -> Engine:
        return self._driver.table.engine

    def check_open(self) -> None:
        self.check_process()
        if self._closed:
            raise errors.error("invalid_argument", "this model's handle was closed", "wrap the model again and attach again")

    def check_process(self) -> None:
        if self._forked:
            raise errors.error("unsupported", "this process was forked from the one that trains, and laconic's thread is not in it",
                               "call it in the process that has attached")

    @property
    def _forked(self) -> bool:
        return os.getpid() != self._process

    @property
    def here(self) -> bool:
        """Whether this thread is the worker's."""
        return threading.current_thread() is self._thread

    def next_step(self) -> None:
        """Every buffer of this step was submitted, or summed elsewhere."""
        self.step += 1
        with self._lock:
            self._clock.step_ended()
            self._iterations += 1
        if self._step_has_jobs:  # else the thread is left asleep
            self._step_has_jobs = False
            self._queue(self._end_step)
        if self._iterations % LOOK_EVERY == 0 or self._iterations == FIRST_LOOK:
            self._queue(self._look)

    def release(self, layout: Layout) -> None:
        """A layout that is not coming back, at least for a while: frees its buffers, between the same two jobs on every rank."""
        if layout.dtype is not None:  # has been exchanged
            self._queue(self._driver.release, layout)

    def summed_elsewhere(self, elements: int, dense: int, size: int) -> None:
        """Counts a buffer that needed nothing but the sum of the caller's own group: its bytes, dense and as they are."""
        with self._lock:
            self._rounds += 1
            self._elements += elements
            self._dense += dense
            self._bytes += size

    def _queue(self, task, *arguments) -> None:
        self._lane.put(functools.partial(self._run, task, *arguments))

    # ---- the worker's thread --------------------------------------------------------------------------------------------

    def _run(self, task, *arguments) -> None:
        """Without this thread nobody's future would be set any more."""
        try:
            task(*arguments)
        except BaseException as error:  # noqa: BLE001  every rank hears it
            self._break_down(error)

    def _break_down(self, error: BaseException) -> None:
        """A task has raised: nothing is exchanged any more, and what waits for a buffer that was begun gets the reason."""
        said = error.message if isinstance(error, LaconicError) else f"{type(error).__name__}: {error}"
        failed = errors.error("engine_failed", f"rank {self.session.rank}: laconic's thread failed: {said}",
                              "restart the ranks from the last checkpoint")
        self._break(failed)
        self.last_error = self.broken
        with contextlib.suppress(BaseException):  # the end of an exchange may raise, too
            self._driver.break_off(self.broken)
        while self._begun:
            self._begun.popitem()[1].fail(self.broken)

    def _break(self, error: LaconicError) -> None:
        """Nothing goes out any more. The other ranks wait for this one: where the engine can, it tells them."""
        with self._lock:
            first, self.broken = self.broken is None, self.broken or error
        if first and hasattr(self._lane, "spoil"):
            self._lane.spoil()
        if first and self.here:
            with contextlib.suppress(BaseException):  # it raises what all ranks report
                self.engine.fail(None, self.broken)

    def _serve(self, job: Job, coalesce: bool, whole: bool) -> None:
        self._token += 1
        self._begun[self._token] = job
        with self._lock:
            self._clock.started(job)
        if self._unit_of[0] is not job.scale or self._unit_of[1] is not job.rates:
            self._unit_of = job.scale, job.rates
            self._driver.drain()  # what an iteration that was broken off has left has another unit
        self._fetch(job)
        if self.broken is not None:
            self._driver.break_off(self.broken)
        self._driver.submit(job.layout, job.address, job.layout.dtype, step=job.step, index=job.index, token=self._token,
                            failure=job.failure, apart=not coalesce, whole=whole)

    def _exchange_ended(self, tokens, parts, error: LaconicError | None) -> None:
        jobs = [self._begun[token] for token in tokens]
        if error is not None:
            error = self._error_of(jobs, error)
        for token, job, of in zip(tokens, jobs, parts):
            job.error = job.error or error
            job.parts += 1
            if job.parts == of:
                with self._lock:
                    self._clock.ended()
                job.end()
                del self._begun[token]

    def _error_of(self, jobs: list[Job], error: LaconicError) -> LaconicError:
        first = jobs[0]
        if first.error is not None and len(jobs) == 1:  # the first failure of its parts is the one that is told
            return first.error
        others = len({id(job) for job in jobs}) - 1
        parameters = [p for job in jobs for p in job.layout.parameters]
        return self._failed(error, parameters, first.step, f"bucket {first.index}" + (f" and {others} more" if others else ""))

    def _fetch(self, job: Job) -> None:
        job.address, job.failure = self._fetched(job)

    def _fetched(self, job: Job) -> tuple[int, LaconicError | None]:
        """The address of a job's gradients, in the unit of the residuals; or why they did not come, which all ranks hear."""
        try:
            address, scale = self.stage.ready(job.ticket), float(job.scale)
        except RuntimeError as error:
            return 0, copy_failed(error, f"from {self.stage.device} to the host")
        if repr(scale) != self._scale_seen:  # as text NaN equals NaN
            self._scale_seen = repr(scale)
            self._rescale(scale)
        if job.rates is not None and job.rates is not self._rates_seen:
            self._follow(job.rates)
        return address, None

    def _rescale(self, scale: float) -> None:
        """Residuals are kept in the unit of the scaled gradients of the moment, or of the last scale that was one."""
        factor = scale / self._unit
        if SMALLEST_FACTOR <= factor <= LARGEST_FACTOR:
            if factor != 1.0:
                self.session.scale_residuals(factor)
            self._unit = scale
            return
        with self._lock:
            first, self._scales_ignored = self._scales_ignored == 0, self._scales_ignored + 1
        if first:
            environment.say(f"rank {self.session.rank}: residuals cannot follow the loss scale from {self._unit:g} to {scale:g} and stay as they "
                            'are; stats()["scales_ignored"] counts such changes', logging.WARNING)

    def _follow(self, rates: dict[str, float]) -> None:
        """A residual r under the rate η is a step of η·r that was not made: under η' it is r·η/η' (Karimireddy et al., ICML 2019)."""
        self._rates_seen = rates
        factors = changes(self._rates, rates)
        if not factors:
            return
        for name, address, count in self.session.entries():
            factor = factors.get(parameter_of(name))
            if factor is not None and count:
                view(address, count, _lib.F32).mul_(factor)

    def _end_step(self) -> None:
        if self.broken is not None:
            self._driver.break_off(self.broken)
        self._driver.finish()

    def _undo_unfinished(self) -> None:
        """The engine has failed, or the worker ends, in the middle of a step: what is in flight, or waits for it, goes back into the
        residuals, and nothing is exchanged any more."""
        if self._begun:
            self._driver.break_off(self.broken or engine_failed(RuntimeError("the handle ended in the middle of a step, whose exchanges "
                                                                             "were undone")))

    def _failed(self, error: LaconicError, parameters, step: int, what: str) -> LaconicError:
        if self.broken is not None and (error.code == ENGINE_FAILED or error is self.session.broken):  # all that follows is this one
            return self.broken
        names = [self.session.names[i] for i in parameters]
        what += f" ({shorten(names)})" if names else ""
        message = f"rank {self.session.rank}, {what}, step {step}: {error.message}"
        self.last_error = LaconicError(error.code, error.name, message, error.hint)
        self.last_error.__cause__ = error.__cause__  # what a registered codec has raised
        if error.code == ENGINE_FAILED or error is self.session.broken:
            self._break(self.last_error)
        return self.broken or self.last_error

    def break_off(self, error: BaseException, layout: Layout, step: int) -> LaconicError:
        """The caller's own sum of a buffer failed: nothing of this worker may go out any more. Gives the first failure."""
        return self.broken or self._failed(engine_failed(error), layout.parameters, step, "an uncompressed bucket")

    def exchanges(self, layouts: list[Layout], apart: bool) -> list[tuple[int, ...]]:
        """The parameters of each exchange in which a step brings these buffers, in the order of their ends."""
        numbered = {p: number for number, layout in enumerate(layouts) for p in layout.parameters}
        sums = [layout.parameters for layout in layouts if layout.direct]
        sent = self._driver.exchanges([layout for layout in layouts if not layout.direct], apart)
        return sorted(sums + sent, key=lambda parameters: max((numbered[p] for p in parameters), default=0))

    def _between_jobs(self, what):
        """What `what()` gives in the worker's thread, after everything that is queued."""
        if self.here:
            return what()
        self.check_open()
        got = self._lane.wait_for(lambda: (what(),), lambda: self._over.is_set())
        if got is None:  # another thread, or the process, has ended it meanwhile
            self._closed = True
            self.check_open()
        return got[0]

    # ---- what users ask -------------------------------------------------------------------------------------------------

    def stats(self) -> dict:
        """Counters since attach: those of the session and of the sums that were made elsewhere."""
        return self._ask(self._stats, 0)

    def explain(self) -> dict:
        """What was picked and why: spec, strategy, reason, and every parameter's codec and largest payload."""
        return self._ask(self._explain, 1)

    def _explain(self) -> dict:
        explained = self.session.explain()
        if isinstance(self.engine, AggregatingEngine):
            explained.update(self.engine.explain())
        return explained

    def _ask(self, what, which: int) -> dict:
        with self._session_in_use:
            return what() if self._last_words is None else self._last_words[which].copy()

    def _stats(self) -> dict:
        with self._lock:
            rounds, elements, dense, size, iterations = self._rounds, self._elements, self._dense, self._bytes, self._iterations
            times = {"queue_seconds": self._clock.queue, "backward_wait_seconds": self._clock.backward_wait,
                     "scales_ignored": self._scales_ignored}
        stats = self.session.stats()
        world = self.session.world
        stats["elements"] += elements
        stats["rounds"] += rounds
        stats["dense_bytes"] += dense * 2 * (world - 1) // world
        stats["wire_bytes"] += size * 2 * (world - 1) // world
        stats["steps"] = max(stats["steps"], iterations)
        stats["ratio"] = stats["dense_bytes"] / stats["wire_bytes"] if stats["wire_bytes"] else stats["ratio"]
        if isinstance(self.engine, AggregatingEngine):
            stats.update(self.engine.stats())
        stage = self.stage
        stats.update(times, staged_bytes=stage.staged_bytes, copy_seconds=stage.copy_seconds, pinned_bytes=stage.pinned_bytes)
        self._report(stats)
        return stats

    def _look(self) -> None:
        self._stats()

    def _report(self, stats: dict) -> None:
        """One line, once: a residual that is lost is gradient that is lost, and a ratio below 1 is no compression."""
        with self._lock:
            reset = stats["residual_resets"] > 0 and not self._resets_reported
            longer = 0 < stats["ratio"] < RATIO_OF_NOTHING and not self._ratio_reported
            self._resets_reported, self._ratio_reported = self._resets_reported or reset, self._ratio_reported or longer
        if reset:
            environment.say(f"rank {self.session.rank}: a residual was not finite and was set to zero; "
                            'stats()["residual_resets"] counts them', logging.WARNING)
        if longer and self.session.rank == 0:
            environment.say(f"more is sent than PyTorch's own all-reduce would send ({stats['ratio']:.2f} : 1 after "
                            f"{stats['steps']} steps): choose another spec or strategy, or train without laconic",
                            logging.WARNING)

    def flush(self, steps: int = 10) -> int:
        """Drains the residuals: an equal part of them goes out in each of `steps` steps (1 to 65535; 1: all at once).

        Gives the number of the step after which they are empty: the first step after the call carries the wish, the next
        one is the first that drains. One rank's call is enough; ranks that call it give the same number. A flush that is
        under way goes on as it is.
        """
        steps = whole("steps", steps, 1, 65535)
        left = self._between_jobs(functools.partial(self.session.flush, steps))
        return self.step + left - 1 if left else self.step + steps

    def set(self, spec: str | None, rules, control: str | None) -> bool:
        """Other settings: see Driver.set. Every rank makes the call between the same two steps."""
        change = functools.partial(self._driver.set, spec, rules, control)
        return self._between_jobs(functools.partial(self._set, change))

    def set_what_waits(self) -> bool:
        """See Driver.set_what_waits."""
        return self._between_jobs(functools.partial(self._set, self._driver.set_what_waits))

    def _set(self, change) -> bool:
        if self.broken is not None:
            raise self.broken
        try:
            return change()
        finally:
            if self.session.broken is not None:
                self._break(self.session.broken)

    def state_dict(self) -> dict:
        """{"version", "header", "step", "tensors"}: what this rank must have to continue bit for bit. With learning rates that
        residuals follow, "rates".

        Waits for what is queued: after a failure the jobs behind it still put their gradients into the residuals. Called between
        two steps, or when the engine has failed: then what is in flight is undone.
        """
        return self._between_jobs(self._state_dict)

    def _state_dict(self) -> dict:
        self._undo_unfinished()
        self._look()
        tensors = {}
        for name, address, count in self.session.entries():
            values = torch.empty(count, dtype=torch.float32, device="cpu")
            if count:
                ctypes.memmove(values.data_ptr(), address, 4 * count)
            if not name.startswith("state/"):
                values /= self._unit  # saved in unscaled units
            tensors[name] = values
        state = {"version": VERSION, "header": self.session.header(), "step": self.step, "tensors": tensors}
        if not self._rates:
            return state
        # As tensors, which every version has saved.
        return {**state, "rates": {name: torch.tensor(rate, dtype=torch.float64, device="cpu") for name, rate in self._rates.items()}}

    def load_state_dict(self, state: dict) -> None:
        """Continues a saved run. A state that is damaged, or another's, is refused and changes nothing."""
        self.prepare(state)()

    def prepare(self, state: dict):
        """Checks a state whole and changes nothing; gives a call that loads it and cannot fail."""
        return self._between_jobs(functools.partial(self._prepare, state))

    def _prepare(self, state: dict):
        check_fields("it", state, {"version", "header", "step", "tensors"}, {"rates"})
        check_version(state["version"])
        check_header(state["header"])
        self.session.accepts(state["header"])
        step = check_number("step", state["step"], U64 >> 1)
        ready, sets = check_tensors(state["tensors"], list(self.session.entries()), self._unit), self.session.sets
        rates = check_rates(state.get("rates", {}), self.session.names)

        def load():
            if self.session.sets != sets:  # the entries are others
                raise errors.error("exchange_order", "set was called between the check of a state and its load", "load it again")
            for address, values in ready:
                if values.numel():
                    ctypes.memmove(address, values.data_ptr(), 4 * values.numel())
            self.step = step
            self._rates, self._rates_seen = rates, None

        return functools.partial(self._between_jobs, load)

    @property
    def closed(self) -> bool:
        """Nothing may be submitted any more."""
        return self._closed

    def gather_texts(self, text: str) -> list[str]:
        """Every rank's text, in rank order: 500 bytes of each at most. Every rank makes the call between the same two jobs."""
        return self._between_jobs(functools.partial(self._gather_texts, text))

    def _gather_texts(self, text: str) -> list[str]:
        if self.broken is not None:
            raise self.broken
        return gather_texts(self.engine, text)

    def at_end(self, callback) -> None:
        """`callback()` is called once, in the worker's thread, when this worker ends: state may still be saved then."""
        self._at_end.append(callback)

    def end(self) -> bool:
        """Ends the worker behind what is queued and frees what it holds, but for the last counters. Does not wait: it may be
        called while objects are collected. False if that was done before, or is another process's business."""
        if self._forked:
            return False
        with self._lock:
            ended, self._closed = self._closed, True
        if not ended:
            self._queue(self._finish)
        return not ended

    def _finish(self) -> None:
        self._undo_unfinished()
        for callback in (*self._at_end, self._free):
            try:
                callback()
            except BaseException as error:  # noqa: BLE001  nobody waits for this thread
                environment.say(f"rank {self.session.rank}: at the end of a model: {type(error).__name__}: {error}", logging.WARNING)
        self._at_end.clear()
        self._over.set()
        self._leave()

    def _free(self) -> None:
        self.stage.close(self.engine.abandoned)
        stats, explained = self._stats(), self._explain()
        with self._session_in_use:
            self._last_words = stats, explained
            for thing in (self._driver, self.session):
                if self.engine.abandoned:
                    thing.abandon()
                thing.close()

    def close(self) -> bool:
        """As `end`, and waits for it."""
        first = self.end()
        if not self.here and not self._forked:
            while not self._over.wait(GLANCE) and self._thread.is_alive():
                pass
            self._lane.rest(self._thread)
        return first
