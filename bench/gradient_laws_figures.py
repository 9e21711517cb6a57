# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""What gradient_laws.py recorded: distances, fits, and how they are put together."""

from __future__ import annotations

import math
import re
import statistics

MODES = ("without", "with")  # error feedback
HOLDS = 0.05  # a law holds where the median distance is below
BAND = 0.2  # of the guard
#: As `laconic laws` names them: the page's name, the class of its colour
LAWS = {"exponential": ("exponential", "s5"), "gamma": ("gamma", "s7"), "pareto": ("generalised Pareto", "s10"),
        "normal": ("normal", "s3"), "laplace": ("Laplace", "s1")}
FITTED = ("exponential", "gamma", "pareto")  # those that sidco knows
ROWS = [(law, stages, mode) for law in ("exp", "gp", "p")
        for stages, mode in ((0, "fixed"), (0, "signed"), (0, "faithful"), (1, "fixed"), (2, "fixed"), (3, "fixed"))]
DEFAULT = ("p", 0, "fixed")  # of sidco
WANTED, SELECTED, DISTANCE = range(3)  # of a stage


def setting_of(spec: str) -> tuple:
    """law, stages, mode, guard: a canonical spec leaves defaults out."""
    given = dict(re.findall(r"(\w+)=([\w.-]+)", spec))
    return given.get("law", DEFAULT[0]), int(given.get("stages", DEFAULT[1])), given.get("mode", DEFAULT[2]), given.get("guard", "on")


class Figures:
    """Of several runs. A record counts where there was something to fit."""

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

    def has(self, feedback: bool, model: str | None = None) -> bool:
        return any(True for _ in self.records(feedback, model))

    def along(self, feedback: bool, model: str, value, middle=statistics.median) -> list[tuple[float, float]]:
        """(step, median over the compressed layers) of what `value(record)` gives; None does not count."""
        by_step = {}
        for _, _, record in self.records(feedback, model):
            got = value(record)
            if got is not None:
                by_step.setdefault(record["step"], []).append(got)
        return [(step, middle(values)) for step, values in sorted(by_step.items())]

    def values(self, feedback: bool, model: str | None, value) -> list:
        """What `value(record)` gives; None does not count."""
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


def stage_part(record: dict, row: tuple, stage: int) -> float | None:
    got = fit(record, row)
    return got["stages"][stage][SELECTED] / got["stages"][stage][WANTED] if got and len(got["stages"]) > stage else None


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


def kind_rows(figures: Figures) -> list[tuple[str, str, dict]]:
    """(model, kind, {(law, feedback): median distance}), small layers too."""
    found: dict = {}
    for feedback in (False, True):
        for model, layer, record in figures.records(feedback, compressed=False):
            cells = found.setdefault((model, layer["kind"]), {})
            for law in FITTED:
                if record["ks"][law] is not None:
                    cells.setdefault((law, feedback), []).append(record["ks"][law])
    return [(model, kind, {key: statistics.median(values) for key, values in cells.items()})
            for (model, kind), cells in sorted(found.items(), key=lambda item: (figures.models.index(item[0][0]), item[0][1]))]
