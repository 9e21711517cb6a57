# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""How a Gloo group ends: every rank learns within a second which rank is gone, and no memory is used any more.

In a ring, Gloo notifies only the dead rank's neighbours, and only if no part of a message from it has arrived. So waiting ranks
test their connections from time to time, the first one that detects a failure writes it into the group's store, and waiting ranks
read it there. Then each closes its connections, which ends the waits of others. The store may not answer if its host has stopped:
threads that can be abandoned read it.
"""

from __future__ import annotations

import contextlib
import datetime
import threading
import time

import torch
import torch.distributed as dist

from ..core import errors, threads
from ..core.errors import LaconicError
from . import group

_KEY = "laconic/fault"
_TAG = 1 << 28  # steps have smaller ones
_TRY_EVERY = 0.5  # seconds of waiting
_STORE = 2.0  # seconds for an answer of the store: its host may have stopped, or be slow
_TRIED_AT_ONCE, _TRIES = 3, 1 << 16  # connections, and how often: each try leaves 100 bytes at both ends
_HINT = "restart the ranks from the last checkpoint"


def _within(seconds: float, what):
    """(what() or None, whether it has raised); None after `seconds`, when it goes on by itself."""
    box = []

    def run():
        try:
            box.append((what(), False))
        except RuntimeError:
            box.append((None, True))

    try:
        threads.start(run).join(seconds)
    except RuntimeError:  # no memory for one: the others have to hear of that
        run()
    return box[0] if box else (None, False)


class Faults:
    """The failure of one group. `known`: the failure that ended it. Single-threaded: the thread of the collectives."""

    def __init__(self, of, ranks=None):
        """`ranks`: what its members are called."""
        self.group, self.rank, self.world = of, dist.get_rank(of), dist.get_world_size(of)
        self._names = list(ranks or range(self.world))
        self.known: LaconicError | None = None
        timeout = group.group_timeout(of)
        #: seconds after which Gloo gives up by itself
        self.timeout = timeout.total_seconds() if timeout is not None else float("inf")
        self._store = group._store(of)  # noqa: SLF001
        self.since = 0.0  #: when it ended
        self._tried, self._next_try, self._tries = self.rank, 0.0, 0
        self._asking: threading.Thread | None = None
        self._answer: list = []

    def begin_waiting(self) -> None:
        self._next_try = time.monotonic() + _TRY_EVERY

    def look(self) -> bool:
        """Whether the group has failed, as far as this rank can know. Asks for the next call; never blocks. For ranks that
        have waited for a while."""
        if self._try_some():
            return True
        if self._answer:
            failed, lost = self._answer.pop()
            if lost:
                self._store = None
            if failed or (lost and self.broken()):
                return True
        if self._store is not None and (self._asking is None or not self._asking.is_alive()):
            with contextlib.suppress(RuntimeError):  # no memory for it now
                self._asking = threads.start(self._ask, self._store, self._answer)
        return False

    def _try_some(self) -> bool:
        """Some of the connections, others next time; whether one is broken."""
        if time.monotonic() < self._next_try or self._tries >= _TRIES:
            return False
        self.begin_waiting()
        broken = False
        for _ in range(min(_TRIED_AT_ONCE, self.world - 1)):
            self._tried = (self._tried + 1) % self.world
            if self._tried == self.rank:
                self._tried = (self._tried + 1) % self.world
            self._tries += 1
            broken = broken or self._begin(self._tried, _TAG) is None
        return broken

    @staticmethod
    def _ask(store, answer) -> None:
        try:
            answer.append((store.add(_KEY, 0) > 0, False))
        except RuntimeError:
            answer.append((False, True))

    def heard(self, error: BaseException, age: float, peer: int | None = None) -> LaconicError:
        """The failure that all ranks report, the first one that any of them detected. `age`: seconds since the failed operation
        began; `peer`: the rank that it waited for."""
        if self.known is None:
            self.known = errors.error("engine_failed", self._agreed(error, age, peer), _HINT)
            self._tear_down()
            self.since = time.monotonic()
        return self.known

    def _agreed(self, error, age, peer) -> str:
        said, lost = _within(_STORE, self._told)
        if lost:  # torch prints a warning for every call
            self._store = None
        if said is not None:
            return said
        if isinstance(error, LaconicError):  # outside the group: it has its own message
            own = error.message
        elif age > 0.8 * self.timeout:  # Gloo's own timeouts close connections, too
            own = (f"rank {self._names[peer]} did not answer" if peer is not None else "a collective did not complete") + f" within {self.timeout:g} s"
        else:
            own = self._who(error, lost)
        return _within(_STORE, lambda: self._tell(own))[0] or own

    def _told(self) -> str | None:
        if self._store is None or self._store.add(_KEY, 0) == 0:
            return None
        return self._store.get(_KEY + "/text").decode()

    def _tell(self, own: str) -> str | None:
        if self._store is None:
            return None
        if self._store.add(_KEY, 1) == 1:
            self._store.set(_KEY + "/text", own)
            return own
        return self._store.get(_KEY + "/text").decode()

    def _who(self, error, lost: bool) -> str:
        """`lost`: the store is, so its host may be the one, and others may end because of it."""
        host = self._names.index(0) if lost and 0 in self._names else None
        gone, until = self.broken(), time.monotonic() + 0.5
        while (host not in gone if lost else not gone) and time.monotonic() < until:  # another group of this rank may notice before this one
            time.sleep(0.01)
            gone = self.broken()
        if host in gone:
            gone = [host]
        if not gone:
            return f"rank {self._names[self.rank]}: {type(error).__name__}: {error}"
        return f"rank {group.listed([self._names[peer] for peer in gone])} is gone"

    def broken(self) -> list[int]:
        """Peers to which the connection is broken. Never blocks."""
        return [peer for peer in range(self.world) if peer != self.rank and self._begin(peer, _TAG) is None]

    def _begin(self, peer: int, tag: int):
        """A receive that nothing will come for; None where the connection is broken."""
        try:
            return self.group.recv([torch.zeros(1, dtype=torch.uint8, device="cpu")], peer, tag)
        except RuntimeError:
            return None

    def _tear_down(self) -> None:
        """A wait that times out makes Gloo close all of a group's connections; one that ends because its own is broken, no other."""
        for peer in range(self.world):
            work = self._begin(peer, _TAG + 1) if peer != self.rank else None
            if work is not None:
                with contextlib.suppress(RuntimeError):
                    work.wait(datetime.timedelta(milliseconds=1))
