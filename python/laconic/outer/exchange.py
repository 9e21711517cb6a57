# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The mean of a fragment's change over all ranks: by the worker, by a plain all-reduce, or, with one rank, without either."""

from __future__ import annotations

import concurrent.futures
import functools
import json
import re
import weakref

import torch
import torch.distributed as dist

from ..core import errors
from ..core.errors import LaconicError
from ..ddp.opening import Opened, Parameters
from ..engines.aggregation import ServerOptions
from ..engines.c10d import broadcast
from ..engines.group import Meeting
from ..exchange.csession import ALONE, Layout, Options
from ..exchange.rules import chosen
from .state import check_session, of_one_rank

#: what the way down of 3LC takes unless the call says otherwise, at any s: what it holds back is held back for all ranks
GENTLE = "3lc:s=1.0"


def way_down(spec: str, strategy: str, down: str | None) -> str | None:
    """The spec of the means that owners send."""
    if down is None and strategy in ("auto", "two_shot") and re.split("[:+]", spec)[0] == "3lc":
        return GENTLE
    return down


def _sum(engine, values: torch.Tensor) -> None:
    """On the host, over the engine's group."""
    sent = values.numel() * values.element_size() * 2 * (engine.world - 1) // engine.world
    engine.wait(engine._begun_beside(sent, dist.all_reduce, values.view(-1)))  # noqa: SLF001


class Failed(Exception):  # noqa: N818
    """A round has failed on all ranks. `undelivered`: indices of the parameters whose mean has not come; `unkept`: those of them whose change
    is in no residual. `over`: the engine has failed, and ranks may not agree on what was delivered."""

    def __init__(self, error: LaconicError, undelivered, unkept, *, over: bool):
        super().__init__(str(error))
        self.error, self.undelivered, self.unkept, self.over = error, list(undelivered), list(unkept), over


def _cut(worker, layout: Layout):
    """(begin, end, layout) of each exchange of a round: of parameters that lie one after the other."""
    ends = [*layout.offsets[1:], layout.elements]
    for parameters in worker.exchanges.of([layout], True):
        begin, end = layout.offsets[parameters[0]], ends[parameters[-1]]
        yield begin, end, Layout(parameters, [layout.offsets[p] - begin for p in parameters], end - begin)


