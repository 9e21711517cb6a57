# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""A thread for waits that may never end, and that can be abandoned."""

from __future__ import annotations

import functools
import queue
import threading
import weakref

from . import threads

GLANCE = 0.1  #: seconds: a wait that takes longer looks whether anything has failed elsewhere


class Background:
    """Calls functions one after the other, in the order in which they came."""

    class Call:
        """`ended`: it has returned or raised. `failed`: what it raised."""

        def __init__(self, function):
            self.function, self.failed = function, None
            self.ended = threading.Event()

        def wait(self, glance) -> None:
            """Calls glance() from time to time, which may raise; so does the call's own failure."""
            while not self.ended.wait(GLANCE):
                glance()
            if self.failed is not None:
                raise self.failed

    def __init__(self, name: str):
        self._tasks: queue.SimpleQueue = queue.SimpleQueue()
        threads.start(self._serve, self._tasks, name=name, stop=functools.partial(self._tasks.put, None))
        weakref.finalize(self, self._tasks.put, None).atexit = False

    def begin(self, function) -> Call:
        """Starts at once, not on demand, so that it is not woken for each batch."""
        call = self.Call(function)
        self._tasks.put(call)
        return call

    @staticmethod
    def _serve(tasks) -> None:
        for call in iter(tasks.get, None):
            try:
                call.function()
            except BaseException as error:  # noqa: BLE001  raised where it is waited for
                call.failed = error
            call.function = None  # it holds tensors, or memory of an exchange
            call.ended.set()
            del call
