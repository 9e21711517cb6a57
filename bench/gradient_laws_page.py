# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""What gradient_laws.py recorded, as Markdown with plots: every statement in it is computed from the figures."""

from __future__ import annotations

import itertools
import statistics
from pathlib import Path

from gradient_laws_figures import (BAND, DEFAULT, FITTED, Figures, HOLDS, LAWS, MODES, ROWS, counted, element_passes, fit,
    kind_rows, mean, part_of, quantile, share, stage_distance, time_over_copy)
from gradient_laws_plots import PLOTS
from prose import bullets, listed, table, wrapped


def number(x: float) -> str:
    return "–" if x != x else f"{x:.2f}" if x < 10 else f"{x:.0f}"


def percent(x: float) -> str:
    return f"{100 * x:.0f}\u00a0%"


def row_text(row: tuple) -> str:
    law, stages, mode = row
    return f"`law={law}`, " + (f"`stages={stages}`" if stages else f"`mode={mode}`")


# ---- tables ----


def cell(values, bold=lambda _: False) -> str:
    if not values:
        return "–"
    middle = statistics.median(values)
    text = f"{middle:.3f}"
    return f"**{text}**" if bold(middle) else text


def distance_table(figures: Figures) -> str:
    rows = [[model, MODES[feedback], *(cell(figures.distances(law, feedback, model), lambda v: v < HOLDS) for law in LAWS)]
            for model in figures.models for feedback in (False, True) if figures.has(feedback, model)]
    return table(["model", "feedback", *(label for label, _ in LAWS.values())], rows, left=2)


def kind_table(figures: Figures) -> str:
    rows = []
    for model, kind, cells in kind_rows(figures):
        rows.append([model, kind, *(cell([cells[law, feedback]] if (law, feedback) in cells else [], lambda v: v < HOLDS)
                                    for feedback in (False, True) for law in FITTED)])
    return table(["model", "kind", *(f"{LAWS[law][0]}, {mode}" for mode in MODES for law in FITTED)], rows, left=2)


def tail_table(figures: Figures) -> str:
    rows = []
    for model, feedback in itertools.product(figures.models, (False, True)):
        if figures.has(feedback, model):
            cells = [figures.values(feedback, model, lambda r, law=law, i=i: stage_distance(r, (law, 3, "fixed"), i))
                     for law in ("exp", "p") for i in range(3)]
            rows.append([model, MODES[feedback], *(cell(values, lambda v: v < HOLDS) for values in cells)])
    head = [f"{LAWS[law][0]}, {where}" for law in ("exponential", "pareto") for where in ("all", "largest quarter", "stage 3")]
    return table(["model", "feedback", *head], rows, left=2)


def compressibility_table(figures: Figures) -> str:
    rows = []
    for model, feedback in itertools.product(figures.models, (False, True)):
        values = [(p, 1.0) for p in figures.values(feedback, model, lambda r: r["compressibility"])]
        if values:
            rows.append([model, MODES[feedback], *(f"{quantile(values, part):.2f}" for part in (0.1, 0.5, 0.9)),
                         percent(share(values, lambda p: p > 0.5))])
    return table(["model", "feedback", "10 %", "median", "90 %", "above ½"], rows, left=2)


def guard_table(figures: Figures) -> str:
    rows = []
    for model, feedback in itertools.product(figures.models, (False, True)):
        fits = [got for _, _, r in figures.records(feedback, model) if (got := fit(r, DEFAULT)) and got["stages"]]
        if fits:
            parts, tried = [(got["fitted"] / got["wanted"], 1.0) for got in fits], [got["corrections"] for got in fits]
            rows.append([model, MODES[feedback], *(number(quantile(parts, part)) for part in (0.1, 0.5, 0.9)),
                         percent(sum(n > 0 for n in tried) / len(fits)), number(statistics.fmean(tried)), str(max(tried)),
                         percent(sum(got["exact"] for got in fits) / len(fits))])
    return table(["model", "feedback", "fitted / wanted, 10 %", "median", "90 %", "corrected", "thresholds tried, mean", "most",
                  "sent exactly"], rows, left=2)


def spread(values: list[tuple[float, float]]) -> str:
    if not values:
        return "–"
    return f"{number(quantile(values, 0.5))} ({number(quantile(values, 0.1))} – {number(quantile(values, 0.9))})"


