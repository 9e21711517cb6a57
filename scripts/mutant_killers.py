# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The knowledge of `scripts/mutants --all-killers`: which test executes which line, and which test kills which mutant.

A part is what runs, fails and is counted as one: a suite of a GoogleTest program ("test_base Arena"), a replay of a
fuzz target's corpus ("frame_fuzz"), or a file of pytest ("python/tests/test_ddp.py").

Which lines a part executes is measured, by gcov for C++ and by coverage.py for Python; a kernel of SIMD, and a header that
many include, count as executed by every part. Python files are not measured for C++: those run that the mutant names, and
for the command and the lab all that start its programs.
"""
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

MOST_BYTES = 64_000  # of the data file, which is read in reviews
MOST_SOURCES = 12  # a header that more include is not measured: every part may execute it
#: Tests in Python start programs of these folders, whose C++ is not measured: these run all of them.
STARTED_BY = {"tools/": "tests/tools/test_*.py", "lab/src/": "lab/tests/test_*.py"}


def run_for(words, limit, **how):
    """(exit status, output) of a command; no status: it had to be ended, with its children."""
    with tempfile.TemporaryFile("w+", errors="replace") as out:  # a child that is left may hold a pipe open
        process = subprocess.Popen(words, stdout=out, stderr=subprocess.STDOUT, start_new_session=True, **how)
        try:
            status = process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            status = None
        out.seek(0)
        return status, out.read()


# ---- the data file ----


def ranges(numbers):
    """1, 2, 3, 7 → "1-3 7"."""
    text, first, last = [], None, None
    for number in [*sorted(numbers), None]:
        if first is not None and number == last + 1:
            last = number
            continue
        if first is not None:
            text.append(f"{first}-{last}" if last > first else f"{first}")
        first = last = number
    return " ".join(text)


def numbers(text):
    for word in text.split():
        first, _, last = word.partition("-")
        yield from range(int(first), int(last or first) + 1)


MANY = 20  # parts that kill one mutant: of more the cases are not counted


@dataclass
class Verdict:
    ran: int = 0  # parts that execute the changed line; 0: only some have been tried, of which one failed
    killed: dict = field(default_factory=dict)  # part → how many of its cases failed


class Killers:
    """tests/mutants/killers.json: a line per mutant that was killed, by its hash; parts by their number."""

    def __init__(self, path):
        self.path = path
        data = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"parts": [], "mutants": {}}
        self.verdicts = {}
        for name, (ran, killed) in data["mutants"].items():
            counts = {}
            for word in killed.split():
                which, _, count = word.partition(":")
                counts.update((data["parts"][part], int(count or 1)) for part in numbers(which))
            self.verdicts[name] = Verdict(ran, counts)

    def add(self, name, ran, killed):
        if ran or name not in self.verdicts:
            self.verdicts[name] = Verdict(ran, killed if len(killed) <= MANY else dict.fromkeys(killed, 1))

    def forget(self, name):
        self.verdicts.pop(name, None)

    def keep_only(self, hashes):
        self.verdicts = {name: self.verdicts[name] for name in hashes if name in self.verdicts}

    def has(self, name, of_all):
        return name in self.verdicts and (self.verdicts[name].ran > 0 or not of_all)

    def text(self):
        parts = sorted({part for v in self.verdicts.values() for part in v.killed})
        number = {part: n for n, part in enumerate(parts)}
        lines = []
        for name, v in sorted(self.verdicts.items()):
            words = [f"{number[part]}:{count}" for part, count in sorted(v.killed.items()) if count > 1]
            words.append(ranges(number[part] for part, count in v.killed.items() if count == 1))
            lines.append(f"{json.dumps(name)}: {json.dumps([v.ran, ' '.join(words).strip()])}")
        return ('{"what": "hash of a mutant that was killed: [how many parts ran, which failed and in how many cases]",\n"parts": [\n'
                + ",\n".join(map(json.dumps, parts)) + '],\n"mutants": {\n' + ",\n".join(lines) + "}}\n")

    def save(self):
        text = self.text()
        if len(text.encode()) > MOST_BYTES:
            raise SystemExit(f"{self.path} would have {len(text.encode())} bytes, more than {MOST_BYTES}")
        self.path.write_text(text, encoding="utf-8")

    def summary(self):
        deaths = [set(v.killed) for v in self.verdicts.values() if v.ran]
        alone = set().union(*(parts for parts in deaths if len(parts) == 1))
        return (f"{len(self.verdicts)} have been killed, {len(deaths)} by all that execute them: {sum(len(parts) == 1 for parts in deaths)} "
                f"by one suite or file alone, {sum(2 <= len(parts) <= 5 for parts in deaths)} by two to five; "
                f"{len(alone)} suites and files kill one that no other kills")


# ---- which mutants ----


def folder_of(mutant):
    return "/".join(mutant.file.split("/")[:2])


def sample(mutants, size):
    """The same number, from every folder its share. A mutant that joins hardly changes the choice."""
    folders = {}
    for m in sorted(mutants, key=lambda m: hashlib.sha256(m.name.encode()).digest()):
        folders.setdefault(folder_of(m), []).append(m)
    exact = {folder: size * len(members) / len(mutants) for folder, members in folders.items()}
    share = {folder: int(count) for folder, count in exact.items()}
    for folder in sorted(exact, key=lambda folder: (share[folder] - exact[folder], folder))[:size - sum(share.values())]:
        share[folder] += 1  # the largest remainders
    chosen = {m.name for folder, members in folders.items() for m in members[:share[folder]]}
    return [m for m in mutants if m.name in chosen]


def seventh(mutants, week):
    """Each mutant in one week of seven."""
    return [m for m in mutants if hashlib.sha256(m.name.encode()).digest()[0] % 7 == week % 7]


# ---- what runs ----


@dataclass
class Program:
    name: str
    words: list
    suites: dict = field(default_factory=dict)  # part → patterns of its suites; none: no GoogleTest program

    def parts(self):
        return list(self.suites) or [self.name]


def suites_of(program, listed):
    """part → patterns, from --gtest_list_tests. One part for all instances of a suite."""
    suites = {}
    for line in listed.splitlines():
        if line[:1].isspace() or not line.split(" ")[0].endswith("."):
            continue
        whole = line.split(" ")[0]
        suites.setdefault(f"{program} {suite_name(whole)}", []).append(whole + "*")
    return suites


def suite_name(test):
    """The suite "OracleTest" of "All/OracleTest.Case/1" and of "OracleTest/0."."""
    pieces = test.partition(".")[0].split("/")
    return pieces[1] if len(pieces) > 1 and not pieces[1].isdigit() else pieces[0]


def names(kills, program, part):
    """Whether a command of `kill` names this part: gcov may not see a line that the compiler has moved."""
    suite = part.rpartition(" ")[2]
    filters = [text.partition("--gtest_filter=")[2] for text in kills if text.split()[0] == program.name]
    words = [word for text in filters for word in re.split(r"[*:./]+", text) if word]
    return any(word in suite or suite in word for word in words) or bool(filters and not program.suites)


def find_programs(tree, env):
    """GoogleTest programs and replays of ctest's list; examples are no tests of a line."""
    listed = subprocess.run(["ctest", "--preset", "release", "--show-only=json-v1"], cwd=tree, env=env, check=True,
                            capture_output=True, text=True)
    programs = []
    for test in json.loads(listed.stdout)["tests"]:
        labels = next((p["value"] for p in test["properties"] if p["name"] == "LABELS"), [])
        words = test.get("command", [])
        if not words or not Path(words[0]).is_file() or "/build/" not in words[0] or "example" in labels:
            continue
        if any(program.name == Path(words[0]).name for program in programs):
            continue  # ctest runs the longest in parts
        program = Program(Path(words[0]).name, [words[0], *(w for w in words[1:] if not w.startswith("--gtest"))])
        if any(word.startswith("--gtest") for word in words):
            names = subprocess.run([words[0], "--gtest_list_tests"], check=True, capture_output=True, text=True).stdout
            program.suites = suites_of(program.name, names)
        programs.append(program)
    return programs


