# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The tables of models.md, and its heat map, from what matrix.py found."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from bench.learning.judging import TEST_SAMPLES, verdict
from bench.lib import charts
from bench.lib.labels import label_of
from bench.lib.models import MODELS
from bench.lib.network import rate_text
from bench.lib.overview import lead
from bench.lib.pictures import of_chart
from bench.lib.results import REFERENCE, Results, final_of, first_at
from bench.lib.tables import of_pairs, table


@dataclass
class Learnt:
    """One model with one exchange, by seed. steps: to the target, None where it was not reached."""

    steps: list[int | None]
    final: list[float]

    @property
    def usual_steps(self) -> int | None:
        """The median; a run that does not get there counts as endless."""
        middle = statistics.median(math.inf if steps is None else steps for steps in self.steps)
        return None if math.isinf(middle) else middle


@dataclass
class Cell:
    """One model on one network. A row's time: steps to the target, as they were learnt, times the median step."""

    model: str
    network: str
    results: Results

    @property
    def time(self) -> dict[str, float | None]:
        return {row.spec: row.time_to_target for row in self.results.rows}

    @property
    def order(self) -> list[str]:
        """Exchanges that reach the target, the soonest first."""
        return sorted((spec for spec, time in self.time.items() if time is not None), key=self.time.get)


def learnt(found: dict) -> dict[tuple[str, str], Learnt]:
    made = {}
    for (model, spec), runs in found["learning"].items():
        about = MODELS[model]
        curves = [run["curve"] for run in runs]
        made[model, spec] = Learnt([first_at(curve, about.quality, about.target) for curve in curves], list(map(final_of, curves)))
    return made


def cells(found: dict) -> list[Cell]:
    known, made = learnt(found), []
    for (model, network), raw in found["times"].items():
        results = Results(raw, raw["plan"], network)
        for row in results.rows:
            steps = known[model, row.spec].usual_steps
            row.time_to_target = None if steps is None else steps * row.step
        made.append(Cell(model, network, results))
    return made


def code(spec: str) -> str:
    return label_of(spec) if spec.startswith("pytorch:") else f"`{spec}`"


# ---- over all ---------------------------------------------------------------------------------------------------------


def leaders(made: list[Cell]) -> dict:
    rows = []
    for cell in made:
        target, found = MODELS[cell.model], lead(cell.results)
        names = [row and code(row.spec) for row in (found.first, found.runner_up)]
        rows.append([f"`{cell.model}`, {target.quality.short(target.target)}", rate_text(cell.network), *names,
                     found.first.time_to_target if found.first else "not reached", found.over_reference, found.over_runner_up])
    return table(["model", "network", "first to its target", "runner-up", ("time", "{:.1f} s"), ("× sooner than fp32 DDP", "{:.1f}"),
                  ("× sooner than the runner-up", "{:.1f}")], rows)


def ranks(made: list[Cell]) -> dict:
    head = ["exchange", *(f"{cell.model} {rate_text(cell.network).removesuffix('bit/s')}" for cell in made)]
    return table(head, ([code(row.spec), *(cell.order.index(row.spec) + 1 if row.spec in cell.order else None for cell in made)]
                        for row in made[0].results.rows))


# ---- per model --------------------------------------------------------------------------------------------------------


def difference(model: str, final: list[float], plain: list[float]) -> str:
    """Against fp32, in bold where it is worse beyond chance."""
    quality = MODELS[model].quality
    differences = [a - b for a, b in zip(final, plain)]
    least = 1 / TEST_SAMPLES if quality.higher_is_better else 0.0
    worse = -1 if quality.higher_is_better else 1
    text = quality.difference(statistics.fmean(differences))
    return f"**{text}**" if verdict(differences, least) == worse else text


def quality_table(model: str, known: dict, specs: list[str]) -> dict:
    quality, target = MODELS[model].quality, MODELS[model].target
    plain = known[model, REFERENCE].final
    head = ["exchange", f"steps to {quality.short(target)}, by seed", f"final {quality.name}", "standard deviation", "against fp32"]
    rows = []
    for spec in specs:
        mine = known[model, spec]
        steps = ", ".join("–" if count is None else str(count) for count in mine.steps)
        deviation = quality.difference(statistics.stdev(mine.final)).lstrip("+")
        rows.append([code(spec), steps, quality.precise(statistics.fmean(mine.final)), deviation,
                     None if spec == REFERENCE else difference(model, mine.final, plain)])
    return table(head, rows)


def times_table(mine: list[Cell]) -> dict:
    head = ["exchange", ("bytes a step, kernel", "{:,.0f}"), ("× fewer than fp32", "{:.1f}")]
    head += [words for cell in mine for words in ((f"step at {rate_text(cell.network)}, ms", "{:d1}"), ("time to target", "{:.1f} s"))]
    by_spec = [{row.spec: row for row in cell.results.rows} for cell in mine]
    plain, rows = by_spec[0][REFERENCE].kernel_bytes, []
    for spec, first in by_spec[0].items():
        counted = [first.kernel_bytes, plain and first.kernel_bytes and plain / first.kernel_bytes]
        times = [(1e3 * rows_of[spec].step, "not reached" if cell.time[spec] is None else cell.time[spec]) for cell, rows_of in zip(mine, by_spec)]
        rows.append([code(spec), *counted, *(value for pair in times for value in pair)])
    return table(head, rows)


def bound_table(mine: list[Cell]) -> dict:
    head = ["exchange", *((words, "{:d1}") for cell in mine for words in (f"{rate_text(cell.network)}: no codec work, ms", "with it"))]
    by_spec = [{row.spec: row for row in cell.results.rows} for cell in mine]
    return table(head, ([code(spec), *(1e3 * value for rows_of in by_spec for value in (rows_of[spec].bound, rows_of[spec].step))]
                        for spec in by_spec[0] if all(rows_of[spec].bound is not None for rows_of in by_spec)))


# ---- all ----


def environment(found: dict) -> dict:
    """The environment of both halves, each item once."""
    lines: dict[str, set[str]] = {}
    for what, each in [("learning", run["environment"]) for runs in found["learning"].values() for run in runs] + [
            ("step times", raw["machine"] | raw["environment"]) for raw in found["times"].values()]:
        for key, value in each.items():
            lines.setdefault(f"{what}, {key}", set()).add(str(value))
    if any(raw["emulated"] for raw in found["times"].values()):
        lines["step times"] = {"**emulated: senders waited, no network was shaped or counted**"}
    return of_pairs((key, ", ".join(sorted(values))) for key, values in lines.items())


def tables_of(found: dict) -> dict[str, dict]:
    made, known = cells(found), learnt(found)
    parts = {"first to the target": leaders(made), "rankings": ranks(made)}
    for model in dict.fromkeys(cell.model for cell in made):
        mine = [cell for cell in made if cell.model == model]
        parts |= {f"{model}: quality": quality_table(model, known, [row.spec for row in mine[0].results.rows]), f"{model}: times": times_table(mine),
                  f"{model}: codec work": bound_table(mine)}
    return {**parts, "environment": environment(found)}


def picture(found: dict) -> str:
    """A heat map of times to the target."""
    made = cells(found)
    specs = [row.spec for row in made[0].results.rows]
    values = [[cell.time[spec] for cell in made] for spec in specs]
    columns = [f"{cell.model}\n{rate_text(cell.network)}" for cell in made]
    chart = charts.heat_map(list(map(label_of, specs)), columns, values, "Time to the target", lambda value: f"{value:.1f} s", "–")
    return of_chart(chart, "Time to the target; – not reached")
