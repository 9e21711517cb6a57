# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""One rank of bench/engines/sharded.py: trains with what its plan names and times steps. Argument: a plan, and where rank 0 writes its answer.

The plan: {"hidden": widths, "optimizer": [class, keywords], "ways": [way…], "repeats", "warmup", "steps"}; a way is "ddp", plain
DistributedDataParallel, or "PUSH PULL".
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

import laconic


def network(hidden: list[int]) -> torch.nn.Module:
    torch.manual_seed(0)
    layers: list[torch.nn.Module] = []
    for inputs, outputs in zip([64, *hidden], [*hidden, 10]):
        layers += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


class Way:
    """A model with one way of training it."""

    def __init__(self, name: str, hidden: list[int], optimizer: list):
        self.model, cls = network(hidden), getattr(torch.optim, optimizer[0])
        if name == "ddp":
            self.model = torch.nn.parallel.DistributedDataParallel(self.model)
            self.optimizer = cls(self.model.parameters(), **optimizer[1])
        else:
            push, pull = name.split()
            self.optimizer = laconic.ShardedOptimizer(self.model, cls, push, pull, **optimizer[1])
        self.times: list[float] = []
        self.sent = 0.0

    def step(self, number: int) -> float:
        generator = torch.Generator().manual_seed(10_000 * dist.get_rank() + number)
        x, y = torch.randn(32, 64, generator=generator), torch.randint(0, 10, (32,), generator=generator)
        dist.barrier()
        begin = time.perf_counter()
        self.optimizer.zero_grad()
        torch.nn.functional.cross_entropy(self.model(x), y).backward()
        self.optimizer.step()
        return time.perf_counter() - begin

    @property
    def bytes(self) -> int:
        return 0 if isinstance(self.model, torch.nn.parallel.DistributedDataParallel) else self.optimizer.stats()["wire_bytes"]

    def run(self, warmup: int, steps: int, begin: int) -> None:
        for number in range(warmup):
            self.step(begin + number)
        sent = self.bytes
        self.times += [self.step(begin + warmup + number) for number in range(steps)]
        self.sent = (self.bytes - sent) / steps


def main(asked: str, answer: str) -> None:
    plan = json.loads(Path(asked).read_text())
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    ways = {name: Way(name, plan["hidden"], plan["optimizer"]) for name in plan["ways"]}
    for repeat in range(plan["repeats"]):  # in turn
        for way in ways.values():
            way.run(plan["warmup"], plan["steps"], repeat * (plan["warmup"] + plan["steps"]))
    if dist.get_rank() == 0:
        found = {name: {"seconds": statistics.median(way.times), "bytes": way.sent} for name, way in ways.items()}
        elements = sum(p.numel() for p in network(plan["hidden"]).parameters())
        Path(answer).write_text(json.dumps({"ways": found, "elements": elements}))
    dist.barrier()
    for way in ways.values():
        if hasattr(way.optimizer, "close"):
            way.optimizer.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
