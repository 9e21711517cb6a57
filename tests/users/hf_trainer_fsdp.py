# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Hugging Face Trainer with FSDP2 and LaconicCallback, two replicas of two shards. Needs transformers and accelerate."""

import random
import sys
import tempfile
from pathlib import Path

from _launch import check, check_announced, check_shards, fsdp_on_cpus, report, reports, shard_digest, torchrun

NEEDS = ["transformers", "accelerate"]


def rank_main(folder: Path) -> None:
    from accelerate import ParallelismConfig
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

    from laconic.integrations.transformers import LaconicCallback

    fsdp_on_cpus()
    set_seed(0)
    config = GPT2Config(vocab_size=256, n_positions=16, n_embd=64, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    start = random.Random(0)
    begins = [start.randrange(256) for _ in range(64)]
    rows = [[(b + 3 * i) % 256 for i in range(16)] for b in begins]
    data = [{"input_ids": row, "labels": row} for row in rows]
    arguments = TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=4, gradient_accumulation_steps=2, max_steps=12, learning_rate=1e-2,
        lr_scheduler_type="constant", logging_steps=1, save_strategy="no", report_to="none", use_cpu=True, ddp_backend="gloo", disable_tqdm=True,
        dataloader_pin_memory=False, parallelism_config=ParallelismConfig(dp_replicate_size=2, dp_shard_size=2),
        fsdp=True, fsdp_config={"version": 2, "transformer_layer_cls_to_wrap": ["GPT2Block"], "cpu_ram_efficient_loading": False})
    callback = LaconicCallback("3lc", seed=3)
    trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=data, callbacks=[callback])
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    report(folder, "whole", trainer.args.process_index, digest=shard_digest(trainer.model_wrapped), first=losses[0], last=losses[-1],
           ratio=callback.handle.stats()["ratio"], step=callback.handle.step)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        output = torchrun(__file__, name, world=4, seconds=500)  # four ranks import transformers, on a busy machine in minutes
        check_announced(output, "2 replicas of 2 shards")
        seen = reports(name, "whole", world=4)
        check_shards(seen, output)
        check(all(rank["step"] == 12 for rank in seen), "one exchange for two backward() calls")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        rank_main(Path(sys.argv[1]))
    else:
        main()
