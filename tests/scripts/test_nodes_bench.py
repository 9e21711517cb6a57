# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""bench/engines/nodes.py: every figure stands beside its bar, from runs with known answers; bytes of eight nodes are counted without ranks."""

import pytest

pytest.importorskip("torch")

from bench.engines import nodes as bench  # noqa: E402


def everything():
    found = {bench.learning_name(spec, nodes, seed): {"final": 0.96 + 0.001 * seed - (0.002 if nodes == 2 else 0)}
             for spec in bench.LEARNT for nodes in ("off", 2) for seed in bench.SEEDS}
    for name, (plan, _) in bench.TIMED.items():
        found[name] = {"ways": {way: {"seconds": 0.3 if way.endswith((" on", " auto")) else 1.0, "port": 25e3 if way.endswith(" on") else 100e3,
                                      "residual_bytes": 100 if way.endswith(" on") else 400} for way in plan["ways"]}}
    return {**found, "counted": {"flat": 1000, "levels": 120}}


def test_every_figure_has_its_bar():
    made = bench.tables_of(everything())
    assert [row[1:] for row in made["bars"]["rows"]] == [
        ["0.25", "≤ 0.30"], ["0.25", "≤ 0.30"], ["0.25", "≤ 0.10"], ["0.250", "≤ 0.10"], ["0.30", "≤ 0.35"], ["0.30", "≤ 0.35"], ["0.30", "≤ 0.35"],
        ["0.30", "≤ 0.65"], ["0.30", "≤ 0.25"], ["0.30", "≤ 1.02"], ["0.250", "≤ 0.275 (1.1 / 4)"], ["0.30", "≤ 1.02"], ["0.30", "≤ 1.02"],
        ["0.12", "≤ 0.30"], *[["-0.20", "≥ −0.3"]] * 4]
    assert len(made["times"]["rows"]) == 10 and len(made["learning"]["rows"]) == 4


def test_missing_cell_has_no_row():
    found = everything()
    found["hosts"] = found[bench.learning_name("3lc", 2, 1)] = None
    made = bench.tables_of(found)
    assert len(made["bars"]["rows"]) == 6 and len(made["learning"]["rows"]) == 3 and "times" not in made
    assert bench.tables_of({name: None for name in found}) == {}


def test_flat_hosts_send_more_than_nodes():
    counted = bench.counted(nodes=4, ranks=2)
    assert 0 < 2 * counted["levels"] < counted["flat"]
