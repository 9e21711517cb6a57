# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""One rank of bench.engines.hsdp: trains a sharded model in the ways that its plan names and times steps. Arguments: a plan, and where rank 0 writes its
answer.

The plan: {"hidden": widths, "replicas", "ways": [way…], "repeats", "warmup", "steps"}; a way is "native", a spec, or "SPEC inline": every exchange is
waited for in the hook.
"""

from __future__ import annotations

import functools
import statistics
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import laconic
from bench.lib import turns


@functools.cache
def mesh_of(replicas: int):
    return init_device_mesh("cpu", (replicas, dist.get_world_size() // replicas), mesh_dim_names=("replicate", "shard"))


class Way(turns.Way):
    def __init__(self, name: str, plan: dict):
        super().__init__()
        self.model, mesh = turns.network(plan["hidden"]), mesh_of(plan["replicas"])
        for layer in self.model:
            if isinstance(layer, torch.nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        spec, _, inline = name.partition(" ")
        self._handle = None if spec == "native" else laconic.attach(self.model, spec, quiet=True)
        for unit in self._handle.hook.units if inline else ():
            unit.inline = lambda buffer: "as the plan has it"
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)

    def found(self) -> dict:
        stats = {} if self._handle is None else self._handle.stats()
        held = sum(p["elements"] for p in self._handle.explain()["parameters"]) if self._handle else 0
        return {"seconds": statistics.median(self.times), "ratio": stats.get("ratio", 1.0), "residual_bytes": stats.get("residual_bytes", 0),
                "shard_elements": held}

    def close(self) -> None:
        if self._handle is not None:
            self._handle.close()


if __name__ == "__main__":
    turns.take(*sys.argv[1:], Way)
