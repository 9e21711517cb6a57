# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Documents against the code: links, the tree, the layer table, error numbers, codec pages, decisions, named tests; English, columns."""

import importlib.machinery
import importlib.util
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "tests" / "golden" / "README.md",
                ROOT / "lab" / "README.md"])


def text_of(*parts):
    return ROOT.joinpath(*parts).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page):
    prose = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        where = page.parent / file if file else page
        assert where.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", where.read_text(encoding="utf-8"), re.M)
            assert anchor in {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}, target


def loaded(script):
    """A script of scripts/ as a module."""
    loader = importlib.machinery.SourceFileLoader(script, str(ROOT / "scripts" / script))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(script, loader))
    loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_prose_fits_120_columns(page):
    text = page.read_text(encoding="utf-8")
    assert loaded("wrap").wrapped(text) == text, "run scripts/wrap"


def test_wrapping_leaves_tables_code_and_links():
    words, code, link = "word " * 29 + "word", "`" + "x " * 40 + "x`", "[" + "text " * 9 + "](https://example.org/" + "x" * 30 + ")"
    page = f"# {words}\n\n| {words} |\n\n```\n{words}\n```\n\n- {words} - {code} {link}\n  - {words}\n> {words}\n\n1. short\n   lines\n"
    after = loaded("wrap").wrapped(page)
    assert f"# {words}\n" in after and f"| {words} |" in after and f"```\n{words}\n```" in after
    assert code in after and link in after and "1. short\n   lines\n" in after
    assert "\n- word" in after and "\n  word" in after and "\n  - word" in after and "\n    word" in after and "\n> word" in after
    dash = loaded("wrap").wrapped("word " * 22 + "shortened - more")
    assert dash.endswith("word\nshortened - more"), "a dash in prose begins no item"
    assert re.sub(r"[\s>]+", " ", after) == re.sub(r"[\s>]+", " ", page) and loaded("wrap").wrapped(after) == after


def layer_table():
    """ARCHITECTURE.md's rows as module -> modules that it may include."""
    rows = re.findall(r"^\| \d \| `([\w/]+)` \| (.*?) \|", text_of("ARCHITECTURE.md"), re.M)
    return {module: re.findall(r"`([\w/]+)`", may) for module, may in rows}


def test_layer_table_matches_check_layers():
    assert layer_table() == loaded("check_layers").MAY_INCLUDE


def test_layer_table_matches_cmake():
    """Modules without a source yet are in the table only."""
    lines = re.findall(r"^laconic_module\(([\w/]+)(?:\s+DEPS ([\w/ ]+))?\)", text_of("CMakeLists.txt"), re.M)
    linked = {module: deps.split() for module, deps in lines}
    table = {module: [m for m in may if m in linked] for module, may in layer_table().items() if module in linked}
    assert linked == table


