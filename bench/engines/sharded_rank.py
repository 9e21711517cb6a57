# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""One rank of bench.engines.sharded: trains in the ways that its plan names and times steps. Arguments: a plan, and where rank 0 writes its answer.

The plan: {"hidden": widths, "optimizer": [class, keywords], "ways": [way…], "repeats", "warmup", "steps"}; a way is "ddp", plain
DistributedDataParallel, or "PUSH PULL".
"""

from __future__ import annotations

import statistics
import sys

import torch

import laconic
from bench.lib import turns


class Way(turns.Way):
    def __init__(self, name: str, plan: dict):
        super().__init__()
        kind, keywords = plan["optimizer"]
        self.model, cls = turns.network(plan["hidden"]), getattr(torch.optim, kind)
        self._plain = name == "ddp"
        if self._plain:
            self.model = torch.nn.parallel.DistributedDataParallel(self.model)
            self.optimizer = cls(self.model.parameters(), **keywords)
        else:
            push, pull = name.split()
            self.optimizer = laconic.ShardedOptimizer(self.model, cls, push, pull, **keywords)

    def bytes_sent(self) -> int:
        return 0 if self._plain else self.optimizer.stats()["wire_bytes"]

    def found(self) -> dict:
        return {"seconds": statistics.median(self.times), "bytes": self.sent}

    def close(self) -> None:
        if not self._plain:
            self.optimizer.close()


if __name__ == "__main__":
    turns.take(*sys.argv[1:], Way)
