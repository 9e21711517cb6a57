# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel: the communication hook of a handle."""

from __future__ import annotations

import functools
import itertools
import re
import time
import weakref

import torch

from ..codec.listing import codecs
from ..core import errors
from ..engines.aggregation import ServerOptions
from ..engines.c10d import lend
from ..engines.nodes import Levels
from ..exchange import names
from ..exchange.csession import Layout, Options
from ..exchange.delivery import EndOfBackward, Sum
from ..exchange.driver import engine_failed
from ..exchange.worker import DTYPES, Worker, result
from . import reports
from .handle import Handle, PickledHandle
from .opening import Opened, Parameters
from .resumed import Resumed
from .steps import Settings, Steps

#: bytes of a bucket up to which its mean is given to DDP at the end of backward(): a copy of more takes longer than two hand-overs
#: of the interpreter
AT_END = 1 << 20


def attach(ddp, meeting, stage, options: Options, servers: ServerOptions, levels: Levels, *, scaler, warmup: int) -> Handle:
    """The handle of a wrapper, which has its hook. Collective over its group; the arguments are those of laconic.attach."""
    opened = Opened(Parameters(*sorted_out(ddp)), ddp.process_group, meeting, stage, functools.partial(_refuse_hook, ddp), options, servers, warmup, levels)
    settings = Settings(opened)
    steps = Steps(opened, settings, scaler)
    handle = Handle(opened, settings, steps, Hook(ddp, opened, settings, steps))
    weakref.finalize(ddp, opened.worker.end).atexit = False
    copied = ddp._comm_hooks  # noqa: SLF001
    copied[:] = [(hook, state) for hook, state in copied if not isinstance(state, PickledHandle)]
    ddp.register_comm_hook(handle.hook, laconic_hook)
    return handle


class Layouts:
    """The layouts of DDP's buckets."""

    def __init__(self, opened: Opened, settings: Settings):
        self._index, self._worker, self._settings, self._nodes = opened.parameters.index, opened.worker, settings, opened.nodes
        self.known: dict[tuple, Layout] = {}  #: by the ids of their parameters
        self._seen: list[Layout] = []  # in this iteration
        self.last_seen: list[Layout] = []  #: in the iteration before

    def of(self, bucket, buffer) -> Layout:
        parameters = bucket.parameters()
        key = tuple(map(id, parameters))
        layout = self.known.get(key)
        if layout is None or layout.elements != buffer.numel():
            if layout is not None:
                self._worker.release(layout)
            try:
                indices = [self._index[k] for k in key]
            except KeyError:
                raise errors.error("state_model", "DDP has a parameter that did not exist at attach",
                                   "attach after the last change to the model") from None
            offsets = itertools.accumulate((p.numel() for p in parameters[:-1]), initial=0)
            layout = self.known[key] = self._new(indices, offsets, buffer.numel())
        self._seen.append(layout)
        return layout

    def _new(self, indices, offsets, elements: int) -> Layout:
        # Sums that are the engine's anyway, and nothing else in this bucket.
        return Layout(indices, offsets, elements, direct=self._nodes is None and self._settings.engine_sums and self._settings.raw.issuperset(indices))

    def take_settings(self) -> None:
        made = {id(layout): self._new(layout.parameters, layout.offsets, layout.elements) for layout in self.known.values()}
        self.known = {key: made[id(layout)] for key, layout in self.known.items()}
        self.last_seen = [made[id(layout)] for layout in self.last_seen]

    def end_iteration(self) -> None:
        """Forgets what DDP brought neither in this iteration nor in the last one: it rebuilds its buckets after the first, and the
        exchange of a bucket holds several times its size."""
        kept = {id(layout) for layouts in (self._seen, self.last_seen) for layout in layouts}
        if len(kept) < len(self.known):
            for key, layout in list(self.known.items()):
                if id(layout) not in kept:
                    self._worker.release(self.known.pop(key))
        self.last_seen, self._seen = self._seen, []


