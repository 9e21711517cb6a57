# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Ranks of bench.learning.comparison: `learn`, of processes that are a group already, and, as a program of `laconic lab`, step times.

As a program it takes a plan, {"model", "ways", "paths", "seconds"}, and for a model of a file "networks", "data". Rank 0 writes a file for each way as soon as it has its figures.
"""

from __future__ import annotations

import datetime
import json
import math
import statistics
import sys
import time
import types
from pathlib import Path

import torch
import torch.distributed as dist

import laconic
from bench.learning.learning import environment, held_out, save
from bench.lib import models
from bench.lib.network import Network, rate_text
from bench.lib.results import final_of, first_at
from bench.lib.trainer import Trainer

NETWORKS = ("50mbit", "200mbit", "1gbit")
BUCKET_ELEMENTS = 1 << 18  # 1 MiB of float32
WARM_UP, LEAST, MOST = 3, 3, 60  # steps before times count, and of those that do


def parts_of(way: str) -> tuple[str, str, str]:
    """(mode, spec, form) of [MODE:]SPEC[@FORM]."""
    spec, _, form = way.partition("@")
    mode, _, rest = spec.partition(":")
    return (mode, rest, form) if mode in ("outer", "outer2", "sharded") else ("attach", spec, form)


class Joined(torch.nn.Module):
    """A module whose parameters are views of flat ones: parameters follow one another in a flat one up to `most` elements, and a larger one has its own."""

    def __init__(self, inner: torch.nn.Module, most: float = math.inf):
        super().__init__()
        self.inner, runs = inner, [[]]
        for module in inner.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                if runs[-1] and sum(math.prod(shape) for _, _, shape in runs[-1]) + parameter.numel() > most:
                    runs.append([])
                runs[-1].append((module, name, parameter.shape))
        self.flat = torch.nn.ParameterList(torch.cat([getattr(module, name).detach().flatten() for module, name, _ in run]) for run in runs)
        self._runs = runs
        for module, name, _ in (place for run in runs for place in run):
            delattr(module, name)

    def forward(self, x):
        for flat, run in zip(self.flat, self._runs):
            for (module, name, shape), part in zip(run, flat.split([math.prod(shape) for _, _, shape in run])):
                setattr(module, name, part.view(shape))
        return self.inner(x)


class Compared(Trainer):
    """The demo's trainer, for more ways to exchange."""

    def __init__(self, kind, way: str, *arguments, **options):
        self.mode, spec, self.form = parts_of(way)
        self.every = 2 if self.mode == "outer2" else 1  # steps of a round
        super().__init__(kind, spec, *arguments, **options)

    def _built(self) -> torch.nn.Module:
        module = super()._built()
        if self.form == "sparse":
            for each in module.modules():
                if isinstance(each, torch.nn.Embedding):
                    each.sparse = True
        return Joined(module, {"whole": math.inf, "bucket": BUCKET_ELEMENTS}[self.form]) if self.form in ("whole", "bucket") else module

    def _wrapped(self) -> torch.nn.Module:
        return super()._wrapped() if self.mode == "attach" else self.module

    def _exchange(self, spec: str, seed: int, world: int, emulated_rate: float) -> None:
        if self.mode == "attach":
            super()._exchange(spec, seed, world, emulated_rate)
        elif self.mode.startswith("outer"):
            self.handle = laconic.OuterStep(self.module, self.optimizer, spec=spec, every=self.every, seed=seed, quiet=True)
        else:
            self.handle = laconic.ShardedOptimizer(self.module, type(self.optimizer), spec, spec, seed=seed, **self.optimizer.defaults)
            self.optimizer = self.handle

    def bytes_a_step(self, world: int) -> float | None:
        """That this rank has sent. Of sparse gradients PyTorch says nothing."""
        if self.handle is not None:
            return self.counters()["wire_bytes"] / self.step
        return None if self.form == "sparse" else self.baseline_bytes(world)


# ---- learning ---------------------------------------------------------------------------------------------------------


