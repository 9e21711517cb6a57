# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The tables, the CSV and the picture of comparison.md, from the cells that there are."""

from __future__ import annotations

import csv
import io
import math
import statistics
from pathlib import Path

from bench.learning import comparison
from bench.learning.comparison_rank import NETWORKS, parts_of
from bench.learning.judging import judged, marked, quality_text, spread_text
from bench.learning.learning import save
from bench.learning.learning_tables import place_of
from bench.lib import charts, pictures, tables
from bench.lib.labels import label_of
from bench.lib.models import MODELS
from bench.lib.network import rate_text
from bench.lib.results import REFERENCE

UNIT = {"": "parameter", "bucket": "1 MiB of parameters", "whole": "the model"}
PANEL = 300  # height of a plot
NEAR = 1.4  # steps of a cell that is made again differ by up to 37 %


class TimeToTarget:
    """reached: steps to the target by seed, None where it is not reached. step(network): seconds of a step, or None."""

    reached: dict

    @property
    def steps(self) -> float | None:
        """To the target: the median, infinite where it is not reached."""
        return statistics.median(math.inf if count is None else count for count in self.reached.values()) if self.reached else None

    def time(self, network: str) -> float | None:
        """To the target, in seconds."""
        return None if self.steps is None or self.step(network) is None else self.steps * self.step(network)


class Row(TimeToTarget):
    """One exchange with one model: its cells, some of which may be missing."""

    def __init__(self, model: str, way: str):
        self.model, self.way = model, way
        kind = "sweep" if way in comparison.swept(model) else "learn"
        self.rate = comparison.best_rate(model, way)
        runs = [comparison.Cell(kind, model, way, seed, self.rate).load() for seed in comparison.SEEDS]
        self.runs = {seed: run for seed, run in zip(comparison.SEEDS, runs) if run}
        self.times = comparison.Cell("time", model, way).load()
        self.finals = {seed: run["final"] for seed, run in self.runs.items()}
        self.reached = {seed: run["steps"] for seed, run in self.runs.items()}

    @property
    def bytes(self) -> float | None:
        """That a rank sends in a step."""
        counts = [run["bytes"] for run in self.runs.values()]
        return statistics.fmean(counts) if counts and None not in counts else None

    def fewer(self, plain: Row) -> float | None:
        """Times, than uncompressed float32."""
        return self.bytes and plain.bytes and plain.bytes / self.bytes

    def step(self, network: str) -> float | None:
        return self.times and self.times["networks"][network]["step"]

    def port(self, network: str) -> float | None:
        """Bytes of a step by the kernel's count."""
        return self.times and self.times["networks"][network]["bytes"]


def code(way: str) -> str:
    mode, spec, form = parts_of(way)
    about = {"outer": ", `OuterStep` every step", "outer2": ", `OuterStep` every second step", "sharded": ", `ShardedOptimizer`"}.get(mode, ", sparse gradients" if form == "sparse" else "")
    return (label_of(spec) if spec.startswith("pytorch:") else f"`{spec}`") + about


def named(way: str) -> str:
    """With a dagger where the learning rate is not the model's own."""
    return code(way) + " †" * comparison.votes(way)


def class_of(way: str) -> str:
    codec = parts_of(way)[1].partition(":")[0]
    return "" if codec in ("none", "pytorch") else comparison.codecs()[codec]["class"]


def seeds_text(count: int) -> str:
    return f", {count} of {len(comparison.SEEDS)} seeds"


def usual_seeds(rows) -> int:
    """That most of these were learned with."""
    return statistics.mode([len(row.finals) for row in rows if row.finals] or [len(comparison.SEEDS)])


def final_head(model: str, usual: int) -> str:
    return f"final, {units_of(model)}" + seeds_text(usual) * (usual < len(comparison.SEEDS))


def quality(row: Row, plain: Row, usual: int = len(comparison.SEEDS)) -> str:
    """In bold where it is worse than uncompressed training beyond chance, with a star where it is better."""
    if not row.finals:
        return "not run"
    shared = [seed for seed in row.finals if seed in plain.finals]
    sign = 0 if row is plain else judged(row.model, [row.finals[seed] for seed in shared], [plain.finals[seed] for seed in shared])
    few = "" if len(row.finals) == usual else seeds_text(len(row.finals))
    return marked(spread_text(row.model, list(row.finals.values())), sign) + few


def units_of(model: str) -> str:
    return "%" if MODELS[model].quality.higher_is_better else "bits"


def reached_text(value: float | None):
    return "not reached" if value is not None and math.isinf(value) else value


