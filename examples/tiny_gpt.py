# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""A small transformer that learns to write Python, character by character, with compressed gradients.

    laconic lab --hosts 4 --rate 50mbit -- python -m examples.tiny_gpt --spec 3lc
    torchrun --nproc-per-node 4 -m examples.tiny_gpt --spec topk:ratio=0.01
    laconic lab --hosts 4 --rate 50mbit -- python -m examples.tiny_gpt --compare "3lc topk:ratio=0.01 powersgd:rank=4"

The model is the demo's (bench/lib/models/gpt.py). It reads the sources of Python's own standard library, or --text FILE.
`ddp` as a spec is plain DistributedDataParallel. Compression is one line of this file: search for `attach`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import laconic
from bench.lib import text
from bench.lib.models import gpt


def traffic(handle, model, steps: int) -> tuple[float, float]:
    """Bytes that this rank sends per step, and how many times less that is than a ring of float32."""
    world = dist.get_world_size()
    dense = 2 * 4 * sum(p.numel() for p in model.parameters()) * (world - 1) / world
    sent = handle.stats()["wire_bytes"] / steps if handle is not None and handle.spec != "none" else dense
    return sent, dense / sent if sent else 1.0


def train(spec: str, data: torch.Tensor, options) -> dict:
    """Trains from the same start as every other spec; rank 0 prints."""
    torch.manual_seed(options.seed)
    rank = dist.get_rank()
    model = DistributedDataParallel(gpt.build(data))
    handle = None if spec == "ddp" else laconic.attach(model, spec, seed=options.seed)  # all there is to it
    optimizer = torch.optim.AdamW(model.parameters(), lr=gpt.LEARNING_RATE)
    generator = torch.Generator().manual_seed(1 + options.seed * dist.get_world_size() + rank)
    times, losses = [], []
    for step in range(1, options.steps + 1):
        batch = text.excerpts(data, options.batch, generator)
        begin = time.perf_counter()
        optimizer.zero_grad()
        loss = text.Text.loss(model, batch)
        loss.backward()
        optimizer.step()
        times.append(time.perf_counter() - begin)
        losses.append(loss.item())
        if rank == 0 and (step % options.every == 0 or step == options.steps):
            sent, ratio = traffic(handle, model, step)
            print(f"{spec:>20}  step {step:4}  loss {statistics.fmean(losses[-options.every:]):.3f}  "
                  f"{1e3 * statistics.median(times):7.1f} ms a step  {sent:11,.0f} bytes a step  1:{ratio:.1f}", flush=True)
    sent, ratio = traffic(handle, model, options.steps)
    if handle is not None:
        handle.close()
    return {"spec": spec, "loss": statistics.fmean(losses[-options.every:]), "step": statistics.median(times),
            "sent": sent, "ratio": ratio}


def print_table(results: list[dict]) -> None:
    print(f"\n{'spec':>20}  {'loss':>6}  {'ms a step':>9}  {'bytes a step':>12}  {'ratio':>7}  {'speed-up':>8}")
    for r in results:
        print(f"{r['spec']:>20}  {r['loss']:6.3f}  {1e3 * r['step']:9.1f}  {r['sent']:12,.0f}  1:{r['ratio']:<5.1f}  "
              f"{results[0]['step'] / r['step']:7.1f}×")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--spec", default="3lc", help='codec and options ("laconic list"), or ddp (default 3lc)')
    parser.add_argument("--compare", metavar="SPECS", help="several specs after plain DDP, separated by spaces")
    parser.add_argument("--text", metavar="FILE", help="learn from this file instead")
    parser.add_argument("--steps", type=int, help="default 100; 20 of each when comparing")
    parser.add_argument("--batch", type=int, default=4, help="excerpts per rank and step")
    parser.add_argument("--every", type=int, default=10, help="steps between printed lines")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.steps = options.steps or (20 if options.compare else 100)
    return options


def main() -> None:
    options = parse()
    for name, alone in (("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29400")):
        os.environ.setdefault(name, alone)  # without torchrun or the lab: one rank
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 1)))
    dist.init_process_group("gloo")
    data = text.read(options.text)
    specs = ["ddp", *options.compare.split()] if options.compare else [options.spec]
    results = [train(spec, data, options) for spec in specs]
    if options.compare and dist.get_rank() == 0:
        print_table(results)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
