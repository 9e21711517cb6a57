# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""bench/learning/comparison.py: its parts, page, CSV and picture from cells with known answers, and every way to exchange for a few steps."""

import csv
import json
import math
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "python" / "tests")]

pytest.importorskip("torch")

from bench.learning import comparison, comparison_tables
from bench.lib import models, tables
from training_here import needs_library  # noqa: E402

PLACE = {"CPU": "one", "date": "2026-01-02", "python": "3.11", "torch": "2.0", "scikit-learn": "1.0"}
LATER = PLACE | {"CPU": "two", "date": "2026-01-03"}
FP32 = comparison.REFERENCE
STEPS = {FP32: 0.5, "int8": 0.125, "topk": 0.05, "signsgd": 0.04}


def entry(kind, merge="none"):
    return {"class": kind, "contract": {"merge": merge}}


NAMES = {"int8": entry("quantization"), "topk": entry("sparsification", "set_union"), "signsgd": entry("quantization", "vote"), "3lc": entry("hybrid"),
         "qsgd": entry("quantization"), "powersgd": entry("low-rank"), "thc": entry("quantization")}


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.setattr(comparison, "RESULTS", tmp_path / "cells")
    monkeypatch.setattr(comparison, "codecs", lambda: NAMES)
    (tmp_path / "cells").mkdir()
    return tmp_path


def run(cell):
    """fp32 is there after step 40; topk after 80, in two of three runs, and two points below; with text, signsgd never learns. More bytes, more quality."""
    accurate = models.MODELS[cell.model].quality.higher_is_better
    if cell.kind == "tune":
        factor = cell.rate / models.load(cell.model).LEARNING_RATE
        final = 0.9 - 0.01 * abs(math.log(factor / 0.3)) if accurate else 3 + abs(math.log(factor))
    elif cell.way == "signsgd" and not accurate:
        final = 7.5
    else:
        final = (0.96 if accurate else 2.5) - 0.001 * cell.seed - (0.02 if accurate else -0.5) * (cell.way == "topk")
    reached = not (cell.way == "topk" and cell.seed == 0) and cell.way != "signsgd"
    steps = (80 if cell.way == "topk" else 40) if reached else None
    count = 6000.0 if cell.way == FP32 else 1500.0 / (1 + hash_of(cell.way))
    return {"final": final, "steps": steps, "bytes": count, "environment": LATER if cell.seed == 1 else PLACE}


def hash_of(way):
    """0 for a codec at its default."""
    return sum(map(ord, way.partition(":")[2])) % 7


def timed(cell):
    step = STEPS.get(cell.way, 1.0)
    return {"networks": {rate: {"step": step / 2**i, "steps": 3, "bytes": 7000.0} for i, rate in enumerate(comparison_tables.NETWORKS)}, "environment": PLACE}


def write(cells):
    for cell in cells:
        cell.path.write_text(json.dumps(timed(cell) if cell.kind == "time" else run(cell)))


def everything():
    for part in comparison.parts():  # rates come before the runs that take them
        write(comparison.cells_of(*part))


def rows(table):
    """As the page shows them, by their first cell."""
    lines = [line[2:-2].split(" | ") for line in tables.markdown(table).splitlines()[2:]]
    return {line[0]: line[1:] for line in lines}


# ---- parts ------------------------------------------------------------------------------------------------------------


def test_parts_cover_every_exchange_model_and_seed(here):
    everything()
    cells = [cell for part in comparison.parts() for cell in comparison.cells_of(*part)]
    assert len({cell.path for cell in cells}) == len(cells)
    for model in models.MODELS:
        learnt = {(cell.way, cell.seed) for cell in cells if (cell.kind, cell.model) == ("learn", model)}
        assert learnt >= {(way, seed) for way in (FP32, *NAMES, *comparison.HOOKS, *comparison.MODES) for seed in (0, 1, 2)}
        assert {cell.way for cell in cells if (cell.kind, cell.model) == ("time", model)} >= {way for way, _ in learnt}
    assert {cell.seed for cell in cells if cell.kind == "tune"} == {100}  # no seed of the comparison
    swept = {cell.way for cell in cells if (cell.kind, cell.model) == ("sweep", "gpt")}
    assert swept == {way for some in (*comparison.SWEEPS.values(), comparison.UNITS) for way in some} - set(NAMES)


