# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""bench/lib/tables.py: tables from result files, pages that show them, and what may stand in docs/results."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

from bench.lib import tables

RESULTS = ROOT / "docs" / "results"
FOUND = tables.table(["codec", ("ms", "{:.1f}"), ("times", "{:s3} ({:s3}–{:s3})")], [["`a|b`", 1.25, [0.0123, 1, 1234]], ["`c`", None, "not reached"]])
TABLE = "| codec | ms | times |\n|---|---:|---:|\n| `a\\|b` | 1.2 | 0.0123 (1.00–1,234) |\n| `c` | – | not reached |"


# ---- docs/results ----


def test_every_page_matches_its_result_file(capsys):
    assert tables.main(["--check"]) == 0, capsys.readouterr().err


def test_every_result_file_is_small_and_has_a_page():
    found = sorted(RESULTS.glob("*.json"))
    assert found
    for path in found:
        assert path.stat().st_size <= 50_000, f"{path.name}: figures of repeats do not belong here"
        assert json.loads(path.read_text(encoding="utf-8"))["command"] in path.with_suffix(".md").read_text(encoding="utf-8")
    assert all(path.stat().st_size <= 50_000 for path in RESULTS.iterdir() if path.suffix in (".csv", ".cells"))
    assert {path.suffix for path in RESULTS.iterdir()} <= {".json", ".md", ".svg", ".csv", ".cells"}


# ---- a table ----


def test_cells_follow_format_of_their_column():
    assert tables.markdown(FOUND) == TABLE


@pytest.mark.parametrize(("cell", "form", "said"), [(0.0, "{:s3}", "0.00"), (9.876, "{:s3}", "9.88"), (1234.5, "{:s3}", "1,234"), (99.96, "{:d1}", "100.0"),
                                                    (123.4, "{:d1}", "123"), (7, "", "7"), ("text", "{:.1f}", "text"), (None, "{:.1f}", "–")])
def test_figures_may_be_words(cell, form, said):
    assert tables.shown(cell, form) == said


def test_row_of_wrong_length_is_refused():
    with pytest.raises(ValueError):
        tables.table(["a", "b"], [["x"]])


# ---- a page ----


def test_publishing_replaces_tables_and_keeps_prose(tmp_path):
    page = tmp_path / "it.md"
    page.write_text("# It\n\nmake it\n\n<!-- table: one -->\nold\n<!-- end -->\n\nWritten by a person.\n")
    assert tables.publish(tmp_path, "it", "make it", {"one": FOUND}) == page
    once = page.read_text()
    assert once == f"# It\n\nmake it\n\n<!-- table: one -->\n{TABLE}\n<!-- end -->\n\nWritten by a person.\n"
    tables.publish(tmp_path, "it", "make it", {"one": FOUND})
    assert page.read_text() == once
    assert sorted(path.name for path in tmp_path.iterdir()) == ["it.json", "it.md"]


def test_new_page_names_its_command_and_has_all_tables(tmp_path):
    text = tables.publish(tmp_path, "new", "make new", {"one": FOUND}).read_text()
    assert text == f"# new\n\n```\nmake new\n```\n\n## One\n\n<!-- table: one -->\n{TABLE}\n<!-- end -->\n"


def test_optional_table_stays_if_not_given(tmp_path):
    tables.publish(tmp_path, "it", "make it", {"one": FOUND, "two": FOUND})
    page = tables.publish(tmp_path, "it", "make it", {"two": FOUND}, keep=True)
    assert page.read_text().count(TABLE) == 2
    tables.publish(tmp_path, "it", "make it", {"two": FOUND})
    assert page.read_text().count(TABLE) == 1 and "<!-- table: one -->\nNot measured.\n<!-- end -->" in page.read_text()


def test_check_fails_on_differences_and_writes_nothing(tmp_path, capsys):
    page = tables.publish(tmp_path, "it", "make it", {"one": FOUND})
    assert tables.main(["--check", str(tmp_path)]) == 0
    changed = page.read_text().replace("1.2 |", "1.3 |")
    page.write_text(changed)
    assert tables.main(["--check", str(tmp_path)]) == 1 and "it.md" in capsys.readouterr().err
    assert page.read_text() == changed
    assert tables.main([str(tmp_path)]) == 0 and tables.main(["--check", str(tmp_path)]) == 0
    assert TABLE in page.read_text()
