# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Ranks of bench.control.tradeoff: `learn`, of processes that are a group already, in virtual time; and, as a program of `laconic lab`, `measure`, the costs
of steps, and `follow`, trainings in real time while the lab's rate changes."""

from __future__ import annotations

import copy
import datetime
import gc
import json
import statistics
import sys
import tempfile
import types
from pathlib import Path

import torch
import torch.distributed as dist

import laconic
from bench.control.controls_rank import Turns
from bench.control.tradeoff import value_of
from bench.control.virtual_network import SCENARIOS, Clock, Costs, retimed
from bench.learning.comparison_rank import Compared, from_rank_0
from bench.learning.learning import environment, held_out
from bench.lib import models
from bench.lib.network import Network
from bench.lib.results import LAST_EVALUATIONS, REFERENCE, final_of

RISE = 20  # steps in which AdamW's rate rises, before the cosine
NETWORKS = ("1gbit", "10mbit")  # that steps are measured on
ROUNDS, WARM_UP, LEAST, MOST = 6, 1, 2, 20  # of each setting, and in each: steps before times count, and of those that do
PLAIN = {"attach": REFERENCE, "outer": "none"}  # uncompressed


class Kind(types.SimpleNamespace):
    """A file of models/ with an optimizer and a learning rate of its own."""

    @classmethod
    def of(cls, model: str, optimizer: str, rate: float):
        made = {"SGD": lambda parameters, momentum=True: torch.optim.SGD(parameters, lr=rate, momentum=0.9 if momentum else 0.0, fused=True),
                "AdamW": lambda parameters, momentum=True: torch.optim.AdamW(parameters, lr=rate, betas=(0.9 if momentum else 0.0, 0.999), fused=True)}
        return cls(**{**vars(models.load(model)), "optimizer": made[optimizer], "LEARNING_RATE": rate})


class Steered(Compared):
    """The trainer of a group's plan, with an exchange that a control may move. Counts what each step sends."""

    def __init__(self, plan: dict, spec: str, control: str | None, data, seed: int, steps: int, record: str | None = None):
        self.control, self.record, self.sent, self._counted = control, record, 0, 0
        self.full, self.rises = plan["rate"], plan["optimizer"] == "AdamW"
        super().__init__(Kind.of(plan["model"], plan["optimizer"], plan["rate"]), "outer:" * (plan["mode"] == "outer") + spec, seed, data, steps,
                         dist.get_rank(), dist.get_world_size())

    def _exchange(self, spec: str, seed: int, world: int, emulated_rate: float) -> None:
        more = {"seed": seed, "quiet": True, "control": self.control, "record": self.record}
        if spec == REFERENCE:
            return
        if self.mode == "attach":
            self.handle = laconic.attach(self.model, spec, **more)
        else:
            self.handle = laconic.OuterStep(self.module, self.optimizer, spec=spec, every=1, **more)

    def train_step(self) -> tuple[float, float, float]:
        self.kind.LEARNING_RATE = self.full * (min(1.0, (self.step + 1) / RISE) if self.rises else 1.0)
        parts = super().train_step()
        total = self.counters()["wire_bytes"] if self.handle is not None else self.step * self.baseline_bytes(dist.get_world_size())
        self.sent, self._counted = total - self._counted, total
        return parts

    @property
    def session(self):
        """The session that takes reports."""
        return self.handle.worker.session if self.mode == "attach" else self.handle._rounds.parts[0].exchange.opened.worker.session  # noqa: SLF001

    def quality_of(self, state: dict) -> float:
        """Of parameters and buffers as they were."""
        self.module.load_state_dict(state)
        return self.quality()

    def setting(self) -> str:
        """In the step that has ended: its spec, or "uncompressed"."""
        found = self.handle.explain()["settings"][0]
        return "uncompressed" if found["strategy"] == "uncompressed" else found["spec"]


def followed(plan: dict, settings: list[str], trainer: Steered) -> dict:
    """What a control did: the geometric mean of its values, the share of uncompressed steps, and how often it changed its mind."""
    values = [value_of(each, plan["key"]) for each in settings if each != "uncompressed"]
    return {"mean": statistics.geometric_mean(values) if values else None, "uncompressed": settings.count("uncompressed") / len(settings),
            "changes": trainer.handle.stats()["setting_changes"]}


# ---- learning in virtual time -----------------------------------------------------------------------------------------


def slowest(sent: int) -> int:
    """The most that a rank has sent."""
    box = torch.tensor([sent])
    dist.all_reduce(box, dist.ReduceOp.MAX)
    return int(box)


class Timed:
    """The clock of a training: after each step its session gets the reports that ranks would have made of the step before."""

    def __init__(self, trainer: Steered, clock: Clock):
        self.trainer, self.clock, self._before, self.settings = trainer, clock, None, []

    def stepped(self) -> None:
        reports = self.trainer.session.report()
        if self._before and (made := retimed(reports, *self._before)):
            self.trainer.session.decide_by(made)
        self.settings.append(self.trainer.setting())
        self._before = self.clock.step(slowest(self.trainer.sent), self.settings[-1] == "uncompressed")


