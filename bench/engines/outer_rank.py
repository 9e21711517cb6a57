# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""One rank of bench.engines.outer: trains one of the demo's models in the ways that its plan names and times steps. Arguments: a plan, and where rank 0
writes its answer.

The plan: {"model", "ways": [way…], "repeats", "warmup", "steps"}; a way is one of bench.engines.outer, or "plain": every rank trains alone,
or that with an all-reduce of as many floats every 20th step.
"""

from __future__ import annotations

import statistics
import sys
import time

import torch
import torch.distributed as dist

from bench.engines import outer
from bench.lib import models, turns


class Way(turns.Way):
    def __init__(self, name: str, plan: dict):
        super().__init__()
        kind = models.load(plan["model"])
        # A median would not see a round that is one step of many.
        self._middle = statistics.fmean if any("every" in outer.WAYS.get(way, ("", {}))[1] for way in plan["ways"]) else statistics.median
        torch.manual_seed(0)
        self._data = kind.data(None)
        self._batches = self._data.batches(kind.BATCH, 0, dist.get_rank(), dist.get_world_size())
        self.model = kind.build(self._data)
        self.optimizer = outer.optimizer_of(kind, self.model, kind.LEARNING_RATE if plan["model"] in outer.READERS else 0, fused=True)
        self._flat = torch.zeros(sum(p.numel() for p in self.model.parameters())) if name == outer.ALL_REDUCED else None
        self._called, self._handle = outer.exchanging(self.model, self.optimizer, name, 0)

    def step(self, number: int) -> float:
        seconds = super().step(number)
        if self._flat is None or number % 20 != 19:
            return seconds
        begin = time.perf_counter()
        dist.all_reduce(self._flat)
        return seconds + time.perf_counter() - begin

    def batch(self, number: int):
        return next(self._batches)

    def loss(self, batch) -> torch.Tensor:
        return self._data.loss(self._called, batch)

    def found(self) -> dict:
        stats = self._handle.stats() if self._handle is not None else {}
        return {"seconds": self._middle(self.times), **({"exposed": stats["exposed_seconds"] / stats["inner_steps"]} if "inner_steps" in stats else {})}

    def close(self) -> None:
        if self._handle is not None:
            self._handle.close()


if __name__ == "__main__":
    turns.take(*sys.argv[1:], Way)
