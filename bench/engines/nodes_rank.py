# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""One rank of bench.engines.nodes: trains the demo's mlp in the ways that its plan names, times steps and counts the bytes that leave its host.
Arguments: a plan, and where rank 0 writes its answer.

The plan: {"ways": [way…], "repeats", "warmup", "steps"}; a way is "ddp", which is plain DDP, or "SPEC NODES" or "SPEC NODES STRATEGY"
as attach takes them.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

import torch
import torch.distributed as dist

import laconic
from bench.lib import models, turns


def bytes_out() -> int:
    """What the network interfaces of this host have sent, by the kernel's counters; loopback aside."""
    rows = (line.partition(":") for line in Path("/proc/net/dev").read_text().splitlines()[2:])
    return sum(int(numbers.split()[8]) for name, _, numbers in rows if name.strip() != "lo")


class Way(turns.Way):
    def __init__(self, name: str, plan: dict):
        super().__init__()
        kind = models.load("mlp")
        torch.manual_seed(0)
        self._data = kind.data(None)
        self._batches = self._data.batches(kind.BATCH, 0, dist.get_rank(), dist.get_world_size())
        self.model = torch.nn.parallel.DistributedDataParallel(kind.build(self._data), init_sync=False)
        self._handle = None
        if name != "ddp":
            spec, nodes, *strategy = name.split()
            self._handle = laconic.attach(self.model, spec, nodes=nodes, strategy=strategy[0] if strategy else "auto", quiet=True)
        self.optimizer = kind.optimizer(self.model.parameters())

    def batch(self, number: int):
        return next(self._batches)

    def loss(self, batch) -> torch.Tensor:
        return self._data.loss(self.model, batch)

    def bytes_sent(self) -> int:
        """By this host. The last step of all its ranks is over, and that of no rank has begun."""
        dist.barrier()
        sent = bytes_out()
        dist.barrier()
        return sent

    def found(self) -> dict:
        seen = {} if self._handle is None else {**self._handle.explain(), **self._handle.stats()}
        return {"seconds": statistics.median(self.times), "port": self.sent, "inside": seen.get("node_seconds", 0.0) / seen.get("steps", 1),
                **{key: seen[key] for key in ("residual_bytes", "exchange_bytes", "port_ratio", "wire_bytes", "nodes") if key in seen}}

    def close(self) -> None:
        if self._handle is not None:
            self._handle.close()


if __name__ == "__main__":
    turns.take(*sys.argv[1:], Way)
