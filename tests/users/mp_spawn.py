# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""torch.multiprocessing.spawn under `python -m laconic.run`: the ranks that the script starts compress as well.

Needs nothing but torch.
"""

import sys
import tempfile
from pathlib import Path

from _launch import check_announced, check_training, free_port, report_training, reports, start

NEEDS = []


def rank_main(rank: int, folder: Path, port: int) -> None:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batches = torch.Generator().manual_seed(rank)
    losses = []
    for _ in range(40):
        x = torch.randn(16, 64, generator=batches)
        loss = torch.nn.functional.mse_loss(model(x), x.flip(1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    report_training(folder, "spawned", rank, model, losses)
    dist.destroy_process_group()


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        output = start("-m", "laconic.run", "--spec", "3lc", __file__, name)
        check_announced(output, "laconic: 3lc on ")
        check_training(reports(name, "spawned"), output)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        import torch.multiprocessing as mp

        mp.spawn(rank_main, args=(Path(sys.argv[1]), free_port()), nprocs=2)
    else:
        main()
