# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""bench/learning/convergence.py: what it calls a difference, its tables, its files, and a training of a few steps."""

import dataclasses
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "support")]

from bench.learning import convergence, judging, learning
from training_here import needs_library  # noqa: E402

SAMPLE = 1 / judging.TEST_SAMPLES


# ---- differences ----


@pytest.mark.parametrize("differences, sign", [
    ([1.0, 1.1, 0.9], 1),          # t = 17
    ([-1.0, -1.1, -0.9], -1),
    ([1.0, 2.0, 6.0], 0),          # t = 1.96, and 4.30 is needed
    ([0.0, 0.0, 0.0], 0),
    ([5.0], 0),                    # one seed says nothing
])
def test_differences_beyond_chance_are_found(differences, sign):
    assert judging.verdict(differences) == sign


def test_equal_differences_of_one_sample_are_chance():
    """Their spread is 0, but accuracies come in steps."""
    plain = [0.95, 0.96, 0.94]
    assert judging.accuracy_verdict([a - SAMPLE for a in plain], plain) == 0
    assert judging.accuracy_verdict([a - 2 * SAMPLE for a in plain], plain) == 1
    assert judging.accuracy_verdict([a + 2 * SAMPLE for a in plain], plain) == -1


def test_losses_are_compared_as_logarithms():
    plain = [0.001, 0.01, 0.1]
    assert convergence.loss_cell([2 * x for x in plain], plain) == "**0.074**"
    assert convergence.loss_cell([x / 2 for x in plain], plain) == "0.0185\\*"
    assert convergence.loss_cell([0.5, 0.5, 0.5], [0.5, 0.6, 0.4]) == "0.5"


@pytest.mark.parametrize("loss", [5160.0, 2.5, float("inf"), float("nan")])
def test_seed_that_learned_nothing_is_counted(loss):
    assert convergence.loss_cell([0.1, loss, 0.1], [0.1, 0.1, 0.1]) == "**failed, 1 of 3**"


# ---- tables ----


def figures():
    """Results of the full plans; int8 ruins RMSprop alone, and a warm-up of 60 steps helps 3lc:s=1.75 at step 300."""
    plan = json.loads(json.dumps(dataclasses.asdict(convergence.Plan())))
    common = {"plan": plan, "environment": {"CPU": "one", "commit": "abc"}, "complete": True}
    runs = {f"{name}/rate": {"best": 0.1, "losses": [[0.1, 0.2], [0.3, 0.25]]} for name in plan["optimizers"]}
    for name in plan["optimizers"]:
        for spec in plan["optimizer_specs"]:
            for seed in plan["seeds"]:
                bad = (name, spec) == ("RMSprop", "int8")
                runs[f"{name}/{spec}/{seed}"] = {"loss": (0.4 if bad else 0.1) + 0.001 * seed,
                                                 "accuracy": (0.80 if bad else 0.95) + 0.01 * seed}
    warm = {f"none/0/{seed}": [0.90, 0.91, 0.92, 0.96 + 0.001 * seed] for seed in plan["seeds"]}
    for spec in plan["warmup_specs"]:
        for warmup in plan["warmups"]:
            for seed in plan["seeds"]:
                final = 0.95 if (spec, warmup) == ("3lc:s=1.75", 60) else 0.93
                plain = warm[f"none/0/{seed}"]
                warm[f"{spec}/{warmup}/{seed}"] = [plain[at] if warmup >= look else 0.80 for at, look in enumerate((25, 50, 100))]
                warm[f"{spec}/{warmup}/{seed}"].append(final + 0.001 * seed)
    return {"optimizers": {**common, "runs": runs}, "warmup": {**common, "runs": warm}}


def test_tables_mark_only_differences():
    found = convergence.optimizer_tables(figures()["optimizers"])
    bold = [(key, row[0], cell) for key, each in found.items() for row in each["rows"] for cell in row if "**" in str(cell)]
    assert bold == [("losses", "RMSprop", "**0.401**"), ("accuracies", "RMSprop", "**81.0**")]
    assert found["learning rates"]["rows"][0] == ["SGD", "0.1: 0.2, 0.3: 0.25", 0.1]


