# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Long runs, warm-up and optimizers with the demo's models, without a network: what docs/results/learning.md is made of.

    python -m bench.learning.learning                       every run of every question that is not there yet
    python -m bench.learning.learning --question long       of one question; --slots 4: four runs at once, on as many processors as ranks
    python -m bench.learning.learning --page                trains nothing, writes the tables of docs/results/learning.md from what is there

A run is a file in out/models/learning, written when it has ended: what was cut off goes on where it was. Nothing is timed, so a
busy machine changes no figure. Without --question the tables are written at the end, of questions whose runs are all there.
Needs a release build, or LACONIC_LIBRARY.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import datetime
import json
import platform
import sys
import time
import types
from importlib import metadata
from pathlib import Path

from bench.learning.learning_tables import tables_of
from bench.lib import group, machine, models, tables
from bench.lib.programs import ROOT
from bench.lib.results import REFERENCE, best_of, final_of

RESULTS = ROOT / "out" / "models" / "learning"
WORLD = 4
SEEDS = (0, 1, 2)
MODELS, READERS = ("mlp", "cnn", "lstm", "gpt"), ("lstm", "gpt")  # readers take a text
LONG_MODELS, LONG_STEPS = ("mlp", "cnn"), 5000
LONG_SPECS = (REFERENCE, "3lc:s=1.75", "topk:ratio=0.001", "sidco:ratio=0.001")
WARMUPS, WARMUP_STEPS = (0, 50, 200), 400
WARMUP_SPECS = ("3lc", "3lc:s=1.75", "topk:ratio=0.001")
OPTIMIZER_MODELS = ("gpt", "cnn")
OPTIMIZER_SPECS = (REFERENCE, "int8", "3lc", "topk:ratio=0.01", "powersgd:rank=4")
#: name → torch.optim's class, its arguments
OPTIMIZERS = {"SGD": ("SGD", {}), "momentum": ("SGD", {"momentum": 0.9}), "Adam": ("Adam", {}), "AdamW": ("AdamW", {})}
#: learning rates to choose from, by what uncompressed training learns of held-out samples with its own seed
RATES = {("gpt", "SGD"): (0.1, 0.3, 0.6), ("gpt", "momentum"): (0.03, 0.1, 0.3), ("gpt", "Adam"): (1e-3, 2e-3, 4e-3),
         ("gpt", "AdamW"): (1e-3, 2e-3, 4e-3), ("cnn", "SGD"): (0.1, 0.3, 1.0), ("cnn", "momentum"): (0.03, 0.1, 0.3),
         ("cnn", "Adam"): (1e-3, 3e-3, 1e-2), ("cnn", "AdamW"): (1e-3, 3e-3, 1e-2)}
TUNING_SEED = 100


@dataclasses.dataclass(frozen=True)
class Cell:
    """One run. steps 0: the demo's number."""

    question: str
    model: str
    spec: str
    seed: int = 0
    steps: int = 0
    every: int = 0
    warmup: int = 0
    optimizer: str = ""
    rate: float = 0.0

    @property
    def path(self) -> Path:
        words = [self.question, self.model, self.spec.replace(":", "_"), f"seed{self.seed}"]
        words += [f"warmup{self.warmup}"] * (self.question == "warmup") + [f"{self.optimizer}_{self.rate:g}"] * bool(self.optimizer)
        return RESULTS / ("-".join(words) + ".json")

    def load(self) -> dict | None:
        """The result of this very run."""
        found = read(self.path)
        return found if found and found["cell"] == dataclasses.asdict(self) else None


def read(path: Path) -> dict:
    """Reads a file; a missing or incomplete one gives nothing."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def cells(question: str) -> list[Cell]:
    if question == "seeds":
        return [Cell(question, m, spec, seed) for seed in SEEDS for m in LONG_MODELS for spec in LONG_SPECS]
    if question == "long":
        return [Cell(question, m, spec, seed, LONG_STEPS, 100) for seed in SEEDS for m in LONG_MODELS for spec in LONG_SPECS]
    if question == "warmup":
        return [Cell(question, m, spec, seed, WARMUP_STEPS, 25, k) for seed in SEEDS for m in MODELS
                for spec, k in [(REFERENCE, 0), *((spec, k) for spec in WARMUP_SPECS for k in WARMUPS)]]
    if question == "tuning":
        return [Cell(question, m, REFERENCE, TUNING_SEED, optimizer=name, rate=rate) for (m, name), rates in RATES.items() for rate in rates]
    return optimizer_cells(best_rate)


def optimizer_cells(rate_of) -> list[Cell]:
    return [Cell("optimizers", m, spec, seed, optimizer=name, rate=rate_of(m, name)) for seed in SEEDS for m in OPTIMIZER_MODELS
            for name in OPTIMIZERS for spec in OPTIMIZER_SPECS]


QUESTIONS = ("seeds", "long", "tuning", "optimizers", "warmup")


def best_rate(model: str, optimizer: str) -> float:
    """Reads the tuning runs, which must exist."""
    found = {}
    for cell in cells("tuning"):
        if (cell.model, cell.optimizer) == (model, optimizer):
            run = cell.load()
            if run is None:
                raise ValueError(f"{cell.path.name} is missing: run --question tuning first")
            found[cell.rate] = final_of(run["curve"])
    return best_of(found, models.MODELS[model].quality.higher_is_better)


def known(question: str) -> list[tuple[Cell, dict | None]]:
    """Its runs, and what was trained of them. Before tuning is complete no optimizer has a rate, or a run."""
    try:
        return [(cell, cell.load()) for cell in cells(question)]
    except ValueError:
        return [(cell, None) for cell in optimizer_cells(lambda *_: 0.0)]


# ---- one rank ---------------------------------------------------------------------------------------------------------


def warmed(trainer: type, warmup: int) -> type:
    """The demo's trainer, with a warm-up."""
    import laconic

    class Warmed(trainer):
        def _exchange(self, spec, seed, world, emulated_rate):
            self.handle = laconic.attach(self.model, spec, seed=seed, quiet=True, warmup=warmup)

    return Warmed


