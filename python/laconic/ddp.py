# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel: the communication hook, and what resuming asks of the bucket layout."""

from __future__ import annotations

import functools
import itertools

import torch
import torch.distributed as dist

from . import errors
from .engine import Engine
from .errors import LaconicError
from .group import Meeting, Sibling
from .session import Layout, Session
from .state import check_fields, check_layout
from .worker import DTYPES, Worker, result


class Resumed:
    """After a resume: sums are cut along the saved layout until DDP's own layout is the saved one again.

    An engine's float sums depend on an element's place in the buffer, and DDP starts every run with another layout than
    the one it settles on. Buckets are collected into the saved layout's buffers, exchanged there, and copied back. Where
    the strategy adds in an order of its own, only steps that go out uncompressed need this (a flush that goes on, a
    fallback), so it ends after some iterations even if DDP never comes back to the saved layout.
    """

    #: DDP has its final layout from the second iteration on, with a static graph from the third
    ITERATIONS = 3

    class Part:
        """One of DDP's buckets, cut up."""

        def __init__(self, layout: Layout, buffer):
            self.layout, self.buffer = layout, buffer
            self.future = torch.futures.Future()
            # Parameters whose mean is not here yet, and the first failure of one of them.
            self.left, self.error = len(layout.parameters), None

    def __init__(self, layouts: list[Layout], counts: list[int], *, bounded: bool):
        self.layouts = layouts
        self.left = Resumed.ITERATIONS if bounded else None
        self.counts = counts
        self.where = {p: (b, o) for b, layout in enumerate(layouts) for p, o in zip(layout.parameters, layout.offsets)}
        self.buffers: dict[int, torch.Tensor] = {}
        self.missing = [len(layout.parameters) for layout in layouts]
        self.parts: dict[int, tuple[Resumed.Part, int]] = {}

    def ended(self, own: list[Layout]) -> bool:
        """After an iteration in which DDP brought these layouts: are they what goes on from here?"""
        if self.left is not None:
            self.left -= 1
        return self.left == 0 or {x.parameters for x in own} == {x.parameters for x in self.layouts}

    def release(self, worker: Worker, own: list[Layout]) -> None:
        for layout in self.layouts:
            if layout.parameters not in {x.parameters for x in own}:
                worker.release(layout)

    def submit(self, worker: Worker, layout: Layout, buffer, **options):
        """As Worker.submit."""
        part = Resumed.Part(layout, buffer)
        for bucket in self._take(part):
            exchanged = worker.submit(self.layouts[bucket], self.buffers[bucket], **options)
            exchanged.then(lambda future, bucket=bucket: self._give(bucket, future.value()))
        return part.future

    def _take(self, part: Part):
        """Copies a bucket's gradients in; yields the numbers of the saved buckets that are complete with it."""
        for p, offset in zip(part.layout.parameters, part.layout.offsets):
            bucket, at = self.where[p]
            if bucket not in self.buffers:
                self.buffers[bucket] = torch.zeros(self.layouts[bucket].elements, dtype=part.buffer.dtype)
            self.buffers[bucket][at : at + self.counts[p]] = part.buffer[offset : offset + self.counts[p]]
            self.parts[p] = (part, offset)
            self.missing[bucket] -= 1
            if self.missing[bucket] == 0:
                self.missing[bucket] = len(self.layouts[bucket].parameters)
                yield bucket

    def _give(self, bucket: int, value) -> None:
        """In the worker's thread: copies a saved bucket's means back, or hands on its failure."""
        layout = self.layouts[bucket]
        for p, at in zip(layout.parameters, layout.offsets):
            part, offset = self.parts.pop(p)
            part.buffer[offset : offset + self.counts[p]] = self.buffers[bucket][at : at + self.counts[p]]
            if isinstance(value, LaconicError):
                part.error = part.error or value
            part.left -= 1
            if part.left == 0:
                part.future.set_result(part.error or part.buffer)