def test_tables_separate_running_warm_up_from_its_effect():
    found = {key: {tuple(row[:2]): row[2:] for row in each["rows"]} for key, each in convergence.warmup_tables(figures()["warmup"]).items()}
    assert found["warm-up"]["`3lc:s=1.75`", 60][:3] == ["*90.0 ± 0.0*", "*91.0 ± 0.0*", "**80.0 ± 0.0**"]
    assert found["gaps"]["`3lc:s=1.75`", 60] == ["*0.0*", "*0.0*", "12.0", "1.0 ↓"]
    assert found["gaps"]["`3lc:s=1.75`", 30] == ["*0.0*", "11.0", "12.0", "3.0"]


# ---- files ----


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(convergence, "RESULTS", tmp_path / "out")
    return convergence.Results("optimizers", quick=True)


def test_figures_of_other_plan_are_ignored(results):
    found = results.load()
    found["runs"]["SGD/none/0"] = {"loss": 0.1}
    learning.save(results.path, found)
    assert results.load()["runs"] == {"SGD/none/0": {"loss": 0.1}}
    results.plan = dataclasses.replace(results.plan, steps=21)
    assert results.load()["runs"] == {} and not results.load()["complete"]


def test_damaged_file_counts_as_missing(results):
    learning.save(results.path, results.load())
    results.path.write_text(results.path.read_text()[:20])
    assert results.load()["runs"] == {}


def test_file_is_replaced_atomically(results, monkeypatch):
    """Cut off in the middle of writing, the old one is whole."""
    found = results.load()
    learning.save(results.path, {**found, "runs": {"a": 1}})

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        learning.save(results.path, {**found, "runs": {"a": 1, "b": 2}})
    assert results.load()["runs"] == {"a": 1}


def test_finished_training_is_not_repeated(results):
    rank = object.__new__(convergence.Rank)
    rank.rank, rank.results, rank.found = 0, results, results.load()
    assert rank.once("a", lambda: 1) == 1
    again = object.__new__(convergence.Rank)
    again.rank, again.results, again.found = 0, results, results.load()
    assert again.once("a", lambda: 2) == 1
    assert again.once("b", lambda: 2) == 2
    assert results.load()["runs"] == {"a": 1, "b": 2}


def test_tables_wait_for_both_parts(results, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(convergence, "train", lambda results, found: learning.save(results.path, {**found, "complete": True}))
    monkeypatch.setattr(sys, "argv", ["convergence.py", "--quick", "--part", "optimizers", "--out", str(tmp_path)])
    assert convergence.main() == 0
    assert "warmup not trained" in capsys.readouterr().err and not (tmp_path / "convergence.md").exists()


# ---- a training ----


@pytest.mark.slow
def test_short_training_runs(results, monkeypatch):
    """Two processes: mini-batches and LBFGS, from where a run was cut off."""
    needs_library(monkeypatch)
    results.plan = dataclasses.replace(results.plan, seeds=(0,), steps=3, lbfgs_gradients=5)
    before = results.load()
    trained = {"SGD, momentum 0.9/rate": {"best": 0.1, "losses": [[0.1, 1.0]]}, "LBFGS/none/0": {"loss": 1.5, "accuracy": 0.5}}
    before["runs"] = dict(trained)
    convergence.train(results, before)
    found = results.load()
    assert found["complete"] and len(found["runs"]) == 2 + 2 * 2
    assert {key: found["runs"][key] for key in trained} == trained, "what was trained before stays"
    runs = {key: run for key, run in found["runs"].items() if not key.endswith("rate")}
    assert all(0 < run["loss"] < 10 and 0 < run["accuracy"] < 1 for run in runs.values())
    assert len({run["loss"] for run in runs.values()}) == 4, "each optimizer and spec trains its own way"
    assert found["runs"]["LBFGS/rate"]["best"] in dict(map(tuple, found["runs"]["LBFGS/rate"]["losses"]))
