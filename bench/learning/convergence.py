# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Trains with every optimizer of PyTorch's and with warm-ups, compressed and not: the tables of docs/results/convergence.md.

    python -m bench.learning.convergence                    the whole thing, a quarter of an hour; a busy machine changes no figure
    python -m bench.learning.convergence --part warmup      one half of it; tables are written once there are both
    python -m bench.learning.convergence --quick            a minute's worth into out/bench, to see that it works

Every run's figures go to out/bench at once: what was cut off goes on where it was, and what is complete only writes the
tables again (`--again` trains everything again).
Needs a release build (`scripts/build release`), or LACONIC_LIBRARY. Four processes exchange over Gloo, two in a quick run;
nothing is timed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
import sys
import time
from pathlib import Path

from bench.learning import learning
from bench.learning.judging import accuracy_verdict, marked, verdict
from bench.lib import group, tables
from bench.lib.programs import ROOT

RESULTS = ROOT / "out" / "bench"
PARTS = ("optimizers", "warmup")
LAYERS = (64, 256, 256, 10)  # of the optimizers' runs; warm-up takes the demo's model
#: Never those of a final run: what is chosen on them has seen neither their batches nor the test samples.
TUNING_SEED = 100

OPTIMIZER_SPECS = ("none", "bf16", "int8", "3lc", "topk:ratio=0.01", "powersgd:rank=4")
WARMUP_SPECS = ("topk:ratio=0.001", "sidco:ratio=0.001", "3lc:s=1.75")
WARMUPS = (0, 10, 30, 60)
LOOKS = (25, 50, 100, 300)

#: name → torch.optim's class, its arguments, learning rates to choose from
OPTIMIZERS = {
    "SGD": ("SGD", {}, (0.1, 0.3, 1.0, 3.0)),
    "SGD, momentum 0.9": ("SGD", {"momentum": 0.9}, (0.01, 0.03, 0.1, 0.3)),
    "SGD, Nesterov 0.9": ("SGD", {"momentum": 0.9, "nesterov": True}, (0.01, 0.03, 0.1, 0.3)),
    "Adam": ("Adam", {}, (0.001, 0.003, 0.01, 0.03)),
    "AdamW": ("AdamW", {}, (0.001, 0.003, 0.01, 0.03)),
    "RMSprop": ("RMSprop", {}, (0.0003, 0.001, 0.003, 0.01)),
    "Adagrad": ("Adagrad", {}, (0.003, 0.01, 0.03, 0.1)),
    "LBFGS": ("LBFGS", {"max_iter": 4, "history_size": 10}, (0.01, 0.03, 0.1, 0.3)),
}


@dataclasses.dataclass(frozen=True)
class Plan:
    """The runs to train: everything, or a minute's worth."""

    world: int = 4
    seeds: tuple[int, ...] = (0, 1, 2)
    optimizers: tuple[str, ...] = tuple(OPTIMIZERS)
    optimizer_specs: tuple[str, ...] = OPTIMIZER_SPECS
    steps: int = 150  # of the optimizers' runs
    lbfgs_gradients: int = 60
    warmup_specs: tuple[str, ...] = WARMUP_SPECS
    warmups: tuple[int, ...] = WARMUPS
    warmup_steps: int = 300
    looks: tuple[int, ...] = LOOKS


QUICK = Plan(world=2, seeds=(0, 1), optimizers=("SGD, momentum 0.9", "LBFGS"), optimizer_specs=("none", "3lc"), steps=20,
             lbfgs_gradients=12, warmup_specs=("topk:ratio=0.001",), warmups=(0, 5), warmup_steps=15, looks=(5, 15))


def options(arguments=None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.learning.convergence", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a minute's worth into out/bench; not for publication")
    parser.add_argument("--part", choices=PARTS, action="append", help="train only this one")
    parser.add_argument("--again", action="store_true", help="forget what was trained before")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="of convergence.md (docs/results; with --quick out/bench)")
    given = parser.parse_args(arguments)
    given.part = given.part or list(PARTS)
    given.out = (given.out or ROOT / ("out/bench" if given.quick else "docs/results")).resolve()
    return given


# ---- what was trained -------------------------------------------------------------------------------------------------


class Results:
    """The figures of one part, in a file."""

    def __init__(self, part: str, quick: bool):
        self.part, self.plan = part, QUICK if quick else Plan()
        self.path = RESULTS / f"convergence-{part}{'-quick' if quick else ''}.json"

    def load(self) -> dict:
        """Figures of this plan; without figures where there are none, or those of another plan."""
        mine = json.loads(json.dumps(dataclasses.asdict(self.plan)))  # tuples are lists in a file
        found = learning.read(self.path)
        return found if found.get("plan") == mine else {"plan": mine, "runs": {}, "complete": False}


# ---- one rank ---------------------------------------------------------------------------------------------------------