def default_table(figures: Figures, feedback: bool) -> str:
    rows = []
    for row in ROWS:
        fitted = figures.weighted(feedback, lambda r, row=row: part_of(r, row, "fitted"))
        if not fitted:
            continue
        sent, unguarded = (figures.weighted(feedback, lambda r, row=row, guard=guard: part_of(r, row, "sent", guard))
                           for guard in ("on", "off"))
        tried = figures.weighted(feedback, lambda r, row=row: counted(r, row, "corrections"))
        rows.append([f"**{row_text(row)}**" if row == DEFAULT else row_text(row), spread(fitted), percent(share(fitted, in_band)),
                     spread(unguarded), number(element_passes(figures, feedback, row, "off")), spread(sent), number(mean(tried)),
                     number(element_passes(figures, feedback, row, "on")), number(time_over_copy(figures, feedback, row))])
    return table(["setting", "fitted", "within 20 %", "sent, `guard=off`", "passes", "sent, `guard=on`", "thresholds tried",
                  "passes", "time"], rows)


def in_band(part: float) -> bool:
    return 1 - BAND <= part <= 1 + BAND


# ---- statements ----


def mode_text(feedback: bool) -> str:
    return f"{MODES[feedback].capitalize()} error feedback"


def nearest_law(record: dict) -> str:
    """A Laplace law is no other than the exponential one, but for its centre."""
    return min((d, law) for law, d in record["ks"].items() if d is not None and law != "laplace")[1]


def law_statements(figures: Figures, feedback: bool) -> list[str]:
    lines = []
    for law in FITTED:
        distances = {model: figures.distances(law, feedback, model) for model in figures.models}
        medians = {model: statistics.median(found) for model, found in distances.items() if found}
        holds = listed(f"{model} ({d:.3f})" for model, d in medians.items() if d < HOLDS)
        fails = listed(f"{model} ({d:.3f})" for model, d in medians.items() if d >= HOLDS)
        words = ", and ".join([f"holds in {holds}"] * bool(holds) + [f"does not hold in {fails}"] * bool(fails))
        lines.append(f"{mode_text(feedback)} the {LAWS[law][0]} law {words}.")
    nearest = figures.weighted(feedback, nearest_law)
    parts = [f"{LAWS[law][0]} in {percent(share(nearest, lambda v, law=law: v == law))}" for law in (*FITTED, "normal")]
    return [*lines, f"{mode_text(feedback)} the nearest law is {listed(parts)} of the records."]


def tail_statement(figures: Figures, feedback: bool) -> list[str]:
    pairs = []
    for law, name in (("exp", "exponential"), ("p", "pareto")):
        row = (law, 3, "fixed")
        all_of, tail = (figures.weighted(feedback, lambda r, i=i, row=row: stage_distance(r, row, i)) for i in (0, 2))
        if all_of and tail:
            pairs.append(f"{quantile(all_of, 0.5):.3f} and {quantile(tail, 0.5):.3f} with the {LAWS[name][0]} law")
    words = "the median distances of all magnitudes and of the tail that the third of three stages is fitted to are"
    return [f"{mode_text(feedback)} {words} {listed(pairs)}."] if pairs else []


def compressible_statement(figures: Figures, feedback: bool) -> list[str]:
    values = figures.weighted(feedback, lambda r: r["compressibility"])
    if not values:
        return []
    part, middle = percent(share(values, lambda p: p > 0.5)), quantile(values, 0.5)
    return [f"{mode_text(feedback)} {part} of the records are compressible in the sense of p > ½; the median p is {middle:.2f}."]


def default_statement(figures: Figures, feedback: bool) -> list[str]:
    """The default beside the setting that needs the guard least, and the fastest."""
    cost, hit, off = {}, {}, {}  # cost: in copies
    for row in ROWS:
        fitted = figures.weighted(feedback, lambda r, row=row: part_of(r, row, "fitted"))
        if fitted:
            cost[row], hit[row] = time_over_copy(figures, feedback, row), share(fitted, in_band)
            off[row] = quantile(fitted, 0.5)
    if DEFAULT not in cost:
        return []
    cheapest, surest = min(cost, key=cost.get), max(hit, key=hit.get)
    sure = "no other setting is within 20 % more often" if hit[surest] <= hit[DEFAULT] else \
        f"{row_text(surest)} is within 20 % most often ({percent(hit[surest])}; {number(cost[surest])} copies)"
    cheap = "none is faster" if cost[cheapest] >= cost[DEFAULT] else \
        f"{row_text(cheapest)} is fastest ({number(cost[cheapest])} copies; within 20 % in {percent(hit[cheapest])})"
    return [f"{mode_text(feedback)} the default, {row_text(DEFAULT)}, selects {number(off[DEFAULT])} of what is wanted in the "
            f"median before the guard, and is within 20 % in {percent(hit[DEFAULT])} of the records; with the guard it takes as long "
            f"as copying the elements {number(cost[DEFAULT])} times. Of the others, {sure}, and {cheap}."]


def statements(figures: Figures) -> str:
    lines = [line for part in (law_statements, tail_statement, compressible_statement, default_statement)
             for feedback in (False, True) if figures.has(feedback) for line in part(figures, feedback)]
    return bullets(lines)


