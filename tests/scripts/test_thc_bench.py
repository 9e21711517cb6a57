# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""bench/aggregation/thc.py: its cells, its page from cells with known answers, and each kind of cell for a few steps."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "python" / "tests")]

pytest.importorskip("torch")

from bench.aggregation import thc as bench
from bench.lib import tables
from training_here import needs_library  # noqa: E402

PLACE = {"CPU": "one", "date": "2026-01-02"}
FP32 = bench.REFERENCE
STEPS = {FP32: 100, "powersgd:rank=4": 150, "terngrad": None}
#: seconds at 200 Mbit/s
SLOW = {FP32: 0.4, "powersgd:rank=4": 0.02, "thc:bits=2@xdp": 0.025, "thc:bits=3@switch": 0.016, "thc:bits=4": 0.018}


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "RESULTS", tmp_path / "cells")
    return tmp_path


def gave(cell: str) -> dict:
    """float32 is at the target after 100 steps, PowerSGD after 150, terngrad never; with two bits one of three runs is not. Eight workers take twice as long."""
    kind, _, world, *rest = cell.split("-")
    if kind == "learn":
        ways = {way: {"final": 2.5 + 0.001 * int(rest[0]) + 0.5 * (way == "terngrad"), "steps": STEPS.get(way, 120)} for way in bench.LEARNED}
        if rest == ["2"]:
            ways["thc:bits=2"]["steps"] = None
        return {"ways": ways, "environment": PLACE}
    networks = [f"{network},1%" for network in bench.NETWORKS] if kind == "loss" else rest
    specs = ("thc:bits=3@switch", "powersgd:rank=4") if kind == "loss" else bench.SPECS

    def row(spec, network):
        step = SLOW.get(spec, 0.1) * int(world) / 4 * (1.5 if kind == "loss" else 1) / (2 if network.startswith("1gbit") else 1)
        return {"step": step, "bytes": 2e6 if kind == "loss" else 1e6, "parts": {"compute": step / 2, "encode": step / 4, "wire": step / 8, "decode": step / 16, "hand-over": step / 16}}

    return {"networks": {network: {spec: row(spec, network) for spec in specs} for network in networks}, "environment": PLACE}


def write(begins: str = ""):
    for cell in bench.cells_of():
        if cell.name.startswith(begins):
            cell.save(gave(cell.name))


def found() -> dict:
    return {cell.name: cell.load() for cell in bench.cells_of()}


def shown(table, named=1):
    lines = [line[2:-2].split(" | ") for line in tables.markdown(table).splitlines()[2:]]
    return {line[0] if named == 1 else tuple(line[:named]): line[named:] for line in lines}


# ---- cells and page ---------------------------------------------------------------------------------------------------


def test_cells_are_short_and_quality_has_three_seeds():
    cells = bench.cells_of()
    assert len({cell.path for cell in cells}) == len(cells) and max(cell.minutes for cell in cells) <= 20
    assert {cell.name for cell in cells} == {f"learn-{model}-{world}-{seed}" for model in ("gpt", "lstm") for world in (4, 8) for seed in (0, 1, 2)} | {
        f"time-{model}-{world}-{network}" for model in ("gpt", "lstm") for world in (4, 8) for network in ("200mbit", "1gbit")} | {
        f"loss-{model}-{world}" for model in ("gpt", "lstm") for world in (4, 8)}
    assert {spec.partition("@")[0] for spec in bench.SPECS} == set(bench.LEARNED)


def test_first_thc_is_beside_first_other_exchange(here):
    write("time")
    write("learn")
    made = bench.tables_of(found())
    exchanges = shown(made["gpt, 4 workers"])
    assert exchanges["PyTorch DDP, fp32"] == ["2.501 ± 0.001", "100", "1,000", "400", "200", "40.0", "20.0"]
    assert exchanges["Laconic terngrad"][1] == "not reached" and exchanges["Laconic terngrad"][-2:] == ["not reached"] * 2
    assert exchanges["Laconic thc:bits=2"][1] == "120"  # the median of 120, 120 and never
    bars = shown(made["bars"], 3)
    assert bars["gpt", "4", "200 Mbit/s"] == ["Laconic thc:bits=3, server in the switch", "1.9", "Laconic powersgd:rank=4", "3.0", "1.56"]
    assert bars["lstm", "8", "1 Gbit/s"][1::2] == ["1.9", "3.0"] and len(bars) == 8
    lines = shown(made["parts of a step"], 4)
    assert lines["gpt", "4", "200 Mbit/s", "Laconic powersgd:rank=4"] == ["10.0", "5.0", "2.5", "1.2", "1.2"] and len(lines) == 16


