# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""scripts/mutants on a tree of one shell script, and that the patches of tests/mutants fit the tree of today."""

import importlib.machinery
import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PATCHES = sorted((ROOT / "tests" / "mutants").glob("*.patch"))


@pytest.fixture(scope="module")
def script():
    loader = importlib.machinery.SourceFileLoader("mutants", str(ROOT / "scripts" / "mutants"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("mutants", loader))
    sys.modules["mutants"] = module  # dataclasses look their module up
    loader.exec_module(module)
    yield module
    del sys.modules["mutants"]


# ---- the patches ----


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)
def test_patch_applies_and_is_one_fault(patch, script):
    mutant = script.read_patch(patch)
    assert mutant.fault.endswith("."), "a patch begins with what is wrong, in words that end with a full stop"
    assert mutant.kills, "name the test that should notice"
    text = patch.read_text(encoding="utf-8")
    assert len(re.findall(r"^@@ ", text, re.M)) == 1
    assert len(re.findall(r"^\+(?!\+\+ )", text, re.M)) <= 1, "one line"
    done = subprocess.run(["git", "apply", "--check", str(patch)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_page_lists_every_patch_as_killed(script):
    rows = script.last_verdicts()
    del rows["mutant"]  # the table's head
    assert [(name, fault) for name, (fault, _) in rows.items()] == [(m.name, m.fault) for m in script.find_patches([])]
    assert [name for name, (_, verdict) in rows.items() if not verdict.startswith("`")] == []


def test_what_a_test_launches_is_built(script):
    texts = [text for mutant in script.find_patches([]) for text in mutant.kills if text.startswith("pytest ")]
    launching = [text for text in texts if re.search(r'BUILD / "bin"|mpi_launchers', (ROOT / text.split()[1].partition("::")[0]).read_text(encoding="utf-8"))]
    assert len(launching) > 5
    assert [text for text in launching if "laconic_launched" not in script.command(text)[0]] == []


# ---- the script ----

BUILD = """#!/bin/sh
mkdir -p build/release/bin
sh -n lib.sh || { echo 'lib.sh: error: syntax'; exit 1; }
cp lib.sh build/release/bin/test_lib
chmod +x build/release/bin/test_lib
"""
LIB = """#!/bin/sh
answer=42
unseen=1
test "$answer" = 42 && exit 0
echo '[ RUN      ] Lib.Answers'
echo '[  FAILED  ] Lib.Answers (0 ms)'
exit 1
"""
PATCH = """What is wrong.
# kill: test_lib
diff --git a/lib.sh b/lib.sh
--- a/lib.sh
+++ b/lib.sh
@@ -1,4 +1,4 @@
 #!/bin/sh
-answer=42
+answer={}
 unseen=1
 test "$answer" = 42 && exit 0
"""


@pytest.fixture
def tree(tmp_path):
    """A project whose library, build and test are one shell script."""
    for name, text in {"scripts/build": BUILD, "lib.sh": LIB, "docs/results/old.md": ""}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    (tmp_path / ".gitignore").write_text("/build/\n")
    (tmp_path / "tests" / "mutants").mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / "mutants", tmp_path / "scripts" / "mutants")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    return tmp_path


def put(tree, name, text):
    (tree / "tests" / "mutants" / f"{name}.patch").write_text(text)


def mutants(tree, *names):
    # "All quick tests" of this tree: ctest and pytest, which find nothing wrong with it.
    bin_ = tree / "build" / "stubs"
    bin_.mkdir(parents=True, exist_ok=True)
    for program in ("ctest", "python"):
        (bin_ / program).write_text("#!/bin/sh\nexit 0\n")
        (bin_ / program).chmod(0o755)
    venv = tree / ".venv" / "bin"
    venv.mkdir(parents=True, exist_ok=True)
    shutil.copy(bin_ / "python", venv / "python")
    done = subprocess.run([sys.executable, tree / "scripts" / "mutants", *names], capture_output=True, text=True, timeout=60,
                          env={"PATH": f"{bin_}:/usr/bin:/bin"})
    return done.returncode, done.stdout + done.stderr


def test_a_killed_mutant_is_written_down(tree):
    put(tree, "01-answer", PATCH.format(41))
    status, out = mutants(tree)
    assert (status, out.splitlines()[-1]) == (0, "1 of 1 killed"), out
    assert "| 01-answer | What is wrong. | `Lib.Answers` |" in (tree / "docs/results/mutants.md").read_text()
    assert (tree / "lib.sh").read_text() == LIB  # the tree itself is never touched


def test_a_survivor_fails_the_run(tree):
    put(tree, "01-answer", PATCH.format(41))
    put(tree, "02-unseen", PATCH.format("42  # the same"))
    status, out = mutants(tree)
    assert status == 1
    assert "02-unseen: SURVIVES" in out
    assert "02-unseen | What is wrong. | **survives**" in (tree / "docs/results/mutants.md").read_text()


def test_a_patch_that_does_not_apply_fails_the_run(tree):
    put(tree, "01-old", PATCH.format(41).replace("-answer=42", "-answer=40"))
    status, out = mutants(tree)
    assert status == 1
    assert "01-old: does not apply" in out
    assert not (tree / "docs/results/mutants.md").exists()


def test_a_mutant_that_does_not_compile_is_none(tree):
    put(tree, "01-broken", PATCH.format("$(("))
    status, out = mutants(tree)
    assert status == 1
    assert "01-broken: does not compile: lib.sh: error: syntax" in out


def test_tests_that_fail_anyway_prove_nothing(tree):
    put(tree, "01-answer", PATCH.format(41))
    (tree / "lib.sh").write_text(LIB.replace("= 42 ]", "= 43 ]").replace('"$answer" = 42', '"$answer" = 43'))
    status, out = mutants(tree)
    assert status == 1
    assert "fails without any mutant: Lib.Answers" in out


def test_names_choose_patches_and_unknown_ones_are_refused(tree):
    put(tree, "01-answer", PATCH.format(41))
    put(tree, "02-unseen", PATCH.format("42  # the same"))
    status, out = mutants(tree, "answer")
    assert (status, out.splitlines()[-1]) == (0, "1 of 1 killed"), out
    page = (tree / "docs/results/mutants.md").read_text()
    assert "01-answer | What is wrong. | `Lib.Answers`" in page
    assert "02-unseen | What is wrong. | not run yet" in page
    assert mutants(tree, "unseen")[0] == 1
    assert "01-answer | What is wrong. | `Lib.Answers`" in (tree / "docs/results/mutants.md").read_text()  # kept
    status, out = mutants(tree, "nothing")
    assert status == 1
    assert "no patch in tests/mutants is named nothing" in out


@pytest.mark.parametrize(
    ("output", "killer"),
    [
        ("[ RUN      ] A.B\n[  FAILED  ] A.B (3 ms)\n", "A.B"),
        ("[  FAILED  ] All/A.B/topk_2, where GetParam() = 1 (3 ms)\n", "All/A.B/topk_2"),
        ("[ RUN      ] A.A\n[       OK ] A.A (0 ms)\n[ RUN      ] A.B\n", "A.B (crash)"),
        ("..F\nFAILED python/tests/test_x.py::test_y - assert 1\n", "python/tests/test_x.py::test_y"),
        ("The following tests FAILED:\n\t  3 - test_wire (Failed)\n", "test_wire"),
        ("", "test_x (crash)"),
    ],
)
def test_the_test_that_failed_is_found(script, output, killer):
    assert script.killer_in(output, "test_x") == killer
