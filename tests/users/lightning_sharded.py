# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Lightning with laconic.ShardedOptimizer: a strategy that starts the ranks and leaves the module unwrapped. Needs lightning."""

import sys
import tempfile
from pathlib import Path

from _launch import check_announced, check_training, digest, report, reports, torchrun

NEEDS = ["lightning"]


def rank_main(folder: Path) -> None:
    import lightning.pytorch as pl
    import torch
    from lightning.pytorch.strategies import DDPStrategy

    import laconic

    class WithoutDDP(DDPStrategy):
        def configure_ddp(self):
            pass  # the optimizer exchanges gradients

    class Flipped(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64))
            self.losses = []

        def training_step(self, batch, _):
            loss = torch.nn.functional.mse_loss(self.net(batch[0]), batch[0].flip(1))
            self.losses.append(loss.item())
            return loss

        def configure_optimizers(self):
            optimizer = laconic.ShardedOptimizer(self, torch.optim.AdamW, "3lc", "3lc", clip_norm=1.0, lr=3e-3)
            return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)]

    pl.seed_everything(0, verbose=False)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(320, 64)), batch_size=16)
    model = Flipped()
    trainer = pl.Trainer(accelerator="cpu", devices=2, strategy=WithoutDDP(), logger=False, enable_progress_bar=False, enable_model_summary=False,
                         enable_checkpointing=False, max_epochs=6)
    trainer.fit(model, data)
    optimizer = model.optimizers().optimizer
    report(folder, "whole", trainer.global_rank, digest=digest(model), first=model.losses[0], last=model.losses[-1], ratio=optimizer.stats()["ratio"],
           steps=optimizer.stats()["step"])
    optimizer.close()


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        output = torchrun(__file__, name)
        check_announced(output, "laconic: AdamW")
        check_training(reports(name, "whole"), output)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        rank_main(Path(sys.argv[1]))
    else:
        main()
