# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""What learning.py trained, as Markdown with charts: every statement in it is computed from the figures."""

from __future__ import annotations

import math
import re
import statistics
import sys
import textwrap
from collections import Counter
from pathlib import Path

from convergence_page import T95, TEST_SAMPLES, accuracy_verdict, listed, marked, verdict
from programs import ROOT
from report import MISSING, table

sys.path.append(str(ROOT / "examples" / "demo"))

import charts  # noqa: E402
import pictures  # noqa: E402
from charts import Series  # noqa: E402
from models import MODELS  # noqa: E402
from pictures import Panel  # noqa: E402
from results import LAST_EVALUATIONS, REFERENCE, final_of  # noqa: E402

WITHIN = 0.3  # points
GUESSING = (0.15, 7.0)  # accuracy with ten classes, with a margin; bits of one character out of 128
STYLES = ("s10", "s5", "s7", "s3", "s4")

#: Of parameters by name, the first match counts; the others are hidden weights.
KINDS = {"mlp": (("head", r"4\.weight"), ("bias", r".*bias")),
         "cnn": (("norm", r"(1|\d\.path\.[14]|\d\.around\.1)\..*"), ("head", r"8\.weight"), ("bias", r".*bias")),
         "lstm": (("embedding", r"characters\.weight"), ("head", r"head\.weight"), ("bias", r".*bias.*")),
         "gpt": (("embedding", r"characters\.weight|places"), ("norm", r".*\.before_\w+\..*|head\.0\..*"),
                 ("head", r"head\.1\.weight"), ("bias", r".*bias"))}
HIDDEN = "hidden weights"
KIND_STYLES = {"embedding": "s10", "norm": "s3", "bias": "s4", "head": "s5", HIDDEN: "s7"}


# ---- the figures ----


def unique(values) -> list:
    return list(dict.fromkeys(values))


class Runs:
    """Of a question: those of the seeds whose runs are all there."""

    def __init__(self, found: list[tuple]):
        """found: (cell, what was trained or None)"""
        lacking = {cell.seed for cell, run in found if run is None}
        self.all_seeds = unique(cell.seed for cell, _ in found)
        self.seeds = [seed for seed in self.all_seeds if seed not in lacking]
        self.cells = [cell for cell, _ in found if cell.seed in self.seeds]
        self.models, self.specs = unique(cell.model for cell in self.cells), unique(cell.spec for cell in self.cells)
        self.records = [run for cell, run in found if cell.seed in self.seeds]
        self._runs = {(c.model, c.spec, c.warmup, c.optimizer, c.seed): run for c, run in zip(self.cells, self.records)}

    def of(self, model: str, spec: str, warmup: int = 0, optimizer: str = "") -> list[dict]:
        """By seed."""
        return [self._runs[model, spec, warmup, optimizer, seed] for seed in self.seeds]

    def finals(self, model: str, spec: str, warmup: int = 0, optimizer: str = "") -> list[float]:
        return [final_of(run["curve"]) for run in self.of(model, spec, warmup, optimizer)]


def mean_curve(runs: list[dict]) -> list[tuple[int, float]]:
    return [(points[0][0], statistics.fmean(value for _, value in points)) for points in zip(*(run["curve"] for run in runs))]


def smoothed(curve: list) -> list[tuple[int, float]]:
    """The mean of an evaluation and the four before it; step 0 is none of them."""
    trained = [point for point in curve if point[0]]
    return [(trained[i][0], statistics.fmean(value for _, value in trained[i - LAST_EVALUATIONS + 1 : i + 1]))
            for i in range(LAST_EVALUATIONS - 1, len(trained))]


def difference(runs: list[dict], plain: list[dict]) -> list[tuple[int, float]]:
    """Of the smoothed mean accuracies, in points."""
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


# ---- judging ----


def is_accuracy(model: str) -> bool:
    return MODELS[model].quality.higher_is_better


def failed(model: str, value: float) -> bool:
    """No better than guessing."""
    return not value > GUESSING[0] if is_accuracy(model) else not value < GUESSING[1]


def judged(model: str, values: list[float], plain: list[float]) -> int:
    """1: worse than `plain` beyond chance; -1: better."""
    bad, bad_plain = (any(failed(model, value) for value in side) for side in (values, plain))
    if bad or bad_plain:
        return bad - bad_plain
    if is_accuracy(model):
        return accuracy_verdict(values, plain)
    return verdict([math.log(x / y) for x, y in zip(values, plain)])


