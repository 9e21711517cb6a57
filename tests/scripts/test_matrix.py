# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""bench/learning/matrix.py: tables of all models and networks from figures that are known, and what it runs."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

from bench.learning import learning, matrix, matrix_tables
from bench.lib import tables

SPECS = ("pytorch:ddp", "3lc", "topk:ratio=0.01")
#: milliseconds a step
STEPS = {("mlp", "20mbit"): (3000, 40, 100), ("mlp", "1gbit"): (60, 20, 10),
         ("lstm", "20mbit"): (4000, 50, 200), ("lstm", "1gbit"): (90, 95, 92)}
#: steps to the target by seed; final quality by seed
LEARNT = {("mlp", "pytorch:ddp"): ((50, 60, 70), (0.97, 0.97, 0.97)), ("mlp", "3lc"): ((60, 60, 60), (0.90, 0.91, 0.89)),
          ("mlp", "topk:ratio=0.01"): ((100, 150, None), (0.97, 0.96, 0.94)),
          ("lstm", "pytorch:ddp"): ((100, 100, 100), (2.5, 2.6, 2.4)), ("lstm", "3lc"): ((None, 200, None), (3.5, 3.6, 3.4)),
          ("lstm", "topk:ratio=0.01"): ((100, 120, 110), (2.5, 2.7, 2.3))}


def run(model, reached, final):
    """Far from the target but for one evaluation; the last five are the final quality."""
    about = matrix_tables.MODELS[model]
    far = 0.1 if about.quality.higher_is_better else 6.0
    curve = [[step, about.target if step == reached else far] for step in range(0, 201, 10)]
    return {"curve": curve + [[step, final] for step in range(210, 260, 10)], "environment": {"CPU": "some CPU", "torch": "2.0"}}


def raw(model, network):
    steps = dict(zip(SPECS, STEPS[model, network]))
    blocks = [{"network": network, "spec": spec, "repeat": 0, "slow": False, "times": [[step / 4e3, step / 2e3, step / 4e3]] * 3,
               "reached": None, "kernel_bytes": 1e3 * step, "own": {"wire_bytes": 1000.0}} for spec, step in steps.items()]
    bounds = [{"network": network, "spec": spec, "repeat": 0, "payload": 1000, "times": [[0.0, steps[spec] / 2e3, 0.0]]}
              for spec in SPECS[1:]]
    rank = {"learn": [], "pairs": [], "blocks": blocks, "bounds": bounds, "phases": {}}
    about = matrix_tables.MODELS[model]
    plan = {"model": model, "networks": [network], "specs": list(SPECS), "steps": about.steps, "every": about.every,
            "target": about.target, "seeds": [0], "workers": 2, "times_only": True, "data": None}
    return {"plan": plan, "ranks": [rank, rank], "about": {spec: {"canonical": spec, "strategy": ""} for spec in SPECS},
            "environment": {"torch": "2.1"}, "machine": {"CPU": "other CPU"}, "training": "batch 1", "parameters": 10,
            "emulated": False}


@pytest.fixture
def found():
    runs = {key: [run(key[0], *pair) for pair in zip(*values)] for key, values in LEARNT.items()}
    return {"learning": runs, "times": {key: raw(*key) for key in STEPS}, "missing": []}


def rows_of(found, key):
    """As the page shows them."""
    return [line[2:-2].split(" | ") for line in tables.markdown(matrix_tables.tables_of(found)[key]).splitlines()[2:]]


def test_time_is_median_steps_times_step_time(found):
    cells = {(cell.model, cell.network): cell.time for cell in matrix_tables.cells(found)}
    assert cells["mlp", "20mbit"] == pytest.approx({"pytorch:ddp": 180.0, "3lc": 2.4, "topk:ratio=0.01": 15.0})
    # two of three runs do not get there: neither does the exchange
    assert cells["lstm", "1gbit"] == {"pytorch:ddp": pytest.approx(9.0), "3lc": None, "topk:ratio=0.01": pytest.approx(10.12)}


def test_first_of_each_cell_and_its_lead_are_shown(found):
    rows = rows_of(found, "first to the target")
    assert [row[1:] for row in rows] == [
        ["20 Mbit/s", "`3lc`", "`topk:ratio=0.01`", "2.4 s", "75.0", "6.2"],
        ["1 Gbit/s", "`3lc`", "`topk:ratio=0.01`", "1.2 s", "3.0", "1.2"],
        ["20 Mbit/s", "`topk:ratio=0.01`", "PyTorch DDP, fp32", "22.0 s", "18.2", "18.2"],
        ["1 Gbit/s", "PyTorch DDP, fp32", "`topk:ratio=0.01`", "9.0 s", "1.0", "1.1"]]
    assert [row[0] for row in rows] == ["`mlp`, 95 %"] * 2 + ["`lstm`, 3 bits"] * 2