class Rank:
    """Trains what the plan says, one run after another."""

    def __init__(self, rank: int, results: Results, found: dict):
        from bench.lib import models, trainer

        self.rank, self.results, self.found, self.trainer, self.demo = rank, results, found, trainer, models.load("mlp")
        self.plan = results.plan
        self.data = self.demo.data(None)
        self.begun = time.monotonic()

    def everything(self) -> None:
        {"optimizers": self.optimizers, "warmup": self.warmups}[self.results.part]()
        self.found["complete"] = True
        self.save()

    def once(self, key: str, train):
        """The result of `train()`, now or in a run that was cut off. The same on all ranks: they began with the same
        figures."""
        if key not in self.found["runs"]:
            self.found["runs"][key] = train()
            self.save()
        return self.found["runs"][key]

    def save(self) -> None:
        if self.rank == 0:
            learning.save(self.results.path, self.found)

    def optimizers(self) -> None:
        rates = {name: self.once(f"{name}/rate", lambda name=name: self.best_rate(name))["best"] for name in self.plan.optimizers}
        for name in self.plan.optimizers:
            for spec in self.plan.optimizer_specs:
                runs = [self.once(f"{name}/{spec}/{seed}", lambda seed=seed: self.optimizer_run(name, rates[name], spec, seed))
                        for seed in self.plan.seeds]
                self.progress(f"{name} with {spec}: loss " + ", ".join(f"{run['loss']:.3g}" for run in runs))

    def progress(self, text: str) -> None:
        if self.rank == 0:
            print(f"{time.monotonic() - self.begun:5.0f} s  {text}", file=sys.stderr, flush=True)

    # ---- optimizers ----

    def best_rate(self, name: str) -> dict:
        """The learning rate with the least loss on samples held out of the training set."""
        kept = learning.held_out(self.data)
        losses = {rate: self.loss(self.train(name, rate, "none", TUNING_SEED, kept), kept.test, kept.test_labels) for rate in OPTIMIZERS[name][2]}
        best = min(losses, key=lambda rate: (not math.isfinite(losses[rate]), losses[rate]))
        self.progress(f"{name}: " + ", ".join(f"{rate:g} {loss:.3g}" for rate, loss in losses.items()))
        return {"best": best, "losses": list(losses.items())}

    def optimizer_run(self, name: str, rate: float, spec: str, seed: int) -> dict:
        model = self.train(name, rate, spec, seed, self.data)
        return {"loss": self.loss(model, self.data.train, self.data.train_labels), "accuracy": self.accuracy(model)}

    def accuracy(self, model) -> float:
        import torch

        with torch.no_grad():
            return self.data.evaluate(model)

    @staticmethod
    def loss(model, inputs, labels) -> float:
        import torch

        with torch.no_grad():
            return torch.nn.functional.cross_entropy(model(inputs), labels).item()

    def train(self, name: str, rate: float, spec: str, seed: int, samples):
        """Gives the model."""
        import torch
        from torch.nn.parallel import DistributedDataParallel

        import laconic

        torch.manual_seed(seed)
        layers = [layer for a, b in zip(LAYERS, LAYERS[1:]) for layer in (torch.nn.Linear(a, b), torch.nn.ReLU())]
        ddp = DistributedDataParallel(torch.nn.Sequential(*layers[:-1]))
        handle = laconic.attach(ddp, spec, seed=seed, quiet=True)
        kind, arguments, _ = OPTIMIZERS[name]
        optimizer = getattr(torch.optim, kind)(ddp.parameters(), lr=rate, **arguments)
        (self.full_batches if kind == "LBFGS" else self.mini_batches)(ddp, optimizer, rate, seed, samples)
        handle.close()
        return ddp.module

    def mini_batches(self, ddp, optimizer, rate: float, seed: int, samples) -> None:
        """As in the demo: a cosine to 0 over fresh permutations."""
        steps = self.plan.steps
        for step, batch in zip(range(steps), samples.batches(self.demo.BATCH, seed, self.rank, self.plan.world)):
            optimizer.param_groups[0]["lr"] = rate * self.trainer.schedule(step, steps)
            optimizer.zero_grad()
            samples.loss(ddp, batch).backward()
            optimizer.step()

    def full_batches(self, ddp, optimizer, rate: float, seed: int, samples) -> None:  # noqa: ARG002  the same for both
        """LBFGS: several backward() a step, on this rank's quarter of all samples. All ranks see the mean loss: one that
        stopped by its own would leave the others waiting."""
        import torch.distributed as dist
        from torch import nn

        images, labels = samples.train[self.rank::self.plan.world], samples.train_labels[self.rank::self.plan.world]
        gradients = 0

        def closure():
            nonlocal gradients
            gradients += 1
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(ddp(images), labels)
            loss.backward()
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            return mean / self.plan.world

        while gradients < self.plan.lbfgs_gradients:
            optimizer.step(closure)

    # ---- warm-up ----

    def warmups(self) -> None:
        for spec, warmup in [("none", 0), *((spec, k) for spec in self.plan.warmup_specs for k in self.plan.warmups)]:
            runs = [self.once(f"{spec}/{warmup}/{seed}", lambda seed=seed: self.warmup_run(spec, warmup, seed))
                    for seed in self.plan.seeds]
            self.progress(f"{spec}, warm-up {warmup}: " + ", ".join(f"{100 * run[-1]:.1f} %" for run in runs))

    def warmup_run(self, spec: str, warmup: int, seed: int) -> list:
        """The accuracy at each look."""
        trainer = learning.warmed(self.trainer.Trainer, warmup)(
            self.demo, spec, seed, self.data, self.plan.warmup_steps, self.rank, self.plan.world)
        seen = []
        for look in self.plan.looks:
            while trainer.step < look:
                trainer.train_step()
            seen.append(trainer.quality())
        trainer.close()
        return seen