class GroupSums:
    """Sums by the user's own group, as under plain DDP. The worker only counts them and receives their failures."""

    def __init__(self, group, world: int, worker: Worker, stage):
        self.group, self._world, self._worker, self._stage = group, world, worker, stage

    def sum(self, layout, buffer, at_end: EndOfBackward | None, observed: bool):
        """A future of the bucket's mean and what is to be done with its value."""
        self._count(buffer.numel(), 4, buffer)
        issued = time.perf_counter() if observed else None
        return self._all_reduce(buffer, at_end), functools.partial(self._summed, layout, self._worker.step, issued=issued)

    def sum_foreign(self, buffer):
        """As `sum`, of what no codec takes: sparse gradients, float64, complex (which DDP brings as pairs of real numbers)."""
        if self._worker.broken is not None:  # nothing goes out any more
            failed = torch.futures.Future()
            failed.set_result(self._worker.broken)
            return failed, result
        elements = (buffer._values() if buffer.is_sparse else buffer).numel()  # noqa: SLF001
        self._count(elements, buffer.element_size(), buffer)
        return self._all_reduce(buffer), functools.partial(self._summed, _NO_LAYOUT, self._worker.step)

    def submit(self, layout, pieces, **_):
        """As Worker.submit."""
        ticket = self._stage.fetch(layout, pieces)
        buffer = ticket.host
        self._count(buffer.numel(), 4, buffer)
        future, step = torch.futures.Future(), self._worker.step

        def summed(done):
            failure = None
            try:
                self._summed(layout, step, done)
            except RuntimeError as error:
                failure = self._worker.broken or engine_failed(error)
            self._stage.deliver(ticket, future, failure)

        lend(summed)
        self._all_reduce(buffer).then(summed)
        return future

    def _count(self, elements: int, dense: int, buffer) -> None:
        self._worker.counters.summed_elsewhere(elements, dense * elements, elements * buffer.element_size())

    def _all_reduce(self, buffer, at_end: EndOfBackward | None = None):
        """The group itself, not torch.distributed's function: between two layers the caches are cold, and every line of Python is felt."""
        buffer.mul_(1.0 / self._world)
        try:
            work = self.group.allreduce([buffer])
        except RuntimeError as error:  # out of the hook, DDP would not survive it
            failed = torch.futures.Future()
            failed.set_result(error)
            return failed
        if at_end is None:
            return work.get_future()
        delivery = Sum(work, buffer)
        at_end.add(delivery)
        return delivery.future

    def _summed(self, layout, step, future, *, issued=None):
        try:
            value = future.value()
            if isinstance(value, RuntimeError):
                raise value
        except RuntimeError as error:
            broken = self._worker.exchanges.sum_failed(error, layout, step)
            raise RuntimeError(str(broken)) from error
        if issued is not None:
            self._worker.session.summed(issued, time.perf_counter())
        return value[0] if isinstance(value, (list, tuple)) else value


