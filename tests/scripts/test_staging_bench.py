# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""bench/engines/staging.py: every figure is next to its bar."""

import pytest

pytest.importorskip("torch")

from bench.engines import staging as bench  # noqa: E402

FOUND = {"extra": {"cpu": 0.04, "staged": 0.06, "memcpy": 0.01, "extra": 2.0},
         "overlap": {"step": 0.1, "copies": 0.08, "sum": 0.2, "elements": 1 << 20, "encode_seconds": 0.06, "decode_seconds": 0.02,
                     "wire_seconds": 0.04, "share": 0.5},
         "threads": {"encode": 1.9, "decode": 1.7, "memcpy": 1.8}}


def test_every_figure_has_its_bar():
    found = bench.tables_of(FOUND)
    assert [row[1:] for row in found["bars"]["rows"]] == [[2.0, "≤ 3"], [0.5, "≤ 0.6"], [1.9, "≥ 1.6"], [1.7, "≥ 1.6"]]
    times = dict(found["times"]["rows"])
    assert times["a step of eight buckets of 4.0 MiB"] == 100 and times["its codec"] == 80
