# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Executes the steps of an exchange on a torch.distributed process group. Never sees what the bytes mean.

The only place that calls a collective of torch. What a version of torch or a backend offers is probed once per group;
nothing here asks for a version number.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import datetime
import functools
import math
import threading
import time
import weakref

import torch
import torch.distributed as dist

from ..core import _lib
from ..core.background import GLANCE, Background
from .faults import Faults
from .group import group_timeout, set_timeout

_TORCH_TYPES = {_lib.F32: torch.float32, _lib.F16: torch.float16, _lib.BF16: torch.bfloat16, _lib.U8: torch.uint8,
                _lib.I32: torch.int32}
_SIZES = {_lib.F32: 4, _lib.F16: 2, _lib.BF16: 2, _lib.U8: 1, _lib.I32: 4}

# New and old name of the same collective (renamed in torch 2.13).
_all_gather_flat = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def view(address: int, count: int, dtype: int) -> torch.Tensor:
    """`count` elements at `address` as a tensor that owns nothing."""
    if count == 0:
        return torch.empty(0, dtype=_TORCH_TYPES[dtype], device="cpu")
    memory = (ctypes.c_ubyte * (count * _SIZES[dtype])).from_address(address)
    return torch.frombuffer(memory, dtype=_TORCH_TYPES[dtype], count=count)


def _parts(address: int, sizes, offsets) -> list[torch.Tensor]:
    """A view of every rank's bytes."""
    return [view(address + offsets[r], size, _lib.U8) for r, size in enumerate(sizes)]


def _flat(address: int, sizes, offsets) -> torch.Tensor | None:
    """One view of every rank's bytes, or None where they do not lie back to back."""
    end = offsets[0]
    for r, size in enumerate(sizes):
        if offsets[r] != end and size:
            return None
        end += size
    return view(address + offsets[0], end - offsets[0], _lib.U8)


class _Spread:
    """A collective into a buffer of its own, whose parts go to their places when it has ended."""

    def __init__(self, work, source, parts):
        self.work, self.source, self.parts = work, source, parts

    def wait(self, *timeout):
        self.work.wait(*timeout)
        for part, arrived in zip(self.parts, self.source.split([part.numel() for part in self.parts])):
            part.copy_(arrived)


class _Direct:
    """To or from one rank. It cannot be waited for a while: a timeout closes all connections."""

    def __init__(self, work, peer, size):
        self.work, self.peer, self.size = work, peer, size


# A collective that has ended is still held by the backend's own thread for a moment. If that thread is the last to let go of a
# tensor that Python made, or of a callback, it wants the interpreter; while that goes away, the process ends with SIGABRT. So the
# end of the process waits until the threads have let go; of what is still under way then, they are not the last.
_given: set[weakref.ref] = set()  # each object lent once, as long as it is referenced


def lend(thing) -> None:
    """To the backend: a thread of it holds this tensor or callback for a while."""
    _given.add(weakref.ref(thing, _given.discard))


@atexit.register
def _wait_for_the_backend() -> None:
    # Autograd's threads of an accelerator never leave the interpreter.
    deadline = time.monotonic() + (2 if _given or not _accelerated() else 0.1)
    while (_given or _foreign_threads() > 0) and time.monotonic() < deadline:  # who lets go has to come out again, too
        time.sleep(0.001)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object([tensor() for tensor in list(_given)]))


def _accelerated() -> bool:
    return hasattr(torch, "accelerator") and torch.accelerator.is_available()


def _foreign_threads() -> int:
    """Threads that Python has not started and that are in the interpreter, or wait for it: each has a state there meanwhile."""
    python = ctypes.pythonapi
    for function in (python.PyInterpreterState_Get, python.PyInterpreterState_ThreadHead, python.PyThreadState_Next):
        function.restype = ctypes.c_void_p
    states, state = 0, python.PyInterpreterState_ThreadHead(ctypes.c_void_p(python.PyInterpreterState_Get()))
    while state:
        states, state = states + 1, python.PyThreadState_Next(ctypes.c_void_p(state))
    return states - sum(not isinstance(thread, threading._DummyThread) for thread in threading.enumerate())  # noqa: SLF001


_GLANCE = datetime.timedelta(seconds=GLANCE)
_NAP = 0.00005  # seconds between two looks at what a device does
_BLINK = 0.0005  # seconds: what a wait takes that need not wait
_SETTLED = 0.3  # seconds that collectives have to end after their connections
# Bytes of direct messages that a connection accepts at once. If a sender dies, Gloo does not end the wait for a partly received
# message: longer ones are waited for by a thread that can be abandoned.
_ATOMIC = 1 << 16


