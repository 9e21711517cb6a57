#!/usr/bin/env python3
# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Trains the demo's models with every codec at its default: what docs/results/quality.md is made of. Below an hour on two cores.

    bench/qualities.py                  every run that is not there yet, then the page
    bench/qualities.py --spec qsgd      only these codecs, and no page; --slots 4: four runs at once
    bench/qualities.py --page           trains nothing, writes docs/results/quality.md from what is there

Four processes on one machine, Gloo, three seeds. A run is a file in out/models/quality, written when it has ended: what was cut
off goes on where it was. With the page all runs go into quality.json beside it, and are not trained again. Codecs that vote have
no scale: their learning rate is found first, on a seed of its own and held-out training samples. Needs a release build, or
LACONIC_LIBRARY.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import learning  # noqa: E402
import qualities_page  # noqa: E402
from learning import REFERENCE, ROOT, WORLD, kept, read, rounded  # noqa: E402

import group  # noqa: E402
import models  # noqa: E402
from results import final_of  # noqa: E402

RESULTS = ROOT / "out" / "models" / "quality"
KEPT = ROOT / "docs" / "results" / "quality.json"
SEEDS, TUNING_SEED = (0, 1, 2), 100
#: shorter than the demo's, so that all of it stays below an hour; schedules end with them
STEPS = {"mlp": 200, "cnn": 150, "lstm": 150, "gpt": 150}
EVERY = 10
#: of the model's own learning rate, tried for codecs that vote: with SGD a sign is far larger than a gradient, with Adam it is not
FACTORS = {"mlp": (0.0003, 0.001, 0.003, 0.01, 0.03), "cnn": (0.0003, 0.001, 0.003, 0.01, 0.03), "lstm": (0.1, 0.3, 1.0, 3.0),
           "gpt": (0.1, 0.3, 1.0, 3.0)}


@dataclasses.dataclass(frozen=True)
class Cell(learning.Cell):
    """One run; rate 0: the model's own."""

    @property
    def path(self) -> Path:
        words = [self.question, self.model, self.spec.replace(":", "_"), f"seed{self.seed}", *([f"rate{self.rate:g}"] if self.rate else [])]
        return RESULTS / ("-".join(words) + ".json")

    def load(self) -> dict | None:
        for found in (read(self.path), kept(KEPT).get(self.path.stem)):
            if found and found["cell"] == dataclasses.asdict(self):
                return found
        return None


def codecs() -> dict[str, dict]:
    """All of this build but `none`, which is the uncompressed run."""
    import laconic

    return {name: entry for name, entry in laconic.codecs().items() if name != "none"}


def votes(entry: dict) -> bool:
    return entry["contract"]["merge"] == "vote"


def own_rate(model: str) -> float:
    return models.load(model).LEARNING_RATE


def cell(question: str, model: str, spec: str, seed: int, rate: float = 0.0) -> Cell:
    return Cell(question, model, spec, seed, STEPS[model], EVERY, rate=rate)


def tuning_cells(spec: str, model: str) -> list[Cell]:
    return [cell("tuning", model, spec, TUNING_SEED, float(f"{factor * own_rate(model):.6g}")) for factor in FACTORS[model]]


def best_rate(spec: str, model: str) -> float | None:
    """None before all of its tuning runs are there."""
    found = {each.rate: each.load() for each in tuning_cells(spec, model)}
    if None in found.values():
        return None
    finals = {rate: final_of(run["curve"]) for rate, run in found.items()}
    learned = {rate: value for rate, value in finals.items() if math.isfinite(value)} or finals
    better = max if models.MODELS[model].quality.higher_is_better else min
    return better(learned, key=learned.__getitem__)


def tuning(names: dict[str, dict]) -> list[Cell]:
    return [each for name, entry in names.items() if votes(entry) for model in STEPS for each in tuning_cells(name, model)]


def runs(names: dict[str, dict]) -> list[tuple[str, str, Cell | None]]:
    """(model, spec, cell) of every run, whole seeds first; None in place of a cell whose rate is not known yet."""
    listed = []
    rates = {(name, model): best_rate(name, model) if votes(entry) else 0.0 for name, entry in names.items() for model in STEPS}
    for seed in SEEDS:
        for model in STEPS:
            listed.append((model, REFERENCE, cell("quality", model, REFERENCE, seed)))
            for name in names:
                rate = rates[name, model]
                listed.append((model, name, None if rate is None else cell("quality", model, name, seed, rate)))
    return listed


def train(wanted: list[Cell], slots: int) -> None:
    missing = [each for each in wanted if each.load() is None]
    if not missing:
        return
    print(f"{missing[0].question}: {len(missing)} runs", file=sys.stderr, flush=True)
    started = [group.start(learning.run_rank, WORLD, WORLD, missing[slot::slots], RESULTS, None) for slot in range(min(slots, len(missing)))]
    for ranks in started:
        group.wait(ranks)


def publish(folder: Path) -> None:
    """The page, and the runs that it is made of."""
    names = codecs()
    found = [(model, spec, each, each and rounded(each.load())) for model, spec, each in runs(names)]
    tried = [(each, rounded(each.load())) for each in tuning(names)]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "quality.md").write_text(qualities_page.page(names, found, tried, list(SEEDS), STEPS), encoding="utf-8")
    whole = {each.path.stem: run for each, run in [(each, run) for _, _, each, run in found] + tried if run}
    lines = [f"{json.dumps(name)}: {json.dumps(run, separators=(',', ':'))}" for name, run in whole.items()]
    (folder / "quality.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(prog="bench/qualities.py", description=__doc__.splitlines()[0])
    parser.add_argument("--spec", action="append", help="only this codec; again for more")
    parser.add_argument("--slots", type=int, default=1, help="runs at once, of four ranks each (default 1)")
    parser.add_argument("--page", action="store_true", help="train nothing, write the page from what is there")
    parser.add_argument("--out", type=Path, default=KEPT.parent, metavar="FOLDER", help="of quality.md (docs/results)")
    given = parser.parse_args(arguments)
    if not given.page:
        names = codecs()
        unknown = set(given.spec or ()) - names.keys()
        if unknown:
            parser.error(f"no codec {min(unknown)}: there are {', '.join(names)}")
        names = {name: entry for name, entry in names.items() if not given.spec or name in given.spec}
        train(tuning(names), given.slots)
        train([each for _, _, each in runs(names)], given.slots)
    if given.page or not given.spec:
        publish(given.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
