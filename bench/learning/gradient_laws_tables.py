# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The tables of gradient-laws.md, from what gradient_laws.py recorded."""

from __future__ import annotations

import itertools
import math
import re
import statistics

from bench.lib.tables import of_pairs, table

MODES = ("without", "with")  # error feedback
HOLDS = 0.05  # a law holds where the median distance is below
BAND = 0.2  # of the guard
#: as `laconic laws` names them: the page's name
LAWS = {"exponential": "exponential", "gamma": "gamma", "pareto": "generalised Pareto", "normal": "normal", "laplace": "Laplace"}
ROWS = [(law, stages, mode) for law in ("exp", "gp", "p")
        for stages, mode in ((0, "fixed"), (0, "signed"), (0, "faithful"), (1, "fixed"), (2, "fixed"), (3, "fixed"))]
DEFAULT = ("p", 0, "fixed")  # of sidco
WANTED, SELECTED, DISTANCE = range(3)  # of a stage


def setting_of(spec: str) -> tuple:
    """law, stages, mode, guard: a canonical spec leaves defaults out."""
    given = dict(re.findall(r"(\w+)=([\w.-]+)", spec))
    return given.get("law", DEFAULT[0]), int(given.get("stages", DEFAULT[1])), given.get("mode", DEFAULT[2]), given.get("guard", "on")


class Figures:
    """Means over several runs. A record counts where there was something to fit."""

    def __init__(self, found: list[dict]):
        self.runs = found
        self.models = list(dict.fromkeys(run["plan"]["model"] for run in found))
        self.about = found[0]["plan"]
        for run in found:
            for record in (r for layer in run["layers"] for r in layer["records"] if "fits" in r):
                record["settings"] = {setting_of(spec): fit for spec, fit in record["fits"].items()}

    def records(self, feedback: bool, model: str | None = None, compressed: bool = True):
        """(model, layer, record)"""
        for run in self.runs:
            if run["plan"]["feedback"] == feedback and model in (None, run["plan"]["model"]):
                for layer in run["layers"]:
                    if layer["compressed"] or not compressed:
                        for record in layer["records"]:
                            if "why" not in record:
                                yield run["plan"]["model"], layer, record

    def values(self, feedback: bool, model: str | None, value) -> list:
        """Mean of `value(record)`; None does not count."""
        return [got for _, _, record in self.records(feedback, model) if (got := value(record)) is not None]

    def distances(self, law: str, feedback: bool, model: str | None = None) -> list[float]:
        return self.values(feedback, model, lambda record: record["ks"][law])

    def weighted(self, feedback: bool, value) -> list[tuple[float, float]]:
        """(value, weight): every model weighs 1, each of its records and layers the same."""
        found = []
        for model in self.models:
            values = self.values(feedback, model, value)
            found += [(v, 1 / len(values)) for v in values]
        return found


def quantile(weighted: list[tuple[float, float]], part: float) -> float:
    ordered = sorted(weighted)
    whole, below = sum(weight for _, weight in ordered), 0.0
    for value, weight in ordered:
        below += weight
        if below >= part * whole * (1 - 1e-12):
            return value
    return float("nan")


def share(weighted: list[tuple[float, float]], test) -> float:
    return sum(weight for value, weight in weighted if test(value)) / sum(weight for _, weight in weighted)


def mean(weighted: list[tuple[float, float]]) -> float:
    return sum(value * weight for value, weight in weighted) / sum(weight for _, weight in weighted)


def fit(record: dict, row: tuple, guard: str = "on") -> dict | None:
    return record["settings"].get((*row, guard))


def part_of(record: dict, row: tuple, key: str, guard: str = "on") -> float | None:
    """`fitted` or `sent` over what was wanted; None where everything was sent."""
    got = fit(record, row, guard)
    return got[key] / got["wanted"] if got and got["stages"] else None


def counted(record: dict, row: tuple, key: str) -> float | None:
    """`corrections` or `memory_passes`."""
    got = fit(record, row)
    return float(got[key]) if got and got["stages"] else None


def stage_distance(record: dict, row: tuple, stage: int) -> float | None:
    got = fit(record, row)
    return got["stages"][stage][DISTANCE] if got and len(got["stages"]) > stage else None


def element_passes(figures: Figures, feedback: bool, row: tuple, guard: str) -> float:
    """How often an element is read: the mean over the models of the mean over their elements."""
    means = []
    for model in figures.models:
        read = elements = 0
        for _, layer, record in figures.records(feedback, model):
            got = fit(record, row, guard)
            if got is not None:
                count = math.prod(layer["shape"])
                read, elements = read + count * got["memory_passes"], elements + count
        if elements:
            means.append(read / elements)
    return statistics.fmean(means) if means else float("nan")


