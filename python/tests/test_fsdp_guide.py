# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""docs/guide/fsdp.md's programs, each of which trains, and frameworks that shard a model themselves."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import sharding  # noqa: E402  skips below torch 2.13
from ranks import Ranks  # noqa: E402

PAGE = Path(__file__).resolve().parents[2] / "docs/guide/fsdp.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)


@pytest.fixture(scope="module")
def four():
    ranks = Ranks(4)
    yield ranks
    ranks.close()


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.hidden, self.last = torch.nn.Linear(20, 96), torch.nn.Linear(96, 64), torch.nn.Linear(64, 5)

    def forward(self, x):
        return self.last(torch.relu(self.hidden(torch.relu(self.first(x)))))


def program(number):
    torch.manual_seed(7)
    space = {"Model": Model, "Experts": sharding.Experts, "device": "cpu", "loss_of": torch.nn.functional.cross_entropy,
             "loader": [sharding.batch(step) for step in range(4)]}
    exec(compile(BLOCKS[0][: BLOCKS[0].index("\n\n")] + "\n" + BLOCKS[number], str(PAGE), "exec"), space)  # noqa: S102
    model, handle = space["model"], space["handle"]
    with sharding.closing(handle):
        if handle.step == 0:
            sharding.loss_of(model, 0).backward()
        return sharding.digest(model), handle.step, handle.explain()["replicas"], handle.stats()["failures"]


@pytest.mark.parametrize("number", range(5), ids=["2-D", "1-D", "replicate", "experts", "accumulation"])
def test_guide_programs_train(four, number):
    assert len(BLOCKS) == 5
    found = four.run(program, number=number)
    replicas = [[0, 1, 2, 3]] * 4 if number == 2 else [[0, 2], [1, 3]] * 2
    for (digest, step, ranks, failures), expected in zip(found, replicas):
        assert ranks == expected and failures == 0 and step == {0: 4, 4: 2}.get(number, 1)
        assert digest == found[expected[0]][0]
