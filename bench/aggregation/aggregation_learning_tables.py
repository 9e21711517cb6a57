# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The tables of aggregation-learning.md, from what aggregation_learning.py trained. A question has its table once all of its runs are there."""

from __future__ import annotations

import statistics

from bench.learning.learning_tables import environment, unique
from bench.lib.results import final_of
from bench.lib.tables import table

ALLOWED = 1.0  # points that a run may end below float32


class Runs:
    """Runs of a question."""

    def __init__(self, found: list[tuple]):
        """found: (cell, what was trained)"""
        self.found, cells = found, [cell for cell, _ in found]
        self.models, self.names, self.worlds = (unique(getattr(cell, key) for cell in cells) for key in ("model", "name", "world"))

    def of(self, name: str, **fields) -> list[tuple]:
        return [(cell, run) for cell, run in self.found if cell.name == name and all(getattr(cell, key) == value for key, value in fields.items())]

    def finals(self, name: str, **fields) -> list[float]:
        """In %, by seed."""
        return [100 * final_of(run["curve"]) for _, run in self.of(name, **fields)]

    def accuracy(self, name: str, **fields) -> str:
        """In brackets the mean difference to float32, plus is better; in bold where it is worse by more than ALLOWED."""
        values = self.finals(name, **fields)
        text = f"{statistics.fmean(values):.1f}" + (f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else "")
        if name == "float32":
            return text
        gap = statistics.fmean(values) - statistics.fmean(self.finals("float32", **fields))
        text += f" ({round(gap, 1) + 0.0:+.1f})"
        return f"**{text}**" if gap < -ALLOWED else text


def faults(runs: Runs) -> dict:
    rows = []
    for name in runs.names:
        served = [(cell, run) for cell, run in runs.of(name) if cell.served]
        sums, contributions = sum(run["granules"] for _, run in served), sum(run["granules"] * cell.world for cell, run in served)
        shares = [100 * sum(run[key] for _, run in served) / whole if served else None
                  for key, whole in (("excluded", contributions), ("partial", sums), ("resent", contributions))]
        rows.append([name, *(runs.accuracy(name, model=model) for model in runs.models), *shares])
    return table(["exchange", *(f"{model}, %" for model in runs.models), *((head, "{:.1f} %") for head in ("left out", "partial", "sent again"))], rows)


def widths(runs: Runs) -> dict:
    rows = []
    for world in runs.worlds:
        for name in runs.names:
            lanes = [run["lane_bits"] for _, run in runs.of(name, world=world) if "lane_bits" in run]
            row = [world, name.replace("=", " "), *([int(name.partition("=")[2]) / 8, lanes[0] / 8] if lanes else [4, 4])]
            for model in runs.models:
                noted = [pair for _, run in runs.of(name, world=world, model=model) for pair in run["nmse"]]
                row += [statistics.fmean(own for own, _ in noted), world * statistics.fmean(inputs for _, inputs in noted)] if noted else [None, None]
                row.append(runs.accuracy(name, world=world, model=model))
            rows.append(row)
    words = (("NMSE", "{:.3f}"), ("of inputs × workers", "{:.3f}"), ("accuracy, %", ""))
    return table(["workers", "exchange", ("bytes up", "{:g}"), ("down", "{:g}"), *((f"{model}: {word}", form) for model in runs.models for word, form in words)],
                 rows)


def tables_of(found: list[tuple]) -> dict[str, dict]:
    """found: (cell, what was trained or None)"""
    made = {}
    for question, make in (("faults", faults), ("widths", widths)):
        mine = [(cell, run) for cell, run in found if cell.question == question]
        if all(run for _, run in mine):
            made[question] = make(Runs(mine))
    return {**made, "environment": environment([run for _, run in found if run])} if made else {}
