# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""scripts/mutants on a tree of one shell script, and that the patches of tests/mutants fit the tree of today."""

import importlib.machinery
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

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


def test_the_page_counts_what_the_data_file_holds(script):
    killers = script.tried.Killers(script.DATA)
    page = script.PAGE.read_text(encoding="utf-8")
    assert ("What else kills them" in page) == bool(killers.mutants)
    if killers.mutants:
        assert "\n".join(killers.paragraph(len(PATCHES))) in page
        assert killers.text() == script.DATA.read_text(encoding="utf-8")
        assert script.DATA.stat().st_size <= script.tried.MOST_BYTES
    hashes = {m.number: m.hash for m in script.find_patches([])}
    assert {number: hashes.get(number) for number in killers.mutants} == {number: v.patch for number, v in killers.mutants.items()}


def test_what_a_test_launches_is_built(script):
    texts = [text for mutant in script.find_patches([]) for text in mutant.kills if text.startswith("pytest ")]
    launching = [text for text in texts if re.search(r'BUILD / "bin"|mpi_launchers', (ROOT / text.split()[1].partition("::")[0]).read_text(encoding="utf-8"))]
    assert len(launching) > 5
    assert [text for text in launching if "laconic_launched" not in script.command(text)[0]] == []


# ---- the script ----

