# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""bench/learning/learning.py: its runs and their files, its tables from runs with known answers, and two trainings of a few steps."""

import dataclasses
import json
import math
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "support")]

from bench.learning import judging, learning, learning_tables
from bench.lib import tables
from training_here import needs_library, needs_models  # noqa: E402

FP32 = learning.REFERENCE
PLACE = {"CPU": "one", "date": "2026-01-02", "python": "3.11", "torch": "2.0", "scikit-learn": "1.0"}
RATES = {"SGD": 0.3, "momentum": 0.1, "Adam": 1e-3, "AdamW": 1e-3}
# ---- runs with known answers ----


def curve(cell, below, steps, every):
    """`below(step)`: points of accuracy below fp32, or hundredths of a bit above it."""
    plain, sign = (0.90, -0.01) if cell.model in ("mlp", "cnn") else (3.0, 0.01)
    wobble = 0.001 * cell.seed  # of all exchanges of a seed
    return [[0, 0.1]] + [[step, plain + wobble + sign * below(step)] for step in range(every, steps + 1, every)]


def noise(cell):
    """Differs by seed, so that differences have a spread."""
    return 0.02 * cell.seed


def long_gap(cell):
    return {"3lc:s=1.75": lambda step: 2 if step <= 2000 else 0.1, "topk:ratio=0.001": lambda step: 1,
            "sidco:ratio=0.001": lambda step: 2 if step == 3000 else 0}.get(cell.spec, lambda step: 0)


def warmup_gap(cell):
    """3lc: closed by 50 steps, by 200 smaller; 3lc:s=1.75: unchanged; topk: no gap without a warm-up, one of 1 after 50 steps."""
    after = {("3lc", 0): 3, ("3lc", 200): 1.5, ("3lc:s=1.75", 0): 3, ("3lc:s=1.75", 50): 3, ("3lc:s=1.75", 200): 3,
             ("topk:ratio=0.001", 50): 1}.get((cell.spec, cell.warmup), 0)
    return lambda step: after + noise(cell) if after and step > cell.warmup else 0


def optimizer_gap(cell):
    """3lc harms Adam with gpt, topk everything; powersgd fails with AdamW and gpt."""
    if (cell.spec, cell.optimizer, cell.model) == ("powersgd:rank=4", "AdamW", "gpt") and cell.seed == 1:
        return lambda step: math.nan
    bad = cell.spec == "topk:ratio=0.01" or (cell.spec, cell.optimizer, cell.model) == ("3lc", "Adam", "gpt")
    return lambda step: 2 + noise(cell) if bad else 0


def run_of(cell):
    gap = {"long": long_gap, "warmup": warmup_gap, "optimizers": optimizer_gap}.get(cell.question, lambda _: lambda step: 1)(cell)
    if cell.question == "seeds" and cell.spec == FP32:
        gap = lambda step: 0  # noqa: E731
    if cell.question == "tuning":
        gap = lambda step: 0 if cell.rate == RATES[cell.optimizer] else 1  # noqa: E731
    ratio = {"int8": 4.0, "3lc": 20.0, "powersgd:rank=4": 30.0, "topk:ratio=0.01": 50.0}.get(cell.spec)
    return {"cell": dataclasses.asdict(cell), "curve": curve(cell, gap, cell.steps or 200, cell.every or 10), "ratio": ratio,
            "environment": PLACE}


@pytest.fixture
def found(monkeypatch):
    """Everything, by question."""
    monkeypatch.setattr(learning, "best_rate", lambda model, optimizer: RATES[optimizer])
    return {question: [(cell, run_of(cell)) for cell in learning.cells(question)] for question in learning.QUESTIONS}


def without(found, question, test):
    """Runs of cells that pass the test are missing."""
    return {**found, question: [(cell, None if test(cell) else run) for cell, run in found[question]]}


def rows_of(found, key):
    """As the page shows them, by their first two cells."""
    lines = [line[2:-2].split(" | ") for line in tables.markdown(learning_tables.tables_of(found)[key]).splitlines()[2:]]
    return {tuple(line[:2]): line[2:] for line in lines}


