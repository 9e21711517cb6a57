# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Hugging Face Trainer with laconic.ShardedOptimizer: a Trainer whose accelerator leaves the model unwrapped. Needs transformers and accelerate."""

import random
import sys
import tempfile
from pathlib import Path

from _launch import check, check_announced, check_training, digest, report, reports, torchrun

NEEDS = ["transformers", "accelerate"]


def rank_main(folder: Path) -> None:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

    import laconic

    class WithoutDDP(Trainer):
        def create_accelerator_and_postprocess(self):
            super().create_accelerator_and_postprocess()
            self.accelerator.prepare_model = lambda model, *_, **__: model  # the optimizer exchanges gradients

        def create_optimizer(self, model=None):
            if self.optimizer is None:
                self.optimizer = laconic.ShardedOptimizer(self.model, torch.optim.AdamW, "3lc", "3lc", clip_norm=1.0, lr=self.args.learning_rate)
            return self.optimizer

    set_seed(0)
    config = GPT2Config(vocab_size=256, n_positions=32, n_embd=64, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    start = random.Random(0)
    begins = [start.randrange(256) for _ in range(256)]
    rows = [[(b + 3 * i) % 256 for i in range(32)] for b in begins]
    data = [{"input_ids": row, "labels": row} for row in rows]
    arguments = TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=4, gradient_accumulation_steps=2, max_steps=45, learning_rate=1e-2,
        lr_scheduler_type="cosine", max_grad_norm=0.0, logging_steps=1, save_strategy="no", report_to="none", use_cpu=True, ddp_backend="gloo",
        disable_tqdm=True, dataloader_pin_memory=False)
    trainer = WithoutDDP(GPT2LMHeadModel(config), arguments, train_dataset=data)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    optimizer = trainer.optimizer.optimizer  # inside of Accelerate's
    report(folder, "whole", trainer.args.process_index, digest=digest(trainer.model), first=losses[0], last=losses[-1], ratio=optimizer.stats()["ratio"],
           step=optimizer.stats()["step"])
    optimizer.close()


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        output = torchrun(__file__, name)
        check_announced(output, "laconic: AdamW")
        seen = reports(name, "whole")
        check_training(seen, output)
        check(all(rank["step"] == 45 for rank in seen), "two backward() calls a step")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        rank_main(Path(sys.argv[1]))
    else:
        main()