def trainer_of(cell: Cell, demo, base: type):
    """The demo's trainer and model, with the cell's warm-up and optimizer."""
    import torch

    kind = types.SimpleNamespace(**{name: getattr(demo, name) for name in ("build", "optimizer", "BATCH", "LEARNING_RATE")})
    if cell.rate:
        kind.LEARNING_RATE = cell.rate
    if cell.optimizer:
        name, arguments = OPTIMIZERS[cell.optimizer]
        kind.optimizer = lambda parameters: getattr(torch.optim, name)(parameters, lr=cell.rate, **arguments)
    return kind, warmed(base, cell.warmup) if cell.warmup else base


def held_out(data):
    """The same data, judged by a part of its training samples, which it then does not learn from."""
    from bench.lib import text
    import torch

    mine = copy.copy(data)
    if isinstance(data, text.Text):
        cut = len(data.train) * 9 // 10
        mine.train, mine.test = data.train[:cut], text.excerpts(data.train[cut:], text.TEST_EXCERPTS, torch.Generator().manual_seed(0))
        return mine
    out = torch.arange(len(data.train)) % 5 == 0
    mine.train, mine.train_labels, mine.test, mine.test_labels = (
        data.train[~out], data.train_labels[~out], data.train[out], data.train_labels[out])
    return mine


def train(cell: Cell, demo, model, base: type, data, rank: int, world: int) -> dict:
    """The result that is saved, on rank 0: it alone evaluates."""
    steps, every = cell.steps or model.steps, cell.every or model.every
    kind, trainer_class = trainer_of(cell, demo, base)
    begun = time.monotonic()
    learnt = held_out(data) if cell.question == "tuning" else data
    trainer = trainer_class(kind, cell.spec, cell.seed, learnt, steps, rank, world)
    curve = [[0, trainer.quality()]] if rank == 0 else []
    while trainer.step < steps:
        trainer.train_step()
        if rank == 0 and trainer.step % every == 0:
            curve.append([trainer.step, trainer.quality()])
    ratio = trainer.handle.stats()["ratio"] if trainer.handle else None
    trainer.close()
    return {"curve": curve, "ratio": ratio, "seconds": time.monotonic() - begun}


def run_rank(rank: int, world: int, mine: list[Cell], folder: Path, text_file: str | None) -> None:
    from bench.lib import trainer

    loaded, data = {name: models.load(name) for name in MODELS}, {}
    for i, cell in enumerate(mine):
        if cell.model not in data:
            data[cell.model] = loaded[cell.model].data(text_file if cell.model in READERS else None)
        found = train(cell, loaded[cell.model], models.MODELS[cell.model], trainer.Trainer, data[cell.model], rank, world)
        if rank == 0:
            save(folder / cell.path.name, {"cell": dataclasses.asdict(cell), **found, "environment": environment()})
            print(f"{i + 1}/{len(mine)} {cell.path.stem}: {found['curve'][-1][1]:.4f}, {found['seconds']:.0f} s", file=sys.stderr, flush=True)


def save(path: Path, found: dict) -> None:
    """Writes the whole file or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps(found), encoding="utf-8")
    beside.replace(path)


def environment() -> dict:
    return {"CPU": machine.cpu(), "date": datetime.date.today().isoformat(), "python": platform.python_version(),
            **{name: metadata.version(name) for name in ("torch", "scikit-learn")}}


# ---- all of them ------------------------------------------------------------------------------------------------------


def answer(question: str, slots: int, text_file: str | None) -> None:
    missing = [cell for cell in cells(question) if cell.load() is None]
    if not missing:
        return
    print(f"{question}: {len(missing)} runs", file=sys.stderr, flush=True)
    missing.sort(key=lambda cell: cell.seed)  # whole seeds first, whatever comes in between
    started = [group.start(run_rank, WORLD, WORLD, missing[slot::slots], RESULTS, text_file)
               for slot in range(min(slots, len(missing)))]
    for ranks in started:
        group.wait(ranks)


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.learning.learning", description=__doc__.splitlines()[0])
    parser.add_argument("--question", choices=QUESTIONS, action="append", help="only this one; again for more")
    parser.add_argument("--slots", type=int, default=1, help="runs at once, of four ranks each (default 1)")
    parser.add_argument("--text", help="what lstm and gpt read (default: the sources of this Python's standard library)")
    parser.add_argument("--page", action="store_true", help="train nothing, write the tables of what is there")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results", metavar="FOLDER",
                        help="of learning.md (docs/results)")
    given = parser.parse_args(arguments)
    if not given.page:
        train_all(given.question or QUESTIONS, given.slots, given.text)
    if given.page or not given.question:
        publish(given.out)
    return 0


def train_all(questions, slots: int, text_file: str | None) -> None:
    for question in questions:
        answer(question, slots, text_file)


def publish(folder: Path) -> None:
    """The tables, and on stderr which runs they lack."""
    found = {question: known(question) for question in QUESTIONS}
    for question, runs in found.items():
        if lacking := sum(run is None for _, run in runs):
            print(f"{question}: {lacking} of {len(runs)} runs are missing", file=sys.stderr)
    tables.publish(folder, "learning", "python -m bench.learning.learning", tables_of(found), keep=True)


if __name__ == "__main__":
    sys.exit(main())
