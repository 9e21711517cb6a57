# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""From what the ranks recorded to the figures of the table."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field

from bench.lib import models
from bench.lib.labels import label_of, is_uncompressed
from bench.lib.quality import Quality

REFERENCE = "pytorch:ddp"
LAST_EVALUATIONS = 5


@dataclass
class Row:
    """One exchange. Times in seconds, bytes per step and worker."""

    spec: str
    label: str
    step: float
    slow: bool
    kernel_bytes: float | None
    own_bytes: float
    steps_to_target: int | None
    time_to_target: float | None
    time_is_product: bool
    final: float | None  # quality; like all that is learned, nothing if only times were measured
    final_by_seed: list[float]
    parts: dict[str, float]
    bound: float | None  # a step that sends the same number of bytes without a codec
    curve: list
    speedup: float = 0.0
    speedup_uncompressed: float = 0.0
    uncompressed: bool = field(default=False)


def mean(values) -> float:
    return statistics.fmean(values)


def over_ranks(series: list[list]) -> list[list[float]]:
    """Per step, each part's mean over the ranks: they wait for one another, so their sums agree and their parts do not."""
    return [[mean(part) for part in zip(*step)] for step in zip(*series)]


def median_step(steps: list[list[float]]) -> float:
    return statistics.median(map(sum, steps))


def final_of(curve: list) -> float:
    return mean([value for _, value in curve[-LAST_EVALUATIONS:]])


def best_of(finals: dict, higher_is_better: bool):
    """The key of the best final quality; of one that is a number, if any is."""
    learned = {key: value for key, value in finals.items() if math.isfinite(value)} or finals
    return (max if higher_is_better else min)(learned, key=learned.__getitem__)


def first_at(curve: list, quality: Quality, target: float) -> int | None:
    return next((step for step, value in curve if quality.reached(value, target)), None)


def split(blocks: list[list[dict]], steps: list[list[float]]) -> dict[str, float]:
    """Mean seconds of the parts of a step. PyTorch's own exchanges report only the sum."""
    compute, exchange, update = (mean(part) for part in zip(*steps))
    own = [rank["own"] for block in blocks for rank in block]
    if "encode_seconds" not in own[0]:
        return {"compute": compute + update, "exchange": exchange}
    parts = {name: mean([o[name + "_seconds"] for o in own]) for name in ("encode", "wire", "decode")}
    rest = max(exchange - sum(parts.values()), 0.0)
    return {"compute": compute + update, **parts, "hand-over": rest}


class Results:
    """Results of one network, one of plan["networks"]."""

    def __init__(self, raw: dict, plan: dict, network: str):
        self.raw, self.plan, self.network = raw, plan, network
        self.model = models.about(plan["model"])
        self.quality = self.model.quality
        self.emulated = raw["emulated"]
        self.ranks = raw["ranks"]
        self.environment = raw["environment"]
        self.rows = [self._row(spec) for spec in plan["specs"]]
        reference = next(row for row in self.rows if row.spec == REFERENCE)
        best = min((row for row in self.rows if row.uncompressed), key=lambda row: row.step)
        self.best_uncompressed = best.label
        for row in self.rows:
            row.speedup = reference.step / row.step
            row.speedup_uncompressed = best.step / row.step
        self.none_ratios = [self._pair_ratio(i) for i in range(len(self.ranks[0]["pairs"]))]

    @property
    def target(self) -> str:
        return self.quality.short(self.plan["target"])

    @property
    def choice(self) -> str:
        """How steps and target were chosen; nothing if this run has others, or other data."""
        own = (self.plan["steps"], self.plan["target"]) == (self.model.steps, self.model.target) and not self.plan["data"]
        return self.model.choice if own else ""

    @property
    def learned(self) -> bool:
        return not self.plan["times_only"]

    @property
    def phases(self) -> dict:
        return self.ranks[0]["phases"]

    @property
    def none_ratio(self) -> float | None:
        return statistics.median(self.none_ratios) if self.none_ratios else None

    def _learned(self, spec: str) -> list[dict]:
        return [run for run in self.ranks[0]["learn"] if run["spec"] == spec]

    def _pair_ratio(self, pair: int) -> float:
        plain, none = (median_step(over_ranks([rank["pairs"][pair][which] for rank in self.ranks]))
                       for which in (0, 1))
        return none / plain

    def _bound(self, spec: str) -> float | None:
        blocks = [[bound["times"] for bound in rank["bounds"] if (bound["network"], bound["spec"]) == (self.network, spec)]
                  for rank in self.ranks]
        steps = [step for block in zip(*blocks) for step in over_ranks(block)]
        return median_step(steps) if steps else None

    def _row(self, spec: str) -> Row:
        indices = [i for i, b in enumerate(self.ranks[0]["blocks"]) if (b["network"], b["spec"]) == (self.network, spec)]
        blocks = [[rank["blocks"][i] for rank in self.ranks] for i in indices]
        by_block = [over_ranks([rank["times"] for rank in block]) for block in blocks]
        steps = [step for block in by_block for step in block]
        own = [rank["own"] for block in blocks for rank in block]
        kernel = [rank["kernel_bytes"] for block in blocks for rank in block]
        runs = self._learned(spec)
        step, slow = median_step(steps), blocks[0][0]["slow"]
        curve = runs[0]["curve"] if runs else []
        steps_to_target = first_at(curve, self.quality, self.plan["target"])
        reached = [block[0]["reached"][1] for block in blocks if block[0]["reached"]]
        time_to_target = None
        if reached:
            time_to_target = statistics.median(reached)
        elif steps_to_target is not None:
            time_to_target = steps_to_target * step
        finals = [final_of(run["curve"]) for run in runs]
        return Row(
            spec=spec, label=label_of(spec), step=step, slow=slow, kernel_bytes=None if kernel[0] is None else mean(kernel),
            own_bytes=mean([o["wire_bytes"] for o in own]), steps_to_target=steps_to_target,
            time_to_target=time_to_target, time_is_product=not reached, final=mean(finals) if finals else None,
            final_by_seed=finals, parts=split(blocks, steps), bound=self._bound(spec),
            curve=curve, uncompressed=is_uncompressed(spec))


def by_network(raw: dict, plan: dict) -> list[Results]:
    return [Results(raw, plan, network) for network in plan["networks"]]
