# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Which exchange suits which optimizer?"""

from __future__ import annotations

import statistics

from convergence_page import marked
from learning_runs import (Runs, is_accuracy, judged, mean_worse_by, name, quality_text, seeds_text, spread_text, unique, unit,
    worse_text)

from prose import bullets, listed, table
from results import REFERENCE, final_of


class Optimizers:
    def __init__(self, runs: Runs, tuning: list[tuple]):
        self.runs, self.tuning = runs, tuning
        self.names = unique(cell.optimizer for cell in runs.cells)
        self.specs = [spec for spec in runs.specs if spec != REFERENCE]
        self.rates = {(cell.model, cell.optimizer): cell.rate for cell in runs.cells}

    def finals(self, model: str, optimizer: str, spec: str) -> list[float]:
        return self.runs.finals(model, spec, optimizer=optimizer)

    def judged(self, model: str, optimizer: str, spec: str) -> int:
        return judged(model, self.finals(model, optimizer, spec), self.finals(model, optimizer, REFERENCE))

    def against_fp32(self, model: str, optimizer: str, spec: str) -> str:
        """With its sign: of bits, more are worse."""
        amount = mean_worse_by(model, self.finals(model, optimizer, spec), self.finals(model, optimizer, REFERENCE))
        return worse_text(model, -amount if is_accuracy(model) else amount, "+")

    def cell(self, model: str, optimizer: str, spec: str) -> str:
        words = spread_text(model, self.finals(model, optimizer, spec))
        if words.startswith("failed"):
            return marked(words, 1)
        return marked(f"{words} ({self.against_fp32(model, optimizer, spec)})", self.judged(model, optimizer, spec))

    def final_table(self, model: str) -> str:
        rows = [[optimizer, f"{self.rates[model, optimizer]:g}", spread_text(model, self.finals(model, optimizer, REFERENCE)),
                 *(self.cell(model, optimizer, spec) for spec in self.specs)] for optimizer in self.names]
        return table([f"{model}, {'%' if is_accuracy(model) else 'bits'}", "rate", "fp32", *map(name, self.specs)], rows)

    def tried(self, model: str, optimizer: str) -> dict[float, float]:
        """Learning rates, and what fp32 learned of held-out samples."""
        return {cell.rate: final_of(run["curve"]) for cell, run in self.tuning
                if run and (cell.model, cell.optimizer) == (model, optimizer)}

    def rate_table(self) -> str:
        rows = []
        for model, optimizer in self.rates:
            tried = ", ".join(f"{rate:g}: {quality_text(model, value)}" for rate, value in self.tried(model, optimizer).items())
            rows.append([model, optimizer, tried, f"{self.rates[model, optimizer]:g}"])
        head = ["model", "optimizer", "learning rates tried: accuracy in %, or bits, of held-out samples", "taken"]
        return table(head, rows, left=3)

    def edges(self) -> str:
        found = []
        for (model, optimizer), rate in self.rates.items():
            tried = self.tried(model, optimizer)
            if tried and rate in (min(tried), max(tried)):
                found.append(f"{optimizer} with {model} (the {'smallest' if rate == min(tried) else 'largest'})")
        return f" At an edge of what was tried, so that another rate may be better: {listed(found)}." if found else ""

    def statement(self, optimizer: str) -> str:
        worse = {spec: [model for model in self.runs.models if self.judged(model, optimizer, spec) > 0] for spec in self.specs}
        fine = [spec for spec in self.specs if not worse[spec]]
        harmful = listed(f"{name(spec)} with {self.cost(optimizer, spec, models)}" for spec, models in worse.items() if models)
        tail = f" Worse: {harmful}." if len(fine) < len(self.specs) else " No spec here is worse beyond chance."
        if not fine:
            return f"{optimizer}: none of these specs.{tail}"
        best = max(fine, key=lambda spec: min(self.ratio(optimizer, spec, model) for model in self.runs.models))
        sent = listed(f"1/{self.ratio(optimizer, best, model):.0f} ({model})" for model in self.runs.models)
        return (f"{optimizer}: of the specs that are not worse beyond chance with any model {name(best)} sends the least, {sent} "
                f"of fp32's bytes; it ends at {self.cost(optimizer, best, self.runs.models)}.{tail}")

    def cost(self, optimizer: str, spec: str, models: list[str]) -> str:
        """Against fp32."""
        found = {model: self.against_fp32(model, optimizer, spec) for model in models}
        return ", ".join(f"{words}{'' if words == 'failed' else ' ' + unit(model)} ({model})" for model, words in found.items())

    def ratio(self, optimizer: str, spec: str, model: str) -> float:
        return statistics.fmean(run["ratio"] or 1.0 for run in self.runs.of(model, spec, optimizer=optimizer))

    def statements(self) -> str:
        if len(self.runs.seeds) < 2:
            return "With one seed no spec can be recommended."
        return bullets(map(self.statement, self.names))

    def text(self) -> str:
        tables = "\n\n".join(map(self.final_table, self.runs.models))
        return OPTIMIZERS.format(seeds=seeds_text(self.runs), tables=tables, rates=self.rate_table(), edges=self.edges(),
                                 statements=self.statements(), tuning=listed(unique(str(cell.seed) for cell, _ in self.tuning)))

    def charts(self) -> dict[str, str]:
        return {}


OPTIMIZERS = """## Optimizers

The demo's lengths and schedules. The learning rate was chosen once per model and optimizer, uncompressed, with seed {tuning},
by held-out training samples; all specs take it. {seeds}

{statements}

Final quality, mean and standard deviation, in brackets the difference to fp32 (accuracy: points, more is better; bits: fewer
are better):

{tables}

Learning rates:{edges}

{rates}
"""
