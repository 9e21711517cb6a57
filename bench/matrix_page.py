# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""What matrix.py found, as Markdown and a heat map: every statement in it is computed from the figures."""

from __future__ import annotations

import itertools
import math
import statistics
from dataclasses import dataclass

from convergence_page import TEST_SAMPLES, verdict
from report import MISSING

import charts
from labels import label_of
from models import MODELS
from network import rate_text
from overview import lead
from pictures import of_chart
from prose import table
from results import REFERENCE, Results, final_of, first_at

#: One exchange before another counts where it is by so much sooner: less may be noise.
CLEAR = 1.2
MOST_FLIPS = 10
#: Flips are named of exchanges that are among the first so many somewhere.
CONTENDERS = 3


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
    def name(self) -> str:
        return f"{self.model} at {rate_text(self.network)}"

    @property
    def time(self) -> dict[str, float | None]:
        return {row.spec: row.time_to_target for row in self.results.rows}

    @property
    def order(self) -> list[str]:
        """Those that reach the target, the soonest first."""
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


def seconds(value: float | None) -> str:
    return "not reached" if value is None else f"{value:.1f} s"


def milliseconds(value: float) -> str:
    return f"{1e3 * value:,.0f}" if value >= 0.1 else f"{1e3 * value:.1f}"


# ---- over all ---------------------------------------------------------------------------------------------------------


def leaders(made: list[Cell]) -> str:
    head = ["model", "network", "first to its target", "runner-up", "time", "× sooner than fp32 DDP", "× sooner than the runner-up"]
    rows = []
    for cell in made:
        target, found = MODELS[cell.model], lead(cell.results)
        names = [code(row.spec) if row else MISSING for row in (found.first, found.runner_up)]
        ratios = [MISSING if ratio is None else f"{ratio:.1f}" for ratio in (found.over_reference, found.over_runner_up)]
        rows.append([f"`{cell.model}`, {target.quality.short(target.target)}", rate_text(cell.network), *names,
                     seconds(found.first and found.first.time_to_target), *ratios])
    return table(head, rows, left=4)


def ranks(made: list[Cell]) -> str:
    head = ["exchange", *(f"{cell.model} {rate_text(cell.network).removesuffix('bit/s')}" for cell in made)]
    specs = [row.spec for row in made[0].results.rows]
    return table(head, [[code(spec), *(str(cell.order.index(spec) + 1) if spec in cell.order else MISSING for cell in made)]
                        for spec in specs])


@dataclass
class Flip:
    """`one` reaches the target of a cell sooner than `other`, and that of another cell later."""

    one: str
    other: str
    before: Cell
    behind: Cell
    sooner: float
    later: float

    @property
    def strength(self) -> float:
        return min(self.sooner, self.later)


def ratio(cell: Cell, one: str, other: str) -> float:
    """How many times sooner `one` is; infinite where `other` alone does not get there, 1 where both do not."""
    mine, its = (math.inf if cell.time[spec] is None else cell.time[spec] for spec in (one, other))
    return 1.0 if math.isinf(mine) and math.isinf(its) else its / mine


def flips(made: list[Cell]) -> list[Flip]:
    """Of every pair the two cells that differ most; the clearest pair first."""
    found = []
    for one, other in itertools.combinations(list(made[0].time), 2):
        before = max(made, key=lambda cell: ratio(cell, one, other))
        behind = max(made, key=lambda cell: ratio(cell, other, one))
        flip = Flip(one, other, before, behind, ratio(before, one, other), ratio(behind, other, one))
        if flip.strength >= CLEAR:
            found.append(flip)
    return sorted(found, key=lambda flip: (-flip.strength, flip.one, flip.other))


def times_text(value: float, behind: str) -> str:
    return f"{code(behind)} does not get there" if math.isinf(value) else f"× {value:.1f}"


def contenders(made: list[Cell]) -> set[str]:
    return {spec for cell in made for spec in cell.order[:CONTENDERS]}


def flips_text(made: list[Cell]) -> str:
    everything, best = flips(made), contenders(made)
    found = [flip for flip in everything if {flip.one, flip.other} <= best]
    pairs = len(list(itertools.combinations(made[0].time, 2)))
    said = [f"Of {pairs} pairs of exchanges {len(everything)} change their order from one cell to another by a factor of at least "
            f"{CLEAR} each way. The clearest among those that are one of the first {CONTENDERS} somewhere:", ""]
    said += [f"- {code(f.one)} before {code(f.other)}: {f.before.name} ({times_text(f.sooner, f.other)}); behind it: {f.behind.name} "
             f"({times_text(f.later, f.one)})." for f in found[:MOST_FLIPS]]
    return "\n".join(said) if found else f"No pair of exchanges changes its order by a factor of {CLEAR} each way."


def winners(made: list[Cell]) -> str:
    names = sorted({cell.order[0] for cell in made if cell.order})
    return f"{len(names)} exchanges are first somewhere: " + ", ".join(map(code, names)) + "."


# ---- per model --------------------------------------------------------------------------------------------------------


def difference(model: str, final: list[float], plain: list[float]) -> str:
    """Against fp32, in bold where it is worse beyond chance."""
    quality = MODELS[model].quality
    differences = [a - b for a, b in zip(final, plain)]
    least = 1 / TEST_SAMPLES if quality.higher_is_better else 0.0
    worse = -1 if quality.higher_is_better else 1
    text = quality.difference(statistics.fmean(differences))
    return f"**{text}**" if verdict(differences, least) == worse else text