class Handle:
    """What `laconic.attach` gives: counters, explanation, saved state, flush."""

    def __init__(self, ddp, spec: str, meeting: Meeting, *, seed: int, small_elements: int, strategy: str, threads: int, scaler):
        self._parameters = [(n, p) for n, p in ddp.module.named_parameters()
                            if p.requires_grad and n not in getattr(ddp, "parameters_to_ignore", ())]
        self._index = {id(p): i for i, (_, p) in enumerate(self._parameters)}
        self._user_group = ddp.process_group
        self._sibling = Sibling(self._user_group, meeting)
        try:
            session, engine = self._open(ddp, spec, seed=seed, small_elements=small_elements, strategy=strategy,
                                         threads=threads)
        except LaconicError:  # on every rank
            self._sibling.release()
            raise
        explained = session.explain()
        self.spec = explained["spec"]
        self._raw = {i for i, p in enumerate(explained["parameters"]) if p["codec"] == "none"}
        self._scaler = scaler
        self._scale = 1.0  # of this iteration's gradients
        self._layouts: dict[tuple, Layout] = {}
        self._seen: list[Layout] = []      # this iteration's buckets
        self._last_seen: list[Layout] = []
        self._resumed: Resumed | None = None
        #: takes the buckets; see laconic.worker
        self.worker = Worker(session, engine)

    @property
    def step(self) -> int:
        """Iterations since attach, or since the saved run's attach."""
        return self.worker.step

    @property
    def last_error(self) -> LaconicError | None:
        """The last failure of an exchange on this rank."""
        return self.worker.last_error

    # ---- set-up -----------------------------------------------------------------------------------------------------

    def _open(self, ddp, spec, **options):
        """Everything that one rank may refuse, and the agreement of all of them."""
        engine = Engine(self._sibling.group)
        self._world, self.rank = engine.world, engine.rank
        sums = engine.probe_sums()
        session, failure = None, None
        try:
            _refuse_hook(ddp)
            self._check_parameters()
            engine.limiter = _limiter()
            session = Session(spec, [(n, tuple(p.shape)) for n, p in self._parameters], rank=self.rank,
                              world=self._world, engine_sums=sums, short_sends=engine.short_sends, **options)
        except LaconicError as error:  # the other ranks are about to compare cards with us
            failure = error
        except Exception as error:  # noqa: BLE001  an argument of a wrong type
            failure = errors.error("invalid_argument", f"{type(error).__name__}: {error}", "see help(laconic.attach)")
        _agree(engine, session, failure)
        return session, engine

    def _check_parameters(self) -> None:
        for name, p in self._parameters:
            if p.dtype not in DTYPES:
                raise errors.error("dtype_unsupported", f"parameter {name} is {p.dtype}",
                                   "float32, float16 or bfloat16; freeze it, or keep it out of DDP")
            if p.device.type != "cpu":
                raise errors.error("unsupported", f"parameter {name} lies on {p.device}; this version exchanges CPU "
                                   "gradients (Gloo)", "train on the CPU, or wait for the CUDA kernels")

    def register(self, ddp) -> None:
        ddp.register_comm_hook(self, laconic_hook)

    def describe(self) -> str:
        """The one line that rank 0 logs at start."""
        e = self.explain()
        packed = [p for p in e["parameters"] if p["codec"] != "none"]
        elements = sum(p["elements"] for p in packed)
        return (f"{e['spec']} on {len(packed)} of {len(e['parameters'])} tensors ({elements} of {e['elements']} elements) "
                f"by {e['strategy']}; {e['uncompressed_elements']} elements as they are; "
                f"{dist.get_backend(self._user_group)}, {self._world} ranks")

    # ---- the hook -----------------------------------------------------------------------------------------------------

    def _layout(self, bucket, buffer) -> Layout:
        parameters = bucket.parameters()
        key = tuple(map(id, parameters))
        layout = self._layouts.get(key)
        if layout is None or layout.elements != buffer.numel():
            if layout is not None:
                self.worker.release(layout)
            try:
                indices = [self._index[k] for k in key]
            except KeyError:
                raise errors.error("state_model", "DDP brings a parameter that was not there at attach",
                                   "attach after the last change of the model") from None
            offsets, at = [], 0
            for p in parameters:
                offsets.append(at)
                at += p.numel()
            # Sums that are the engine's anyway, and nothing else in this bucket.
            direct = self.worker.session.layout_matters and self._raw.issuperset(indices)
            layout = self._layouts[key] = Layout(indices, offsets, buffer.numel(), direct=direct,
                                                         element_size=buffer.element_size())
        return layout

    def on_bucket(self, bucket):
        """Called by DDP in backward(): queues the bucket and returns a future of its mean."""
        worker = self.worker
        worker.check_open()
        buffer = bucket.buffer()
        layout = self._layout(bucket, buffer)
        if not self._seen:
            self._begin_iteration()
        self._seen.append(layout)
        if layout.direct and self._resumed is None and worker.broken is None:
            worker.summed_elsewhere(layout)
            future, then = self._all_reduce(buffer), functools.partial(self._summed, layout)
        else:
            submit = worker.submit if self._resumed is None else functools.partial(self._resumed.submit, worker)
            future, then = submit(layout, buffer, index=bucket.index(), scale=self._scale), result
        if bucket.is_last():
            self._end_iteration()
        return future.then(then)

    def _begin_iteration(self) -> None:
        if self._scaler is not None and self._scaler.is_enabled():
            self._scale = float(self._scaler.get_scale())

    def _end_iteration(self) -> None:
        self._forget_layouts()
        self._last_seen, self._seen = self._seen, []
        self.worker.next_step()
        if self._resumed is not None and self._resumed.ended(self._last_seen):
            self._resumed.release(self.worker, self._last_seen)
            self._resumed = None

    def _forget_layouts(self) -> None:
        """What DDP brought neither in this iteration nor in the last one: it rebuilds its buckets after the first, and the
        exchange of a bucket holds several times its size."""
        kept = {id(layout) for layouts in (self._seen, self._last_seen) for layout in layouts}
        if len(kept) < len(self._layouts):
            for key, layout in list(self._layouts.items()):
                if id(layout) not in kept:
                    self.worker.release(self._layouts.pop(key))

    def _all_reduce(self, buffer):
        """Plain DDP: the user group's own future; no worker is involved. The group itself, not torch.distributed's
        function: between two layers the caches are cold, and every line of Python is felt."""
        buffer.mul_(1.0 / self._world)
        return self._user_group.allreduce([buffer]).get_future()

    def _summed(self, layout, future):
        try:
            value = future.value()
        except RuntimeError as error:
            broken = self.worker.break_off(error, layout)
            raise RuntimeError(str(broken)) from error
        return value[0] if isinstance(value, (list, tuple)) else value

    # ---- what users ask -------------------------------------------------------------------------------------------------

    def stats(self) -> dict:
        """Counters since attach: steps, dense_bytes, wire_bytes, ratio, encode/decode/wire seconds, fallbacks, …

        May be called from any thread at any time, as may explain(). Buckets without compression, which PyTorch's own
        all-reduce sums, count in steps, elements, rounds and bytes, but not as exchanges or seconds: those are the worker's.
        """
        return self.worker.stats()

    def explain(self) -> dict:
        """What was picked and why: spec, strategy, reason, and every parameter's codec and largest payload."""
        return self.worker.explain()

    def flush(self, steps: int = 10) -> int:
        """Drains the residuals: an equal part of them goes out in each of `steps` steps (1 to 65535; 1: all at once).

        Gives the number of the step after which they are empty, `handle.step + steps`: the first step after the call
        carries the wish to the other ranks, the next one is the first that drains. One rank's call is enough; ranks that
        call it give the same number. A flush that is under way goes on as it is, and so does one that was saved with
        state_dict. `stats()["flush_steps_left"]` counts down.
        """
        return self.worker.flush(steps)

    def state_dict(self) -> dict:
        """Everything that this rank must have to continue bit for bit. One per rank: residuals differ."""
        layouts = self._resumed.layouts if self._resumed is not None else self._last_seen
        names = self.worker.session.names
        return {**self.worker.state_dict(), "layout": [[names[i] for i in layout.parameters] for layout in layouts]}

    def load_state_dict(self, state: dict) -> None:
        """Continues a saved run. Another rank's state, world size, model, spec or version is refused with the reason, a
        damaged one state_corrupt that names what; either changes nothing."""
        check_fields("it", state, {"version", "header", "step", "tensors", "layout"})
        load = self.worker.prepare({key: value for key, value in state.items() if key != "layout"})
        buckets = check_layout(state["layout"], self.worker.session.names, [p.dtype for _, p in self._parameters],
                               required=state["step"] > 0)
        load()
        self._resumed = self._resume(buckets) if buckets else None

    def _resume(self, buckets: list[list[int]]) -> Resumed:
        counts = [p.numel() for _, p in self._parameters]
        layouts = []
        for indices in buckets:
            offsets = [0, *itertools.accumulate(counts[i] for i in indices)]
            layouts.append(Layout(indices, offsets[:-1], offsets[-1]))
        return Resumed(layouts, counts, bounded=not self.worker.session.layout_matters)

    def close(self) -> None:
        """Ends the worker. The model cannot exchange afterwards. Every rank calls it."""
        if self.worker.close() and self.worker.broken is None:
            self._sibling.release()

    def __getstate__(self):
        return {"state": self.state_dict()}


