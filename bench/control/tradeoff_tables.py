# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The front of time and quality, the rule of the bar, and the tables and pictures of tradeoff.md."""

from __future__ import annotations

import functools
import json
import math
import statistics
import zlib
from dataclasses import dataclass

from bench.control import tradeoff
from bench.control.virtual_network import SCENARIOS, Costs, Scenario, seconds_of
from bench.learning.comparison_tables import environment
from bench.learning.judging import T95
from bench.lib import charts, models, pictures, tables
from bench.lib.quality import Quality

SOONER = 0.9  # of a fixed setting's time: what "ahead in time" means
#: what the screen allows for chance, in a model's quality; with several seeds it is measured
SLACK = {"lstm": 0.02, "gpt": 0.02, "cnn": 0.005}
SLOW, STEPS = Scenario("10 Mbit/s", ("10mbit",), 3600.0), 20  # where measured costs are tried
WIDTH, HEIGHT, COLUMNS = 250, 190, 3  # of a plot, and plots in a row


def quality_of(model: str) -> Quality:
    return models.about(model).quality


# ---- the rule ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Point:
    """A way to train: its time, and by seed its score, of which more is better."""

    name: str
    seconds: float
    scores: tuple[float, ...]

    @property
    def score(self) -> float:
        return statistics.fmean(self.scores)


def on_front(point: Point, others: list[Point]) -> bool:
    """No other is as soon and as good, and sooner or better."""
    return not any(other.seconds <= point.seconds and other.score >= point.score and (other.seconds, other.score) != (point.seconds, point.score)
                   for other in others if other is not point)


def spread(points: list[Point]) -> tuple[float, int]:
    """Standard deviation between seeds, of all points together, and its degrees of freedom."""
    squares = sum((score - point.score) ** 2 for point in points for score in point.scores)
    freedom = sum(len(point.scores) - 1 for point in points)
    return (math.sqrt(squares / freedom), freedom) if freedom else (0.0, 0)


def chance(points: list[Point], a: Point, b: Point) -> float | None:
    """What the difference of two means has to exceed to be beyond chance; None with one seed."""
    deviation, freedom = spread(points)
    return T95[min(freedom, max(T95))] * deviation * math.sqrt(1 / len(a.scores) + 1 / len(b.scores)) if freedom else None


class Line:
    """What fixed settings reach, those between two of the five included: from one point of their front to the next it is straight, over the logarithm of time."""

    def __init__(self, fixed: list[Point]):
        self.front = sorted((point for point in fixed if on_front(point, fixed)), key=lambda point: point.seconds)

    def score(self, seconds: float) -> float | None:
        """The best at this time; None before the first."""
        known = [point for point in self.front if point.seconds <= seconds]
        if not known:
            return None
        if len(known) == len(self.front):
            return known[-1].score
        low, high = known[-1], self.front[len(known)]
        return low.score + (high.score - low.score) * math.log(seconds / low.seconds) / math.log(high.seconds / low.seconds)

    def seconds(self, score: float) -> float | None:
        """The first time at which it is as good; None: never, or before the first."""
        later = next((i for i, point in enumerate(self.front) if point.score >= score), 0)
        if later == 0:
            return None
        low, high = self.front[later - 1], self.front[later]
        return low.seconds * (high.seconds / low.seconds) ** ((score - low.score) / (high.score - low.score))


def is_ahead(point: Point, fixed: Point, line: Line, margin: float) -> bool:
    """In time at equal quality, or in quality at equal time. Where one is sooner and the other is better, they trade one for the other: then `point` has to be
    above the line of all fixed settings, as one of these with another value would be on it."""
    better, worse = point.score > fixed.score + margin, point.score < fixed.score - margin
    if not better and not worse:
        return point.seconds <= SOONER * fixed.seconds
    if better and point.seconds <= fixed.seconds:
        return True
    if worse and point.seconds >= fixed.seconds:
        return False
    at_time, to_score = line.score(point.seconds), line.seconds(point.score)
    return at_time is not None and (point.score > at_time + margin or (to_score is not None and point.seconds <= SOONER * to_score))


