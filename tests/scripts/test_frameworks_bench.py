# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""bench/engines/frameworks.py: every figure has its bar, from runs with known answers."""

import pytest

pytest.importorskip("torch")

from bench.engines import frameworks as bench  # noqa: E402

SECONDS = {"jax 3lc inside": 0.05, "ddp 3lc": 0.04, "jax none inside": 1.0, "jax 3lc outside": 0.04, "fit 3lc": 0.011, "hand 3lc": 0.01}


def everything():
    return {name: {"ways": {way: {"seconds": SECONDS[way], "least": 0.001, "most": 2.0} for way in plan["ways"]}} for name, (plan, _) in bench.PLANS.items()}


def test_every_figure_stands_beside_its_bar():
    found = everything()
    assert set(found) == {cell.name for cell in bench.cells_of()}
    made = bench.tables_of(found)
    assert [row[1:] for row in made["bars"]["rows"]] == [["20.00", "≥ 15"], ["1.25", "≤ 1.3"], ["1.25", "≤ 1.5"], *[["1.10", "≤ 1.2"]] * 3]
    assert len(made["steps"]["rows"]) == 11 and made["steps"]["rows"][0] == ["hosts", "`jax 3lc inside`", 50, 1, 2000]


def test_missing_cells_have_no_row():
    found = {**everything(), "hosts": None}
    assert len(bench.tables_of(found)["bars"]["rows"]) == 4
    assert bench.tables_of(dict.fromkeys(found)) == {}