def trained(plan: dict, run: dict, data, record: str | None = None) -> dict:
    """run: {"spec", "control", "scenario"}, of which a fixed setting has neither of the last two. On rank 0 what is saved."""
    trainer = Steered(plan, run["spec"], run["control"], data, plan["seed"], plan["steps"], record)
    timed = Timed(trainer, Clock(Costs.read(plan["costs"]), SCENARIOS[run["scenario"]])) if run["scenario"] else None
    curve, sent = [], 0
    while trainer.step < plan["steps"]:
        trainer.train_step()
        sent += trainer.sent
        if timed:
            timed.stepped()
        if dist.get_rank() == 0 and trainer.step % plan["every"] == 0:
            curve.append([trainer.step, trainer.quality()])
    found = {"final": final_of(curve) if curve else None, "sent": slowest(sent) / plan["steps"], "steps": plan["steps"]}
    if timed:
        found |= {"seconds": timed.clock.seconds, **followed(plan, timed.settings, trainer)}
    trainer.close()
    return found


def learn(rank: int, plan: dict, out: Path) -> None:
    """Trains all runs of the plan, one after the other."""
    data = models.load(plan["model"]).data(None)
    data = held_out(data) if plan["held_out"] else data
    found = {}
    for name, run in plan["runs"].items():
        found[name] = trained(plan, run, data)
        if rank == 0:
            print(f"  {name}: {found[name]['final']:.4f}", file=sys.stderr, flush=True)
        gc.collect()
    if rank == 0:
        out.write_text(json.dumps({"runs": found, "environment": environment()}))


# ---- in the lab -------------------------------------------------------------------------------------------------------


class Lap:
    """Steps of a trainer in a row, on one network: seconds, those in collectives, bytes as the library and as the kernel counts them."""

    def __init__(self):
        self.times, self.collectives, self.sent, self.wire = [], [], [], []

    def run(self, trainer: Steered, network: Network, rate: str, seconds: float) -> None:
        network.shape(rate)
        dist.barrier()
        last = [sum(trainer.train_step()) for _ in range(WARM_UP)][-1]
        count = int(from_rank_0(min(max(seconds / last, LEAST), MOST)))
        before, known = network.sent_bytes(), clock_of(trainer)
        for _ in range(count):
            parts = trainer.train_step()
            now = clock_of(trainer)
            self.times.append(sum(parts))
            self.collectives.append(parts[1] if trainer.handle is None else now - known)
            self.sent.append(trainer.sent)
            known = now
        dist.barrier()
        self.wire.append(statistics.median(self.sent) if before is None else (network.sent_bytes() - before) / count)
        network.shape("off")
        dist.barrier()

    def cost(self) -> dict:
        """Medians of a step."""
        return {"step": statistics.median(self.times), "network": statistics.median(self.collectives), "sent": statistics.median(self.sent),
                "wire": statistics.median(self.wire)}


def clock_of(trainer: Steered) -> float:
    """Seconds in collectives so far, without the wait for others; of a plain sum after the optimizer, all that rounds took."""
    stats = trainer.handle.stats() if trainer.handle else {}
    return stats.get("exposed_seconds", 0.0) if trainer.spec == "none" else stats.get("network_seconds", 0.0)


def measure(plan: dict, network: Network) -> dict:
    """Of every setting, in turn for a second each, so that what else the machine does slows all of them."""
    data, plain = models.load(plan["model"]).data(None), PLAIN[plan["mode"]]
    with tempfile.TemporaryDirectory(prefix="laconic-tradeoff-") as folder:
        trainers = {spec: Steered(plan, spec, None, data, 0, plan["steps"], None if spec == plain else f"{folder}/{i}")  # who records reports
                    for i, spec in enumerate((*plan["specs"], plain))}
        laps = {spec: {rate: Lap() for rate in (NETWORKS[:1] if spec == plain else NETWORKS)} for spec in trainers}
        for _ in range(ROUNDS):
            for spec, trainer in trainers.items():
                for rate, lap in laps[spec].items():
                    lap.run(trainer, network, rate, plan["seconds"] / ROUNDS)
        for trainer in trainers.values():
            trainer.close()
    return {"steps": {spec: {rate: lap.cost() for rate, lap in found.items()} for spec, found in laps.items()}}


def follow(plan: dict, network: Network) -> dict:
    """Trains the plan's runs in real time. What the last evaluations judge is kept, and judged after the last step: evaluating would take time of a turn."""
    data = models.load(plan["model"]).data(None)
    judged = range(plan["every"], plan["steps"] + 1, plan["every"])[-LAST_EVALUATIONS:] if dist.get_rank() == 0 else ()
    found = {}
    for name, run in plan["runs"].items():
        scenario = SCENARIOS[run["scenario"]]
        trainer = Steered(plan, run["spec"], run["control"], data, plan["seed"], plan["steps"])
        network.shape(scenario.rates[0])
        dist.barrier()
        seconds, settings, kept = 0.0, [], []
        with Turns(list(scenario.rates) if dist.get_rank() == 0 and not network.emulated else [], scenario.every):
            for _ in range(plan["steps"]):
                seconds += sum(trainer.train_step())
                settings.append(trainer.setting())
                if trainer.step in judged:
                    kept.append((trainer.step, copy.deepcopy(trainer.module.state_dict())))
        found[name] = {"seconds": seconds, "final": final_of([(step, trainer.quality_of(state)) for step, state in kept]) if kept else None,
                       **followed(plan, settings, trainer)}
        trainer.close()
        gc.collect()
        dist.barrier()
    return {"runs": found}


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
    plan = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    found = {"measure": measure, "follow": follow}[plan["do"]](plan, Network(dist.get_rank()))
    if dist.get_rank() == 0:
        Path(sys.argv[2]).write_text(json.dumps({**found, "environment": environment()}), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