def quality_table(model: str, known: dict, specs: list[str]) -> str:
    quality, target = MODELS[model].quality, MODELS[model].target
    plain = known[model, REFERENCE].final
    head = ["exchange", f"steps to {quality.short(target)}, by seed", f"final {quality.name}", "standard deviation", "against fp32"]
    rows = []
    for spec in specs:
        mine = known[model, spec]
        steps = ", ".join(MISSING if count is None else str(count) for count in mine.steps)
        deviation = quality.difference(statistics.stdev(mine.final)).lstrip("+")
        rows.append([code(spec), steps, quality.precise(statistics.fmean(mine.final)), deviation,
                     MISSING if spec == REFERENCE else difference(model, mine.final, plain)])
    return table(head, rows)


def times_table(mine: list[Cell]) -> str:
    head = ["exchange", "bytes a step, kernel", "× fewer than fp32"]
    head += [words for cell in mine for words in (f"step at {rate_text(cell.network)}, ms", "time to target")]
    by_spec = [{row.spec: row for row in cell.results.rows} for cell in mine]
    plain = by_spec[0][REFERENCE]
    rows = []
    for spec in by_spec[0]:
        first = by_spec[0][spec]
        counted = [MISSING, MISSING] if first.kernel_bytes is None else [
            f"{first.kernel_bytes:,.0f}", f"{plain.kernel_bytes / first.kernel_bytes:.1f}"]
        pairs = [words for cell, row in zip(mine, (rows_of[spec] for rows_of in by_spec))
                 for words in (milliseconds(row.step), seconds(cell.time[spec]))]
        rows.append([code(spec), *counted, *pairs])
    return table(head, rows)


def bound_table(mine: list[Cell]) -> str:
    head = ["exchange", *(words for cell in mine for words in (f"{rate_text(cell.network)}: no codec work, ms", "with it"))]
    by_spec = [{row.spec: row for row in cell.results.rows} for cell in mine]
    rows = [[code(spec), *(words for rows_of in by_spec for words in (milliseconds(rows_of[spec].bound), milliseconds(rows_of[spec].step)))]
            for spec in by_spec[0] if all(rows_of[spec].bound is not None for rows_of in by_spec)]
    return table(head, rows)


def section(model: str, made: list[Cell], known: dict) -> str:
    mine = [cell for cell in made if cell.model == model]
    about, plan = MODELS[model], mine[0].results.plan
    specs = [row.spec for row in mine[0].results.rows]
    return f"""## {model}

{about.what[0].upper()}{about.what[1:]}: {mine[0].results.raw['parameters']:,} parameters; {mine[0].results.raw['training']}, a cosine to 0 in
{about.steps} steps, {plan['workers']} workers. {about.choice}

{quality_table(model, known, specs)}

In bold: worse than fp32 beyond chance (t-test of the differences by seed, 95 %).

{times_table(mine)}

What the codec's own work costs, beside an exchange of as many zero bytes in as many rounds:

{bound_table(mine)}
"""


# ---- the page ---------------------------------------------------------------------------------------------------------


def environment(found: dict) -> str:
    """What both halves ran on, each thing once."""
    lines: dict[str, list[str]] = {}
    for runs in found["learning"].values():
        for run in runs:
            for key, value in run["environment"].items():
                lines.setdefault(f"learning, {key}", []).append(value)
    for raw in found["times"].values():
        for key, value in {**raw["machine"], **raw["environment"]}.items():
            lines.setdefault(f"step times, {key}", []).append(str(value))
    return "\n".join(f"- {key}: {', '.join(sorted(set(values)))}" for key, values in lines.items())


def page(found: dict) -> str:
    made, known = cells(found), learnt(found)
    models = list(dict.fromkeys(cell.model for cell in made))
    seeds = len(next(iter(found["learning"].values())))
    emulated = "\n**Emulated: senders waited, no network was shaped or counted.**\n" if any(c.results.emulated for c in made) else ""
    return f"""# Four models, four networks, every exchange

```
make models
```
{emulated}
Written by bench/matrix.py. Step times and bytes were measured in the demo's network lab; quality and steps to the target were learnt
without a network, with {seeds} seeds. The time to the target is the median of the seeds' steps times the median step.

## First to the target

{leaders(made)}

{winners(made)}

![Time to the target, all exchanges, models and networks](models.svg)

## Rankings

Places by the time to the target; {MISSING} where it is not reached.

{ranks(made)}

{flips_text(made)}

{chr(10).join(section(model, made, known) for model in models)}
## Environment

{environment(found)}
"""


def pictures(found: dict) -> dict[str, str]:
    made = cells(found)
    specs = [row.spec for row in made[0].results.rows]
    values = [[cell.time[spec] for cell in made] for spec in specs]
    columns = [f"{cell.model}\n{rate_text(cell.network)}" for cell in made]
    chart = charts.heat_map(list(map(label_of, specs)), columns, values, "Time to the target", lambda value: f"{value:.1f} s", "–")
    return {"models.svg": of_chart(chart, "Time to the target; – not reached")}
