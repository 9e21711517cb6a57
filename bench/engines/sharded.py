# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""An optimizer between push and pull against the mean of gradients: docs/results/sharded.md.

    make sharded             what is missing (two hours on an idle machine, in parts), then the tables
    python -m bench.engines.sharded NAME…   these cells, or all whose names begin so; --page: the tables alone; --quick: minutes, into out/bench

A cell is a file under out/sharded: delete it to have it made again. Cells of learning time nothing; the others need an idle machine, and
`hosts` the network lab. Needs a release build, or LACONIC_LIBRARY.
"""

from __future__ import annotations

import datetime
import functools
import json
import statistics
import sys
from pathlib import Path

from bench.engines import engines
from bench.lib import cells, group, machine, models, tables
from bench.lib.programs import ROOT
from bench.lib.results import final_of

RESULTS = ROOT / "out" / "sharded"
WORLD = 4
#: the exchanges that are compared: the uncompressed mean, 3LC on both ways around the mean, and around the optimizer
FLOAT, MEAN, SHARDED = "float32", "attach", "sharded"
ADAMW = ("AdamW", {"lr": 2e-3, "weight_decay": 0.01})
MOMENTUM = ("SGD", {"lr": 0.05, "momentum": 0.9})
#: the demo's own optimizers; perceptrons with both
LEARNT = [("gpt", "Adam"), ("lstm", "Adam"), ("mlp", "SGD"), ("mlp", "AdamW")]
SEEDS = {("mlp", "SGD"): range(8)}  # whose seeds differ by more than the bar; of the others three
HOSTS = {"hidden": [1024, 1024], "optimizer": MOMENTUM, "ways": ["none none", "3lc 3lc:s=1.5"], "repeats": 3, "warmup": 10, "steps": 10}
LOCAL = {"hidden": [3500, 3500, 3500], "optimizer": ADAMW, "ways": ["ddp", "none none"], "repeats": 6, "warmup": 2, "steps": 6}


# ---- learning ---------------------------------------------------------------------------------------------------------


def optimizer_of(kind, name: str):
    """torch.optim's class and its keywords."""
    import torch

    cls, keywords = {"AdamW": ADAMW, "SGD": MOMENTUM, "Adam": ("Adam", {"lr": kind.LEARNING_RATE})}[name]
    return getattr(torch.optim, cls), keywords


class Learner:
    """The demo's model with one of the three ways, on this rank."""

    def __init__(self, kind, optimizer: str, way: str, seed: int, data):
        import torch

        import laconic

        torch.manual_seed(seed)
        self.model = kind.build(data)
        cls, keywords = optimizer_of(kind, optimizer)
        self.sent = {"push": 0, "pull": 0}
        if way == SHARDED:
            self.optimizer = laconic.ShardedOptimizer(self.model, cls, "3lc", "3lc", seed=seed, **keywords)
            self._watch(self.optimizer._work.exchange._engine)
            return
        self.ddp = torch.nn.parallel.DistributedDataParallel(self.model, bucket_cap_mb=25)
        if way == MEAN:
            laconic.attach(self.ddp, "3lc", strategy="two_shot", seed=seed, quiet=True)
        self.optimizer = cls(self.model.parameters(), **keywords)

    def _watch(self, engine) -> None:
        """Counts what is sent to other ranks on each way: pushes are all-to-all, pulls go to all."""
        from laconic.core import _lib

        start = engine.start

        def counted(steps, count):
            for step in (steps[i] for i in range(count)):
                way = "pull" if step.kind == _lib.ALL_GATHER else "push"
                self.sent[way] += sum(n for rank, n in enumerate(step.send_counts[: engine.world]) if rank != engine.rank)
            return start(steps, count)

        engine.start = counted

    def step(self, data, batch) -> None:
        self.optimizer.zero_grad()
        data.loss(getattr(self, "ddp", self.model), batch).backward()
        self.optimizer.step()

    def state_elements(self) -> int:
        """Memory of the optimizer on this rank, with the masters that it keeps next to parameters."""
        work = getattr(self.optimizer, "_work", None)
        inner = self.optimizer if work is None else work.inner.optimizer
        state = sum(v.numel() for values in inner.state.values() for v in values.values() if hasattr(v, "dim") and v.dim())
        return state + (0 if work is None else sum(m.numel() for m in work.exchange.masters().values()))


def learn(rank: int, model: str, optimizer: str, way: str, seed: int, steps: int, out: Path) -> None:
    """On one rank; rank 0 evaluates and writes."""
    import torch
    import torch.distributed as dist

    kind, about = models.load(model), models.MODELS[model]
    data = kind.data(None)
    learner = Learner(kind, optimizer, way, seed, data)
    batches, curve = data.batches(kind.BATCH, seed, rank, WORLD), []
    for number in range(1, steps + 1):
        learner.step(data, next(batches))
        if rank == 0 and number % about.every == 0:
            learner.model.eval()
            with torch.no_grad():
                curve.append([number, data.evaluate(learner.model)])
            learner.model.train()
    most = torch.tensor([learner.state_elements()])
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    if rank == 0:
        elements = sum(p.numel() for p in learner.model.parameters())
        small = sum(p.numel() for p in learner.model.parameters() if p.numel() <= 4096)
        found = {"final": final_of(curve), "curve": curve, "sent": {way: sent / steps for way, sent in learner.sent.items()},
                 "state_elements": most.item(), "elements": elements, "small": small}
        out.write_text(json.dumps(found))
    if way == SHARDED:
        learner.optimizer.close()


def learning(model: str, optimizer: str, way: str, seed: int, steps: int = 0) -> dict:
    """Trained by four processes of this machine."""
    return group.answered(learn, WORLD, model, optimizer, way, seed, steps or models.MODELS[model].steps)


