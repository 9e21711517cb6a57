# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Ranks that train one perceptron in several ways, which take turns, and time their steps."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Callable

import torch
import torch.distributed as dist


def network(hidden: list[int]) -> torch.nn.Sequential:
    torch.manual_seed(0)
    layers: list[torch.nn.Module] = []
    for inputs, outputs in zip([64, *hidden], [*hidden, 10]):
        layers += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


class Way:
    """One way of training it. A subclass makes `model` and `optimizer`, and says what was found."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer

    def __init__(self):
        self.times: list[float] = []
        self.sent = 0.0  # bytes a step, in the last turn

    def step(self, number: int) -> float:
        """Seconds."""
        batch = self.batch(number)
        dist.barrier()
        begin = time.perf_counter()
        self.optimizer.zero_grad()
        self.loss(batch).backward()
        self.optimizer.step()
        return time.perf_counter() - begin

    def batch(self, number: int):
        generator = torch.Generator().manual_seed(10_000 * dist.get_rank() + number)
        return torch.randn(32, 64, generator=generator), torch.randint(0, 10, (32,), generator=generator)

    def loss(self, batch) -> torch.Tensor:
        x, y = batch
        return torch.nn.functional.cross_entropy(self.model(x), y)

    def run(self, warmup: int, steps: int, begin: int) -> None:
        for number in range(warmup):
            self.step(begin + number)
        before = self.bytes_sent()
        self.times += [self.step(begin + warmup + number) for number in range(steps)]
        self.sent = (self.bytes_sent() - before) / steps

    def bytes_sent(self) -> int:
        """Bytes sent by this rank up to now."""
        return 0

    def found(self) -> dict:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


def take(asked: str, answer: str, make: Callable[[str, dict], Way]) -> None:
    """On every rank: trains the ways of a plan, which `make(name, plan)` makes, in turn. Rank 0 writes what they found."""
    plan = json.loads(Path(asked).read_text())
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    ways = {name: make(name, plan) for name in plan["ways"]}
    for repeat in range(plan["repeats"]):
        for way in ways.values():
            way.run(plan["warmup"], plan["steps"], repeat * (plan["warmup"] + plan["steps"]))
    if dist.get_rank() == 0:
        found = {name: way.found() for name, way in ways.items()}
        Path(answer).write_text(json.dumps({"ways": found, "elements": sum(p.numel() for p in next(iter(ways.values())).model.parameters())}))
    dist.barrier()
    for way in ways.values():
        way.close()
    dist.destroy_process_group()
