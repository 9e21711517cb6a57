# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The thread in which everything happens that wrappers of one group exchange, in the order in which it was submitted, and the sibling group
that it happens on."""

from __future__ import annotations

import concurrent.futures
import queue
import threading
import weakref

from ..core import threads
from ..core.background import GLANCE
from ..engines.c10d import Engine
from ..engines.group import Meeting, Sibling

_STOP = object()


class Lane:
    """Runs tasks in order while it has users, and ends with the last one."""

    def __init__(self):
        self._tasks: queue.SimpleQueue = queue.SimpleQueue()
        self._lock = threading.RLock()  # objects may be collected, and leave, while a thread holds it
        self._users = 0
        self.thread: threading.Thread | None = None

    def join(self) -> None:
        """One more uses it."""
        with self._lock:
            self._users += 1
            if self.thread is None:
                self.thread = threads.start(self._work, name="laconic", stop=self._stop)

    def rejoin(self) -> bool:
        """One more uses it, unless the last user has left."""
        with self._lock:
            used = self._users > 0
            self._users += used
            return used

    def leave(self) -> None:
        """The last user ends the thread, after all queued tasks. Does not wait."""
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._tasks.put(None)

    def rest(self, thread: threading.Thread) -> None:
        """Returns when its thread has ended; at once if it has users."""
        while self._users == 0 and thread.is_alive():
            thread.join(GLANCE)

    def put(self, task) -> None:
        self._tasks.put(task)

    def _stop(self) -> None:
        self._tasks.put(_STOP)

    def _work(self) -> None:
        while True:
            task = self._tasks.get()
            if task is _STOP:
                return
            if task is None:
                with self._lock:
                    if self._users == 0:
                        self.thread = None
                        return
                continue
            task()
            del task  # it holds a worker

    def wait_for(self, what, over=lambda: False):
        """The result of `what()` in the thread, after all queued tasks. None if `over()`, or if the thread ended meanwhile."""
        box: concurrent.futures.Future = concurrent.futures.Future()
        thread = self.thread

        def task():
            try:
                box.set_result(what())
            except BaseException as error:  # noqa: BLE001  raised below
                box.set_exception(error)

        self._tasks.put(task)
        while not concurrent.futures.wait([box], timeout=GLANCE).done:
            if (thread is None or not thread.is_alive() or over()) and not box.done():
                return None
        return box.result()


class SharedLane(Lane):
    """Shared by all wrappers of a group and a backend: one sibling, one engine, one thread. Without a failure, the next attach
    reuses the sibling after the last user has left."""

    def __init__(self, sibling: Sibling):
        super().__init__()
        self.sibling, self._sound = sibling, True
        nodes = sibling.nodes
        self.engine = Engine(sibling.group, of=sibling.of, ranks=nodes and nodes.across)
        #: that of the node's ranks, where there are nodes
        self.inside = nodes and Engine(sibling.inside, of=sibling.of, ranks=nodes.inside)

    @classmethod
    def of(cls, group, meeting: Meeting, backend: str | None, nodes=None, near: str | None = None) -> SharedLane:
        """Collective over the group if there is none yet. Its caller has joined it."""
        kind = Sibling.kind_of(group, backend, nodes, near)
        fit = [number for number in meeting.shared if meeting.held[number].sibling.kind == kind]
        if fit:  # also if it has failed meanwhile: the other ranks are about to use it, and learn of the failure
            lane = meeting.held[min(fit)]
        else:
            lane = cls(Sibling(group, meeting, backend=backend, nodes=nodes, near=near))
            if lane.sibling.number is not None:
                _shared.setdefault(group, {})[lane.sibling.number] = lane
        lane.join()
        return lane

    def leave(self) -> None:
        with self._lock:
            super().leave()
            if self._users == 0 and self._sound:
                self._forget()
                self.sibling.release()

    def spoil(self) -> None:
        """It failed: stale messages may arrive, so it must not be reused."""
        self._sound = False
        self._forget()

    def _forget(self) -> None:
        _shared.get(self.sibling.of, {}).pop(self.sibling.number, None)


#: group → number of its sibling → the lane that wrappers of this process share
_shared: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


class Held(dict):
    """The lanes that another wrapper of a group could share, by number. It uses them as long as it lives: a wrapper that is
    collected after a rank has told the others of its lane must not end it before they open."""

    def __init__(self, group):
        super().__init__((number, lane) for number, lane in list(_shared.get(group, {}).items()) if lane.rejoin())

    def __del__(self):
        for lane in self.values():
            lane.leave()
