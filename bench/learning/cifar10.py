# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""3LC beside what its paper compares it with, on its paper's task, CIFAR-10 with a residual net: docs/results/cifar10.md.

    make cifar10 DATA=FILE                                            what is missing (five hours, in parts), then the page and its cells
    python -m bench.learning.cifar10 --data FILE learn-0 time         these cells, or all whose names begin so; --list: all, with their minutes
    python -m bench.learning.cifar10 --page                           the page alone; --restore: first take cells from cifar10.cells

A cell is a file under out/cifar10: delete it to have it made again. FILE: CIFAR-10 as .npz (docs/guide/your-own-model.md). `learn` times nothing, so that
a busy machine changes no figure; `time` needs an idle one, and the network lab. Needs a release build, or LACONIC_LIBRARY.
"""

from __future__ import annotations

import functools
import json
import math
import statistics
import sys
import tempfile
import types
from pathlib import Path

from bench.learning import comparison
from bench.learning.comparison_rank import trained
from bench.learning.comparison_tables import code, environment
from bench.learning.learning import environment as here
from bench.lib import cells, group, lab, models, tables
from bench.lib.network import bits_per_second, rate_text
from bench.lib.programs import ROOT
from bench.lib.results import REFERENCE

RESULTS = ROOT / "out" / "cifar10"
MODEL, WORLD, SEEDS, NETWORKS = "cifar10", 4, (0, 1, 2), ("10mbit", "100mbit")
BARRED = ("3lc", "sharded:3lc:s=1.5")  # also trained four times as long, with all seeds: 1,000 steps show that the others miss the bar
SPARSE = {"topk:ratio=0.05": 0.05, "topk:ratio=0.25": 0.25}
WAYS = (REFERENCE, "3lc", "3lc:s=1.5", "3lc:s=1.75", "sharded:3lc", "sharded:3lc:s=1.5", "sharded:3lc:s=1.75", "int8", "terngrad:pack=quartic", "onebit", *SPARSE, "outer2:none")
ABOUT = models.about(MODEL)
#: kind of a cell → steps, those between evaluations, and the exchanges
LENGTHS = {"learn": (ABOUT.steps, ABOUT.every, WAYS),
           "long": (4 * ABOUT.steps, 4 * ABOUT.every, (REFERENCE, *BARRED))}
RATES, RATED = (0.015, 0.05, 0.1), (REFERENCE, "3lc")  # of learning beside the model's own, and what learns with them
FEWER, POINTS, SOONER = 39, -0.5, 16  # bars
SECONDS = 5.0  # of measured steps, on each network
HEADERS = 1.07  # bytes of a port for one that an exchange counts, by the kernel's count of float32's
MINUTES = {"learn": 5, "long": 18, "rate": 5, "time": 2}  # of a cell, on two idle cores


# ---- cells ------------------------------------------------------------------------------------------------------------


def learn(rank: int, way: str, seed: int, data: str, steps: int, every: int, learning_rate: float, out: Path) -> None:
    """On one rank; rank 0 evaluates and writes. final: accuracy after the last step. learning_rate: 0 for the model's own."""
    import torch.distributed as dist

    cell = types.SimpleNamespace(kind="learn", model=MODEL, way=way, seed=seed, rate=learning_rate)
    found = trained(cell, models.load(MODEL).data(data), rank, dist.get_world_size(), steps, every)
    if rank == 0:
        out.write_text(json.dumps({**found, "final": found["curve"][-1][1], "environment": here()}))


def learning(kind: str, way: str, seed: int, data: str | None, learning_rate: float = 0.0) -> dict:
    return noted(group.answered(learn, WORLD, way, seed, needed(data), *LENGTHS[kind][:2], learning_rate), data)


def timed(way: str, data: str | None, emulate: bool = False) -> dict:
    """Steps on each network."""
    with tempfile.TemporaryDirectory(prefix="laconic-cifar10-") as folder:
        cell = types.SimpleNamespace(model=MODEL, way=way, path=Path(folder) / "time.json")
        comparison.measure([cell], lab.laconic_command(), SECONDS, emulate, data=needed(data), networks=NETWORKS)
        return noted(json.loads(cell.path.read_text()), data)