def test_cell_without_result_is_empty(found):
    for spec in SPECS:
        found["learning"]["mlp", spec] = [run("mlp", None, 0.5)] * 3
    assert rows_of(found, "first to the target")[:2] == [["`mlp`, 95 %", rate, "–", "–", "not reached", "–", "–"] for rate in ("20 Mbit/s", "1 Gbit/s")]
    assert [row[1:3] for row in rows_of(found, "rankings")] == [["–", "–"]] * 3


def test_ranks_are_by_time_to_target(found):
    assert rows_of(found, "rankings") == [["PyTorch DDP, fp32", "3", "3", "2", "1"], ["`3lc`", "1", "1", "–", "–"], ["`topk:ratio=0.01`", "2", "2", "1", "2"]]


def test_quality_is_compared_with_fp32(found):
    mlp, lstm = (rows_of(found, f"{name}: quality") for name in ("mlp", "lstm"))
    assert [row[1:] for row in mlp] == [["50, 60, 70", "97.00 %", "0.00 points", "–"],
                                        ["60, 60, 60", "90.00 %", "1.00 points", "**-7.00 points**"],
                                        ["100, 150, –", "95.67 %", "1.53 points", "-1.33 points"]]
    assert [row[-1] for row in lstm] == ["–", "**+1.0000**", "+0.0000"]


def test_times_and_bounds_of_model_are_shown(found):
    assert [heading for heading, _ in matrix_tables.tables_of(found)["lstm: times"]["columns"]] == [
        "exchange", "bytes a step, kernel", "× fewer than fp32", "step at 20 Mbit/s, ms", "time to target", "step at 1 Gbit/s, ms", "time to target"]
    assert rows_of(found, "lstm: times")[1] == ["`3lc`", "50,000", "80.0", "50.0", "not reached", "95.0", "not reached"]
    assert rows_of(found, "lstm: codec work") == [["`3lc`", "25.0", "50.0", "47.5", "95.0"], ["`topk:ratio=0.01`", "100", "200", "46.0", "92.0"]]


def test_environment_names_both_machines_and_chart_is_complete(found):
    rows = rows_of(found, "environment")
    assert ["learning, CPU", "some CPU"] in rows and ["step times, CPU", "other CPU"] in rows
    titles = re.findall(r"<title>([^<]*)</title>", matrix_tables.picture(found))
    assert len(titles) == 12 and titles[4] == "Laconic 3lc, mlp 20 Mbit/s: 2.4 s" and titles[6].endswith("lstm 20 Mbit/s: –")
    for cell in found["times"].values():
        cell["emulated"] = True
    assert rows_of(found, "environment")[-1][1].startswith("**emulated:")


def test_missing_results_are_named_and_nothing_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(matrix, "TIMES", tmp_path / "times")
    monkeypatch.setattr(learning, "RESULTS", tmp_path / "learning")
    assert matrix.write(tmp_path / "docs") == 1 and not (tmp_path / "docs").exists()
    said = capsys.readouterr().err
    assert "seeds-mlp-pytorch_ddp-seed0" in said and "times of gpt at 1gbit" in said


def test_existing_cells_are_not_measured_again(tmp_path, monkeypatch):
    monkeypatch.setattr(matrix, "TIMES", tmp_path)
    file = matrix.times_file("cnn", "1gbit")
    file.parent.mkdir()
    file.write_text(json.dumps({}))
    asked = []

    def answered(command, **_):
        asked.append(command)
        return type("Done", (), {"returncode": 0})

    monkeypatch.setattr(matrix.subprocess, "run", answered)
    assert matrix.measure() and len(asked) == len(learning.MODELS) * len(matrix.NETWORKS) - 1
    assert {tuple(c[c.index("--model") + 1:c.index("--model") + 4:2]) for c in asked}.isdisjoint({("cnn", "1gbit")})
    assert all("--times-only" in command and command[command.index("--specs") + 1].split() == list(learning.SPECS) for command in asked)


def test_readme_matches_figures_of_page():
    found = json.loads((ROOT / "docs/results/models.json").read_text(encoding="utf-8"))["tables"]["first to the target"]["rows"]
    rows = [row for row in found if row[1] == "50 Mbit/s" and not row[0].startswith("`mlp`")]
    assert len(rows) == 3
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name, _, first, _, time, sooner, _ in rows:
        model = name.split(",")[0]
        assert re.search(rf"- {model},.*: {re.escape(first)}, {time:.1f} s, {sooner:.1f} times sooner", readme)
