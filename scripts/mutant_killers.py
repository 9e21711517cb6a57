# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""What `scripts/mutants --all-killers` knows: which test executes which line, and which test kills which mutant.

A part is what runs, fails and is counted as one: a suite of a GoogleTest program ("test_base Arena"), a replay of a
fuzz target's corpus ("frame_fuzz"), or a file of pytest ("python/tests/test_ddp.py").
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

MOST_BYTES = 50_000  # of the data file, which is read in reviews
MOST_SOURCES = 12  # a header that more include is not measured: every part may execute it
#: Programs of these folders are started by tests in Python, whose C++ nobody measures: these run all of them.
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
    patch: str  # hash of the patch that was tried
    ran: int  # parts that execute the changed line
    killed: dict  # part → how many of its cases failed


class Killers:
    """tests/mutants/killers.json: a line per mutant, parts by their number."""

    def __init__(self, path):
        self.path = path
        data = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"parts": [], "mutants": {}}
        self.parts = set(data["parts"])  # all that ran
        self.mutants = {}
        for name, (patch, ran, killed) in data["mutants"].items():
            counts = {}
            for word in killed.split():
                which, _, count = word.partition(":")
                counts.update((data["parts"][part], int(count or 1)) for part in numbers(which))
            self.mutants[name] = Verdict(patch, ran, counts)

    def add(self, name, patch, ran, killed):
        self.mutants[name] = Verdict(patch, len(ran), killed if len(killed) <= MANY else dict.fromkeys(killed, 1))
        self.parts |= ran | set(killed)

    def text(self):
        parts = sorted(self.parts)
        number = {part: n for n, part in enumerate(parts)}
        lines = []
        for name, v in sorted(self.mutants.items(), key=lambda item: (int(item[0]), item[0])):
            words = [f"{number[part]}:{count}" for part, count in sorted(v.killed.items()) if count > 1]
            words.append(ranges(number[part] for part, count in v.killed.items() if count == 1))
            lines.append(f"{json.dumps(name)}: {json.dumps([v.patch, v.ran, ' '.join(words).strip()])}")
        return ('{"what": "mutant: [hash of its patch, how many parts ran, which failed and in how many cases]",\n"parts": [\n'
                + ",\n".join(map(json.dumps, parts)) + '],\n"mutants": {\n' + ",\n".join(lines) + "}}\n")

    def save(self):
        text = self.text()
        if len(text.encode()) > MOST_BYTES:
            raise SystemExit(f"{self.path} would have {len(text.encode())} bytes, more than {MOST_BYTES}")
        self.path.write_text(text, encoding="utf-8")

    def keep_only(self, mutants):
        """Forgets patches that are gone or have changed."""
        now = {m.number: m.hash for m in mutants}
        self.mutants = {name: v for name, v in self.mutants.items() if now.get(name) == v.patch}

    def counts(self):
        deaths = [set(v.killed) for v in self.mutants.values()]
        return {"mutants": len(deaths), "alive": sum(not parts for parts in deaths), "by_one": sum(len(parts) == 1 for parts in deaths),
                "by_few": sum(2 <= len(parts) <= 5 for parts in deaths), "by_many": sum(len(parts) > 5 for parts in deaths),
                "parts": len(self.parts), "killers": len(set().union(*deaths)),
                "needed": len({part for parts in deaths if len(parts) == 1 for part in parts})}

    def dominated(self):
        """part → another one that kills all that it kills; of two equal ones the first in the alphabet stays."""
        of = {}
        for number, v in self.mutants.items():
            for part in v.killed:
                of.setdefault(part, set()).add(number)
        found = {}
        for part, own in of.items():
            others = [other for other, theirs in sorted(of.items()) if own < theirs or (own == theirs and other < part)]
            if others:
                found[part] = others[0]
        return found

    def paragraph(self, all_of_them):
        c = self.counts()
        return [
            "What else kills them: `scripts/mutants --all-killers` runs every test suite and Python file that executes a changed",
            "line, to its end, and writes [`killers.json`](../../tests/mutants/killers.json). What executes a line is measured, by",
            "gcov per GoogleTest suite and by coverage.py per Python file; for a changed kernel of SIMD, or a header that many",
            "include, everything runs. For a line of the library those Python files run that the patch names, for one of the",
            "command or the lab all that start it: what others execute of the library is not measured.", "",
            f"{c['mutants']} of {all_of_them} mutants so far: {c['by_one']} are killed by one suite or file alone, {c['by_few']} by two to",
            f"five, {c['by_many']} by more, {c['alive']} by none. Of {c['parts']} suites and files that ran {c['killers']} kill a mutant,",
            f"and {c['needed']} kill one that no other kills.", ""]


# ---- which mutants ----


def folder_of(mutant):
    return "/".join(next(iter(mutant.changed)).split("/")[:2])


