# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The tables of learning.md, from what learning.py trained. A question has its tables once all of its runs are there."""

from __future__ import annotations

import math
import statistics
from collections import Counter

from bench.learning.judging import is_accuracy, judged, marked, mean_worse_by, name, quality_text, spread_text, worse_text
from bench.lib.results import LAST_EVALUATIONS, REFERENCE, final_of
from bench.lib.tables import table

WITHIN = 0.3  # points


def unique(values) -> list:
    return list(dict.fromkeys(values))


class Runs:
    """Runs of a question, all there."""

    def __init__(self, found: list[tuple]):
        """found: (cell, what was trained)"""
        self.cells = [cell for cell, _ in found]
        self.seeds, self.models, self.specs = (unique(getattr(cell, key) for cell in self.cells) for key in ("seed", "model", "spec"))
        self._runs = {(c.model, c.spec, c.warmup, c.optimizer, c.seed): run for c, run in found}

    def of(self, model: str, spec: str, warmup: int = 0, optimizer: str = "") -> list[dict]:
        """Values by seed."""
        return [self._runs[model, spec, warmup, optimizer, seed] for seed in self.seeds]

    def finals(self, model: str, spec: str, warmup: int = 0, optimizer: str = "") -> list[float]:
        return [final_of(run["curve"]) for run in self.of(model, spec, warmup, optimizer)]

    def others(self) -> list[str]:
        return [spec for spec in self.specs if spec != REFERENCE]


# ---- a long run ----


def smoothed(curve: list) -> list[tuple[int, float]]:
    """The mean of an evaluation and the four before it; step 0 is none of them."""
    trained = [point for point in curve if point[0]]
    return [(trained[i][0], statistics.fmean(value for _, value in trained[i - LAST_EVALUATIONS + 1 : i + 1]))
            for i in range(LAST_EVALUATIONS - 1, len(trained))]


def mean_curve(runs: list[dict]) -> list[tuple[int, float]]:
    return [(points[0][0], statistics.fmean(value for _, value in points)) for points in zip(*(run["curve"] for run in runs))]


def difference(runs: list[dict], plain: list[dict]) -> list[tuple[int, float]]:
    """Differences of the smoothed mean accuracies, in points."""
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


def points_of(runs: Runs, model: str, spec: str) -> list[float] | str:
    """Against fp32: the mean, and each seed's."""
    points = [100 * (x - y) for x, y in zip(runs.finals(model, spec), runs.finals(model, REFERENCE))]
    return [statistics.fmean(points), *points] if all(map(math.isfinite, points)) else "failed"


def long(runs: Runs, short: Runs) -> dict:
    form = f"{{:+.2f}} ({', '.join(['{:+.2f}'] * len(runs.seeds))})"
    rows = []
    for model in runs.models:
        plain = runs.finals(model, REFERENCE)
        rows.append([model, "fp32", spread_text(model, plain), "", "", ""])
        for spec in runs.others():
            finals = runs.finals(model, spec)
            rows.append([model, name(spec), marked(spread_text(model, finals), judged(model, finals, plain)), points_of(runs, model, spec),
                         points_of(short, model, spec), within_from(difference(runs.of(model, spec), runs.of(model, REFERENCE)))])
    return table(["model", "exchange", "final, %", ("points against fp32 (by seed)", form), ("the same of the short runs", form),
                  "within 0.3 points from step"], rows)


# ---- warm-up ----


def after(runs: Runs, model: str, spec: str, warmup: int, step: int) -> list[float]:
    """Per seed, the mean quality of the evaluations after a step."""
    return [statistics.fmean(value for at, value in run["curve"] if at > step) for run in runs.of(model, spec, warmup)]


def arrow(model: str, values: list[float], without: list[float]) -> str:
    return {1: " ↓", 0: "", -1: " ↑"}[judged(model, values, without)]


def warmup_cell(runs: Runs, model: str, spec: str, k: int) -> str:
    values, without, plain = (runs.finals(model, *case) for case in ((spec, k), (spec, 0), (REFERENCE, 0)))
    return marked(spread_text(model, values), judged(model, values, plain)) + arrow(model, values, without)