def noted(found: dict, data: str) -> dict:
    return cells.short({**found, "environment": {**found["environment"], "data": Path(data).name}})


def needed(data: str | None) -> str:
    if not data:
        raise cells.CellError("it needs CIFAR-10 as .npz: DATA=FILE, or --data FILE")
    return str(Path(data).resolve())


def name(kind: str, way: str, which: float | None = None) -> str:
    """which: a seed, or a learning rate."""
    return f"{kind}-" + (f"{which:g}-" if which is not None else "") + way.replace(":", "_")


def cells_of(data: str | None) -> list[cells.Cell]:
    """All with one seed first."""
    def learned(kind: str, way: str, seed: int) -> cells.Cell:
        return cells.Cell(name(kind, way, seed), functools.partial(learning, kind, way, seed, data), RESULTS, MINUTES[kind])

    made = [learned("learn", way, 0) for way in WAYS]
    made += [cells.Cell(name("time", way), functools.partial(timed, way, data), RESULTS, MINUTES["time"]) for way in WAYS]
    made += [learned("long", way, 0) for way in LENGTHS["long"][2]]
    made += [cells.Cell(name("rate", way, rate), functools.partial(learning, "learn", way, 0, data, rate), RESULTS, MINUTES["rate"]) for rate in RATES for way in RATED]
    return made + [learned("long", way, seed) for seed in SEEDS[1:] for way in LENGTHS["long"][2]]


# ---- tables -----------------------------------------------------------------------------------------------------------


class Row:
    """One exchange. found: the result of each cell, None where it is missing. kind: of LENGTHS."""

    def __init__(self, way: str, found: dict, kind: str = "learn"):
        self.way = way
        runs = {seed: found.get(name(kind, way, seed)) for seed in SEEDS}
        self.finals = {seed: run["final"] for seed, run in runs.items() if run}
        self.bytes = next((run["bytes"] for run in runs.values() if run), None)
        times = found.get(name("time", way))
        self.steps = {network: self._step(network, times["networks"][network]) for network in NETWORKS} if times else {}

    def _step(self, network: str, timed: dict) -> float:
        """Seconds. Steps are timed at the beginning of a training: of further bytes that a mean step has, the time is added."""
        return timed["step"] + 8 * max((self.bytes or 0) * HEADERS - (timed["bytes"] or math.inf), 0) / bits_per_second(network)

    def points(self, plain: Row) -> list[float]:
        """Of accuracy, above float32, by seed."""
        return [100 * (value - plain.finals[seed]) for seed, value in self.finals.items() if seed in plain.finals]

    def fewer(self, plain: Row) -> float | None:
        return plain.bytes / self.bytes if self.bytes and plain.bytes else None

    def sooner(self, plain: Row, network: str) -> float | None:
        return plain.steps[network] / self.steps[network] if self.steps and plain.steps else None


def elements() -> tuple[int, int]:
    """Of parameters that are compressed, and of short ones."""
    import torch

    net = models.load(MODEL).build(types.SimpleNamespace(train=torch.zeros(1, 3, 32, 32), classes=10))
    counts = [p.numel() for p in net.parameters()]
    return sum(count for count in counts if count > 4096), sum(count for count in counts if count <= 4096)


def bitmap_bytes(ratio: float, large: int, short: int) -> float:
    """That a rank sends in a step: a bit for each element and a float32 for each that is selected, up and down."""
    return 2 * (WORLD - 1) / WORLD * (large * (1 / 8 + 4 * ratio) + 4 * short)


def with_bitmap(row: Row, ratio: float) -> Row:
    """The same values in the paper's form: bytes are computed, and seconds are those that its further bytes take."""
    made = Row(row.way, {})
    made.finals, made.bytes = row.finals, bitmap_bytes(ratio, *elements())
    if row.bytes:
        made.steps = {network: step + 8 * HEADERS * (made.bytes - row.bytes) / bits_per_second(network) for network, step in row.steps.items()}
    return made


def spread(values: list[float], form: str) -> str | None:
    """The mean, and with several values their standard deviation."""
    if not values:
        return None
    return f"{statistics.fmean(values):{form}}" + (f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else "")


