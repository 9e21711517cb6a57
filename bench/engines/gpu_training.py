# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Training on accelerators, gradients exchanged through host memory or with codecs on the GPU, next to plain DDP: docs/results/gpu.md.

    torchrun --nproc-per-node 2 -m bench.engines.gpu_training                   every rank on its own device, or all on one if there are fewer
    torchrun --nproc-per-node 2 -m bench.engines.gpu_training --backend cpu:gloo,cuda:nccl

The demo's perceptron on digits with hidden layers of 3500, 3500 and 3500: 24.8 M parameters. Rank 0 prints a row for each exchange: where its
codecs ran, the median time of a step, the accuracy after the last, whether all ranks hold the same bits, and whether codecs on the device gave
those of the staged run. torch's own kernels are deterministic here. Exit status 1 if ranks differ.
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
NO_CODEC = (PLAIN, "none")


def everybody(value) -> list:
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def digest(model) -> str:
    return hashlib.sha256(b"".join(p.detach().cpu().numpy().tobytes() for p in model.parameters())).hexdigest()


def train(spec: str, steps: int, device: torch.device, codecs: str = "host") -> dict:
    torch.manual_seed(0)
    kind = load("mlp")
    kind.LAYERS = (64, *HIDDEN, 10)
    data = kind.data(None)
    ddp = DistributedDataParallel(kind.build(data).to(device), device_ids=[device.index])
    try:
        handle = None if spec == PLAIN else laconic.attach(ddp, spec, codecs=codecs, quiet=True)
    except laconic.LaconicError as error:
        if error.name != "unsupported":
            raise
        return {"spec": spec, "codecs": codecs, "why_not": error.message}
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
    digests = everybody(digest(ddp))
    return {"spec": spec, "step_ms": 1e3 * statistics.median(times[WARM:]), "accuracy": right, "same": len(set(digests)) == 1, "digest": digests[0],
            "ratio": counted["dense_bytes"] / counted["wire_bytes"] if handle else 1.0,
            **{key: told.get(key) for key in ("codecs", "device", "path", "threads", "exchange_backend")}}


def deterministic() -> None:
    """The same bits from the same run: what two runs are compared by."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read at the first product of matrices
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # it would be a part of the step


def rows(specs, steps: int, device: torch.device):
    """A row for each exchange; with a codec another one, of codecs on the device, and whether its parameters are bit for bit the staged run's."""
    deterministic()
    for spec in specs:
        staged = train(spec, steps, device)
        yield staged
        if spec in NO_CODEC:
            continue
        row = train(spec, steps, device, codecs="device")
        if "digest" in row:
            row["like_staged"] = row["digest"] == staged.get("digest")
        yield row


def report(found, prints: bool) -> int:
    """Prints the rows as they come. The exit status."""
    differ = False
    for row in found:
        differ = differ or not row.get("same", True)
        if prints:
            print(json.dumps(row), flush=True)
    return 1 if differ else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.engines.gpu_training", description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="gloo", help="of init_process_group (gloo)")
    parser.add_argument("--steps", type=int, default=600, help=f"of each run, more than the {WARM} that are not timed (600)")
    parser.add_argument("--spec", action="append", help=f"{PLAIN}, or a codec's; may be given several times (default: {', '.join(SPECS)})")
    given = parser.parse_args()
    if given.steps <= WARM:
        parser.error(f"--steps {given.steps}: the first {WARM} are not timed")
    here = torch.accelerator.current_accelerator()
    if here is None:
        print("bench/engines/gpu_training.py: torch sees no accelerator here", file=sys.stderr)
        return 1
    device = torch.device(here.type, int(os.environ["LOCAL_RANK"]) % torch.accelerator.device_count())
    torch.accelerator.set_device_index(device.index)
    torch.set_num_threads(1)
    dist.init_process_group(given.backend)
    status = report(rows(given.spec or SPECS, given.steps, device), prints=dist.get_rank() == 0)
    dist.barrier()
    dist.destroy_process_group()
    return status


if __name__ == "__main__":
    sys.exit(main())
