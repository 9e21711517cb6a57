# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Which parameters suffer?"""

from __future__ import annotations

import math
import statistics
from collections import Counter

from learning_runs import Runs, finite, name
from report import MISSING

import charts
import pictures
from charts import Series
from pictures import Panel
from prose import bullets, listed, table

#: all that layers.kinds() tells apart and that is none of the others
HIDDEN = "hidden weights"
KIND_STYLES = {"embedding": "s10", "norm": "s3", "bias": "s4", "head": "s5", HIDDEN: "s7"}


class Norms:
    """Residual over gradient: about how many steps' worth of gradient waits to be sent."""

    def __init__(self, runs: Runs):
        self.runs = runs

    def parameters(self, model: str, spec: str) -> dict[str, list]:
        return self.runs.of(model, spec)[0]["norms"]

    def kind_of(self, model: str, parameter: str) -> str:
        kind = self.runs.of(model, self.runs.specs[0])[0]["kinds"][parameter]
        return kind if kind in KIND_STYLES else HIDDEN

    def kind_word(self, model: str, parameter: str) -> str:
        return self.kind_of(model, parameter).removesuffix("s")

    def along(self, model: str, spec: str, parameter: str) -> list[tuple[int, float]]:
        """Without the steps at which there is no ratio; empty for what travels uncompressed."""
        found = [(step, residual / gradient) for step, residual, gradient in self.parameters(model, spec)[parameter]
                 if residual is not None and gradient]
        return finite(found)

    def medians(self, model: str, spec: str) -> dict[str, float]:
        """Of compressed parameters."""
        curves = {parameter: self.along(model, spec, parameter) for parameter in self.parameters(model, spec)}
        return {parameter: statistics.median(ratio for _, ratio in curve) for parameter, curve in curves.items() if curve}

    def worst(self, model: str, spec: str) -> list[tuple[str, float]]:
        return sorted(self.medians(model, spec).items(), key=lambda item: -item[1])

    def uncompressed(self, model: str, spec: str) -> list[str]:
        return [parameter for parameter, records in self.parameters(model, spec).items()
                if all(residual is None for _, residual, _ in records)]

    def of_kind(self, model: str, kind: str) -> list[str]:
        return [parameter for parameter in self.parameters(model, self.runs.specs[0]) if self.kind_of(model, parameter) == kind]

    def kind_median(self, model: str, spec: str, kind: str) -> float | None:
        found = [ratio for parameter, ratio in self.medians(model, spec).items() if self.kind_of(model, parameter) == kind]
        return statistics.median(found) if found else None

    def kind_cell(self, model: str, spec: str, kind: str) -> str:
        members, ratio = self.of_kind(model, kind), self.kind_median(model, spec, kind)
        plain = sum(parameter in members for parameter in self.uncompressed(model, spec))
        if not members:
            return MISSING
        if plain == len(members):
            return "uncompressed"
        return ("no figure" if ratio is None else ratio_text(ratio)) + f" ({plain} of {len(members)} uncompressed)" * bool(plain)

    def kind_table(self) -> str:
        rows = [[model, name(spec), *(self.kind_cell(model, spec, kind) for kind in KIND_STYLES)]
                for model in self.runs.models for spec in self.runs.specs]
        return table(["model", "exchange", *KIND_STYLES], rows, left=2)

    def worst_table(self) -> str:
        rows = []
        for model in self.runs.models:
            for spec in self.runs.specs:
                cells = [f"`{parameter}` ({self.kind_word(model, parameter)}) {ratio_text(ratio)}"
                         for parameter, ratio in self.worst(model, spec)[:3]]
                rows.append([model, name(spec), *cells, *[MISSING] * (3 - len(cells))])
        return table(["model", "exchange", "worst", "second", "third"], rows, left=5)

    def statements(self) -> list[str]:
        worst = [(model, self.worst(model, spec)) for model in self.runs.models for spec in self.runs.specs]
        kinds = Counter(self.kind_word(model, found[0][0]) for model, found in worst if found)
        words = listed(f"{'an' if kind[0] == 'e' else 'a'} {kind} in {n}" for kind, n in kinds.most_common())
        return [f"In {len(worst)} trainings the worst parameter is {words}.", *map(self.statement, self.runs.models)]

    def statement(self, model: str) -> str:
        specs: dict[str, list] = {}
        for spec in self.runs.specs:
            for parameter, _ in self.worst(model, spec)[:1]:
                specs.setdefault(parameter, []).append(name(spec))
        worst = "; ".join(f"`{parameter}` is worst with {listed(with_these)}" for parameter, with_these in specs.items())
        kinds = (self.kind_statement(model, kind) for kind in KIND_STYLES if self.of_kind(model, kind))
        return f"{model}: {worst or 'nothing is compressed'}. By kind: {'; '.join(kinds)}."

    def kind_statement(self, model: str, kind: str) -> str:
        """What `kind` holds back."""
        known = {spec: self.kind_median(model, spec, kind) for spec in self.runs.specs}
        if all(ratio is None for ratio in known.values()):
            return f"{kind} uncompressed"
        return f"{kind} {', '.join(f'{ratio_text(ratio)} ({name(spec)})' for spec, ratio in known.items() if ratio is not None)}"

    def series(self, model: str, spec: str) -> list[Series]:
        """By kind, the median of its parameters at each step."""
        found = []
        for kind, style in KIND_STYLES.items():
            by_step: dict[int, list] = {}
            for parameter in self.of_kind(model, kind):
                for step, ratio in self.along(model, spec, parameter):
                    by_step.setdefault(step, []).append(ratio)
            found.append(Series(kind, style, [(step, statistics.median(ratios)) for step, ratios in sorted(by_step.items())]))
        return found

    def text(self) -> str:
        pictures = "\n\n".join(f"![{model}: residual over gradient](learning-norms-{model}.svg)" for model in self.runs.models)
        return NORMS.format(seeds=listed(map(str, self.runs.seeds)), kinds=self.kind_table(), worst=self.worst_table(),
                            statements=bullets(self.statements()), pictures=pictures)

    def charts(self) -> dict[str, str]:
        return {f"norms-{model}": self.chart(model) for model in self.runs.models}

    def chart(self, model: str) -> str:
        found = {spec: [Series(s.label, s.style, [p for p in s.points if p[1] > 0]) for s in self.series(model, spec)]
                 for spec in self.runs.specs}
        values = [ratio for series in found.values() for s in series for _, ratio in s.points] or [1.0]
        low, high = 10 ** math.floor(math.log10(min(values))), 1.2 * max(values)
        shown = [(kind, style) for kind, style in KIND_STYLES.items()
                 if any(s.points for series in found.values() for s in series if s.label == kind)]
        row = [Panel(f"{model}: {spec}", series, low, high) for spec, series in found.items()]
        return pictures.panels(f"{model}: residual over gradient", shown, [row], charts.number, log=True, width=290)


def ratio_text(ratio: float) -> str:
    return f"{ratio:.1f}" if ratio < 100 else f"{ratio:,.0f}"


NORMS = """## Which parameters suffer

Before a step, on rank 0: the norm of the residual that error feedback keeps for a parameter over the norm of the parameter's
gradient, which tells about how many steps' worth of gradient wait to be sent. Seed {seeds}; figures are medians over the
training, of a kind of parameter the median of its parameters. Parameters of at most 4096 elements travel uncompressed and have
no residual.

{statements}

{kinds}

{worst}

{pictures}

By kind of parameter, the median of its parameters; a kind without a line travels uncompressed.
"""