def _wait_direct(works, batch: Batch, timeout: float) -> None:
    """For all of them together. Gloo's own timeout for them is the one that the group was made with."""
    until = time.monotonic() + timeout
    for direct in works:
        try:
            direct.work.wait(*_left(until))
        except RuntimeError as error:
            error.peer = direct.peer
            raise
    batch.completed = time.perf_counter()


def _left(until: float) -> list[datetime.timedelta]:
    """Until a moment of time.monotonic(), as Work.wait takes it. 0 would have no end."""
    return [] if until == math.inf else [datetime.timedelta(seconds=max(until - time.monotonic(), 0.001))]


class Batch:
    """Collectives that are under way together."""

    __slots__ = ("arrives", "completed", "direct", "direct_bytes", "sent", "since", "works")

    def __init__(self, works=()):
        self.works, self.sent = list(works), 0
        self.direct: Background.Call | None = None  #: a thread waits for its direct messages
        self.direct_bytes = 0  #: of a batch of steps
        self.since = time.monotonic()
        self.arrives = 0.0  #: on an emulated link: when the last byte is there
        #: time.perf_counter() of completion, as far as known: a batch that was not waited for may have completed earlier
        self.completed = 0.0


def _direct(batch: Batch) -> list[_Direct]:
    return [work for work in batch.works if isinstance(work, _Direct)]


