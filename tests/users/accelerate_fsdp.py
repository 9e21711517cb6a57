# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Accelerate's FSDP2 plugin, two replicas of two shards: `accelerator.prepare`, then laconic.attach; state beside accelerator.save_state.

A run that resumes from the saved state equals the uninterrupted one bit for bit. Needs accelerate.
"""

import sys
import tempfile
from pathlib import Path

from _launch import check, check_announced, check_shards, fsdp_on_cpus, report, reports, shard_digest, torchrun

NEEDS = ["accelerate"]


def rank_main(folder: Path, how: str) -> None:
    import torch
    from accelerate import Accelerator, FullyShardedDataParallelPlugin, ParallelismConfig
    from accelerate.utils import set_seed

    import laconic

    fsdp_on_cpus()
    set_seed(0)
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy="size_based_wrap", min_num_params=1000, cpu_ram_efficient_loading=False)
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin, parallelism_config=ParallelismConfig(dp_replicate_size=2, dp_shard_size=2))
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    x = torch.randn(128, 64)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x.flip(1)), batch_size=8)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    handle = laconic.attach(model, "3lc")
    state = folder / f"laconic-{accelerator.process_index}.pt"
    if how == "resumed":
        accelerator.load_state(str(folder))
        handle.load_state_dict(torch.load(state))
    losses = []
    for epoch in range(1 if how == "resumed" else 0, 3):
        for inputs, targets in loader:
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        if epoch == 0:
            accelerator.save_state(str(folder))
            torch.save(handle.state_dict(), state)
    report(folder, how, accelerator.process_index, digest=shard_digest(model), first=losses[0], last=losses[-1], ratio=handle.stats()["ratio"])
    handle.close()
    accelerator.end_training()


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        output = torchrun(__file__, name, "whole", world=4)
        check_announced(output, "2 replicas of 2 shards")
        whole = reports(name, "whole", world=4)
        check_shards(whole, output)
        torchrun(__file__, name, "resumed", world=4)
        check([rank["digest"] for rank in whole] == [rank["digest"] for rank in reports(name, "resumed", world=4)], "resumed equals uninterrupted")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        rank_main(Path(sys.argv[1]), sys.argv[2])
    else:
        main()