# ---- time -------------------------------------------------------------------------------------------------------------


def timed(plan: dict, rate: str | None) -> dict:
    """bench/engines/sharded_rank.py on four hosts of a lab, or without a rate as processes of this machine."""
    return engines.timed("bench.engines.sharded_rank", plan, "--hosts", WORLD, *(["--emulate", "--no-pin"] if rate is None else ["--rate", rate]))


# ---- cells ------------------------------------------------------------------------------------------------------------


def learning_name(model: str, optimizer: str, way: str, seed: int) -> str:
    return f"learning-{model}-{optimizer}-{way}-{seed}"


def cells_of(quick: bool = False) -> list[cells.Cell]:
    folder = ROOT / "out" / "bench" / "sharded" if quick else RESULTS
    steps = 20 if quick else 0
    some = {"repeats": 1, "warmup": 1, "steps": 2} if quick else {}
    local = {**LOCAL, **some, **({"hidden": [256, 256]} if quick else {})}
    learnt = [cells.Cell(learning_name(m, o, way, seed), functools.partial(learning, m, o, way, seed, steps), folder)
              for m, o in LEARNT for seed in (range(1) if quick else SEEDS.get((m, o), range(3))) for way in (FLOAT, MEAN, SHARDED)]
    return [*learnt, cells.Cell("hosts", functools.partial(timed, {**HOSTS, **some}, "50mbit"), folder),
            cells.Cell("local", functools.partial(timed, local, None), folder)]


# ---- tables -----------------------------------------------------------------------------------------------------------


def finals(found: dict, model: str, optimizer: str, way: str) -> list[float] | None:
    """Per seed; None: some are missing."""
    runs = [cell for name, cell in found.items() if name.startswith(f"learning-{model}-{optimizer}-{way}-")]
    return [run["final"] for run in runs] if runs and all(runs) else None


def tables_of(found: dict) -> dict:
    """found: by cell, what it gave, or None."""
    bars, learnt = [], []
    for (model, optimizer), bar in zip(LEARNT, ("≤ 0.5", "≤ 0.9", "≥ −0.5", "≥ −0.5")):
        plain, mean, sharded = (finals(found, model, optimizer, way) for way in (FLOAT, MEAN, SHARDED))
        if plain is None or mean is None or sharded is None:
            continue
        learnt.append([model, optimizer, *(statistics.fmean(values) for values in (plain, mean, sharded))])
        if models.MODELS[model].quality.higher_is_better:
            points = 100 * (statistics.fmean(sharded) - statistics.fmean(mean))
            bars.append([f"{model}, {optimizer}: accuracy beside `attach(\"3lc\")`, points", f"{points:+.2f}", bar])
        else:
            share = (statistics.fmean(sharded) - statistics.fmean(plain)) / (statistics.fmean(mean) - statistics.fmean(plain))
            bars.append([f"{model}, {optimizer}: bits above float32's, of those of `attach(\"3lc\")`", f"{share:.2f}", bar])
    made = {}
    run = next((cell for name, cell in found.items() if cell and name.startswith(f"learning-gpt-Adam-{SHARDED}-")), None)
    if run:
        times = 4 * run["elements"] * (WORLD - 1) / WORLD / run["sent"]["pull"]
        bars.append(["gpt: bytes of a pull, of float32's", f"1/{times:.1f}", "≤ 1/30"])
        most = run["state_elements"] / (run["elements"] * 2 + run["elements"])
        bars.append(["gpt, Adam: state and masters of a rank, of all", f"{most:.3f}",
                     f"≤ {1.05 / WORLD + run['small'] / run['elements']:.3f}"])
    if hosts := found.get("hosts"):
        plain, packed = (hosts["ways"][way] for way in HOSTS["ways"])
        bars.append(["perceptron, four hosts, 50 Mbit/s: a step, times as fast as float32 both ways", f"{plain['seconds'] / packed['seconds']:.1f}", "≥ 20"])
        bars.append(["the same: times fewer bytes", f"{plain['bytes'] / packed['bytes']:.1f}", "≥ 39"])
    if local := found.get("local"):
        ddp, own = (local["ways"][way] for way in LOCAL["ways"])
        bars.append([f"{local['elements'] / 1e6:.1f} M parameters, four processes, uncompressed: a step, of DDP's with AdamW",
                     f"{own['seconds'] / ddp['seconds']:.2f}", "≤ 1.05"])
    if bars:
        made["bars"] = tables.table(["what", "seen", "bar"], bars)
    if learnt:
        made["learning"] = tables.table(["model", "optimizer", ("float32", "{:.3f}"), ("`attach(\"3lc\")`", "{:.3f}"), ("push, optimizer, pull", "{:.3f}")], learnt)
    timings = [[where, f"`{way}`", 1e3 * values["seconds"], values["bytes"] / 1e6] for where in ("hosts", "local") if found.get(where)
               for way, values in found[where]["ways"].items()]
    if timings:
        made["times"] = tables.table(["cell", "push, pull", ("a step, ms", "{:s3}"), ("sent by a rank, MB", "{:s3}")], timings)
    if made:
        made["machine"] = tables.of_pairs([("CPU", machine.cpu()), ("date", datetime.date.today().isoformat())])
    return made


def main(arguments=None) -> int:
    given = cells.options("python -m bench.engines.sharded", __doc__, arguments)
    folder = ROOT / "out" / "bench" if given.quick else ROOT / "docs" / "results"
    return cells.make(cells_of(given.quick), given, lambda found: tables.publish(folder, "sharded", "make sharded", tables_of(found), keep=True))


if __name__ == "__main__":
    sys.exit(main())
