# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""A Lightning script that knows nothing of laconic, under `python -m laconic.run`: Lightning starts rank 1 itself.

Needs lightning.
"""

import sys
import tempfile
from pathlib import Path

from _launch import check_announced, check_training, free_port, report_training, reports, start

NEEDS = ["lightning"]


def rank_main(folder: Path) -> None:
    import lightning.pytorch as pl
    import torch

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
            return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)

        def on_train_end(self):
            report_training(folder, "unchanged", self.global_rank, self, self.losses)

    pl.seed_everything(0, verbose=False)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(1280, 64)), batch_size=16)
    trainer = pl.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, logger=False, enable_progress_bar=False,
                         enable_model_summary=False, enable_checkpointing=False)
    trainer.fit(Flipped(), data)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        output = start("-m", "laconic.run", "--spec", "3lc", __file__, name, MASTER_ADDR="127.0.0.1",
                       MASTER_PORT=str(free_port()))
        check_announced(output, "laconic: 3lc on ")
        check_training(reports(name, "unchanged"), output)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        rank_main(Path(sys.argv[1]))
    else:
        main()
