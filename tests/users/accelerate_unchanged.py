# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""An Accelerate script that knows nothing of laconic: `accelerate launch -m laconic.run`. Needs accelerate."""

import sys
import tempfile
from pathlib import Path

from _launch import check_announced, check_training, free_port, report_training, reports, start

NEEDS = ["accelerate"]


def rank_main(folder: Path) -> None:
    import torch
    from accelerate import Accelerator
    from accelerate.utils import set_seed

    set_seed(0)
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x = torch.randn(1280, 64)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x.flip(1)), batch_size=16)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses = []
    for inputs, targets in loader:
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    report_training(folder, "unchanged", accelerator.process_index, model, losses)
    accelerator.end_training()


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        # On CPUs `accelerate launch --cpu` starts one process, or leaves the rest to mpirun; --multi_gpu hands over to torchrun.
        output = start("-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", 2, "--num_machines", 1,
                       "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_ip", "127.0.0.1",
                       "--main_process_port", free_port(), "-m", "laconic.run", "--spec", "3lc", "--summary", __file__, name)
        check_announced(output, "laconic: 3lc on ")
        check_training(reports(name, "unchanged"), output)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        rank_main(Path(sys.argv[1]))
    else:
        main()