# ---- a long run ----


@pytest.mark.parametrize("differences, step", [
    ([(1, -1.0), (2, -0.3), (3, 0.0)], 2),
    ([(1, 0.0), (2, -0.31), (3, 0.5), (4, 0.1)], 3),   # what is better is within; a relapse counts
    ([(1, 0.0), (2, -0.31)], None),
    ([(1, 0.0), (2, math.nan)], None),
    ([], None),
])
def test_first_step_within_bounds_is_found(differences, step):
    assert learning_tables.within_from(differences) == step


def test_smoothing_takes_five_evaluations_without_the_start():
    points = [(0, 100.0), *((step, float(step)) for step in range(1, 8))]
    assert learning_tables.smoothed(points) == [(5, 3.0), (6, 4.0), (7, 5.0)]


def test_long_run_reports_start_of_last_0_3_points(found):
    rows = rows_of(found, "a long run")
    # 3lc is good from step 2100 on, sidco but for step 3000: four evaluations later it is out of the mean.
    assert rows["mlp", "`3lc:s=1.75`"][-1] == "2500"
    assert rows["mlp", "`sidco:ratio=0.001`"][-1] == "3500"
    assert rows["cnn", "`topk:ratio=0.001`"][-1] == "–"
    assert rows["cnn", "`topk:ratio=0.001`"][1:3] == ["-1.00 (-1.00, -1.00, -1.00)"] * 2
    assert rows["mlp", "fp32"][0] == "90.1 ± 0.1"


def test_long_run_without_a_short_run_has_no_table(found):
    lacking = without(found, "seeds", lambda cell: cell.seed == 1 and cell.spec == "topk:ratio=0.001")
    assert "a long run" not in learning_tables.tables_of(lacking)


def test_worse_than_fp32_beyond_chance_is_bold(found):
    rows = rows_of(found, "a long run")
    assert rows["mlp", "`topk:ratio=0.001`"][0] == "**89.1 ± 0.1**"
    assert rows["mlp", "`3lc:s=1.75`"][0] == "90.0 ± 0.1"  # 0.1 points: less than half a sample


# ---- beyond chance ----


@pytest.mark.parametrize("model, values, plain, sign", [
    ("mlp", [0.90, 0.91, 0.89], [0.95, 0.96, 0.94], 1),
    ("mlp", [0.95, 0.96, 0.94], [0.90, 0.91, 0.89], -1),
    ("mlp", [0.948, 0.958, 0.938], [0.95, 0.96, 0.94], 0),     # less than a test sample
    ("gpt", [3.1, 3.2, 3.1], [3.0, 3.1, 3.0], 1),              # fewer bits are better
    ("gpt", [3.0, 3.1, 3.0], [3.1, 3.2, 3.1], -1),
    ("gpt", [3.1, 3.0, 3.2], [3.0, 3.1, 3.0], 0),
    ("gpt", [3.0, 7.5, 3.0], [3.0, 3.0, 3.0], 1),              # one seed failed
    ("gpt", [3.0, math.nan, 3.0], [3.0, 3.0, 3.0], 1),
    ("gpt", [3.0, 3.0, 3.0], [3.0, math.inf, 3.0], -1),
    ("cnn", [0.95, 0.10, 0.95], [0.95, 0.95, 0.95], 1),
    ("gpt", [9.9, 3.0], [math.nan, 3.0], 0),
])
def test_worse_and_better_beyond_chance_are_found(model, values, plain, sign):
    assert judging.judged(model, values, plain) == sign


# ---- warm-up ----


