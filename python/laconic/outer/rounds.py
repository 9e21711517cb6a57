# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Rounds of one or several fragments between the steps of training: when each begins and ends, and what its failure does."""

from __future__ import annotations

import dataclasses
import math
import time

import torch

from ..core import errors
from ..core._checks import U32, U64, whole
from ..core.errors import LaconicError
from . import rules
from .exchange import Alone, Failed, Together
from .fragment import Fragment
from .state import Counts


@dataclasses.dataclass(frozen=True)
class Settings:
    """The arguments of an OuterStep that its rounds depend on, the same on all ranks."""

    every: int
    outer: object
    fragments: object
    delay: int
    alpha: float
    warmup: int
    sync_parameters: bool
    average_buffers: bool
    on_non_finite: str

    def check(self) -> Settings:
        whole("every", self.every, 1, U32)
        whole("delay", self.delay, 0, U32)
        whole("warmup", self.warmup, 0, U64 >> 1)
        rules.checked(self.outer)
        if not isinstance(self.alpha, (int, float)) or not 0 <= self.alpha < 1:
            raise errors.error("invalid_argument", f"alpha is {self.alpha!r}", "a number from 0, below 1")
        if self.on_non_finite not in ("raise", "skip"):
            raise errors.error("invalid_argument", f"on_non_finite is {self.on_non_finite!r}", '"raise" or "skip"')
        if not isinstance(self.fragments, (list, tuple)):
            whole("fragments", self.fragments, 1, U32)
        if self.every % self.count:
            raise errors.error("invalid_argument", f"every is {self.every}, and {self.count} fragments do not divide it",
                               "one fragment is exchanged every every/fragments steps, in turn")
        if self.delay > self.every // self.count:
            raise errors.error("invalid_argument", f"delay is {self.delay}, and a round begins every {self.every // self.count} steps",
                               "a delay of at most every/fragments steps: a round ends before the next one begins")
        return self

    @property
    def count(self) -> int:
        return len(self.fragments) if isinstance(self.fragments, (list, tuple)) else self.fragments

    def by_name(self) -> dict:
        """For reports and the comparison between ranks."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {**values, "outer": rules.named(self.outer), "fragments": self.count}

    def begins(self, fragment: int, step: int) -> bool:
        """Whether a round of this fragment begins after this step, the first of which is 1."""
        return step <= self.warmup or (step + self.delay) % self.every == (fragment + 1) * (self.every // self.count) % self.every

    def ends(self, step: int) -> int:
        """The step that a round ends with which begins after this one."""
        return step if step <= self.warmup else step + self.delay


class Flight:
    """A change under way. `wait()`: until its mean is there; raises Failed."""

    def __init__(self, wait, taken: int, due: int):
        self.wait, self.taken, self.due = wait, taken, due


class Part:
    """A fragment, its exchange, and its round under way. `last`: the step after which its last round began."""

    def __init__(self, fragment: Fragment, exchange: Alone | Together):
        self.fragment, self.exchange = fragment, exchange
        self.last = 0
        self.flight: Flight | None = None

    def load(self, last: int, flight: tuple[int, int] | None) -> None:
        """Saved; the mean of the flight is there."""
        self.last, self.flight = last, None if flight is None else Flight(_landed, *flight)


class Rounds:
    """The rounds of all parts. Every rank makes the same calls after the same steps."""

    def __init__(self, settings: Settings, parts: list[Part], buffers: list[torch.Tensor]):
        self.settings, self.parts, self.counts = settings, parts, Counts()
        self._buffers = buffers if settings.average_buffers else []
        self.since = 0  #: number of steps when the exchanges began

    @property
    def at_round(self) -> bool:
        """Whether the parameters are the anchor, on all ranks."""
        return self.settings.alpha == 0 and all(part.last == self.counts.inner_steps and part.flight is None for part in self.parts)

    def after_step(self) -> None:
        """LaconicError on every rank: the first failure of a round."""
        self.counts.inner_steps += 1
        step, alpha = self.counts.inner_steps, self.settings.alpha
        begin, failures = time.perf_counter(), []
        for part in self.parts:
            if part.flight is not None and part.flight.due <= step:
                failures += self._end(part, alpha)
        for number, part in enumerate(self.parts):
            if self.settings.begins(number, step):
                self._begin(part, step)
                if part.flight is not None and part.flight.due == step:
                    failures += self._end(part, alpha)
        self.counts.exposed_seconds += time.perf_counter() - begin
        _raise_first(failures)

    def sync(self) -> None:
        """Ends all rounds, and makes one of each fragment that has changed since its last."""
        step, begin, failures = self.counts.inner_steps, time.perf_counter(), []
        for part in self.parts:
            if part.flight is not None:
                failures += self._end(part, 0.0)
        for part in self.parts:
            if part.last < step or self.settings.alpha > 0:
                self._begin(part, step)
                if part.flight is not None:
                    failures += self._end(part, 0.0)
        self.counts.exposed_seconds += time.perf_counter() - begin
        _raise_first(failures)

    def land(self) -> None:
        """Waits for the means that are under way; their rounds end when they are due. LaconicError: one has failed, and has ended."""
        failures = []
        for part in self.parts:
            if part.flight is not None:
                try:
                    part.flight.wait()
                    part.flight.wait = _landed
                except Failed as failed:
                    part.flight.wait = _again(failed)
                    failures += self._end(part, 0.0)
        _raise_first(failures)

    def finish(self) -> None:
        """Ends the rounds that are under way. What a failed one has not delivered is kept."""
        for part in self.parts:
            if part.flight is not None:
                self._end(part, self.settings.alpha)

    def _begin(self, part: Part, step: int) -> None:
        part.last = step
        if part.exchange.world == 1 and self.settings.outer == "average" and not part.fragment.kept:  # anchor - (anchor - parameter) would round
            self.counts.rounds += 1
            part.fragment.take_parameters()
            return
        part.fragment.take_change()
        part.flight = Flight(part.exchange.begin(part.fragment.change, step), step, self.settings.ends(step))

    def _end(self, part: Part, alpha: float) -> list[LaconicError]:
        """The failure, if there is one. Parameters follow the anchor in any case."""
        counts, fragment, flight = self.counts, part.fragment, part.flight
        begin, means, failed, part.flight = time.perf_counter(), [], None, None
        progressed = flight.taken < counts.inner_steps
        try:
            if self._buffers and part is self.parts[-1]:
                means = part.exchange.average(self._buffers)
            flight.wait()
            fragment.kept = {}
        except Failed as failure:
            counts.failed_rounds += 1
            failed, alpha = failure, 0.0
            fragment.fail(failed.undelivered, failed.unkept, over=failed.over)
        counts.exchange_seconds += time.perf_counter() - begin
        if failed is not None and failed.over:
            fragment.merge(0.0, progressed)
        elif fragment.finite():
            fragment.step()
            fragment.merge(alpha, progressed)
            with torch.no_grad():
                for buffer, mean in zip(self._buffers, means):
                    buffer.copy_(mean)
            counts.rounds += 1
        else:
            counts.dropped_rounds += 1
            fragment.restore()
            if self.settings.on_non_finite == "raise":
                return [errors.error("non_finite", f"step {counts.inner_steps}: some rank's parameters are not finite; the round was dropped and parameters "
                                     "returned to the anchor", 'lower the learning rate, or use on_non_finite="skip"')]
        return [] if failed is None else [_of_rounds(failed.error)]

    def stats(self) -> dict:
        """Of all exchanges together, and of the rounds."""
        counts, each = self.counts, [part.exchange.stats() for part in self.parts]
        stats = {key: sum(s[key] for s in each) if isinstance(value, (int, float)) and not isinstance(value, bool) else value
                 for key, value in each[0].items()}
        if len(each) > 1:
            stats["ratio"] = stats["dense_bytes"] / stats["wire_bytes"] if stats["wire_bytes"] else 1.0
            if "residual_norm" in stats:
                stats["residual_norm"] = math.sqrt(sum(s["residual_norm"] ** 2 for s in each))
        world = self.parts[0].exchange.world
        dense = 4 * sum(part.fragment.elements for part in self.parts) * 2 * (world - 1) // world * (counts.inner_steps - self.since)
        own = {key: value for key, value in dataclasses.asdict(counts).items() if key != "exchange_seconds"}
        return {**stats, **own, "seconds_per_round": counts.exchange_seconds / max(counts.rounds + counts.dropped_rounds, 1),
                "ratio_to_ddp": dense / stats["wire_bytes"] if stats["wire_bytes"] else 1.0}

    def explain(self) -> dict:
        each = [part.exchange.explain() for part in self.parts]
        explained = dict(each[0])
        for key in ("elements", "uncompressed_elements", "parameters"):
            if key in explained:
                explained[key] = sum((e[key] for e in each[1:]), explained[key])
        elements, world = sum(part.fragment.elements for part in self.parts), self.parts[0].exchange.world
        return {**explained, **self.settings.by_name(), "anchor_bytes": 8 * elements, "dense_bytes_of_a_round": 4 * elements * 2 * (world - 1) // world}


def _landed() -> None:
    """The mean is there."""


def _again(failed: Failed):
    def wait():
        raise failed

    return wait


def _raise_first(failures: list[LaconicError]) -> None:
    if failures:
        raise failures[0]


def _of_rounds(error: LaconicError) -> LaconicError:
    """In words of rounds where the exchange speaks of its own."""
    if "step: expected" not in error.message:
        return error
    return LaconicError(error.code, error.name, f"ranks are out of step, in a round they must have made the same number of optimizer steps: {error.message}",
                        "give every rank the same number of batches; with a GradScaler pass scaler=")


def cut(trained, fragments) -> list[list[int]]:
    """Indices of each fragment's parameters: runs of about equal size, or those of lists of modules."""
    counts = [p.numel() for p in trained.parameters]
    if isinstance(fragments, (list, tuple)):
        return _of_modules(trained, fragments)
    runs: list[list[int]] = [[] for _ in range(fragments)]
    at, total = 0.0, max(sum(counts), 1)
    for i, count in enumerate(counts):
        runs[min(fragments - 1, int((at + count / 2) * fragments / total))].append(i)
        at += count
    if not all(runs):
        raise errors.error("invalid_argument", f"the parameters do not make {fragments} fragments of about equal size", "fewer fragments, or lists of modules")
    return runs


def _of_modules(trained, fragments) -> list[list[int]]:
    index, runs, seen = {id(p): i for i, p in enumerate(trained.parameters)}, [], set()
    for modules in fragments:
        try:
            own = {index[id(p)] for module in modules for p in module.parameters() if id(p) in index}
        except (TypeError, AttributeError):
            raise errors.error("invalid_argument", f"a fragment is {modules!r}", "a list of modules of the model") from None
        if not own or own & seen:
            raise errors.error("invalid_argument", "a fragment has no parameter that is trained, or one of another fragment", "list each module once")
        seen |= own
        runs.append(sorted(own))
    missing = [trained.names[i] for i in range(len(trained.names)) if i not in seen]
    if missing:
        raise errors.error("invalid_argument", f"no fragment has {missing[0]}" + (f" and {len(missing) - 1} more" if len(missing) > 1 else ""),
                           "list the modules of all parameters")
    return runs
