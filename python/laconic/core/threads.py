# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Threads that may be abandoned. One that returns from torch while the interpreter shuts down ends the process with SIGABRT
("terminate called without an active exception"): they are asked to end before, and joined; one that still waits for a peer is
abandoned."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time

TIMEOUT = 5.0  #: seconds, at the interpreter's end, for all of them

_running: dict[threading.Thread, object] = {}


def start(target, *arguments, name: str | None = None, stop=None) -> threading.Thread:
    """Calls target(*arguments). `stop()` asks it to end, where it does not by itself."""

    def run(target, *arguments):
        try:
            target(*arguments)
        finally:
            _running.pop(threading.current_thread(), None)

    thread = threading.Thread(target=run, args=(target, *arguments), name=name, daemon=True)
    _running[thread] = stop
    try:
        thread.start()
    except RuntimeError:  # no thread is to be had
        _running.pop(thread)
        raise
    return thread


@contextlib.contextmanager
def that_wait():
    """Threads that begin meanwhile, in this thread's calls, take a core from none that has one. That of Gloo has nothing to do while another
    one sends, and looks for its lock until the time slice is over: on a core that both share, 3 ms a message."""
    usual = hasattr(os, "sched_setscheduler") and os.sched_getscheduler(0) == os.SCHED_OTHER
    if usual:
        _schedule(os.SCHED_BATCH)
    try:
        yield
    finally:
        if usual:
            _schedule(os.SCHED_OTHER)


def _schedule(policy: int) -> None:
    with contextlib.suppress(OSError):  # a sandbox that allows no such call
        os.sched_setscheduler(0, policy, os.sched_param(0))


@atexit.register
def _end() -> None:
    threads = list(_running.items())
    for _, stop in threads:
        if stop is not None:
            stop()
    deadline = time.monotonic() + TIMEOUT
    for thread, _ in threads:
        thread.join(max(deadline - time.monotonic(), 0))