class Engine:
    """A process group as the library's engine: all_reduce, all_gather, all_to_all and messages on bytes and lanes."""

    of_cpp = False
    _faults: Faults | None = None  # of groups of Gloo
    group, _of, _timeout = None, None, None  # its own, the one whose timeout holds, and what it was when it was looked at last

    def __init__(self, group, *, of=None, limiter=None, ranks=None):
        """`of`: the users' group, whose sibling this one is. They may change its timeout at any time. `ranks`: of its members there, where
        they are not all of it."""
        self.group, self._of = group, of if of is not None else group
        self.rank = dist.get_rank(group)
        self.world = dist.get_world_size(group)
        self.limiter = limiter  # emulated links only: see laconic.engines.emulate
        self._under_way: set[Batch] = set()
        direct = dist.get_backend(group) == "gloo" and hasattr(group, "send") and hasattr(group, "recv")
        if direct and self.world > 1:
            self._faults = Faults(group, ranks)
        self._waiter: Background | None = None
        #: a collective has not ended with its connections: what it was to read and write has to live
        self.abandoned = False
        self._flat_gather = self._probe_flat_gather()
        #: Gloo's receives take what arrives, up to their room: varying lengths travel as they are
        self.short_sends = self._probe_short_sends()

    def follow_timeout(self) -> None:
        told = group_timeout(self._of)
        timeout = group_timeout(self.group) if told is None else told
        if timeout is not None and timeout != self._timeout:
            self._timeout = timeout
            set_timeout(self.group, timeout)
            if self._faults is not None:
                self._faults.timeout = timeout.total_seconds()

    @property
    def timeout(self) -> float:
        """Seconds that what begins now has; inf where torch tells neither group's."""
        return self._timeout.total_seconds() if self._timeout is not None else math.inf

    def _begin(self, works=()) -> Batch:
        self.follow_timeout()
        batch = Batch(works)
        self._under_way.add(batch)
        return batch

    def _collective(self, begin, *arguments):
        """torch's own, which a thread of the backend executes."""
        for argument in arguments:
            for tensor in argument if isinstance(argument, list) else (argument,):
                if isinstance(tensor, torch.Tensor):
                    lend(tensor)
        return begin(*arguments, group=self.group, async_op=True)

    def _finished(self, work) -> None:
        """Waits for a collective that is a batch of its own, and that the backend may refuse."""
        batch = self._begin([work])
        try:
            self._complete(batch)
        except RuntimeError as error:
            if self._faults is not None and self._faults.broken():
                self._failed(batch, error)
            raise
        finally:
            self._under_way.discard(batch)

    def probe_sums(self) -> int:
        """Bits of the lane types that this group's all-reduce adds. A collective call: every rank makes it."""
        sums = 0
        for dtype in (_lib.F32, _lib.F16, _lib.BF16, _lib.I32):
            try:
                x = torch.ones(1, dtype=_TORCH_TYPES[dtype], device="cpu")
                self._finished(self._collective(dist.all_reduce, x))
                if x.item() == self.world:
                    sums |= 1 << dtype
            except (RuntimeError, ValueError, TypeError):
                continue  # "Invalid scalar type": refused before a byte is sent, on every rank
        return sums

    def _probe_flat_gather(self) -> bool:
        if _all_gather_flat is None:
            return False
        try:
            out = torch.zeros(self.world, dtype=torch.uint8, device="cpu")
            self._finished(self._collective(_all_gather_flat, out, torch.ones(1, dtype=torch.uint8, device="cpu")))
            return int(out.sum()) == self.world
        except (RuntimeError, ValueError, TypeError, NotImplementedError):
            return False

    def _probe_short_sends(self) -> bool:
        """Point-to-point on this group, with receives that have more room than what arrives."""
        if self._faults is None:  # on other backends both sides have to name the size
            return False
        room = torch.zeros(2 * self.world, dtype=torch.uint8, device="cpu")
        own = torch.ones(1, dtype=torch.uint8, device="cpu")
        batch = self._begin()
        try:
            self._swap([own] * self.world, list(room.split(2)), 0, batch.works)
        except RuntimeError as error:
            self._failed(batch, error)
        self.wait(batch)
        return int(room.sum()) == self.world - 1

    def _swap(self, sends, receives, tag: int, works) -> None:
        """sends[r] to rank r, receives[r] from rank r, all at once, without a thread of Gloo's in between."""
        for k in range(1, self.world):
            peer = (self.rank - k) % self.world
            if receives[peer].numel():
                self._receive(receives[peer], peer, tag, works)
        for k in range(1, self.world):
            peer = (self.rank + k) % self.world
            if sends[peer].numel():
                self._send(sends[peer], peer, tag, works)

    def _receive(self, room, peer: int, tag: int, works) -> None:
        works.append(_Direct(self.group.recv([room], peer, tag), peer, room.numel()))

    def _send(self, data, peer: int, tag: int, works) -> None:
        works.append(_Direct(self.group.send([data], peer, tag), peer, data.numel()))

    def _swap_step(self, step, works) -> int:
        """all_gather or all_to_all whose receivers have room for more than what arrives."""
        sizes = step.send_counts[: self.world]
        receives = _parts(step.recv, step.recv_counts[: self.world], step.recv_offsets)
        if step.kind == _lib.ALL_GATHER:
            sends = [view(step.send, step.send_bytes, _lib.U8)] * self.world
        else:
            sends = _parts(step.send, sizes, step.send_offsets)
        receives[self.rank][: sizes[self.rank]] = sends[self.rank]
        self._swap(sends, receives, step.tag, works)
        return sum(size for r, size in enumerate(sizes) if r != self.rank)

    def start(self, steps, count: int) -> Batch:
        """Issues a batch, all of its steps at once."""
        batch = self._begin()
        try:
            for i in range(count):
                batch.sent += self._start(steps[i], batch.works)
            self._wait_elsewhere(batch)
        except Exception as error:  # noqa: BLE001  what has begun still uses the exchange's memory
            self._failed(batch, error)
        if self.limiter is not None:
            batch.arrives = self.limiter.send(batch.sent)
        return batch

    def wait(self, batch: Batch) -> None:
        """Returns when all of a batch has arrived."""
        asked = time.perf_counter()
        try:
            self._complete(batch)
        except Exception as error:  # noqa: BLE001  as in start
            self._failed(batch, error)
        self._under_way.discard(batch)
        now = time.perf_counter()
        if len(_direct(batch)) < len(batch.works) or not batch.completed:
            batch.completed = now
        if self.limiter is None:
            return
        arrived = now + batch.arrives - time.monotonic()
        # A wait that need not wait says nothing of when the batch ended; the emulated link does.
        batch.completed = max(arrived, batch.completed) if now - asked > _BLINK else arrived
        self.limiter.wait(batch.arrives)

    def settle(self, batch: Batch) -> None:
        """As wait, ignoring failures: after a failure, before the exchange's memory is reused."""
        with contextlib.suppress(Exception):
            self.wait(batch)

    def _complete(self, batch: Batch) -> None:
        if self._faults is None:
            for work in batch.works:
                work.wait()
            return
        if self._faults.known is not None:
            raise self._faults.known
        self._faults.begin_waiting()
        if batch.direct is not None:
            batch.direct.wait(self.glance)
        else:
            _wait_direct(_direct(batch), batch, self.timeout)
        until = time.monotonic() + self.timeout
        for work in batch.works:
            if not isinstance(work, _Direct):
                self._wait_for(work, until)

    def _wait_elsewhere(self, batch: Batch) -> None:
        if self._faults is None:
            return
        direct = _direct(batch)
        batch.direct_bytes = sum(work.size for work in direct)
        if sum(other.direct_bytes for other in self._under_way) > _ATOMIC:
            self._waiter = self._waiter or Background("laconic-waiter")
            batch.direct = self._waiter.begin(functools.partial(_wait_direct, direct, batch, self.timeout))

    def _wait_for(self, work, until: float) -> None:
        while True:
            try:
                return work.wait(_GLANCE)
            except RuntimeError:
                if getattr(work, "work", work).is_completed():
                    return work.wait()
            if time.monotonic() > until:
                raise RuntimeError("timed out")
            self.glance()

    def glance(self) -> None:
        """For who waits for something else, ten times a second: raises if the group has failed."""
        if self._faults is not None and self._faults.look():
            raise RuntimeError("the group has failed")

    def fail(self, batch: Batch | None, error: BaseException) -> None:
        """Something outside the group failed: raises what all ranks report, as for a failed collective."""
        self._failed(batch or Batch(), error)

    def _failed(self, batch: Batch, error: BaseException) -> None:
        """Raises what all ranks report. No collective of the batch uses memory any more."""
        self._under_way.discard(batch)
        if self._faults is not None:
            fault = self._faults.heard(error, time.monotonic() - batch.since, getattr(error, "peer", None))
            for work in batch.works:
                if not isinstance(work, _Direct):  # these use no memory without a connection
                    self._settle(work, datetime.timedelta(seconds=max(self._faults.since + _SETTLED - time.monotonic(), 0.001)))
                    self.abandoned = self.abandoned or not getattr(work, "work", work).is_completed()
            raise fault from error
        for work in batch.works:
            self._settle(work)
        raise error

    @staticmethod
    def _settle(work, *timeout) -> None:
        try:
            work.wait(*timeout)
        except RuntimeError:
            pass

    def run(self, steps, count: int) -> int:
        """Executes a batch and waits for it. Gives the bytes sent to other ranks."""
        batch = self.start(steps, count)
        self.wait(batch)
        return batch.sent

    def _start(self, step, works) -> int:
        if step.kind == _lib.ALL_REDUCE:
            return self._all_reduce(step, works)
        if step.kind == _lib.MESSAGES:
            return self._messages(step, works)
        if step.short_sends:
            return self._swap_step(step, works)
        if step.kind == _lib.ALL_GATHER:
            return self._all_gather(step, works)
        return self._all_to_all(step, works)

    def _messages(self, step, works) -> int:
        """Receives first: a backend that sends only into a posted receive finds it."""
        listed = step.messages[: step.message_count]
        for m in listed:
            if m.recv_room:
                self._receive(view(m.recv, m.recv_room, _lib.U8), m.peer, step.tag, works)
        for m in listed:
            if m.send_bytes:
                self._send(view(m.send, m.send_bytes, _lib.U8), m.peer, step.tag, works)
        return sum(m.send_bytes for m in listed)

    def _all_reduce(self, step, works) -> int:
        lanes = view(step.send, step.count, step.dtype)
        works.append(self._collective(dist.all_reduce, lanes))
        return 2 * step.count * _SIZES[step.dtype] * (self.world - 1) // self.world

    def _all_gather(self, step, works) -> int:
        sizes = step.recv_counts[: self.world]
        if not any(sizes):
            return 0
        send = view(step.send, step.send_bytes, _lib.U8)
        flat = _flat(step.recv, sizes, step.recv_offsets)
        if any(size != sizes[0] for size in sizes):  # ragged: the same bytes to every rank
            self._exchange(send.repeat(self.world), [step.send_bytes] * self.world, step, sizes, works)
        elif self._flat_gather and flat is not None:
            works.append(self._collective(_all_gather_flat, flat, send))
        else:
            parts = _parts(step.recv, sizes, step.recv_offsets)
            works.append(self._collective(dist.all_gather, parts, send))
        return step.send_bytes * (self.world - 1)

    def _all_to_all(self, step, works) -> int:
        sizes = step.send_counts[: self.world]
        send = _flat(step.send, sizes, step.send_offsets)
        if send is None:
            send = torch.cat(_parts(step.send, sizes, step.send_offsets))
        self._exchange(send, sizes, step, step.recv_counts[: self.world], works)
        return sum(size for r, size in enumerate(sizes) if r != self.rank)

    def _exchange(self, send, send_sizes, step, recv_sizes, works) -> None:
        """all_to_all of bytes that lie back to back; what arrives is put where the step wants it."""
        flat = _flat(step.recv, recv_sizes, step.recv_offsets)
        recv = torch.empty(sum(recv_sizes), dtype=torch.uint8, device="cpu") if flat is None else flat
        work = self._collective(dist.all_to_all_single, recv, send, recv_sizes, send_sizes)
        works.append(work if flat is not None else _Spread(work, recv, _parts(step.recv, recv_sizes, step.recv_offsets)))

    def gather_bytes(self, data: bytes) -> bytes:
        """Every rank's `data` (equal lengths), in rank order."""
        return begin_gather(self, data)()

    def _begun_beside(self, sent: int, begin, *arguments) -> Batch:
        """A collective that is no step of the library's. On an emulated link its bytes take their time."""
        batch = self._begin([self._collective(begin, *arguments)])
        if self.limiter is not None:
            batch.arrives = self.limiter.send(sent)
        return batch


