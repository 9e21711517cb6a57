# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""bench/learning/cifar10.py: its cells, its page from cells with known answers, and every way to exchange for a few steps."""

import json
import sys
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "python" / "tests")]

pytest.importorskip("torch")
numpy = pytest.importorskip("numpy", reason="the images need NumPy")

from bench.learning import cifar10
from bench.lib import models, tables
from training_here import needs_library  # noqa: E402

PLACE = {"CPU": "one", "date": "2026-01-02", "data": "a.npz"}
FP32 = cifar10.REFERENCE


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.setattr(cifar10, "RESULTS", tmp_path / "cells")
    return tmp_path


def gave(cell: str) -> dict:
    """float32: 80 %, 7.2 MB, 6.4 s. 3lc: by seed 0.2, 0.3 and 0.4 points less, 1/48 of the bytes, 1/20 of the time. Sharded: a point less than that, 1/30 of the
    bytes, 1/15 of the time. Others have a sixteenth. Four times as long: float32 is 5 points better, others half as far behind."""
    kind, *seed, way = cell.split("-", 1 if cell.startswith("time") else 2)
    if kind == "time":
        part = {"pytorch_ddp": 1, "3lc": 20, "sharded_3lc_s=1.5": 15}.get(way, 16)
        return {"networks": {"10mbit": {"step": 6.4 / part, "bytes": 8e6}, "100mbit": {"step": 0.8 / part, "bytes": 8e6}}, "environment": PLACE}
    if kind == "rate":
        return {"final": 0.7 if way == "3lc" else 0.75, "curve": [[0, 0.1]], "steps": None, "bytes": 1.0, "environment": PLACE}
    worse = 0 if way == "pytorch_ddp" else 0.002 + 0.001 * int(seed[0]) + 0.01 * way.startswith("sharded")
    part = 1 if way == "pytorch_ddp" else 30 if way.startswith("sharded") else 48
    final = 0.8 - worse if kind == "learn" else 0.85 - worse / 2
    return {"final": final, "curve": [[0, 0.1]], "steps": None, "bytes": 7.2e6 / part, "environment": PLACE}


def write(names=None):
    for cell in cifar10.cells_of("a.npz"):
        if names is None or cell.name in names:
            cell.save(gave(cell.name))


def lines_of(table):
    lines = [line[2:-2].split(" | ") for line in tables.markdown(table).splitlines()[2:]]
    return [(line[0], line[1:]) for line in lines]


def shown(table):
    return dict(lines_of(table))


# ---- cells and page ---------------------------------------------------------------------------------------------------


def test_cells_are_short_and_bars_have_three_seeds():
    cells = cifar10.cells_of(None)
    assert len({cell.path for cell in cells}) == len(cells) and max(cell.minutes for cell in cells) <= 20
    assert sum(cell.name.startswith("learn-0-") for cell in cells) == sum(cell.name.startswith("time") for cell in cells) == len(cifar10.WAYS)
    assert {cell.name for cell in cells if cell.name.startswith("long")} == {f"long-{seed}-{way}" for seed in range(3) for way in ("pytorch_ddp", "3lc", "sharded_3lc_s=1.5")}


def test_page_has_rows_of_what_there_is(here, capsys):
    assert cifar10.main(["--page", "--out", str(here)]) == 0 and not (here / "cifar10.md").exists()
    write(["learn-0-3lc", "time-int8"])
    assert cifar10.main(["--page", "--out", str(here)]) == 0
    made = json.loads((here / "cifar10.json").read_text())["tables"]
    assert shown(made["exchanges"]) == {"`3lc`": ["79.80", "–", "150", *["–"] * 5], "`int8`": [*["–"] * 4, "400", "50.0", *["–"] * 2]}
    assert not {"bars", "longer", "rates"} & set(made)
    assert cifar10.main(["--list", "--out", str(here)]) == 0
    said = capsys.readouterr().out.splitlines()
    there = [line.split() for line in said if " minutes" in line and "missing" not in line]
    assert there == [["learn-0-3lc", str(cifar10.MINUTES["learn"]), "minutes"], ["time-int8", str(cifar10.MINUTES["time"]), "minutes"]]


