# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""One rank of bench/control/controls.py: trains one of the demo's models in a lab, with one exchange after the other, each until time is up."""

from __future__ import annotations

import datetime
import gc
import json
import os
import socket
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

import laconic
from bench.lib.labels import BASELINES
from bench.lib.models import MODELS, load
from bench.lib.trainer import Trainer


class Controlled(Trainer):
    """The demo's trainer, and an exchange that a control may move."""

    control: str | None = None
    small_elements = 4096

    def _exchange(self, spec: str, seed: int, world: int, emulated_rate: float) -> None:
        if spec in BASELINES:
            super()._exchange(spec, seed, world, emulated_rate)
        else:
            self.handle = laconic.attach(self.model, spec, seed=seed, quiet=True, control=self.control, small_elements=self.small_elements)


class Turns:
    """The lab's rates, one after the other, from now until the end of the block. The first is in force."""

    def __init__(self, rates: list[str], every: float):
        self.rates, self.every, self.over, self.failed = rates, every, threading.Event(), ""
        self.thread = threading.Thread(target=self.run, daemon=True)

    def __enter__(self) -> None:
        if self.rates:
            self.thread.start()

    def __exit__(self, *_) -> None:
        self.over.set()
        if self.rates:
            self.thread.join()
        if self.failed:
            raise RuntimeError(self.failed)

    def set(self, rate: str) -> None:
        try:
            with socket.socket(socket.AF_UNIX) as control:
                control.connect(os.environ["LACONIC_LAB_CONTROL"])
                control.sendall(f"rate {rate}\n".encode())
                answer = json.loads(control.makefile().readline())
            if not answer["ok"]:
                self.failed = self.failed or answer["error"]["message"]
        except (OSError, ValueError, KeyError) as error:
            self.failed = self.failed or f"the lab does not take rate {rate}: {type(error).__name__}: {error}"

    def run(self) -> None:
        began, turn = time.monotonic(), 1
        while not self.failed and not self.over.wait(began + turn * self.every - time.monotonic()):
            self.set(self.rates[turn % len(self.rates)])
            turn += 1
        self.set(self.rates[0])  # for the next block


def from_rank_0(value: float) -> float:
    box = torch.tensor([value], dtype=torch.float64)
    dist.broadcast(box, 0)
    return box.item()


class Run:
    def __init__(self, plan: dict):
        self.plan, self.kind, self.quality = plan, load(plan["model"]), MODELS[plan["model"]].quality
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.data = self.kind.data(None)

    def trainer(self, spec: str, control: str | None) -> Trainer:
        Controlled.control, Controlled.small_elements = control, self.plan["small_elements"]
        return Controlled(self.kind, spec, self.plan["seed"], self.data, self.plan["steps"], self.rank, self.world)

    def evaluate(self, trainer: Trainer) -> float:
        return from_rank_0(trainer.quality() if self.rank == 0 else 0.0)

    def train(self) -> dict:
        """Time counts in steps alone; evaluations are taken out, as in the demo."""
        trainer = self.trainer(self.plan["spec"], self.plan["control"])
        dist.barrier()
        with Turns(self.plan["rates"] if self.rank == 0 else [], self.plan["rates_every"]):
            return self.steps(trainer)

    def steps(self, trainer: Trainer) -> dict:
        plan = self.plan
        seconds, reached, trace, curve = 0.0, None, [], []
        while trainer.step < plan["steps"]:
            if plan["late_ms"] and self.rank == 0:
                time.sleep(plan["late_ms"] / 1000)
            step = sum(trainer.train_step()) + (plan["late_ms"] / 1000 if self.rank == 0 else 0)
            seconds += step
            trace.append([seconds, step, self.setting(trainer)])
            if trainer.step % plan["every"] == 0:
                value = self.evaluate(trainer)
                curve.append([trainer.step, seconds, value])
                if reached is None and self.quality.reached(value, plan["target"]):
                    reached = [trainer.step, seconds]
                ends = seconds > plan["limit"] or (reached and not plan["whole"] and not plan["sampled"])
                if from_rank_0(1.0 if ends else 0.0):
                    break
        stats = trainer.handle.stats() if trainer.handle else {}
        explained = trainer.handle.explain()["settings"] if trainer.handle else []
        trainer.close()
        return {"reached": reached, "steps": trainer.step, "seconds": seconds, "whole": trainer.step == plan["steps"], "sampled": plan["sampled"], "curve": curve,
                "trace": trace, "stats": stats, "settings": explained}

    def setting(self, trainer: Trainer) -> str:
        if not trainer.handle or self.rank != 0:
            return trainer.spec
        in_force = trainer.handle.explain()["settings"][0]
        return "uncompressed" if in_force["strategy"] == "uncompressed" else in_force["spec"]


def main() -> None:
    plans = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
    for plan in plans:
        run = Run(plan)
        result = run.train()
        if run.rank == 0:
            with open(sys.argv[2], "a", encoding="utf-8") as answers:
                answers.write(json.dumps(result) + "\n")
        del run
        gc.collect()
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