def run_program(program, parts, limit, **how):
    """part → cases that failed. A suite that crashes or hangs ends there; the next ones still run."""
    if not program.suites:
        status, _ = run_for(program.words, limit, **how)
        return {} if status == 0 else {program.name: {program.name}}
    failed, left = {}, {part: program.suites[part] for part in parts}
    while left:
        patterns = ":".join(pattern for of_suite in left.values() for pattern in of_suite)
        status, output = run_for([*program.words, f"--gtest_filter={patterns}"], limit, **how)
        begun = re.findall(r"^\[ RUN      \] (\S+)", output, re.M)
        for test in re.findall(r"^\[  FAILED  \] ([^\s,]+\.[^\s,]+)", output, re.M):
            failed.setdefault(f"{program.name} {suite_name(test)}", set()).add(test)
        if status == 0 or re.search(r"^\[==========\] .* ran\.", output, re.M):
            break
        if not begun:
            failed[next(iter(left))] = {"(start)"}
            break
        failed.setdefault(f"{program.name} {suite_name(begun[-1])}", set()).add(begun[-1])
        for test in begun:
            left.pop(f"{program.name} {suite_name(test)}", None)
    return failed


def run_file(python, file, limit, **how):
    status, output = run_for([python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *shlex.split(file)], limit, **how)
    name = file.split()[0].partition("::")[0]
    failed = set(re.findall(r"^(?:FAILED|ERROR) (\S+)", output, re.M))
    return {} if status in (0, 5) else {name: failed or {name}}


