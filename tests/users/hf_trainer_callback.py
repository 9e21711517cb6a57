# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Hugging Face Trainer with LaconicCallback: a run that resumes from a checkpoint equals the uninterrupted one bit for bit.

Checkpoints rotate (save_total_limit), and a second train() of the same Trainer goes on. Needs transformers and accelerate.
"""

import random
import sys
import tempfile
from pathlib import Path

from _launch import check, check_announced, check_training, digest, report, reports, torchrun

NEEDS = ["transformers", "accelerate"]
SPECS = ["3lc", "topk:ratio=0.01"]


def train(spec: str, folder: Path, resume: bool):
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

    from laconic.integrations.transformers import LaconicCallback

    set_seed(0)
    config = GPT2Config(vocab_size=256, n_positions=32, n_embd=64, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    start = random.Random(0)
    begins = [start.randrange(256) for _ in range(256)]
    rows = [[(b + 3 * i) % 256 for i in range(32)] for b in begins]
    data = [{"input_ids": row, "labels": row} for row in rows]
    arguments = TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=8, max_steps=45, learning_rate=1e-2, lr_scheduler_type="constant",
        logging_steps=1, save_steps=15, save_total_limit=2, report_to="none", use_cpu=True, ddp_backend="gloo", disable_tqdm=True,
        dataloader_pin_memory=False)
    callback = LaconicCallback(spec, seed=3)
    trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=data, callbacks=[callback])
    trainer.train(resume_from_checkpoint=str(folder / "checkpoint-30") if resume else None)
    return trainer, callback


def rank_main(folder: Path, resume: bool) -> None:
    for spec in SPECS:
        place = folder / spec.partition(":")[0]
        trainer, callback = train(spec, place, resume)
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        name = f"{spec}-{'resumed' if resume else 'whole'}"
        report(folder, name, trainer.args.process_index, digest=digest(trainer.model), first=losses[0], last=losses[-1],
               ratio=callback.handle.stats()["ratio"], step=callback.handle.step,
               files=sorted(p.name for p in place.glob("*/laconic*")), folders=sorted(p.name for p in place.iterdir()))
        if resume and spec == SPECS[0]:  # once more, with the same wrapper and handle
            handle = callback.handle
            trainer.args.max_steps = 6
            trainer.train()
            report(folder, "again", trainer.args.process_index, same=callback.handle is handle, step=handle.step)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        output = torchrun(__file__, folder, "whole")
        check_announced(output)
        for spec in SPECS:
            seen = reports(folder, f"{spec}-whole")
            check_training(seen, output)
            check(seen[0]["folders"] == ["checkpoint-30", "checkpoint-45"] and len(seen[0]["files"]) == 4,
                  "two checkpoints are left, each with a file per rank")
        output = torchrun(__file__, folder, "resumed")
        check(output.count("laconic: residuals continue at step 30") == len(SPECS), "residuals continue at step 30")
        for spec in SPECS:
            whole, resumed = reports(folder, f"{spec}-whole"), reports(folder, f"{spec}-resumed")
            check(whole[0]["digest"] == resumed[0]["digest"] == resumed[1]["digest"], f"{spec}: resumed equals uninterrupted")
        again = reports(folder, "again")
        check(all(rank["same"] and rank["step"] == 51 for rank in again), "a second train() goes on with the same handle")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        rank_main(Path(sys.argv[1]), sys.argv[2] == "resumed")
    else:
        main()
