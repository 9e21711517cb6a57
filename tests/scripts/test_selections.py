# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""bench/learning/selections.py: what is encoded, its table from known answers, and one training of a few steps."""

import dataclasses
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "python" / "tests")]

from bench.learning import selections
from bench.lib import cells, tables
from training_here import needs_library  # noqa: E402


def test_memory_of_codec_is_added():
    torch = pytest.importorskip("torch")
    gradient = torch.tensor([[1.0, 2.0]])
    held = {"residual/w": torch.tensor([10.0, 20.0]), "momentum/w": torch.tensor([100.0, 200.0]), "residual/v": torch.tensor([5.0, 5.0])}
    assert selections.encoded(gradient, "w", held).tolist() == [[1 + 90 + 10, 2 + 180 + 20]]
    assert selections.encoded(gradient, "v", held).tolist() == [[6.0, 7.0]]
    assert selections.encoded(gradient, "u", held) is gradient


def test_share_is_what_is_sent_of_what_is_wanted(monkeypatch):
    needs_library(monkeypatch)
    import torch

    vector = torch.zeros(100, 1000)
    vector[3, :40] = 1.0  # 100 are wanted
    assert selections.share("dgc", vector) == 0.4
    torch.manual_seed(1)
    for codec, band in (("sidco", 0.2), ("dgc", 0.25)):
        assert 1 - band <= selections.share(codec, torch.randn(100, 1000)) <= 1 + band


def test_table_has_each_codec_of_its_own_training(tmp_path, monkeypatch, capsys):
    found = {f"{model}-{trained}": {"shares": {codec: [0.8, 1.0, 1.2] if trained == "none" else [0.5 + selections.CODECS.index(codec)] * 3
                                               for codec in selections.Plan(model, trained).selects}}
             for model in selections.MODELS for trained in ("none", *selections.CODECS)}
    lines = tables.markdown(selections.table_of(found)).splitlines()
    assert lines[2:4] == ["| mlp | without | 1.00 (0.80 – 1.20) | 1.00 (0.80 – 1.20) |", "| mlp | with | 0.50 (0.50 – 0.50) | 1.50 (1.50 – 1.50) |"]
    assert {cell.name for cell in map(selections.cell_of, selections.plans())} == set(found)
    with pytest.raises(cells.CellError, match="no table without gpt-dgc"):
        selections.publish({**found, "gpt-dgc": None})


def test_short_training_is_recorded(monkeypatch):
    needs_library(monkeypatch)
    import launches

    launches.fork_what_is_spawned(monkeypatch)
    plan = selections.Plan("mlp", "dgc", steps=11)
    found = selections.group.answered(selections.run_rank, 2, dataclasses.asdict(plan))
    assert list(found["shares"]) == ["dgc"] and len(found["shares"]["dgc"]) == 2 * 3  # steps 0 and 10, three matrices
    assert all(0.5 < share <= 1.25 for share in found["shares"]["dgc"])