def begin_gather(engine: Engine, data: bytes):
    """As engine.gather_bytes, which the call that it gives waits for."""
    own = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    parts = [torch.empty_like(own) for _ in range(engine.world)]
    batch = engine._begun_beside(len(data) * (engine.world - 1), dist.all_gather, parts, own)

    def gathered() -> bytes:
        engine.wait(batch)
        return b"".join(ctypes.string_at(part.data_ptr(), part.numel()) for part in parts)

    return gathered


def swap(engine: Engine, arrives: torch.Tensor, sends: torch.Tensor, arriving: list[int], sent: list[int]) -> None:
    """all_to_all of bytes, back to back, of which each rank gets `sent` and sends `arriving`."""
    if arrives.numel() or sends.numel():
        engine.wait(engine._begun_beside(sum(sent) - sent[engine.rank], dist.all_to_all_single, arrives, sends, arriving, sent))


def swap_near(group, engine: Engine, arrives: torch.Tensor, sends: torch.Tensor, arriving: list[int], sent: list[int]) -> None:
    """As `swap`, of tensors on a device, by a group of the same ranks whose backend serves it; on the current stream. `engine` has the timeout and
    sees who is gone."""
    batch, work = engine._begin(), None
    try:
        work = begin_near(group, arrives, sends, arriving, sent)
        _wait_near(engine, work)
    except Exception as error:  # noqa: BLE001  as in Engine.start
        engine.abandoned = engine.abandoned or (work is not None and not work.is_completed())
        engine._failed(batch, error)
    engine._under_way.discard(batch)


