# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Does a long run close the gap?"""

from __future__ import annotations

import statistics

from convergence_page import NOBODY, TEST_SAMPLES, marked
from learning_runs import (Runs, STYLES, WITHIN, difference, finite, judged, limits, name, points_text, seeds_text, spread_text,
    within_from)
from report import MISSING

import pictures
from charts import Series
from models import MODELS
from pictures import Panel
from prose import bullets, listed, table
from results import REFERENCE


class Long:
    """Of models that are judged by accuracy."""

    def __init__(self, runs: Runs, short: Runs):
        self.runs, self.short = runs, short
        self.steps = runs.cells[0].steps
        self.cases = [(model, spec) for model in runs.models for spec in runs.specs if spec != REFERENCE]

    def points(self, runs: Runs, model: str, spec: str) -> list[float]:
        """Against fp32, of the seeds that are shown."""
        pairs = zip(runs.seeds, runs.finals(model, spec), runs.finals(model, REFERENCE))
        return [100 * (x - y) for seed, x, y in pairs if seed in self.runs.seeds]

    def points_cell(self, runs: Runs, model: str, spec: str) -> str:
        points = self.points(runs, model, spec)
        return points_text(points) if points else MISSING

    def within_from(self, model: str, spec: str) -> int | None:
        return within_from(difference(self.runs.of(model, spec), self.runs.of(model, REFERENCE)))

    def rows(self):
        for model in self.runs.models:
            plain = self.runs.finals(model, REFERENCE)
            yield [model, "fp32", spread_text(model, plain), "", "", "", ""]
            for spec in (spec for m, spec in self.cases if m == model):
                finals, since = self.runs.finals(model, spec), self.within_from(model, spec)
                yield [model, name(spec), marked(spread_text(model, finals), judged(model, finals, plain)),
                       self.points_cell(self.runs, model, spec), self.points_cell(self.short, model, spec),
                       MISSING if since is None else since, "no" if since is None else "yes"]

    def statements(self) -> list[str]:
        lines = []
        for model in self.runs.models:
            near = [spec for m, spec in self.cases if m == model and self.within_from(m, spec) is not None]
            far = [spec for m, spec in self.cases if m == model and spec not in near]
            parts = ["within 0.3 points of fp32 with " + listed(map(name, near))] * bool(near)
            parts += ["not within 0.3 points with " + listed(f"{name(spec)} ({self.chance(model, spec)})" for spec in far)] * bool(far)
            lines.append(f"{model} ends {', and '.join(parts)}.{self.before(model)}")
        return lines

    def chance(self, model: str, spec: str) -> str:
        beyond = judged(model, self.runs.finals(model, spec), self.runs.finals(model, REFERENCE))
        return "worse beyond chance" if beyond > 0 else "a difference that may be chance"

    def before(self, model: str) -> str:
        known = {spec: points for m, spec in self.cases if m == model and (points := self.points(self.short, m, spec))}
        near = [spec for spec, points in known.items() if statistics.fmean(points) >= -WITHIN]
        return f" After {MODELS[model].steps} steps it is with {listed(map(name, near), NOBODY)}." if known else ""

    def text(self) -> str:
        lengths = listed(f"{MODELS[model].steps} of {model}" for model in self.runs.models)
        return LONG.format(
            steps=self.steps, seeds=seeds_text(self.runs), lengths=lengths, sample=100 / TEST_SAMPLES, samples=TEST_SAMPLES,
            table=table(["model", "exchange", "final, %", "points against fp32 (by seed)", "the same of the short runs",
                         "within 0.3 from step", "within 0.3 points"], list(self.rows()), left=2),
            statements=bullets(self.statements()))

    def charts(self) -> dict[str, str]:
        styles = dict(zip((spec for spec in self.runs.specs if spec != REFERENCE), STYLES))
        row = []
        for model in self.runs.models:
            series = [Series(spec, style, finite(difference(self.runs.of(model, spec), self.runs.of(model, REFERENCE))))
                      for spec, style in styles.items()]
            low, high = limits(series)
            row.append(Panel(model, series, max(low, -5.0), max(high, 0.5)))
        title = "Points of accuracy against fp32"
        return {"long": pictures.panels(title, list(styles.items()), [row], signed_tick, target=-WITHIN)}


def signed_tick(value: float) -> str:
    return f"{value:+g}" if value else "0"


LONG = """## A long run

{steps} steps instead of the demo's ({lengths}), the cosine of the learning rate stretched over them. {seeds} One of the
{samples} test samples is {sample:.2f} points, so 0.3 points are one sample. *Within 0.3 points* means at most that far below
fp32, or above it: the mean accuracy of the seeds, smoothed over five evaluations, from the step named to the end.

{table}

{statements}

![Points of accuracy against fp32](learning-long.svg)

Smoothed in the same way; the broken line is 0.3 points below fp32, and what lies below -5 points is drawn there.
"""
