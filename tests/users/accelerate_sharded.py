# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Accelerate with laconic.ShardedOptimizer: `accelerator.prepare` gets the optimizer and the loader, not the model, which it would wrap in DDP.

A run that resumes from the saved state equals the uninterrupted one bit for bit. Needs accelerate.
"""

import sys
import tempfile
from pathlib import Path

from _launch import check, check_announced, check_training, digest, report, reports, torchrun

NEEDS = ["accelerate"]


def rank_main(folder: Path, how: str) -> None:
    import torch
    from accelerate import Accelerator
    from accelerate.utils import set_seed

    import laconic

    set_seed(0)
    accelerator = Accelerator(cpu=True)
    rank = accelerator.process_index
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64))
    x = torch.randn(640, 64)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x.flip(1)), batch_size=16)
    sharded = laconic.ShardedOptimizer(model, torch.optim.AdamW, "3lc", "3lc", clip_norm=1.0, lr=3e-3)
    optimizer, loader, scheduler = accelerator.prepare(sharded, loader, torch.optim.lr_scheduler.ExponentialLR(sharded, 0.99))
    if how == "resumed":
        saved = torch.load(folder / f"rank-{rank}.pt")
        model.load_state_dict(saved["model"])
        sharded.load_state_dict(saved["optimizer"])
        scheduler.load_state_dict(saved["scheduler"])
    losses = []
    for epoch in range(1 if how == "resumed" else 0, 4):
        for inputs, targets in loader:
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        if epoch == 0:
            torch.save({"model": model.state_dict(), "optimizer": sharded.state_dict(), "scheduler": scheduler.state_dict()}, folder / f"rank-{rank}.pt")
    report(folder, how, rank, digest=digest(model), first=losses[0], last=losses[-1], ratio=sharded.stats()["ratio"])
    sharded.close()
    accelerator.end_training()


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        output = torchrun(__file__, name, "whole")
        check_announced(output, "laconic: AdamW")
        check_training(reports(name, "whole"), output)
        torchrun(__file__, name, "resumed")
        both = [rank["digest"] for how in ("whole", "resumed") for rank in reports(name, how)]
        check(len(set(both)) == 1, "resumed equals uninterrupted")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        rank_main(Path(sys.argv[1]), sys.argv[2])
    else:
        main()
