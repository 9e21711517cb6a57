# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""One rank of bench.engines.hsdp: trains a sharded model in the ways that its plan names and times steps. Arguments: a plan, and where rank 0 writes its
answer.

The plan: {"hidden": widths, "replicas", "ways": [way…], "repeats", "warmup", "steps"}; a way is "native", a spec, or "SPEC inline": every exchange is
waited for in the hook.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import laconic


def network(hidden: list[int]) -> torch.nn.Sequential:
    torch.manual_seed(0)
    layers: list[torch.nn.Module] = []
    for inputs, outputs in zip([64, *hidden], [*hidden, 10]):
        layers += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


class Way:
    """A model with one way of exchanging its gradients between replicas."""

    def __init__(self, name: str, hidden: list[int], mesh):
        self.model = network(hidden)
        for layer in self.model:
            if isinstance(layer, torch.nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        spec, _, inline = name.partition(" ")
        self.handle = None if spec == "native" else laconic.attach(self.model, spec, quiet=True)
        for unit in self.handle.hook.units if inline else ():
            unit.inline = lambda buffer: "as the plan has it"
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.times: list[float] = []

    def step(self, number: int) -> float:
        generator = torch.Generator().manual_seed(10_000 * dist.get_rank() + number)
        x, y = torch.randn(32, 64, generator=generator), torch.randint(0, 10, (32,), generator=generator)
        dist.barrier()
        begin = time.perf_counter()
        self.optimizer.zero_grad()
        torch.nn.functional.cross_entropy(self.model(x), y).backward()
        self.optimizer.step()
        return time.perf_counter() - begin

    def run(self, warmup: int, steps: int, begin: int) -> None:
        for number in range(warmup):
            self.step(begin + number)
        self.times += [self.step(begin + warmup + number) for number in range(steps)]

    def found(self) -> dict:
        stats = {} if self.handle is None else self.handle.stats()
        held = sum(p["elements"] for p in self.handle.explain()["parameters"]) if self.handle else 0
        return {"seconds": statistics.median(self.times), "ratio": stats.get("ratio", 1.0), "residual_bytes": stats.get("residual_bytes", 0),
                "shard_elements": held}


def main(asked: str, answer: str) -> None:
    plan = json.loads(Path(asked).read_text())
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    replicas = plan["replicas"]
    mesh = init_device_mesh("cpu", (replicas, dist.get_world_size() // replicas), mesh_dim_names=("replicate", "shard"))
    ways = {name: Way(name, plan["hidden"], mesh) for name in plan["ways"]}
    for repeat in range(plan["repeats"]):  # in turn
        for way in ways.values():
            way.run(plan["warmup"], plan["steps"], repeat * (plan["warmup"] + plan["steps"]))
    if dist.get_rank() == 0:
        found = {name: way.found() for name, way in ways.items()}
        Path(answer).write_text(json.dumps({"ways": found, "elements": sum(p.numel() for p in network(plan["hidden"]).parameters())}))
    dist.barrier()
    for way in ways.values():
        if way.handle is not None:
            way.handle.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