def worse_by(model: str, value: float, plain: float) -> float:
    """Points of accuracy, or bits."""
    return 100 * (plain - value) if is_accuracy(model) else value - plain


def mean_worse_by(model: str, values: list[float], plain: list[float]) -> float:
    return statistics.fmean(worse_by(model, x, y) for x, y in zip(values, plain))


# ---- words ----


def wrapped(line: str, indent: str = "") -> str:
    return textwrap.fill(line, 130, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def bullets(lines) -> str:
    return "\n".join(wrapped(f"- {line}", "  ") for line in lines)


def laid_out(text: str) -> str:
    """With paragraphs in lines of equal length; tables, lists, headings, code and pictures stay."""
    blocks = [block if re.match(r"[|#!]|- |```", block) else wrapped(block) for block in re.split(r"\n{2,}", text.strip())]
    return "\n\n".join(blocks) + "\n"


def name(spec: str) -> str:
    return "fp32" if spec == REFERENCE else f"`{spec}`"


def quality_text(model: str, value: float) -> str:
    return f"{100 * value:.1f}" if is_accuracy(model) else f"{value:.3f}"


def worse_text(model: str, amount: float, sign: str = "") -> str:
    if not math.isfinite(amount):
        return "failed"
    digits = 1 if is_accuracy(model) else 3
    return f"{round(amount, digits) + 0.0:{sign}.{digits}f}"  # + 0.0: no -0.0


def unit(model: str) -> str:
    return "points" if is_accuracy(model) else "bits"


def spread_text(model: str, values: list[float]) -> str:
    """Mean and standard deviation."""
    bad = sum(failed(model, value) for value in values)
    if bad:
        return f"failed, {bad} of {len(values)}"
    mean = quality_text(model, statistics.fmean(values))
    return f"{mean} ± {quality_text(model, statistics.stdev(values))}" if len(values) > 1 else mean


def points_text(values: list[float]) -> str:
    """The mean, in brackets each."""
    words = [f"{value:+.2f}" if math.isfinite(value) else "failed" for value in [statistics.fmean(values), *values]]
    return f"{words[0]} ({', '.join(words[1:])})" if len(values) > 1 else words[0]


def seeds_text(runs: Runs) -> str:
    n, whole = len(runs.seeds), len(runs.all_seeds)
    return f"{'Seed' if n == 1 else 'Seeds'} {listed(map(str, runs.seeds))}{f', of {whole} so far' * (n < whole)}."


# ---- a long run ----


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
            parts += ["not within 0.3 points with " + listed(map(name, far))] * bool(far)
            lines.append(f"{model} ends {', and '.join(parts)}.{self.before(model)}")
        return lines

    def before(self, model: str) -> str:
        known = {spec: points for m, spec in self.cases if m == model and (points := self.points(self.short, m, spec))}
        near = [spec for spec, points in known.items() if statistics.fmean(points) >= -WITHIN]
        return f" After {MODELS[model].steps} steps it is with {listed(map(name, near))}." if known else ""

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


def finite(points: list) -> list[tuple]:
    return [(x, y) for x, y in points if math.isfinite(y)]


def limits(series: list[Series]) -> tuple[float, float]:
    """Of an axis: 0 and all points."""
    values = [0.0, *(y for s in series for _, y in s.points)]
    return 1.05 * min(values), 1.05 * max(values)


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


# ---- warm-up ----


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


# ---- optimizers ----


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


# ---- which parameters suffer ----


def kind_of(model: str, parameter: str) -> str:
    return next((kind for kind, pattern in KINDS[model] if re.fullmatch(pattern, parameter)), HIDDEN)


class Norms:
    """Residual over gradient: about how many steps' worth of gradient waits to be sent."""

    def __init__(self, runs: Runs):
        self.runs = runs

    def parameters(self, model: str, spec: str) -> dict[str, list]:
        return self.runs.of(model, spec)[0]["norms"]

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
        return [parameter for parameter in self.parameters(model, self.runs.specs[0]) if kind_of(model, parameter) == kind]

    def kind_median(self, model: str, spec: str, kind: str) -> float | None:
        found = [ratio for parameter, ratio in self.medians(model, spec).items() if kind_of(model, parameter) == kind]
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
                cells = [f"`{parameter}` ({kind_word(model, parameter)}) {ratio_text(ratio)}"
                         for parameter, ratio in self.worst(model, spec)[:3]]
                rows.append([model, name(spec), *cells, *[MISSING] * (3 - len(cells))])
        return table(["model", "exchange", "worst", "second", "third"], rows, left=5)

    def statements(self) -> list[str]:
        worst = [(model, self.worst(model, spec)) for model in self.runs.models for spec in self.runs.specs]
        kinds = Counter(kind_word(model, found[0][0]) for model, found in worst if found)
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


def kind_word(model: str, parameter: str) -> str:
    return kind_of(model, parameter).removesuffix("s")


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


# ---- the page ----


INTRO = """# Learning: a long run, warm-up, optimizers, residuals

```
bench/learning.py
```

Written by bench/learning.py. Four processes on one machine, Gloo, the demo's models, batches and schedules; nothing is timed.
*fp32* is PyTorch's DistributedDataParallel without a hook. *Final* is the mean of a run's last five evaluations: accuracy (mlp,
cnn), or bits a character (lstm, gpt), of which fewer are better.

Differences are taken seed by seed, between runs with the same start and the same batches, and are called beyond chance by the
rule of [convergence.md](convergence.md): Student's t beyond its 95 %, bits in logarithms, accuracies with at least half a test
sample of spread. A seed that ends no better than guessing has failed, and that is beyond chance. **Bold** is worse than fp32
beyond chance, a star better; everything else may be real or not: with three seeds a difference has to be {three:.1f} times its own
spread over the seeds to be beyond chance, with two {two:.0f} times, and one seed tells nothing about chance. Of as many comparisons
as here a few are marked by chance.

A section shows the seeds of which all its runs are there, and is left out where there is none.
"""


def sections(found: dict[str, list[tuple]]) -> list:
    runs = {question: Runs(cells) for question, cells in found.items()}
    makers = {"long": lambda: Long(runs["long"], runs["seeds"]), "warmup": lambda: Warmups(runs["warmup"]),
              "optimizers": lambda: Optimizers(runs["optimizers"], found["tuning"]), "norms": lambda: Norms(runs["norms"])}
    return [make() for question, make in makers.items() if runs[question].seeds]


def missing(found: dict[str, list[tuple]]) -> str:
    """In words; nothing of nothing."""
    counts = {question: sum(run is None for _, run in cells) for question, cells in found.items()}
    words = (f"{n} of {len(found[question])} ({question})" for question, n in counts.items() if n)
    return f"Runs that are missing: {', '.join(words)}." if any(counts.values()) else ""


def environment(found: dict[str, list[tuple]]) -> str:
    """Of everything that was trained."""
    counts, dates = Counter(), {}
    for run in (run for cells in found.values() for _, run in cells if run):
        words = place_of(run)
        counts[words] += 1
        dates.setdefault(words, set()).add(run["environment"]["date"])
    lines = [f"{n} runs, {' to '.join(unique([min(dates[words]), max(dates[words])]))}: {words}"
             for words, n in counts.most_common()]
    return bullets([*lines, *filter(None, [mixed(found)])])


def place_of(run: dict) -> str:
    return ", ".join(value if key == "CPU" else f"{key} {value}" for key, value in run["environment"].items() if key != "date")


def mixed(found: dict[str, list[tuple]]) -> str:
    """Comparisons between runs that were not trained in the same place."""
    places: dict = {}
    for question, cells in found.items():
        for cell, run in cells:
            if run and question != "seeds":
                places.setdefault(f"{question}, {cell.model}, seed {cell.seed}", set()).add(place_of(run))
    names = [about for about, where in places.items() if len(where) > 1]
    return (f"Runs that are compared but come from different places, so that they round differently, and with lstm and gpt may "
            f"read another text: {'; '.join(names)}.") if names else ""


def page(found: dict[str, list[tuple]], parts: list) -> str:
    """found: by question, (cell, what was trained or None)."""
    intro = INTRO.format(three=T95[2] / math.sqrt(3), two=T95[1] / math.sqrt(2))
    text = [intro, *(part.text() for part in parts), f"## Environment\n\n{environment(found)}\n", missing(found)]
    return laid_out("\n".join(filter(None, text)))


def write_page(found: dict[str, list[tuple]], folder: Path) -> None:
    """learning.md with its pictures; older pictures of what is not on the page go."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = sections(found)
    pictures = {f"learning-{key}.svg": chart for part in parts for key, chart in part.charts().items()}
    for old in folder.glob("learning-*.svg"):
        if old.name not in pictures:
            old.unlink()
    for file, chart in pictures.items():
        (folder / file).write_text(chart + "\n", encoding="utf-8")
    (folder / "learning.md").write_text(page(found, parts), encoding="utf-8")