def test_no_part_takes_more_than_twenty_minutes(here):
    assert max(comparison.MINUTES[kind][model] for kind, model, _ in comparison.parts()) <= 20


def test_codecs_that_vote_learn_at_the_best_rate(here):
    assert comparison.best_rate("mlp", "signsgd") is None and comparison.best_rate("mlp", "int8") == 0
    everything()
    assert comparison.best_rate("mlp", "signsgd") == pytest.approx(0.1 * models.load("mlp").LEARNING_RATE)  # the nearest to 0.3 that is tried
    assert comparison.best_rate("gpt", "signsgd") == models.load("gpt").LEARNING_RATE
    assert [cell.rate for cell in comparison.cells_of("learn", "gpt", 1) if cell.rate] == [models.load("gpt").LEARNING_RATE]


def test_runs_continue_and_a_failed_part_stops_no_other(here, monkeypatch, capsys):
    asked = []

    def train(cells):
        asked.append([cell.name for cell in cells])
        write(cells[:-1] if cells[0].model == "cnn" and cells[0].kind == "learn" else cells)
        if cells[0].model == "cnn" and cells[0].kind == "learn":
            raise RuntimeError("a rank ended")

    monkeypatch.setattr(comparison, "train", train)
    monkeypatch.setattr(comparison, "measure", lambda cells, command: write(cells))
    monkeypatch.setattr(comparison.lab, "laconic_command", lambda: "laconic")
    assert comparison.main(["learn-mlp-0"]) == 1 and "tune-mlp comes before signsgd" in capsys.readouterr().err
    assert comparison.main(["--out", str(here)]) == 1 and "learn-cnn-2 failed: a rank ended" in capsys.readouterr().err
    assert len(asked[-1]) > 1 and asked[-1][0].startswith("sweep-gpt-2")
    asked.clear()
    assert comparison.main(["learn", "time"]) == 1
    assert [len(names) for names in asked] == [1, 1, 1]  # what was cut off goes on where it was


def test_unknown_names_are_refused(here, capsys):
    with pytest.raises(SystemExit):
        comparison.main(["learn-mpl"])
    assert "no part or cell begins with learn-mpl" in capsys.readouterr().err


# ---- page -------------------------------------------------------------------------------------------------------------


def test_places_are_by_median_steps_times_step_time(here):
    everything()
    made = comparison_tables.tables_of(comparison_tables.rows_of())
    found = rows(made["mlp"])
    assert found["PyTorch DDP, fp32"] == ["", "6.00", "1.0", "95.9 ± 0.1", "40", "500", "250", "125", "20.0", "10.0", "5.0", "3, 3, 3"]
    assert found["`int8`"] == ["quantization", "1.50", "4.0", "95.9 ± 0.1", "40", "125", "62.5", "31.2", "5.0", "2.5", "1.2", "2, 2, 2"]
    assert found["`topk`"] == ["sparsification", "1.50", "4.0", "**93.9 ± 0.1**", "80", "50.0", "25.0", "12.5", "4.0", "2.0", "1.0", "1, 1, 1"]
    assert found["`signsgd` †"][4:] == ["not reached", "40.0", "20.0", "10.0", *["not reached"] * 3, "–"]
    assert "`3lc`, `OuterStep` every step" in found and "`3lc`, `ShardedOptimizer`" in found
    assert rows(made["gpt"])["`signsgd` †"][3] == "**failed, 3 of 3**"
    first, second, third = made["first to the target"]["rows"][:3]
    assert first == ["mlp", "95 %", "50 Mbit/s", "`topk`", 4.0, 5.0, "`int8`", 1] and second[4:6] == [2.0, 5.0] and third[2] == "1 Gbit/s"


