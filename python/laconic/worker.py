# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""One rank's worker: takes (layout, buffer), gives a future of the mean over all ranks. Knows no framework's hook.

It owns the queue, the thread, the unit of the residuals, flush, state and counters. What stands in front of it
(laconic.ddp) knows where gradients come from and which of them share a buffer.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import functools
import logging
import os
import queue
import threading
import time
import weakref

import torch

from . import _lib, environment, errors, threads
from ._arrays import zeros
from ._checks import U64, whole
from ._session import ENGINE_FAILED, CSession, Layout, Window, engine_failed, gather_texts
from .aggregation import AggregatingEngine
from .background import GLANCE
from .coalescing import Coalesced, Coalescing, Piece
from .delivery import EndOfBackward
from .engine import _TORCH_TYPES, Engine, view
from .errors import LaconicError
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

    __slots__ = ("address", "ended", "error", "failure", "future", "index", "layout", "left", "nothing", "rates", "scale", "stage", "step",
                 "submitted", "ticket")

    def __init__(self, layout, stage, ticket, step, index, scale, rates, ended):
        self.layout, self.stage, self.ticket, self.step = layout, stage, ticket, step
        self.index, self.scale, self.rates = index, scale, rates
        self.address, self.failure = 0, None  #: of its gradients on the host, and why they did not come
        self.nothing = None  #: in place of gradients that did not come
        # Of its parts: how many have not ended, and the first failure of one.
        self.left, self.error = len(layout.parts), None
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
    """Exchanges buffers in the order of their submission, several in flight: see Window. A step ends with none.

    The first failure of the engine breaks it, and so does whatever a task of the thread raises: everything queued or submitted
    afterwards fails at once with that failure's message and touches no network, where a late message could meet an old receive
    of another rank. Gradients of such jobs go into the residuals. `submit`, `next_step`, `summed_elsewhere` and `flush` belong to
    the thread that trains; `stats` and `explain` may be called by any thread at any time.
    """

    def __init__(self, session: CSession, engine: Engine, stage: InPlace | HostStage | None = None):
        self.session = session
        self.engine = engine
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
        self._resets_reported, self._ratio_reported = False, False
        self._clock = Clock()
        self._window = Window(session)
        self._coalescing = Coalescing(session, engine)
        self._parts = self._coalesced = 0
        self._closed = False
        self._step_has_jobs = False
        self._begun: dict[Job, None] = {}  # jobs that the thread has turned to and that have not ended
        self._at_end: list = []
        self._last_words: tuple[dict, dict] | None = None  # stats and explain of a worker that has ended
        self._session_in_use = threading.RLock()  # by a thread that asks, against the end
        self._process = os.getpid()
        self._tasks: queue.SimpleQueue = queue.SimpleQueue()
        self._thread = threads.start(_work, self._tasks, name="laconic", stop=functools.partial(self._tasks.put, None))
        weakref.finalize(self, self._tasks.put, None).atexit = False  # where it is dropped unclosed

    # ---- the thread that trains -----------------------------------------------------------------------------------------

    def submit(self, layout: Layout, buffer: torch.Tensor | list, *, index: int = 0, scale=1.0, rates: dict | None = None,
               at_end: EndOfBackward | None = None, coalesce: bool = False):
        """Queues a flat buffer on the stage's device; gives a torch future of it. Never waits for the device.

        `buffer`: a tensor, or [(first element, tensor), …], pieces that fill it. `scale`: what its gradients are multiplied by
        (AMP), or what float() gives it for. `rates`: learning rates by parameter, one dict a step: see `rates`. The value is
        the buffer (of pieces, the first), which then holds the mean, or the LaconicError that kept it from coming: see `result`.
        It is set by the worker's thread, or by `at_end`. `coalesce`: a short buffer may wait for others of its step, up to
        `next_step`, and travel with them: nobody may ask for its future before.
        """
        self.check_open()
        ticket = self.stage.fetch(layout, buffer if isinstance(buffer, list) else [(0, buffer)])
        dtype = DTYPES[ticket.value.dtype]
        for _, part in layout.parts:
            part.dtype = dtype
        layout.dtype = dtype
        job = Job(layout, self.stage, ticket, self.step, index, scale, rates, None if at_end is None else threading.Event())
        with self._lock:
            self._clock.submitted()
        future = _seen_by_the_profiler(job.future) if _profiler_looks() else job.future
        self._step_has_jobs = True
        self._queue(self._serve, job, coalesce)
        if at_end is not None:
            at_end.add(job)
        return future

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
            for _, part in layout.parts:
                self._queue(self.session.release, part)

    def summed_elsewhere(self, elements: int, dense: int, size: int) -> None:
        """Counts a buffer that needed nothing but the sum of the caller's own group: its bytes, dense and as they are."""
        with self._lock:
            self._rounds += 1
            self._elements += elements
            self._dense += dense
            self._bytes += size

    def _queue(self, task, *arguments) -> None:
        self._tasks.put(functools.partial(self._run, task, *arguments))

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
        with contextlib.suppress(BaseException):
            self._coalescing.take()
        for _ in range(self._window.in_flight + 1):  # the end of one may raise, too
            with contextlib.suppress(BaseException):
                self._window.break_off(self.engine, self.broken)
        for job in list(self._begun):
            del self._begun[job]
            job.fail(self.broken)

    def _break(self, error: LaconicError) -> None:
        """Nothing goes out any more. The other ranks wait for this one: where the engine can, it tells them."""
        with self._lock:
            first, self.broken = self.broken is None, self.broken or error
        if first and self.here:
            with contextlib.suppress(BaseException):  # it raises what all ranks report
                self.engine.fail(None, self.broken)

    def _serve(self, job: Job, coalesce: bool) -> None:
        self._begun[job] = None
        with self._lock:
            self._clock.started(job)
            self._parts += len(job.layout.parts) if len(job.layout.parts) > 1 else 0
        for number, (first, layout) in enumerate(job.layout.parts):
            waits = coalesce and self._coalescing.takes(layout)
            if self._coalescing.waiting and not (waits and self._coalescing.goes_with(job, layout)):
                self._send_waiting()
            if number == 0:
                self._fetch(job)
            piece = Piece(job, layout, job.address + first * job.ticket.value.element_size(), job.index | number << 16)
            if not waits:
                self._send(piece)
            elif self._coalescing.add(piece):
                self._send_waiting()

    def _fetch(self, job: Job) -> None:
        job.address, job.failure = self._fetched(job)
        if job.failure is not None:  # what fails puts its gradients into the residuals: those that never came are these
            job.nothing = zeros(job.layout.elements * job.ticket.value.element_size())
            job.address = ctypes.addressof(job.nothing)

    def _send(self, piece: Piece) -> None:
        job, layout = piece.job, piece.layout
        place, numbers = (layout, piece.address, layout.dtype), {"step": job.step, "index": piece.index}
        ended = functools.partial(self._part_ended, job, layout)
        if self.broken is None:
            self._window.submit(self.engine, ended, *place, span=_span, **numbers, failure=job.failure)
        else:
            self._window.break_off(self.engine, self.broken)
            ended(job.failure or self._keep(*place, **numbers))

    def _send_waiting(self) -> None:
        """What waits for the next bucket goes out without it."""
        pieces = self._coalescing.take()
        if len(pieces) < 2 or self.broken is not None:
            for piece in pieces:
                self._send(piece)
            return
        first = pieces[0]
        together = self._coalescing.join(pieces, first.job.ticket.value.element_size())
        with self._lock:
            self._coalesced += len(pieces)
        self._window.submit(self.engine, functools.partial(self._together_ended, together), together.layout, together.address,
                            together.layout.dtype, span=_span, step=first.job.step, index=first.index, failure=together.failure)

    def _together_ended(self, together: Coalesced, error: BaseException | None) -> None:
        if error is None:
            together.copy_back()
        else:
            first, others = together.pieces[0].job, len({id(piece.job) for piece in together.pieces}) - 1
            what = f"bucket {first.index}" + (f" and {others} more" if others else "")
            error = self._failed(error, together.layout, first.step, what)
        self._coalescing.give_back(together)
        for piece in together.pieces:
            self._ended(piece.job, error)

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

    def _keep(self, *place, **numbers) -> LaconicError:
        """The engine has failed: the gradients go into the residuals."""
        try:
            self.session.keep(*place, **numbers)
        except LaconicError as error:
            return error
        return self.broken

    def _part_ended(self, job: Job, layout: Layout, error: BaseException | None) -> None:
        if error is not None and job.error is None:  # the first failure of its parts is the one that is told
            error = self._failed(error, layout, job.step, f"bucket {job.index}")
        self._ended(job, error)

    def _ended(self, job: Job, error: BaseException | None) -> None:
        job.error = job.error or error
        job.left -= 1
        if job.left == 0:
            with self._lock:
                self._clock.ended()
            job.end()
            self._begun.pop(job, None)

    def _end_step(self) -> None:
        self._send_waiting()
        if self.broken is not None:
            self._window.break_off(self.engine, self.broken)
        self._window.finish(self.engine, span=_span)
        self._coalescing.end_step()

    def _undo_unfinished(self) -> None:
        """The engine has failed, or the worker ends, in the middle of a step: what is in flight, or waits for it, goes back into the
        residuals, and nothing is exchanged any more."""
        pieces = self._coalescing.take()
        if not self._window.in_flight and not pieces:
            return
        why = self.broken or engine_failed(RuntimeError("the handle ended in the middle of a step, whose exchanges were undone"))
        self._window.break_off(self.engine, why)
        for piece in pieces:
            self._failed(why, piece.layout, piece.job.step, f"bucket {piece.job.index}")
            self._send(piece)

    def _failed(self, error: BaseException, layout: Layout, step: int, what: str) -> LaconicError:
        if not isinstance(error, LaconicError):
            error = engine_failed(error)
        if self.broken is not None and error.code == ENGINE_FAILED:  # all that follows is this one
            return self.broken
        names = [self.session.names[i] for i in layout.parameters]
        what += f" ({shorten(names)})" if names else ""
        message = f"rank {self.session.rank}, {what}, step {step}: {error.message}"
        self.last_error = LaconicError(error.code, error.name, message, error.hint)
        self.last_error.__cause__ = error.__cause__  # what a registered codec has raised
        if error.code == ENGINE_FAILED:
            self._break(self.last_error)
        return self.broken or self.last_error

    def break_off(self, error: BaseException, layout: Layout, step: int) -> LaconicError:
        """The caller's own sum of a buffer failed: nothing of this worker may go out any more. Gives the first failure."""
        return self.broken or self._failed(engine_failed(error), layout, step, "an uncompressed bucket")

    def _between_jobs(self, what):
        """What `what()` gives in the worker's thread, after everything that is queued."""
        if self.here:
            return what()
        self.check_open()
        box = concurrent.futures.Future()

        def task():
            try:
                box.set_result(what())
            except BaseException as error:  # noqa: BLE001  raised below
                box.set_exception(error)

        self._tasks.put(task)
        while not concurrent.futures.wait([box], timeout=GLANCE).done:
            if not self._thread.is_alive() and not box.done():  # another thread, or the process, has ended it meanwhile
                self._closed = True
                self.check_open()
        return box.result()

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
                     "window_wait_seconds": self._window.waited, "parts": self._parts, "coalesced": self._coalesced,
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
        """Other settings: see CSession.set. Every rank makes the call between the same two steps."""
        change = functools.partial(self.session.set, self.engine, spec, rules, control)
        return self._between_jobs(functools.partial(self._set, change))

    def set_what_waits(self) -> bool:
        """See CSession.set_what_waits."""
        change = functools.partial(self.session.set_what_waits, self.engine)
        return self._between_jobs(functools.partial(self._set, change))

    def _set(self, change) -> bool:
        if self.broken is not None:
            raise self.broken
        try:
            return change()
        finally:
            with self._lock:
                self.broken = self.session.broken

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
            self._tasks.put(None)
        return not ended

    def _finish(self) -> None:
        self._undo_unfinished()
        for callback in (*self._at_end, self._free):
            try:
                callback()
            except BaseException as error:  # noqa: BLE001  nobody waits for this thread
                environment.say(f"rank {self.session.rank}: at the end of a model: {type(error).__name__}: {error}", logging.WARNING)
        self._at_end.clear()

    def _free(self) -> None:
        self.stage.close(self.engine.abandoned)
        self._coalescing.close(self.engine.abandoned)
        stats, explained = self._stats(), self._explain()
        with self._session_in_use:
            self._last_words = stats, explained
            if self.engine.abandoned:
                self.session.abandon()
            self.session.close()

    def close(self) -> bool:
        """As `end`, and waits for it."""
        first = self.end()
        if not self.here:
            self._thread.join()
        return first


# ---- the thread -------------------------------------------------------------------------------------------------------------


def _work(tasks: queue.SimpleQueue) -> None:
    """Knows no worker: one that nobody else holds goes away."""
    while True:
        task = tasks.get()
        if task is None:
            break
        task()
        del task  # it holds the worker
