# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Lightning with LaconicCallback: a run that resumes from a checkpoint equals the uninterrupted one bit for bit.

State goes into a folder next to each checkpoint and away with it; a second fit() goes on with the residuals; a checkpoint that
is saved after fit() has them, too. For lightning.pytorch and pytorch_lightning. Needs lightning and pytorch-lightning.
"""

import importlib
import sys
import tempfile
from pathlib import Path

from _launch import check, check_announced, check_training, digest, report, reports, torchrun

NEEDS = ["lightning", "pytorch-lightning"]
PACKAGES = ["lightning.pytorch", "pytorch_lightning"]
SPECS = ["3lc", "topk:ratio=0.01"]


def module_of(pl):
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

    return Flipped()


def rank_main(folder: Path, package: str, spec: str, resume: bool) -> None:
    import torch

    pl = importlib.import_module(package)
    from laconic.integrations.lightning import LaconicCallback

    pl.seed_everything(0, verbose=False)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(320, 64)), batch_size=16)
    model, callback = module_of(pl), LaconicCallback(spec, seed=3)
    kept = importlib.import_module(f"{package}.callbacks").ModelCheckpoint(
        folder, filename="{step}", every_n_train_steps=10, save_top_k=2, monitor="step", mode="max", save_last="link")
    options = {"accelerator": "cpu", "devices": 2, "strategy": "ddp", "logger": False, "enable_progress_bar": False,
               "enable_model_summary": False}
    trainer = pl.Trainer(**options, max_epochs=4, callbacks=[kept, callback])
    trainer.fit(model, data, ckpt_path=folder / "step=30.ckpt" if resume else None)
    name = f"{spec}-{'resumed' if resume else 'whole'}"
    report(folder, name, trainer.global_rank, digest=digest(model), first=model.losses[0], last=model.losses[-1],
           ratio=callback.handle.stats()["ratio"], steps=trainer.global_step,
           files=sorted(str(p.relative_to(folder)) for p in folder.glob("*.laconic/*")))
    if not resume:
        return
    trainer.save_checkpoint(folder / "after.ckpt")
    trainer.fit_loop.max_epochs = 5
    trainer.fit(model, data)
    longer = callback.handle.step
    steps = {}
    for file in ("after.ckpt", "last.ckpt"):  # the latter is a link
        callback = LaconicCallback(spec, seed=3)
        trainer = pl.Trainer(**options, max_epochs=6, enable_checkpointing=False, callbacks=[callback])
        trainer.fit(module_of(pl), data, ckpt_path=folder / file)
        steps[file] = callback.handle.step
    report(folder, f"{spec}-more", trainer.global_rank, longer=longer, steps=steps)


def main() -> None:
    for package, spec in zip(PACKAGES, SPECS):
        with tempfile.TemporaryDirectory() as name:
            output = torchrun(__file__, name, package, spec, "whole")
            check_announced(output)
            whole = reports(name, f"{spec}-whole")
            check_training(whole, output)
            check(whole[0]["files"] == [f"step={n}.ckpt.laconic/rank-{r}.pt" for n in (30, 40) for r in (0, 1)],
                  f"{package}: a folder beside each of the two checkpoints that are left")
            output = torchrun(__file__, name, package, spec, "resumed")
            check("laconic: residuals continue at step 30" in output, "residuals continue at step 30")
            both = [rank["digest"] for how in ("whole", "resumed") for rank in reports(name, f"{spec}-{how}")]
            check(len(set(both)) == 1, f"{package}, {spec}: resumed equals uninterrupted")
            more = reports(name, f"{spec}-more")
            check(all(rank["longer"] == 50 for rank in more), "a second fit() goes on with the residuals of the first")
            check(all(rank["steps"]["after.ckpt"] > 40 for rank in more) and "residuals continue at step 40" in output,
                  "a checkpoint that was saved after fit() has the residuals")
            check(all(rank["steps"]["last.ckpt"] > 50 for rank in more) and "residuals continue at step 50" in output,
                  "a link to a checkpoint has them, too")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        rank_main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4] == "resumed")
    else:
        main()
