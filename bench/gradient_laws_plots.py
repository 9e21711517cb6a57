# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The plots of docs/results/gradient-laws.md."""

from __future__ import annotations

import statistics

import charts
import pictures
from charts import Axis, Series
from gradient_laws_figures import DEFAULT, FITTED, Figures, HOLDS, LAWS, MODES, counted, kind_rows, stage_part
from pictures import Panel


def panels(title: str, legend: list[tuple[str, str]], cells: dict, models: list[str], y_text, low: float, high: float,
           log: bool = False, target: float | None = None) -> str:
    """A row per model, a column per mode; `cells[model, feedback]` are series over steps."""
    rows = [[Panel(f"{model}, {MODES[feedback]} error feedback", cells.get((model, feedback), []), low, high)
             for feedback in (False, True)] for model in models]
    return pictures.panels(title, legend, rows, y_text, log, target)


def highest(cells: dict) -> float:
    """Of an axis."""
    return 1.05 * max((y for series in cells.values() for s in series for _, y in s.points), default=1.0) or 1.0


def both_modes(figures: Figures, series_of) -> dict:
    return {(model, feedback): series_of(model, feedback) for model in figures.models for feedback in (False, True)}


def distance_plot(figures: Figures) -> str:
    cells = both_modes(figures, lambda model, feedback: [
        Series(label, style, figures.along(feedback, model, lambda r, law=law: r["ks"][law]))
        for law, (label, style) in LAWS.items()])
    return panels("Kolmogorov–Smirnov distance of the magnitudes, median of the compressed layers", list(LAWS.values()), cells,
                  figures.models, charts.number, 0.0, highest(cells), target=HOLDS)


def kinds_plot(figures: Figures) -> str:
    """A row per model and kind of layer, with feedback a full dot and without a ring."""
    rows = kind_rows(figures)
    names, width, step = 190, 860, 22
    height = 100 + len(rows) * step + 44
    x = Axis(0.0, 1.05 * max((value for _, _, cells in rows for value in cells.values()), default=1.0), names, width - 20)
    y = Axis(0.0, 1.0, height - 44, 80)
    body = [charts.text(20, 28, "Distance by kind of layer, median", "start", "title"),
            *charts.frame(x, y, "Kolmogorov–Smirnov distance")]
    place = names
    for law in FITTED:
        label, style = LAWS[law]
        body += [f'<circle cx="{place}" cy="52" r="4" class="dot {style}"/>', charts.text(place + 10, 56, label, "start", "row")]
        place += 36 + 7 * len(label)
    body.append(charts.text(place, 56, "full: with error feedback, ring: without", "start", "name"))
    for i, (model, kind, cells) in enumerate(rows):
        middle = 90 + i * step
        body.append(charts.text(names - 10, middle + 4, f"{model}, {kind}", "end", "row"))
        for (law, feedback), value in cells.items():
            shape = 'r="4" class="dot' if feedback else 'r="5" style="fill: none" class="ring'
            body.append(f'<circle cx="{x.at(value):.1f}" cy="{middle}" {shape} {LAWS[law][1]}"/>')
    return pictures.on_ground(body, height, "Distance by kind of layer", width)


STAGE_STYLES = ("s5", "s7", "s10")


def stages_plot(figures: Figures) -> str:
    row = ("p", 3, "fixed")
    cells = both_modes(figures, lambda model, feedback: [
        Series(f"stage {i + 1}", style, figures.along(feedback, model, lambda r, i=i: stage_part(r, row, i)))
        for i, style in enumerate(STAGE_STYLES)])
    return panels("Selected over wanted by stage, law=p,stages=3, before the guard; median of the compressed layers",
                  [(f"after stage {i + 1}", style) for i, style in enumerate(STAGE_STYLES)], cells, figures.models,
                  charts.number, 0.1, 10.0, log=True, target=1.0)


def compressibility_plot(figures: Figures) -> str:
    cells = both_modes(figures, lambda model, feedback: [
        Series("p", "s5", figures.along(feedback, model, lambda r: r["compressibility"]))])
    return panels("Exponent of compressibility, median of the compressed layers", [("p", "s5")], cells, figures.models,
                  charts.number, 0.0, max(1.0, highest(cells)), target=0.5)


def guard_plot(figures: Figures) -> str:
    def series(label: str, style: str, key: str, model: str, feedback: bool) -> Series:
        return Series(label, style, figures.along(feedback, model, lambda r: counted(r, DEFAULT, key), statistics.fmean))

    kinds = [("thresholds tried by the guard", "s10", "corrections"), ("passes over memory in all", "s5", "memory_passes")]
    cells = both_modes(figures, lambda model, feedback: [series(*kind, model, feedback) for kind in kinds])
    return panels("The guard of the default setting: mean of the compressed layers", [kind[:2] for kind in kinds], cells,
                  figures.models, charts.number, 0.0, highest(cells))


PLOTS = {"distance": distance_plot, "kinds": kinds_plot, "stages": stages_plot, "compressibility": compressibility_plot,
         "guard": guard_plot}
