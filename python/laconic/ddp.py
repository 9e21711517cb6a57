# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel: the communication hook, its one worker, and what resuming asks of the bucket layout."""

from __future__ import annotations

import atexit
import queue
import threading

import torch
import torch.distributed as dist

from . import _lib
from .engine import _TORCH_TYPES, Engine, release_sibling, sibling_group
from .errors import LaconicError
from .session import STATE_VERSION, Layout, Session

_DTYPES = {dtype: code for code, dtype in _TORCH_TYPES.items() if code != _lib.U8}


def shorten(names, limit: int = 3) -> str:
    names = list(names)
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")


class Job:
    """One bucket on its way through the worker."""

    __slots__ = ("buffer", "error", "flags", "future", "index", "layout", "left", "scale", "step")

    def __init__(self, layout, buffer, step, index, flags, scale):
        self.layout, self.buffer, self.step = layout, buffer, step
        self.index, self.flags, self.scale = index, flags, scale
        self.future = torch.futures.Future()
        # While resuming: parameters whose mean is not here yet, and the first failure of one of them.
        self.left, self.error = len(layout.parameters), None


class Resumed:
    """After a resume: sums are cut along the saved layout until DDP's own layout is the saved one again.

    An engine's float sums depend on an element's place in the buffer, and DDP starts every run with another layout than
    the one it settles on. Buckets are collected into the saved layout's buffers, exchanged there, and copied back.
    """

    def __init__(self, layouts: list[Layout], counts: list[int]):
        self.layouts = layouts
        self.counts = counts
        self.where = {p: (b, o) for b, layout in enumerate(layouts) for p, o in zip(layout.parameters, layout.offsets)}
        self.buffers: dict[int, torch.Tensor] = {}
        self.missing = [len(layout.parameters) for layout in layouts]
        self.jobs: dict[int, tuple[Job, int]] = {}

    def take(self, job: Job):
        """Copies a job's gradients in; yields the numbers of the saved buckets that are complete with it."""
        for p, offset in zip(job.layout.parameters, job.layout.offsets):
            bucket, at = self.where[p]
            if bucket not in self.buffers:
                self.buffers[bucket] = torch.zeros(self.layouts[bucket].elements, dtype=job.buffer.dtype)
            self.buffers[bucket][at : at + self.counts[p]] = job.buffer[offset : offset + self.counts[p]]
            self.jobs[p] = (job, offset)
            self.missing[bucket] -= 1
            if self.missing[bucket] == 0:
                self.missing[bucket] = len(self.layouts[bucket].parameters)
                yield bucket

    def give(self, bucket: int, error: LaconicError | None):
        """Copies a saved bucket's means back, or its failure; yields the jobs that are complete with it."""
        layout = self.layouts[bucket]
        for p, at in zip(layout.parameters, layout.offsets):
            job, offset = self.jobs.pop(p)
            job.buffer[offset : offset + self.counts[p]] = self.buffers[bucket][at : at + self.counts[p]]
            job.error = job.error or error
            job.left -= 1
            if job.left == 0:
                yield job


