# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""A run that is saved unwrapped, and resumed with torch.compile or activation checkpointing inside DDP, which add words
to parameter names; and the other way round."""

import sys
import tempfile
from pathlib import Path

from _launch import check, digest, report, reports, torchrun

NEEDS = []
FORMS = ("plain", "compiled", "checkpointed")


def built(form: str):
    import torch
    from torch import nn
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.nn.parallel import DistributedDataParallel

    import laconic

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    if form == "compiled":
        net = torch.compile(net, backend="eager")
    if form == "checkpointed":
        net[0] = checkpoint_wrapper(net[0])
    ddp = DistributedDataParallel(net)
    return ddp, laconic.attach(ddp, "topk:ratio=0.05", quiet=True)


def trains(ddp, steps: int, seed: int) -> None:
    import torch
    import torch.distributed as dist

    optimizer, draw = torch.optim.SGD(ddp.parameters(), lr=0.1), torch.Generator().manual_seed(seed + dist.get_rank())
    for _ in range(steps):
        optimizer.zero_grad()
        ddp(torch.randn(32, 64, generator=draw)).square().mean().backward()
        optimizer.step()


def rank_main(folder: Path) -> None:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    for one in FORMS:
        for other in FORMS:
            first, handle = built(one)
            trains(first, 4, 1)
            state, weights = handle.state_dict(), [p.detach().clone() for p in first.parameters()]
            trains(first, 3, 2)
            second, resumed = built(other)
            with torch.no_grad():
                for p, saved in zip(second.parameters(), weights):
                    p.copy_(saved)
            resumed.load_state_dict(state)
            trains(second, 3, 2)
            report(folder, f"{one}-{other}", dist.get_rank(), digests=[digest(first), digest(second)])
            handle.close()
            resumed.close()
    dist.destroy_process_group()


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        torchrun(__file__, name)
        for one in FORMS:
            for other in FORMS:
                found = {digest for seen in reports(name, f"{one}-{other}") for digest in seen["digests"]}
                check(len(found) == 1, f"{one}, resumed {other}: resumed equals uninterrupted, bit for bit")


if __name__ == "__main__":
    rank_main(Path(sys.argv[1])) if len(sys.argv) > 1 else main()
