# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""nanoGPT's train.py, unchanged, under `torchrun -m laconic.run` on two CPU ranks; then resumed by its own --init_from=resume.

NANOGPT names a checkout of it (train.py, model.py, configurator.py); without it there is nothing to run. The text is made here.
Needs numpy; tiktoken and datasets, which nanoGPT's own data sets use, are not needed.
"""

import os
import pickle
import random
import re
import shutil
import sys
import tempfile
from pathlib import Path

from _launch import SKIPPED, check, check_announced, torchrun

NEEDS = ["numpy"]
FILES = ["train.py", "model.py", "configurator.py"]
WORDS = "the cat sat on a mat and saw two small birds in the old tree behind our house before rain came".split()


def write_data(folder: Path) -> None:
    """What data/shakespeare_char/prepare.py makes: characters as uint16, and their table."""
    import numpy as np

    draw = random.Random(0)
    text = "".join(" ".join(draw.choices(WORDS, k=8)) + ".\n" for _ in range(2000))
    characters = sorted(set(text))
    numbers = {c: i for i, c in enumerate(characters)}
    folder.mkdir(parents=True)
    for name, part in (("train", text[: len(text) * 9 // 10]), ("val", text[len(text) * 9 // 10 :])):
        np.array([numbers[c] for c in part], dtype=np.uint16).tofile(folder / f"{name}.bin")
    table = {"vocab_size": len(characters), "itos": dict(enumerate(characters)), "stoi": numbers}
    (folder / "meta.pkl").write_bytes(pickle.dumps(table))


def train(folder: Path, *options) -> str:
    here = os.getcwd()
    os.chdir(folder)
    try:
        return torchrun("-m", "laconic.run", "--spec", "3lc", "--summary", folder / "train.py", "--device=cpu", "--backend=gloo",
                        "--compile=False", "--dataset=made", "--dtype=float32", "--n_layer=2", "--n_head=4", "--n_embd=64", "--block_size=64",
                        "--batch_size=8", "--gradient_accumulation_steps=2", "--dropout=0.0", "--eval_interval=40", "--eval_iters=4",
                        "--log_interval=10", "--lr_decay_iters=120", "--warmup_iters=5", "--learning_rate=5e-3", "--min_lr=5e-4",
                        "--always_save_checkpoint=True", "--out_dir=out", *options)
    finally:
        os.chdir(here)


def main() -> int:
    checkout = os.environ.get("NANOGPT", "")
    if not checkout or not all(Path(checkout, name).is_file() for name in FILES):
        print("NANOGPT names no checkout of nanoGPT")
        return SKIPPED
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file in FILES:
            shutil.copy(Path(checkout, file), folder)
        write_data(folder / "data" / "made")
        output = train(folder, "--max_iters=80")
        check_announced(output, "laconic: 3lc on ")
        losses = [float(x) for x in re.findall(r"^step \d+: train loss ([\d.]+)", output, re.M)]
        check(len(losses) == 3 and losses[-1] < 0.5 * losses[0], f"the loss fell: {losses}")
        ratio = float(re.search(r"([\d.]+):1 against a float32 ring", output)[1])
        check(ratio > 5, f"{ratio} : 1")
        check("Traceback" not in output, "no traceback")
        output = train(folder, "--max_iters=120", "--init_from=resume")
        check_announced(output, "laconic: 3lc on ")
        after = [float(x) for x in re.findall(r"^step \d+: train loss ([\d.]+)", output, re.M)]
        check(after[-1] <= losses[-1] + 0.1, f"a resumed run goes on: {after}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
