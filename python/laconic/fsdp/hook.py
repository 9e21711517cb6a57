# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""FSDP2: the all-reduce hook of a model's parameter groups, and the end of a backward() in which it ran."""

from __future__ import annotations

import collections
import time
import weakref

import torch
import torch.distributed as dist

from ..core import errors
from ..core.errors import LaconicError
from ..ddp import reports
from ..ddp.opening import Opened
from ..ddp.steps import Settings, Steps
from ..exchange.csession import Layout
from ..exchange.worker import DTYPES
from .landing import Landing
from .layout import Unit, backward_running
from .replicas import Shards

OUTSIDE = "no backward() runs"
_NO_LAYOUT = Layout((), (), 0)


class End:
    """The callback at the end of a backward(). Only torch holds it: if it is freed without being called, that backward() failed halfway."""

    def __init__(self, end):
        self._end, self._last = end, False
        torch.autograd.Variable._execution_engine.queue_callback(self)  # noqa: SLF001

    def __call__(self) -> None:
        if self._last:
            self._end()
            return
        self._last = True  # after callbacks that were queued meanwhile, such as FSDP's own
        torch.autograd.Variable._execution_engine.queue_callback(self)  # noqa: SLF001


class Backward:
    """State of one backward(). `outside`: the user calls finalize_backward() after torch's backward() has ended."""

    def __init__(self, end):
        self.outside = backward_running() < 0
        self._end = None if self.outside else weakref.ref(End(end))
        self.exchanges = False  #: a group was exchanged, so it is a step
        self.units: list[int] = []  #: in the order of reduction
        self.waits: list = []  #: calls that wait for a mean and return the error, if any
        self.landings: list[Landing] = []
        self.zeroed: list = []  #: parameters whose gradient is zeros until the end of backward()
        self.hidden: list = []  #: (parameter, its post-accumulate-grad hooks), not called in this backward()
        self.failure: LaconicError | None = None

    @property
    def broken_off(self) -> bool:
        return backward_running() >= 0 if self.outside else self._end() is None

    def fail(self, error: LaconicError | None) -> None:
        """The first error is raised at the end of backward()."""
        self.failure = self.failure or error

    def restore(self) -> None:
        """Undoes what was changed on parameters whose shards are kept for the next micro-batch."""
        for p in self.zeroed:
            p.grad = None
        for p, hooks in self.hidden:
            p._post_accumulate_grad_hooks = hooks  # noqa: SLF001


class Sums:
    """The all-reduce by the replicas' own process group. The worker only counts it and records a failure."""

    def __init__(self, opened: Opened):
        self._group, self._world, self._worker = opened.group, opened.world, opened.worker

    def begin(self, layout, buffer: torch.Tensor, mean: bool, shards: int, observed: bool):
        """Starts it and returns the call that waits. Operations are those of FSDP's own all-reduce: float16, which could overflow, is partly
        divided before the sum. `shards`: the divisor already applied."""
        worker, step, issued = self._worker, self._worker.step, time.perf_counter()
        averages = mean and buffer.dtype in (torch.float32, torch.bfloat16)
        after = 1.0
        if mean and not averages:
            before = _before_sum(shards * self._world) / _before_sum(shards)
            after = self._world / before
            if before != 1:
                buffer.div_(before)
        worker.counters.summed_elsewhere(buffer.numel(), max(4, buffer.element_size()) * buffer.numel(), buffer.numel() * buffer.element_size())
        try:
            work = dist.all_reduce(buffer, op=dist.ReduceOp.AVG if averages else dist.ReduceOp.SUM, group=self._group, async_op=True)
        except RuntimeError as error:
            failed = worker.exchanges.sum_failed(error, layout, step)
            return lambda: failed

        def wait() -> LaconicError | None:
            try:
                work.wait()
            except RuntimeError as error:
                return worker.exchanges.sum_failed(error, layout, step)
            if after != 1:
                buffer.div_(after)
            if observed:
                worker.session.summed(issued, time.perf_counter())
            return None

        return wait


def _before_sum(factor: int) -> int:
    """FSDP's divisor before a sum of `factor` terms: a power of two near the square root."""
    divisor = 1
    while factor % divisor == 0 and factor / divisor > divisor:
        divisor *= 2
    return divisor