def soonest(rows: list[Row], network: str) -> list[Row]:
    """Those that reach the target, the first one first."""
    return sorted((row for row in rows if row.time(network) is not None and math.isfinite(row.time(network))), key=lambda row: row.time(network))


def places(rows: list[Row], network: str) -> dict[str, int]:
    return {row.way: i + 1 for i, row in enumerate(soonest(rows, network))}


# ---- tables -----------------------------------------------------------------------------------------------------------


def target_of(model: str) -> str:
    return MODELS[model].quality.short(MODELS[model].target)


def leader_table(rows: dict) -> dict:
    """The first to the target, and how many are so near behind it that they may be as fast."""
    lines = []
    for model in comparison.FACTORS:
        mine = compared(model, rows)
        for network in NETWORKS:
            order, plain = soonest(mine, network), mine[0].time(network)
            if len(order) < 2:
                lines.append([model, target_of(model), rate_text(network), *[None] * 5])
                continue
            best = order[0].time(network)
            lines.append([model, target_of(model), rate_text(network), named(order[0].way), best, plain and math.isfinite(plain) and plain / best or None,
                          named(order[1].way), sum(row.time(network) <= NEAR * best for row in order[1:])])
    return tables.table(["model", "target", "network", "first", ("after, s", "{:.1f}"), ("× sooner than DDP, fp32", "{:d1}"), "second", f"within {NEAR} × of the first"], lines)


def model_table(model: str, rows: list[Row]) -> dict:
    """For each network: a step, the time to the target, and the place by it."""
    plain, order, target = rows[0], {network: places(rows, network) for network in NETWORKS}, target_of(model)
    usual = usual_seeds(rows)
    head = ["exchange", "class", ("kB a step", "{:s3}"), ("× fewer", "{:d1}"), final_head(model, usual), f"steps to {target}"]
    head += [(f"step at {rate_text(network)}, ms", "{:d1}") for network in NETWORKS] + [(f"{target} at {rate_text(network)}, s", "{:.1f}") for network in NETWORKS]
    lines = []
    for row in rows:
        place = [str(order[network].get(row.way, tables.MISSING)) for network in NETWORKS]
        lines.append([named(row.way), class_of(row.way), row.bytes and row.bytes / 1e3, row.fewer(plain), quality(row, plain, usual), reached_text(row.steps),
                      *(row.step(network) and 1e3 * row.step(network) for network in NETWORKS), *(reached_text(row.time(network)) for network in NETWORKS),
                      None if set(place) == {tables.MISSING} else ", ".join(place)])
    return tables.table([*head, "places"], lines)


def sparse_table(rows: dict) -> dict:
    some = [rows["recommendation", way.partition("@")[0] + form] for way in comparison.SPARSE for form in ("", "@sparse")]
    plain, usual = rows["recommendation", REFERENCE], usual_seeds(some)
    head = ["exchange", final_head("recommendation", usual), ("kB a step, kernel", "{:s3}"), *((f"step at {rate_text(network)}, ms", "{:d1}") for network in NETWORKS)]
    lines = []
    for row in some:
        lines.append([code(row.way), quality(row, plain, usual), row.port(NETWORKS[0]) and row.port(NETWORKS[0]) / 1e3,
                      *(row.step(network) and 1e3 * row.step(network) for network in NETWORKS)])
    return tables.table(head, lines)


def sweep_table(rows: dict) -> dict:
    swept = [way for some in comparison.SWEEPS.values() for way in some]
    usual = usual_seeds(rows[model, way] for model in comparison.SWEPT for way in swept)
    lines = [[code(way), *(cell for model in comparison.SWEPT
                           for cell in (rows[model, way].fewer(rows[model, REFERENCE]), quality(rows[model, way], rows[model, REFERENCE], usual)))] for way in swept]
    return tables.table(["exchange", *(cell for model in comparison.SWEPT for cell in ((f"{model}: × fewer bytes", "{:d1}"), final_head(model, usual)))], lines)


def unit_table(rows: dict) -> dict:
    ways = {(spec, words): f"{spec}@{unit}" if unit else spec for spec in ("topk", "3lc") for unit, words in UNIT.items()}
    usual = usual_seeds(rows[model, way] for model in comparison.SWEPT for way in ways.values())
    lines = []
    for (spec, words), way in ways.items():
        of_models = [rows[model, way] for model in comparison.SWEPT]
        lines.append([f"`{spec}`", words, *(cell for row in of_models for cell in (row.bytes and row.bytes / 1e3, quality(row, rows[row.model, REFERENCE], usual),
                                                                                    row.step("1gbit") and 1e3 * row.step("1gbit")))])
    return tables.table(["exchange", "unit", *(cell for model in comparison.SWEPT for cell in (
        (f"{model}: kB a step", "{:s3}"), final_head(model, usual), ("step at 1 Gbit/s, ms", "{:d1}")))], lines)


