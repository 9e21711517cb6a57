# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Trains a small network on scikit-learn's digits without DistributedDataParallel: gradients are pushed to the owners of their ranges,
owners step AdamW, every rank pulls the change (docs/guide/sharded.md).

    torchrun --nproc-per-node 4 -m examples.sharded
    torchrun --nproc-per-node 4 -m examples.sharded --push topk:ratio=0.01 --pull int8
    laconic lab --hosts 4 --rate 50mbit -- python -m examples.sharded --steps 200
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist

import laconic
from bench.lib.models import mlp


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--push", default="3lc", help="spec of the gradients' way up")
    parser.add_argument("--pull", default="3lc", help="spec of the changes' way down")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--checkpoint", help="folder: each rank saves there at the end, and begins with what is there")
    options = parser.parse_args()
    for name, default in (("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29400")):
        os.environ.setdefault(name, default)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    data = mlp.data(None)
    model = mlp.build(data)  # no DistributedDataParallel around it
    optimizer = laconic.ShardedOptimizer(model, torch.optim.AdamW, push=options.push, pull=options.pull, lr=2e-3, weight_decay=0.01)
    saved = Path(options.checkpoint) / f"rank-{rank}.pt" if options.checkpoint else None
    if saved is not None and saved.exists():
        state = torch.load(saved)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    batches = data.batches(mlp.BATCH, 1, rank, dist.get_world_size())
    for _, batch in zip(range(options.steps), batches):
        optimizer.zero_grad()
        data.loss(model, batch).backward()
        optimizer.step()
    if saved is not None:
        saved.parent.mkdir(parents=True, exist_ok=True)
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, saved)
    if rank == 0:
        told = optimizer.stats()
        owned = optimizer.explain().get("owned_elements", 0)
        print(f"after {told['step']} steps: accuracy {100 * data.evaluate(model):.1f} %, sent {told['wire_bytes'] / 1e6:.2f} MB, "
              f"1:{told['dense_bytes'] / max(told['wire_bytes'], 1):.0f}, owns {owned} of {sum(p.numel() for p in model.parameters())} elements", flush=True)
    optimizer.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
