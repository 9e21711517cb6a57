# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""scripts/mutants on a tree of one shell script, and that the tables of tests/mutants fit the tree of today."""

import importlib.machinery
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def script():
    loader = importlib.machinery.SourceFileLoader("mutants", str(ROOT / "scripts" / "mutants"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("mutants", loader))
    sys.modules["mutants"] = module  # dataclasses look their module up
    loader.exec_module(module)
    yield module
    del sys.modules["mutants"]


# ---- the tables ----


def test_each_mutant_is_one_fault_found_once_in_its_file(script):
    wrong = {}
    for m in script.find_mutants():
        try:
            text = m.text(ROOT)
            changed = m.put_into(text)
        except script.NoMutant as trouble:
            wrong[m.name] = str(trouble)
            continue
        added = Counter(changed.splitlines()) - Counter(text.splitlines())
        if changed == text or added.total() > 1:
            wrong[m.name] = f"{added.total()} lines are new: one fault is one line that is changed, added or gone"
        elif not (m.fault.endswith(".") and m.kill):
            wrong[m.name] = "say in `fault` what is wrong, with a full stop, and name the test that should notice in `kill`"
    assert wrong == {}


def test_each_mutant_has_its_own_name(script):
    assert [name for name, count in Counter(m.name for m in script.find_mutants()).items() if count > 1] == []


def test_each_mutant_has_been_killed_as_written(script):
    hashes = {m.hash: m.name for m in script.find_mutants()}
    killers = script.tried.Killers(script.DATA)
    assert [name for hash, name in hashes.items() if hash not in killers.verdicts] == [], "scripts/mutants --named --stale"
    assert killers.verdicts.keys() == hashes.keys(), "verdicts of mutants that are gone: scripts/mutants --stale drops them"
    assert killers.text() == script.DATA.read_text(encoding="utf-8")
    assert f"{len(hashes)} one-line faults" in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_launched_programs_are_built(script):
    texts = [text for mutant in script.find_mutants() for text in mutant.kill if text.startswith("pytest ")]
    launching = [text for text in texts if re.search(r'BUILD / "bin"|mpi_launchers|liblaconic_fake_nccl', (ROOT / text.split()[1].partition("::")[0]).read_text(encoding="utf-8"))]
    assert len(launching) > 5
    assert [text for text in launching if not {"laconic_launched", "laconic_fake_nccl"} & {*script.command(text)[0]}] == []


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
ENTRY = """[{}]
fault = "What is wrong."
file = "lib.cc"
before = "{}"
after = "{}"
kill = ["test_lib"]
"""


def answer(value, name="answer"):
    return ENTRY.format(name, "answer=42", f"answer={value}")


def unseen(value):
    return ENTRY.format("unseen", "unseen=1", f"unseen={value}")


@pytest.fixture
def tree(tmp_path):
    """A project whose library, build and test are one shell script."""
    for name, text in {"scripts/build": BUILD, "lib.cc": LIB}.items():
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


def put(tree, *entries):
    (tree / "tests" / "mutants" / "lib.toml").write_text("\n".join(entries))


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
    done = subprocess.run([sys.executable, tree / "scripts" / "mutants", *names], capture_output=True, text=True, timeout=200,
                          env={"PATH": f"{bin_}:/usr/bin:/bin"})
    return done.returncode, done.stdout + done.stderr


def verdicts(tree):
    return list(json.loads((tree / "tests/mutants/killers.json").read_text())["mutants"].values())


def test_killed_mutant_is_recorded(tree):
    put(tree, answer(41))
    status, out = mutants(tree)
    assert (status, out.splitlines()[-1]) == (0, "1 of 1 killed"), out
    assert "answer: killed by Lib.Answers" in out
    assert verdicts(tree) == [[0, ""]]
    assert (tree / "lib.cc").read_text() == LIB  # the tree itself is never touched


def test_survivor_fails_run_and_is_not_recorded(tree):
    put(tree, answer(41), unseen("1  # the same"))
    status, out = mutants(tree)
    assert status == 1
    assert "unseen: SURVIVES" in out
    assert verdicts(tree) == [[0, ""]]


def test_killed_mutant_that_survives_later_loses_its_verdict(tree):
    put(tree, answer(41))
    assert mutants(tree)[0] == 0
    (tree / "lib.cc").write_text(LIB.replace('test "$answer" = 42 && exit 0', "exit 0"))
    assert mutants(tree)[0] == 1
    assert verdicts(tree) == []


@pytest.mark.parametrize(("before", "count"), [("answer=40", 0), ("answer", 0), ("exit 1", 2), ("", 0)])
def test_missing_or_repeated_lines_fail_run(tree, before, count):
    (tree / "lib.cc").write_text(LIB + "  exit 1\n")
    put(tree, ENTRY.format("old", before, "answer=41"))
    status, out = mutants(tree)
    assert status == 1
    assert f"old: `before` is {count} times in lib.cc" in out


def test_missing_file_fails_run(tree):
    put(tree, answer(41).replace("lib.cc", "old.cc"))
    status, out = mutants(tree)
    assert status == 1
    assert "answer: `before` is 0 times in old.cc" in out


def test_uncompilable_mutant_is_invalid(tree):
    put(tree, answer("$(("))
    status, out = mutants(tree)
    assert status == 1
    assert "answer: does not compile: lib.cc: error: syntax" in out


def test_failing_tests_prove_nothing(tree):
    put(tree, answer(41))
    (tree / "lib.cc").write_text(LIB.replace('"$answer" = 42', '"$answer" = 43'))
    status, out = mutants(tree)
    assert status == 1
    assert "fails without any mutant: Lib.Answers" in out and "\n[  FAILED  ] Lib.Answers" in out


def test_names_select_mutants_and_unknown_ones_are_refused(tree):
    put(tree, answer(41), unseen("1  # the same"))
    status, out = mutants(tree, "answer")
    assert (status, out.splitlines()[-1]) == (0, "1 of 1 killed"), out
    assert mutants(tree, "unseen")[0] == 1
    assert verdicts(tree) == [[0, ""]], "that of the other is kept"
    status, out = mutants(tree, "nothing")
    assert status == 1
    assert "no mutant of tests/mutants is named nothing" in out


def test_stale_mutants_were_not_killed_as_they_are_now(tree):
    put(tree, answer(41), answer(40, "other"))
    assert mutants(tree)[0] == 0
    put(tree, answer(43), answer(40, "other").replace("What is wrong", "What else is wrong"))
    status, out = mutants(tree, "--stale")
    assert (status, out.splitlines()[-1]) == (0, "1 of 1 killed"), out
    assert "answer: killed" in out
    put(tree, answer(43))
    assert mutants(tree, "--stale")[1].splitlines()[-1] == "0 of 0 killed"
    assert len(verdicts(tree)) == 1, "that of the mutant that is gone is dropped"


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        ("a;", "b;", "{\n  b;\n\n  if (x)\n    c;\n}\n"),
        ("  a;", "  b;", "{\n  b;\n\n  if (x)\n    c;\n}\n"),
        ("a;", "", "{\n\n  if (x)\n    c;\n}\n"),
        ("if (x)\n  c;", "c;", "{\n  a;\n\n  c;\n}\n"),
        ("a;\n\nif (x)", "a;\n\nif (y)", "{\n  a;\n\n  if (y)\n    c;\n}\n"),
        ("  c;\n}", "}", None),
        ("    c;\n}", "}", "{\n  a;\n\n  if (x)\n}\n"),
    ],
)
def test_lines_are_found_at_their_indentation_and_keep_it(script, before, after, changed):
    mutant = script.Mutant("name", "Fault.", "f.cc", before, after, ["test_f"])
    text = "{\n  a;\n\n  if (x)\n    c;\n}\n"
    if changed:
        assert mutant.put_into(text) == changed
    else:
        with pytest.raises(script.NoMutant):
            mutant.put_into(text)


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
def test_failed_test_is_found(script, output, killer):
    assert script.killer_in(output, "test_x") == killer