# ---- what executes a line ----


class Coverage:
    """Measurements are kept in a file of build/, and repeated when what they depend on has changed."""

    def __init__(self, path, key):
        self.path, self.key = path, key
        data = json.loads(path.read_text()) if path.exists() else {}
        if data.get("key") != key:
            data = {"parts": {}, "sources": [], "failing": []}
        self.parts = {part: {f: set(numbers(lines)) for f, lines in files.items()} for part, files in data["parts"].items()}
        self.sources, self.failing = set(data["sources"]), set(data["failing"])

    def begin_again(self, sources):
        self.parts, self.failing, self.sources = {}, set(), sources

    def save(self):
        parts = {part: {f: ranges(lines) for f, lines in files.items()} for part, files in self.parts.items()}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps({"key": self.key, "parts": parts, "sources": sorted(self.sources), "failing": sorted(self.failing)}))

    def parts_that_run(self, file, lines, indented):
        """Parts that execute one of the lines. One without code of its own belongs to the statement before it; outside
        of a function to everything that executes a line of its file."""
        has_code = {line for files in self.parts.values() for line in files.get(file, ())}
        if not has_code:  # a header of constants, or one not measured: every part may use it
            return set(self.parts)
        wanted = has_code & set(lines)
        if not wanted and indented:
            wanted = {max((line for line in has_code if line < min(lines)), default=0)} & has_code
        wanted = wanted or has_code
        return {part for part, files in self.parts.items() if wanted & files.get(file, set())}


def hash_of(paths, tree):
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(path.encode() + b"\0" + (tree / path).read_bytes() + b"\0")
    return digest.hexdigest()[:16]


INCLUDED_FROM = ("", "include/", "src/", "tests/", "tools/", "lab/include/", "lab/src/")


def including(headers, files, tree):
    """Sources whose #include lines lead to one of these headers."""
    known, of = set(files), {}
    for file in files:
        named = re.findall(r'^#include "(.+)"', (tree / file).read_text(encoding="utf-8", errors="replace"), re.M)
        near = str(Path(file).parent) + "/"
        of[file] = {folder + name for name in named for folder in (*INCLUDED_FROM, near) if folder + name in known}
    found = set()
    for header in headers:
        reached, new = set(), {header}
        while new:
            reached |= new
            new = {file for file, included in of.items() if included & new} - reached
        sources = {file for file in reached if file.endswith(".cc")}
        found |= sources if len(sources) <= MOST_SOURCES else set()
    return found


