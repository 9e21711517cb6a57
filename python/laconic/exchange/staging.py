# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""How gradients get to host memory and back: where they lie on the CPU already, or from an accelerator through pinned memory.

The only place that knows streams. `InPlace` and `HostStage` have the same methods, and so has laconic.exchange.nodes.NodeStage, around one of
them or a `DeviceStage`; the worker does not ask which it has.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import weakref

import torch
import torch.distributed

from ..core import _lib, environment, errors
from ..core.errors import LaconicError

#: maximum threads of a rank with an accelerator
MOST_THREADS = 8


def stage_for(parameters):
    """The stage of a model's (name, parameter) pairs; all of them have to lie on one device."""
    if not parameters:
        return InPlace()
    first, device = parameters[0][0], parameters[0][1].device
    other = next(((name, p.device) for name, p in parameters if p.device != device), None)
    if other is not None:
        raise errors.error("unsupported", f"parameter {first} is on {device}, parameter {other[0]} on {other[1]}",
                           "put all exchanged parameters of a rank on one device")
    if device.type == "cpu":
        return InPlace()
    if not hasattr(torch, "accelerator"):
        raise errors.error("unsupported", f"parameter {first} is on {device}, and torch {torch.__version__} has no "
                           "torch.accelerator", "gradients on an accelerator need torch 2.6 or newer")
    if not torch.distributed.is_gloo_available():
        raise errors.error("unsupported", f"parameter {first} is on {device}, and torch {torch.__version__} has no Gloo, over which "
                           "gradients of an accelerator are exchanged", "install a build of torch with Gloo, as PyPI's are")
    here = torch.accelerator.current_accelerator()
    if here is None or here.type != device.type:
        raise errors.error("unsupported", f"parameter {first} is on {device}, which is not an accelerator of this torch",
                           "move the model to the CPU or to torch.accelerator.current_accelerator()")
    return HostStage(device)