def run_rank(rank: int, results: Results, found: dict) -> None:
    Rank(rank, results, found).everything()


# ---- all of them ------------------------------------------------------------------------------------------------------


def train(results: Results, found: dict) -> None:
    found.setdefault("environment", learning.environment())
    group.wait(group.start(run_rank, results.plan.world, results, found))


# ---- tables ----


GUESSING = math.log(10)  # the loss of a model that knows nothing of ten classes


def failed(loss: float) -> bool:
    return not loss < GUESSING


def loss_cell(losses, plain) -> str:
    """Judged in logarithms: from 0.02 to 0.01 is as much as from 2 to 1."""
    if bad := sum(map(failed, losses)):
        return marked(f"failed, {bad} of {len(losses)}", 1)
    return marked(f"{statistics.fmean(losses):.3g}", verdict([math.log(x / y) for x, y in zip(losses, plain)]))


def accuracy_cell(accuracies, plain, deviation: bool = False) -> str:
    text = f"{100 * statistics.fmean(accuracies):.1f}" + f" ± {100 * statistics.stdev(accuracies):.1f}" * deviation
    return marked(text, accuracy_verdict(accuracies, plain))


def optimizer_tables(found: dict) -> dict[str, dict]:
    names, specs, seeds = (found["plan"][key] for key in ("optimizers", "optimizer_specs", "seeds"))
    runs = found["runs"]

    def cells(key: str, cell) -> dict:
        values = {(name, spec): [runs[f"{name}/{spec}/{seed}"][key] for seed in seeds] for name in names for spec in specs}
        return tables.table(["optimizer", *(f"`{spec}`" for spec in specs)],
                            ([name, *(cell(values[name, spec], values[name, "none"]) for spec in specs)] for name in names))

    rates = ([name, ", ".join(f"{rate:g}: {loss:.3g}" for rate, loss in runs[f"{name}/rate"]["losses"]), runs[f"{name}/rate"]["best"]] for name in names)
    return {"learning rates": tables.table(["optimizer", "learning rates tried: loss on held-out samples", ("taken", "{:g}")], rates),
            "losses": cells("loss", loss_cell), "accuracies": cells("accuracy", accuracy_cell)}


def warmup_tables(found: dict) -> dict[str, dict]:
    """In italics where nothing has been compressed yet."""
    plan, runs = found["plan"], found["runs"]
    cases = [(spec, warmup) for spec in plan["warmup_specs"] for warmup in plan["warmups"]]

    def values(spec: str, warmup: int, at: int) -> list:
        return [runs[f"{spec}/{warmup}/{seed}"][at] for seed in plan["seeds"]]

    def cell(spec: str, warmup: int, at: int) -> str:
        text = accuracy_cell(values(spec, warmup, at), values("none", 0, at), deviation=True)
        return f"*{text}*" if spec != "none" and plan["looks"][at] <= warmup else text

    def gap(spec: str, warmup: int, at: int) -> str:
        text = f"{100 * statistics.fmean(y - x for x, y in zip(values(spec, warmup, at), values('none', 0, at))):.1f}"
        if warmup and plan["looks"][at] <= warmup:
            return f"*{text}*"
        return text + {1: " ↑", 0: "", -1: " ↓"}[accuracy_verdict(values(spec, warmup, at), values(spec, 0, at)) if warmup else 0]

    head, looks = ["spec", "warm-up", *(f"step {look}" for look in plan["looks"])], range(len(plan["looks"]))
    return {"warm-up": tables.table(head, [["`none`", None, *(cell("none", 0, at) for at in looks)],
                                           *([f"`{spec}`", warmup, *(cell(spec, warmup, at) for at in looks)] for spec, warmup in cases)]),
            "gaps": tables.table(head, ([f"`{spec}`", warmup, *(gap(spec, warmup, at) for at in looks)] for spec, warmup in cases))}


def main() -> int:
    given = options()
    both = {part: Results(part, given.quick) for part in PARTS}
    for part in given.part:
        if given.again:
            both[part].path.unlink(missing_ok=True)
        found = both[part].load()
        if not found["complete"]:
            train(both[part], found)
    found = {part: results.load() for part, results in both.items()}
    missing = [part for part in PARTS if not found[part]["complete"]]
    if missing:
        print(f"no tables yet: {', '.join(missing)} not trained", file=sys.stderr)
        return 0
    tables.publish(given.out, "convergence", "python -m bench.learning.convergence" + " --quick" * given.quick, {
        **optimizer_tables(found["optimizers"]), **warmup_tables(found["warmup"]), "environment": tables.of_pairs(found["warmup"]["environment"].items())})
    return 0


if __name__ == "__main__":
    sys.exit(main())