class Handle:
    """What `laconic.attach` gives: counters, explanation, saved state, flush."""

    def __init__(self, ddp, spec: str, *, seed: int, small_elements: int, strategy: str, threads: int, scaler):
        self._parameters = [(n, p) for n, p in ddp.module.named_parameters()
                            if p.requires_grad and n not in getattr(ddp, "parameters_to_ignore", ())]
        self._index = {id(p): i for i, (_, p) in enumerate(self._parameters)}
        self._user_group = ddp.process_group
        self._group = sibling_group(self._user_group)
        try:
            self._open(ddp, spec, seed=seed, small_elements=small_elements, strategy=strategy, threads=threads)
        except LaconicError:  # on every rank
            release_sibling(self._user_group, self._group)
            raise
        explained = self._session.explain()
        self.spec = explained["spec"]
        self._raw = {i for i, p in enumerate(explained["parameters"]) if p["codec"] == "none"}
        #: iterations since attach (or since the saved run's attach): the step number of all random streams
        self.step = 0
        self._iterations = 0  # since attach, whatever was loaded
        #: the last failure of an exchange on this rank
        self.last_error: LaconicError | None = None
        self._scaler = scaler
        self._scale = 1.0  # of this iteration's gradients
        self._unit = 1.0   # of the residuals; only the worker changes it
        self._flush_at: int | None = None
        self._flush_next = False
        self._layouts: dict[tuple, Layout] = {}
        self._seen: list[Layout] = []      # this iteration's buckets
        self._last_seen: list[Layout] = []
        self._resumed: Resumed | None = None
        self._settled = False  # DDP's own layout was the saved one in the last iteration
        self._failure: LaconicError | None = None  # tests: what the next exchange on this rank fails with
        self._closed = False
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._worker = threading.Thread(target=self._work, name="laconic", daemon=True)
        self._worker.start()
        # A thread inside torch while the interpreter goes away ends the process with SIGABRT: let it end first.
        atexit.register(_stop, self._jobs, self._worker)

    # ---- set-up -----------------------------------------------------------------------------------------------------

    def _open(self, ddp, spec, **options) -> None:
        """Everything that one rank may refuse, and the agreement of all of them."""
        self._engine = Engine(self._group)
        self._world, self.rank = self._engine.world, self._engine.rank
        sums = self._engine.probe_sums()
        failure = None
        try:
            _refuse_hook(ddp)
            self._check_parameters()
            self._engine.limiter = _limiter()
            self._session = Session(spec, [(n, tuple(p.shape)) for n, p in self._parameters], rank=self.rank,
                                    world=self._world, engine_sums=sums,
                                    short_sends=self._engine.short_sends, **options)
        except LaconicError as error:  # the other ranks are about to compare cards with us
            failure = error
        except Exception as error:  # noqa: BLE001  an argument of a wrong type
            failure = LaconicError(1, "invalid_argument", f"{type(error).__name__}: {error}", "see help(laconic.attach)")
        self._agree(failure)

    def _check_parameters(self) -> None:
        for name, p in self._parameters:
            if p.dtype not in _DTYPES:
                raise LaconicError(6, "dtype_unsupported", f"parameter {name} is {p.dtype}",
                                   "float32, float16 or bfloat16; freeze it, or keep it out of DDP")
            if p.device.type != "cpu":
                raise LaconicError(9, "unsupported", f"parameter {name} lies on {p.device}; this version exchanges CPU "
                                   "gradients (Gloo)", "train on the CPU, or wait for the CUDA kernels")

    def _agree(self, failure: LaconicError | None) -> None:
        """Every rank learns whether any rank could not start, before anything is compared."""
        texts = self._engine.gather_texts("" if failure is None else str(failure))
        if failure is not None and len(set(texts)) == 1:
            raise failure
        for rank, text in enumerate(texts):
            if text:
                raise LaconicError(60, "ranks_disagree", f"rank {rank} could not attach: {text}",
                                   "give every rank the same call, file and LACONIC_* variables")
        self._session.agree(self._engine)

    def register(self, ddp) -> None:
        ddp.register_comm_hook(self, laconic_hook)

    def describe(self) -> str:
        """The one line that rank 0 logs at start."""
        e = self._session.explain()
        packed = [p for p in e["parameters"] if p["codec"] != "none"]
        elements = sum(p["elements"] for p in packed)
        return (f"{e['spec']} on {len(packed)} of {len(e['parameters'])} tensors ({elements} of {e['elements']} elements) "
                f"by {e['strategy']}; {e['uncompressed_elements']} elements as they are; "
                f"{dist.get_backend(self._group)}, {self._world} ranks")

    # ---- the hook -----------------------------------------------------------------------------------------------------

    def _layout(self, bucket, buffer) -> Layout:
        parameters = bucket.parameters()
        key = tuple(map(id, parameters))
        layout = self._layouts.get(key)
        if layout is None or layout.elements != buffer.numel():
            try:
                indices = [self._index[k] for k in key]
            except KeyError:
                raise LaconicError(84, "state_model", "DDP brings a parameter that was not there at attach",
                                   "attach after the last change of the model") from None
            offsets, at = [], 0
            for p in parameters:
                offsets.append(at)
                at += p.numel()
            # Sums that are the engine's anyway, and nothing else in this bucket.
            direct = self._session.layout_matters and self._raw.issuperset(indices)
            layout = self._layouts[key] = Layout(indices, offsets, buffer.numel(), direct=direct,
                                                         element_size=buffer.element_size())
        return layout

    def on_bucket(self, bucket):
        """Called by DDP in backward(): queues the bucket and returns a future of its mean."""
        if self._closed:
            raise LaconicError(1, "invalid_argument", "this model's handle was closed", "wrap the model anew and attach again")
        buffer = bucket.buffer()
        layout = self._layout(bucket, buffer)
        if not self._seen:
            self._begin_iteration()
        self._seen.append(layout)
        step, flags = self.step, _lib.BUCKET_FLUSH if self._flush_at == self.step else 0
        direct = layout.direct and flags == 0 and self._resumed is None and self._failure is None
        if bucket.is_last():
            self._end_iteration()
        if direct:
            layout.sums += 1
            return self._all_reduce(buffer)
        job = Job(layout, buffer, step, bucket.index(), flags, self._scale)
        self._jobs.put(job)
        return job.future.then(self._result)

    def _begin_iteration(self) -> None:
        if self._settled:  # the worker is idle between iterations
            self._resumed, self._settled = None, False
        if self._flush_next:
            self._flush_next, self._flush_at = False, self.step
        if self._scaler is not None and self._scaler.is_enabled():
            self._scale = float(self._scaler.get_scale())

    def _end_iteration(self) -> None:
        self._last_seen, self._seen = self._seen, []
        self.step += 1
        self._iterations += 1
        if self._resumed is not None:
            own, saved = ({x.parameters for x in layouts} for layouts in (self._last_seen, self._resumed.layouts))
            self._settled = own == saved

    def _all_reduce(self, buffer):
        """Plain DDP: the user group's own future; no worker is involved. The group itself, not torch.distributed's
        function: between two layers the caches are cold, and every line of Python is felt."""
        buffer.mul_(1.0 / self._world)
        return self._user_group.allreduce([buffer]).get_future().then(_first)

    def _result(self, future):
        """A worker's failure leaves backward() as RuntimeError with our sentence."""
        value = future.value()
        if isinstance(value, BaseException):
            raise RuntimeError(str(value)) from value
        return value

    # ---- the worker ---------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        """Strictly first in, first out: collectives are matched by order on all ranks."""
        while True:
            job = self._jobs.get()
            if job is None:
                return
            try:
                if job.scale != self._unit:  # residuals are kept in the unit of the scaled gradients of the moment
                    self._session.scale_residuals(job.scale / self._unit)
                    self._unit = job.scale
                if self._resumed is None:
                    self._exchange(job.layout, job.buffer, job)
                    job.future.set_result(job.buffer)
                else:
                    self._exchange_resumed(job)
            except BaseException as error:  # noqa: BLE001  it has to reach backward(), whatever it is
                job.future.set_result(self._failed(error, job))

    def _exchange(self, layout: Layout, buffer, job: Job) -> None:
        failure, self._failure = self._failure, None
        self._session.exchange(layout, buffer.data_ptr(), _DTYPES[buffer.dtype], self._engine, step=job.step,
                               index=job.index, flags=job.flags, failure=failure)

    def _exchange_resumed(self, job: Job) -> None:
        resumed = self._resumed
        for bucket in resumed.take(job):
            error = None
            try:
                self._exchange(resumed.layouts[bucket], resumed.buffers[bucket], job)
            except BaseException as failure:  # noqa: BLE001  every job that waits for this bucket has to hear of it
                error = self._failed(failure, job)
            for done in resumed.give(bucket, error):
                done.future.set_result(done.error or done.buffer)

    def _failed(self, error: BaseException, job: Job) -> LaconicError:
        if not isinstance(error, LaconicError):
            error = LaconicError(62, "engine_failed", f"{type(error).__name__}: {error}",
                                 "a peer is gone or the network failed; restart from the last checkpoint")
        names = [self._session.names[i] for i in job.layout.parameters]
        message = f"rank {self.rank}, bucket {job.index} ({shorten(names)}), step {job.step}: {error.message}"
        self.last_error = LaconicError(error.code, error.name, message, error.hint)
        return self.last_error

    # ---- what users ask -------------------------------------------------------------------------------------------------

    def stats(self) -> dict:
        """Counters since attach: steps, dense_bytes, wire_bytes, ratio, encode/decode/wire seconds, fallbacks, …

        Buckets without compression, which PyTorch's own all-reduce sums, count in steps, elements, rounds and bytes, but
        not as exchanges or seconds: those are of the worker.
        """
        stats = self._session.stats()
        for layout in self._layouts.values():
            elements = layout.sums * layout.elements
            ring = 2 * (self._world - 1) * elements
            stats["elements"] += elements
            stats["rounds"] += layout.sums
            stats["dense_bytes"] += 4 * ring // self._world
            stats["wire_bytes"] += layout.element_size * ring // self._world
        stats["steps"] = max(stats["steps"], self._iterations)
        stats["ratio"] = stats["dense_bytes"] / stats["wire_bytes"] if stats["wire_bytes"] else 0.0
        return stats

    def explain(self) -> dict:
        """What was picked and why: spec, strategy, reason, and every parameter's codec and largest payload."""
        return self._session.explain()

    def flush(self) -> None:
        """The next step goes out uncompressed with the residuals added. Every rank has to call it."""
        self._flush_next = True

    def state_dict(self) -> dict:
        """Everything that this rank must have to continue bit for bit. One per rank: residuals differ."""
        tensors = {}
        for name, address, count in self._session.entries():
            values = torch.empty(count, dtype=torch.float32)
            if count:
                _copy(values.data_ptr(), address, count)
            if not name.startswith("state/"):
                values /= self._unit  # saved in unscaled units
            tensors[name] = values
        layouts = self._resumed.layouts if self._resumed is not None else self._last_seen
        names = self._session.names
        return {"version": STATE_VERSION, "header": self._session.header(), "step": self.step, "tensors": tensors,
                "layout": [[names[i] for i in layout.parameters] for layout in layouts]}

    def load_state_dict(self, state: dict) -> None:
        """Continues a saved run. Another rank's state, world size, model, spec or version is an error that says so."""
        if not isinstance(state, dict) or not {"header", "tensors", "step", "layout"} <= state.keys():
            raise LaconicError(81, "state_corrupt", "this is not a state of laconic",
                               "pass what handle.state_dict() gave on this rank")
        self._session.accepts(state["header"])
        mine = {name: (address, count) for name, address, count in self._session.entries()}
        for name, (_, count) in mine.items():
            saved = state["tensors"].get(name)
            if saved is None or saved.numel() != count:
                raise LaconicError(81, "state_corrupt", f"the state lacks {name} with {count} floats",
                                   "it was damaged, or saved by another version")
        for name, (address, count) in mine.items():
            values = state["tensors"][name].to(torch.float32).contiguous()
            if not name.startswith("state/"):
                values = values * self._unit
            if count:
                _copy(address, values.data_ptr(), count)
        self.step = int(state["step"])
        self._resume_layout(state["layout"])

    def _resume_layout(self, saved: list[list[str]]) -> None:
        if not self._session.layout_matters or not saved:
            return
        index = {name: i for i, name in enumerate(self._session.names)}
        counts = [p.numel() for _, p in self._parameters]
        layouts = []
        for names in saved:
            offsets, at = [], 0
            for name in names:
                offsets.append(at)
                at += counts[index[name]]
            layouts.append(Layout([index[name] for name in names], offsets, at))
        self._resumed = Resumed(layouts, counts)

    def close(self) -> None:
        """Ends the worker. The model cannot exchange afterwards. Every rank calls it."""
        if not self._closed:
            self._closed = True
            self._jobs.put(None)
            self._worker.join()
            release_sibling(self._user_group, self._group)

    def __getstate__(self):
        return {"state": self.state_dict()}


