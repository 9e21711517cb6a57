# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Trains mlp and cnn of the demo with thc: what docs/results/aggregation-learning.md is made of. Below half an hour on two cores.

    python -m bench.aggregation.aggregation_learning                   every run that is not there yet, then the tables
    python -m bench.aggregation.aggregation_learning --question faults  only this one, and no tables; --slots 1: one run at a time
    python -m bench.aggregation.aggregation_learning --page            trains nothing, writes the tables from what is there

All workers are in one process (virtual_workers.py); servers are `laconic serve`, lossy links `laconic lab --loss`. A run is a file in
out/models/aggregation, written when it has ended: what was cut off goes on where it was. Needs a release build, or LACONIC_LIBRARY
and LACONIC_BIN.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import dataclasses
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.aggregation.aggregation_learning_tables import tables_of
from bench.learning.learning import ROOT, environment, read, save
from bench.lib import lab, models, tables

RESULTS = ROOT / "out" / "models" / "aggregation"
MODELS, STEPS, EVERY = ("mlp", "cnn"), 100, 5
#: steps between those whose error is measured
NOTED = 10
SEEDS, BITS = (0, 1, 2), (2, 3, 4)
#: of `widths`: number of workers → seeds; samples of a step, of all workers, and steps
WORLDS = {4: SEEDS, 16: SEEDS, 64: (0,)}
SAMPLES, WIDTH_STEPS = 256, 50
DEADLINE_MS = 5.0


@dataclasses.dataclass(frozen=True)
class Cell:
    """One run. spec "": float32. batch: samples of a worker; loss in %."""

    question: str
    name: str
    model: str
    seed: int
    world: int
    batch: int
    spec: str = ""
    served: bool = False
    loss: float = 0.0
    quorum: float = 1.0
    late: int = 0
    steps: int = STEPS

    @property
    def path(self) -> Path:
        words = [self.question, self.name.replace(" ", "_").replace("%", ""), self.model, f"of{self.world}", f"seed{self.seed}"]
        return RESULTS / ("-".join(words) + ".json")

    def load(self) -> dict | None:
        found = read(self.path)
        return found if found and found["cell"] == dataclasses.asdict(self) else None


#: name → what differs from float32: all with ten workers
FAULTS = {"float32": {}, "last": {"spec": "thc"}, "exact": {"spec": "thc:scale=exact"},
          "1 % loss": {"spec": "thc", "served": True, "loss": 1.0},
          "2 of 10 late": {"spec": "thc", "served": True, "quorum": 0.8, "late": 2},
          "loss and quorum": {"spec": "thc", "served": True, "loss": 1.0, "quorum": 0.75}}


