# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""How pytest runs (conftest.py, pyproject.toml, scripts/sections.sh): tests that hang, the order of the files, tenths, and the count of torch's imports."""

import importlib.util
import json
import os
import py_compile
import re
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest

pytest.importorskip("xdist")
ROOT = Path(__file__).resolve().parents[2]
ONE, TWO = (), ("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder")  # processes


@pytest.fixture
def tree(tmp_path):
    """A project with this one's way to run pytest and no tests."""
    (tmp_path / "tests").mkdir()
    for name in ("conftest.py", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "tests/durations.json").write_text("{}")
    return tmp_path


def loaded(tree):
    spec = importlib.util.spec_from_file_location("conftest_of_a_tree", tree / "conftest.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(tree, *options, **environment):
    """pytest's exit status and what it prints."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", *options, "tests"], cwd=tree, env={**clean, **environment}, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    return done.returncode, done.stdout


# ---- a test that hangs ----

HANGS = """
import time
import pytest

def waits_for_ever():
    while True:
        time.sleep(1000)

@pytest.fixture
def never_cleared():
    yield
    waits_for_ever()

@pytest.mark.timeout(1)
def test_hangs():
    waits_for_ever()

@pytest.mark.timeout(1)
def test_fails_and_its_clean_up_hangs(never_cleared):
    assert not "as it should"

def test_behind():
    pass
"""

HANGS_IN_C = """
import ctypes
import pathlib
import subprocess
import pytest

def locked_twice(library):
    lock = ctypes.create_string_buffer(64)
    library.pthread_mutex_lock(lock)
    library.pthread_mutex_lock(lock)

def test_before():
    with pathlib.Path("runs").open("a") as runs:
        runs.write("before ")

@pytest.mark.timeout(1)
@pytest.mark.parametrize("library", [ctypes.PyDLL, ctypes.CDLL], ids=["holds_the_gil", "has_released_it"])
def test_hangs(library):
    child = subprocess.Popen(["sleep", "1000000"])
    with pathlib.Path("children").open("a") as children:
        children.write(f"{child.pid} ")
    locked_twice(library(None))

def test_behind():
    pass
"""


@pytest.mark.parametrize("processes", [ONE, TWO], ids=["one", "two"])
def test_hanging_test_is_named_with_stack_and_next_runs(tree, processes):
    (tree / "tests/test_it.py").write_text(HANGS)
    status, out = run(tree, *processes)
    assert status == 1
    assert re.search(r"^FAILED tests/test_it.py::test_hangs - Failed: Timeout", out, re.M), out
    assert re.search(r"^ERROR tests/test_it.py::test_fails_and_its_clean_up_hangs - Failed: Timeout", out, re.M), out
    assert out.count("in waits_for_ever\n") + out.count(": Failed\n") >= 2  # the stacks
    assert "2 failed, 1 passed, 1 error" in out


LOSES_THE_FIRST = """
import time
import pytest

@pytest.mark.timeout(1)
def test_hangs():
    try:
        time.sleep(1000)
    except BaseException:
        pass
    time.sleep(1000)
"""


def test_timeout_that_is_lost_is_raised_again(tree):
    text = (tree / "conftest.py").read_text()
    (tree / "conftest.py").write_text(text.replace("\nGRACE = 60 ", "\nGRACE = 40 ").replace("GRACE / 2)", "1)"))
    (tree / "tests/test_it.py").write_text(LOSES_THE_FIRST)
    status, out = run(tree, *ONE)
    assert (status, "1 failed" in out) == (1, True), out
    assert re.search(r"^FAILED tests/test_it.py::test_hangs - Failed: Timeout", out, re.M), out


def test_hanging_c_test_is_ended_with_its_children(tree):
    text = (tree / "conftest.py").read_text()
    assert "\nGRACE = 60 " in text
    (tree / "conftest.py").write_text(text.replace("\nGRACE = 60 ", "\nGRACE = 1 "))
    (tree / "tests/test_it.py").write_text(HANGS_IN_C)
    status, out = run(tree, *TWO)
    assert status == 1
    for how in ("holds_the_gil", "has_released_it"):
        assert re.search(rf"^worker 'gw\d' crashed while running 'tests/test_it.py::test_hangs\[{how}\]'$", out, re.M), out
    assert len(re.findall(r'test_it.py", line \d+ in locked_twice\n', out)) == 2, out
    assert "2 failed, 2 passed" in out
    assert (tree / "runs").read_text() == "before "
    children = (tree / "children").read_text().split()
    assert len(children) == 2
    for child in children:
        while Path(f"/proc/{child}/cmdline").exists() and "1000000" in Path(f"/proc/{child}/cmdline").read_text():
            os.sched_yield()  # killed, it takes a moment to end


def test_every_test_has_a_limit(request):
    assert request.config.pluginmanager.hasplugin("timeout")
    assert request.config.getini("timeout") == "300"


def test_pytest_runs_without_timeout_plugin(tree):
    (tree / "tests/test_it.py").write_text("def test_it():\n    pass\n")
    status, out = run(tree, "-p", "no:timeout")
    assert (status, "1 passed" in out) == (0, True), out


# ---- order and tenths ----


def test_longest_files_begin_first(tree):
    module = loaded(tree)
    module.DURATIONS.write_text('{"tests/test_b.py": 7, "tests/test_c.py": 90}')
    items = [types.SimpleNamespace(nodeid=f"tests/test_{name}.py::test_{i}") for i in range(2) for name in "abc"]
    config = types.SimpleNamespace(getoption=lambda name: None)
    module.pytest_collection_modifyitems(config, items)
    assert [item.nodeid[11:] for item in items] == [f"{name}.py::test_{i}" for name in "cba" for i in range(2)]


def test_durations_name_every_test_file_and_no_other():
    ini = ROOT / "pyproject.toml"
    folders = re.search(r"^testpaths = (\[.*\])$", ini.read_text(encoding="utf-8"), re.M)[1]
    files = {str(path.relative_to(ROOT)) for folder in json.loads(folders) for path in (ROOT / folder).rglob("test_*.py")}
    listed = json.loads((ROOT / "tests/durations.json").read_text(encoding="utf-8"))
    assert not files - listed.keys(), "not measured: pytest --record-durations FILE..."
    assert not listed.keys() - files, "no such file of tests"


def choose(module, seed, names):
    gone = []
    hook = types.SimpleNamespace(pytest_deselected=lambda items: gone.extend(items))
    items = [type("Item", (), {"nodeid": name})() for name in names]
    module.pytest_collection_modifyitems(types.SimpleNamespace(getoption=lambda name: seed, hook=hook), items)
    assert len(items) + len(gone) == len(names)
    return [item.nodeid for item in items]


def test_ten_tenths_contain_each_test_once(tree):
    module, names = loaded(tree), [f"tests/test_{i % 7}.py::test_it[{i}]" for i in range(500)]
    tenths = [choose(module, f"abcdef{last}", names) for last in range(10)]  # 0xabcdef0 and the nine after it
    assert sorted(name for tenth in tenths for name in tenth) == sorted(names)
    assert all(30 <= len(tenth) <= 70 for tenth in tenths)
    assert choose(module, "abcdef3", names) == tenths[3]
    assert all(choose(module, str(seed), names[:1]) == names[:1] for seed in range(10))  # none is too few


def test_commit_chooses_a_tenth_and_weekly_runs_all(tree):
    (tree / "scripts").mkdir()
    for name in ("sections.sh", "ccache.sh"):
        shutil.copy(ROOT / "scripts" / name, tree / "scripts")
    for name in ("scripts/build", ".venv/bin/python", "build/venv-nonumpy/bin/python"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text('#!/bin/sh\necho "$0" "$@"\n')
        (tree / name).chmod(0o755)
    (tree / "python/tests").mkdir(parents=True)
    (tree / "python/tests/test_it.py").touch()

    def options(**environment):
        inside = {**os.environ, "TEST_TIER": "change", "GIT_CEILING_DIRECTORIES": str(tree.parent), **environment}
        command = "set -e; source scripts/sections.sh; section_nonumpy"
        out = subprocess.run(["bash", "-c", command], cwd=tree, env=inside, capture_output=True, text=True, check=True).stdout
        [line] = re.findall(r"^build/venv-nonumpy/bin/python -m pytest .*$", out, re.M)
        return re.findall(r"--tenth=(\w+)", line)

    assert len(options()[0]) == 40  # without git, by the tests themselves
    git = ["git", "-C", str(tree), "-c", "user.name=n", "-c", "user.email=e@e"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "m"], check=True)
    assert options() == [subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()]
    assert options(TEST_TIER="weekly") == []


# ---- what a run writes down ----

BURNS = """
import os, sys, time

def burn(seconds):
    begin = time.process_time()
    while time.process_time() < begin + seconds:
        pass

if os.fork() == 0:
    burn(0.1)  # a child that ends
    os._exit(0)
os.wait()
if os.fork() == 0:
    burn(0.1)  # one that does not
    print("ready", flush=True)
    sys.stdin.read()
    os._exit(0)
os.wait()
"""


def test_time_of_file_includes_child_processes(tree):
    durations = loaded(tree).Durations(None)
    before = durations.used()
    with subprocess.Popen([sys.executable, "-c", BURNS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "ready\n"
        assert durations.used() - before > 0.15
        child.stdin.close()
    assert durations.used() - before > 0.15


def test_recording_updates_only_changes(tree):
    module = loaded(tree)
    old = {"tests/test_same.py": 40, "tests/test_shorter.py": 40, "tests/test_other.py": 5, "tests/test_gone.py": 30}
    module.DURATIONS.write_text(json.dumps(old))
    for name in ("same", "shorter", "other", "new"):
        (tree / f"tests/test_{name}.py").touch()
    durations = module.Durations(None)
    durations.seconds = {"tests/test_same.py": 48.2, "tests/test_shorter.py": 20.4, "tests/test_new.py": 0.3}
    durations.write()
    assert json.loads(module.DURATIONS.read_text()) == {"tests/test_same.py": 40, "tests/test_shorter.py": 20, "tests/test_other.py": 5,
                                                        "tests/test_new.py": 0}


IMPORTS = """
import multiprocessing
import os
import subprocess
import sys
import torch

def test_imported_afresh():
    subprocess.run([sys.executable, "-c", "import torch"], env={"PYTHONPATH": os.environ["PYTHONPATH"]}, check=True)

def test_looked_for():
    subprocess.run([sys.executable, "-c", "import importlib.util as u; u.find_spec('torch')"], check=True)

def test_forked():
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch"])
    for _ in range(2):
        process = context.Process(target=print)
        process.start()
        process.join()
        assert process.exitcode == 0
"""


@pytest.fixture
def importing(tree):
    """Tests that import a torch of one line. Two files: --dist takes a process for each."""
    (tree / "site/torch").mkdir(parents=True)
    (tree / "site/torch/__init__.py").touch()
    py_compile.compile(str(tree / "site/torch/__init__.py"))
    (tree / "tests/test_imports.py").write_text(IMPORTS)
    (tree / "tests/test_nothing.py").write_text("import torch\n\ndef test_it():\n    pass\n")
    return lambda *options: run(tree, *options, PYTHONPATH=str(tree / "site"))


def test_fresh_imports_of_torch_are_counted(importing):
    status, out = importing(*ONE, "--torch-imports=1")
    assert (status, "fresh imports of torch by tests: 1\n" in out) == (0, True), out


def test_torch_imports_above_limit_fail_and_files_are_recorded(importing, tree):
    status, out = importing(*TWO, "--torch-imports=0", "--record-durations")
    assert (status, "fresh imports of torch by tests: 1, more than 0\n" in out) == (1, True), out
    assert json.loads((tree / "tests/durations.json").read_text()).keys() == {"tests/test_imports.py", "tests/test_nothing.py"}


def test_count_that_misses_own_imports_fails(tree):
    config = types.SimpleNamespace(workerinput={}, getoption=lambda name: 25)
    imports = loaded(tree).TorchImports(config)
    imports.seen = lambda: 0
    imports.own = [(False, False)]
    assert imports.judge() == ""
    imports.own += [(True, False)]
    assert "unseen" in imports.judge()