class Hook:
    """The hook of a wrapper: passes each bucket to the worker or to the user's group."""

    def __init__(self, ddp, opened: Opened, settings: Settings, steps: Steps):
        self._opened, self._worker, self._settings, self._steps = opened, opened.worker, settings, steps
        self._foreign = {id(p) for _, p, _ in opened.parameters.foreign}
        self.layouts = Layouts(opened, settings)
        self.sums = GroupSums(opened.group, opened.world, opened.worker, opened.stage)
        self._wrapper = weakref.ref(ddp)
        self.apart = False  #: short buckets do not travel together: a run of an earlier release goes on
        self._tells = False  # a bucket of this iteration that PyTorch would sum carries the ranks' reports
        self.at_end = EndOfBackward()
        self._asks_behind_us = False  # for what comes next in this iteration: see EndOfBackward.queue
        self._resumed: Resumed | None = None

    def on_bucket(self, bucket):
        """Called by DDP in backward(): queues the bucket and returns a future of its mean."""
        self._worker.commands.check_open()
        if not self._steps.under_way:
            self._begin_iteration()
        if self._foreign and id(bucket.parameters()[0]) in self._foreign:  # DDP mixes no element types
            future, then = self.sums.sum_foreign(bucket.buffer())
        else:
            future, then = self._exchange(bucket)
        if then is not result:
            lend(then)
        future = future.then(then)
        if bucket.is_last():
            self._end_iteration()
            self.at_end.queue()
            self._steps.end()
        return future

    def _exchange(self, bucket):
        """A future of the bucket's mean and what is to be done with its value."""
        worker, buffer, warmup = self._worker, bucket.buffer(), self._opened.warmup
        layout = self.layouts.of(bucket, buffer)
        # Not after a long one: DDP copies that one while the others are in flight.
        small = buffer.numel() * buffer.element_size() <= AT_END
        at_end = self.at_end if (small or bucket.is_last()) and self._asks_behind_us else None
        self._asks_behind_us = self._asks_behind_us and small
        plain = layout.direct or worker.step < warmup
        cut = self._resumed is not None and self._is_cut(plain)
        tells, self._tells = self._tells and layout.direct, False
        if plain and not cut and not tells and worker.broken is None:
            return self.sums.sum(layout, buffer, at_end, self._settings.observes)
        units = self._steps.units
        options = {"index": bucket.index(), "scale": units.scale, "rates": units.rates, "coalesce": not self.apart}
        if not cut:
            return worker.submit(layout, buffer, at_end=at_end, **options), result
        exchange = self.sums.submit if plain and self._opened.stage.cuts_sums and worker.broken is None else worker.submit
        return self._resumed.submit(exchange, layout, buffer, **{**options, "coalesce": self._resumed.joins,
                                                                 "whole": not self._resumed.uncut}), result

    def _is_cut(self, plain: bool) -> bool:
        """After a resume: does this iteration's bucket go out along the saved layout? All of the iteration's do, or none."""
        opened = self._opened
        return opened.stage.cuts_sums or not plain or not (self._settings.all_raw or self._worker.step < opened.warmup)

    def _begin_iteration(self) -> None:
        if self._steps.begin():
            self.take_settings()
        self._asks_behind_us = self._opened.stage.at_end and not getattr(self._wrapper(), "static_graph", True)
        step = self._worker.step
        self._tells = (self._settings.observes and step >= self._opened.warmup and reports.due(step - self._settings.since)
                       and all(layout.direct for layout in self.layouts.last_seen))

    def _end_iteration(self) -> None:
        self.layouts.end_iteration()
        self._worker.next_step()
        if self._resumed is not None:
            apart = self._resumed.end(self._worker, self.layouts.last_seen, self._settings.engine_sums)
            if apart is not None:
                self.apart, self._resumed = apart, None

    # ---- what the handle asks -------------------------------------------------------------------------------------------

    def take_settings(self) -> None:
        self.apart = False
        self.layouts.take_settings()
        if self._resumed is not None and not self._resumed.uncut:
            self._resumed.left = None if self._settings.engine_sums else Resumed.ITERATIONS

    def exchanges(self) -> list[tuple[int, ...]]:
        """The parameters of each exchange of a step that continues here."""
        resumed = self._resumed
        layouts = self.layouts.last_seen if resumed is None else resumed.layouts
        exchanges = [layout.parameters for layout in layouts]
        if self._opened.nodes is not None:  # of which each shard makes its own exchanges
            return exchanges
        if self._worker.step >= self._opened.warmup and (resumed is None or resumed.joins):  # else nothing is cut or joined
            exchanges = self._worker.exchanges.of(layouts, self.apart)
        return exchanges

    def resume(self, saved: list[list[int]], version: int) -> None:
        """With these exchanges, which in a state of version 1 are buckets that travelled apart where the engine adds, and else by the rule of
        today."""
        self.apart = False
        self._resumed = self._resume(saved, version == 1) if saved else None

    def _resume(self, saved: list[list[int]], first: bool) -> Resumed:
        opened, engine_sums = self._opened, self._settings.engine_sums
        warm, counts, layouts = self._worker.step < opened.warmup, opened.parameters.counts, []
        uncut = warm or opened.nodes is not None
        for indices in saved:
            offsets = [0, *itertools.accumulate(counts[i] for i in indices)]
            layouts.append(Layout(indices, offsets[:-1], offsets[-1]))
        return Resumed(layouts, counts, opened.stage.devices, bounded=not engine_sums and not warm, uncut=uncut,
                       joins=uncut or (first and not engine_sums))

    def __reduce__(self):
        return PickledHandle, (self._settings.spec,)


