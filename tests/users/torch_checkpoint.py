# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""torch.distributed.checkpoint saves model, optimizer and residuals, and a new run goes on from them."""

import sys
import tempfile
from pathlib import Path

from _launch import check, digest, report, reports, torchrun

NEEDS = []


def rank_main(folder: Path, resumes: bool) -> None:
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch import nn
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.nn.parallel import DistributedDataParallel

    import laconic

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    ddp = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)))
    handle = laconic.attach(ddp, "topk:ratio=0.02")
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3)
    model, optim = get_state_dict(ddp, optimizer)
    whole = {"model": model, "optim": optim, "laconic": laconic.checkpointable(handle)}
    if resumes:
        dcp.load(whole, checkpoint_id=folder / "checkpoint")
        set_state_dict(ddp, optimizer, model_state_dict=whole["model"], optim_state_dict=whole["optim"])
    for step in range(4 if resumes else 0, 8):
        if step == 4 and not resumes:
            model, optim = get_state_dict(ddp, optimizer)
            dcp.save({"model": model, "optim": optim, "laconic": laconic.checkpointable(handle)}, checkpoint_id=folder / "checkpoint")
        x = torch.randn(16, 64, generator=torch.Generator().manual_seed(2 * step + dist.get_rank()))
        optimizer.zero_grad()
        nn.functional.mse_loss(ddp(x), x.flip(1)).backward()
        optimizer.step()
    report(folder, "resumed" if resumes else "whole", dist.get_rank(), digest=digest(ddp), residual=handle.stats()["residual_norm"])
    handle.close()
    dist.destroy_process_group()


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        torchrun(__file__, name, "whole")
        torchrun(__file__, name, "resumed")
        check(reports(name, "whole") == reports(name, "resumed"), "resumed equals uninterrupted, bit for bit, on both ranks")


if __name__ == "__main__":
    rank_main(Path(sys.argv[1]), sys.argv[2] == "resumed") if len(sys.argv) > 1 else main()