def cells(question: str) -> list[Cell]:
    if question == "faults":
        return [Cell(question, name, model, seed, 10, models.load(model).BATCH, **options)
                for seed in SEEDS for model in MODELS for name, options in FAULTS.items()]
    specs = {"float32": "", **{f"bits={bits}": f"thc:bits={bits}" for bits in BITS}}
    return [Cell(question, name, model, seed, world, SAMPLES // world, spec, steps=WIDTH_STEPS) for model in MODELS
            for world, seeds in WORLDS.items() for seed in seeds for name, spec in specs.items()]


QUESTIONS = ("faults", "widths")


# ---- one training ------------------------------------------------------------------------------------------------------


class Mean:
    """An exchange of float32."""

    def __init__(self, parameters, world: int):
        import numpy

        self.gradients = numpy.zeros((world, sum(p.numel() for _, p in parameters)), numpy.float32)

    def exchange(self) -> None:
        self.gradients[:] = self.gradients.mean(0)

    def close(self) -> None:
        pass


def exchange_of(cell: Cell, named, server: tuple) -> object:
    if not cell.spec:
        return Mean(named, cell.world)
    from bench.aggregation.virtual_workers import VirtualWorkers

    address, token = server
    return VirtualWorkers(cell.spec, [(name, tuple(p.shape)) for name, p in named], cell.world, seed=cell.seed, server=address,
                          token=token, quorum=cell.quorum, deadline_ms=DEADLINE_MS, late=cell.late)


def error_of(workers, before) -> tuple[float, float]:
    """Squared error of the mean, over the squared mean, and over the inputs' mean square; of compressed parameters."""
    import numpy

    error = own = inputs = 0.0
    for begin, rows in before.items():
        mean = rows.mean(0)
        error += float(numpy.square(workers.gradients[0, begin : begin + rows.shape[1]] - mean, dtype=numpy.float64).sum())
        own += float(numpy.square(mean, dtype=numpy.float64).sum())
        inputs += float(numpy.einsum("ij,ij->", rows, rows)) / len(rows)
    return error / own, error / inputs


def inputs_of(workers) -> dict:
    """Views by offset: gradients and residuals, a row for each worker."""
    import numpy

    residuals = [workers.residuals(rank) for rank in range(workers.world)]
    found = {}
    for name, begin, count in zip(workers.names, workers.offsets, workers.counts):
        if name in residuals[0]:
            found[begin] = workers.gradients[:, begin : begin + count] + numpy.stack([each[name] for each in residuals])
    return found


def train(cell: Cell, data, server: tuple = (None, None)) -> dict:
    """server: (address, path of its token)"""
    import torch
    from bench.lib.trainer import schedule

    begun, kind = time.monotonic(), models.load(cell.model)
    torch.manual_seed(cell.seed)
    model = kind.build(data)
    named, optimizer = list(model.named_parameters()), kind.optimizer(model.parameters())
    workers = exchange_of(cell, named, server)
    rows = torch.from_numpy(workers.gradients)
    batches = [data.batches(cell.batch, cell.seed, rank, cell.world) for rank in range(cell.world)]
    curve, nmse = [], []
    for step in range(cell.steps):
        optimizer.param_groups[0]["lr"] = kind.LEARNING_RATE * schedule(step, cell.steps)
        for row, mine in zip(rows, batches):
            optimizer.zero_grad(set_to_none=False)
            data.loss(model, next(mine)).backward()
            row.copy_(torch.cat([p.grad.flatten() for _, p in named]))
        noted = cell.spec and not cell.served and step % NOTED == NOTED - 1
        before = inputs_of(workers) if noted else None
        workers.exchange()
        if noted:
            nmse.append(error_of(workers, before))
        for (_, p), mean in zip(named, rows[0].split([p.numel() for _, p in named])):
            p.grad.copy_(mean.view_as(p))
        optimizer.step()
        if step % EVERY == EVERY - 1:
            model.eval()
            with torch.no_grad():
                curve.append([step + 1, data.evaluate(model)])
            model.train()
    if not bool((rows == rows[0]).all()):
        raise RuntimeError("workers ended with different means")
    found = {"curve": curve, "nmse": nmse, **told(workers, cell), "seconds": time.monotonic() - begun}
    workers.close()
    return found


def told(workers, cell: Cell) -> dict:
    if not cell.spec:
        return {}
    explained, stats = workers.explain(), workers.stats()
    blocks = sum(each.get("excluded_granules", 0) for each in stats), max(each.get("partial_granules", 0) for each in stats)
    return {"lane_bits": explained["lane_bits"], "strategy": explained["strategy"], "excluded": blocks[0], "partial": blocks[1],
            "granules": granules(workers) * cell.steps, "resent": sum(each.get("resent_datagrams", 0) for each in stats)}


def granules(workers) -> int:
    """Sums of a step: of blocks, and of parameters that have no codec."""
    return sum(-(-count // 1024) if count > 4096 else -(-count // 256) for count in workers.counts)


# ---- servers, the lab, slots ------------------------------------------------------------------------------------------


@contextlib.contextmanager
def server_of(cell: Cell):
    """(address, path of its token) of a server of this run's own: on the loopback, or, in a lab, on its other host."""
    if not cell.served:
        yield None, None
        return
    words, serve, bind, token = [lab.laconic_command()], ["serve", "--json"], "127.0.0.1:0", None
    with tempfile.TemporaryDirectory() as folder:
        if "LACONIC_LAB" in os.environ:
            token, bind = f"{folder}/token", f"{socket.gethostbyname('host1')}:0"
            subprocess.run([*words, "serve", "--new-token", token], check=True, capture_output=True)
            words += ["lab", "--on", "host1", *words]
            serve += ["--token", token]
        process = subprocess.Popen([*words, *serve, "--bind", bind], stdout=subprocess.PIPE, text=True)
        try:
            yield json.loads(process.stdout.readline())["serving"], token
        finally:
            process.terminate()
            process.wait()
            process.stdout.close()


def run_here(mine: list[Cell]) -> None:
    import torch

    torch.set_num_threads(1)
    loaded = {model: models.load(model).data(None) for model in {cell.model for cell in mine}}
    for i, cell in enumerate(mine):
        with server_of(cell) as server:
            found = train(cell, loaded[cell.model], server)
        save(cell.path, {"cell": dataclasses.asdict(cell), **found, "environment": environment()})
        print(f"{i + 1}/{len(mine)} {cell.path.stem}: {found['curve'][-1][1]:.4f}, {found['seconds']:.0f} s", file=sys.stderr, flush=True)


def job_of(cell: Cell) -> tuple:
    """Cells with the same one are trained by one process. The longest first."""
    return cell.question != "widths", -cell.world if cell.question == "widths" else 0, cell.seed, cell.model, \
        -cell.loss


def start(mine: list[Cell]) -> int:
    words = [sys.executable, "-m", "bench.aggregation.aggregation_learning", "--cells", json.dumps([dataclasses.asdict(cell) for cell in mine])]
    if mine[0].loss:
        loss = f"{mine[0].loss:g}%"
        words = [lab.laconic_command(), "lab", "--hosts", "2", "--loss", loss, "--no-pin", "--raw", "--launcher", "--", *words]
    return subprocess.run(words, env={**lab.environment(ROOT), "LACONIC_BIN": lab.laconic_command()}).returncode


def train_all(wanted: list[Cell], slots: int) -> int:
    jobs: dict[tuple, list[Cell]] = {}
    for cell in wanted:
        if cell.load() is None:
            jobs.setdefault(job_of(cell), []).append(cell)
    print(f"{sum(map(len, jobs.values()))} runs", file=sys.stderr, flush=True)
    with concurrent.futures.ThreadPoolExecutor(slots) as pool:
        return max(pool.map(start, [jobs[key] for key in sorted(jobs)]), default=0)


def publish(folder: Path) -> None:
    """The tables, and on stderr which runs they lack."""
    found = [(cell, cell.load()) for question in QUESTIONS for cell in cells(question)]
    if lacking := sum(run is None for _, run in found):
        print(f"{lacking} of {len(found)} runs are missing", file=sys.stderr)
    tables.publish(folder, "aggregation-learning", "make aggregation-learning", tables_of(found), keep=True)


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.aggregation.aggregation_learning", description=__doc__.splitlines()[0])
    parser.add_argument("--question", choices=QUESTIONS, action="append", help="only this one; again for more")
    parser.add_argument("--slots", type=int, default=2, help="runs at once (default 2)")
    parser.add_argument("--page", action="store_true", help="train nothing, write the tables of what is there")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results", metavar="FOLDER", help="of aggregation-learning.md (docs/results)")
    parser.add_argument("--cells", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.cells:
        run_here([Cell(**fields) for fields in json.loads(given.cells)])
        return 0
    failed = 0
    if not given.page:
        failed = train_all([cell for question in given.question or QUESTIONS for cell in cells(question)], given.slots)
    if given.page or not given.question:
        publish(given.out)
    return int(failed != 0)


if __name__ == "__main__":
    sys.exit(main())
