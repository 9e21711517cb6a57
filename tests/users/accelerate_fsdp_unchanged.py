# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""An Accelerate script with its FSDP2 plugin, two replicas of two shards, that knows nothing of laconic: `torchrun -m laconic.run`. Needs accelerate."""

import sys
import tempfile
from pathlib import Path

from _launch import check_announced, check_shards, fsdp_on_cpus, report, reports, shard_digest, torchrun

NEEDS = ["accelerate"]


def rank_main(folder: Path) -> None:
    import torch
    from accelerate import Accelerator, FullyShardedDataParallelPlugin, ParallelismConfig
    from accelerate.utils import set_seed

    fsdp_on_cpus()
    set_seed(0)
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy="size_based_wrap", min_num_params=1000, cpu_ram_efficient_loading=False)
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin, parallelism_config=ParallelismConfig(dp_replicate_size=2, dp_shard_size=2))
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    x = torch.randn(384, 64)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x.flip(1)), batch_size=8)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses = []
    for inputs, targets in loader:
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    handle = sys.modules["laconic"].handle_of(model)
    report(folder, "unchanged", accelerator.process_index, digest=shard_digest(model), first=losses[0], last=losses[-1], ratio=handle.stats()["ratio"])
    accelerator.end_training()


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        output = torchrun("-m", "laconic.run", "--spec", "3lc", "--summary", __file__, name, world=4)
        check_announced(output, "2 replicas of 2 shards")
        check_shards(reports(name, "unchanged", world=4), output)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        rank_main(Path(sys.argv[1]))
    else:
        main()