def test_warm_up_gap_is_shown_with_that_of_same_steps(found):
    finals, gaps = rows_of(found, "warm-up"), rows_of(found, "gaps after a warm-up")
    assert gaps["`3lc`", "200"] == ["1.5 (3.0) ↑"] * 2 + ["0.015 (0.030) ↑"] * 2
    assert gaps["`3lc:s=1.75`", "50"] == ["3.0 (3.0)"] * 2 + ["0.030 (0.030)"] * 2
    assert finals["`3lc`", "0"][0] == "**87.1 ± 0.1**" and finals["`3lc`", "50"][0] == "90.1 ± 0.1 ↑"
    assert finals["`topk:ratio=0.001`", "50"][2] == "**3.011 ± 0.001** ↓"
    assert finals["fp32", "–"][2] == "3.001 ± 0.001"


# ---- optimizers ----


def test_final_qualities_and_rates_of_optimizers_are_shown(found):
    gpt = {name: cells for (name, _), cells in rows_of(found, "optimizers, gpt").items()}
    assert gpt["AdamW"] == ["3.001 ± 0.001", "3.001 ± 0.001 (+0.000)", "3.001 ± 0.001 (+0.000)", "**3.021 ± 0.001 (+0.020)**",
                            "**failed, 1 of 3**"]
    assert rows_of(found, "learning rates")["cnn", "momentum"] == ["0.03: 99.0, 0.1: 100.0, 0.3: 99.0", "0.1"]


# ---- all tables ----


