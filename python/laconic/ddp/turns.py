# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""A step and calls that want to see none, or a whole one, take turns."""

from __future__ import annotations

import collections
import contextlib
import threading
import time

from ..core import errors
from ..core.background import GLANCE
from ..core.errors import LaconicError


def refused(call: str) -> LaconicError:
    return errors.error("exchange_order", f"{call} was called during a step: backward() has not finished, or has failed",
                        "call it between steps; a signal handler can save the last state taken there")


class Turns:
    """The turn goes round in the order in which threads ask for it. One that has it, or waits for it, and asks again, as a signal
    handler does, is refused: it would wait for itself."""

    def __init__(self):
        self._changed = threading.Condition()  # of an RLock: a signal handler may come at any line
        self._asking: collections.deque[frozenset[int]] = collections.deque()  # each by its threads; the first has the turn
        self._step: frozenset[int] | None = None

    def begin_step(self) -> None:
        """The step has the turn from here on. Its thread is this one; while a thread of autograd serves a device, the main thread
        waits inside backward(), too."""
        threads = frozenset({threading.get_ident(), *_behind_autograd()})
        with self._changed:
            self._asking.append(threads)
            try:
                while self._asking[0] is not threads:
                    self._changed.wait()
            except BaseException:  # of a signal handler
                self._leave(threads)
                raise
            self._step = threads

    @property
    def in_step(self) -> bool:
        return self._step is not None

    def end_step(self) -> None:
        with self._changed:
            if self._step is not None:
                step, self._step = self._step, None
                self._leave(step)

    @contextlib.contextmanager
    def call(self, name: str, seconds: float, over):
        """A call of this thread, after the current step has ended. Raises timed_out after this number of seconds; over(): no thread
        needs a turn any more."""
        thread, deadline = frozenset({threading.get_ident()}), time.monotonic() + seconds
        with self._changed:
            if any(thread & others for others in self._asking):
                raise refused(name)
            self._asking.append(thread)
        try:
            with self._changed:
                while self._asking[0] is not thread and not over():
                    if time.monotonic() >= deadline:
                        raise errors.error("timed_out", f"{name}: the current step did not complete within {seconds:g} s",
                                           "a peer has stopped, or backward() failed")
                    self._changed.wait(GLANCE)
            yield
        finally:
            self._leave(thread)

    def _leave(self, threads: frozenset[int]) -> None:
        with self._changed:
            self._asking = collections.deque(others for others in self._asking if others is not threads)
            self._changed.notify_all()


def _behind_autograd() -> list[int]:
    own = isinstance(threading.current_thread(), threading._DummyThread)  # noqa: SLF001  not started from Python
    return [threading.main_thread().ident] if own else []