BUILD = """#!/bin/sh
mkdir -p build/release/bin
sh -n lib.cc || { echo 'lib.cc: error: syntax'; exit 1; }
cp lib.cc build/release/bin/test_lib
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
diff --git a/lib.cc b/lib.cc
--- a/lib.cc
+++ b/lib.cc
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
    for name, text in {"scripts/build": BUILD, "lib.cc": LIB, "docs/results/old.md": ""}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    (tmp_path / ".gitignore").write_text("/build/\n")
    (tmp_path / "tests" / "mutants").mkdir(parents=True)
    for name in ("mutants", "mutant_killers.py"):
        shutil.copy(ROOT / "scripts" / name, tmp_path / "scripts" / name)
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
    assert (tree / "lib.cc").read_text() == LIB  # the tree itself is never touched


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
    assert "01-broken: does not compile: lib.cc: error: syntax" in out


def test_tests_that_fail_anyway_prove_nothing(tree):
    put(tree, "01-answer", PATCH.format(41))
    (tree / "lib.cc").write_text(LIB.replace("= 42 ]", "= 43 ]").replace('"$answer" = 42', '"$answer" = 43'))
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


# ---- all killers ----


def test_the_data_file_comes_back_and_is_bounded(script, tmp_path, monkeypatch):
    tried = script.tried
    killers = tried.Killers(tmp_path / "killers.json")
    killers.add("2", "aa", {"test_a A", "test_a B", "t.py"}, {"test_a A": 1, "test_a B": 1, "t.py": 12})
    killers.add("10", "bb", {"test_a B"}, {})
    killers.add("1", "cc", {"test_a B"}, {"test_a B": 2})
    killers.save()
    again = tried.Killers(tmp_path / "killers.json")
    assert (again.mutants, again.parts) == (killers.mutants, killers.parts)
    assert list(again.mutants) == ["1", "2", "10"]
    assert again.counts() == {"mutants": 3, "alive": 1, "by_one": 1, "by_few": 1, "by_many": 0, "parts": 3, "killers": 3, "needed": 1}
    monkeypatch.setattr(tried, "MOST_BYTES", 100)
    with pytest.raises(SystemExit, match="more than 100"):
        again.save()


def test_the_data_file_has_space_for_every_mutant(script, tmp_path):
    killers = script.tried.Killers(tmp_path / "killers.json")
    parts = [f"test_distributed Suite{n:03}OfSomeLength" for n in range(300)]
    for place, m in enumerate(script.find_patches([])):  # a quarter dies by many, the others by up to eight
        killed = parts[place % 100:place % 100 + 80] if place % 4 == 0 else parts[place % 50::40]
        killers.add(m.number, m.hash, set(parts), dict.fromkeys(killed, 250))
    killers.save()
    assert len(script.tried.Killers(killers.path).mutants) == len(PATCHES)


def test_a_patch_that_has_changed_is_forgotten(script):
    killers = script.tried.Killers(Path("/nowhere"))
    killers.mutants = {number: script.tried.Verdict(patch, 0, {}) for number, patch in (("1", "aa"), ("2", "bb"), ("3", "cc"))}
    killers.keep_only([SimpleNamespace(number="1", hash="aa"), SimpleNamespace(number="2", hash="xx")])
    assert list(killers.mutants) == ["1"]


def test_a_part_whose_kills_another_has_too_is_dominated(script):
    killers = script.tried.Killers(Path("/nowhere"))
    for number, parts in enumerate(["a b", "a b c", "c", "d e", "d e"]):
        killers.mutants[str(number)] = script.tried.Verdict("", 0, dict.fromkeys(parts.split(), 1))
    assert killers.dominated() == {"b": "a", "e": "d"}  # of two equal ones the first stays


def test_the_sample_is_fixed_and_every_folder_has_its_share(script):
    everything = script.find_patches([])
    sample = script.tried.sample(everything, 80)
    assert len(sample) == 80
    assert sample == script.tried.sample(everything[::-1], 80)[::-1]
    sizes = Counter(script.tried.folder_of(m) for m in everything)
    shares = Counter(script.tried.folder_of(m) for m in sample)
    assert [folder for folder, size in sizes.items() if abs(shares[folder] - size * 80 / len(everything)) > 1] == []
    less_one = [m for m in everything if m is not sample[3]]
    assert len({m.name for m in script.tried.sample(less_one, 80)} & {m.name for m in sample}) > 70


def test_seven_weeks_have_every_mutant_once(script):
    everything = script.find_patches([])
    weeks = [script.tried.seventh(everything, week) for week in range(100, 107)]
    assert sorted(m.name for week in weeks for m in week) == sorted(m.name for m in everything)
    assert script.tried.seventh(everything, 107) == weeks[0]


def test_a_line_is_executed_by_who_ran_it(script):
    parts = {"a": {"f.cc": {3, 4, 9}}, "b": {"f.cc": {9}}, "c": {"g.cc": {4}}}
    code = {"f.cc": {3, 4, 9}, "g.cc": {4}}

    def ran(line, indented, file="f.cc"):
        return script.tried.lines_by_part(parts, code, {file: [line]}, indented)

    assert ran(4, True) == {"a"}
    assert ran(9, True) == {"a", "b"}
    assert ran(6, True) == {"a"}, "the second line of the statement in line 4"
    assert ran(1, False) == {"a", "b"}, "a constant of the file"
    assert ran(1, False, "constants.h") == {"a", "b", "c"}, "a header without code"


def test_suites_that_a_patch_names_run_in_any_case(script):
    program = script.tried.Program("test_x", ["test_x"], {"test_x Dense": ["Dense.*"]})
    named = [part for part in ("test_x Dense", "test_x DenseRules", "test_x Other")
             if script.tried.names(["test_x --gtest_filter=*Dense*:All/Set.Once*"], program, part)]
    assert named == ["test_x Dense", "test_x DenseRules"]
    assert not script.tried.names(["test_x"], program, "test_x Other")
    assert script.tried.names(["frame_fuzz"], script.tried.Program("frame_fuzz", ["frame_fuzz"]), "frame_fuzz")


def test_changed_lines_are_those_of_the_old_file(script):
    assert script.tried.changed_lines(PATCH.format(41)) == {"lib.cc": [2]}
    added = "--- a/x.cc\n+++ b/x.cc\n@@ -7,2 +7,3 @@\n one\n+two\n three\n"
    assert script.tried.changed_lines(added) == {"x.cc": [7, 8]}


GTEST = """#!/bin/sh
case "$1" in *A.*) echo '[ RUN      ] All/A.B/0'; echo '[  FAILED  ] All/A.B/0, where GetParam() = 1 (0 ms)' ;; esac
case "$1" in *C.*) echo '[ RUN      ] C.D'; kill -9 $$ ;; esac
case "$1" in *E.*) echo '[ RUN      ] E.F'; echo '[       OK ] E.F (0 ms)'; echo '[ RUN      ] E.G'; echo '[  FAILED  ] E.G (0 ms)' ;; esac
echo '[==========] 4 tests from 3 test suites ran. (0 ms total)'
exit 1
"""


def test_suites_behind_one_that_crashes_still_run(script, tmp_path):
    path = tmp_path / "test_x"
    path.write_text(GTEST)
    path.chmod(0o755)
    listed = "Running main() from gtest_main.cc\nAll/A.\n  B/0  # GetParam() = 1\nC.\n  D\nE.\n  F\n  G\n"
    suites = script.tried.suites_of("test_x", listed)
    assert suites == {"test_x A": ["All/A.*"], "test_x C": ["C.*"], "test_x E": ["E.*"]}
    failed = script.tried.run_program(script.tried.Program("test_x", [str(path)], suites), list(suites), 10)
    assert failed == {"test_x A": {"All/A.B/0"}, "test_x C": {"C.D"}, "test_x E": {"E.G"}}


def test_a_command_that_does_not_end_is_ended_with_its_children(script):
    status, output = script.tried.run_for(["sh", "-c", "echo begun; sleep 60 & sleep 60"], 0.5)
    assert (status, output) == (None, "begun\n")


COVERED_BUILD = """#!/bin/sh
echo "built $*" >> ../built
mkdir -p build/$1/bin
cp lib.cc build/$1/bin/test_lib
chmod +x build/$1/bin/test_lib
"""
# Suite Lib executes line 2, Other line 3: which of them runs is in the filter.
COVERED_LIB = """#!/bin/sh
answer=42
unseen=1
if [ "$1" = --gtest_list_tests ]; then echo Lib.; echo '  Answers'; echo Other.; echo '  Passes'; exit 0; fi
echo "$1" >> "${0%/build/*}/../ran"
if [ "$GCOV_PREFIX" ]; then echo "$1" > "$GCOV_PREFIX/lib.gcda"; fi
case "$1" in *Lib.*) test "$answer" = 42 || { echo '[ RUN      ] Lib.Answers'; echo '[  FAILED  ] Lib.Answers (0 ms)'; failed=1; } ;; esac
case "$1" in *Other.*) test "$unseen" = 1 || { echo '[ RUN      ] Other.Passes'; echo '[  FAILED  ] Other.Passes (0 ms)'; failed=1; } ;; esac
echo '[==========] 2 tests from 2 test suites ran. (0 ms total)'
exit ${failed-0}
"""
CTEST = """#!/bin/sh
cat <<END
{"tests": [{"name": "test_lib", "command": ["$PWD/build/release/bin/test_lib", "--gtest_brief=1"], "properties": []},
           {"name": "example_a", "command": ["$PWD/build/release/bin/test_lib"], "properties": [{"name": "LABELS", "value": ["example"]}]}]}
