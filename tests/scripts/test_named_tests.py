# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""A page that names a test as the proof of a claim names one that exists; names of tests have one style."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [page for page in sorted((ROOT / "docs").rglob("*.md")) if re.search(r"\btest_\w+", page.read_text(encoding="utf-8"))]
FOLDERS = ("lab/tests", "python/tests", "tests")
FILES = {path.name: path for folder in FOLDERS for path in (ROOT / folder).rglob("test_*.py")}
FUNCTIONS = {name for path in FILES.values() for name in re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.M)}
LONGEST = 60
#: A name begins with its subject.
NO_SUBJECT = set("""a an the of by in on at to for from with without within under above below behind beside between after before
                    during until where when while whether what who whose which it its they their is are was has have does
                    do can these those this that as also and or but if""".split())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_tests_exist(page):
    text = page.read_text(encoding="utf-8")
    for file, function in re.findall(r"(test_\w+\.py)(?:::(test_\w+))?", text):
        assert file in FILES, f"{page.name} names {file}"
        if function:
            assert f"\ndef {function}(" in FILES[file].read_text(encoding="utf-8"), f"{file} has no {function}"
    for name in re.findall(r"[`:](test_[a-z0-9_]+)[`\[]", text):
        assert name in FUNCTIONS, f"{page.name} names {name}"


def fault(name, style, first):
    """The fault of a test's name, or nothing."""
    if len(name) > LONGEST:
        return f"{len(name)} characters, at most {LONGEST}"
    if not re.fullmatch(style, name):
        return f"not {style}"
    if first.lower() in NO_SUBJECT:
        return f"begins with '{first}', not with its subject"
    return None


def faults_in_cxx(text):
    for name in re.findall(r"^[ \t]*(?:\w+_)?TEST(?:_F|_P)?\(\s*\w+,\s*(\w+)\)", text, re.M):
        yield name, fault(name, r"[A-Z][A-Za-z0-9]*", re.match(r"[A-Z]?[a-z0-9]*", name)[0])


def faults_in_python(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield node.name, fault(node.name, r"test(_[a-z0-9]+)+", node.name.split("_")[1])


def test_names_of_tests_have_subject_and_style():
    found, seen = [], 0
    for folder in FOLDERS:
        for pattern, faults in (("*.cc", faults_in_cxx), ("*.h", faults_in_cxx), ("test_*.py", faults_in_python)):
            for path in (ROOT / folder).rglob(pattern):
                for name, wrong in faults(path.read_text(encoding="utf-8")):
                    seen += 1
                    if wrong:
                        found.append(f"{path.relative_to(ROOT)}: {name}: {wrong}")
    assert not found, "\n".join(found)
    assert seen > 2000


@pytest.mark.parametrize("name, wrong", [
    ("QuorumClosesSumAfterDeadline", None),
    ("BehindTheDeadlineTheQuorumCloses", "begins with 'Behind', not with its subject"),
    ("AClosedSumNeverChanges", "begins with 'A', not with its subject"),
    ("Grace10_Counts", "not [A-Z][A-Za-z0-9]*"),
    ("Q" * 61, "61 characters, at most 60"),
])
def test_faults_of_cxx_names_are_found(name, wrong):
    assert list(faults_in_cxx(f"TEST(Slots, {name}) {{\n")) == [(name, wrong)]


@pytest.mark.parametrize("name, wrong", [
    ("test_killed_rank_ends_no_other", None),
    ("test_what_is_refused", "begins with 'what', not with its subject"),
    ("test_Rank", "not test(_[a-z0-9]+)+"),
    ("test_" + "q" * 56, "61 characters, at most 60"),
])
def test_faults_of_python_names_are_found(name, wrong):
    assert list(faults_in_python(f"def {name}():\n    pass\n")) == [(name, wrong)]
