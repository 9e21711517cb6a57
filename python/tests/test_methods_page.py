# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""docs/guide/methods.md: a row for every codec of this build, in its class."""

from __future__ import annotations

import re
from pathlib import Path

import laconic

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guide"


def rows() -> dict[str, list[str]]:
    lines = [line for line in (GUIDE / "methods.md").read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    split = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert len({cells[0] for cells in split}) == len(split), "a codec has two rows"
    return {cells[0].strip("`"): cells[1:] for cells in split}


def test_every_codec_has_a_row_in_its_class():
    table, listed = rows(), laconic.codecs()
    assert listed.keys() <= table.keys(), listed.keys() - table.keys()
    for name, entry in listed.items():
        assert table[name][0] == entry["class"], name


def test_rows_match_contracts():
    table, words = rows(), {"residual": "residual", "ema": "running mean", "momentum": "momentum"}
    for name, entry in laconic.codecs().items():
        contract, (memory, meet, zeros) = entry["contract"], table[name][5:8]
        default = contract["memory_default"]
        assert memory.startswith(words[default] if default != "none" else "–" if contract["feedback"] == "never" else "(residual)"), name
        assert zeros == {True: "yes", False: "no"}[entry["zero_stays_zero"]], name
        assert meet == {"linear": "sum", "none": "frames", "set_union": "union", "vote": "vote"}[contract["merge"]], name


def test_codec_choice_page_names_only_listed_methods():
    named = set(re.findall(r"`([a-z0-9]+)(?::[^`]*)?`", (GUIDE / "which-codec.md").read_text(encoding="utf-8")))
    known = rows().keys()
    assert {name for name in named if name in known} >= {"3lc", "powersgd", "topk", "signsgd", "dgc"}
    assert named - known <= {"ratio"}, named - known