def time_over_copy(figures: Figures, feedback: bool, row: tuple, model: str | None = None) -> float:
    """Encoding all records over copying them; without a model the mean over the models."""
    ratios = []
    for each in figures.models if model is None else [model]:
        pairs = [(got["seconds"], record["copy_seconds"]) for _, _, record in figures.records(feedback, each)
                 if (got := fit(record, row)) is not None]
        if pairs:
            ratios.append(sum(encoding for encoding, _ in pairs) / sum(copying for _, copying in pairs))
    return statistics.fmean(ratios) if ratios else float("nan")


# ---- tables ----


def row_text(row: tuple) -> str:
    law, stages, mode = row
    return f"`law={law}`, " + (f"`stages={stages}`" if stages else f"`mode={mode}`")


def bold(value: float | None) -> str | None:
    """A distance, bold where the distribution fits."""
    return value if value is None else f"**{value:.3f}**" if value < HOLDS else f"{value:.3f}"


def median(values: list) -> float | None:
    return statistics.median(values) if values else None


def rows_of(figures: Figures, cells) -> list[list]:
    """A row for each model and mode; none where `cells` gives nothing."""
    found = (([model, MODES[feedback]], cells(model, feedback)) for model, feedback in itertools.product(figures.models, (False, True)))
    return [[*begin, *row] for begin, row in found if any(cell is not None for cell in row)]


def tails(figures: Figures) -> dict:
    head = [f"{LAWS[law]}, {where}" for law in ("exponential", "pareto") for where in ("all", "largest quarter", "stage 3")]
    return table(["model", "feedback", *head], rows_of(figures, lambda model, feedback: [
        bold(median(figures.values(feedback, model, lambda r, law=law, i=i: stage_distance(r, (law, 3, "fixed"), i)))) for law in ("exp", "p") for i in range(3)]))


def spread(values: list) -> list:
    """Median, and where eight tenths lie."""
    return [quantile(values, part) for part in (0.5, 0.1, 0.9)]


def compressibility(figures: Figures) -> dict:
    def cells(model, feedback):
        values = [(p, 1.0) for p in figures.values(feedback, model, lambda r: r["compressibility"])]
        return [spread(values), 100 * share(values, lambda p: p > 0.5)] if values else [None]

    return table(["model", "feedback", ("median (10 % – 90 %)", "{:.2f} ({:.2f} – {:.2f})"), ("above ½", "{:.0f} %")], rows_of(figures, cells))


def guard(figures: Figures) -> dict:
    def cells(model, feedback):
        fits = [got for _, _, r in figures.records(feedback, model) if (got := fit(r, DEFAULT)) and got["stages"]]
        tried = [got["corrections"] for got in fits]
        return [spread([(got["fitted"] / got["wanted"], 1.0) for got in fits]), 100 * sum(n > 0 for n in tried) / len(fits), statistics.fmean(tried),
                max(tried), 100 * sum(got["exact"] for got in fits) / len(fits)] if fits else [None]

    return table(["model", "feedback", ("fitted / wanted (10 % – 90 %)", "{:.2f} ({:.2f} – {:.2f})"), ("corrected", "{:.0f} %"),
                  ("thresholds tried, mean", "{:.2f}"), "most", ("sent exactly", "{:.0f} %")], rows_of(figures, cells))


def in_band(part: float) -> bool:
    return 1 - BAND <= part <= 1 + BAND


def settings(figures: Figures, feedback: bool) -> dict:
    rows = []
    for row in ROWS:
        fitted = figures.weighted(feedback, lambda r, row=row: part_of(r, row, "fitted"))
        if fitted:
            sent, unguarded = (figures.weighted(feedback, lambda r, row=row, guard=guard: part_of(r, row, "sent", guard)) for guard in ("on", "off"))
            tried = figures.weighted(feedback, lambda r, row=row: counted(r, row, "corrections"))
            rows.append([f"**{row_text(row)}**" if row == DEFAULT else row_text(row), spread(fitted), 100 * share(fitted, in_band), spread(unguarded),
                         element_passes(figures, feedback, row, "off"), spread(sent), mean(tried), element_passes(figures, feedback, row, "on"),
                         time_over_copy(figures, feedback, row)])
    form = "{:.2f} ({:.2f} – {:.2f})"
    return table(["setting", ("fitted", form), ("within 20 %", "{:.0f} %"), ("sent, `guard=off`", form), ("passes", "{:.2f}"), ("sent, `guard=on`", form),
                  ("thresholds tried", "{:.2f}"), ("passes", "{:.2f}"), ("time", "{:.2f}")], rows)


def tables_of(found: list[dict]) -> dict[str, dict]:
    figures = Figures(found)
    distances = table(["model", "feedback", *LAWS.values()],
                      rows_of(figures, lambda model, feedback: [bold(median(figures.distances(law, feedback, model))) for law in LAWS]))
    return {"distances": distances, "tails": tails(figures), "compressibility": compressibility(figures), "guard": guard(figures),
            **{f"settings, {MODES[feedback]} feedback": settings(figures, feedback) for feedback in (True, False)},
            "environment": of_pairs(figures.runs[0]["environment"].items())}
