# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The gain of a quorum: each of four workers is late in a random eighth of its steps; mean step with and without a quorum.

Four processes on this machine, PyTorch on Gloo, `laconic serve` on the loopback. A step computes for a while (sleeps); in an eighth
of its steps, drawn by itself, a worker takes 300 ms longer. Quorum 1.0 and 0.75 take turns, each in its own run.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

from bench.lib.programs import ROOT

WORLD, LATE_MS, SHARE = 4, 300, 8


def train(rank: int, port: int, aggregator: str, quorum: float, steps: int, compute_ms: float, results) -> None:
    os.environ.update(GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1")
    import torch
    import torch.distributed as dist

    import laconic

    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.TCPStore("127.0.0.1", port, is_master=False), rank=rank, world_size=WORLD)
    torch.manual_seed(0)
    ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(256, 256))
    handle = laconic.attach(ddp, "thc:bits=4", aggregator=aggregator, quorum=quorum, deadline_ms=5, quiet=True)
    draw, inputs = random.Random(rank), torch.randn(8, 256, generator=torch.Generator().manual_seed(rank))
    ddp(inputs).sum().backward()
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(steps):
        time.sleep((compute_ms + (LATE_MS if draw.randrange(SHARE) == 0 else 0)) / 1000)
        ddp(inputs).sum().backward()
    seconds = time.perf_counter() - begin
    results.put(1000 * seconds / steps)
    dist.barrier()
    handle.close()


def address_of(server: subprocess.Popen) -> str:
    """Address at which it serves; a server that does not start ends the bench."""
    said = server.stdout.readline()
    try:
        return json.loads(said)["serving"]
    except (ValueError, KeyError):
        sys.exit(f"late_workers.py: no server: {said.strip() or f'{server.args[0]} said nothing and ended with status {server.wait()}'}")


def run(quorum: float, steps: int, compute_ms: float, binary: Path) -> float:
    """Mean milliseconds of a step, over all workers."""
    import torch.distributed as dist
    import torch.multiprocessing as mp

    try:
        server = subprocess.Popen([binary, "serve", "--json", "--bind", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True)
    except OSError as error:
        sys.exit(f"late_workers.py: no server: {error}")
    try:
        address = address_of(server)
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # bound here: no other program takes its port
        context = mp.get_context("spawn")
        results = context.SimpleQueue()
        mp.spawn(train, (store.port, address, quorum, steps, compute_ms, results), WORLD)
        return statistics.mean(results.get() for _ in range(WORLD))
    finally:
        server.kill()
        server.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=150, help="of a run (150)")
    parser.add_argument("--compute-ms", type=float, default=100, help="of a step that is in time (100)")
    parser.add_argument("--pairs", type=int, default=3, help="runs with each quorum, in turn (3)")
    parser.add_argument("--binary", type=Path, default=ROOT / "build" / "release" / "bin" / "laconic")
    options = parser.parse_args()
    pairs = [[run(quorum, options.steps, options.compute_ms, options.binary) for quorum in (1.0, 0.75)] for _ in range(options.pairs)]
    ratio = statistics.median(quorum / everybody for everybody, quorum in pairs)
    print(json.dumps({"ms_a_step": {"quorum 1.0": [round(a, 1) for a, _ in pairs], "quorum 0.75": [round(b, 1) for _, b in pairs]},
                      "ratio": round(ratio, 3)}))


if __name__ == "__main__":
    main()
