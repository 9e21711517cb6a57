# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Every codec and every exchange with five models on three networks: docs/results/comparison.md.

    make comparison                                  what is missing, part after part, then page, CSV and picture
    python -m bench.learning.comparison --list       the parts, with their minutes on two idle cores and the cells that they lack
    python -m bench.learning.comparison time-gpt     these parts alone, or the cells whose names begin so; no page
    python -m bench.learning.comparison --page       page, CSV and picture from the cells that there are
    python -m bench.learning.comparison --restore    before them, lines of docs/results/comparison.csv become the cells that are missing

A cell is a file under out/comparison: delete it to have it made again. Parts that learn time nothing, so that a busy machine changes no figure;
`time` needs an idle one, and the network lab. Learning rates of codecs that vote are found first (`tune`), with a seed of their own and held-out
training samples. Needs a release build, or LACONIC_LIBRARY.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bench.lib import group, lab, models
from bench.lib.programs import ROOT
from bench.lib.results import REFERENCE, best_of

RESULTS = ROOT / "out" / "comparison"
WORLD, SEEDS, TUNING_SEED = 4, (0, 1, 2), 100
HOOKS = ("pytorch:fp16", "pytorch:powersgd")  # PyTorch's bf16 hook refuses Gloo
MODES = ("outer:3lc", "outer:3lc:s=1.5", "sharded:3lc")
UNITS = ("topk@bucket", "topk@whole", "3lc@bucket", "3lc@whole")
SPARSE = ("pytorch:ddp@sparse", "int8@sparse")
#: by what is moved; a codec without settings is at its default
SWEEPS = {"topk:ratio": ("topk:ratio=0.001", "topk:ratio=0.003", "topk", "topk:ratio=0.03", "topk:ratio=0.1"),
          "qsgd:levels": ("qsgd:levels=1", "qsgd:levels=3", "qsgd:levels=7", "qsgd:levels=31", "qsgd"),
          "powersgd:rank": ("powersgd:rank=1", "powersgd:rank=2", "powersgd", "powersgd:rank=8", "powersgd:rank=16"),
          "thc:bits": ("thc:bits=2", "thc:bits=3", "thc"),
          "3lc:s": ("3lc", "3lc:s=1.25", "3lc:s=1.5", "3lc:s=1.75", "3lc:s=1.9")}
SWEPT = ("cnn", "gpt")
#: of the model's own learning rate, tried for codecs that vote: with SGD a sign is far larger than a gradient, with Adam and Adagrad it is not
FACTORS = {"mlp": (0.001, 0.003, 0.01, 0.03, 0.1), "recommendation": (0.1, 0.3, 1.0, 3.0), "cnn": (0.0003, 0.001, 0.003, 0.01, 0.03),
           "lstm": (0.3, 1.0, 3.0, 10.0), "gpt": (0.1, 0.3, 1.0, 3.0)}
#: of a part, on two idle cores, with a seed each
MINUTES = {"tune": {"mlp": 2, "recommendation": 2, "cnn": 2, "lstm": 3, "gpt": 4}, "learn": {"mlp": 4, "recommendation": 4, "cnn": 4, "lstm": 11, "gpt": 13},
           "sweep": {"cnn": 3, "gpt": 10}, "time": {"mlp": 5, "recommendation": 6, "cnn": 6, "lstm": 8, "gpt": 8}}
SECONDS = 2.0  # of measured steps, on each network


@dataclass(frozen=True)
class Cell:
    """One run. kind: tune, learn, sweep or time. rate: of learning, 0 for the model's own, None while it is not known."""

    kind: str
    model: str
    way: str
    seed: int = 0
    rate: float | None = 0.0

    @property
    def part(self) -> str:
        return f"{self.kind}-{self.model}" + f"-{self.seed}" * (self.kind in ("learn", "sweep"))

    @property
    def name(self) -> str:
        return f"{self.part}-{self.way.replace(':', '_')}" + ("-untuned" if self.rate is None else f"-{self.rate:g}" * bool(self.rate))

    @property
    def path(self) -> Path:
        return RESULTS / f"{self.name}.json"

    def load(self) -> dict | None:
        return json.loads(self.path.read_text(encoding="utf-8")) if self.path.exists() else None


@functools.cache
def codecs() -> dict[str, dict]:
    """All of this build."""
    import laconic

    return laconic.codecs()


def votes(way: str) -> bool:
    return way in codecs() and codecs()[way]["contract"]["merge"] == "vote"


def ways(model: str) -> list[str]:
    """Rows of a model's table, and those of sparse gradients."""
    return [REFERENCE, *HOOKS, *codecs(), *MODES, *(SPARSE if model == "recommendation" else ())]


def swept(model: str) -> list[str]:
    """The ways that sweeps and other units add to a model's."""
    return [way for some in (*SWEEPS.values(), UNITS) for way in some if way not in ways(model)] if model in SWEPT else []


