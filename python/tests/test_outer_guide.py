# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""docs/guide/outer-steps.md's code from top to bottom, and examples/outer_step.py."""

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
PAGE = ROOT / "docs/guide/outer-steps.md"


def _page():
    rank = dist.get_rank()
    torch.manual_seed(7)
    loader = [training.batch(rank, step) for step in range(4)]
    space = {"model": training.Net(80), "loader": loader, "loss_of": torch.nn.functional.cross_entropy, "rank": rank}
    with tempfile.TemporaryDirectory() as folder:
        for block in re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S):
            exec(compile(block, str(PAGE), "exec"), {**space, "folder": folder}, space)  # noqa: S102
    outer = space["outer"]
    told = training.digest(space["model"]), outer.step, outer.explain()["every"]
    outer.close()
    return told


def test_guide_code_runs(pools):
    results = pools(2).run(_page)
    assert results[0] == results[1] and results[0][1:] == (0, 100)


def test_example_learns_and_resumes(tmp_path):
    pytest.importorskip("sklearn")
    accuracies = []
    for _ in range(2):
        run = ["-m", "examples.outer_step", "--every", "4", "--steps", "30", "--checkpoint", tmp_path / "state"]
        (tmp_path / str(len(accuracies))).mkdir()
        ranks = launch(run, tmp_path / str(len(accuracies)), cwd=ROOT)
        assert [rank.code for rank in ranks] == [0, 0], ranks[0].err + ranks[1].err
        steps, rounds, accuracy = re.search(r"after (\d+) steps, (\d+) rounds: accuracy ([0-9.]+) %", ranks[0].out).groups()
        accuracies.append(float(accuracy))
        assert int(steps) == 30 * len(accuracies)
    assert accuracies[1] > 85 and accuracies[1] >= accuracies[0]
