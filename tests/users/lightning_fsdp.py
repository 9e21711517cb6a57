# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Lightning's ModelParallelStrategy with LaconicCallback, four ranks: `configure_model` shards the module on a 2-D mesh, or replicates it. Needs
lightning."""

import sys
import tempfile
from pathlib import Path

from _launch import check_announced, check_shards, report, reports, shard_digest, torchrun

NEEDS = ["lightning"]
WAYS = {"2d": (2, "2 replicas of 2 shards"), "replicate": (1, "4 replicas")}


def rank_main(folder: Path) -> None:
    import lightning.pytorch as pl
    import torch
    from lightning.pytorch.strategies import ModelParallelStrategy
    from torch.distributed._composable.replicate_with_fsdp import replicate
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from laconic.integrations.lightning import LaconicCallback

    class Flipped(pl.LightningModule):
        def __init__(self, way):
            super().__init__()
            self.way = way
            self.net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64))
            self.losses = []

        def configure_model(self):
            if self.way == "replicate":
                replicate(self.net, mesh=init_device_mesh("cpu", (4,), mesh_dim_names=("replicate",)))
                return
            mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
            for layer in (self.net[0], self.net[2], self.net):
                fully_shard(layer, mesh=mesh)

        def training_step(self, batch, _):
            loss = torch.nn.functional.mse_loss(self.net(batch[0]), batch[0].flip(1))
            self.losses.append(loss.item())
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.5, momentum=0.9)

    for way in WAYS:
        pl.seed_everything(0, verbose=False)
        data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(128, 64)), batch_size=8)
        model, callback = Flipped(way), LaconicCallback("3lc", seed=3)
        trainer = pl.Trainer(accelerator="cpu", devices=4, strategy=ModelParallelStrategy(data_parallel_size=4, tensor_parallel_size=1), logger=False,
                             enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False, max_epochs=3, callbacks=[callback])
        trainer.fit(model, data)
        report(folder, way, trainer.global_rank, digest=shard_digest(model), first=model.losses[0], last=model.losses[-1],
               ratio=callback.handle.stats()["ratio"])


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        output = torchrun(__file__, name, world=4, seconds=500)  # four ranks import lightning, on a busy machine in minutes
        for way, (shards, words) in WAYS.items():
            check_announced(output, words)
            check_shards(reports(name, way, world=4), output, shards=shards)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        rank_main(Path(sys.argv[1]))
    else:
        main()