def _agree(engine: Engine, session: Session | None, failure: LaconicError | None) -> None:
    """Every rank learns whether any rank could not start, before anything is compared."""
    texts = engine.gather_texts("" if failure is None else str(failure))
    if failure is not None and len(set(texts)) == 1:
        raise failure
    for rank, text in enumerate(texts):
        if text:
            raise errors.error("ranks_disagree", f"rank {rank} could not attach: {text}",
                               "give every rank the same call, file and LACONIC_* variables")
    session.agree(engine)


def other_hook(ddp) -> str | None:
    """The name of the communication hook that this model already has."""
    hooks = getattr(ddp, "_comm_hooks", None)  # torch >= 2.1
    if hooks:
        return getattr(hooks[0][0], "__qualname__", "unnamed")
    return ddp._get_ddp_logging_data().get("comm_hook") or None  # noqa: SLF001  also PyTorch's built-in hooks


def _refuse_hook(ddp) -> None:
    other = other_hook(ddp)
    if other == laconic_hook.__qualname__:
        raise errors.error("unsupported", "laconic is attached to this model already",
                           "use the handle that the first attach gave; to change the spec, wrap the model again")
    if other is not None:
        raise errors.error("unsupported", f"this model already has a communication hook ({other})",
                           "DDP takes one hook only: wrap the model again and attach laconic first")
    if getattr(ddp, "_use_python_reducer", False):
        raise errors.error("unsupported", "torch._dynamo.config.optimize_ddp is 'python_reducer', which traces hooks",
                           "leave optimize_ddp at its default: torch.compile then works with laconic")


def _limiter():
    from .emulate import limiter_from_environment

    return limiter_from_environment()


def laconic_hook(state, bucket):  # no annotations: DDP compares them, and a string never equals the class
    return state.on_bucket(bucket)