# ---- all killers ----


def test_data_file_round_trips_and_is_bounded(script, tmp_path, monkeypatch):
    tried = script.tried
    killers = tried.Killers(tmp_path / "killers.json")
    killers.add("bb", 3, {"test_a A": 1, "test_a B": 1, "t.py": 12})
    killers.add("aa", 1, {"test_a B": 2})
    killers.add("cc", 0, {})
    killers.add("aa", 0, {})  # says less than what is known
    killers.save()
    again = tried.Killers(tmp_path / "killers.json")
    assert again.verdicts == killers.verdicts
    assert list(again.verdicts) == ["aa", "bb", "cc"]
    assert [again.has(name, of_all=True) for name in ("aa", "cc", "dd")] == [True, False, False]
    assert again.summary() == ("3 have been killed, 2 by all that execute them: 1 by one suite or file alone, 1 by two to five; "
                               "1 suites and files kill one that no other kills")
    monkeypatch.setattr(tried, "MOST_BYTES", 100)
    with pytest.raises(SystemExit, match="more than 100"):
        again.save()


def test_data_file_has_space_for_every_mutant(script, tmp_path):
    killers = script.tried.Killers(tmp_path / "killers.json")
    parts = [f"test_distributed Suite{n:03}OfSomeLength" for n in range(300)]
    for place, m in enumerate(script.find_mutants()):  # a quarter dies by many, the others by up to eight
        killed = parts[place % 100:place % 100 + 80] if place % 4 == 0 else parts[place % 50::40]
        killers.add(m.hash, len(parts), dict.fromkeys(killed, 250))
    killers.save()


