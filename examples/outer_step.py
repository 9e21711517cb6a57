# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Trains a small network on scikit-learn's digits with AdamW on every rank, and exchanges the changes of the parameters after every step, or
after every N steps (docs/guide/outer-steps.md).

    torchrun --nproc-per-node 4 -m examples.outer_step
    torchrun --nproc-per-node 4 -m examples.outer_step --every 20 --nesterov
    laconic lab --hosts 4 --rate 5mbit -- python -m examples.outer_step --every 20 --steps 200
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
    parser.add_argument("--spec", default="3lc:s=1.5", help="spec of the changes")
    parser.add_argument("--every", type=int, default=1, help="steps per round")
    parser.add_argument("--nesterov", action="store_true", help="DiLoCo's outer rule in place of the mean")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--checkpoint", help="folder: each rank saves there at the end, and begins with what is there")
    options = parser.parse_args()
    for name, default in (("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29400")):
        os.environ.setdefault(name, default)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    data = mlp.data(None)
    model = mlp.build(data)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    outer = laconic.OuterStep(model, optimizer, spec=options.spec, every=options.every,
                              outer=laconic.nesterov(0.7, 0.9) if options.nesterov else "average")
    parts = {"model": model, "optimizer": optimizer, "outer": outer}
    saved = Path(options.checkpoint) / f"rank-{rank}.pt" if options.checkpoint else None
    if saved is not None and saved.exists():
        state = torch.load(saved)
        for name, part in parts.items():
            part.load_state_dict(state[name])
    batches = data.batches(mlp.BATCH, 1, rank, dist.get_world_size())
    for _, batch in zip(range(options.steps), batches):
        optimizer.zero_grad()
        data.loss(model, batch).backward()
        optimizer.step()  # every `every`-th is followed by a round
    if saved is not None:
        saved.parent.mkdir(parents=True, exist_ok=True)
        torch.save({name: part.state_dict() for name, part in parts.items()}, saved)
    outer.sync()
    if rank == 0:
        told = outer.stats()
        print(f"after {told['inner_steps']} steps, {told['rounds']} rounds: accuracy {100 * data.evaluate(model):.1f} %, sent "
              f"{told['wire_bytes'] / 1e6:.2f} MB, 1:{told['ratio_to_ddp']:.0f} of what DDP would have sent", flush=True)
    outer.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