def usable_threads(devices: int, ranks: int | None = None) -> int:
    """Threads per rank on this host: for the launcher's number of ranks; else for `ranks`, who share this one's cores; else, if it is not known
    how many do, for the number of devices."""
    return max(1, min(MOST_THREADS, len(os.sched_getaffinity(0)) // (environment.ranks_here() or ranks or max(devices, 1))))


class Ticket:
    """A flat buffer on its way to the host and back: `host`, which holds its gradients from `ready` on (of a DeviceStage: on the device), and the
    pieces of the device that it was collected from, each with its first element in `host`."""

    __slots__ = ("error", "event", "host", "kept", "layout", "pieces")

    def __init__(self, pieces):
        self.pieces, self.host = pieces, None
        self.kept: Kept | None = None  #: where `host` comes from
        self.event = None  #: its copy to the host has ended, or, of a DeviceStage, its gradients were computed
        self.error: BaseException | None = None  #: it could not be begun
        self.layout = None  #: for a stage that cuts it

    @property
    def value(self) -> torch.Tensor:
        """The value of its future: a contiguous buffer, or a piece, so that the future knows the device."""
        return self.pieces[0][1]


class Kept:
    """The host's buffer of a layout, and the last copy from it to the device."""

    __slots__ = ("host", "left")

    def __init__(self, host: torch.Tensor):
        self.host, self.left = host, None


class Flat:
    """A session that exchanges whole buffers, and futures that have their values when the exchange has ended."""

    nodes = None
    node_bytes, node_seconds, exchange_bytes = 0, 0.0, 0

    #: no ranks of a node exchange anything
    over = None

    def in_order(self, window: int, residuals) -> None:
        """What lets jobs leave in the order of all ranks of a node; None: each leaves by itself."""

    def layout(self, layout):
        return layout

    def named(self, message: str) -> str:
        """The message of a failed exchange, with the job's numbers of ranks."""
        return message

    def brought(self, ticket: Ticket) -> int:
        """The address of the others' gradients, where this rank's did not come; 0: none."""
        return 0

    #: the engine and the ranks of this rank's node; None: there are no nodes
    within = None

    def fail(self, error: LaconicError) -> None:
        """The engine has told all ranks."""

    # ---- what a NodeStage around it asks: here the ranks of a node meet on the host ----

    meets = torch.device("cpu")  #: where they do

    def working(self, ticket: Ticket | None = None):
        """The context of operations on a ticket's buffer."""
        return contextlib.nullcontext()

    def kept_for(self, layout, elements: int, dtype) -> torch.Tensor:
        """Host memory of a layout, for what is exchanged of it."""
        return torch.empty(elements, dtype=dtype, device="cpu")

    def down(self, values: torch.Tensor, host: torch.Tensor) -> None:
        """Returns when `values` are in host memory, in its type. RuntimeError if they did not come."""
        host.copy_(values)

    def up(self, host: torch.Tensor, values: torch.Tensor) -> None:
        values.copy_(host)

    def settle(self) -> None:
        """Returns when the memory of `kept_for` has what was written there."""


class InPlace(Flat):
    """Gradients on the CPU: nothing is copied, unless a buffer has to be collected from pieces."""

    path, device, told = "in_place", torch.device("cpu"), "cpu in place"
    backend = None  #: of the sibling group: the caller's own
    devices = None  #: of the futures
    cuts_sums = True  #: what the caller's group sums may be cut along a saved layout
    at_end = True  #: means of small buckets may wait for the end of backward(): see laconic.exchange.delivery
    threads = 1
    staged_bytes, copy_seconds, pinned_bytes = 0, 0.0, 0

    def threads_beside(self, ranks: int | None) -> int:
        """threads="auto" where so many ranks share this one's cores; None: it is not known how many."""
        return self.threads

    def scale_of(self, scaler) -> float:
        return float(scaler.get_scale())

    def fetch(self, layout, pieces) -> Ticket:
        """`pieces`: (first element, flat tensor), which fill the layout's buffer."""
        ticket = Ticket(pieces)
        if pieces[0][1].numel() == layout.elements:
            ticket.host = pieces[0][1]
        else:
            ticket.host = torch.empty(layout.elements, dtype=pieces[0][1].dtype, device="cpu")
            for at, piece in pieces:
                ticket.host[at : at + piece.numel()] = piece
        return ticket

    def ready(self, ticket: Ticket) -> int:
        return ticket.host.data_ptr()

    def deliver(self, ticket: Ticket, future, error: BaseException | None = None) -> None:
        if ticket.host is not ticket.value:
            for at, piece in ticket.pieces:
                piece.copy_(ticket.host[at : at + piece.numel()])
        future.set_result(error or ticket.value)

    def close(self, abandoned: bool) -> None:
        """The buffers are the caller's."""


class HostStage(Flat):
    """Gradients on an accelerator: copied to pinned memory on one stream, back on another, so that a bucket's way up does not
    wait for the next one's way down.

    `fetch` and `scale_of` belong to the hook: they never wait, and never raise. `ready` and `deliver` belong to the worker. The
    host's buffer is the layout's, in the type of the gradients, and goes with it.
    """

    path, backend, at_end, cuts_sums = "staged", "gloo", False, False

    def __init__(self, device: torch.device):
        self.device, self.devices = device, [device]
        self.told = f"{device} staged through host memory"
        self.threads = usable_threads(torch.accelerator.device_count())
        self._down, self._up = torch.Stream(device=device), torch.Stream(device=device)
        self._buffers: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()  # layout → Kept
        self._lock = threading.Lock()  # of the buffers: any thread may ask how many bytes they are
        self._refused = False  # memory could not be pinned
        self._down_bytes, self._up_bytes, self.copy_seconds = 0, 0, 0.0

    def threads_beside(self, ranks: int | None) -> int:
        return self.threads if ranks is None else usable_threads(0, ranks)

    @property
    def staged_bytes(self) -> int:
        return self._down_bytes + self._up_bytes  # one of the hook's thread, one of the worker's

    @property
    def pinned_bytes(self) -> int:
        with self._lock:
            hosts = [kept.host for kept in self._buffers.values()]
        return sum(host.numel() * host.element_size() for host in hosts if host.is_pinned())

    def order_after_compute(self) -> None:
        """Copies from here on see what the current stream has computed by then."""
        self._down.wait_stream(torch.accelerator.current_stream(self.device))

    def scale_of(self, scaler):
        """The loss scale, as what float() gives it for: on the device it is read by the worker."""
        scale = getattr(scaler, "_scale", None)
        if scale is None or scale.device.type == "cpu":  # a scaler that has not begun knows its first scale
            return float(scaler.get_scale())
        ticket = Ticket([(0, scale.detach().reshape(1))])
        with _kept_for(ticket):
            ticket.host = self._pinned(1, scale.dtype)
            self._begin(ticket)
        return Later(self, ticket)

    def fetch(self, layout, pieces) -> Ticket:
        """Begins to copy the pieces, each with its first element in the layout's buffer, into the host's."""
        ticket = Ticket(pieces)
        with _kept_for(ticket):
            kept = self._buffers.get(layout)
            if kept is None:
                kept = Kept(self._pinned(layout.elements, ticket.value.dtype))
                with self._lock:
                    self._buffers[layout] = kept
            if kept.left is not None:  # after a failed backward() no thread may have waited for it
                self._down.wait_event(kept.left)
            ticket.kept, ticket.host = kept, kept.host
            self._begin(ticket)
            self._down_bytes += kept.host.numel() * kept.host.element_size()
        return ticket

    def _begin(self, ticket: Ticket) -> None:
        self.order_after_compute()
        with _on(self._down):
            for at, piece in ticket.pieces:
                ticket.host[at : at + piece.numel()].copy_(piece, non_blocking=True)
                piece.record_stream(self._down)
            ticket.event = self._down.record_event()

    def ready(self, ticket: Ticket) -> int:
        """Waits for the copy; gives the address of the host's buffer. RuntimeError if it did not come."""
        since = time.perf_counter()
        try:
            if ticket.error is not None:
                raise ticket.error
            ticket.event.synchronize()
        finally:
            self.copy_seconds += time.perf_counter() - since
        return ticket.host.data_ptr()

    def deliver(self, ticket: Ticket, future, error: BaseException | None = None) -> None:
        """Starts to copy the means back, and sets the future after that: its own events are ordered after the copy. With an error
        the gradients are unchanged."""
        with _on(self._up):
            if error is None:
                error = self._copy_back(ticket)
            future.set_result(error or ticket.value)

    def _copy_back(self, ticket: Ticket) -> LaconicError | None:
        try:
            for at, piece in ticket.pieces:
                piece.copy_(ticket.host[at : at + piece.numel()], non_blocking=True)
                piece.record_stream(self._up)
                self._up_bytes += piece.numel() * piece.element_size()
            ticket.kept.left = self._up.record_event()
        except RuntimeError as error:
            return copy_failed(error, f"from the host to {self.device}")
        return None

    def close(self, abandoned: bool) -> None:
        """Frees the host's buffers; never, if a collective that has not ended uses them."""
        if abandoned:
            _abandoned.extend(self._buffers.values())
        with self._lock:
            self._buffers.clear()

    def _pinned(self, elements: int, dtype) -> torch.Tensor:
        try:
            return torch.empty(elements, dtype=dtype, device="cpu", pin_memory=True)
        except RuntimeError as error:
            if not self._refused:
                self._refused = True
                environment.say(f"host memory could not be pinned, copies will be slower: {error}", logging.WARNING)
            return torch.empty(elements, dtype=dtype, device="cpu")


_abandoned: list[Kept] = []


class DeviceStage(HostStage):
    """For a NodeStage: the ranks of a node meet on the accelerator. A ticket's `host` is there; only what a rank exchanges of it is copied to
    the host and back. All of it is done on one stream, by the worker, after `ready`, which waits until the gradients are computed."""

    def __init__(self, device: torch.device):
        super().__init__(device)
        self.meets = device

    def fetch(self, layout, pieces) -> Ticket:
        """Copies nothing, unless the buffer has to be collected from pieces."""
        ticket = Ticket(pieces)
        with _kept_for(ticket):
            if ticket.value.numel() == layout.elements:
                ticket.host = ticket.value
            else:
                ticket.host = torch.empty(layout.elements, dtype=ticket.value.dtype, device=self.device)
                for at, piece in pieces:
                    ticket.host[at : at + piece.numel()] = piece
            ticket.event = torch.accelerator.current_stream(self.device).record_event()
        return ticket

    @contextlib.contextmanager
    def working(self, ticket: Ticket | None = None):
        with _on(self._down):
            if ticket is not None and ticket.host is not None:
                for tensor in {ticket.host, *(piece for _, piece in ticket.pieces)}:
                    tensor.record_stream(self._down)
            yield

    def kept_for(self, layout, elements: int, dtype) -> torch.Tensor:
        kept = Kept(self._pinned(elements, dtype))
        with self._lock:
            self._buffers[layout] = kept
        return kept.host

    def down(self, values: torch.Tensor, host: torch.Tensor) -> None:
        since = time.perf_counter()
        host.copy_(values.to(host.dtype), non_blocking=True)
        self._down.record_event().synchronize()
        self._down_bytes += host.numel() * host.element_size()
        self.copy_seconds += time.perf_counter() - since

    def up(self, host: torch.Tensor, values: torch.Tensor) -> None:
        values.copy_(host, non_blocking=True)
        self._up_bytes += host.numel() * host.element_size()

    def deliver(self, ticket: Ticket, future, error: BaseException | None = None) -> None:
        """The means are in `host`, or on their way there: the future's own events are ordered after that."""
        with _on(self._down):  # where means come back
            if error is None and ticket.host is not ticket.value:
                for at, piece in ticket.pieces:
                    piece.copy_(ticket.host[at : at + piece.numel()], non_blocking=True)
            future.set_result(error or ticket.value)


class CodecStage(DeviceStage):
    """The session's codecs are on the accelerator: gradients, means and shards stay there, and nothing of theirs is copied to the host here."""

    path = "codecs"

    def __init__(self, device: torch.device):
        super().__init__(device)
        self.told = f"{device}, where its codecs run"

    def kept_for(self, layout, elements: int, dtype) -> torch.Tensor:
        return torch.empty(elements, dtype=dtype, device=self.device)

    def down(self, values: torch.Tensor, host: torch.Tensor) -> None:
        host.copy_(values)
        self.settle()

    def up(self, host: torch.Tensor, values: torch.Tensor) -> None:
        values.copy_(host)

    def settle(self) -> None:
        self._down.record_event().synchronize()


class MeetingOnHost(HostStage):
    """For a NodeStage before such a session, where the ranks of a node have no group that serves the accelerator: they meet on the host."""

    def kept_for(self, layout, elements: int, dtype) -> torch.Tensor:
        return torch.empty(elements, dtype=dtype, device=self.device)

    def down(self, values: torch.Tensor, host: torch.Tensor) -> None:
        host.copy_(values)
        self.settle()

    def settle(self) -> None:
        torch.accelerator.current_stream(self.device).synchronize()


class Lender:
    """Memory of torch's for a session whose codecs are on the accelerator: torch.cuda.memory_allocated() counts it, and torch frees what it has
    cached before it says that there is none."""

    def __init__(self, device: torch.device):
        self._device, self._stream = device, torch.Stream(device=device)  # its own: no work of another one is behind what torch gives again
        self._lent: dict[int, torch.Tensor] = {}
        self.table = _lib.DeviceAllocator(allocate=_lib.ALLOCATE(self._allocate), release=_lib.RELEASE(self._release))

    def _allocate(self, _context, size: int) -> int | None:
        try:
            with _on(self._stream):
                lent = torch.empty(size, dtype=torch.uint8, device=self._device)
        except RuntimeError:
            return None
        self._lent[lent.data_ptr()] = lent
        return lent.data_ptr()

    def _release(self, _context, at: int) -> None:
        self._lent.pop(at, None)


def gpu_of(asked: str, device: torch.device) -> tuple[int | None, str]:
    """The GPU on which codecs run, by CUDA's index, or None, and why they run on the host. LaconicError: they cannot as asked."""
    if asked not in ("auto", "host", "device"):
        raise errors.error("invalid_argument", f"codecs={asked!r}", 'use "auto", "host" or "device"')
    if asked == "host":
        return None, "requested"
    if device.type == "cpu":
        why = "gradients are on the CPU"
    elif device.type != "cuda" and not getattr(torch.get_device_module(device), "pretends", False):
        why = f"{device} is no CUDA device"
    elif asked == "auto":
        return None, "no GPU has been measured with codecs on it yet"
    else:
        return device.index or 0, ""
    if asked == "device":
        raise errors.error("unsupported", f"codecs='device': {why}", 'leave codecs out, or use "host"')
    return None, why


class Later:
    """A number that is on its way from the device; float() waits for it."""

    def __init__(self, stage: HostStage, ticket: Ticket):
        self._stage, self._ticket = stage, ticket

    def __float__(self) -> float:
        self._stage.ready(self._ticket)
        return float(self._ticket.host[0])


@contextlib.contextmanager
def _kept_for(ticket: Ticket):
    """`ready` raises failures from inside: DDP's hook must not."""
    try:
        yield
    except RuntimeError as error:
        ticket.error = error


def copy_failed(error: BaseException, way: str) -> LaconicError:
    return errors.error("peer_failed", f"gradients could not be copied {way}: {type(error).__name__}: {error}",
                        "check this rank's device")


@contextlib.contextmanager
def _on(stream):
    """Operations inside are queued on this stream."""
    before = torch.accelerator.current_stream(stream.device)
    torch.accelerator.set_stream(stream)
    try:
        yield
    finally:
        torch.accelerator.set_stream(before)