class Alone:
    """One rank: the mean is its own change."""

    rank, world = 0, 1

    def begin(self, change: torch.Tensor, step: int):
        """The mean is the change."""
        return lambda: None

    def agree(self, settings: dict) -> None:
        """With itself."""

    def broadcast(self, tensor: torch.Tensor, source: int = 0) -> None:
        """Has these values."""

    def average(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        return tensors

    def gather_texts(self, text: str) -> list[str]:
        return [text]

    def state(self) -> None:
        """Has none."""

    def prepare(self, state):
        of_one_rank(state)
        return lambda: None

    def stats(self) -> dict:
        return {"steps": 0, "dense_bytes": 0, "wire_bytes": 0, "ratio": 1.0}

    def explain(self) -> dict:
        return {"strategy": "none", "reason": ALONE}

    def describe(self) -> str:
        return ALONE

    def close(self) -> None:
        """Holds nothing."""


class Together:
    """Several ranks. Collective: all of them raise LaconicError, or none does."""

    def __init__(self, group, meeting: Meeting, stage, options: Options, fragment):
        self.opened = Opened(Parameters(list(zip(fragment.names, fragment.parameters)), []), group, meeting, stage, _refuse_servers, options,
                             ServerOptions(), 0)
        layout = Layout(range(len(fragment.parameters)), fragment.offsets, fragment.elements)
        self._worker, self._layout, self._group, self._stage = self.opened.worker, layout, group, stage
        self.rank, self.world = self.opened.rank, self.opened.world
        self.all_raw = self._worker.session.all_raw
        self._parts = list(_cut(self._worker, layout))
        weakref.finalize(self, self._worker.end).atexit = False

    @property
    def broken(self) -> LaconicError | None:
        return self._worker.broken

    # ---- a round ------------------------------------------------------------------------------------------------------------------------

    def begin(self, change: torch.Tensor, step: int):
        """Begins to replace the change by its mean over all ranks, which is the same bits on each. Gives a call that waits for it, and raises
        Failed, on every rank."""
        worker = self._worker
        worker.step = step
        if worker.broken is not None:
            return functools.partial(self._raise, self._failed(worker.broken))
        if self.all_raw and (self._stage.path == "in_place" or self._group_sums(change)):
            return self._sum_raw(change, step)
        futures = [worker.submit(layout, change[begin:end], index=index) for index, (begin, end, layout) in enumerate(self._parts)]
        worker.next_step()
        return functools.partial(self._wait, futures)

    def _wait(self, futures) -> None:
        values, worker = [future.wait() for future in futures], self._worker
        failures = [value for value in values if isinstance(value, LaconicError)]
        if failures:
            undelivered = [p for value, (_, _, layout) in zip(values, self._parts) if isinstance(value, LaconicError) for p in layout.parameters]
            held = {name.removeprefix("residual/") for name, _, _ in worker.session.entries()}
            raise Failed(failures[0], undelivered, [p for p in undelivered if worker.session.names[p] not in held], over=worker.broken is not None)

    @staticmethod
    def _raise(failed: Failed) -> None:
        raise failed

    def _failed(self, error: LaconicError) -> Failed:
        """Nothing was delivered."""
        everything = self._layout.parameters
        return Failed(error, everything, everything, over=self._worker.broken is not None)

    def _group_sums(self, change) -> bool:
        try:
            self._group._get_backend(change.device)  # noqa: SLF001
        except RuntimeError:
            return False
        return True

    def _sum_raw(self, change: torch.Tensor, step: int):
        """One all-reduce: in the lane's thread, where a rank that is gone is noticed, or on the device by the caller's group."""
        worker = self._worker
        worker.counters.summed_elsewhere(change.numel(), 4 * change.numel(), 4 * change.numel())
        worker.counters.step_ended()
        change.mul_(1.0 / self.world)
        if self._stage.path != "in_place":
            try:
                work = dist.all_reduce(change, group=self._group, async_op=True)
            except RuntimeError as error:
                return functools.partial(self._raise, self._failed(worker.exchanges.sum_failed(error, self._layout, step)))
            return functools.partial(self._summed, step, work.wait)
        box: concurrent.futures.Future = concurrent.futures.Future()

        def task() -> None:
            try:
                box.set_result(worker.exchanges.agreed(_sum, worker.engine, change))
            except BaseException as error:  # noqa: BLE001  raised by the call that waits
                box.set_exception(error)

        worker.commands.put(task)
        return functools.partial(self._summed, step, box.result)

    def _summed(self, step: int, wait) -> None:
        try:
            wait()
        except RuntimeError as error:
            raise self._failed(self._worker.exchanges.sum_failed(error, self._layout, step)) from error

    def average(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Means of these, uncompressed, as float32 on the host. Raises Failed, on every rank."""
        if self._worker.broken is not None:
            raise self._failed(self._worker.broken)
        flat = torch.cat([t.detach().to("cpu", torch.float32).reshape(-1) for t in tensors]).mul_(1.0 / self.world)
        try:
            self._agreed(_sum, self._worker.engine, flat)
        except RuntimeError as error:
            raise self._failed(self._worker.exchanges.sum_failed(error, self._layout, self._worker.step)) from error
        return [mean.view(t.shape) for t, mean in zip(tensors, flat.split([t.numel() for t in tensors]))]

    # ---- between two rounds ----------------------------------------------------------------------------------------------------------------

    def _agreed(self, what, *arguments):
        return self._worker.commands.between_jobs(self._worker.exchanges.agreed, what, *arguments)

    def agree(self, settings: dict) -> None:
        """Raises on every rank the first setting that differs."""
        for key, value in settings.items():
            said = self.gather_texts(json.dumps(value))
            other = next((rank for rank, text in enumerate(said) if text != said[0]), None)
            if other is not None:
                raise errors.error("ranks_disagree", f"{key} is {said[0]} on rank 0 and {said[other]} on rank {other}",
                                   "give every rank the same call and LACONIC_* variables")

    def gather_texts(self, text: str) -> list[str]:
        return self._worker.gather_texts(text)

    def broadcast(self, tensor: torch.Tensor, source: int = 0) -> None:
        """The source's values, bit for bit."""
        host = tensor.detach().to("cpu").contiguous().view(-1)
        host = host.clone() if host.data_ptr() == tensor.data_ptr() else host
        if host.numel():
            self._agreed(broadcast, self._worker.engine, host.view(torch.uint8), source)
            with torch.no_grad():
                tensor.copy_(host.view(tensor.shape))

    def state(self) -> dict:
        return self._worker.state_dict()

    def prepare(self, state):
        return self._worker.prepare(check_session(state))

    # ---- what users ask ----------------------------------------------------------------------------------------------------------------------

    def stats(self) -> dict:
        return self._worker.stats()

    def explain(self) -> dict:
        return self.opened.explain()

    def describe(self) -> str:
        return self.opened.describe()

    def close(self) -> None:
        self._worker.close()


def _refuse_servers() -> None:
    if chosen(None, "LACONIC_AGGREGATOR"):
        raise errors.error("unsupported", "aggregation servers serve gradients, not outer steps", "leave LACONIC_AGGREGATOR unset")
