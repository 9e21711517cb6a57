# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Time to the target of thc, over servers and without, beside other exchanges, with lstm and gpt under Adam: docs/results/thc.md.

    make thc                                          what is missing (three hours, in parts), then the page and its cells
    python -m bench.aggregation.thc time learn-gpt-4  these cells, or all whose names begin so; --list: all, with their minutes
    python -m bench.aggregation.thc --page            the page alone; --restore: first take cells from thc.cells

A cell is a file under out/thc: delete it to have it made again. `learn` times nothing, so that a busy machine changes no figure; `time` and `loss` need
an idle one, the network lab with namespaces, and for servers in the kernel root. Needs a release build, or LACONIC_LIBRARY.
"""

from __future__ import annotations

import functools
import json
import math
import sys
import types
from pathlib import Path

from bench.learning.comparison_rank import trained
from bench.learning.comparison_tables import TimeToTarget, environment, quality, reached_text, units_of
from bench.learning.learning import environment as here
from bench.lib import cells, group, lab, models, servers, tables
from bench.lib.labels import label_of
from bench.lib.network import rate_text
from bench.lib.programs import ROOT
from bench.lib.results import REFERENCE, by_network

RESULTS = ROOT / "out" / "thc"
MODELS, WORLDS, SEEDS, NETWORKS, LOSS = ("gpt", "lstm"), (4, 8), (0, 1, 2), ("200mbit", "1gbit"), "1%"
THC, PLACES = ("thc:bits=2", "thc:bits=3", "thc:bits=4"), ("", "@switch", "@hosts", "@xdp")
OTHERS = ("fp16", "int8", "powersgd:rank=4", "terngrad", "topk:ratio=0.1")
LEARNED = (REFERENCE, *OTHERS, *THC)
SPECS = (REFERENCE, *OTHERS, *(spec + place for spec in THC for place in PLACES))
AHEAD = 1.2  # bar
STEPS = ("--repeats", "3", "--slow-steps", "10")  # that are timed
#: of a cell, on two idle cores, by the number of workers
MINUTES = {"learn": {4: 5, 8: 9}, "time": {4: 5, 8: 10}, "loss": {4: 3, 8: 6}}


# ---- cells ------------------------------------------------------------------------------------------------------------


def learn(rank: int, model: str, seed: int, ways: tuple, steps: int, every: int, out: Path) -> None:
    """On one rank; rank 0 evaluates and writes."""
    import torch.distributed as dist

    data, found = models.load(model).data(None), {}
    for way in ways:
        cell = types.SimpleNamespace(kind="learn", model=model, way=way, seed=seed, rate=0)
        run = trained(cell, data, rank, dist.get_world_size(), steps, every)
        if rank == 0:
            found[way] = {"final": run["final"], "steps": run["steps"]}
    if rank == 0:
        out.write_text(json.dumps({"ways": found, "environment": here()}))


def learning(model: str, world: int, seed: int) -> dict:
    about = models.about(model)
    return cells.short(group.answered(learn, world, model, seed, LEARNED, about.steps, about.every))


def measured(model: str, world: int, networks: tuple, specs: tuple, steps: tuple = STEPS) -> dict:
    """By the demo of aggregation servers, without what it learns."""
    from examples.demo import aggregation

    command, progress = lab.laconic_command(), lab.Progress()
    if servers.why_not_in_the_kernel(command):
        specs = tuple(spec for spec in specs if not servers.is_in_the_kernel(spec))
    given = aggregation.options(["--times-only", "--model", model, "--workers", str(world), "--networks", " ".join(networks), "--specs", " ".join(specs), *steps])
    plan = aggregation.plan_of(given, given.specs)
    raw = aggregation.train(given, plan, command, progress)
    found = {view.network: {row.spec: {"step": row.step, "bytes": row.kernel_bytes, "parts": row.parts} for row in view.rows} for view in by_network(raw, plan)}
    return cells.short({"networks": found, "environment": here()})


def lossy(model: str, world: int) -> dict:
    """The first thc and the first other exchange of each network."""
    found = {cell.name: cell.load() for cell in cells_of()}
    chosen = dict.fromkeys(row.spec for network in NETWORKS for row in leads(found, model, world, network) if row)
    if any(found[each] is None for each in (name("learn", model, world, 0), *(name("time", model, world, network) for network in NETWORKS))):
        raise cells.CellError("cells of time and learn come before: they say who is first")
    return measured(model, world, tuple(f"{network},{LOSS}" for network in NETWORKS), tuple(chosen))


def name(*words) -> str:
    return "-".join(map(str, words))


def cells_of() -> list[cells.Cell]:
    """One seed first."""
    def cell(run, *words) -> cells.Cell:
        return cells.Cell(name(*words), functools.partial(run, *words[1:]), RESULTS, MINUTES[words[0]][words[2]])

    def timed(model: str, world: int, network: str) -> dict:
        return measured(model, world, (network,), SPECS)

    settings = [(model, world) for world in WORLDS for model in MODELS]
    made = [cell(learning, "learn", *each, 0) for each in settings] + [cell(timed, "time", *each, network) for each in settings for network in NETWORKS]
    return made + [cell(lossy, "loss", *each) for each in settings] + [cell(learning, "learn", *each, seed) for seed in SEEDS[1:] for each in settings]


# ---- tables -----------------------------------------------------------------------------------------------------------


class Row(TimeToTarget):
    """One exchange with a model and a number of workers. found: the result of each cell, None where it is missing."""

    def __init__(self, found: dict, model: str, world: int, spec: str):
        self.model, self.spec = model, spec
        runs = {seed: found.get(name("learn", model, world, seed)) for seed in SEEDS}
        learned = {seed: run["ways"][spec.partition("@")[0]] for seed, run in runs.items() if run}
        self.finals = {seed: run["final"] for seed, run in learned.items()}
        self.reached = {seed: run["steps"] for seed, run in learned.items()}
        self.times = {}
        for cell in (name("loss", model, world), *(name("time", model, world, network) for network in NETWORKS)):
            for network, specs in (found[cell]["networks"] if found.get(cell) else {}).items():
                if spec in specs:
                    self.times[network] = specs[spec]

    def step(self, network: str) -> float | None:
        return self.times[network]["step"] if network in self.times else None


def rows_of(found: dict, model: str, world: int) -> list[Row]:
    return [Row(found, model, world, spec) for spec in SPECS]


def first(rows: list[Row], network: str) -> Row | None:
    timed = [row for row in rows if row.time(network) is not None and math.isfinite(row.time(network))]
    return min(timed, key=lambda row: row.time(network), default=None)


def leads(found: dict, model: str, world: int, network: str) -> tuple[Row | None, Row | None]:
    """The first thc with a server, and the first exchange that is not thc."""
    rows = rows_of(found, model, world)
    return first([row for row in rows if "@" in row.spec], network), first([row for row in rows if not row.spec.startswith("thc")], network)


def milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds


def exchanges(found: dict, model: str, world: int) -> dict | None:
    rows = rows_of(found, model, world)
    plain, target = rows[0], models.about(model).quality.short(models.about(model).target)
    head = ["exchange", f"final, {units_of(model)}", f"steps to {target}", ("kB a step, kernel", "{:s3}")]
    head += [(f"step at {rate_text(network)}, ms", "{:s3}") for network in NETWORKS] + [(f"{target} at {rate_text(network)}, s", "{:.1f}") for network in NETWORKS]
    lines = []
    for row in rows:
        if row.times or row.finals and "@" not in row.spec:
            sent = next((row.times[network]["bytes"] for network in NETWORKS if network in row.times), None)
            lines.append([label_of(row.spec), quality(row, plain), reached_text(row.steps), sent and sent / 1e3,
                          *(milliseconds(row.step(network)) for network in NETWORKS), *(reached_text(row.time(network)) for network in NETWORKS)])
    return tables.table(head, lines) if lines else None


def settings(found: dict):
    """Model, workers, network, first thc with a server, first other, of those that are known."""
    for model in MODELS:
        for world in WORLDS:
            for network in NETWORKS:
                served, other = leads(found, model, world, network)
                if served and other:
                    yield model, world, network, served, other


def bars(found: dict) -> dict | None:
    lines = [[model, world, rate_text(network), label_of(served.spec), served.time(network), label_of(other.spec), other.time(network),
              other.time(network) / served.time(network)] for model, world, network, served, other in settings(found)]
    return tables.table(["model", ("workers", "{}"), "network", "first `thc` with a server", ("s", "{:.1f}"), "first other exchange", ("s", "{:.1f}"),
                         (f"× ahead, at least {AHEAD} once", "{:.2f}")], lines) if lines else None


def parts(found: dict) -> dict | None:
    """Where a step's time goes."""
    names = {"compute": "compute and update", "encode": "encode", "wire": "wire and waiting", "decode": "decode", "hand-over": "hand-over"}
    lines = [[model, world, rate_text(network), label_of(row.spec), *(milliseconds(row.times[network]["parts"].get(part)) for part in names)]
             for model, world, network, *two in settings(found) for row in two if row.spec != REFERENCE]
    return tables.table(["model", ("workers", "{}"), "network", "exchange", *((f"{words}, ms", "{:.1f}") for words in names.values())], lines) if lines else None