def tuning(model: str, way: str) -> list[Cell]:
    return [Cell("tune", model, way, TUNING_SEED, float(f"{factor * models.load(model).LEARNING_RATE:.6g}")) for factor in FACTORS[model]]


def best_rate(model: str, way: str) -> float | None:
    """0, the model's own, for codecs that do not vote; None before all tuning runs are there."""
    if not votes(way):
        return 0.0
    found = {cell.rate: cell.load() for cell in tuning(model, way)}
    if None in found.values():
        return None
    return best_of({rate: run["final"] for rate, run in found.items()}, models.MODELS[model].quality.higher_is_better)


def cells_of(kind: str, model: str, seed: int) -> list[Cell]:
    """The cells of one part."""
    if kind == "tune":
        return [cell for way in ways(model) if votes(way) for cell in tuning(model, way)]
    if kind == "time":
        return [Cell(kind, model, way) for way in (*ways(model), *(UNITS if model in SWEPT else ()))]
    return [Cell(kind, model, way, seed, best_rate(model, way)) for way in (ways(model) if kind == "learn" else swept(model))]


def parts() -> list[tuple[str, str, int]]:
    """(kind, model, seed), in the order in which they are made: all models with one seed first."""
    found = [(kind, model, 0) for model in FACTORS for kind in ("tune", "learn")]
    found += [("sweep", model, 0) for model in SWEPT] + [("time", model, 0) for model in FACTORS]
    return found + [(kind, model, seed) for seed in SEEDS[1:] for kind, some in (("learn", FACTORS), ("sweep", SWEPT)) for model in some]


# ---- making cells -----------------------------------------------------------------------------------------------------


def train(cells: list[Cell]) -> None:
    from bench.learning import comparison_rank

    about = models.MODELS[cells[0].model]
    group.wait(group.start(comparison_rank.learn, WORLD, WORLD, cells, RESULTS, about.steps, about.every))


def measure(cells: list[Cell], command: str, seconds: float = SECONDS, emulate: bool = False, **more) -> None:
    with tempfile.TemporaryDirectory(prefix="laconic-comparison-") as folder:
        plan = Path(folder) / "plan.json"
        plan.write_text(json.dumps({"model": cells[0].model, "ways": [cell.way for cell in cells], "paths": [str(cell.path) for cell in cells],
                                    "seconds": seconds, **more}), encoding="utf-8")
        lab.run_lab(command, WORLD, [sys.executable, "-m", "bench.learning.comparison_rank", str(plan)], 120 + 60 * len(cells), emulate, lab.Progress())


def make(names: list[str]) -> bool:
    """Makes the missing cells of the named parts, or of all; False if some were not made."""
    complete = True
    for kind, model, seed in parts():
        missing = [cell for cell in cells_of(kind, model, seed) if cell.load() is None and (not names or any(cell.name.startswith(name) for name in names))]
        waiting, missing = [cell for cell in missing if cell.rate is None], [cell for cell in missing if cell.rate is not None]
        if waiting:
            complete = False
            print(f"{waiting[0].part}: tune-{model} comes before {', '.join(cell.way for cell in waiting)}", file=sys.stderr, flush=True)
        if not missing:
            continue
        print(f"{missing[0].part}: {len(missing)} cells; all of it takes {MINUTES[kind][model]} minutes", file=sys.stderr, flush=True)
        try:
            if kind == "time":
                measure(missing, lab.laconic_command())
            else:
                train(missing)
        except Exception as error:  # noqa: BLE001  whatever ends a part's ranks: the cells before it are there, other parts go on
            complete = False
            print(f"{missing[0].part} failed: {error}", file=sys.stderr, flush=True)
    return complete


def lacking() -> list[tuple[str, int, int, int]]:
    """(part, its minutes, cells that it lacks, all of them)"""
    found = []
    for kind, model, seed in parts():
        cells = cells_of(kind, model, seed)
        found.append((cells[0].part, MINUTES[kind][model], sum(cell.load() is None for cell in cells), len(cells)))
    return found


def main(arguments=None) -> int:
    from bench.learning import comparison_tables

    parser = argparse.ArgumentParser(prog="python -m bench.learning.comparison", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only the parts or cells whose names begin so, and no page")
    parser.add_argument("--list", action="store_true", help="the parts: minutes, cells that are missing")
    parser.add_argument("--page", action="store_true", help="make no cell")
    parser.add_argument("--restore", action="store_true", help="first take what is missing from comparison.csv")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results", metavar="FOLDER", help="of comparison.md (docs/results)")
    given = parser.parse_args(arguments)
    if given.restore:
        comparison_tables.restore(given.out)
    if given.list:
        for part, minutes, missing, total in lacking():
            print(f"{part:24} {minutes:3} minutes, {missing} of {total} cells are missing")
        return 0
    known = [cell.name for part in parts() for cell in cells_of(*part)]
    for name in given.names:
        if not any(each.startswith(name) for each in known):
            parser.error(f"no part or cell begins with {name}: --list names the parts")
    complete = given.page or make(given.names)
    if not given.names:
        comparison_tables.publish(given.out)
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
