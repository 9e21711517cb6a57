# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The snippets of README.md and the guide that are marked `<!-- test: ... -->` do what they say.

`<!-- test: run -->` before a fence runs it (sh, python, c, cpp; c and cpp are compiled first), `<!-- test: file NAME -->`
only writes it. The snippets of a page run in their order in one empty folder. The environment variable LACONIC_BUILD names
the build to take, build/release without it.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("LACONIC_BUILD", ROOT / "build" / "release"))
LIBRARY = BUILD / "lib" / "liblaconic.so"
ARCHIVE = BUILD / "lib" / "liblaconic.a"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "guide").glob("*.md"))]
SNIPPET = re.compile(r"^<!-- test: (run|file \S+) -->\n```(\w+)\n(.*?)^```$", re.M | re.S)
#: whose shell and Python snippets tests/install/run runs, with nothing but the package
RUN_INSTALLED = ("README.md", "docs/guide/quickstart.md")
MARKED = [page for page in PAGES if "<!-- test:" in page.read_text(encoding="utf-8")]


def snippets(page):
    """(what to do, language, text), in order."""
    return SNIPPET.findall(page.read_text(encoding="utf-8"))


def environment(folder):
    path = os.pathsep.join([str(BUILD / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "LACONIC_LIBRARY": str(LIBRARY), "LD_LIBRARY_PATH": str(LIBRARY.parent),
            "HOME": str(folder), "OMP_NUM_THREADS": "1"}


def compiled(language, text, folder):
    """The command line of a snippet: compiled if it has to be."""
    source = folder / f"snippet.{'cc' if language == 'cpp' else language}"
    if language in ("c", "cpp"):
        source.write_text(text, encoding="utf-8")
        program = folder / "snippet"
        warnings = ["-Wall", "-Wextra", "-Werror", "-I", ROOT / "include"]
        if language == "c":
            command = [os.environ.get("CC", "cc"), "-std=c99", *warnings, source, "-L", LIBRARY.parent, "-llaconic"]
        else:
            command = [os.environ.get("CXX", "c++"), "-std=c++20", *warnings, source, ARCHIVE, "-pthread", "-ldl"]
        done = subprocess.run([*map(str, command), "-o", str(program)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return [str(program)]
    source.write_text(text, encoding="utf-8")
    return [sys.executable, str(source)] if language == "python" else ["bash", "-euo", "pipefail", str(source)]


def needs(languages, text):
    """Skips with what this machine lacks."""
    if not LIBRARY.exists() or not (BUILD / "bin" / "laconic").exists():
        pytest.skip(f"{BUILD} holds no built library and command")
    if "cpp" in languages and not ARCHIVE.exists():
        pytest.skip(f"{ARCHIVE} is not built")
    for package in ("numpy", "torch"):
        if f"import {package}" in text:
            pytest.importorskip(package)


@pytest.mark.parametrize("page", MARKED, ids=lambda page: page.name)
def test_snippets_run(page, tmp_path):
    found = snippets(page)
    assert len(found) == page.read_text(encoding="utf-8").count("<!-- test:"), "a marker without a fence behind it"
    needs({language for _, language, _ in found}, page.read_text(encoding="utf-8"))
    for what, language, text in found:
        if what != "run":
            (tmp_path / what.split()[1]).write_text(text, encoding="utf-8")
            continue
        if str(page.relative_to(ROOT)) in RUN_INSTALLED and language in ("sh", "python"):
            continue
        command = compiled(language, text, tmp_path)
        done = subprocess.run(command, cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
        assert done.stdout, "a snippet shows something"


def test_pages_have_every_kind():
    assert {language for _, language, _ in snippets(ROOT / "README.md")} == {"sh"}
    assert {language for page in MARKED for _, language, _ in snippets(page)} == {"sh", "python", "c", "cpp"}


def test_readme_diff_matches_quick_start_script():
    """Its two new lines, and those around them, in their order."""
    diff = re.search(r"^```diff\n(.*?)^```$", (ROOT / "README.md").read_text(encoding="utf-8"), re.M | re.S)[1].splitlines()
    assert [line[0] for line in diff if line].count("+") == 2 and {line[0] for line in diff if line} == {"+", " "}
    script = iter(next(text for what, _, text in snippets(ROOT / "docs/guide/quickstart.md") if what == "file train.py").splitlines())
    for line in filter(None, diff):
        assert line[1:] in script, line


def test_first_pages_run_where_installed():
    said = (ROOT / "tests" / "install" / "run").read_text(encoding="utf-8")
    assert f'snippets.py" "$work/exact" {" ".join(RUN_INSTALLED)}\n' in said


def test_first_pages_need_no_numpy():
    """torch does not bring it."""
    for page in RUN_INSTALLED:
        for _, _, text in snippets(ROOT / page):
            assert not re.search(r"\bimport numpy|from numpy|\.numpy\(", text), text
