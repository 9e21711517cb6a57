# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Does a warm-up close the gap?"""

from __future__ import annotations

import math
import statistics
from collections import Counter

from convergence_page import marked
from learning_runs import (Runs, STYLES, finite, judged, limits, mean_curve, mean_worse_by, name, seeds_text, spread_text, unique,
    unit, worse_by, worse_text)
from report import MISSING

import pictures
from charts import Series
from pictures import Panel
from prose import bullets, listed, table
from results import REFERENCE


class Warmups:
    EFFECTS = {"closed": "closed with", "smaller": "smaller with", "unchanged": "not changed beyond chance with",
               "larger": "larger with", "absent": "not beyond chance even without a warm-up with"}

    def __init__(self, runs: Runs):
        self.runs = runs
        self.steps = runs.cells[0].steps
        self.specs = [spec for spec in runs.specs if spec != REFERENCE]
        self.lengths = unique(cell.warmup for cell in runs.cells)
        self.cases = [(spec, k) for spec in self.specs for k in self.lengths if k]

    def after(self, model: str, spec: str, warmup: int, step: int) -> list[float]:
        """By seed: the mean quality of the evaluations after a step."""
        return [statistics.fmean(value for at, value in run["curve"] if at > step) for run in self.runs.of(model, spec, warmup)]

    def effect(self, model: str, values: list[float], without: list[float], plain: list[float]) -> str:
        against = judged(model, values, without)
        if against > 0:
            return "larger"
        if judged(model, without, plain) <= 0:
            return "absent"
        if against == 0:
            return "unchanged"
        return "closed" if judged(model, values, plain) <= 0 else "smaller"

    def effect_after(self, model: str, spec: str, k: int) -> str:
        return self.effect(model, *(self.after(model, *case, k) for case in ((spec, k), (spec, 0), (REFERENCE, 0))))

    def effect_at_the_end(self, model: str, spec: str, k: int) -> str:
        return self.effect(model, *(self.runs.finals(model, *case) for case in ((spec, k), (spec, 0), (REFERENCE, 0))))

    def arrow(self, model: str, values: list[float], without: list[float]) -> str:
        return {1: " ↓", 0: "", -1: " ↑"}[judged(model, values, without)]

    def final_cell(self, model: str, spec: str, k: int) -> str:
        values, without, plain = (self.runs.finals(model, *case) for case in ((spec, k), (spec, 0), (REFERENCE, 0)))
        return marked(spread_text(model, values), judged(model, values, plain)) + self.arrow(model, values, without)

    def gap_cell(self, model: str, spec: str, k: int) -> str:
        values, without, plain = (self.after(model, *case, k) for case in ((spec, k), (spec, 0), (REFERENCE, 0)))
        gaps = (worse_text(model, mean_worse_by(model, side, plain)) for side in (values, without))
        return "{} ({})".format(*gaps) + self.arrow(model, values, without)

    def final_table(self) -> str:
        plain = [spread_text(model, self.runs.finals(model, REFERENCE)) for model in self.runs.models]
        rows = [[name(REFERENCE), MISSING, *plain]]
        rows += [[name(spec), k, *(self.final_cell(model, spec, k) for model in self.runs.models)]
                 for spec in self.specs for k in self.lengths]
        return table(["exchange", "warm-up", *self.runs.models], rows)

    def gap_table(self) -> str:
        rows = [[name(spec), k, *(self.gap_cell(model, spec, k) for model in self.runs.models)] for spec, k in self.cases]
        return table(["exchange", "warm-up", *self.runs.models], rows)

    def counts(self, effect) -> str:
        found = Counter(effect(model, spec, k) for spec, k in self.cases for model in self.runs.models)
        return listed(f"{words.removesuffix(' with')} in {found[kind]}" for kind, words in self.EFFECTS.items() if found[kind])

    def models_of(self, effect, spec: str, k: int) -> str:
        found = {model: effect(model, spec, k) for model in self.runs.models}
        return listed(f"{words} {listed(m for m in found if found[m] == kind)}" for kind, words in self.EFFECTS.items()
                      if kind in found.values())

    def statements(self) -> list[str]:
        first = (f"Of the {len(self.cases) * len(self.runs.models)} combinations of model, exchange and warm-up, the gap that "
                 f"follows the warm-up is {self.counts(self.effect_after)}; at the end of the training it is "
                 f"{self.counts(self.effect_at_the_end)}.")
        return [first, *(self.largest(spec) for spec in self.specs), *(
            f"{name(spec)}, {k} steps of warm-up: after them the gap is {self.models_of(self.effect_after, spec, k)}; at the end "
            f"it is {self.models_of(self.effect_at_the_end, spec, k)}." for spec, k in self.cases)]

    def largest(self, spec: str) -> str:
        parts = []
        for model in self.runs.models:
            gaps = finite(self.gaps(model, spec, 0))
            step, most = max(gaps, key=lambda point: point[1], default=(0, math.nan))
            parts.append(f"step {step} with {model} ({worse_text(model, most)} {unit(model)})")
        return f"{name(spec)} without a warm-up: the gap is largest at {listed(parts)}."

    def gaps(self, model: str, spec: str, k: int) -> list[tuple[int, float]]:
        """By step, mean of the seeds."""
        pairs = zip(mean_curve(self.runs.of(model, spec, k)), mean_curve(self.runs.of(model, REFERENCE)))
        return [(step, worse_by(model, x, y)) for (step, x), (_, y) in pairs]

    def text(self) -> str:
        return WARMUP.format(lengths=listed(str(k) for k in self.lengths if k), steps=self.steps, seeds=seeds_text(self.runs),
                             finals=self.final_table(), gaps=self.gap_table(), statements=bullets(self.statements()))

    def charts(self) -> dict[str, str]:
        styles, rows = dict(zip(self.lengths, STYLES)), []
        for model in self.runs.models:
            found = [[Series(str(k), style, finite(self.gaps(model, spec, k))) for k, style in styles.items()]
                     for spec in self.specs]
            low, high = limits([s for series in found for s in series])
            rows.append([Panel(f"{model}, {unit(model)}: {spec}", series, low, high or 1.0)
                         for spec, series in zip(self.specs, found)])
        legend = [(f"{k} steps of warm-up" if k else "no warm-up", style) for k, style in styles.items()]
        return {"warmup": pictures.panels("Gap to fp32", legend, rows, lambda value: f"{value:g}", target=0.0, width=290)}


WARMUP = """## Warm-up

`warmup=K` of `attach` sends the first K of {steps} steps uncompressed; K is 0, {lengths}. {seeds} The gap is what fp32 is better
by at the same step. Compression can open one only after the warm-up, so that is where figures are taken. A warm-up closes the gap
where it is smaller than without one beyond chance, and what is left of it is not beyond chance.

{statements}

Final quality (accuracy in %, bits a character), mean and standard deviation. Arrows: better ↑ or worse ↓ than the same exchange
without a warm-up, beyond chance.

{finals}

Mean gap of the evaluations after the warm-up, and in brackets that of the same steps without one (points of accuracy, bits a
character):

{gaps}

![Gap to fp32](learning-warmup.svg)

Mean of the seeds; above the broken line fp32 is better.
"""
