# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""One rank of bench.engines.outer: trains the demo's mlp by DiLoCo, with torchft's or with OuterStep, and counts the bytes that leave its host in a
round. Arguments: a plan, and where rank 0 writes its answer.

The plan: {"ways": [way…], "steps", "torchft": the folder that has it}; a way is one of bench.engines.outer, or "torchft".
"""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import os
import site
import socket
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from bench.engines import outer
from bench.engines.nodes_rank import bytes_out
from bench.lib import models

EVERY, RULE = 20, {"lr": 0.7, "momentum": 0.9, "nesterov": True}
MINUTE = datetime.timedelta(seconds=60)


@contextlib.contextmanager
def by_torchft(model, optimizer):
    """DiLoCo of the released package over Gloo: every rank is a replica, and rank 0 has the lighthouse."""
    from torchft.coordination import LighthouseServer
    from torchft.local_sgd import DiLoCo
    from torchft.manager import Manager
    from torchft.process_group import ProcessGroupGloo

    rank, world = dist.get_rank(), dist.get_world_size()
    first = os.environ["MASTER_ADDR"]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        way.connect((first, 1))
        here = way.getsockname()[0]
    lighthouse = LighthouseServer("0.0.0.0:29510", min_replicas=world, join_timeout_ms=1000) if rank == 0 else None
    dist.barrier()
    store = dist.TCPStore(here, 0, is_master=True, wait_for_workers=False)
    manager = Manager(ProcessGroupGloo(timeout=MINUTE), None, None, min_replica_size=world, use_async_quorum=False, rank=0, world_size=1,
                      store_addr=here, store_port=store.port, hostname=here, replica_id=f"replica_{rank}", lighthouse_addr=f"http://{first}:29510", init_sync=False)
    with DiLoCo(manager, [model], optimizer, torch.optim.SGD(model.parameters(), **RULE), sync_every=EVERY):
        yield
    if manager.current_step() == 0:
        raise RuntimeError("torchft has made no round")
    dist.barrier()
    manager.shutdown()
    if lighthouse is not None:
        lighthouse.shutdown()


@contextlib.contextmanager
def by_outer_step(model, optimizer, way: str):
    _, handle = outer.exchanging(model, optimizer, way, 0)
    yield
    handle.close()


def bytes_of_a_round(way: str, steps: int) -> float:
    """The mean over hosts, and over all rounds but the first, in which connections are made."""
    kind = models.load("mlp")
    torch.manual_seed(0)
    data = kind.data(None)
    model = kind.build(data)
    optimizer = kind.optimizer(model.parameters())
    seen: list[int] = []
    batches = data.batches(kind.BATCH, 0, dist.get_rank(), dist.get_world_size())
    with by_torchft(model, optimizer) if way == "torchft" else by_outer_step(model, optimizer, way):
        for number in outer.steps_of(batches, data.loss, model, optimizer, kind.LEARNING_RATE, steps, False):
            if number in (EVERY, steps):
                dist.barrier()
                seen.append(bytes_out())
                dist.barrier()
    same = [torch.empty(1, dtype=torch.float64) for _ in range(dist.get_world_size())]
    dist.all_gather(same, sum(p.detach().double().sum() for p in model.parameters()).view(1))
    if any(not torch.equal(each, same[0]) for each in same):
        raise RuntimeError(f"{way}: replicas differ after a round")
    sent = torch.tensor([float(seen[1] - seen[0])], dtype=torch.float64)
    dist.all_reduce(sent)
    return sent.item() / dist.get_world_size() / (steps / EVERY - 1)


def main(asked: str, answer: str) -> None:
    plan = json.loads(Path(asked).read_text())
    site.addsitedir(plan["torchft"])  # after this environment's own packages
    logging.disable(logging.WARNING)
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    found = {way: bytes_of_a_round(way, plan["steps"]) for way in plan["ways"]}
    if dist.get_rank() == 0:
        Path(answer).write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