def rate_table() -> dict:
    """The rates tried for codecs that vote, and the one chosen."""
    lines = []
    for model in comparison.FACTORS:
        for way in filter(comparison.votes, comparison.ways(model)):
            tried = [(cell.rate, run) for cell in comparison.tuning(model, way) if (run := cell.load())]
            words = ", ".join(f"{rate:g}: {quality_text(model, run['final'])}" for rate, run in tried)
            lines.append([f"`{way}`", model, words or "not run", comparison.best_rate(model, way)])
    return tables.table(["codec", "model", "rates tried: accuracy in %, or bits, of held-out samples", ("taken", "{:g}")], lines)


def missing_table() -> dict:
    lines = [[f"`{part}`", [missing, total], minutes] for part, minutes, missing, total in comparison.lacking() if missing]
    return tables.table(["part", ("cells that are missing", "{} of {}"), "minutes of the whole part"], lines or [["none", None, None]])


def rows_of() -> dict:
    """Results for each model and exchange."""
    return {(model, way): Row(model, way) for model in comparison.FACTORS for way in (*comparison.ways(model), *comparison.swept(model))}


def compared(model: str, rows: dict) -> list[Row]:
    """Those of a model's table."""
    return [rows[model, way] for way in comparison.ways(model) if way not in comparison.SPARSE]


def tables_of(rows: dict) -> dict:
    made = {"first to the target": leader_table(rows), **{model: model_table(model, compared(model, rows)) for model in comparison.FACTORS}}
    made |= {"sparse gradients": sparse_table(rows), "sweeps": sweep_table(rows), "units": unit_table(rows), "rates": rate_table(), "not run": missing_table()}
    return {**made, "environment": environment(runs_of(rows))}


def runs_of(rows: dict) -> list[dict]:
    return [run for row in rows.values() for run in (*row.runs.values(), row.times) if run]


def place(run: dict) -> str:
    return run["environment"].get("place") or place_of(run)


def environment(runs: list[dict]) -> dict:
    dates: dict[str, list] = {}
    for run in runs:
        dates.setdefault(place(run), []).append(run["environment"]["date"])
    return tables.table(["cells", "from", "to", "on"], ([len(some), min(some), max(some), on] for on, some in dates.items()))


# ---- data and picture -------------------------------------------------------------------------------------------------