def line(label: str, row: Row, plain: Row) -> list:
    points = None if row is plain else spread(row.points(plain), "+.2f")
    return [label, spread([100 * value for value in row.finals.values()], ".2f"), points, row.bytes and row.bytes / 1e3, row.fewer(plain),
            *(row.steps and 1e3 * row.steps[network] or None for network in NETWORKS), *(row.sooner(plain, network) for network in NETWORKS)]


def bar(label: str, row: Row, plain: Row) -> list | None:
    """None while a figure is missing."""
    fewer, points, sooner = row.fewer(plain), row.points(plain), row.sooner(plain, NETWORKS[0])
    if fewer is None or sooner is None or len(points) < len(SEEDS):
        return None
    mean, error = statistics.fmean(points), statistics.stdev(points) / math.sqrt(len(points))
    missed = [what for what, met in (("bytes", fewer >= FEWER), ("accuracy", mean >= POINTS), ("time", sooner >= SOONER)) if not met]
    return [label, fewer, [mean, error], sooner, ", ".join(missed) or "none"]


def exchanges(found: dict, kind: str) -> dict | None:
    rows = {way: Row(way, found, kind) for way in LENGTHS[kind][2]}
    plain = rows[REFERENCE]
    lines = []
    for way, row in rows.items():
        if row.finals or row.steps and kind == "learn":
            lines.append(line(code(way), row, plain))
            if way in SPARSE and row.bytes:
                lines.append(line(f"{code(way)} as a bitmap, computed", with_bitmap(row, SPARSE[way]), plain))
    head = ["exchange", "accuracy, %", "points above float32", ("kB a step", "{:s3}"), ("× fewer", "{:d1}")]
    head += [(f"step at {rate_text(network)}, ms", "{:s3}") for network in NETWORKS] + [(f"× sooner at {rate_text(network)}", "{:d1}") for network in NETWORKS]
    return tables.table(head, lines) if lines else None


def rates(found: dict) -> dict | None:
    """Of learning: accuracies of seed 0, the model's own among them."""
    runs = {rate: [found.get(name("rate", way, rate)) for way in RATED] for rate in RATES}
    runs[models.load(MODEL).LEARNING_RATE] = [found.get(name("learn", way, 0)) for way in RATED]
    lines = [[f"{rate:g}", *(100 * run["final"] for run in both), 100 * (both[1]["final"] - both[0]["final"])] for rate, both in sorted(runs.items()) if all(both)]
    heads = ["learning rate", *((f"{code(way)}, %", "{:.2f}") for way in RATED), ("points above float32", "{:+.2f}")]
    return tables.table(heads, lines) if len(lines) > 1 else None


def bars(found: dict) -> dict | None:
    """Of long trainings."""
    plain = Row(REFERENCE, found, "long")
    lines = [each for way in BARRED if (each := bar(code(way), Row(way, found, "long"), plain))]
    head = ["exchange", (f"× fewer, at least {FEWER}", "{:d1}"), (f"points, at least {POINTS}", "{:+.2f} ± {:.2f}"),
            (f"× sooner at {rate_text(NETWORKS[0])}, at least {SOONER}", "{:d1}"), "missed"]
    return tables.table(head, lines) if lines else None


def tables_of(found: dict) -> dict:
    """Rows of what there is."""
    made = {"exchanges": exchanges(found, "learn"), "longer": exchanges(found, "long"), "rates": rates(found), "bars": bars(found)}
    runs = [run for run in found.values() if run]
    return {key: table for key, table in made.items() if table} | ({"environment": environment(runs)} if runs else {})


def publish(folder: Path, found: dict) -> None:
    if made := tables_of(found):
        print(tables.publish(folder, "cifar10", "make cifar10 DATA=FILE", made))


def main(arguments=None) -> int:
    given = cells.options("python -m bench.learning.cifar10", __doc__, arguments, quick=False, kept=True, data=True)
    return cells.make_kept(cells_of(given.data), given, "cifar10", functools.partial(publish, given.out))


if __name__ == "__main__":
    sys.exit(main())