def not_ahead(point: Point, fixed: list[Point], margins: dict[str, float]) -> list[str]:
    """Names of the fixed settings that it is not ahead of."""
    line = Line(fixed)
    return [each.name for each in fixed if not is_ahead(point, each, line, margins[each.name])]


# ---- points of cells --------------------------------------------------------------------------------------------------


def mark(costs: list) -> str:
    """That a run's costs are compared by."""
    return f"{zlib.crc32(json.dumps(costs).encode()):08x}"


def runs_of(about, scenario: str | None, found: dict, costs: list) -> dict[str, dict[int, dict]]:
    """By name and seed. Policies that decided by other costs than now are left out: their clock was another one."""
    made: dict = {}
    for seed in tradeoff.SEEDS:
        cell = found.get(f"learn-{seed}-{about.name}-{scenario or 'fixed'}")
        if cell and (scenario is None or cell["costs"] == mark(costs)):
            for name, run in cell["runs"].items():
                made.setdefault(name, {})[seed] = run
    return made


def points_of(about, scenario: str, found: dict) -> tuple[list[Point], list[Point]]:
    """Fixed settings, and policies. Empty where a cell is missing."""
    fixed, moved = all_points(about, scenario, found)
    return fixed, [point for point in moved if point.name in tradeoff.POLICIES]


def known_point(about, scenario: str, found: dict) -> list[Point]:
    """Of a law that knew the rate, if there is one."""
    return [point for point in all_points(about, scenario, found)[1] if point.name == tradeoff.KNOWN]


@functools.cache
def time_of(costs: tuple, scenario: str, sent: float, steps: int) -> float:
    """Of a fixed setting."""
    return seconds_of(Costs.read(costs), SCENARIOS[scenario], sent, steps)


def all_points(about, scenario: str, found: dict) -> tuple[list[Point], list[Point]]:
    if not found.get(f"time-{about.name}"):
        return [], []
    costs, sign = tradeoff.costs_of(about), 1 if quality_of(about.model).higher_is_better else -1

    def point(name: str, runs: dict[int, dict]) -> Point:
        seconds = statistics.fmean(run["seconds"] if "seconds" in run else time_of(tuple(map(tuple, costs)), scenario, run["sent"], run["steps"])
                                   for run in runs.values())
        return Point(name, seconds, tuple(sign * run["final"] for run in runs.values()))

    fixed, moved = ([point(name, runs) for name, runs in runs_of(about, which, found, costs).items()] for which in (None, scenario))
    return (fixed, moved) if fixed and moved else ([], [])


def margins_of(point: Point, fixed: list[Point], everything: list[Point]) -> dict[str, float] | None:
    """None with fewer seeds than the bar asks for."""
    if any(len(each.scores) < len(tradeoff.SEEDS) for each in everything):
        return None
    return {each.name: chance(everything, point, each) for each in fixed}


def lags(about, scenario: str, found: dict, margin: float | None = None) -> dict[str, list[str]] | None:
    """By policy the fixed settings that it is not ahead of; "the front" where it is behind that. margin: in place of chance. None: not known yet."""
    fixed, moved = points_of(about, scenario, found)
    made = {}
    for point in moved:
        margins = margins_of(point, fixed, fixed + moved) if margin is None else {each.name: margin for each in fixed}
        if margins is None:
            return None
        made[point.name] = ["the front"] * (not on_front(point, fixed + moved)) + not_ahead(point, fixed, margins)
    return made or None


def is_open(about, scenario: str, found: dict) -> bool:
    """By the first seed a policy is ahead, with SLACK for chance."""
    first = {name: cell for name, cell in found.items() if not name.startswith("learn-") or name.startswith("learn-0-")}
    return [] in (lags(about, scenario, first, SLACK[about.model]) or {}).values()


# ---- tables -----------------------------------------------------------------------------------------------------------


def text_of(about, point: Point) -> str:
    """Seconds, and quality with its deviation."""
    sign = 1 if quality_of(about.model).higher_is_better else -1
    percent = 100 if sign > 0 else 1
    deviation = f" ± {percent * statistics.stdev(point.scores):.{2 if sign > 0 else 3}f}" if len(point.scores) > 1 else ""
    return f"{point.seconds:.0f} s, {percent * sign * point.score:.{2 if sign > 0 else 3}f}{deviation}"