def folders_in_tree():
    """The folders of ARCHITECTURE.md's tree, as paths. A line names one, or several siblings."""
    block = re.search(r"```tree\n(.*?)```", text_of("ARCHITECTURE.md"), re.S)[1]
    found, above = set(), []
    for line in block.splitlines():
        indent, names = re.match(r"( *)(\w+/(?: \w+/)*)", line).groups()
        for name in names.split():
            above = [*above[: len(indent) // 2], name.rstrip("/")]
            found.add("/".join(above))
    return found


def folders_on_disk():
    """Folders that hold files of the project: two levels deep, three in src/."""
    ignored = {line.rstrip("/") for line in text_of(".gitignore").splitlines()}  # "/name": in the root only
    found, todo = set(), [(ROOT, 2)]
    while todo:
        folder, depth = todo.pop()
        for path in (p for p in folder.iterdir() if p.is_dir()):
            name = path.relative_to(ROOT).as_posix()
            if path.name.startswith(".") or {path.name, f"/{name}"} & ignored or name in {"venv", "shared"}:
                continue
            if not any(p.is_file() and "__pycache__" not in p.parts for p in path.rglob("*")):
                continue
            found.add(name)
            if depth > 1:
                todo.append((path, 2 if name == "src" else depth - 1))
    return found


def test_tree_matches_disk():
    assert folders_in_tree() == folders_on_disk()


def test_errors_are_all_documented():
    enum = re.search(r"enum class Errc.*?\{(.*?)\};", text_of("include", "laconic", "error.h"), re.S)[1]
    codes = {(name, int(number)) for name, number in re.findall(r"(\w+) = (\d+)", enum)}
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \|", text_of("docs", "format", "ERRORS.md"), re.M)
    assert {(name, int(number)) for number, name in rows} == codes


def test_every_codec_has_a_page_with_its_number():
    cards = {}
    for header in (ROOT / "src" / "codecs").rglob("*.h"):
        for name, number in re.findall(r'CodecInfo\s+info\{\s*"(\w+)",\s*(\d+),', header.read_text(encoding="utf-8")):
            cards[name] = int(number)
    assert len(cards) >= 9
    pages = {page.stem for page in (ROOT / "docs" / "format" / "codecs").glob("*.md")}
    assert pages == set(cards)
    for name, number in cards.items():
        page = text_of("docs", "format", "codecs", f"{name}.md")
        assert re.search(rf"codec id, payload version \| {number}, \d+ \|", page, re.I), f"{name} has number {number}"
    assert len(set(cards.values())) == len(cards), "two codecs with one number"


def test_decisions_are_numbered_without_a_gap():
    files = sorted(p.name for p in (ROOT / "docs" / "decisions").glob("0*.md"))
    assert [int(name[:4]) for name in files] == list(range(1, len(files) + 1))
    index = text_of("docs", "decisions", "README.md")
    for name in files:
        assert f"({name})" in index
        assert text_of("docs", "decisions", name).startswith(f"# {name[:4]} ")


def test_decisions_are_short():
    """A decision has its reasons and its consequence. The commit has what was measured."""
    for page in sorted((ROOT / "docs" / "decisions").glob("0*.md")):
        assert len(page.read_text(encoding="utf-8").splitlines()) <= 40, page.name


def test_named_tests_exist():
    """`Suite.Name` and `python/tests/file.py::test` in the documents."""
    sources = "".join(p.read_text(encoding="utf-8") for folder in ("tests", "lab/tests")
                      for p in (ROOT / folder).rglob("*_test.cc"))
    known = {f"{suite}.{name}" for suite, name in re.findall(r"\bTEST(?:_P|_F)?\((\w+), (\w+)\)", sources)}
    suites = {name.split(".")[0] for name in known}
    for page in PAGES:
        for name in re.findall(r"`([A-Z]\w+\.[A-Za-z]\w+)`", page.read_text(encoding="utf-8")):
            suite, test = name.split(".")
            like_a_test = test[0].isupper() or (suite in suites and "_" in test)
            assert name in known or not like_a_test, f"{page.name} names {name}"
        for file, name in re.findall(r"`([\w/]+\.py)::(test_\w+)`", page.read_text(encoding="utf-8")):
            where = file if "/" in file else f"python/tests/{file}"
            assert f"def {name}(" in text_of(where), f"{file}::{name}"


def test_every_grace_defect_has_its_test():
    """docs/guide/methods.md numbers them; test_named_tests_exist knows whether the tests are there."""
    rows = re.findall(r"^\| (\d+) \| (.+) \| (.+) \|$", text_of("docs", "guide", "methods.md"), flags=re.M)
    assert [int(number) for number, _, _ in rows] == list(range(1, 23))
    for number, _, tests in rows:
        assert f"Grace{int(number):02}" in tests or f"grace{int(number):02}" in tests, number


#: what a native reader stumbles over, and what to write
ENGLISH = {
    r"\bthe own\b": "its own, this rank's",
    r"\bfor ever\b": "for good, always",
    r"\banew\b": "again",
    r"\balike\b": "the same on all ranks",
    r"\b(?:say|says|said) so\b": "say what is said",
    r"\bwhoever\b": "any rank that",
    r"\bsentences?\b": "message",
    r"\bDESIGN\b|\bROADMAP\b": "a document of this repository",
    r"\btime-outs?\b": "timeout",
}
#: (path, phrase) that mean something else: two things that resemble each other, a variable, a quotation
ENGLISH_EXCEPTIONS = {
    ("CONTRIBUTING.md", "time-out"),
    ("include/laconic/laconic.h", "says so"),
    ("python/tests/test_errors.py", "says so"),
    ("python/tests/test_run.py", "sentence"),
    ("tests/distributed/capacity_test.cc", "alike"),
    ("tests/distributed/exchange_test.cc", "sentences"),
    ("tests/unit/session/agreement_test.cc", "sentence"),
    ("tools/gradients.h", "alike"),
}
TEXT = {".md", ".h", ".cc", ".c", ".py", ".cmake", ".txt", ".toml", ".sh", ""}


def texts():
    """Tracked files that people write and read; without git, those of the folders that hold them."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split("\n")
    if len(listed) < 2:
        folders = sorted(name for name in folders_on_disk() if "/" not in name)
        listed = [p.relative_to(ROOT).as_posix() for folder in folders for p in (ROOT / folder).rglob("*")] + \
                 [p.name for p in ROOT.iterdir()]
    skipped = ("docs/results/", "tests/fuzz/corpus/", "tests/golden/v1/", "tests/scripts/test_docs.py", "LICENSE")
    for name in listed:
        path = ROOT / name
        if path.suffix in TEXT and not name.startswith(skipped) and path.is_file() and "__pycache__" not in name:
            yield name, path.read_text(encoding="utf-8")


def test_english_avoids_listed_words():
    found, used = [], set()
    for name, text in texts():
        for pattern, better in ENGLISH.items():
            for hit in re.finditer(pattern, text, re.I if pattern.islower() else 0):
                if (name, hit[0].lower()) in ENGLISH_EXCEPTIONS:
                    used.add((name, hit[0].lower()))
                else:
                    found.append(f"{name}:{text.count(chr(10), 0, hit.start()) + 1}: '{hit[0]}': {better}")
    assert not found, "\n".join(found)
    assert used == ENGLISH_EXCEPTIONS, f"exceptions without need: {sorted(ENGLISH_EXCEPTIONS - used)}"


def test_comment_lines_fit():
    """clang-format lays out code in 100 columns and leaves comments as they are."""
    long = [f"{name}:{number}" for name, text in texts() if name.endswith((".h", ".cc")) and "/templates/" not in name
            for number, line in enumerate(text.splitlines(), 1) if len(line) > 100]
    assert not long, "\n".join(long)


def test_lab_stands_alone():
    """Its sources include each other, what a system or a registry package brings, and of Laconic what its README names."""
    foreign = set()
    sources = [*(ROOT / "lab").rglob("*.cc"), *(ROOT / "lab").rglob("*.h")]
    assert len(sources) > 30
    for path in sources:
        for header in re.findall(r'^#include "(.+)"', path.read_text(encoding="utf-8"), re.M):
            if header != "lab/lab.h" and not (path.parent / header).is_file():
                foreign.add(header)
    assert foreign == {"laconic/error.h", "base/json_text.h", "base/json_reader.h"}


def test_lab_guide_names_every_source():
    guide = text_of("lab", "README.md").split("## Working on it")[1]
    for path in (ROOT / "lab" / "src").glob("*.h"):
        assert re.search(rf"\b{path.stem}\b", guide), path.name
