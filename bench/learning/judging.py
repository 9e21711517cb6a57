# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Whether trainings differ beyond chance, and how their quality is written."""

from __future__ import annotations

import math
import statistics

from bench.lib.models import MODELS
from bench.lib.results import REFERENCE

#: Two-sided 95 % of Student's t, by degrees of freedom.
T95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
TEST_SAMPLES = 360
GUESSING = (0.15, 7.0)  # accuracy with ten classes, with a margin; bits of one character out of 128


def verdict(differences, least: float = 0.0) -> int:
    """-1 or 1 where the mean of paired differences is beyond chance, else 0.

    `least`: the spread that a difference has at least, for figures that come in steps.
    """
    n = len(differences)
    if n < 2:
        return 0
    mean = statistics.fmean(differences)
    error = max(statistics.stdev(differences), least) / math.sqrt(n)
    return 0 if abs(mean) <= T95[n - 1] * error else int(math.copysign(1, mean))


def accuracy_verdict(accuracies, plain) -> int:
    """1: worse than `plain`. Accuracies come in steps of a test sample."""
    return verdict([y - x for x, y in zip(accuracies, plain)], 0.5 / TEST_SAMPLES)


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


# ---- cells ----


def name(spec: str) -> str:
    return "fp32" if spec == REFERENCE else f"`{spec}`"


def marked(text: str, sign: int) -> str:
    return f"**{text}**" if sign > 0 else f"{text}\\*" if sign < 0 else text


def quality_text(model: str, value: float) -> str:
    return f"{100 * value:.1f}" if is_accuracy(model) else f"{value:.3f}"


def mean_worse_by(model: str, values: list[float], plain: list[float]) -> float:
    """Points of accuracy, or bits."""
    mean = statistics.fmean(y - x for x, y in zip(values, plain))
    return 100 * mean if is_accuracy(model) else -mean


def worse_text(model: str, amount: float, sign: str = "") -> str:
    if not math.isfinite(amount):
        return "failed"
    digits = 1 if is_accuracy(model) else 3
    return f"{round(amount, digits) + 0.0:{sign}.{digits}f}"  # + 0.0: no -0.0


def spread_text(model: str, values: list[float]) -> str:
    """Mean and standard deviation."""
    bad = sum(failed(model, value) for value in values)
    if bad:
        return f"failed, {bad} of {len(values)}"
    mean = quality_text(model, statistics.fmean(values))
    return f"{mean} ± {quality_text(model, statistics.stdev(values))}" if len(values) > 1 else mean