def short_name(about, spec: str) -> str:
    """Of a fixed setting: its value."""
    return f"{tradeoff.value_of(spec, about.moved.partition(':')[2]):g}"


def front_table(scenario: str, found: dict) -> dict | None:
    rows = []
    for about in tradeoff.GROUPS:
        fixed, moved = points_of(about, scenario, found)
        front = [point.name for point in fixed + moved if on_front(point, fixed + moved)]
        shown = [f"**{text_of(about, point)}**" if point.name in front else text_of(about, point) for point in fixed + moved]
        if shown:
            best = [text_of(about, point) for point in known_point(about, scenario, found)] or [None]
            rows.append([f"{about.label}: {', '.join(short_name(about, point.name) for point in fixed)}", *shown, *best])
    heads = [f"setting {i + 1}" for i in range(5)] + [f"`{policy}`" for policy in tradeoff.POLICIES] + [tradeoff.KNOWN]
    if not any(row[-1] for row in rows):
        heads, rows = heads[:-1], [row[:-1] for row in rows]
    return tables.table(["model, optimizer, and the five settings", *heads], rows) if rows else None


def bar_table(found: dict) -> dict | None:
    rows = []
    for scenario in SCENARIOS:
        for about in tradeoff.GROUPS:
            fixed, moved = points_of(about, scenario, found)
            if not moved:
                continue
            judged, screened = lags(about, scenario, found), is_open(about, scenario, found)
            for point in moved:
                runs = runs_of(about, scenario, found, tradeoff.costs_of(about))[point.name].values()
                if judged is None:
                    verdict = f"open: {min(len(each.scores) for each in fixed + moved)} of {len(tradeoff.SEEDS)} seeds" if screened else "not ahead by the screen"
                else:
                    behind = [name if name == "the front" else short_name(about, name) for name in judged[point.name]]
                    verdict = "not ahead of " + ", ".join(behind) if behind else "ahead"
                means = [run["mean"] for run in runs if run["mean"] is not None]
                as_good = Line(fixed).seconds(point.score)
                rows.append([scenario, about.label, f"`{point.name}`", f"{statistics.fmean(means):.3g}" if means else None,
                             100 * statistics.fmean(run["uncompressed"] for run in runs), statistics.fmean(run["changes"] for run in runs),
                             as_good and point.seconds / as_good, verdict])
    heads = ["network", "model, optimizer, what is moved", "policy", "mean value", ("steps uncompressed", "{:.0f} %"), ("changes", "{:.0f}"),
             ("time / fixed, equal quality", "{:.2f}"), "verdict"]
    return tables.table(heads, rows) if rows else None


def lab_points(about, runs: dict) -> list[Point]:
    """Of one training each."""
    sign = 1 if quality_of(about.model).higher_is_better else -1
    return [Point(name, run["seconds"], (sign * run["final"],)) for name, run in runs.items()]


def lab_table(found: dict) -> dict | None:
    """Beside the clock's seconds, and its values of seed 0, which the lab has."""
    rows = []
    for about, scenario in tradeoff.CHECKED:
        real = (found.get(f"lab-{about.name}-{scenario}") or {"runs": {}})["runs"]
        virtual = {point.name: point.seconds for side in points_of(about, scenario, found) for point in side}
        moves = (found.get(f"learn-0-{about.name}-{scenario}") or {"runs": {}})["runs"]
        points = [point for point in lab_points(about, real) if point.name in virtual]
        line = Line([point for point in points if point.name not in moves])
        for point in sorted(points, key=lambda point: point.name in moves):
            moved = point.name in moves
            as_good = line.seconds(point.score) if moved else None
            means = [f"{runs[point.name]['mean']:.3g}" if moved else None for runs in (real, moves)]
            rows.append([scenario, about.label, f"`{point.name}`", text_of(about, point), virtual[point.name], virtual[point.name] / point.seconds, *means,
                         as_good and point.seconds / as_good])
    heads = ["network", "model, optimizer, setting", "exchange", "in the lab", ("by the clock, s", "{:.1f}"), ("clock / lab", "{:.2f}"),
             "mean value, lab", "clock", ("time / fixed, equal quality, lab", "{:.2f}")]
    return tables.table(heads, rows) if rows else None