def test_sample_is_fixed_and_every_folder_has_its_share(script):
    everything = script.find_mutants()
    sample = script.tried.sample(everything, 80)
    assert len(sample) == 80
    assert sample == script.tried.sample(everything[::-1], 80)[::-1]
    sizes = Counter(script.tried.folder_of(m) for m in everything)
    shares = Counter(script.tried.folder_of(m) for m in sample)
    assert [folder for folder, size in sizes.items() if abs(shares[folder] - size * 80 / len(everything)) > 1] == []
    less_one = [m for m in everything if m is not sample[3]]
    assert len({m.name for m in script.tried.sample(less_one, 80)} & {m.name for m in sample}) > 70


def test_seven_weeks_cover_every_mutant_once(script):
    everything = script.find_mutants()
    weeks = [script.tried.seventh(everything, week) for week in range(100, 107)]
    assert sorted(m.name for week in weeks for m in week) == sorted(m.name for m in everything)
    assert script.tried.seventh(everything, 107) == weeks[0]


def test_line_counts_as_executed_by_its_tests(script):
    coverage = script.tried.Coverage(Path("/nowhere"), "")
    coverage.parts = {"a": {"f.cc": {3, 4, 9}}, "b": {"f.cc": {9}}, "c": {"g.cc": {4}}}

    def ran(line, indented, file="f.cc"):
        return coverage.parts_that_run(file, [line], indented)

    assert ran(4, True) == {"a"}
    assert ran(9, True) == {"a", "b"}
    assert ran(6, True) == {"a"}, "the second line of the statement in line 4"
    assert ran(1, False) == {"a", "b"}, "a constant of the file"
    assert ran(1, False, "constants.h") == {"a", "b", "c"}, "a header without code"


def test_suites_named_by_mutant_always_run(script):
    program = script.tried.Program("test_x", ["test_x"], {"test_x Dense": ["Dense.*"]})
    named = [part for part in ("test_x Dense", "test_x DenseRules", "test_x Other")
             if script.tried.names(["test_x --gtest_filter=*Dense*:All/Set.Once*"], program, part)]
    assert named == ["test_x Dense", "test_x DenseRules"]
    assert not script.tried.names(["test_x"], program, "test_x Other")
    assert script.tried.names(["frame_fuzz"], script.tried.Program("frame_fuzz", ["frame_fuzz"]), "frame_fuzz")


def test_mutant_lines_are_numbered(script):
    mutant = script.Mutant("name", "Fault.", "f.cc", "b;\nc;", "d;", ["test_f"])
    assert mutant.lines("a;\n  b;\n  c;\n") == (range(2, 4), True)
    assert mutant.lines("a;\nb;\nc;\n") == (range(2, 4), False)


GTEST = """#!/bin/sh
case "$1" in *A.*) echo '[ RUN      ] All/A.B/0'; echo '[  FAILED  ] All/A.B/0, where GetParam() = 1 (0 ms)' ;; esac
case "$1" in *C.*) echo '[ RUN      ] C.D'; kill -9 $$ ;; esac
case "$1" in *E.*) echo '[ RUN      ] E.F'; echo '[       OK ] E.F (0 ms)'; echo '[ RUN      ] E.G'; echo '[  FAILED  ] E.G (0 ms)' ;; esac
echo '[==========] 4 tests from 3 test suites ran. (0 ms total)'
exit 1
"""


def test_suites_after_a_crashed_one_still_run(script, tmp_path):
    path = tmp_path / "test_x"
    path.write_text(GTEST)
    path.chmod(0o755)
    listed = "Running main() from gtest_main.cc\nAll/A.\n  B/0  # GetParam() = 1\nC.\n  D\nE.\n  F\n  G\n"
    suites = script.tried.suites_of("test_x", listed)
    assert suites == {"test_x A": ["All/A.*"], "test_x C": ["C.*"], "test_x E": ["E.*"]}
    failed = script.tried.run_program(script.tried.Program("test_x", [str(path)], suites), list(suites), 10)
    assert failed == {"test_x A": {"All/A.B/0"}, "test_x C": {"C.D"}, "test_x E": {"E.G"}}