def test_page_has_rows_of_what_there_is(here):
    assert bench.main(["--page", "--out", str(here)]) == 0 and not (here / "thc.md").exists()
    bench_cell = next(cell for cell in bench.cells_of() if cell.name == "learn-lstm-8-1")
    bench_cell.save(gave(bench_cell.name))
    assert bench.main(["--page", "--out", str(here)]) == 0
    made = json.loads((here / "thc.json").read_text())["tables"]
    assert list(made) == ["lstm, 8 workers", "environment"]
    assert shown(made["lstm, 8 workers"])["Laconic int8"] == ["2.501, 1 of 3 seeds", "120", *["–"] * 5] and len(made["lstm, 8 workers"]["rows"]) == len(bench.LEARNED)


def test_loss_is_for_the_first_two(here, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(bench, "measured", lambda model, world, networks, specs: asked.append((networks, specs)) or gave(f"loss-{model}-{world}"))
    assert bench.main(["loss-gpt-4", "--out", str(here)]) == 1 and "cells of time and learn come before" in capsys.readouterr().err
    write("time")
    write("learn")
    assert bench.main(["loss-gpt-4", "--out", str(here)]) == 0
    assert asked == [(("200mbit,1%", "1gbit,1%"), ("thc:bits=3@switch", "powersgd:rank=4"))]
    page = bench.tables_of(found())
    assert shown(page["gpt, 4 workers"])["Laconic thc:bits=3, server in the switch"][2] == "1,000"  # of the network that loses nothing
    made = shown(page["loss"], 4)
    assert made["gpt", "4", "200 Mbit/s, 1 % loss", "Laconic thc:bits=3, server in the switch"] == ["24.0", "1.50", "2.9"]


def test_cells_are_restored_from_next_to_the_page(here):
    write()
    assert bench.main(["--page", "--out", str(here)]) == 0
    before = [(here / f"thc.{end}").read_text() for end in ("md", "json", "cells")]
    for cell in (here / "cells").iterdir():
        cell.unlink()
    assert bench.main(["--page", "--restore", "--out", str(here)]) == 0
    assert [(here / f"thc.{end}").read_text() for end in ("md", "json", "cells")] == before


# ---- each kind of cell ------------------------------------------------------------------------------------------------


def learned(folder):
    import torch.distributed as dist

    bench.learn(dist.get_rank(), "gpt", 0, ("thc:bits=2", FP32), 2, 1, folder / "learned.json")


def test_exchanges_learn(tmp_path, monkeypatch):
    needs_library(monkeypatch)
    from ranks import Ranks

    pair = Ranks(2)
    try:
        pair.run(learned, folder=tmp_path)
    finally:
        pair.close()
    ways = json.loads((tmp_path / "learned.json").read_text())["ways"]
    assert list(ways) == ["thc:bits=2", FP32] and all(3 < way["final"] < 8 and way["steps"] is None for way in ways.values())
    assert ways["thc:bits=2"]["final"] != ways[FP32]["final"]


def test_steps_are_timed_with_servers(monkeypatch):
    from bench.lib import lab

    try:
        if not lab.lab_works(lab.laconic_command()):
            pytest.skip("this machine permits no network namespaces: laconic lab --check says why")
    except lab.DemoError as error:
        pytest.skip(str(error))
    made = bench.measured("lstm", 2, ("1gbit,1%",), ("thc:bits=3@switch", "int8"), ("--repeats", "1", "--slow-steps", "1", "--fast-steps", "2"))["networks"]
    assert list(made) == ["1gbit,1%"] and list(made["1gbit,1%"]) == [FP32, "thc:bits=3@switch", "int8"]
    assert all(row["step"] > 0 and row["bytes"] > 0 for row in made["1gbit,1%"].values())
    assert {"compute", "encode", "wire", "decode"} < set(made["1gbit,1%"]["thc:bits=3@switch"]["parts"])
