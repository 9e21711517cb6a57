# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""One rank of the demo. Started by run.py through `laconic lab`, one process per host, once for all exchanges."""

from __future__ import annotations

import datetime
import gc
import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import laconic
from bench.lib import servers, zeros
from bench.lib.labels import BASELINES
from bench.lib.models import about, load
from bench.lib.network import Network
from bench.lib.trainer import Trainer

#: Above this a spec runs few shaped steps, and its time to the target is steps times step time.
SLOW_STEP = 0.1
#: Steps before bytes and times count: lengths of payloads are predicted from earlier steps.
WARM_UP = 10
#: After this number of steps the speed of an exchange shows: PyTorch's PowerSGD does not compress the first ones.
FIRST_STEPS = 4
#: Repeats in which the bytes of an exchange are sent without its codec; steps before times count, and steps, if slow and if not.
BOUND_REPEATS, BOUND_SLOW, BOUND_FAST = 2, (1, 3), (2, 10)


def say(event: dict) -> None:
    """A line that run.py understands."""
    print("@demo " + json.dumps(event), flush=True)


class Worker:
    def __init__(self, plan: dict):
        self.plan = plan
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.network = Network(self.rank)
        self.kind, self.quality = load(plan["model"]), about(plan["model"]).quality
        self.data = self.kind.data(plan["data"])
        self.specs = plan["specs"]
        self.steps = plan["steps"]
        self.done = {"learn": [], "pairs": [], "blocks": [], "bounds": [], "phases": {}}
        self.about: dict[str, dict] = {}
        self.slow: dict[tuple[str, str], bool] = {}  # by network and spec
        self.syncs = 0

    # ---- small things -------------------------------------------------------------------------------------------------

    def progress(self, phase: str, done: int, total: int, text: str) -> None:
        if self.rank == 0:
            say({"phase": phase, "done": done, "total": total, "text": text})

    def from_rank_0(self, value: float) -> float:
        """Also keeps the ranks in step: none leaves before rank 0 is here."""
        box = torch.tensor([value], dtype=torch.float64)
        dist.broadcast(box, 0)
        return box.item()

    def trainer(self, spec: str, seed: int = 0, emulated_rate: float = 0.0) -> Trainer:
        trainer = Trainer(self.kind, spec, seed, self.data, self.steps, self.rank, self.world, emulated_rate)
        self.about[spec] = {"canonical": trainer.canonical(), "strategy": trainer.strategy()}
        return trainer

    def zeros_trainer(self, emulated_rate: float) -> Trainer:
        return Trainer(self.kind, zeros.SPEC, 0, self.data, self.steps, self.rank, self.world, emulated_rate)

    def timed(self, name: str, function) -> None:
        begin = time.perf_counter()
        function()
        phases = self.done["phases"]
        phases[name] = phases.get(name, 0.0) + time.perf_counter() - begin

    # ---- phases -------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        in_kernel = [spec for spec in self.specs if servers.is_in_the_kernel(spec)]
        self.run_specs([spec for spec in self.specs if spec not in in_kernel])
        if self.plan["pairs"] and not self.plan["times_only"]:
            self.timed("none against plain DDP, unshaped", self.pairs)
        if in_kernel:  # last: while the program is there, every packet passes it
            with servers.in_the_kernel(self.plan["servers"], self.rank, self.world):
                dist.barrier()
                self.run_specs(in_kernel)

    def run_specs(self, specs: list[str]) -> None:
        if not self.plan["times_only"]:
            self.timed(f"{self.quality.name}, unshaped", lambda: self.learn(specs))
        for rate in self.plan["networks"]:
            self.timed(f"step times at {rate.replace(',', ', loss ')}", lambda: self.shaped(rate, specs))

    def learn(self, specs: list[str]) -> None:
        """Full runs without a limit: quality over steps."""
        total = len(self.plan["seeds"]) * len(self.specs)
        for seed in self.plan["seeds"]:
            for spec in specs:
                trainer = self.trainer(spec, seed)
                curve, times = [[0, self.evaluate(trainer)]], []
                while trainer.step < self.steps:
                    times.append(trainer.train_step())
                    if trainer.step % self.plan["every"] == 0:
                        curve.append([trainer.step, self.evaluate(trainer)])
                trainer.close()
                self.done["learn"].append({"spec": spec, "seed": seed, "curve": curve, "times": times})
                self.progress(self.quality.name.split()[0], len(self.done["learn"]), total, f"{spec}: {self.quality.text(curve[-1][1])}")

    def evaluate(self, trainer: Trainer) -> float:
        return self.from_rank_0(trainer.quality() if self.rank == 0 else 0.0)

    def pairs(self) -> None:
        """`none` costs nothing: plain DDP and Laconic's none, turn about."""
        trainers = [self.trainer("pytorch:ddp"), self.trainer("none")]
        for trainer in trainers:
            self.block_of_steps(trainer, WARM_UP)
        for pair in range(self.plan["pairs"]):
            times = [[], []]
            for which in (0, 1) if pair % 2 == 0 else (1, 0):
                dist.barrier()
                self.block_of_steps(trainers[which], 1)
                times[which] = self.block_of_steps(trainers[which], self.plan["pair_steps"])
            self.done["pairs"].append(times)
            self.progress("none", pair + 1, self.plan["pairs"], "none against plain DDP")
        trainers[1].close()

    def block_of_steps(self, trainer: Trainer, steps: int) -> list:
        return [trainer.train_step() for _ in range(steps)]

    def shaped(self, rate: str, specs: list[str]) -> None:
        """Blocks of steps at the rate, all exchanges in turn, each repeat in another order."""
        for repeat in range(self.plan["repeats"]):
            shift = repeat * len(specs) // self.plan["repeats"]
            order = specs[shift:] + specs[:shift]
            emulated_rate = self.network.announce(rate)
            trainers = {spec: self.trainer(spec, emulated_rate=emulated_rate) for spec in order}
            if self.plan["bound"] and self.world > 1 and repeat < BOUND_REPEATS:
                trainers[zeros.SPEC] = self.zeros_trainer(emulated_rate)
            dist.barrier()
            self.network.shape(rate)
            dist.barrier()
            self.done.setdefault("sync_bytes", self.bytes_of_sync())
            for spec in order:
                block = self.shaped_block(rate, trainers[spec])
                self.done["blocks"].append({"network": rate, "spec": spec, "repeat": repeat, **block})
                self.progress_of_blocks()
                if zeros.SPEC in trainers and spec not in BASELINES:
                    times = self.bound(trainers[zeros.SPEC], spec, block)
                    self.done["bounds"].append({"network": rate, "spec": spec, "repeat": repeat, **times})
            self.network.shape("off")
            self.network.announce("off")
            dist.barrier()
            for trainer in trainers.values():
                trainer.close()
            trainers.clear()
            gc.collect()

    def progress_of_blocks(self) -> None:
        block = self.done["blocks"][-1]
        median = sorted(map(sum, block["times"]))[len(block["times"]) // 2]
        self.progress("shaped", len(self.done["blocks"]), len(self.plan["networks"]) * self.plan["repeats"] * len(self.specs),
                      f"{block['spec']} at {block['network'].replace(',', ', loss ')}: {1e3 * median:.1f} ms a step")

    def shaped_block(self, rate: str, trainer: Trainer) -> dict:
        """A training run from its beginning: a few steps of a slow exchange; of the others `fast_steps`, on the only
        network once to the target."""
        key = rate, trainer.spec
        again = key in self.slow
        short = again and self.slow[key] and not trainer.starts_uncompressed
        first = self.block_of_steps(trainer, 1 if short else FIRST_STEPS)
        if not again:
            more, self.slow[key] = self.look_at_speed(trainer, first[-1])
            first += more
        slow = self.slow[key]
        if not slow:
            first += self.block_of_steps(trainer, WARM_UP - len(first))
        window = self.open_window(trainer)
        reached = None
        if slow:
            times = self.block_of_steps(trainer, self.plan["slow_steps"])
        elif again or not self.from_rank_0(self.runs_to_target(trainer.spec)):
            times = self.block_of_steps(trainer, self.plan["fast_steps"])
        else:
            times, reached = self.to_target(trainer, first)
        return {"slow": slow, "times": times, "reached": reached,
                **self.close_window(trainer, window, len(times))}

    def bound(self, trainer: Trainer, spec: str, block: dict) -> dict:
        """Steps that send the bytes of the block's steps without a codec."""
        trainer.zeros.payload = int(self.from_rank_0(block["own"]["wire_bytes"]))
        trainer.zeros.strategy = self.about[spec]["strategy"]
        warm_up, steps = BOUND_SLOW if block["slow"] else BOUND_FAST
        self.block_of_steps(trainer, warm_up)
        return {"payload": trainer.zeros.payload, "times": self.block_of_steps(trainer, steps)}

    def look_at_speed(self, trainer: Trainer, last: tuple) -> tuple[list, bool]:
        """The steps that it took, and whether they are slow. Within a factor of three of the border, by more steps: a
        single one may have met something else that ran on this machine."""
        more = []
        if self.from_rank_0(sum(last)) < 3 * SLOW_STEP:
            more = self.block_of_steps(trainer, WARM_UP - FIRST_STEPS)
            last = sorted(more, key=sum)[len(more) // 2]
        return more, self.from_rank_0(sum(last)) > SLOW_STEP

    def runs_to_target(self, spec: str) -> bool:
        """On one network, if the target was reached without a limit, which only rank 0 knows. On several it would take
        too long."""
        if self.plan["times_only"] or len(self.plan["networks"]) > 1:
            return False
        curve = next(run["curve"] for run in self.done["learn"] if run["spec"] == spec)
        return any(self.reached(value) for _, value in curve)

    def reached(self, value: float) -> bool:
        return self.quality.reached(value, self.plan["target"])

    def to_target(self, trainer: Trainer, first: list) -> tuple[list, list | None]:
        """Steps until the target and at least `fast_steps` of them; at which step and second the target was reached."""
        times, reached = [], None
        while trainer.step < self.steps:
            times.append(trainer.train_step())
            if reached is None and trainer.step % self.plan["every"] == 0:
                self.syncs += 1
                if self.reached(self.evaluate(trainer)):
                    reached = [trainer.step, sum(map(sum, first + times))]
            if reached is not None and len(times) >= self.plan["fast_steps"]:
                break
        return times, reached

    # ---- bytes --------------------------------------------------------------------------------------------------------

    def open_window(self, trainer: Trainer) -> dict:
        dist.barrier()
        self.syncs = 0
        return {"sent": self.network.sent_bytes(), "own": trainer.counters()}

    def close_window(self, trainer: Trainer, window: dict, steps: int) -> dict:
        dist.barrier()
        sent, own = self.network.sent_bytes(), trainer.counters()
        kernel = None
        if sent is not None:
            barrier, evaluation = self.done["sync_bytes"]
            kernel = (sent - window["sent"] - barrier - self.syncs * evaluation) / steps
        per_step = {key: (own[key] - window["own"][key]) / steps for key in own}
        if not own:
            per_step = {"wire_bytes": trainer.baseline_bytes(self.world)}
        return {"kernel_bytes": kernel, "own": per_step}

    def bytes_of_sync(self) -> list:
        """Bytes that this host sends for a barrier, and for an evaluation's broadcast: to be subtracted."""
        if self.network.emulated:
            return [0, 0]
        counts = []
        for sync in (dist.barrier, lambda: self.from_rank_0(0.0)):
            dist.barrier()
            time.sleep(0.1)  # acknowledgements may come late
            before = self.network.sent_bytes()
            for _ in range(10):
                sync()
            time.sleep(0.1)
            counts.append((self.network.sent_bytes() - before) / 10)
        return counts


def environment() -> dict:
    """Facts that only this process knows; run.py adds the machine."""
    sklearn = sys.modules.get("sklearn")
    digits = {"scikit-learn": sklearn.__version__} if sklearn else {}
    return {"torch": torch.__version__, **digits, "python": sys.version.split()[0],
            "laconic": laconic.__version__, "threads per rank": torch.get_num_threads()}


def main() -> None:
    plan = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=plan["timeout"]))
    worker = Worker(plan)
    gc.collect()
    gc.freeze()  # what the imports left need not be looked at again in the middle of a step
    if worker.rank == 0:
        say({"phase": "start", "done": 1, "total": 1, "text": f"{worker.world} workers, one process each"})
    with servers.on_this_host(plan.get("servers"), worker.rank):
        worker.run()
    gathered = [None] * worker.world if worker.rank == 0 else None
    dist.gather_object(worker.done, gathered)
    if worker.rank == 0:
        result = {"ranks": gathered, "about": worker.about, "environment": environment(), "training": worker.kind.TRAINING,
                  "parameters": sum(p.numel() for p in worker.kind.build(worker.data).parameters()),
                  "emulated": worker.network.emulated}
        Path(sys.argv[2]).write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    try:
        main()
    except Exception as error:  # noqa: BLE001  one message for run.py; the traceback would bury it
        if os.environ.get("LACONIC_DEMO_TRACEBACK"):
            raise
        say({"error": f"{type(error).__name__}: {error}", "rank": int(os.environ.get("RANK", -1))})
        sys.stdout.flush()
        os._exit(1)  # waiting for the other ranks' connections could take the group's timeout
