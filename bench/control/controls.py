# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Controls in a closed loop and in the network lab: docs/results/control.md.

    make control                            all of it: some hours, in parts; what was cut off goes on where it was
    python -m bench.control.controls --scenario turns --seeds 1 --model mlp     a part
    python -m bench.control.controls --control dc2:target=compute,share=1 --out FOLDER      this law, too
    python -m bench.control.controls --page                                     the tables alone, of what is there

The closed loop is `control_loop_bench`, in virtual time. In the lab four hosts train a model of the demo's; the figure is the time to the demo's
target from the first step, evaluations taken out. A run is a file under out/control: delete it to have it made again. The runs of a network, a
model and a seed follow each other in one lab, but for those with cross traffic, which all meet it from its beginning. PyTorch's own exchanges
compute the same on every network: where each step takes as long as the last, some seconds of them stand for all, and the unshaped run of the
same seed says how many steps there are. On a machine that is not idle the figures are of that machine's other work, too.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from bench.control.controls_tables import tables_of
from bench.lib import tables
from bench.lib.lab import environment, laconic_command
from bench.lib.machine import cpu
from bench.lib.models import MODELS
from bench.lib.programs import ROOT

OUT = ROOT / "out" / "control"
HOSTS = 4
#: Seeds of a run; tables show those that are there.
SEEDS = 12
#: Seconds of training after which a run that has not reached its target ends.
LIMIT = 240.0
#: Seconds of training in a run of which only the step's time is needed.
SAMPLE = 12.0


@dataclass(frozen=True)
class Scenario:
    name: str
    what: str
    network: tuple[str, ...]
    late_ms: float = 0.0
    #: rates that take turns from the first step on, so that all exchanges meet them at the same time, and how long each lasts
    rates: tuple[str, ...] = ()
    every: float = 0.0
    #: each step meets the same network
    even: bool = True
    #: spec and control, where they are others than elsewhere; only `mlp` trains with them, to its end
    exchanges: tuple[tuple[str, str | None], ...] = ()
    #: attach(small_elements=)
    small: int = 4096
    #: the name of the scenario that has fp32's time on this network, if this one has not
    like: str = ""


def cross(seed: int) -> tuple[str, ...]:
    sender = f"{shlex.quote(sys.executable)} -m bench.control.cross_traffic $LACONIC_LAB_RANK_1 30 3 3 {seed}"
    return "--beside", "1", sender


#: `topk` and DC2-R at a changing rate when an element takes few bytes, and small parameters are compressed, too.
NARROW = "topk:ratio=0.01,values=bf16"
NARROW_EXCHANGES = (("topk:ratio=0.1,values=bf16", None), (NARROW, None), ("topk:ratio=0.005,values=bf16", None), ("topk:ratio=0.001,values=bf16", None),
                    (NARROW, "dc2:target=compute"), (NARROW, "dc2:target=compute,share=0.5"), (NARROW, "dc2:target=compute,min=0.003"),
                    (NARROW, "dc2:target=compute,min=0.005"))

TURNS = Scenario("turns", "100 and 10 Mbit/s in turn, 3 s each", ("--rate", "100mbit"), rates=("100mbit", "10mbit"), every=3.0, even=False)
SCENARIOS = {s.name: s for s in (
    Scenario("steady", "50 Mbit/s", ("--rate", "50mbit")),
    TURNS,
    replace(TURNS, name="narrow", what=f"{TURNS.what}, `small_elements=512`", exchanges=NARROW_EXCHANGES, small=512, like=TURNS.name),
    Scenario("cross", "50 Mbit/s; a fifth host sends 30 Mbit/s to rank 1, about 3 s on, 3 s off", ("--rate", "50mbit"), even=False),
    Scenario("late", "50 Mbit/s; rank 0 comes 40 ms late to every step", ("--rate", "50mbit"), 40.0),
    Scenario("delay1", "50 Mbit/s; delay 1 ± 0.2 ms each way", ("--rate", "50mbit", "--delay", "1ms", "--jitter", "0.2ms")),
    Scenario("delay5", "50 Mbit/s; delay 5 ± 5 ms each way", ("--rate", "50mbit", "--delay", "5ms", "--jitter", "5ms")),
    Scenario("unshaped", "no limit", ()),
)}

#: spec, control
EXCHANGES = (("pytorch:ddp", None), ("pytorch:fp16", None), ("topk:ratio=0.1", None), ("topk:ratio=0.01", None), ("topk:ratio=0.001", None),
             ("topk:ratio=0.01", "dc2"), ("topk:ratio=0.01", "dc2:target=compute"), ("topk:ratio=0.01", "aimd"), ("topk:ratio=0.01", "bdp"))


