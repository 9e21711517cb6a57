# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""A Hugging Face Trainer script that knows nothing of laconic, under `torchrun -m laconic.run`.

Needs transformers and accelerate.
"""

import sys
import tempfile
from pathlib import Path

from _launch import check, check_announced, check_training, report_training, reports, torchrun

NEEDS = ["transformers", "accelerate"]


def rank_main(folder: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

    set_seed(0)
    config = GPT2Config(vocab_size=256, n_positions=32, n_embd=64, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    rows = [[(b + 3 * i) % 256 for i in range(32)] for b in range(256)]
    arguments = TrainingArguments(
        output_dir=str(folder / "out"), per_device_train_batch_size=8, max_steps=30, learning_rate=1e-2, logging_steps=1,
        save_strategy="no", report_to="none", use_cpu=True, ddp_backend="gloo", disable_tqdm=True, dataloader_pin_memory=False)
    trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=[{"input_ids": row, "labels": row} for row in rows])
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    report_training(folder, "unchanged", trainer.args.process_index, trainer.model, losses)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        output = torchrun("-m", "laconic.run", "--spec", "3lc", "--summary", __file__, name)
        check_announced(output, "laconic: 3lc on ")
        check_training(reports(name, "unchanged"), output)
        check("laconic: 30 steps" in output, "the summary counts 30 steps")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        rank_main(Path(sys.argv[1]))
    else:
        main()