# Files that mutants change are compiled for gcov; all others come from the compiler cache.
COMPILER = """#!/bin/sh
for word in "$@"; do source=$word; done
if grep -qxF "$source" {list}; then set -- "$@" -O1 --coverage -Wno-invalid-pch; fi
exec {ccache} "$@"
"""


def covering(tree, sources):
    """Environment of a build that compiles these sources for gcov."""
    folder = tree / "build"
    folder.mkdir(exist_ok=True)
    listed, compiler = folder / "covered.txt", folder / "covering"
    before = set(listed.read_text().split("\n")) if listed.exists() else set()
    for source in {str(tree / source) for source in sources} - before:
        os.utime(source)  # it has to be compiled again
    listed.write_text("\n".join(str(tree / source) for source in sorted(sources)) + "\n")
    compiler.write_text(COMPILER.format(list=listed, ccache=shutil.which("ccache") or ""))
    compiler.chmod(0o755)
    return {"CMAKE_CXX_COMPILER_LAUNCHER": str(compiler), "LDFLAGS": "--coverage"}


def gcov_lines(folder, tree, build_dir):
    """file → lines executed, of the counters that lie below a folder."""
    counters = []
    for counter in folder.rglob("*.gcda"):
        notes = Path("/" + counter.relative_to(folder).as_posix()).with_suffix(".gcno")
        counter.with_suffix(".gcno").symlink_to(notes)
        counters.append(counter.as_posix())
    lines = {}
    if not counters:
        return lines
    done = subprocess.run(["gcov", "--stdout", "--json-format", *counters], cwd=build_dir, capture_output=True, text=True)
    for document in done.stdout.splitlines():
        if not document.startswith("{"):
            continue
        for file in json.loads(document)["files"]:
            name = os.path.relpath(os.path.normpath(build_dir / file["file"]), tree)
            executed = {line["line_number"] for line in file["lines"] if line["count"] > 0}
            if executed and not name.startswith("../"):
                lines.setdefault(name, set()).update(executed)
    return lines


def cover_programs(coverage, tree, programs, env, limit, jobs):
    """Runs every suite that has not run, in its own process and with counters in its own folder; each is saved
    immediately."""
    build_dir = tree / "build" / "release"

    def cover(program, part):
        with tempfile.TemporaryDirectory(dir=build_dir) as folder:
            counting = {**env, "GCOV_PREFIX": folder, "GCOV_ERROR_FILE": "/dev/null"}
            failed = run_program(program, [part], limit, cwd=tree, env=counting)
            return part, bool(failed), gcov_lines(Path(folder), tree, build_dir)

    with ThreadPoolExecutor(jobs) as pool:
        left = [(p, part) for p in programs for part in p.parts() if part not in coverage.parts]
        for part, failed, lines in pool.map(lambda pair: cover(*pair), left):
            coverage.parts[part] = lines
            if failed:
                coverage.failing.add(part)
            coverage.save()


SETTINGS = """[run]
parallel = true
concurrency = multiprocessing, thread
patch = subprocess, _exit
source = {tree}
omit = */tests/*, {tree}/build/*
data_file = {folder}/data
"""
READING = """
import glob, json, sys, coverage
lines = {}
for path in glob.glob(sys.argv[1] + "/data*"):
    data = coverage.CoverageData(path)
    data.read()
    for file in data.measured_files():
        lines.setdefault(file, set()).update(data.lines(file) or [])
print(json.dumps({file: sorted(found) for file, found in lines.items()}))
"""


def cover_file(coverage, tree, python, file, env, limit):
    """One test file, its processes included."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder) / "coveragerc"
        settings.write_text(SETTINGS.format(tree=tree, folder=folder))
        measured = [python, "-m", "coverage", "run", f"--rcfile={settings}", "-m", "pytest", "-q", "-p", "no:cacheprovider", file]
        status, _ = run_for(measured, limit, cwd=tree, env=env)
        done = subprocess.run([python, "-c", READING, folder], capture_output=True, text=True, check=True)
        coverage.parts[file] = {os.path.relpath(f, tree): set(found) for f, found in json.loads(done.stdout).items()}
        if status not in (0, 5):
            coverage.failing.add(file)
