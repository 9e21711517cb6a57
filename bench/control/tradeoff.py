# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""DC2's claim, a better trade-off of time and quality than any fixed setting, where the rate moves by a factor of 100: docs/results/tradeoff.md.

    make tradeoff                                          what is missing (five hours, in parts), then page, cells and pictures
    python -m bench.control.tradeoff time learn-0-gpt      these cells, or all whose names begin so; --list: all, with their minutes
    python -m bench.control.tradeoff --page                the page alone; --restore: first take cells from tradeoff.cells

A cell is a file under out/tradeoff: delete it to have it made again. Needs a release build, or LACONIC_LIBRARY.

Trainings run in virtual time. `time` measures what steps cost in the lab, at each fixed setting: a few seconds each, on an idle machine. `learn`
trains without a network and times nothing, so that a busy machine changes no figure: a simulated port, whose rate changes as the scenario says, turns the
bytes that a step sent into its seconds, and the session decides by reports with these, through the call that gives the ranks of a node the same
reports. Policies, codecs, bytes and what is learned are the library's. A training in the lab takes minutes, the same for each scenario, and on two cores its
times have the machine's noise in them; in virtual time a fixed setting is trained once for all scenarios, and a decision can be repeated. What the
clock leaves out is noise and what queues do: `lab` makes some of the same trainings in real time, and the page sets their seconds side by side.

Where turns are long, the page also has what a law that knew the rate would reach, the largest of the five settings that is exchanged as the first one
is while the link is fast, and the smallest while it is slow: how much there is to gain, whatever a law does.