def test_command_that_hangs_is_ended_with_its_children(script):
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
{"tests": [{"name": "test_lib.1", "command": ["$PWD/build/release/bin/test_lib", "--gtest_brief=1"], "properties": []},
           {"name": "test_lib.2", "command": ["$PWD/build/release/bin/test_lib", "--gtest_brief=1"], "properties": []},
           {"name": "example_a", "command": ["$PWD/build/release/bin/test_lib"], "properties": [{"name": "LABELS", "value": ["example"]}]}]}
END
"""
GCOV = """#!/bin/sh
for file in "$@"; do last=$file; done
line=2; grep -q Other "$last" && line=3
echo '{"files": [{"file": "../../lib.cc", "lines": [{"line_number": '$line', "count": 1}, {"line_number": 8, "count": 0}]}]}'
"""
PY_TEST = "import lib\n\n\ndef test_answer():\n    assert lib.answer() == 42\n"
PY_ENTRY = """[python]
fault = "Python answers something else."
file = "python/lib.py"
before = "return 42"
after = "return 41"
kill = ["pytest tests/test_lib.py"]
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
    done = subprocess.run([sys.executable, tree / "scripts" / "mutants", "--all-killers", *names], capture_output=True, text=True, timeout=200,
                          env={"PATH": f"{bin_}:/usr/bin:/bin", "JOBS": "1"})
    return done.returncode, done.stdout + done.stderr, ran.read_text().splitlines()


def killed(tree):
    data = json.loads((tree / "tests/mutants/killers.json").read_text())
    return sorted((ran, data["parts"][int(killers)]) for ran, killers in data["mutants"].values())


def test_mutant_runs_suites_that_execute_its_line(covered_tree):
    put(covered_tree, answer(41), unseen(2))
    status, out, ran = all_killers(covered_tree)
    assert status == 0, out
    assert ran == ["--gtest_filter=Lib.*", "--gtest_filter=Other.*"] * 2, "once for the coverage, once for a mutant each"
    assert killed(covered_tree) == [(1, "test_lib Lib"), (1, "test_lib Other")]
    assert "2 have been killed, 2 by all that execute them: 2 by one suite or file alone" in out


def test_tried_mutants_are_skipped_until_they_change(covered_tree):
    put(covered_tree, answer(41), unseen(2))
    assert all_killers(covered_tree, "answer")[0] == 0
    status, out, ran = all_killers(covered_tree)
    assert (status, ran) == (0, ["--gtest_filter=Other.*"]), "the coverage is known, and so is the answer\n" + out
    put(covered_tree, answer(43), unseen(2))
    assert all_killers(covered_tree)[2] == ["--gtest_filter=Lib.*"]
    assert all_killers(covered_tree)[2] == []


def test_interrupted_measurement_continues(covered_tree):
    put(covered_tree, answer(41))
    assert all_killers(covered_tree)[0] == 0
    measured = covered_tree / "build" / "covered-cxx.json"
    data = json.loads(measured.read_text())
    del data["parts"]["test_lib Other"]
    measured.write_text(json.dumps(data))
    put(covered_tree, answer(43))
    assert all_killers(covered_tree)[2] == ["--gtest_filter=Other.*", "--gtest_filter=Lib.*"]


def test_mutant_without_killer_fails_run_and_is_retried(covered_tree):
    put(covered_tree, unseen("1  # the same"))
    for _ in range(2):
        status, out, _ = all_killers(covered_tree)
        assert status == 1
        assert "unseen: SURVIVES" in out
        assert killed(covered_tree) == []


def test_python_line_runs_files_that_execute_it(covered_tree):
    (covered_tree / "conftest.py").write_text("")
    put(covered_tree, PY_ENTRY)
    status, out, _ = all_killers(covered_tree)
    assert status == 0, out
    assert killed(covered_tree) == [(1, "tests/test_lib.py")]


def test_gcov_build_ignores_foreign_precompiled_header(script, tmp_path):
    """Tests that include a header with a mutant are compiled so, too."""
    (tmp_path / "all.h").write_text("inline int one() { return 1; }\n")
    (tmp_path / "lib_test.cc").write_text("int main() { return one() - 1; }\n")
    launcher = script.tried.covering(tmp_path, {"lib_test.cc"})["CMAKE_CXX_COMPILER_LAUNCHER"]
    subprocess.run(["g++", "-O0", "-x", "c++-header", "all.h"], cwd=tmp_path, check=True)
    subprocess.run([launcher, "g++", "-O0", "-Werror", "-Winvalid-pch", "-include", "all.h", "-c", tmp_path / "lib_test.cc"], cwd=tmp_path,
                   check=True)
    assert (tmp_path / "lib_test.gcno").exists()
