# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Steps of JAX and of Keras with compressed gradients, beside PyTorch's and beside loops by hand: docs/results/frameworks.md.

    make frameworks        what is missing (10 minutes on an idle machine), then the tables
    python -m bench.engines.frameworks NAME…   these cells, or all whose names begin so; --page: the tables alone; --quick: minutes, into out/bench

A cell is a file under out/frameworks: delete it to have it made again. Ranks run in build/venv-users, which `scripts/users --install` makes; the cell
of hosts needs the network lab. Needs a release build with Gloo.
"""

from __future__ import annotations

import datetime
import functools
import sys

from bench.engines import engines
from bench.lib import cells, machine, tables
from bench.lib.programs import ROOT

RESULTS = ROOT / "out" / "frameworks"
PYTHON = ROOT / "build" / "venv-users" / "bin" / "python"
BACKENDS = ("tensorflow", "jax", "torch")
ALONE = ("--hosts", 2, "--emulate", "--no-pin")
PLANS = {
    "hosts": ({"ways": ["jax 3lc inside", "ddp 3lc", "jax none inside"], "repeats": 3, "warmup": 4, "steps": 10}, ("--hosts", 4, "--rate", "50mbit")),
    "inside": ({"ways": ["jax 3lc inside", "jax 3lc outside"], "repeats": 6, "warmup": 5, "steps": 40}, ALONE),
    **{f"keras-{backend}": ({"backend": backend, "ways": ["fit 3lc", "hand 3lc"], "repeats": 3, "warmup": 5, "steps": 200}, ALONE) for backend in BACKENDS},
}


def cells_of(quick: bool = False) -> list[cells.Cell]:
    folder, some = (ROOT / "out" / "bench" / "frameworks", {"repeats": 1, "warmup": 2, "steps": 3}) if quick else (RESULTS, {})
    return [cells.Cell(name, functools.partial(engines.timed, "bench.engines.frameworks_rank", {**plan, **some}, *shape, python=PYTHON), folder)
            for name, (plan, shape) in PLANS.items()]


def tables_of(found: dict) -> dict:
    """found: by cell, what it gave, or None."""
    bars, steps = [], []

    def bar(what: str, cell: str, above: str, below: str, wanted: str) -> None:
        if found.get(cell):
            ways = found[cell]["ways"]
            bars.append([what, f"{ways[above]['seconds'] / ways[below]['seconds']:.2f}", wanted])

    bar("four hosts, 50 Mbit/s: a step of JAX, `none` / `3lc`", "hosts", "jax none inside", "jax 3lc inside", "≥ 15")
    bar("four hosts, 50 Mbit/s, `3lc`: a step of JAX / of PyTorch's DDP", "hosts", "jax 3lc inside", "ddp 3lc", "≤ 1.3")
    bar("two ranks, no limit, `3lc`: `averaged` inside jit / `Averager` outside", "inside", "jax 3lc inside", "jax 3lc outside", "≤ 1.5")
    for backend in BACKENDS:
        bar(f"two ranks, no limit, `3lc`, Keras on {backend}: `model.fit` / the loop by hand", f"keras-{backend}", "fit 3lc", "hand 3lc", "≤ 1.2")
    for name in PLANS:
        if found.get(name):
            steps += [[name, f"`{way}`", *(1e3 * seen[key] for key in ("seconds", "least", "most"))] for way, seen in found[name]["ways"].items()]
    if not bars:
        return {}
    return {"bars": tables.table(["what", "seen", "bar"], bars),
            "steps": tables.table(["cell", "way", ("a step, ms", "{:s3}"), ("least", "{:s3}"), ("most", "{:s3}")], steps),
            "machine": tables.of_pairs([("CPU", machine.cpu()), ("date", datetime.date.today().isoformat())])}


def main(arguments=None) -> int:
    given = cells.options("python -m bench.engines.frameworks", __doc__, arguments)
    folder = ROOT / "out" / "bench" if given.quick else ROOT / "docs" / "results"
    return cells.make(cells_of(given.quick), given, lambda found: tables.publish(folder, "frameworks", "make frameworks", tables_of(found), keep=True))


if __name__ == "__main__":
    sys.exit(main())
