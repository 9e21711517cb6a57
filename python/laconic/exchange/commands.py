# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""One worker's calls in the thread of its lane."""

from __future__ import annotations

import functools
import logging
import os
import threading
import weakref

from ..core import environment, errors
from ..core.background import GLANCE
from .lane import Lane


class Commands:
    """They are executed in the order of their submission, until the last of them, which `end` has queued. Knows no worker: one that is
    dropped unended leaves the lane."""

    def __init__(self, lane: Lane, rank: int):
        self._lane, self._rank = lane, rank
        lane.join()
        self.thread = lane.thread
        self.closed = False  #: nothing may be submitted any more
        self._process = os.getpid()
        self._lock = threading.RLock()  # objects may be collected, and end, while a thread holds it
        self._at_end: list = []
        self._over = threading.Event()
        self._leave = weakref.finalize(self, lane.leave)
        self._leave.atexit = False

    @property
    def here(self) -> bool:
        """Whether this thread is the worker's."""
        return threading.current_thread() is self.thread

    @property
    def _forked(self) -> bool:
        return os.getpid() != self._process

    def check_process(self) -> None:
        if self._forked:
            raise errors.error("unsupported", "this process is a fork of the training process and does not have laconic's thread",
                               "call it in the process that attached")

    def check_open(self) -> None:
        self.check_process()
        if self.closed:
            raise errors.error("invalid_argument", "this model's handle is closed", "wrap the model again and attach again")

    def put(self, command) -> None:
        self._lane.put(command)

    def between_jobs(self, what, *arguments):
        """The result of `what(*arguments)` in the worker's thread, after all queued jobs."""
        if self.here:
            return what(*arguments)
        self.check_open()
        got = self._lane.wait_for(lambda: (what(*arguments),), self._over.is_set)
        if got is None:  # another thread, or the process, has ended it meanwhile
            self.closed = True
            self.check_open()
        return got[0]

    def at_end(self, callback) -> None:
        """`callback()` is called once, in the worker's thread, when the worker ends."""
        self._at_end.append(callback)

    def end(self, undo, free) -> bool:
        """Queues the last: undo(), which does not raise, the callbacks, free(). Does not wait: it may be called while objects are collected.
        False if that was done before, or is another process's business."""
        if self._forked:
            return False
        with self._lock:
            ended, self.closed = self.closed, True
        if not ended:
            self.put(functools.partial(self._finish, undo, free))
        return not ended

    def _finish(self, undo, free) -> None:
        undo()
        for callback in (*self._at_end, free):
            try:
                callback()
            except BaseException as error:  # noqa: BLE001  no thread waits for this one
                environment.say(f"rank {self._rank}: while closing a model: {type(error).__name__}: {error}", logging.WARNING)
        self._at_end.clear()
        self._over.set()
        self._leave()

    def wait(self) -> None:
        """Until the last has returned, and the thread rests if it was the lane's last, too."""
        if self.here or self._forked:
            return
        while not self._over.wait(GLANCE) and self.thread.is_alive():
            pass
        self._lane.rest(self.thread)