def trained(cell, data, rank: int, world: int, steps: int, every: int) -> dict:
    """The results of a run that are saved, on rank 0: it alone evaluates. cell: a bench.learning.comparison.Cell.

    steps: to the target, or None. bytes: that rank 0 sends in a step.
    """
    kind = models.load(cell.model)
    if cell.rate:
        kind = types.SimpleNamespace(**{**vars(kind), "LEARNING_RATE": cell.rate})
    begun, used = time.monotonic(), time.process_time()
    trainer = Compared(kind, cell.way, cell.seed, held_out(data) if cell.kind == "tune" else data, steps, rank, world)
    curve = [[0, trainer.quality()]] if rank == 0 else []
    while trainer.step < steps:
        trainer.train_step()
        if rank == 0 and trainer.step % every == 0:
            curve.append([trainer.step, trainer.quality()])
    about = models.about(cell.model)
    found = {"final": final_of(curve), "steps": first_at(curve, about.quality, about.target), "bytes": trainer.bytes_a_step(world),
             "curve": curve} if rank == 0 else {}
    trainer.close()
    cpu = torch.tensor([time.process_time() - used])
    dist.all_reduce(cpu)
    return {**found, "seconds": time.monotonic() - begun, "cpu": cpu.item()}


def learn(rank: int, world: int, cells: list, folder: Path, steps: int, every: int) -> None:
    """Trains the cells, of one model, one after the other. Each is a file of the folder as soon as it has ended."""
    data = models.load(cells[0].model).data(None)
    for i, cell in enumerate(cells):
        found = trained(cell, data, rank, world, steps, every)
        if rank == 0:
            save(folder / cell.path.name, {**found, "environment": environment()})
            print(f"{i + 1}/{len(cells)} {cell.name}: {found['final']:.4f}, {found['seconds']:.0f} s", file=sys.stderr, flush=True)


# ---- step times -------------------------------------------------------------------------------------------------------


def from_rank_0(value: float) -> float:
    box = torch.tensor([value], dtype=torch.float64)
    dist.broadcast(box, 0)
    return box.item()


def step_time(model: str, way: str, data, network: Network, rate: str, seconds: float) -> dict:
    """The median step at the beginning of a training, over about this number of seconds, and the bytes that this host sent in a step, by the kernel's count."""
    emulated_rate = network.announce(rate)
    trainer = Compared(models.load(model), way, 0, data, models.about(model).steps, dist.get_rank(), dist.get_world_size(), emulated_rate=emulated_rate)
    dist.barrier()
    network.shape(rate)
    dist.barrier()
    last = [sum(trainer.train_step()) for _ in range(WARM_UP)][-trainer.every :]
    count = trainer.every * int(from_rank_0(min(max(math.ceil(seconds / sum(last)), LEAST), MOST)))
    before = network.sent_bytes()
    times = [sum(trainer.train_step()) for _ in range(count)]
    dist.barrier()
    after = network.sent_bytes()
    network.shape("off")
    network.announce("off")
    dist.barrier()
    trainer.close()
    middle = statistics.median if trainer.every == 1 else statistics.fmean  # a median would not see the steps that have a round
    return {"step": middle(times), "steps": count, "bytes": None if before is None else (after - before) / count}


def measure(plan: dict) -> None:
    """Writes a file for each way."""
    model, network = plan["model"], Network(dist.get_rank())
    data = models.load(model).data(plan.get("data"))
    for i, (way, path) in enumerate(zip(plan["ways"], plan["paths"])):
        found = {rate: step_time(model, way, data, network, rate, plan["seconds"]) for rate in plan.get("networks", NETWORKS)}
        if dist.get_rank() == 0:
            save(Path(path), {"networks": found, "environment": environment()})
            print(f"{i + 1}/{len(plan['ways'])} {model}, {way}: "
                  + ", ".join(f"{1e3 * each['step']:.1f} ms at {rate_text(rate)}" for rate, each in found.items()), file=sys.stderr, flush=True)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
    measure(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
