# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""bench/engines/sharded.py: every figure is next to its bar, from runs with known answers."""

import pytest

pytest.importorskip("torch")

from bench.engines import sharded as bench  # noqa: E402

FINALS = {"gpt": (3.0, 3.5, 3.2), "lstm": (3.0, 4.0, 3.8), "mlp": (0.97, 0.96, 0.965)}


def everything():
    found = {}
    for cell in bench.cells_of():
        if cell.name.startswith("learning-"):
            _, model, _, way, seed = cell.name.split("-")
            final = FINALS[model][(bench.FLOAT, bench.MEAN, bench.SHARDED).index(way)]
            found[cell.name] = {"final": final + 0.001 * int(seed), "sent": {"push": 50.0, "pull": 100.0}, "state_elements": 820, "elements": 1040, "small": 40}
    found["hosts"] = {"ways": {bench.HOSTS["ways"][0]: {"seconds": 1.0, "bytes": 8e6}, bench.HOSTS["ways"][1]: {"seconds": 0.04, "bytes": 2e5}}}
    found["local"] = {"ways": {"ddp": {"seconds": 0.5, "bytes": 0}, "none none": {"seconds": 0.51, "bytes": 1e8}}, "elements": 24_800_000}
    return found


def test_every_figure_has_its_bar():
    made = bench.tables_of(everything())
    assert [row[1:] for row in made["bars"]["rows"]] == [
        ["0.40", "≤ 0.5"], ["0.80", "≤ 0.9"], ["+0.50", "≥ −0.5"], ["+0.50", "≥ −0.5"], ["1/31.2", "≤ 1/30"], ["0.263", "≤ 0.301"], ["25.0", "≥ 20"],
        ["40.0", "≥ 39"], ["1.02", "≤ 1.05"]]
    assert made["learning"]["rows"][0] == ["gpt", "Adam", 3.001, 3.501, 3.201]
    assert [row[:2] for row in made["times"]["rows"]] == [["hosts", "`none none`"], ["hosts", "`3lc 3lc:s=1.5`"], ["local", "`ddp`"], ["local", "`none none`"]]


def test_missing_figure_has_no_row():
    found = everything()
    found["learning-lstm-Adam-attach-2"] = found["local"] = None
    made = bench.tables_of(found)
    assert len(made["learning"]["rows"]) == 3 and len(made["bars"]["rows"]) == 7
    assert bench.tables_of({name: None for name in found}) == {}
