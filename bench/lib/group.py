# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Processes of this machine as ranks, for programs that learn and time nothing."""

from __future__ import annotations

import datetime
import json
import os
import tempfile
from pathlib import Path

TIMEOUT = datetime.timedelta(seconds=300)


def start(function, world: int, *arguments):
    """`function(rank, *arguments)` in `world` processes, which are a Gloo group. Gives what `wait` waits for."""
    import torch.distributed as dist
    import torch.multiprocessing as mp

    os.environ.update(OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # bound here: no other program takes its port
    started = mp.spawn(_rank, (world, store.port, function, arguments), nprocs=world, join=False)
    started.store = store
    return started


def wait(started) -> None:
    """Raises, and ends the other processes, when one fails."""
    while not started.join():
        pass


def answered(function, world: int, *arguments) -> dict:
    """What one of the ranks wrote as JSON into the path that `function` takes last."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "answer.json"
        wait(start(function, world, *arguments, out))
        return json.loads(out.read_text())


def _rank(rank: int, world: int, port: int, function, arguments) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=TIMEOUT)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=TIMEOUT)
    function(rank, *arguments)
    dist.destroy_process_group()