END
"""
GCOV = """#!/bin/sh
for file in "$@"; do last=$file; done
line=2; grep -q Other "$last" && line=3
echo '{"files": [{"file": "../../lib.cc", "lines": [{"line_number": '$line', "count": 1}, {"line_number": 8, "count": 0}]}]}'
"""
UNSEEN = """What nobody sees.
# kill: test_lib
diff --git a/lib.cc b/lib.cc
--- a/lib.cc
+++ b/lib.cc
@@ -2,4 +2,4 @@
 answer=42
-unseen=1
+unseen={}
 if [ "$1" = --gtest_list_tests ]; then echo Lib.; echo '  Answers'; echo Other.; echo '  Passes'; exit 0; fi
 echo "$1" >> "${{0%/build/*}}/../ran"
"""
COVERED_HUNK = """@@ -1,4 +1,4 @@
 #!/bin/sh
-answer=42
+answer={}
 unseen=1
 if [ "$1" = --gtest_list_tests ]; then echo Lib.; echo '  Answers'; echo Other.; echo '  Passes'; exit 0; fi
"""
PY_TEST = "import lib\n\n\ndef test_answer():\n    assert lib.answer() == 42\n"
PY_PATCH = """Python answers something else.
# kill: pytest tests/test_lib.py
diff --git a/python/lib.py b/python/lib.py
--- a/python/lib.py
+++ b/python/lib.py
@@ -1,2 +1,2 @@
 def answer():