Seed 0 is a screen: other seeds are trained where by it a policy is ahead, with SLACK for chance.
"""

from __future__ import annotations

import functools
import json
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bench.control import tradeoff_tables
from bench.control.virtual_network import BURST, SCENARIOS, Costs, foreseen
from bench.learning.comparison import SWEEPS, codecs
from bench.learning.learning import environment
from bench.lib import cells, group, lab, tables
from bench.lib.network import bits_per_second
from bench.lib.programs import ROOT
from bench.lib.results import best_of

RESULTS = ROOT / "out" / "tradeoff"
WORLD, SEEDS, TUNING_SEED = 4, (0, 1, 2), 100
POLICIES = ("dc2", "dc2:target=compute")
FORESEEN, KNOWN = "turns20", "known rate"  # where the rate is known to a schedule, and how that is called
#: model → steps, those between evaluations
LENGTHS = {"lstm": (400, 20), "gpt": (400, 20), "cnn": (5000, 100)}
SECONDS = 6.0  # of measured steps, of each setting on each network
#: (model, optimizer) → the learning rate: of gpt with SGD learning.md's, with AdamW outer.md's, of cnn the model's own; several: tried first, by uncompressed training
RATES = {("lstm", "SGD"): (0.3, 1.0, 3.0), ("gpt", "SGD"): 0.1, ("lstm", "AdamW"): 16e-3, ("gpt", "AdamW"): 4e-3, ("cnn", "SGD"): 0.1}


@dataclass(frozen=True)
class Group:
    """A model with an exchange of which one setting is fixed or moved: a key of SWEEPS."""

    model: str
    optimizer: str
    mode: str  # attach: gradients, before the optimizer; outer: changes, after each of its steps
    moved: str

    @property
    def name(self) -> str:
        return f"{self.model}-{self.optimizer.lower()}-{self.moved.partition(':')[0]}"

    @property
    def specs(self) -> tuple[str, ...]:
        return SWEEPS[self.moved]

    @property
    def first(self) -> str:
        """That policies begin with: the middle one."""
        return self.specs[2]

    @property
    def label(self) -> str:
        return f"{self.model}, {self.optimizer}, `{self.moved}`"


GROUPS = (*(Group(model, "SGD", "attach", "topk:ratio") for model in ("lstm", "gpt")),
          *(Group(model, "AdamW", "outer", moved) for model in ("lstm", "gpt") for moved in ("topk:ratio", "qsgd:levels", "powersgd:rank")),
          Group("cnn", "SGD", "attach", "topk:ratio"))
#: trainings that are made in the lab, too
CHECKED = ((GROUPS[0], "turns20"), (GROUPS[0], "turns3"), (GROUPS[5], "cloud"))
#: of a cell, on two idle cores
MINUTES = {"tune": 3, "time": 2, "fixed": {"lstm": 4, "gpt": 4, "cnn": 10}, "moved": {"lstm": 3, "gpt": 3, "cnn": 6}, "lab": 8}


# ---- cells ------------------------------------------------------------------------------------------------------------


def loaded(name: str) -> dict | None:
    return cells.Cell(name, dict, RESULTS).load()


def needed(name: str) -> dict:
    if (found := loaded(name)) is None:
        raise cells.CellError(f"it needs the cell {name}")
    return found


def rate_of(model: str, optimizer: str) -> float:
    rates = RATES[model, optimizer]
    if not isinstance(rates, tuple):
        return rates
    found = needed(f"tune-{model}-{optimizer.lower()}")["runs"]
    return best_of({rate: found[f"{rate:g}"]["final"] for rate in rates}, tradeoff_tables.quality_of(model).higher_is_better)


def plan_of(about: Group, seed: int, rate: float | None = None, **more) -> dict:
    steps, every = LENGTHS[about.model]
    return {"model": about.model, "optimizer": about.optimizer, "mode": about.mode, "key": about.moved.partition(":")[2], "seed": seed, "steps": steps, "every": every,
            "rate": rate or rate_of(about.model, about.optimizer), "held_out": False, **more}


def costs_of(about: Group) -> list[list[float]]:
    """Sent, wire, rest, base of each fixed setting and, last, of an uncompressed step: what Costs.read takes. Rest and base of the settings are lines
    over the bytes that are sent, by least squares: single medians differ by what the machine did."""
    rows = []
    for found in needed(f"time-{about.name}")["steps"].values():
        one = found["1gbit"]
        passing = 8 * max(one["wire"] - BURST, 0) / bits_per_second("1gbit")
        rows.append([one["sent"], one["wire"], max(one["step"] - one["network"], 0.0), max(one["network"] - passing, 0.0)])
    *settings, plain = rows
    sent, wire, *measured = zip(*settings)
    lines = [statistics.linear_regression(sent, seconds) for seconds in measured]
    return [[bytes_, on_wire, *(max(line.slope * bytes_ + line.intercept, 0.0) for line in lines)] for bytes_, on_wire in zip(sent, wire)] + [plain]


def run_of(spec: str, control: str | None = None, scenario: str | None = None) -> dict:
    return {"spec": spec, "control": control, "scenario": scenario}


def value_of(spec: str, key: str) -> float:
    """Of a key that may be at its default."""
    codec, _, keys = spec.partition(":")
    given = dict(each.split("=") for each in keys.split(",") if each)
    return float(given.get(key) or next(each["default"] for each in codecs()[codec]["params"] if each["name"] == key))


def moved(about: Group, scenario: str) -> dict:
    return {control: run_of(about.first, control, scenario) for control in POLICIES}


def strategies(about: Group) -> list[str]:
    """How ranks exchange, by fixed setting; no rank runs."""
    from bench.lib import models
    from laconic.core import _lib
    from laconic.exchange.csession import Options

    kind = models.load(about.model)
    parameters = [(name, tuple(p.shape)) for name, p in kind.build(kind.data(None)).named_parameters()]

    def of(spec: str) -> str:
        session = Options(spec=spec).read().session(parameters, rank=0, world=WORLD, threads=1, engine_sums=1 << _lib.F32, short_sends=True, record=None)
        try:
            return session.explain()["settings"][0]["strategy"]
        finally:
            session.close()

    return [of(spec) for spec in about.specs]


def known(about: Group, scenario: str, costs: list) -> dict:
    """The schedule of a law that knew the rate. Its largest setting is the largest that has the strategy of the first, as a policy's."""
    key, steps = about.moved.partition(":")[2], LENGTHS[about.model][0]
    sent = [run["sent"] for run in needed(f"learn-0-{about.name}-fixed")["runs"].values()]
    found = strategies(about)
    last = max(i for i, strategy in enumerate(found) if strategy == found[about.specs.index(about.first)])
    less, more = (f"{value_of(spec, key):g}" for spec in (about.specs[0], about.specs[last]))
    ways = [more if fast else less for fast in foreseen(Costs.read(costs), SCENARIOS[scenario], sent[0], sent[last], steps)]
    points = [f"{step}={way}" for step, way in enumerate(ways) if step == 0 or way != ways[step - 1]]
    return {KNOWN: run_of(about.first, "schedule:" + ",".join(points), scenario)}


def trained(plan: dict) -> dict:
    from bench.control import tradeoff_rank

    return cells.short(group.answered(tradeoff_rank.learn, WORLD, plan))