def sample(mutants, size):
    """As many, from every folder its share. A patch that joins hardly changes the choice."""
    folders = {}
    for m in sorted(mutants, key=lambda m: hashlib.sha256(m.name.encode()).digest()):
        folders.setdefault(folder_of(m), []).append(m)
    places = [((place + 0.5) / len(members), folder, m)
              for folder, members in folders.items() for place, m in enumerate(members)]
    chosen = {m.name for _, _, m in sorted(places, key=lambda p: p[:2])[:size]}
    return [m for m in mutants if m.name in chosen]


def seventh(mutants, week):
    """Each mutant in one week of seven."""
    return [m for m in mutants if hashlib.sha256(m.name.encode()).digest()[0] % 7 == week % 7]


def changed_lines(patch):
    """file → lines that the patch takes out, or those around what it adds."""
    removed, around, line, file = {}, {}, 0, None
    for text in patch.splitlines():
        if text.startswith("--- a/"):
            file = text[6:]
            removed[file], around[file] = [], []
        elif text.startswith("@@ "):
            line = int(re.match(r"@@ -(\d+)", text)[1])
        elif text.startswith("+") and not text.startswith("+++"):
            around[file] += [line - 1, line]
        elif file and line and text[:1] in (" ", "-", ""):
            if text[:1] == "-":
                removed[file].append(line)
            line += 1
    return {file: removed[file] or around[file] for file in removed}


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
    """Of "All/OracleTest.Case/1" and of "OracleTest/0.": "OracleTest"."""
    pieces = test.partition(".")[0].split("/")
    return pieces[1] if len(pieces) > 1 and not pieces[1].isdigit() else pieces[0]


def names(kills, program, part):
    """Whether a `kill:` line names this part: gcov may not see a line that the compiler has moved."""
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
        if not words or not Path(words[0]).is_file() or "/build/" not in words[0] or {"example", "cuda"} & set(labels):
            continue
        program = Program(Path(words[0]).name, [words[0], *(w for w in words[1:] if not w.startswith("--gtest"))])
        if any(word.startswith("--gtest") for word in words):
            names = subprocess.run([words[0], "--gtest_list_tests"], check=True, capture_output=True, text=True).stdout
            program.suites = suites_of(program.name, names)
        programs.append(program)
    return programs


def run_program(program, parts, limit, **how):
    """part → cases that failed. A suite that crashes or hangs is over with that; those behind it get their turn."""
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


def lines_by_part(parts, code, changed, indented):
    """Parts that execute a changed line. One without code of its own belongs to the statement before it; outside of a
    function to everything that executes a line of its file."""
    found = set()
    for file, lines in changed.items():
        has_code = code.get(file, set())
        wanted = set(lines) & has_code
        if not wanted and indented:
            wanted = {max((line for line in has_code if line < min(lines)), default=0)} & has_code
        for part, executed in parts.items():
            here = executed.get(file, set())
            if here & wanted or (not wanted and here):
                found.add(part)
        if not has_code:  # a header of constants, or one not measured: every part may use it
            found |= set(parts)
    return found


class Coverage:
    """What was measured lies in a file of build/, and is measured again when what it depends on has changed."""

    def __init__(self, path, key):
        self.path, self.key = path, key
        data = json.loads(path.read_text()) if path.exists() else {}
        if data.get("key") != key:
            data = {"parts": {}, "sources": [], "failing": []}
        self.parts = {part: {f: set(numbers(lines)) for f, lines in files.items()} for part, files in data["parts"].items()}
        self.sources, self.failing = set(data["sources"]), set(data["failing"])

    def save(self):
        parts = {part: {f: ranges(lines) for f, lines in files.items()} for part, files in self.parts.items()}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps({"key": self.key, "parts": parts, "sources": sorted(self.sources), "failing": sorted(self.failing)}))

    def code(self):
        code = {}
        for files in self.parts.values():
            for file, lines in files.items():
                code.setdefault(file, set()).update(lines)
        return code


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


# What patches touch is compiled for gcov, all else as ever, so that the compiler cache has it.
COMPILER = """#!/bin/sh
for word in "$@"; do source=$word; done
if grep -qxF "$source" {list}; then set -- "$@" -O1 --coverage; fi
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
    """Runs every suite in a process of its own, with counters in a folder of its own."""
    build_dir = tree / "build" / "release"

    def cover(program, part):
        with tempfile.TemporaryDirectory(dir=build_dir) as folder:
            counting = {**env, "GCOV_PREFIX": folder, "GCOV_ERROR_FILE": "/dev/null"}
            failed = run_program(program, [part], limit, cwd=tree, env=counting)
            return part, bool(failed), gcov_lines(Path(folder), tree, build_dir)

    with ThreadPoolExecutor(jobs) as pool:
        for part, failed, lines in pool.map(lambda pair: cover(*pair), [(p, part) for p in programs for part in p.parts()]):
            coverage.parts[part] = lines
            if failed:
                coverage.failing.add(part)


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
