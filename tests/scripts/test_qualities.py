# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""bench/learning/qualities.py: its runs, its tables from runs with known answers, and one training of a few steps."""

import dataclasses
import json
import math
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "python" / "tests")]

from bench.learning import learning, qualities
from bench.lib import tables
from training_here import needs_library  # noqa: E402

PLACE = {"CPU": "one", "date": "2026-01-02", "python": "3.11", "torch": "2.0", "scikit-learn": "1.0"}
FP32 = learning.REFERENCE


def entry(kind, merge="none"):
    return {"class": kind, "contract": {"merge": merge}}


NAMES = {"int8": entry("quantization"), "topk": entry("sparsification", "set_union"), "signsgd": entry("quantization", "vote")}


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.setattr(qualities, "RESULTS", tmp_path / "out")
    monkeypatch.setattr(qualities, "codecs", lambda: NAMES)
    monkeypatch.setattr(qualities, "own_rate", lambda model: 0.1)
    return tmp_path


def run_of(cell, value):
    return {"cell": dataclasses.asdict(cell), "curve": [[0, 0.1], *([10 * i, value] for i in range(1, 6))],
            "ratio": None if cell.spec == FP32 else 4.0 if cell.spec == "int8" else 32.0, "environment": PLACE}


def value_of(cell):
    """topk: 2 points, and 3 of perplexity, worse; signsgd fails with the lstm; its best rates are 0.001 and 0.1 of theirs."""
    accurate = cell.model in ("mlp", "cnn")
    if cell.question == "tuning":
        off = abs(math.log(cell.rate / (1e-3 if accurate else 1e-2)))
        return 0.9 - 0.01 * off if accurate else 3 + off
    if (cell.spec, cell.model) == ("signsgd", "lstm"):
        return 7.5
    worse = 2.0 if cell.spec == "topk" else 0
    return 0.95 + 0.001 * cell.seed - worse / 100 if accurate else math.log2(8 + cell.seed + 1.5 * worse)


def train_all():
    for cell in qualities.tuning(NAMES):
        learning.save(cell.path, run_of(cell, value_of(cell)))
    for _, _, cell in qualities.runs(NAMES):
        learning.save(cell.path, run_of(cell, value_of(cell)))


def rows(found):
    """As the page shows them, by their first cell."""
    lines = [line[2:-2].split(" | ") for line in tables.markdown(found).splitlines()[2:]]
    return {line[0]: line[1:] for line in lines}


def test_runs_cover_every_codec_model_and_seed(here):
    found = qualities.runs(NAMES)
    assert len(found) == 3 * 4 * (len(NAMES) + 1)
    assert sum(cell is None for _, _, cell in found) == 3 * 4  # of signsgd, whose rates are not known
    cells = [cell for _, _, cell in found if cell is not None]
    assert len({cell.path for cell in cells}) == len(cells) and {cell.seed for cell in cells} == {0, 1, 2}
    assert len(qualities.tuning(NAMES)) == 6 + 6 + 4 + 4
    assert {cell.seed for cell in qualities.tuning(NAMES)} == {100}  # no seed of the comparison


def test_codecs_that_vote_use_best_learning_rate(here):
    train_all()
    assert [qualities.best_rate("signsgd", model) for model in qualities.STEPS] == [0.001, 0.001, 0.01, 0.01]
    assert {cell.rate for _, spec, cell in qualities.runs(NAMES) if spec == "signsgd"} == {0.001, 0.01}
    assert {cell.rate for _, spec, cell in qualities.runs(NAMES) if spec != "signsgd"} == {0.0}


def test_qualities_and_rates_are_published(here):
    train_all()
    assert qualities.main(["--page", "--out", str(here)]) == 0
    found = json.loads((here / "quality.json").read_text())["tables"]
    table = rows(found["quality"])
    assert table["uncompressed"] == ["", "1", "95.1 ± 0.1", "95.1 ± 0.1", "9.00 ± 1.00", "9.00 ± 1.00"]
    assert table["`int8`"] == ["quantization", "4 to 4", "95.1 ± 0.1 (+0.0)", "95.1 ± 0.1 (+0.0)", "9.00 ± 1.00 (+0.00)",
                               "9.00 ± 1.00 (+0.00)"]
    assert table["`topk`"][2:] == ["**93.1 ± 0.1 (-2.0)**"] * 2 + ["**12.00 ± 1.00 (-3.00)**"] * 2
    assert table["`signsgd` †"][2:] == ["95.1 ± 0.1 (+0.0)", "95.1 ± 0.1 (+0.0)", "**failed, 3 of 3**", "9.00 ± 1.00 (+0.00)"]
    assert found["rates"]["rows"][0] == ["`signsgd`", "mlp", "3e-05: 86.5, 0.0001: 87.7, 0.0003: 88.8, 0.001: 90.0, 0.003: 88.9, 0.01: 87.7", 0.001]


def test_runs_continue_and_missing_ones_are_reported(here, monkeypatch, capsys):
    train_all()
    asked = []
    monkeypatch.setattr(qualities.group, "start", lambda *arguments: asked.append(arguments))
    monkeypatch.setattr(qualities.group, "wait", lambda _: None)
    assert qualities.main(["--out", str(here)]) == 0 and not asked
    for path in (here / "out").glob("*int8*"):
        path.unlink()
    assert qualities.main(["--slots", "2", "--out", str(here)]) == 1
    assert sorted(len(arguments[3]) for arguments in asked) == [6, 6]
    assert capsys.readouterr().err.splitlines()[-1] == "no tables yet: 12 runs are missing"


def test_unknown_codecs_are_refused(here, capsys):
    with pytest.raises(SystemExit):
        qualities.main(["--spec", "topkk"])
    assert "no codec topkk" in capsys.readouterr().err


def test_short_training_runs(tmp_path, monkeypatch):
    """A file of a run, with its own rate."""
    needs_library(monkeypatch)
    import launches

    launches.fork_what_is_spawned(monkeypatch)
    cell = qualities.Cell("quality", "mlp", "int8", 0, 10, 5, rate=0.02)
    qualities.group.wait(qualities.group.start(learning.run_rank, 2, 2, [cell], tmp_path, None))
    run = json.loads((tmp_path / cell.path.name).read_text())
    assert run["cell"] == dataclasses.asdict(cell) and run["ratio"] > 3 and [step for step, _ in run["curve"]] == [0, 5, 10]
