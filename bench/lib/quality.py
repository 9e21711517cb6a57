# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The metric of a model: whether more is better, and how it is written."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Quality:
    """A number of each evaluation; on charts the better ones are above."""

    name: str
    higher_is_better: bool
    worst: float  # where its axis begins
    text: Callable[[float], str]
    precise: Callable[[float], str]
    difference: Callable[[float], str]
    short: Callable[[float], str]  # of a round value: for targets and axes

    def reached(self, value: float, target: float) -> bool:
        return value >= target if self.higher_is_better else value <= target

    def top(self, values) -> float:
        """The end of the axis of these values."""
        return 1.0 if self.higher_is_better else math.floor(2 * min(values)) / 2

    def best(self, values) -> float:
        return max(values) if self.higher_is_better else min(values)


ACCURACY = Quality("accuracy", True, 0.5, lambda v: f"{100 * v:.1f} %", lambda v: f"{100 * v:.2f} %",
                   lambda v: f"{100 * v:+.2f} points", lambda v: f"{100 * v:g} %")
BITS = Quality("bits a character", False, 5.0, lambda v: f"{v:.3f}", lambda v: f"{v:.4f}", lambda v: f"{v:+.4f}",
               lambda v: f"{v:g} bits")