def tuning(model: str, optimizer: str) -> dict:
    """Uncompressed, judged by held-out samples."""
    about, found = Group(model, optimizer, "attach", "topk:ratio"), {}
    for rate in RATES[model, optimizer]:
        run = trained(plan_of(about, TUNING_SEED, rate, runs={f"{rate:g}": run_of("pytorch:ddp")}, costs=[], held_out=True))
        found |= run["runs"]
    return {"runs": found, "environment": environment()}


def fixed(about: Group, seed: int) -> dict:
    return trained(plan_of(about, seed, runs={spec: run_of(spec) for spec in about.specs}, costs=[]))


def moving(about: Group, scenario: str, seed: int) -> dict:
    costs = costs_of(about)
    runs = moved(about, scenario) | (known(about, scenario, costs) if scenario == FORESEEN and seed == SEEDS[0] else {})
    return {**trained(plan_of(about, seed, runs=runs, costs=costs)), "costs": tradeoff_tables.mark(costs)}


def in_lab(what: str, about: Group, minutes: int, **more) -> dict:
    with tempfile.TemporaryDirectory(prefix="laconic-tradeoff-") as folder:
        asked, answered = Path(folder) / "plan.json", Path(folder) / "answer.json"
        asked.write_text(json.dumps(plan_of(about, 0, do=what, **more)), encoding="utf-8")
        command = [sys.executable, "-m", "bench.control.tradeoff_rank", str(asked), str(answered)]
        lab.run_lab(lab.laconic_command(), WORLD, command, 120 + 180 * minutes, emulate=False, progress=lab.Progress())
        return cells.short(json.loads(answered.read_text(encoding="utf-8")))


def timed(about: Group) -> dict:
    return in_lab("measure", about, MINUTES["time"], specs=about.specs, seconds=SECONDS)


def checked(about: Group, scenario: str) -> dict:
    """Policies amid the fixed settings: the machine's speed drifts."""
    def fixed(specs: tuple[str, ...]) -> dict:
        return {spec: run_of(spec, "fixed", scenario) for spec in specs}

    runs = fixed(about.specs[:2]) | moved(about, scenario) | fixed(about.specs[2:])
    return in_lab("follow", about, MINUTES["lab"], runs=runs)


def learned(about: Group, seed: int, scenario: str | None) -> cells.Cell:
    """Its fixed settings, or those that move in the scenario."""
    kind, run = ("fixed", functools.partial(fixed, about, seed)) if scenario is None else ("moved", functools.partial(moving, about, scenario, seed))
    return cells.Cell(f"learn-{seed}-{about.name}-{scenario or 'fixed'}", run, RESULTS, MINUTES[kind][about.model])


def cells_of() -> list[cells.Cell]:
    """All with seed 0, then other seeds of what this one leaves open."""
    made = [cells.Cell(f"tune-{model}-{optimizer.lower()}", functools.partial(tuning, model, optimizer), RESULTS, MINUTES["tune"])
            for (model, optimizer), rates in RATES.items() if isinstance(rates, tuple)]
    made += [cells.Cell(f"time-{about.name}", functools.partial(timed, about), RESULTS, MINUTES["time"]) for about in GROUPS]
    made += [learned(about, 0, scenario) for about in GROUPS for scenario in (None, *SCENARIOS)]
    made += [cells.Cell(f"lab-{about.name}-{scenario}", functools.partial(checked, about, scenario), RESULTS, MINUTES["lab"]) for about, scenario in CHECKED]
    found = {cell.name: cell.load() for cell in made}
    for about in GROUPS:
        if wanted := [scenario for scenario in SCENARIOS if tradeoff_tables.is_open(about, scenario, found)]:
            made += [learned(about, seed, scenario) for seed in SEEDS[1:] for scenario in (None, *wanted)]
    return made


def publish(folder: Path, found: dict) -> None:
    if made := tradeoff_tables.tables_of(found):
        print(tables.publish(folder, "tradeoff", "make tradeoff", made))
    for scenario in SCENARIOS:
        if drawn := tradeoff_tables.picture(scenario, found):
            tables.write_whole(folder / f"tradeoff-{scenario}.svg", drawn + "\n")


def main(arguments=None) -> int:
    given = cells.options("python -m bench.control.tradeoff", __doc__, arguments, quick=False, kept=True)
    made, status = [], 0
    while len(now := cells_of()) > len(made):  # what the screen leaves open joins
        made = now
        status = cells.make_kept(made, given, "tradeoff", functools.partial(publish, given.out))
    return status


if __name__ == "__main__":
    sys.exit(main())