def test_incomplete_question_keeps_its_tables(found, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(learning, "known", found.__getitem__)
    assert learning.main(["--page", "--out", str(tmp_path)]) == 0 and not capsys.readouterr().err
    before = json.loads((tmp_path / "learning.json").read_text())
    fewer = without(without(found, "tuning", lambda cell: cell.model == "gpt"), "optimizers", lambda cell: True)
    monkeypatch.setattr(learning, "known", fewer.__getitem__)
    assert set(learning_tables.tables_of(fewer)) == {"a long run", "warm-up", "gaps after a warm-up", "environment"}
    assert learning.main(["--page", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().err.splitlines() == ["tuning: 12 of 24 runs are missing", "optimizers: 120 of 120 runs are missing"]
    after = json.loads((tmp_path / "learning.json").read_text())
    assert {**after["tables"], "environment": 0} == {**before["tables"], "environment": 0}


def test_diverged_run_does_not_stop_tables(found):
    """NaN in every evaluation but the first, of one seed of everything but fp32."""
    for cells in found.values():
        for cell, run in cells:
            if cell.spec != FP32 and cell.seed == 0:
                run["curve"] = [[step, math.nan if step else value] for step, value in run["curve"]]
    assert rows_of(found, "a long run")["mlp", "`3lc:s=1.75`"] == ["**failed, 1 of 3**", "failed", "failed", "–"]
    assert "nan" not in json.dumps(learning_tables.tables_of(found)).lower()


def test_every_machine_is_named_with_its_runs(found):
    for cell, run in found["long"]:
        if cell.seed == 0:
            run["environment"] = {**PLACE, "CPU": "another", "date": "2026-01-01"}
    rows = learning_tables.tables_of(found)["environment"]["rows"]
    assert [row[1:] for row in rows] == [["2026-01-02", "2026-01-02", "one, python 3.11, torch 2.0, scikit-learn 1.0"],
                                         ["2026-01-01", "2026-01-01", "another, python 3.11, torch 2.0, scikit-learn 1.0"]]
    assert sum(row[0] for row in rows) == sum(map(len, found.values()))


# ---- runs and their files ----


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(learning, "RESULTS", tmp_path / "learning")
    return learning.RESULTS


def test_every_run_has_its_own_file(found):
    cells = [cell for runs in found.values() for cell, _ in runs]
    assert len({cell.path for cell in cells}) == len(set(cells)) == len(cells) > 300


def test_file_of_another_run_is_ignored(results):
    cell = learning.cells("long")[0]
    assert cell.load() is None
    learning.save(cell.path, run_of(cell))
    assert cell.load()["curve"] and [c.path.name for c, run in learning.known("long") if run] == [cell.path.name]
    longer = dataclasses.replace(cell, steps=cell.steps + 1)
    assert longer.path == cell.path and longer.load() is None
    cell.path.write_text(cell.path.read_text()[:20])
    assert cell.load() is None


@pytest.mark.parametrize("model, optimizer, learnt, best", [
    ("cnn", "SGD", {0.1: 0.9, 0.3: 0.95, 1.0: 0.5}, 0.3),            # accuracy: the most
    ("gpt", "SGD", {0.1: 3.5, 0.3: 3.2, 0.6: 9.0}, 0.3),             # bits: the fewest
    ("gpt", "SGD", {0.1: math.nan, 0.3: 3.2, 0.6: 3.1}, 0.6),        # a rate that led astray is not taken, wherever it stands
    ("gpt", "SGD", {0.1: 3.2, 0.3: math.nan, 0.6: math.inf}, 0.1),
])
def test_best_rate_is_chosen_by_last_five_evaluations(results, model, optimizer, learnt, best):
    for cell in learning.cells("tuning"):
        if (cell.model, cell.optimizer) == (model, optimizer):
            flattering = 1.0 if model == "cnn" else 0.0  # only early in the worst run
            start = [[step, flattering] for step in range(5)] if learnt[cell.rate] == list(learnt.values())[-1] else []
            learning.save(cell.path, {**run_of(cell), "curve": start + [[10 + step, learnt[cell.rate]] for step in range(5)]})
    assert learning.best_rate(model, optimizer) == best


def test_missing_tuning_omits_optimizer_runs(results):
    with pytest.raises(ValueError, match="run --question tuning first"):
        learning.cells("optimizers")
    assert [run for _, run in learning.known("optimizers")] == [None] * 120


def test_held_out_samples_are_not_learned(tmp_path):
    torch = needs_models()
    from bench.lib import digits, text

    numbers = torch.arange(20)
    images = digits.Images(numbers.float(), numbers, torch.tensor([99.0]), torch.tensor([99]))
    mine = learning.held_out(images)
    learnt, judged = set(mine.train.tolist()), set(mine.test.tolist())
    assert learnt | judged == set(range(20)) and not learnt & judged and len(judged) == 4
    assert mine.train_labels.tolist() == mine.train.tolist() and mine.test_labels.tolist() == mine.test.tolist()
    assert len(images.train) == 20 and images.test.tolist() == [99.0], "the data itself stays as it is"
    (tmp_path / "a.txt").write_text("a" * 8100 + "b" * 900 + "z" * 1000)  # nine tenths of nine tenths are learnt from
    whole = text.Text(str(tmp_path / "a.txt"))
    mine = learning.held_out(whole)
    assert {chr(c) for c in mine.train.tolist()} == {"a"} and {chr(c) for c in mine.test[0].flatten().tolist()} == {"b"}
    assert len(whole.train) == 9000


# ---- a training ----


@pytest.mark.slow
def test_two_short_trainings_run(results, monkeypatch):
    """Two processes: as the demo's, and with a warm-up, an optimizer and a rate."""
    needs_library(monkeypatch)
    mine = [learning.Cell("long", "mlp", "3lc", steps=4, every=2),
            learning.Cell("warmup", "cnn", "topk:ratio=0.01", 1, 3, 1, warmup=2, optimizer="Adam", rate=1e-3)]
    monkeypatch.setattr(learning, "cells", lambda question: mine)
    monkeypatch.setattr(learning, "WORLD", 2)
    learning.train_all(["long"], 1, None)
    first, second = (cell.load() for cell in mine)
    assert [step for step, _ in first["curve"]] == [0, 2, 4] and [step for step, _ in second["curve"]] == [0, 1, 2, 3]
    assert first["ratio"] > 10 and first["environment"]["torch"]
    before = {path: path.stat().st_mtime_ns for path in results.iterdir()}
    assert len(before) == 2 and all(json.loads(path.read_text())["cell"] for path in before)
    learning.train_all(["long"], 1, None)
    assert {path: path.stat().st_mtime_ns for path in results.iterdir()} == before, "what was trained is not trained again"