def figure(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


PART = ("rate", "bytes", "kernel_bytes", *(f"step_{network}" for network in NETWORKS), *(f"final_{seed}" for seed in comparison.SEEDS),
        *(f"steps_{seed}" for seed in comparison.SEEDS))
ORIGINS = (*(f"trained_{seed}" for seed in comparison.SEEDS), "timed")  # the lines that say when and where
COLUMNS = ("model", "exchange", "class", *PART, *ORIGINS, "date", "on")


def origin(run: dict) -> tuple[str, str]:
    """The day, and the machine with its libraries."""
    return run["environment"]["date"], place(run)


def line_of(row: Row, environments: list) -> dict:
    steps = {f"steps_{seed}": "not reached" if count is None else count for seed, count in row.reached.items()}
    figures = {"rate": row.rate or None, "bytes": row.bytes, "kernel_bytes": row.port(NETWORKS[0]), **{f"step_{network}": row.step(network) for network in NETWORKS},
               **{f"final_{seed}": value for seed, value in row.finals.items()}}
    runs = {**{f"trained_{seed}": run for seed, run in row.runs.items()}, **({"timed": row.times} if row.times else {})}
    return {"model": row.model, "exchange": row.way, "class": class_of(row.way), **{key: figure(value) for key, value in figures.items()}, **steps,
            **{key: environments.index(origin(run)) for key, run in runs.items()}}


def data_of(rows: dict) -> str:
    """One line a model and exchange: bytes a step as the exchange and, at 50 Mbit/s, the kernel count them; seconds a step; by seed final accuracy or bits
    and steps to the target. `class` is "tune" where a learning rate was tried, "environment" in the lines whose numbers ORIGINS has."""
    tried = [(cell, run) for model in comparison.FACTORS for cell in comparison.cells_of("tune", model, 0) if (run := cell.load())]
    environments = sorted({origin(run) for run in (*(run for _, run in tried), *runs_of(rows))})
    out = io.StringIO()
    lines = csv.DictWriter(out, COLUMNS, restval="", lineterminator="\n")
    lines.writeheader()
    lines.writerows({"exchange": i, "class": "environment", "date": date, "on": on} for i, (date, on) in enumerate(environments))
    lines.writerows({"model": cell.model, "exchange": cell.way, "class": "tune", "rate": figure(cell.rate), "final_0": figure(run["final"]),
                     "trained_0": environments.index(origin(run))} for cell, run in tried)
    lines.writerows(line_of(row, environments) for row in rows.values() if row.runs or row.times)
    return out.getvalue()


def number(text: str) -> float | None:
    return float(text) if text else None


def cells_of_line(line: dict, environments: dict):
    """The cells that a line of the CSV was made of, and their results."""
    model, way, rate = line["model"], line["exchange"], number(line["rate"]) or 0.0

    def about(key: str) -> dict:
        return {"environment": environments[line[key]]}

    if line["class"] == "tune":
        yield comparison.Cell("tune", model, way, comparison.TUNING_SEED, rate), {"final": number(line["final_0"]), **about("trained_0")}
        return
    kind = "sweep" if way in comparison.swept(model) else "learn"
    for seed in comparison.SEEDS:
        if (final := number(line[f"final_{seed}"])) is not None:
            steps = line[f"steps_{seed}"]
            found = {"final": final, "steps": int(steps) if steps.isdigit() else None, "bytes": number(line["bytes"]), **about(f"trained_{seed}")}
            yield comparison.Cell(kind, model, way, seed, rate), found
    if line["timed"]:
        networks = {network: {"step": number(line[f"step_{network}"]), "bytes": number(line["kernel_bytes"])} for network in NETWORKS}
        yield comparison.Cell("time", model, way), {"networks": networks, **about("timed")}


def restore(folder: Path) -> None:
    """Writes the cells of the folder's comparison.csv that are missing here, with the figures that it has of them."""
    with (folder / "comparison.csv").open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    environments = {line["exchange"]: {"date": line["date"], "place": line["on"]} for line in lines if line["class"] == "environment"}
    for line in (line for line in lines if line["class"] != "environment"):
        for cell, found in cells_of_line(line, environments):
            if cell.load() is None:
                save(cell.path, found)


def panel(model: str, rows: dict) -> str | None:
    """Quality over bytes, a line per sweep; the broken line is uncompressed training. None where nothing was run."""
    about, plain = MODELS[model].quality, rows[model, REFERENCE]
    lines = []
    for i, (name, some) in enumerate(comparison.SWEEPS.items()):
        points = [(rows[model, way].bytes, statistics.fmean(rows[model, way].finals.values())) for way in some if rows[model, way].finals]
        lines.append(charts.Series(name, f"s{3 + i}", sorted(points)))
    values = [value for each in lines for _, value in each.points if math.isfinite(value)]
    if not values or not plain.finals or any(len(each.points) < 2 for each in lines):
        return None
    uncompressed = statistics.fmean(plain.finals.values())
    low, high = min(*values, uncompressed), max(*values, uncompressed)
    margin = 0.05 * (high - low) or 0.01
    bottom, top = (low - margin, high + margin) if about.higher_is_better else (high + margin, low - margin)
    return charts.curves(lines, f"{model}: quality over bytes", f"{model}: bytes that a rank sends in a step", uncompressed,
                         lambda value: f"{100 * value:.1f} %" if about.higher_is_better else f"{value:.2f}", bottom, top, log=True, height=PANEL)


def picture(rows: dict) -> str | None:
    """A plot a model, one below the other; None while one lacks a line."""
    panels = [panel(model, rows) for model in comparison.SWEPT]
    if None in panels:
        return None
    body = []
    for i, name in enumerate(comparison.SWEEPS):
        x = 52 + 118 * i
        body += [f'<g class="series s{3 + i}"><polyline points="{x},8 {x + 16},8"/></g>', charts.text(x + 20, 12, name, "start")]
    body += [f'<g transform="translate(0 {24 + PANEL * i})">{pictures.inside(each)}</g>' for i, each in enumerate(panels)]
    return pictures.standing_alone(body, "Quality over bytes; broken line: uncompressed", charts.WIDTH, 24 + PANEL * len(panels))


def publish(folder: Path) -> None:
    """Page, CSV and picture."""
    rows = rows_of()
    page = tables.publish(folder, "comparison", "make comparison", tables_of(rows))
    tables.write_whole(folder / "comparison.csv", data_of(rows))
    if drawn := picture(rows):
        tables.write_whole(folder / "comparison.svg", drawn + "\n")
    print(page)
