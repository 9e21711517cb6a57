# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""A page that names a test as the proof of a claim names one that exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [page for page in sorted((ROOT / "docs").rglob("*.md")) if re.search(r"\btest_\w+", page.read_text(encoding="utf-8"))]
FILES = {path.name: path for folder in ("lab/tests", "python/tests", "tests") for path in (ROOT / folder).rglob("test_*.py")}
FUNCTIONS = {name for path in FILES.values() for name in re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.M)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_tests_exist(page):
    text = page.read_text(encoding="utf-8")
    for file, function in re.findall(r"(test_\w+\.py)(?:::(test_\w+))?", text):
        assert file in FILES, f"{page.name} names {file}"
        if function:
            assert f"\ndef {function}(" in FILES[file].read_text(encoding="utf-8"), f"{file} has no {function}"
    for name in re.findall(r"[`:](test_[a-z0-9_]+)[`\[]", text):
        assert name in FUNCTIONS, f"{page.name} names {name}"
