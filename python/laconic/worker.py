# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""One rank's worker: takes (layout, buffer), gives a future of the mean over all ranks. Knows no framework's hook.

It owns the queue, the thread, the unit of the residuals, flush, state and counters. What stands in front of it
(laconic.ddp) knows where gradients come from and which of them share a buffer.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import ctypes
import functools
import logging
import queue
import threading

import torch

from . import _lib, environment, errors
from ._checks import U64, whole
from .engine import _TORCH_TYPES, Engine
from .errors import LaconicError
from .session import ENGINE_FAILED, Layout, Session, engine_failed
from .state import VERSION, check_fields, check_header, check_number, check_tensors, check_version

DTYPES = {dtype: code for code, dtype in _TORCH_TYPES.items() if code != _lib.U8}


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


class Job:
    """One buffer on its way through the worker."""

    __slots__ = ("buffer", "future", "index", "layout", "scale", "step")

    def __init__(self, layout, buffer, step, index, scale):
        self.layout, self.buffer, self.step = layout, buffer, step
        self.index, self.scale = index, scale
        self.future = torch.futures.Future()


class Worker:
    """Exchanges buffers strictly first in, first out: collectives are matched by order on all ranks.

    The first failure of the engine breaks it: everything queued or submitted afterwards fails at once with that failure's
    message and touches no network, where a late message could meet an old receive of another rank. Gradients of such jobs
    go into the residuals. `submit`, `next_step`, `summed_elsewhere` and `flush` belong to the thread that trains; `stats`
    and `explain` may be called by any thread at any time.
    """

    def __init__(self, session: Session, engine: Engine):
        self.session = session
        self.engine = engine
        #: iterations since attach (or since the saved run's attach): the step number of all random streams
        self.step = 0
        #: the last failure of an exchange on this rank
        self.last_error: LaconicError | None = None
        #: the failure that broke this worker; the same object is every later job's
        self.broken: LaconicError | None = None
        self._lock = threading.Lock()  # of the counters
        self._iterations = 0  # since attach, whatever was loaded
        self._unit = 1.0  # of the residuals; only the worker's thread changes it
        self._rounds, self._elements, self._bytes = 0, 0, 0  # of sums that the worker did not make
        self._resets_reported = False
        self._closed = False
        self._tasks: queue.SimpleQueue = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="laconic", daemon=True)
        self._thread.start()
        # A thread inside torch while the interpreter goes away ends the process with SIGABRT: let it end first.
        atexit.register(_stop, self._tasks, self._thread)

    # ---- the thread that trains -----------------------------------------------------------------------------------------

    def submit(self, layout: Layout, buffer: torch.Tensor, *, index: int = 0, scale: float = 1.0):
        """Queues a flat CPU buffer; gives a torch future of it. `scale`: what its gradients are multiplied by (AMP).

        The value is the buffer, which then holds the mean, or the LaconicError that kept it from coming: see `result`.
        """
        self.check_open()
        layout.dtype = DTYPES[buffer.dtype]
        job = Job(layout, buffer, self.step, index, scale)
        self._tasks.put(functools.partial(self._serve, job))
        return job.future

    def check_open(self) -> None:
        if self._closed:
            raise errors.error("invalid_argument", "this model's handle was closed", "wrap the model again and attach again")

    def next_step(self) -> None:
        """Every buffer of this step was submitted, or summed elsewhere."""
        self.step += 1
        with self._lock:
            self._iterations += 1
        if self._iterations % LOOK_EVERY == 0:
            self._tasks.put(self._look)

    def release(self, layout: Layout) -> None:
        """A layout that is not coming back, at least for a while: frees its buffers, between the same two jobs on every rank."""
        if layout.dtype is not None:  # has been exchanged
            self._tasks.put(functools.partial(self.session.release, layout))

    def summed_elsewhere(self, layout: Layout) -> None:
        """Counts a buffer that needed nothing but the sum of the caller's own group."""
        with self._lock:
            self._rounds += 1
            self._elements += layout.elements
            self._bytes += layout.elements * layout.element_size

    # ---- the worker's thread --------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            task = self._tasks.get()
            if task is None:
                return
            task()

    def _serve(self, job: Job) -> None:
        value = job.buffer
        try:
            if job.scale != self._unit:  # residuals are kept in the unit of the scaled gradients of the moment
                self.session.scale_residuals(job.scale / self._unit)
                self._unit = job.scale
            arguments = job.layout, job.buffer.data_ptr(), job.layout.dtype
            numbers = {"step": job.step, "index": job.index}
            if self.broken is None:
                self.session.exchange(*arguments, self.engine, **numbers)
            else:
                self.session.keep(*arguments, **numbers)
                value = self.broken
        except BaseException as error:  # noqa: BLE001  it has to reach the thread that waits for the mean
            value = self.broken or self._failed(error, job.layout, job.step, f"bucket {job.index}")
        job.future.set_result(value)

    def _failed(self, error: BaseException, layout: Layout, step: int, what: str) -> LaconicError:
        if not isinstance(error, LaconicError):
            error = engine_failed(error)
        names = [self.session.names[i] for i in layout.parameters]
        message = f"rank {self.session.rank}, {what} ({shorten(names)}), step {step}: {error.message}"
        self.last_error = LaconicError(error.code, error.name, message, error.hint)
        if error.code == ENGINE_FAILED:
            with self._lock:
                self.broken = self.broken or self.last_error
        return self.last_error

    def break_off(self, error: BaseException, layout: Layout) -> LaconicError:
        """The caller's own sum of a buffer failed: nothing of this worker may go out any more. Gives the first failure."""
        return self.broken or self._failed(engine_failed(error), layout, self.step, "an uncompressed bucket")

    def _between_jobs(self, what):
        """What `what()` gives in the worker's thread, after everything that is queued."""
        if self._closed or threading.current_thread() is self._thread:
            return what()
        box = concurrent.futures.Future()

        def task():
            try:
                box.set_result(what())
            except BaseException as error:  # noqa: BLE001  raised below
                box.set_exception(error)

        self._tasks.put(task)
        return box.result()

    # ---- what users ask -------------------------------------------------------------------------------------------------

    def stats(self) -> dict:
        """Counters since attach: those of the session and of the sums that were made elsewhere."""
        with self._lock:
            rounds, elements, size, iterations = self._rounds, self._elements, self._bytes, self._iterations
        stats = self.session.stats()
        world = self.session.world
        stats["elements"] += elements
        stats["rounds"] += rounds
        stats["dense_bytes"] += 4 * elements * 2 * (world - 1) // world
        stats["wire_bytes"] += size * 2 * (world - 1) // world
        stats["steps"] = max(stats["steps"], iterations)
        stats["ratio"] = stats["dense_bytes"] / stats["wire_bytes"] if stats["wire_bytes"] else 0.0
        self._report(stats["residual_resets"])
        return stats

    def _look(self) -> None:
        self._report(self.session.stats()["residual_resets"])

    def _report(self, resets: int) -> None:
        """One line, once: a residual that is lost is gradient that is lost."""
        with self._lock:
            first, self._resets_reported = resets > 0 and not self._resets_reported, self._resets_reported or resets > 0
        if first:
            environment.say(f"rank {self.session.rank}: a residual was not finite and was set to zero; "
                            'stats()["residual_resets"] counts them', logging.WARNING)

    def explain(self) -> dict:
        """What was picked and why: spec, strategy, reason, and every parameter's codec and largest payload."""
        return self.session.explain()

    def flush(self, steps: int = 10) -> int:
        """Drains the residuals: an equal part of them goes out in each of `steps` steps (1 to 65535; 1: all at once).

        Gives the number of the step after which they are empty: the first step after the call carries the wish, the next
        one is the first that drains. One rank's call is enough; ranks that call it give the same number. A flush that is
        under way goes on as it is.
        """
        steps = whole("steps", steps, 1, 65535)
        left = self._between_jobs(functools.partial(self.session.flush, steps))
        return self.step + left - 1 if left else self.step + steps

    def state_dict(self) -> dict:
        """{"version", "header", "step", "tensors"}: what this rank must have to continue bit for bit.

        Waits for what is queued: after a failure the jobs behind it still put their gradients into the residuals.
        """
        return self._between_jobs(self._state_dict)

    def _state_dict(self) -> dict:
        self._look()
        tensors = {}
        for name, address, count in self.session.entries():
            values = torch.empty(count, dtype=torch.float32)
            if count:
                ctypes.memmove(values.data_ptr(), address, 4 * count)
            if not name.startswith("state/"):
                values /= self._unit  # saved in unscaled units
            tensors[name] = values
        return {"version": VERSION, "header": self.session.header(), "step": self.step, "tensors": tensors}

    def load_state_dict(self, state: dict) -> None:
        """Continues a saved run. A state that is damaged, or another's, is refused and changes nothing."""
        self.prepare(state)()

    def prepare(self, state: dict):
        """Checks a state whole and changes nothing; gives a call that loads it and cannot fail."""
        return self._between_jobs(functools.partial(self._prepare, state))

    def _prepare(self, state: dict):
        check_fields("it", state, {"version", "header", "step", "tensors"})
        check_version(state["version"])
        check_header(state["header"])
        self.session.accepts(state["header"])
        step = check_number("step", state["step"], U64 >> 1)
        ready = check_tensors(state["tensors"], list(self.session.entries()), self._unit)

        def load():
            for address, values in ready:
                if values.numel():
                    ctypes.memmove(address, values.data_ptr(), 4 * values.numel())
            self.step = step

        return functools.partial(self._between_jobs, load)

    def close(self) -> bool:
        """Ends the thread after what is queued. False if that was done before."""
        if self._closed:
            return False
        self._closed = True
        self._tasks.put(self._look)
        self._tasks.put(None)
        self._thread.join()
        return True


def _stop(tasks, thread) -> None:
    """At exit: ends an idle thread; one that still waits for a peer is left behind."""
    if thread.is_alive():
        tasks.put(None)
        thread.join(5)