def test_bars_are_of_all_seeds(here):
    write()
    made = cifar10.tables_of({cell.name: cell.load() for cell in cifar10.cells_of(None)})
    assert shown(made["exchanges"])["`3lc`"] == ["79.80", "-0.20", "150", "48.0", "320", "40.0", "20.0", "20.0"]
    sharded = "`3lc:s=1.5`, `ShardedOptimizer`"
    assert shown(made["longer"]) == {"PyTorch DDP, fp32": ["85.00 ± 0.00", "–", "7,200", "1.0", "6,400", "800", "1.0", "1.0"],
                                     "`3lc`": ["84.85 ± 0.05", "-0.15 ± 0.05", "150", "48.0", "320", "40.0", "20.0", "20.0"],
                                     sharded: ["84.35 ± 0.05", "-0.65 ± 0.05", "240", "30.0", "427", "53.3", "15.0", "15.0"]}
    assert lines_of(made["bars"]) == [("`3lc`", ["48.0", "-0.15 ± 0.03", "20.0", "none"]), (sharded, ["30.0", "-0.65 ± 0.03", "15.0", "bytes, accuracy, time"])]
    (here / "cells" / "long-1-3lc.json").unlink()
    rows = cifar10.tables_of({cell.name: cell.load() for cell in cifar10.cells_of(None)})["bars"]
    assert [name for name, _ in lines_of(rows)] == [sharded]


def test_bitmap_has_a_bit_for_each_element(here):
    large, short = cifar10.elements()
    assert large + short == sum(p.numel() for p in models.load("cifar10").build(images()).parameters()) and 0 < short < large / 50
    assert cifar10.bitmap_bytes(0.25, 800, 16) == 1.5 * (100 + 800 + 64)
    write()
    row = shown(cifar10.tables_of({cell.name: cell.load() for cell in cifar10.cells_of(None)})["exchanges"])["`topk:ratio=0.25` as a bitmap, computed"]
    count = cifar10.bitmap_bytes(0.25, large, short)
    assert row[0] == "79.80" and row[2] == f"{count / 1e3:,.0f}" and row[4] == f"{400 + 8e3 * 1.07 * (count - 150_000) / 1e7:,.0f}"


def test_rates_of_learning_are_in_order_with_the_models_own(here):
    write()
    found = {cell.name: cell.load() for cell in cifar10.cells_of(None)}
    assert lines_of(cifar10.tables_of(found)["rates"]) == [
        ("0.015", ["75.00", "70.00", "-5.00"]), ("0.03", ["80.00", "79.80", "-0.20"]), ("0.05", ["75.00", "70.00", "-5.00"]), ("0.1", ["75.00", "70.00", "-5.00"])]
    found["rate-0.05-3lc"] = None
    assert [rate for rate, _ in lines_of(cifar10.tables_of(found)["rates"])] == ["0.015", "0.03", "0.1"]


def test_cell_is_trained_with_its_rate_and_length(here, monkeypatch):
    import torch.distributed as dist

    def answered(learn, world, *given):
        learn(0, *given, here / "answer.json")
        return json.loads((here / "answer.json").read_text())

    monkeypatch.setattr(cifar10.group, "answered", answered)
    monkeypatch.setattr(cifar10.models, "load", lambda name: types.SimpleNamespace(data=str))
    monkeypatch.setattr(cifar10, "trained", lambda cell, data, rank, world, steps, every: {"curve": [[steps, [cell.rate, steps, every]]]})
    monkeypatch.setattr(dist, "get_world_size", lambda: 4)
    runs = {cell.name: cell.run for cell in cifar10.cells_of("a.npz")}
    made = {name: runs[name]()["final"] for name in ("rate-0.05-3lc", "learn-0-3lc", "long-2-3lc")}
    assert made == {"rate-0.05-3lc": [0.05, 1000, 100], "learn-0-3lc": [0.0, 1000, 100], "long-2-3lc": [0.0, 4000, 400]}