_NO_LAYOUT = Layout((), (), 0)


def moving_padding(handle: Handle, model) -> str:
    """A line where padding rows of embeddings would move, whose gradients are zero; empty: none would."""
    known = codecs()
    specs = {p["name"]: [p["codec"], p.get("down") or "none"] for p in handle.explain()["parameters"]}
    exchanged = {id(p): name for name, p in handle.parameters}
    moving = []
    for module in model.modules():
        if getattr(module, "padding_idx", None) is None or id(getattr(module, "weight", None)) not in exchanged:
            continue
        name = exchanged[id(module.weight)]
        for spec in specs[name]:
            if not known.get(re.split("[:+]", spec)[0], {}).get("zero_stays_zero", True):
                moving.append(f"{name} ({spec})")
    return f"zeros do not stay zero, so padding rows change: {names.shorten(moving)}; use rules to give them another spec" if moving else ""


def sorted_out(ddp) -> tuple[list, list]:
    """(name, parameter) of what a codec may take, and (name, parameter, what it is) of what none does."""
    sparse = {id(p) for m in ddp.module.modules() if isinstance(m, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and m.sparse
              for p in m.parameters(recurse=False)}
    named = [(name, p) for name, p in ddp.module.named_parameters() if name not in ddp.parameters_to_ignore]
    exchanged, ours, foreign = _exchanged(ddp, [p for _, p in named], bool(sparse)), [], []
    for name, p in zip(names.undecorated([name for name, _ in named]), (p for _, p in named)):
        if id(p) not in exchanged:
            continue
        if id(p) in sparse:
            foreign.append((name, p, "sparse gradients"))
        elif p.dtype not in DTYPES:
            foreign.append((name, p, str(p.dtype).removeprefix("torch.")))
        else:
            ours.append((name, p))
    return ours, foreign


def _exchanged(ddp, parameters: list, sparse: bool) -> set[int]:
    """Ids of those that the reducer has had since DDP was made, whatever requires_grad says now."""
    everything = {id(p) for p in parameters}
    awake = {id(p) for p in parameters if p.requires_grad}
    count = ddp._get_ddp_logging_data().get("num_parameter_tensors")  # noqa: SLF001
    if len(awake) == len(everything) == count:
        return awake
    if not sparse:  # of whose gradients torch makes no zeros
        return {id(p) for bucket in ddp.reducer._get_zeros_like_grad_buckets() for p in bucket.parameters()}  # noqa: SLF001
    for some in (awake, everything):
        if len(some) == count:
            return some
    raise errors.error("unsupported", "parameters of a model with sparse gradients were frozen or unfrozen after DDP was created: it is unknown which ones "
                       "DDP exchanges", "attach right after wrapping")


def other_hook(ddp) -> str | None:
    """The name of the communication hook that this model's reducer has. A copy's list of hooks is the original's; its reducer
    is new."""
    return ddp._get_ddp_logging_data().get("comm_hook") or None  # noqa: SLF001


def _refuse_hook(ddp) -> None:
    other = other_hook(ddp)
    if other == laconic_hook.__qualname__:
        raise errors.error("unsupported", "laconic is already attached to this model",
                           "use the existing handle, laconic.handle_of(model); its set() changes the spec")
    if other is not None:
        raise errors.error("unsupported", f"this model already has a communication hook ({other})",
                           "DDP accepts one hook only: wrap the model again and attach laconic first")
    if ddp._use_python_reducer:  # noqa: SLF001
        raise errors.error("unsupported", "torch._dynamo.config.optimize_ddp is 'python_reducer', which traces hooks",
                           "leave optimize_ddp at its default: torch.compile then works with laconic")


def laconic_hook(state, bucket):  # no annotations: DDP compares them, and a string never equals the class
    return state.on_bucket(bucket)
