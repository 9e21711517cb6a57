# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""A classifier in the style of PyTorch's examples, unchanged under `torchrun -m laconic.run`, and with one line added.

Trains on scikit-learn's digits, with a DistributedSampler, AdamW and a scheduler. Needs scikit-learn.
"""

import sys
import tempfile
from pathlib import Path

from _launch import check, check_announced, check_training, report_training, reports, torchrun

NEEDS = ["scikit-learn"]


def rank_main(folder: Path, line: bool) -> None:
    import torch
    import torch.distributed as dist
    from sklearn.datasets import load_digits
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    dist.init_process_group("gloo")
    torch.manual_seed(1)
    digits = load_digits()
    data = TensorDataset(torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16, torch.tensor(digits.target))
    sampler = DistributedSampler(data, seed=2)
    loader = DataLoader(data, batch_size=64, sampler=sampler)
    net = torch.nn.Sequential(torch.nn.Conv2d(1, 32, 3), torch.nn.ReLU(), torch.nn.Conv2d(32, 64, 3), torch.nn.ReLU(),
                              torch.nn.Flatten(), torch.nn.Linear(1024, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    model = DistributedDataParallel(net)
    if line:
        import laconic

        laconic.attach(model, "topk:ratio=0.05")
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.7)
    means = []
    for epoch in range(6):
        sampler.set_epoch(epoch)
        losses = []
        for images, targets in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images), targets)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        scheduler.step()
        means.append(sum(losses) / len(losses))
    with torch.no_grad():
        right = (net(data.tensors[0]).argmax(1) == data.tensors[1]).float().mean().item()
    report_training(folder, "line" if line else "unchanged", dist.get_rank(), model, means, right=right)
    dist.destroy_process_group()


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        for how, runner in (("unchanged", ["-m", "laconic.run", "--spec", "3lc", "--summary"]), ("line", [])):
            output = torchrun(*runner, __file__, name, how)
            check_announced(output)
            seen = reports(name, how)
            check_training(seen, output)
            check(seen[0]["right"] > 0.85, f"{how}: {100 * seen[0]['right']:.1f} % right")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        rank_main(Path(sys.argv[1]), sys.argv[2] == "line")
    else:
        main()
