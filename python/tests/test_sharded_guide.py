# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""docs/guide/sharded.md's code from top to bottom, and examples/sharded.py."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import training  # noqa: E402
from launches import launch  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/guide/sharded.md"


def _page():
    rank = dist.get_rank()
    torch.manual_seed(7)
    model = training.Net(80)
    loader = [training.batch(rank, step) for step in range(4)]
    space = {"model": model, "loader": loader, "loss_of": torch.nn.functional.cross_entropy, "rank": rank, "device": "cpu"}
    with tempfile.TemporaryDirectory() as folder:
        for block in re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S):
            if "ShardedOptimizer(" in block and "optimizer" in space:
                space["optimizer"].close()
            exec(compile(block, str(PAGE), "exec"), {**space, "folder": folder}, space)  # noqa: S102
    optimizer = space["optimizer"]
    told = training.digest(model), optimizer.stats()["step"], optimizer.explain()["optimizer"], len(space["full"]["masters"])
    optimizer.close()
    return told


def test_guide_code_runs(pools):
    results = pools(2).run(_page)
    assert results[0] == results[1] and results[0][1:] == (4, "AdamW", 6)


def test_example_learns_and_resumes(tmp_path):
    pytest.importorskip("sklearn")
    accuracies = []
    for _ in range(2):
        run = ["-m", "examples.sharded", "--push", "topk:ratio=0.05", "--pull", "int8", "--steps", "40", "--checkpoint", tmp_path / "state"]
        (tmp_path / str(len(accuracies))).mkdir()
        ranks = launch(run, tmp_path / str(len(accuracies)), cwd=ROOT)
        assert [rank.code for rank in ranks] == [0, 0], ranks[0].err + ranks[1].err
        steps, accuracy = re.search(r"after (\d+) steps: accuracy ([0-9.]+) %", ranks[0].out).groups()
        accuracies.append(float(accuracy))
        assert int(steps) == 40 * len(accuracies)
    assert accuracies[1] > 85 and accuracies[1] >= accuracies[0]