def begin_near(group, arrives, sends, arriving, sent):
    """torch's work. RuntimeError if the backend has no such collective."""
    for tensor in (arrives, sends):
        lend(tensor)
    return dist.all_to_all_single(arrives, sends, arriving, sent, group=group, async_op=True)


def _wait_near(engine: Engine, work) -> None:
    """A backend's own wait may not wait for the device (NCCL), or end the process at its timeout."""
    if engine._faults is not None:
        if engine._faults.known is not None:
            raise engine._faults.known
        engine._faults.begin_waiting()
    now = time.monotonic()
    until, look = now + engine.timeout, now + GLANCE
    while not work.is_completed():
        time.sleep(_NAP)
        now = time.monotonic()
        if now > until:
            raise RuntimeError("timed out")
        if now > look:
            engine.glance()
            look = now + GLANCE
    work.wait()


def reaches_near(group, engine: Engine, device) -> bool:
    """Whether all ranks of the group exchange tensors of their devices by it. Collective."""
    try:
        arrived, ones = (make(engine.world, dtype=torch.uint8, device=device) for make in (torch.zeros, torch.ones))
        work = begin_near(group, arrived, ones, [1] * engine.world, [1] * engine.world)
    except (RuntimeError, ValueError, TypeError, AttributeError):  # as an operation that a backend does not have
        work = None
    if not all(engine.gather_bytes(bytes([work is not None]))):
        return False
    _wait_near(engine, work)
    return int(arrived.sum()) == engine.world


def broadcast(engine: Engine, values: torch.Tensor, root: int) -> None:
    """Every rank gets the values of `root`, a rank of the engine's group, in its own tensor, which lies on the host."""
    if values.numel() == 0:
        return
    sent = values.numel() * values.element_size() * (engine.world - 1) if root == engine.rank else 0
    engine.wait(engine._begun_beside(sent, dist.broadcast, values, dist.get_global_rank(engine.group, root)))