def test_page_names_what_was_not_run(here):
    assert comparison.main(["--page", "--out", str(here)]) == 0
    empty = json.loads((here / "comparison.json").read_text())["tables"]
    assert all(row[4] == "not run" for row in empty["cnn"]["rows"]) and not (here / "comparison.svg").exists()
    assert len(empty["not run"]["rows"]) == len(comparison.parts()) and len((here / "comparison.csv").read_text().splitlines()) == 1
    everything()
    for name in ("learn-cnn-2-int8", "time-mlp-topk", *(f"sweep-gpt-{seed}-topk@whole" for seed in (0, 1, 2))):
        (here / "cells" / f"{name}.json").unlink()
    assert comparison.main(["--page", "--out", str(here)]) == 0
    made = json.loads((here / "comparison.json").read_text())["tables"]
    assert rows(made["cnn"])["`int8`"][3].endswith(", 2 of 3 seeds") and rows(made["mlp"])["`topk`"][5:] == ["–"] * 7
    assert [row[1] for row in made["units"]["rows"] if "not run" in row] == ["the model"]
    assert rows(made["not run"])["`time-mlp`"][0].startswith("1 of ")
    assert set(rows(made["not run"])) == {"`learn-cnn-2`", "`time-mlp`", *(f"`sweep-gpt-{seed}`" for seed in (0, 1, 2))}


def test_heading_says_what_most_rows_lack(here):
    everything()
    assert {heading for heading, _ in comparison_tables.tables_of(comparison_tables.rows_of())["sweeps"]["columns"]} >= {"final, %", "final, bits"}
    for path in [path for path in (here / "cells").iterdir() if path.name.startswith("learn-cnn-") and not path.name.endswith("int8.json")]:
        if path.name[len("learn-cnn-")] != "0":
            path.unlink()
    made = comparison_tables.tables_of(comparison_tables.rows_of())["cnn"]
    assert made["columns"][4][0] == "final, %, 1 of 3 seeds"
    assert rows(made)["PyTorch DDP, fp32"][3] == "96.0" and rows(made)["`int8`"][3] == "95.9 ± 0.1, 3 of 3 seeds"


def test_csv_and_picture_have_every_figure(here):
    everything()
    assert comparison.main(["--page", "--out", str(here)]) == 0
    text = (here / "comparison.csv").read_text()
    every = list(csv.DictReader(text.splitlines()))
    lines = {(line["model"], line["exchange"]): line for line in every if line["class"] not in ("environment", "tune")}
    environments = {line["exchange"]: line["on"].partition(",")[0] for line in every if line["class"] == "environment"}
    assert len(lines) == sum(len({*comparison.ways(model), *comparison.swept(model)}) for model in models.MODELS) and len(text) <= 50_000
    topk = lines["mlp", "topk"]
    assert [topk[key] for key in ("class", "bytes", "kernel_bytes", "step_200mbit", "final_1", "steps_0", "steps_2")] == [
        "sparsification", "1500", "7000", "0.025", "0.939", "not reached", "80"]
    assert [environments[topk[key]] for key in ("trained_0", "trained_1", "trained_2", "timed")] == ["one", "two", "one", "one"]
    drawn = (here / "comparison.svg").read_text()
    assert re.findall(r"<title>([^<]*)</title>", drawn) == [*comparison.SWEEPS] * 2


