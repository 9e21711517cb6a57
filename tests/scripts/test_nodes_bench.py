# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""bench/engines/nodes.py: every figure has its bar, from runs with known answers."""

import pytest

pytest.importorskip("torch")

from bench.engines import nodes as bench  # noqa: E402

SECONDS = {"ddp": 1.0, "none on": 0.6, "int8 off": 0.8, "int8 on": 0.2, "3lc off": 0.05, "3lc on": 0.06, "3lc auto": 0.0505, "topk:ratio=0.01 off": 0.08,
           "topk:ratio=0.01 on": 0.04, bench.GATHERED: 0.2}
PORTS = {"int8 off": 4e6, "int8 on": 1e6, "3lc off": 3e5, "3lc on": 9e4, "topk:ratio=0.01 off": 4e5, "topk:ratio=0.01 on": 1e5, bench.GATHERED: 2e6}


def way(name):
    own = 4 if name.endswith("on") else 1
    return {"seconds": SECONDS[name], "port": PORTS.get(name, 8e6), "inside": 0.0, "residual_bytes": 4000 // own, "exchange_bytes": 6000 // own}


def everything():
    found = {name: {"ways": {each: way(each) for each in plan["ways"]}} for name, (plan, _) in bench.TIMED.items()}
    for spec in bench.LEARNT:
        for seed in bench.SEEDS:
            found[bench.learning_name(spec, "off", seed)] = {"final": 0.97}
            found[bench.learning_name(spec, 2, seed)] = {"final": 0.968 + 0.001 * seed}
    return {**found, "counted": {"flat": 1000, "levels": 120}}


def test_every_figure_stands_beside_its_bar():
    found = everything()
    assert set(found) == {cell.name for cell in bench.cells_of()}
    made = bench.tables_of(found)
    shares = [["0.250", "≤ 0.275 (1.1 / 4)"]] * 4
    assert [row[1:] for row in made["bars"]["rows"]] == [
        ["0.25", "≤ 0.30"], ["0.30", "≤ 0.30"], ["0.25", "≤ 0.10"], ["0.050", "≤ 0.10"], ["0.25", "≤ 0.35"], ["0.50", "≤ 0.35"], ["0.20", "≤ 0.35"],
        ["0.60", "≤ 0.65"], ["0.20", "≤ 0.25"], ["1.01", "≤ 1.02"], *shares, ["1.01", "≤ 1.02"], ["1.01", "≤ 1.02"], ["0.12", "≤ 0.30"],
        *[["-0.10", "≥ −0.3"]] * 4]
    assert len(made["times"]["rows"]) == len(SECONDS) and [row[0] for row in made["learning"]["rows"]] == [f"`{spec}`" for spec in bench.LEARNT]


def test_missing_cells_have_no_row():
    found = everything()
    found[bench.learning_name("3lc", 2, 1)] = found["hosts"] = None
    made = bench.tables_of(found)
    assert len(made["bars"]["rows"]) == 6 and len(made["learning"]["rows"]) == 3 and "times" not in made
    assert bench.tables_of({name: None for name in found}) == {}
