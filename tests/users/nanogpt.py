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
#: a configuration file of nanoGPT's own kind. Under torchrun train.py puts each rank on cuda:<rank>; this leads it to the CPU.
CONFIGURATION = """
torch.cuda.set_device = lambda device: None
torch.nn.Module.to = lambda self, device: self
torch.Tensor.pin_memory = lambda self: self
_to, _load, _wrap = torch.Tensor.to, torch.load, DDP
torch.Tensor.to = lambda self, *args, **kw: self if str(args[:1]).startswith("('cuda") else _to(self, *args, **kw)
torch.load = lambda path, map_location: _load(path, map_location="cpu")
DDP = lambda model, device_ids: _wrap(model)

device, backend, dtype, compile, wandb_log = "cpu", "gloo", "float32", False, False
dataset, n_layer, n_head, n_embd, block_size, batch_size, gradient_accumulation_steps = "made", 2, 4, 64, 64, 8, 2
eval_interval, eval_iters, log_interval, lr_decay_iters, warmup_iters, learning_rate, min_lr = 40, 4, 10, 120, 5, 5e-3, 5e-4
"""
WORDS = "the cat sat on a mat and saw two small birds in the old tree behind our house before rain came".split()


def write_data(folder: Path) -> None:
    """The files of data/shakespeare_char/prepare.py: characters as uint16, and their table."""
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
        return torchrun("-m", "laconic.run", "--spec", "3lc", "--summary", folder / "train.py", "cpu.py", *options)
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
        (folder / "cpu.py").write_text(CONFIGURATION, encoding="utf-8")
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
