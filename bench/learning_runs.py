# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""What was trained of a question of learning.py, and how it is judged and written."""

from __future__ import annotations

import math
import statistics

from convergence_page import accuracy_verdict, verdict

from charts import Series
from models import MODELS
from prose import listed
from results import LAST_EVALUATIONS, REFERENCE, final_of

WITHIN = 0.3  # points
GUESSING = (0.15, 7.0)  # accuracy with ten classes, with a margin; bits of one character out of 128
STYLES = ("s10", "s5", "s7", "s3", "s4")


def unique(values) -> list:
    return list(dict.fromkeys(values))


class Runs:
    """Of a question: those of the seeds whose runs are all there."""

    def __init__(self, found: list[tuple]):
        """found: (cell, what was trained or None)"""
        lacking = {cell.seed for cell, run in found if run is None}
        self.all_seeds = unique(cell.seed for cell, _ in found)
        self.seeds = [seed for seed in self.all_seeds if seed not in lacking]
        self.cells = [cell for cell, _ in found if cell.seed in self.seeds]
        self.models, self.specs = unique(cell.model for cell in self.cells), unique(cell.spec for cell in self.cells)
        self.records = [run for cell, run in found if cell.seed in self.seeds]
        self._runs = {(c.model, c.spec, c.warmup, c.optimizer, c.seed): run for c, run in zip(self.cells, self.records)}

    def of(self, model: str, spec: str, warmup: int = 0, optimizer: str = "") -> list[dict]:
        """By seed."""
        return [self._runs[model, spec, warmup, optimizer, seed] for seed in self.seeds]

    def finals(self, model: str, spec: str, warmup: int = 0, optimizer: str = "") -> list[float]:
        return [final_of(run["curve"]) for run in self.of(model, spec, warmup, optimizer)]


def mean_curve(runs: list[dict]) -> list[tuple[int, float]]:
    return [(points[0][0], statistics.fmean(value for _, value in points)) for points in zip(*(run["curve"] for run in runs))]


def smoothed(curve: list) -> list[tuple[int, float]]:
    """The mean of an evaluation and the four before it; step 0 is none of them."""
    trained = [point for point in curve if point[0]]
    return [(trained[i][0], statistics.fmean(value for _, value in trained[i - LAST_EVALUATIONS + 1 : i + 1]))
            for i in range(LAST_EVALUATIONS - 1, len(trained))]


def difference(runs: list[dict], plain: list[dict]) -> list[tuple[int, float]]:
    """Of the smoothed mean accuracies, in points."""
    return [(step, 100 * (x - y)) for (step, x), (_, y) in zip(smoothed(mean_curve(runs)), smoothed(mean_curve(plain)))]


def within_from(differences: list) -> int | None:
    """The step from which on none is more than WITHIN below 0."""
    since = None
    for step, points in differences:
        if not points >= -WITHIN - 1e-9:
            since = None
        elif since is None:
            since = step
    return since


def finite(points: list) -> list[tuple]:
    return [(x, y) for x, y in points if math.isfinite(y)]


def limits(series: list[Series]) -> tuple[float, float]:
    """Of an axis: 0 and all points."""
    values = [0.0, *(y for s in series for _, y in s.points)]
    return 1.05 * min(values), 1.05 * max(values)


# ---- judging ----


def is_accuracy(model: str) -> bool:
    return MODELS[model].quality.higher_is_better


def failed(model: str, value: float) -> bool:
    """No better than guessing."""
    return not value > GUESSING[0] if is_accuracy(model) else not value < GUESSING[1]


def judged(model: str, values: list[float], plain: list[float]) -> int:
    """1: worse than `plain` beyond chance; -1: better."""
    bad, bad_plain = (any(failed(model, value) for value in side) for side in (values, plain))
    if bad or bad_plain:
        return bad - bad_plain
    if is_accuracy(model):
        return accuracy_verdict(values, plain)
    return verdict([math.log(x / y) for x, y in zip(values, plain)])


def worse_by(model: str, value: float, plain: float) -> float:
    """Points of accuracy, or bits."""
    return 100 * (plain - value) if is_accuracy(model) else value - plain


def mean_worse_by(model: str, values: list[float], plain: list[float]) -> float:
    return statistics.fmean(worse_by(model, x, y) for x, y in zip(values, plain))


# ---- words ----


def name(spec: str) -> str:
    return "fp32" if spec == REFERENCE else f"`{spec}`"


def quality_text(model: str, value: float) -> str:
    return f"{100 * value:.1f}" if is_accuracy(model) else f"{value:.3f}"


def worse_text(model: str, amount: float, sign: str = "") -> str:
    if not math.isfinite(amount):
        return "failed"
    digits = 1 if is_accuracy(model) else 3
    return f"{round(amount, digits) + 0.0:{sign}.{digits}f}"  # + 0.0: no -0.0


def unit(model: str) -> str:
    return "points" if is_accuracy(model) else "bits"


def spread_text(model: str, values: list[float]) -> str:
    """Mean and standard deviation."""
    bad = sum(failed(model, value) for value in values)
    if bad:
        return f"failed, {bad} of {len(values)}"
    mean = quality_text(model, statistics.fmean(values))
    return f"{mean} ± {quality_text(model, statistics.stdev(values))}" if len(values) > 1 else mean


def points_text(values: list[float]) -> str:
    """The mean, in brackets each."""
    words = [f"{value:+.2f}" if math.isfinite(value) else "failed" for value in [statistics.fmean(values), *values]]
    return f"{words[0]} ({', '.join(words[1:])})" if len(values) > 1 else words[0]


def seeds_text(runs: Runs) -> str:
    n, whole = len(runs.seeds), len(runs.all_seeds)
    return f"{'Seed' if n == 1 else 'Seeds'} {listed(map(str, runs.seeds))}{f', of {whole} so far' * (n < whole)}."