-    return 42
+    return 41
"""


@pytest.fixture
def covered_tree(tree):
    """A project of a program with two suites, and of a module that one of two test files calls."""
    files = {"scripts/build": COVERED_BUILD, "lib.cc": COVERED_LIB, "python/lib.py": "def answer():\n    return 42\n",
             "tests/test_lib.py": PY_TEST, "tests/test_other.py": "def test_nothing():\n    pass\n"}
    for name, text in files.items():
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    return tree


def all_killers(tree, *names):
    bin_, venv = tree / "build" / "stubs", tree / ".venv" / "bin"
    for path, text in ((bin_ / "ctest", CTEST), (bin_ / "gcov", GCOV), (venv / "python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    ran = tree / "build" / "ran"
    ran.write_text("")
    done = subprocess.run([sys.executable, tree / "scripts" / "mutants", "--all-killers", *names], capture_output=True, text=True, timeout=120,
                          env={"PATH": f"{bin_}:/usr/bin:/bin", "JOBS": "1"})
    return done.returncode, done.stdout + done.stderr, ran.read_text().splitlines()


def killed(tree):
    return {number: (v[1], v[2]) for number, v in json.loads((tree / "tests/mutants/killers.json").read_text())["mutants"].items()}


def test_a_mutant_meets_the_suites_that_execute_its_line(covered_tree):
    put(covered_tree, "01-answer", PATCH.format(41).split("@@")[0] + COVERED_HUNK.format(41))
    put(covered_tree, "02-unseen", UNSEEN.format(2))
    status, out, ran = all_killers(covered_tree)
    assert status == 0, out
    assert ran == ["--gtest_filter=Lib.*", "--gtest_filter=Other.*"] * 2, "once for the coverage, once for a mutant each"
    data = json.loads((covered_tree / "tests/mutants/killers.json").read_text())
    assert data["parts"] == ["test_lib Lib", "test_lib Other"]
    assert killed(covered_tree) == {"01": (1, "0"), "02": (1, "1")}
    page = (covered_tree / "docs/results/mutants.md").read_text()
    assert "2 of 2 mutants so far: 2 are killed by one suite or file alone" in page


def test_what_has_been_tried_is_left_out_until_its_patch_changes(covered_tree):
    put(covered_tree, "01-answer", PATCH.format(41).split("@@")[0] + COVERED_HUNK.format(41))
    put(covered_tree, "02-unseen", UNSEEN.format(2))
    assert all_killers(covered_tree, "answer")[0] == 0
    status, out, ran = all_killers(covered_tree)
    assert (status, ran) == (0, ["--gtest_filter=Other.*"]), "the coverage is known, and so is 01\n" + out
    put(covered_tree, "01-answer", PATCH.format(41).split("@@")[0] + COVERED_HUNK.format(43))
    assert all_killers(covered_tree)[2] == ["--gtest_filter=Lib.*"]
    assert all_killers(covered_tree)[2] == []


def test_a_mutant_that_no_suite_kills_fails_the_run_and_is_counted(covered_tree):
    put(covered_tree, "02-unseen", UNSEEN.format("1  # the same"))
    status, out, _ = all_killers(covered_tree)
    assert status == 1
    assert "02-unseen: SURVIVES" in out
    assert killed(covered_tree) == {"02": (1, "")}


def test_a_line_of_python_meets_the_files_that_execute_it(covered_tree):
    (covered_tree / "conftest.py").write_text("")
    put(covered_tree, "03-python", PY_PATCH)
    status, out, ran = all_killers(covered_tree)
    assert status == 0, out
    assert json.loads((covered_tree / "tests/mutants/killers.json").read_text())["parts"] == ["tests/test_lib.py"]
    assert killed(covered_tree) == {"03": (1, "0")}