def losses(found: dict) -> dict | None:
    lines = []
    for model in MODELS:
        for world in WORLDS:
            for row in rows_of(found, model, world):
                for network in NETWORKS:
                    if (lossy := f"{network},{LOSS}") in row.times and network in row.times:
                        lines.append([model, world, rate_text(lossy), label_of(row.spec), milliseconds(row.step(lossy)), row.step(lossy) / row.step(network),
                                      reached_text(row.time(lossy))])
    return tables.table(["model", ("workers", "{}"), "network", "exchange", ("step, ms", "{:s3}"), ("× without loss", "{:.2f}"), ("to the target, s", "{:.1f}")],
                        lines) if lines else None


def tables_of(found: dict) -> dict:
    """Rows of what there is."""
    made = {"bars": bars(found), **{f"{model}, {world} workers": exchanges(found, model, world) for model in MODELS for world in WORLDS},
            "parts of a step": parts(found), "loss": losses(found)}
    runs = [run for run in found.values() if run]
    return {key: table for key, table in made.items() if table} | ({"environment": environment(runs)} if runs else {})


def publish(folder: Path, found: dict) -> None:
    if made := tables_of(found):
        print(tables.publish(folder, "thc", "make thc", made))


def main(arguments=None) -> int:
    given = cells.options("python -m bench.aggregation.thc", __doc__, arguments, quick=False, kept=True)
    return cells.make_kept(cells_of(), given, "thc", functools.partial(publish, given.out))


if __name__ == "__main__":
    sys.exit(main())