def other_hook(ddp) -> str | None:
    """The name of the communication hook that this model already has."""
    hooks = getattr(ddp, "_comm_hooks", None)  # torch >= 2.1
    if hooks:
        return getattr(hooks[0][0], "__qualname__", "unnamed")
    return ddp._get_ddp_logging_data().get("comm_hook") or None  # noqa: SLF001  also PyTorch's built-in hooks


def _refuse_hook(ddp) -> None:
    other = other_hook(ddp)
    if other == laconic_hook.__qualname__:
        raise LaconicError(9, "unsupported", "laconic is attached to this model already",
                           "use the handle that the first attach gave; to change the spec, wrap the model anew")
    if other is not None:
        raise LaconicError(9, "unsupported", f"this model already has a communication hook ({other})",
                           "DDP takes one hook for ever: wrap the model anew and attach laconic first")
    if getattr(ddp, "_use_python_reducer", False):
        raise LaconicError(9, "unsupported", "torch._dynamo.config.optimize_ddp is 'python_reducer', which traces hooks",
                           "leave optimize_ddp at its default: torch.compile then works with laconic")


def _stop(jobs, worker) -> None:
    """At exit: ends an idle worker; one that still waits for a peer is left behind."""
    if worker.is_alive():
        jobs.put(None)
        worker.join(5)


def _copy(to: int, source: int, count: int) -> None:
    import ctypes

    ctypes.memmove(to, source, 4 * count)


def _first(future):
    value = future.value()
    return value[0] if isinstance(value, (list, tuple)) else value


def _limiter():
    from .emulate import limiter_from_environment

    return limiter_from_environment()


def laconic_hook(state, bucket):  # no annotations: DDP compares them, and a string never equals the class
    return state.on_bucket(bucket)
