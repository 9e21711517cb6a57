# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""bench/staging.py: the page says what was seen, and whether it holds."""

import importlib.util
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "bench"))
_spec = importlib.util.spec_from_file_location("staging_bench", ROOT / "bench" / "staging.py")
bench = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(bench)

FOUND = {"extra": {"cpu": 0.04, "staged": 0.06, "memcpy": 0.01, "extra": 2.0},
         "overlap": {"step": 0.1, "copies": 0.08, "sum": 0.2, "elements": 1 << 20, "encode_seconds": 0.06, "decode_seconds": 0.02,
                     "wire_seconds": 0.04, "share": 0.5},
         "threads": {"encode": 1.9, "decode": 1.7, "memcpy": 1.8}}


def bars(page):
    return [[cell.strip() for cell in line.split("|")[2:5]] for line in page.splitlines() if line.startswith("|")][2:]


def test_every_figure_stands_beside_its_bar():
    page = bench.page("pretend", FOUND, {"before": 0.05, "after": 0.05, "ratio": 1.0})
    assert bars(page) == [["2.00", "≤ 3", "yes"], ["0.50", "≤ 0.6", "yes"], ["1.00", "≤ 1.02", "yes"], ["1.90", "≥ 1.6", "yes"],
                          ["1.70", "≥ 1.6", "yes"]]
    assert "nothing about a GPU" in page and "--device pretend --before DIR" in page


def test_what_does_not_hold_is_said_and_hardware_is_not_called_pretend():
    missed = {"extra": {**FOUND["extra"], "extra": 3.1}, "overlap": {**FOUND["overlap"], "share": 0.61},
              "threads": {**FOUND["threads"], "decode": 1.5}}
    page = bench.page("cuda", missed, None)
    assert [verdict for *_, verdict in bars(page)] == ["**no**", "**no**", "yes", "**no**"]
    assert "nothing about a GPU" not in page and "--before" not in page
