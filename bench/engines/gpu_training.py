# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Training on accelerators, gradients exchanged through host memory, next to plain DDP: docs/results/gpu.md.

    torchrun --nproc-per-node 2 -m bench.engines.gpu_training                   every rank on its own device, or all on one if there are fewer
    torchrun --nproc-per-node 2 -m bench.engines.gpu_training --backend cpu:gloo,cuda:nccl

The demo's perceptron on digits with hidden layers of 3500, 3500 and 3500: 24.8 M parameters. Rank 0 prints a row for each exchange, the
median time of a step, the accuracy after the last, and whether all ranks hold the same bits.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import laconic
from bench.lib.models import load
from bench.lib.optimizers import optimizer_for

HIDDEN = (3500, 3500, 3500)
WARM = 20
PLAIN = "pytorch:ddp"
SPECS = (PLAIN, "none", "int8", "3lc", "topk:ratio=0.01", "sidco:ratio=0.001")


def everybody(value) -> list:
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def digest(model) -> str:
    return hashlib.sha256(b"".join(p.detach().cpu().numpy().tobytes() for p in model.parameters())).hexdigest()


def train(spec: str, steps: int, device: torch.device) -> dict:
    torch.manual_seed(0)
    kind = load("mlp")
    kind.LAYERS = (64, *HIDDEN, 10)
    data = kind.data(None)
    ddp = DistributedDataParallel(kind.build(data).to(device), device_ids=[device.index])
    handle = None if spec == PLAIN else laconic.attach(ddp, spec, quiet=True)
    optimizer, times = optimizer_for(kind, ddp.parameters(), spec), []
    batches = data.batches(kind.BATCH, 0, dist.get_rank(), dist.get_world_size())
    for _ in range(steps):
        batch = [part.to(device) for part in next(batches)]
        torch.accelerator.synchronize()
        begin = time.perf_counter()
        optimizer.zero_grad()
        data.loss(ddp, batch).backward()
        optimizer.step()
        torch.accelerator.synchronize()
        times.append(time.perf_counter() - begin)
    with torch.no_grad():
        right = (ddp.module(data.test.to(device)).argmax(1) == data.test_labels.to(device)).float().mean().item()
    told = handle.explain() if handle else {}
    counted = handle.stats() if handle else {}
    if handle:
        handle.close()
    return {"spec": spec, "step_ms": 1e3 * statistics.median(times[WARM:]), "accuracy": right, "same": len(set(everybody(digest(ddp)))) == 1,
            "ratio": counted["dense_bytes"] / counted["wire_bytes"] if handle else 1.0,
            **{key: told.get(key) for key in ("device", "path", "threads", "exchange_backend")}}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.engines.gpu_training", description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="gloo", help="of init_process_group (gloo)")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--spec", action="append", help=f"{PLAIN}, or a codec's; may be given several times (default: {', '.join(SPECS)})")
    given = parser.parse_args()
    here = torch.accelerator.current_accelerator()
    if here is None:
        print("bench/engines/gpu_training.py: torch sees no accelerator here", file=sys.stderr)
        return 1
    device = torch.device(here.type, int(os.environ["LOCAL_RANK"]) % torch.accelerator.device_count())
    torch.accelerator.set_device_index(device.index)
    torch.set_num_threads(1)
    dist.init_process_group(given.backend)
    for spec in given.spec or SPECS:
        found = train(spec, given.steps, device)
        if dist.get_rank() == 0:
            print(json.dumps(found), flush=True)
    dist.barrier()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
