# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Accelerate: `accelerator.prepare`, then laconic.attach to the wrapper that it gave; state next to accelerator.save_state.

A run that resumes from the saved state equals the uninterrupted one bit for bit. Needs accelerate.
"""

import sys
import tempfile
from pathlib import Path

from _launch import check, check_announced, check_training, digest, report, reports, torchrun

NEEDS = ["accelerate"]
SPECS = ["3lc", "topk:ratio=0.01"]


def train(spec: str, folder: Path, resume: bool):
    import torch
    from accelerate import Accelerator
    from accelerate.utils import set_seed

    import laconic

    set_seed(0)
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x = torch.randn(640, 64)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x.flip(1)), batch_size=16)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    handle = laconic.attach(model, spec)
    state = folder / f"laconic-{accelerator.process_index}.pt"
    if resume:
        accelerator.load_state(str(folder))
        handle.load_state_dict(torch.load(state))

    losses = []
    for epoch in range(1 if resume else 0, 3):
        for inputs, targets in loader:
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        if epoch == 0:
            accelerator.save_state(str(folder))
            torch.save(handle.state_dict(), state)
    return accelerator, model, handle, losses


def rank_main(folder: Path, how: str) -> None:
    for spec in SPECS:
        accelerator, model, handle, losses = train(spec, folder / spec.partition(":")[0], how == "resumed")
        report(folder, f"{spec}-{how}", accelerator.process_index, digest=digest(model), first=losses[0], last=losses[-1],
               ratio=handle.stats()["ratio"])
        handle.close()
    accelerator.end_training()


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        output = torchrun(__file__, name, "whole")
        check_announced(output)
        for spec in SPECS:
            check_training(reports(name, f"{spec}-whole"), output)
        torchrun(__file__, name, "resumed")
        for spec in SPECS:
            both = [rank["digest"] for how in ("whole", "resumed") for rank in reports(name, f"{spec}-{how}")]
            check(len(set(both)) == 1, f"{spec}: resumed equals uninterrupted")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        rank_main(Path(sys.argv[1]), sys.argv[2])
    else:
        main()