PAGE = """# The laws of real gradients

```
{command}
```

Written by bench/gradient_laws.py. `sidco` computes its threshold from a law that it fits to the magnitudes of a gradient
([sidco](../format/codecs/sidco.md)). Here the gradients of the demo's models are compared with these laws along the training,
by the encoder's own fits (`laconic laws`).

{trainings}

- *Without error feedback*: rank 0's own gradient in an uncompressed training. *With*: residual + gradient in a training with
  `sidco:ratio={ratio}`, which is what `sidco` encodes there.
- Figures are of parameters that are compressed, those of more than 4096 elements, unless layers are told apart by kind. Zeros
  are left out, as in the encoder. Where models are put together each weighs the same, and so does each record of a model.
- *Distance*: Kolmogorov–Smirnov, the largest difference between the law's distribution function and that of the magnitudes.
  **Bold** and "holds": a median below {holds}, so that the part of the elements above any threshold is off by less than
  {holds_percent} of all. Normal and Laplace laws are there for comparison. They are fitted to the signed values and folded at 0;
  folded, a Laplace law centred at 0 is the exponential law.
- *Exponent of compressibility*: p of a(j) ~ j^-p for the magnitudes in descending order, by least squares in logarithms over
  the ranks from k (what is wanted) to half of the non-zero elements. Where p > ½ holds for all ranks, the error of keeping the
  k largest falls as k^(½ - p).

## In short

{short}

## Distance along the training

![Distance along the training](gradient-laws-distance.svg)

Median distance:

{distances}

## By kind of layer

Small layers included, which travel uncompressed and have no residual.

![Distance by kind of layer](gradient-laws-kinds.svg)

{kinds}

## Tails

What the stages of `stages=3` are fitted to: all magnitudes, those above the first threshold (a quarter is wanted), those above
the second. Even a true law has a distance of about 0.8/√m from m elements.

{tails}

## Selected and wanted by stage

![Selected over wanted by stage](gradient-laws-stages.svg)

## Compressibility

![Exponent of compressibility](gradient-laws-compressibility.svg)

{compressibility}

## The guard

With the default setting. Corrected: encodings in which the fit missed the band of 20 %. Sent exactly: no threshold reached the
band, and the k largest were searched.

![Work of the guard](gradient-laws-guard.svg)

{guard}

## Candidates for the default

In parts of what is wanted: median (10 % – 90 %). *Fitted* is the number before the guard, *within 20 %* the share of encodings
that need none; *passes* is how often an element is read, the writing included, in the mean over elements; *time* is that of
encoding all records with the guard over that of copying them (medians of {times} on one core, the mean of the models). Adaptive stages are a replay: they see each record {every} times, as many
as there are steps between two, and so adapt to other gradients than in the training. The default is bold.

With error feedback:

{with_feedback}

Without:

{without_feedback}

## Environment

{environment}
"""


def trainings(figures: Figures) -> str:
    about, seeds = figures.about, sorted({run["plan"]["seed"] for run in figures.runs})
    steps = {run["plan"]["model"]: run["plan"]["steps"] for run in figures.runs}
    counts = listed(f"{n} steps ({model})" for model, n in steps.items())
    return wrapped(f"{about['world']} processes, the demo's batches, optimizers and schedules; rank 0 records one step in "
                   f"{about['every']} of {counts}. Seeds: {', '.join(map(str, seeds))}.")


def environment(figures: Figures) -> str:
    seconds = sum(sum(run["seconds"].values()) for run in figures.runs)
    words = {**figures.runs[0]["environment"], "recorded and fitted in": f"{seconds:.0f} s"}
    return wrapped("; ".join(f"{key}: {value}" for key, value in words.items()) + ".")


def page(figures: Figures) -> str:
    about = figures.about
    return PAGE.format(
        command="bench/gradient_laws.py", trainings=trainings(figures), every=about["every"], times=about["times"], ratio=about["ratio"],
        holds=HOLDS, holds_percent=percent(HOLDS), short=statements(figures), distances=distance_table(figures),
        kinds=kind_table(figures), tails=tail_table(figures), compressibility=compressibility_table(figures),
        guard=guard_table(figures), with_feedback=default_table(figures, True), without_feedback=default_table(figures, False),
        environment=environment(figures))


def write_page(found: list[dict], folder: Path) -> None:
    figures = Figures(found)
    folder.mkdir(parents=True, exist_ok=True)
    for name, plot in PLOTS.items():
        (folder / f"gradient-laws-{name}.svg").write_text(plot(figures) + "\n", encoding="utf-8")
    (folder / "gradient-laws.md").write_text(page(figures), encoding="utf-8")