def cost_table(found: dict) -> dict | None:
    """At 10 Mbit/s, which the costs do not come from, beside what the clock makes of them."""
    rows = []
    for about in tradeoff.GROUPS:
        measured = found.get(f"time-{about.name}")
        for i, (spec, rates) in enumerate((measured or {"steps": {}})["steps"].items()):
            if "10mbit" in rates:
                costs = tradeoff.costs_of(about)
                sent, wire, rest, _ = costs[i]
                rows.append([about.label, f"`{spec}`", wire / 1e3, 1e3 * rest, 1e3 * rates["1gbit"]["step"], 1e3 * rates["10mbit"]["step"],
                             1e3 * seconds_of(Costs.read(costs), SLOW, sent, STEPS) / STEPS])
    heads = ["model, optimizer, setting", "spec", ("kB a step", "{:s3}"), ("without the network, ms", "{:s3}"), ("step at 1 Gbit/s, ms", "{:s3}"),
             ("at 10 Mbit/s, ms", "{:s3}"), ("by the clock, ms", "{:s3}")]
    return tables.table(heads, rows) if rows else None


def tables_of(found: dict) -> dict:
    """Of what there is."""
    made = {scenario: front_table(scenario, found) for scenario in SCENARIOS}
    made |= {"bar": bar_table(found), "clock": lab_table(found), "costs": cost_table(found)}
    made = {name: table for name, table in made.items() if table}
    runs = [cell for cell in found.values() if cell]
    return {**made, "environment": environment(runs)} if made else {}


# ---- pictures ---------------------------------------------------------------------------------------------------------


def plot(about, fixed: list[Point], moved: list[Point], known: list[Point]) -> list[str]:
    """Quality over time: a line through the fixed settings' front, dots, and rings."""
    everything, sign = fixed + moved + known, 1 if quality_of(about.model).higher_is_better else -1
    times, scores = [point.seconds for point in everything], [point.score for point in everything]
    gap = 0.08 * (max(scores) - min(scores)) or 0.01
    x = charts.Axis(0.9 * min(times), 1.1 * max(times), 46, WIDTH - 12, log=True)
    y = charts.Axis(min(scores) - gap, max(scores) + gap, HEIGHT - 40, 24)
    body = charts.frame(x, y, "", lambda score: f"{100 * score:.1f}" if sign > 0 else f"{-score:.2f}") + [charts.text(46, 14, about.label.replace("`", ""), "start", "name")]
    path = " ".join(f"{x.at(point.seconds):.1f},{y.at(point.score):.1f}" for point in Line(fixed).front)
    body.append(f'<g class="series s3"><polyline points="{path}"/></g>')
    for style, points in (("dot s3", fixed), ("ring s5", moved[:1]), ("ring s7", moved[1:]), ("ring s9", known)):
        body += [f'<circle cx="{x.at(point.seconds):.1f}" cy="{y.at(point.score):.1f}" r="4" class="{style}"><title>{point.name}: {text_of(about, point)}</title></circle>'
                 for point in points]
    return body


def picture(scenario: str, found: dict) -> str | None:
    """A plot a group; None where there is none."""
    plots = [plot(about, fixed, moved, known_point(about, scenario, found)) for about in tradeoff.GROUPS for fixed, moved in [points_of(about, scenario, found)] if moved]
    if not plots:
        return None
    names = [(52, "dot s3", "fixed"), (112, "ring s5", tradeoff.POLICIES[0]), (162, "ring s7", tradeoff.POLICIES[1])]
    names += [(322, "ring s9", tradeoff.KNOWN)] * (scenario == tradeoff.FORESEEN)
    body = [f'<circle cx="{x}" cy="8" r="4" class="{style}"/>' + charts.text(x + 9, 12, name, "start") for x, style, name in names]
    body += [f'<g transform="translate({WIDTH * (i % COLUMNS)} {20 + HEIGHT * (i // COLUMNS)})">{"".join(each)}</g>' for i, each in enumerate(plots)]
    rows = math.ceil(len(plots) / COLUMNS)
    return pictures.standing_alone(body, f"Quality over seconds: {SCENARIOS[scenario].what}", WIDTH * COLUMNS + 40, 24 + HEIGHT * rows)