class Hook:
    """Submits the reduced shards of a model's parameter groups to the worker, or sums them in the replicas' own group.

    Waits for means at the end of backward(); in the hook if FSDP uses them at once. Errors are raised at the end of backward(), on all ranks.
    """

    def __init__(self, units: list[Unit], shards: Shards, reduce: str | None, reset, opened: Opened, settings: Settings, steps: Steps):
        """`reset()`: resets FSDP after a failure."""
        self.units, self.shards, self._reduce, self._reset_fsdp = units, shards, reduce, reset
        self._opened, self._worker, self._settings, self._steps = opened, opened.worker, settings, steps
        self._sums = Sums(opened)
        self._backward: Backward | None = None
        self._kept: dict[int, torch.Tensor] = {}  # unit number -> sum of earlier micro-batches
        self._direct = True  # the replicas' group summed every exchange of the last step
        self._tells = False  # the next exchange that the group could sum goes through the worker, which adds the ranks' reports
        self.overlapped, self.inline = 0, collections.Counter()

    # ---- in backward ------------------------------------------------------------------------------------------------------------

    def reduce(self, unit: Unit, buffer: torch.Tensor) -> None:
        """Called by FSDP with a group's gradients after the reduce-scatter; replaces them with the mean over the replicas."""
        self._worker.commands.check_open()
        backward = self._under_way()
        if not unit.sums_now:
            self._keep(unit, buffer, backward)
            return
        kept = self._kept.pop(unit.number, None)
        if kept is not None:
            buffer += kept
        if not backward.exchanges:
            backward.exchanges = True
            self._begin_step()
        backward.units.append(unit.number)
        if self._opened.world > 1:
            self._exchange(unit, buffer, backward)

    def _under_way(self) -> Backward:
        if self._backward is not None and self._backward.broken_off:
            self._abandon()
        if self._backward is None:
            self._backward = Backward(self.end)
        return self._backward

    def _abandon(self) -> None:
        """Ends an earlier backward() that failed halfway: its exchanges are completed, its kept shards are dropped."""
        backward, self._backward = self._backward, None
        backward.restore()
        self._kept.clear()
        if backward.exchanges:
            self._end_step(backward)

    def _keep(self, unit: Unit, buffer: torch.Tensor, backward: Backward) -> None:
        """As native HSDP: keeps the shard for the next micro-batch; gradients stay unchanged, and hooks on them are not called."""
        kept = self._kept.get(unit.number)
        if kept is None:
            self._kept[unit.number] = buffer.clone()
        else:
            kept += buffer
        buffer.zero_()
        for p in (parameter.sharded_param for parameter in unit.present()):
            if p.grad is None:
                backward.zeroed.append(p)
            if hooks := getattr(p, "_post_accumulate_grad_hooks", None):
                backward.hidden.append((p, hooks))
                p._post_accumulate_grad_hooks = None  # noqa: SLF001

    def _begin_step(self) -> None:
        if self._steps.begin():
            self.take_settings()
        step = self._worker.step
        self._tells = self._settings.observes and step >= self._opened.warmup and reports.due(step - self._settings.since) and self._direct
        self._direct = True

    def _exchange(self, unit: Unit, buffer: torch.Tensor, backward: Backward) -> None:
        why = OUTSIDE if backward.outside else unit.inline(buffer)
        layout, failure = _NO_LAYOUT, None
        if buffer.dtype in DTYPES:
            try:
                key, layout = unit.layout(buffer.numel(), self._is_direct)
                if key not in unit.checked:
                    backward.landings.append(Landing(unit, key, layout, buffer))
            except LaconicError as error:
                failure, layout = error, unit.any_layout()
                backward.fail(error)
            if layout is None or not layout.parameters:  # this shard is empty on every replica
                return
        wait = self._begin(unit, layout, buffer, failure, inline=bool(why))
        if not why:
            self.overlapped += 1
            backward.waits.append(wait)
            return
        self.inline[why] += 1
        error = wait()
        if error is not None:  # the residuals have what was not sent; it must not be used as a mean
            buffer.zero_()
        backward.fail(error)

    def _begin(self, unit: Unit, layout, buffer: torch.Tensor, failure: LaconicError | None, inline: bool):
        """Starts the exchange and returns the call that waits for the mean."""
        worker, settings = self._worker, self._settings
        mean = not unit.divides if self._reduce is None else self._reduce == "mean"
        plain = layout.direct or worker.step < self._opened.warmup or buffer.dtype not in DTYPES
        tells, self._tells = self._tells and plain, False
        self._direct = self._direct and plain
        if worker.broken is not None:
            return lambda: worker.broken
        if failure is not None:
            buffer = torch.zeros(layout.elements, dtype=buffer.dtype, device=buffer.device)
        if plain and not tells:
            return self._sums.begin(layout, buffer, mean, unit.shards, settings.observes)
        if not mean:
            buffer.mul_(self._opened.world)
        units = self._steps.units
        future = worker.submit(layout, buffer, index=unit.number, scale=units.scale, rates=units.rates, coalesce=not inline, failure=failure)
        if inline:
            worker.drain()

        def wait() -> LaconicError | None:
            value = future.wait()
            return value if isinstance(value, LaconicError) else None

        return wait

    def _is_direct(self, indices) -> bool:
        return self._settings.engine_sums and self._settings.raw.issuperset(indices)

    # ---- the end of backward ----------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Runs after FSDP's own callback. Raises the error of any rank of this replica, or of any replica of this shard."""
        backward, self._backward = self._backward, None
        if backward is None:  # abandoned meanwhile
            return
        backward.restore()
        if not backward.exchanges:
            return
        self._end_step(backward)
        failure = backward.failure
        if backward.landings and self._opened.world > 1:
            failure = self._landed(backward, failure)
        failure = self.shards.agree(failure)
        if failure is not None:
            self._reset()
            raise failure

    def end_outside(self) -> None:
        """After the user's finalize_backward()."""
        if self._backward is not None and self._backward.outside:
            self.end()

    def _end_step(self, backward: Backward) -> None:
        try:
            self._worker.next_step()
            for wait in backward.waits:
                backward.fail(wait())
            if backward.failure is not None:
                backward.failure = self._with_order(backward)
        finally:
            self._steps.end()

    def _landed(self, backward: Backward, failure: LaconicError | None) -> LaconicError | None:
        """In the first step of a layout: checks on every rank that gradients are where the layout has them."""
        if self._worker.broken is not None:
            return failure
        wrong = next((name for landing in backward.landings for name in [landing.wrong()] if name), "") if failure is None else ""
        try:
            reported = self._worker.gather_texts(wrong)
        except LaconicError as error:
            return failure or error
        rank = next((r for r, name in enumerate(reported) if name), None)
        if rank is not None and failure is None:
            place = dist.get_process_group_ranks(self._opened.group)[rank]
            return errors.error("unsupported", f"rank {place}: the gradient of {reported[rank]} is not where FSDP of torch {torch.__version__} was taken "
                                "to put it: nothing of this step may be used", "train without laconic, and please report it")
        for landing in backward.landings if failure is None else ():
            landing.passed()
        return failure

    def _with_order(self, backward: Backward) -> LaconicError:
        """Replaces the error of mismatched bundles by one that names the modules, if replicas ran them in different orders."""
        failure = backward.failure
        if self._worker.broken is not None or failure.name not in ("ranks_disagree", "exchange_order", "frame_count", "peer_failed"):
            return failure
        try:
            reported = self._worker.gather_texts(",".join(map(str, backward.units)))
        except LaconicError:
            return failure
        orders = [[int(number) for number in text.rpartition(",")[0].split(",") if number] if len(text) >= 499 else
                  [int(number) for number in text.split(",") if number] for text in reported]
        ranks = dist.get_process_group_ranks(self._opened.group)
        for rank, order in enumerate(orders):
            at = next((i for i, (a, b) in enumerate(zip(orders[0], order)) if a != b), None)
            if at is not None:
                a, b = (self.units[some[at]].module for some in (orders[0], order))
                return errors.error("ranks_disagree", f"replicas ran modules in another order: rank {ranks[0]} reduced {a} where rank {ranks[rank]} "
                                    f"reduced {b}", "run the same modules in the same order on every replica")
        return failure

    def _reset(self) -> None:
        """Makes FSDP ready for the next forward."""
        self._kept.clear()
        for unit in self.units:
            unit.drop_gradients()
        self._reset_fsdp()

    # ---- for the handle ---------------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        return self._worker.commands.closed

    def take_settings(self) -> None:
        for unit in self.units:
            unit.layouts.clear()