@dataclass(frozen=True)
class Cell:
    scenario: Scenario
    model: str
    spec: str
    control: str | None
    seed: int

    @property
    def path(self) -> Path:
        words = (self.scenario.name, self.model, self.spec, self.control or "none", str(self.seed), "run")
        return OUT / ("-".join(words).replace(":", "_").replace("=", "").replace("/", "") + ".json")

    def load(self) -> dict | None:
        try:
            return json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    @property
    def sampled(self) -> bool:
        """Only its time per step is needed; the unshaped run of the same seed gives the number of steps."""
        return self.spec.startswith("pytorch:") and self.scenario.even and self.scenario.name != "unshaped"

    def plan(self) -> dict:
        model = MODELS[self.model]
        # The exchanges that follow a changing rate are trained to the end, for their final accuracy.
        whole = self.scenario.name == "unshaped" or bool(self.scenario.exchanges) or (self.control is not None and self.scenario.name == "turns")
        return {"model": self.model, "spec": self.spec, "control": self.control, "small_elements": self.scenario.small, "seed": self.seed,
                "steps": model.steps, "every": model.every, "target": model.target, "late_ms": self.scenario.late_ms,
                "rates": self.scenario.rates, "rates_every": self.scenario.every,
                "limit": SAMPLE if self.sampled else LIMIT, "sampled": self.sampled, "whole": whole}


def run(cells: list[Cell]) -> bool:
    """Makes runs of one network and seed, in one lab."""
    first = cells[0]
    network = list(first.scenario.network)
    if first.scenario.name == "cross":
        network += cross(first.seed)
    with tempfile.TemporaryDirectory(prefix="laconic-control-") as folder:
        asked, answered = Path(folder) / "plans.json", Path(folder) / "results.jsonl"
        asked.write_text(json.dumps([cell.plan() for cell in cells]))
        words = [laconic_command(), "lab", "--hosts", str(HOSTS), "--timeout", f"{(LIMIT + 120) * len(cells):.0f}s", "--seed", str(first.seed), *network, "--",
                 sys.executable, "-m", "bench.control.controls_rank", str(asked), str(answered)]
        load = os.getloadavg()[0]
        done = subprocess.run(words, env=environment(ROOT), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
        lines = answered.read_text().splitlines() if answered.exists() else []
        OUT.mkdir(parents=True, exist_ok=True)
        for cell, line in zip(cells, lines):
            found = {**json.loads(line), "load": load, "cpu": cpu()}
            cell.path.write_text(json.dumps(found))
        if done.returncode != 0 or len(lines) != len(cells):
            print(f"{cells[min(len(lines), len(cells) - 1)].path.stem}:", *done.stderr.strip().splitlines()[-30:], sep="\n  ", file=sys.stderr)
            return False
    return True


def labs(wanted: list[Cell]) -> list[list[Cell]]:
    """The runs of one lab: the exchanges of a network, a model and a seed; each alone where traffic from other hosts
    varies over time."""
    groups: dict = {}
    for cell in wanted:
        alone = cell.path if cell.scenario.name == "cross" else None
        groups.setdefault((cell.scenario, cell.model, cell.seed, alone), []).append(cell)
    return list(groups.values())


def cells(scenarios, models, seeds: int, exchanges=EXCHANGES) -> list[Cell]:
    found = []
    for seed in range(seeds):
        for name in scenarios:
            own = SCENARIOS[name].exchanges
            for model in ("mlp",) if own else models:
                found += [Cell(SCENARIOS[name], model, spec, control, seed) for spec, control in own or exchanges]
    return found


def missing(wanted: list[Cell]) -> list[Cell]:
    """Runs that are missing, or whose file was cut off."""
    return [cell for cell in wanted if cell.load() is None]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.control.controls", description=__doc__.splitlines()[0])
    parser.add_argument("--scenario", action="append", choices=SCENARIOS, help="may be given several times (default: all)")
    parser.add_argument("--model", action="append", choices=("mlp", "cnn"), help="(default: both)")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--control", action="append", default=[], help="of topk:ratio=0.01, besides those of the tables; may be given several times")
    parser.add_argument("--page", action="store_true", help="write the tables only")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results", metavar="FOLDER", help="of control.md (docs/results)")
    given = parser.parse_args()
    complete, exchanges = True, (*EXCHANGES, *(("topk:ratio=0.01", control) for control in given.control))
    if not given.page:
        wanted = labs(missing(cells(given.scenario or SCENARIOS, given.model or ("mlp", "cnn"), given.seeds, exchanges)))
        for at, together in enumerate(wanted, 1):
            print(f"{at}/{len(wanted)} {together[0].path.stem}, {len(together)} runs", file=sys.stderr, flush=True)
            complete &= run(together)
    loop = subprocess.run([ROOT / "build/release/bin/control_loop_bench"], capture_output=True, text=True, check=True).stdout
    runs = [(cell, found) for cell in cells(SCENARIOS, ("mlp", "cnn"), SEEDS, exchanges) if (found := cell.load()) is not None]
    print(tables.publish(given.out, "control", "make control", tables_of(json.loads(loop)["closed_loop"], runs, SCENARIOS, exchanges), keep=True))
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
