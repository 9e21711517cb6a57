# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""bench/engines/hsdp.py: every figure has its bar, from runs with known answers."""

import pytest

pytest.importorskip("torch")

from bench.engines import hsdp as bench  # noqa: E402

FINALS = {"ddp": 3.0, f"ddp {bench.SPEC}": 3.1, "native": 3.0, f"hsdp {bench.SPEC}": 3.08}


def way(seconds, **more):
    return {"seconds": seconds, "ratio": 1.0, "residual_bytes": 0, "shard_elements": 0, **more}


def everything():
    found = {}
    for cell in bench.cells_of():
        if cell.name.startswith("learning-"):
            name, _, seed = cell.name.removeprefix("learning-").rpartition("-")
            final = FINALS[next(w for w in bench.LEARNT if w.replace(" ", "-") == name)]
            found[cell.name] = {"final": final + 0.001 * int(seed) * (name.startswith("hsdp"))}
    own = way(0.008, ratio=40.0, residual_bytes=1000, shard_elements=300)
    found["hosts"] = {"ways": {"native": way(1.2), bench.SPEC: way(0.1)}}
    found["local"] = {"ways": {"native": way(0.01), "none": way(0.009), bench.SPEC: own, f"{bench.SPEC} inline": way(0.01)}}
    found["balanced"] = {"ways": {bench.SPEC: way(0.06), f"{bench.SPEC} inline": way(0.1)}}
    return found


def test_every_figure_stands_beside_its_bar():
    made = bench.tables_of(everything())
    assert [row[1:] for row in made["bars"]["rows"]] == [
        ["12.0", "≥ 10"], ["0.90", "≤ 1.05"], ["0.80", "≤ 0.85"], ["0.833", "≤ 1"], ["0.60", "≤ 0.7"],
        ["0.081", "≤ 0.101 (DDP's, and two standard errors)"]]
    assert [row[0] for row in made["learning"]["rows"]] == [f"`{name}`" for name in bench.LEARNT]
    assert len(made["times"]["rows"]) == 8


def test_missing_cells_have_no_row():
    found = everything()
    found[f"learning-{bench.LEARNT[3].replace(' ', '-')}-2"] = found["local"] = None
    made = bench.tables_of(found)
    assert len(made["bars"]["rows"]) == 2 and len(made["learning"]["rows"]) == 3
    assert bench.tables_of({name: None for name in found}) == {}