def test_csv_restores_cells_that_are_missing(here):
    def published():
        return [(here / f"comparison.{end}").read_text() for end in ("md", "csv")]

    everything()
    assert comparison.main(["--page", "--out", str(here)]) == 0
    before = published()
    for cell in (here / "cells").iterdir():
        cell.unlink()
    kept = comparison.Cell("learn", "mlp", "int8", 0)
    kept.path.write_text(json.dumps(run(kept) | {"final": 0.5}))
    assert comparison.main(["--page", "--restore", "--out", str(here)]) == 0
    assert kept.load()["final"] == 0.5  # what is there stays
    assert all(missing == 0 for *_, missing, _ in comparison.lacking())
    kept.path.write_text(json.dumps(run(kept)))
    assert comparison.main(["--page", "--out", str(here)]) == 0 and published() == before


def test_readme_matches_figures_of_page():
    found = json.loads((ROOT / "docs/results/comparison.json").read_text(encoding="utf-8"))["tables"]["first to the target"]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for row in (row for row in found["rows"] if row[2] == "50 Mbit/s" and row[0] != "mlp"):
        model, _, _, first, time, sooner = (tables.shown(cell, form) for cell, (_, form) in zip(row[:6], found["columns"]))
        name = re.escape(first.removesuffix(" †"))
        assert re.search(rf"^- `{model}`,.*: {name}, {time} s, {sooner} times sooner", readme, re.M), model


# ---- ranks ------------------------------------------------------------------------------------------------------------


def test_joined_parameters_compute_what_single_ones_do():
    import torch

    from bench.learning.comparison_rank import Joined

    def net():
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))

    x, plain = torch.randn(5, 3), net()
    wanted = plain(x)
    wanted.square().sum().backward()
    gradient = torch.cat([p.grad.flatten() for p in plain.parameters()])
    for most, sizes in ((math.inf, [34]), (16, [16, 16, 2]), (1, [12, 4, 4, 4, 8, 2])):
        joined = Joined(net(), most)
        assert [p.numel() for p in joined.parameters()] == sizes
        assert torch.equal(joined(x), wanted)
        joined(x).square().sum().backward()
        assert torch.allclose(torch.cat([p.grad for p in joined.parameters()]), gradient)


CELLS = [comparison.Cell("learn", "recommendation", way) for way in ("topk@bucket", "topk@whole", "outer:3lc", "sharded:3lc", "int8@sparse", FP32)]


def exchanged(folder):
    """Learns two steps in every way, and times two."""
    import os

    import torch.distributed as dist

    from bench.learning import comparison_rank

    comparison_rank.learn(dist.get_rank(), 2, CELLS, folder, 2, 1)
    os.environ["LACONIC_LAB"] = "emulated"
    comparison_rank.measure({"model": "mlp", "ways": ["int8"], "paths": [str(folder / "time.json")], "seconds": 0.0})


def test_every_way_learns_and_is_timed(tmp_path, monkeypatch):
    needs_library(monkeypatch)
    from ranks import Ranks

    pair = Ranks(2)
    try:
        pair.run(exchanged, folder=tmp_path)
    finally:
        pair.close()
    found = {cell.way: json.loads((tmp_path / cell.path.name).read_text()) for cell in CELLS}
    assert all([step for step, _ in each["curve"]] == [0, 1, 2] and each["final"] > 0 and each["cpu"] > 0 for each in found.values())
    elements = sum(p.numel() for p in models.load("recommendation").build(None).parameters())
    assert found[FP32]["bytes"] == 4 * elements > 15 * found["topk@whole"]["bytes"]
    assert found["topk@whole"]["bytes"] < found["topk@bucket"]["bytes"]  # the perceptron is a short tensor, which is sent as it is
    sent = {found[way]["bytes"] for way in ("outer:3lc", "sharded:3lc", "int8@sparse")}
    assert len(sent) == 3 and max(sent) < found[FP32]["bytes"] / 10
    assert found["int8@sparse"]["curve"][0] == found[FP32]["curve"][0]
    times = json.loads((tmp_path / "time.json").read_text())
    assert set(times["networks"]) == set(comparison_tables.NETWORKS)
    assert all(each["steps"] == 3 and each["step"] > 0 for each in times["networks"].values())