def test_time_of_bytes_that_come_after_timed_steps_is_added(here):
    write(["learn-0-3lc", "time-3lc"])
    cell = next(cell for cell in cifar10.cells_of(None) if cell.name == "time-3lc")
    cell.save({"networks": {"10mbit": {"step": 0.32, "bytes": 100_000}, "100mbit": {"step": 0.04, "bytes": None}}, "environment": PLACE})
    row = shown(cifar10.tables_of({cell.name: cell.load() for cell in cifar10.cells_of(None)})["exchanges"])["`3lc`"]
    assert row[4:6] == ["368", "40.0"]  # 150 kB, of which 1.07 pass: 60.5 kB more at 10 Mbit/s


def test_cells_are_restored_from_next_to_the_page(here):
    write()
    assert cifar10.main(["--page", "--out", str(here)]) == 0
    before = [(here / f"cifar10.{end}").read_text() for end in ("md", "json", "cells")]
    assert max(map(len, before)) <= 50_000
    for cell in (here / "cells").iterdir():
        cell.unlink()
    own = next(cell for cell in cifar10.cells_of(None) if cell.name == "learn-0-int8")
    own.save(gave(own.name) | {"final": 0.5})
    assert cifar10.main(["--page", "--restore", "--out", str(here)]) == 0
    assert own.load()["final"] == 0.5  # what is there stays
    own.save(gave(own.name))
    assert cifar10.main(["--page", "--out", str(here)]) == 0
    assert [(here / f"cifar10.{end}").read_text() for end in ("md", "json", "cells")] == before


def test_cell_without_data_says_what_it_needs(here, capsys):
    assert cifar10.main(["learn-0-3lc", "learn-3", "--out", str(here)]) == 1
    said = capsys.readouterr().err
    assert "no cell begins with learn-3" in said and "learn-0-3lc_s=1.5 failed: it needs CIFAR-10 as .npz" in said


# ---- ranks ------------------------------------------------------------------------------------------------------------


def images():
    import torch

    return types.SimpleNamespace(train=torch.zeros(1, 3, 32, 32), classes=10)


TRIED = ("sharded:3lc:s=1.5", "outer2:none", "terngrad:pack=quartic", "onebit", "topk:ratio=0.25", "int8", "3lc:s=1.75", FP32)


def exchanged(folder, data):
    """Learns two steps in every way, and times some."""
    import os

    import torch.distributed as dist

    from bench.learning import comparison_rank

    for i, way in enumerate(TRIED):
        cifar10.learn(dist.get_rank(), way, 0, data, 2, 1, 0.0, folder / f"{i}.json")
    os.environ["LACONIC_LAB"] = "emulated"
    comparison_rank.measure({"model": "cifar10", "ways": ["outer2:none"], "paths": [str(folder / "time.json")], "seconds": 0.0, "data": data, "networks": ["1gbit"]})


def test_every_way_learns_from_a_file_and_is_timed(tmp_path, monkeypatch):
    needs_library(monkeypatch)
    from ranks import Ranks

    draw, labels = numpy.random.default_rng(0), numpy.arange(256, dtype="uint8") % 10
    pixels = draw.integers(0, 256, (256, 32, 32, 3), "uint8")
    data = str(tmp_path / "a.npz")
    numpy.savez(data, train_images=pixels, train_labels=labels, test_images=pixels[:40], test_labels=labels[:40])
    pair = Ranks(2)
    try:
        pair.run(exchanged, folder=tmp_path, data=data)
    finally:
        pair.close()
    found = {way: json.loads((tmp_path / f"{i}.json").read_text()) for i, way in enumerate(TRIED)}
    assert all([step for step, _ in each["curve"]] == [0, 1, 2] and each["final"] == each["curve"][-1][1] for each in found.values())
    plain = found[FP32]["bytes"]
    assert plain == 4 * sum(cifar10.elements()) and found["outer2:none"]["bytes"] == pytest.approx(plain / 2, rel=0.01)
    assert found["3lc:s=1.75"]["bytes"] < plain / 30 and found["sharded:3lc:s=1.5"]["bytes"] < plain / 15
    assert plain / 32 < found["terngrad:pack=quartic"]["bytes"] < plain / 16
    assert json.loads((tmp_path / "time.json").read_text())["networks"]["1gbit"]["steps"] == 6  # whole rounds
