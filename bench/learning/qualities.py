# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Trains the demo's models with every codec at its default: what docs/results/quality.md is made of. Below an hour on two cores.

    python -m bench.learning.qualities                  every run that is not there yet, then the tables
    python -m bench.learning.qualities --spec qsgd      only these codecs, and no tables; --slots 4: four runs at once
    python -m bench.learning.qualities --page           trains nothing, writes the tables from what is there

Four processes on one machine, Gloo, three seeds. A run is a file in out/models/quality, written when it has ended: what was cut
off goes on where it was. Codecs that vote have no scale: their learning rate is found first, on a seed of its own and held-out
training samples. Needs a release build, or LACONIC_LIBRARY.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
from pathlib import Path

from bench.learning import learning
from bench.learning.judging import failed, is_accuracy
from bench.learning.learning import REFERENCE, ROOT, WORLD
from bench.learning.learning_tables import environment
from bench.lib import group, models, tables
from bench.lib.results import best_of, final_of

RESULTS = ROOT / "out" / "models" / "quality"
SEEDS, TUNING_SEED = (0, 1, 2), 100
#: shorter than the demo's, so that all of it stays below an hour; schedules end with them
STEPS = {"mlp": 200, "cnn": 150, "lstm": 150, "gpt": 150}
EVERY = 10
ALLOWED = 1.0  # points
#: of the model's own learning rate, tried for codecs that vote: with SGD a sign is far larger than a gradient, with Adam it is not
FACTORS = {"mlp": (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1), "cnn": (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1), "lstm": (0.1, 0.3, 1.0, 3.0),
           "gpt": (0.1, 0.3, 1.0, 3.0)}


@dataclasses.dataclass(frozen=True)
class Cell(learning.Cell):
    """One run; rate 0: the model's own."""

    @property
    def path(self) -> Path:
        words = [self.question, self.model, self.spec.replace(":", "_"), f"seed{self.seed}", *([f"rate{self.rate:g}"] if self.rate else [])]
        return RESULTS / ("-".join(words) + ".json")


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
    return best_of({rate: final_of(run["curve"]) for rate, run in found.items()}, models.MODELS[model].quality.higher_is_better)


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


# ---- tables ----


def shown(model: str, value: float) -> float:
    """Accuracy in points; perplexity of bits a character."""
    return 100 * value if is_accuracy(model) else 2.0**value


def quality_cell(model: str, finals: list[float], plain: list[float] | None = None) -> str:
    """In brackets the mean difference to uncompressed training, plus is better; in bold where it is worse by more than ALLOWED."""
    if bad := sum(failed(model, value) for value in finals):
        return f"**failed, {bad} of {len(finals)}**"
    digits, numbers = 1 if is_accuracy(model) else 2, [shown(model, value) for value in finals]
    text = f"{statistics.fmean(numbers):.{digits}f} ± {statistics.stdev(numbers):.{digits}f}"
    if plain is None:
        return text
    gap = statistics.fmean(numbers) - statistics.fmean(shown(model, value) for value in plain)
    gap = gap if is_accuracy(model) else -gap
    text += f" ({round(gap, digits) + 0.0:+.{digits}f})"
    return f"**{text}**" if gap < -ALLOWED else text


def quality_table(names: dict[str, dict], found: dict) -> dict:
    """found: (model, spec) → its runs, by seed."""
    finals = {key: [final_of(run["curve"]) for run in some] for key, some in found.items()}
    rows = [["uncompressed", "", "1", *(quality_cell(model, finals[model, REFERENCE]) for model in STEPS)]]
    for name, entry in names.items():
        ratios = [run["ratio"] for model in STEPS for run in found[model, name]]
        rows.append([f"`{name}`" + " †" * votes(entry), entry["class"], [min(ratios), max(ratios)],
                     *(quality_cell(model, finals[model, name], finals[model, REFERENCE]) for model in STEPS)])
    return tables.table(["codec", "class", ("× fewer bytes", "{:.0f} to {:.0f}"), *(f"{model}, {'%' if is_accuracy(model) else 'perplexity'}" for model in STEPS)],
                        rows)


def rate_table(names: dict[str, dict]) -> dict:
    """The rates tried for codecs that vote, and the one chosen."""
    rows = []
    for name in (name for name, entry in names.items() if votes(entry)):
        for model in STEPS:
            tried = [(each.rate, shown(model, final_of(each.load()["curve"]))) for each in tuning_cells(name, model)]
            rows.append([f"`{name}`", model, ", ".join(f"{rate:g}: {value:.1f}" for rate, value in tried), best_rate(name, model)])
    return tables.table(["codec", "model", "rates tried: accuracy in %, or perplexity, of held-out samples", ("taken", "{:g}")], rows)


def publish(folder: Path) -> int:
    names, found, missing = codecs(), {}, 0
    for model, spec, each in runs(names):
        found.setdefault((model, spec), []).append(each and each.load())
        missing += found[model, spec][-1] is None
    if missing:
        print(f"no tables yet: {missing} runs are missing", file=sys.stderr)
        return 1
    trained = [run for some in found.values() for run in some] + [each.load() for each in tuning(names)]
    tables.publish(folder, "quality", "make quality", {"quality": quality_table(names, found), "rates": rate_table(names), "environment": environment(trained)})
    return 0


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.learning.qualities", description=__doc__.splitlines()[0])
    parser.add_argument("--spec", action="append", help="only this codec; again for more")
    parser.add_argument("--slots", type=int, default=1, help="runs at once, of four ranks each (default 1)")
    parser.add_argument("--page", action="store_true", help="train nothing, write the tables of what is there")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results", metavar="FOLDER", help="of quality.md (docs/results)")
    given = parser.parse_args(arguments)
    if not given.page:
        names = codecs()
        unknown = set(given.spec or ()) - names.keys()
        if unknown:
            parser.error(f"no codec {min(unknown)}: there are {', '.join(names)}")
        names = {name: entry for name, entry in names.items() if not given.spec or name in given.spec}
        train(tuning(names), given.slots)
        train([each for _, _, each in runs(names)], given.slots)
    return publish(given.out) if given.page or not given.spec else 0


if __name__ == "__main__":
    sys.exit(main())