def gap_cell(runs: Runs, model: str, spec: str, k: int) -> str:
    values, without, plain = (after(runs, model, *case, k) for case in ((spec, k), (spec, 0), (REFERENCE, 0)))
    gaps = (worse_text(model, mean_worse_by(model, side, plain)) for side in (values, without))
    return "{} ({})".format(*gaps) + arrow(model, values, without)


def warmups(runs: Runs) -> dict[str, dict]:
    lengths = unique(cell.warmup for cell in runs.cells)
    finals = [["fp32", None, *(spread_text(model, runs.finals(model, REFERENCE)) for model in runs.models)]]
    finals += [[name(spec), k, *(warmup_cell(runs, model, spec, k) for model in runs.models)] for spec in runs.others() for k in lengths]
    gaps = [[name(spec), k, *(gap_cell(runs, model, spec, k) for model in runs.models)] for spec in runs.others() for k in lengths if k]
    head = ["exchange", "warm-up", *runs.models]
    return {"warm-up": table(head, finals), "gaps after a warm-up": table(head, gaps)}


# ---- optimizers ----


def optimizer_cell(runs: Runs, model: str, optimizer: str, spec: str) -> str:
    values, plain = (runs.finals(model, each, optimizer=optimizer) for each in (spec, REFERENCE))
    words = spread_text(model, values)
    if words.startswith("failed"):
        return marked(words, 1)
    amount = mean_worse_by(model, values, plain)
    return marked(f"{words} ({worse_text(model, -amount if is_accuracy(model) else amount, '+')})", judged(model, values, plain))


def optimizers(runs: Runs, tuning: list[tuple]) -> dict[str, dict]:
    names, rates = unique(cell.optimizer for cell in runs.cells), {(cell.model, cell.optimizer): cell.rate for cell in runs.cells}
    found = {}
    for model in runs.models:
        rows = [[optimizer, rates[model, optimizer], spread_text(model, runs.finals(model, REFERENCE, optimizer=optimizer)),
                 *(optimizer_cell(runs, model, optimizer, spec) for spec in runs.others())] for optimizer in names]
        found[f"optimizers, {model}"] = table([f"{model}, {'%' if is_accuracy(model) else 'bits'}", ("rate", "{:g}"), "fp32", *map(name, runs.others())], rows)
    tried = [[model, optimizer, ", ".join(f"{cell.rate:g}: {quality_text(model, final_of(run['curve']))}" for cell, run in tuning
                                          if (cell.model, cell.optimizer) == (model, optimizer)), rate] for (model, optimizer), rate in rates.items()]
    head = ["model", "optimizer", "learning rates tried: accuracy in %, or bits, of held-out samples", ("taken", "{:g}")]
    return {**found, "learning rates": table(head, tried)}


# ---- all ----


def place_of(run: dict) -> str:
    return ", ".join(value if key == "CPU" else f"{key} {value}" for key, value in run["environment"].items() if key != "date")


def environment(runs: list[dict]) -> dict:
    counts = Counter(map(place_of, runs))
    dates = {place: sorted(run["environment"]["date"] for run in runs if place_of(run) == place) for place in counts}
    return table(["runs", "from", "to", "on"], ([n, dates[place][0], dates[place][-1], place] for place, n in counts.most_common()))


def tables_of(found: dict[str, list[tuple]]) -> dict[str, dict]:
    """found: by question, (cell, what was trained or None)."""
    def whole(cells) -> Runs | None:
        return None if any(run is None for _, run in cells) else Runs(cells)

    made = {}
    if (runs := whole(found["long"])) and (short := whole(found["seeds"])):
        made["a long run"] = long(runs, short)
    if runs := whole(found["warmup"]):
        made |= warmups(runs)
    if (runs := whole(found["optimizers"])) and whole(found["tuning"]):
        made |= optimizers(runs, found["tuning"])
    return {**made, "environment": environment([run for cells in found.values() for _, run in cells if run])} if made else {}
