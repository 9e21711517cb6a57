# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The clock of scripts/test: which sections run in which order, what each may take, and what is left out for want of time.

scripts/test calls it with the seconds that bootstrap took and its own words. Before a section begins, what it will need is held against
what is left of DEADLINE. What does not fit is left out, stands in build/left-out as words for scripts/test, and comes first in the next
run. Nothing is ended halfway.

A budget counts CPU time in calibrations: one is what compiling scripts/calibration.cc takes on this machine in this run.
"""
import ctypes
import datetime
import hashlib
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Section:
    name: str
    required: bool = False  # a run that had no time for it fails
    builds_on: str = ""  # the section that compiles most of what this one needs
    weekly: bool = False  # of the weekly tier alone


#: In the order of what they find per second, because the clock cuts off the end. Reading the sources takes seconds. Release and Python run
#: nearly all tests, and the sanitizers see in the same tests what an assertion does not; no change goes in without these three. Threads
#: and packaging fail seldom, and nothing else sees it. Then come other inputs, machines and environments for what has passed by now.
SECTIONS = (
    Section("layers"), Section("format"), Section("release", required=True), Section("python", required=True, builds_on="release"),
    Section("asan", required=True), Section("tsan"), Section("install"), Section("fuzz", builds_on="asan"),
    Section("scalar", builds_on="release"), Section("nonumpy", builds_on="release"), Section("cuda"),
    Section("paths", weekly=True), Section("asan_gcc", weekly=True),
    Section("soak", builds_on="release", weekly=True), Section("mutants", weekly=True),
)
QUICK = ("layers", "format", "release", "python")
SKIPPED = 3  # exit status of a section that has nothing to run on here
TOLERANCE = 1.25  # over its budget by more than this, a section is named
PRIOR = 60.0  # seconds that the calibration weighs against what sections have shown of the machine
LEAST = 5.0  # calibrations: below, chance decides
WEEK = datetime.timedelta(days=7)

Machine = namedtuple("Machine", "unit cores")  # CPU seconds of a calibration, and how many cores' worth of CPU time it gets
Ended = namedtuple("Ended", "status cpu")


# ---- this machine ----


def cpus(groups=Path("/proc/self/cgroup"), mount=Path("/sys/fs/cgroup")):
    """How many jobs run at once: one per CPU, and fewer under a quota, which nproc does not know. Two at least share
    a quota, because tests mostly wait."""
    there = len(os.sched_getaffinity(0))
    quota = float(there)
    for line in groups.read_text().splitlines() if groups.exists() else ():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = mount / ("cpu" if controllers else "")
        group = top / path.lstrip("/")
        for folder in (group, *group.parents):
            if controllers:
                pair = [(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
                words = [file.read_text().strip() for file in pair if file.exists()]
            else:
                words = (folder / "cpu.max").read_text().split() if (folder / "cpu.max").exists() else []
            if len(words) == 2 and words[0] not in ("max", "-1"):
                quota = min(quota, int(words[0]) / int(words[1]))
            if folder == top:
                break
    return min(there, max(2, math.ceil(quota)))


def processor():
    found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    return f"{found[1] if found else os.uname().machine}, {cpus()} cores"


class Here:
    """Files that a run touches; a test has its own, with simulated sections and a simulated clock."""

    def __init__(self, spent=0.0, root=ROOT):
        self.root, self.begin = root, time.monotonic() - spent
        self.jobs = os.environ.get("JOBS") or str(cpus())

    def elapsed(self):
        return time.monotonic() - self.begin

    def today(self):
        return datetime.datetime.now(datetime.timezone.utc).date()

    def commit(self):
        def git(*words):
            return subprocess.run(["git", *words], cwd=self.root, capture_output=True, text=True, check=False).stdout.strip()
        return (git("rev-parse", "--short=10", "HEAD") or "unknown") + ("+" if git("status", "--porcelain", "-uno", "--", ":!docs/results") else "")

    def sources(self):
        """A hash of all that is compiled and of how: while it stands, a section that has passed finds its objects."""
        digest = hashlib.sha256()
        folders = ("include", "src", "tools", "lab", "bench", "examples", "tests", "cmake")
        files = [path for folder in folders for path in (self.root / folder).rglob("*")
                 if path.suffix in (".h", ".cc", ".c", ".cmake", ".txt")]
        for path in sorted([*files, self.root / "CMakeLists.txt", self.root / "CMakePresets.json"]):
            if path.is_file():
                digest.update(f"{path}\0".encode() + path.read_bytes())
        return digest.hexdigest()

    def calibrate(self):
        """The best of three, because a machine may stop for some seconds. One is enough if it had the cores for itself, and no new
        one begins after 15 seconds."""
        best, begin = Machine(1.0, 0.0), self.elapsed()
        for _ in range(3):
            best = max(best, self.compile(), key=lambda machine: machine.cores)
            if best.cores > 0.9 * min(2, int(self.jobs)) or self.elapsed() - begin > 15:
                break
        return best

    def compile(self):
        """Two at a time, as sections work: more than two cores' worth is never counted on."""
        command = ["g++", "-std=c++20", "-O1", "-c", "-o", "/dev/null", "scripts/calibration.cc"]
        begin, count = time.monotonic(), min(2, int(self.jobs))
        started = [subprocess.Popen(command, cwd=self.root, env={**os.environ, "CCACHE_DISABLE": "1"}) for _ in range(count)]
        ended = [self.wait(process) for process in started]
        if any(one.status for one in ended):
            sys.exit("scripts/calibration.cc does not compile")
        cpu = sum(one.cpu for one in ended)
        return Machine(cpu / count, cpu / (time.monotonic() - begin))

    def execute(self, name, tier):
        script = ('set -euo pipefail; source scripts/sections.sh; rm -f "build/logs/$1"; [ -t 1 ] || { mkdir -p build/logs; exec > >(exec tee "build/logs/$1") 2>&1; }; '
                  'about=about_$1; printf "\\n==== %s: %s\\n" "$1" "${!about}"; "section_$1"')
        process = subprocess.Popen(["bash", "-c", script, "bash", name], cwd=self.root,
                                   env={**os.environ, "TEST_TIER": tier, "JOBS": self.jobs})
        return self.wait(process, orphans=10.0)

    @staticmethod
    def wait(process, orphans=0.0):
        """Its exit status, and the CPU seconds of it and of every other child that ends until then; those that it has left behind
        have `orphans` seconds to end."""
        cpu, limit = 0.0, math.inf
        while time.monotonic() < limit:
            try:
                pid, status, usage = os.wait4(process.pid if not orphans else -1, os.WNOHANG if limit < math.inf else 0)
            except ChildProcessError:
                break
            cpu += usage.ru_utime + usage.ru_stime
            if pid == process.pid:
                process.returncode, limit = os.waitstatus_to_exitcode(status), time.monotonic() + orphans
            elif not pid:
                time.sleep(0.02)
        return Ended(process.returncode, cpu)


# ---- budgets: scripts/budgets.json ----
# For each section what it needed when it was last measured, `cpu` and `wall` in calibrations, and its `budget` in `cpu`: from nothing
# (`new`), where it has passed before (`warm`), and in whole (`weekly`, if that is more than `new`). What is common to all of them is from
# the last full measurement: machine, unit and cores.


def load(root=ROOT):
    return json.loads((root / "scripts" / "budgets.json").read_text(encoding="utf-8"))


def entry(figures, name, kind):
    of = figures["sections"][name]
    return of.get(kind) or of.get("new") or of["weekly"]


def clock(seconds):
    return f"{int(seconds + 0.5) // 60}:{int(seconds + 0.5) % 60:02d}"


def table(figures, sections=SECTIONS):
    """For CONTRIBUTING.md."""
    head = (f"Measured at {figures['commit']} on {figures['date']}: {figures['machine']}, one calibration {figures['unit']:.2f} CPU s. "
            "CPU s and wall are from nothing.")
    def row(name, *cells):
        return f"| {name} | " + " | ".join("" if cell is None else cell if isinstance(cell, str) else f"{cell:.0f}" for cell in cells) + " |"

    rows, sums, weekly = [], [0.0] * 4, 0.0
    for section in sections:
        of = figures["sections"][section.name]
        new, warm, whole = (of.get(kind, {}) for kind in ("new", "warm", "weekly"))
        cells = [new.get("budget"), warm.get("budget"), *(new[key] * figures["unit"] if new else None for key in ("cpu", "wall"))]
        sums = [have + (cell or 0) for have, cell in zip(sums, cells)]
        weekly += (whole or new)["budget"]
        rows.append(row(f"`{section.name}`", cells[0], cells[1], whole.get("budget"), cells[2], clock(cells[3]) if new else None))
    return "\n".join([head, "", "| section | from nothing | warm | weekly | CPU s | wall |", "|---|---:|---:|---:|---:|---:|", *rows,
                      row("all", sums[0], sums[1], weekly, sums[2], clock(sums[3]))])


def take(figures, run):
    """Takes what a run measured of sections that passed. A budget that no longer fits is set to a tenth more."""
    for name, found in run["sections"].items():
        if found["result"] != "passed":
            continue
        of = figures["sections"].setdefault(name, {}).setdefault(found["kind"], {})
        of["cpu"], of["wall"] = (max(0.1, round(found[key] / run["unit"], 1)) for key in ("cpu", "wall"))
        if not of["cpu"] <= of.get("budget", 0) <= max(LEAST, 1.5 * of["cpu"]):
            of["budget"] = max(LEAST, math.ceil(1.1 * of["cpu"]))
    whole = {name for name, found in run["sections"].items() if found["kind"] == "new" and found["result"] != "FAILED"}
    if whole >= {name for name, of in figures["sections"].items() if "new" in of}:
        figures.update({key: run[key] for key in ("machine", "unit", "cores", "date", "commit")})


def record(here, words, root):
    """scripts/test --record: what the last run in `root` measured, into scripts/budgets.json and CONTRIBUTING.md."""
    names = [section.name for section in chosen(words)[1]]
    run = json.loads((root / "build" / "last-run.json").read_text())
    run["sections"] = {name: found for name, found in run["sections"].items() if name in names}
    figures, page = load(here.root), here.root / "CONTRIBUTING.md"
    take(figures, run)
    (here.root / "scripts" / "budgets.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    page.write_text(re.sub(r"^Measured at .*?\n\n\|.*?\n\n", lambda _: table(figures) + "\n\n", page.read_text(encoding="utf-8"),
                           flags=re.M | re.S), encoding="utf-8")


def measure(here, words):
    """scripts/test --cpu: the same of a clone with an empty compiler cache, as after `git clone`, and of a second run there."""
    weekly, sections = chosen(words)
    named = list(dict.fromkeys(name for s in sections for name in (s.builds_on, s.name) if name))
    with tempfile.TemporaryDirectory(prefix="laconic-") as folder:
        clone = Path(folder) / "laconic"
        subprocess.run(["git", "clone", "-q", here.root, clone], check=True)
        environment = {name: value for name, value in os.environ.items() if name not in ("DEADLINE", "CCACHE_BASEDIR")}
        environment["CCACHE_DIR"] = f"{folder}/ccache"
        status = 0
        for _ in range(1 if weekly else 2):
            status |= subprocess.run([clone / "scripts" / "test", *(["weekly"] if weekly else []), *named], env=environment, check=False).returncode
            record(here, words, clone)
    return status


# ---- one run ----


class Run:
    """Sections one after the other, as long as there is time."""

    def __init__(self, here, sections, weekly=False, deadline=math.inf, figures=None):
        self.here, self.weekly, self.deadline = here, weekly, deadline
        self.figures = figures or load(here.root)
        self.state = here.root / "build"
        self.sources, self.commit = here.sources(), here.commit()
        first = self.left_before()
        self.queue = sorted(sections, key=lambda section: section.name not in first)
        self.names = [section.name for section in sections]
        self.begun = here.elapsed()
        self.machine = here.calibrate()
        self.used = self.by_budget = self.by_cpu = PRIOR
        self.rows, self.results, self.over, self.left_out = [], {}, [], []

    # what a section will need

    def built(self, name):
        file = self.state / ".passed" / name
        return name in self.results or (file.exists() and file.read_text() == self.sources)

    def kind(self, name):
        if self.weekly:
            return "weekly"
        return "warm" if self.built(name) else "new"

    def expected(self, of, cpu):
        """The seconds that `cpu` CPU seconds of a section with these figures take by the calibration."""
        cores = self.figures["cores"]
        return of["wall"] / of["cpu"] * cpu * cores / min(cores, self.machine.cores)

    def factor(self):
        """How much slower this machine is than its calibration. Two answers, of which the worse counts: a section served by the compiler
        cache takes far less than its budget, and says nothing about the next; of its CPU time it takes as long as others."""
        return max(self.used / self.by_budget, self.used / self.by_cpu)

    def needs(self, section, built=()):
        """Seconds; where a section that this one builds on has not run here, those of that one, too."""
        of = entry(self.figures, section.name, self.kind(section.name))
        seconds = self.expected(of, of["budget"] * self.machine.unit) * self.factor()
        before = next((s for s in SECTIONS if s.name == section.builds_on), None)
        if before and before.name not in built and not self.built(before.name):
            seconds += self.needs(before, built)
        return seconds

    # left out

    def words(self, name):
        return f"weekly {name}" if self.weekly else name

    def left_before(self):
        file = self.state / "left-out"
        lines = file.read_text().splitlines() if file.exists() else []
        return [line.split()[-1] for line in lines if line.startswith("weekly ") == self.weekly]

    def keep(self, name, left):
        """build/left-out with or without a section. What has run in whole has run for every change, too."""
        file = self.state / "left-out"
        lines = file.read_text().splitlines() if file.exists() else []
        gone = {self.words(name)} if left else {self.words(name), name}
        lines = [line for line in lines if line not in gone] + ([self.words(name)] if left else [])
        if lines:
            file.parent.mkdir(exist_ok=True)
            file.write_text("\n".join(lines) + "\n")
        else:
            file.unlink(missing_ok=True)

    # running

    def run(self):
        while self.queue:
            section = self.queue.pop(0)
            needs, left = self.needs(section), self.deadline - self.here.elapsed()
            if not section.required and needs + self.still_required(section) > left and any(s.required for s in self.queue):
                # Sections that a pass needs come before those that it can do without.
                self.queue = [s for s in self.queue if s.required] + [section] + [s for s in self.queue if not s.required]
            elif needs > left:
                self.left_out.append(section)
                self.keep(section.name, left=True)
                print(f"\n---- {section.name}: left out, would need {clock(needs)} of {clock(max(0.0, left))}", flush=True)
            else:
                self.one(section.name)
        self.report()
        line, status = self.last_line()
        print(f"\n{line}", flush=True)
        return status

    def still_required(self, first):
        """Seconds of the required sections to come after `first`."""
        built, seconds = {first.name}, 0.0
        for section in (s for s in self.queue if s.required):
            seconds += self.needs(section, built)
            built.add(section.name)
        return seconds

    def one(self, name):
        begin, kind = self.here.elapsed(), self.kind(name)
        of = entry(self.figures, name, kind)
        budget = of["budget"]
        status, cpu = self.here.execute(name, "weekly" if self.weekly else "change")
        wall, unit = self.here.elapsed() - begin, self.machine.unit
        if status == 0:
            # The clocks of the machine may have changed since the calibration.
            if cpu > TOLERANCE * budget * unit:
                unit = max(unit, self.here.calibrate().unit)
            if cpu > TOLERANCE * budget * unit:
                self.over.append(name)
            self.used += wall
            self.by_budget += self.expected(of, of["cpu"] * self.machine.unit)
            self.by_cpu += self.expected(of, cpu)
            (self.state / ".passed").mkdir(parents=True, exist_ok=True)
            (self.state / ".passed" / name).write_text(self.sources)
        result = {0: "passed", SKIPPED: "skipped"}.get(status, "FAILED")
        self.results[name] = {"kind": kind, "cpu": cpu, "wall": wall, "result": result}
        print(f"---- {name}: {result} in {clock(wall)}, {cpu:.1f} CPU s, {cpu / unit:.0f} of {budget:.0f} calibrations", flush=True)
        self.rows.append((name, f"{cpu:.1f}", f"{cpu / unit:.0f}", f"{budget:.0f}", clock(wall)))
        self.keep(name, left=False)
        self.write()

    def having(self, result):
        return [name for name, of in self.results.items() if of["result"] == result]

    # what is written and printed

    def write(self):
        """build/last-run.json, and in the weekly tier its page: after each section, since the run may be cut off."""
        known = {"machine": processor(), **self.machine._asdict(), "date": str(self.here.today()), "commit": self.commit,
                 "sections": self.results}
        self.state.mkdir(exist_ok=True)
        (self.state / "last-run.json").write_text(json.dumps(known, indent=1))
        if self.weekly:
            write_page(self)

    def report(self):
        rows = [("section", "CPU s", "used", "budget", "wall"), ("bootstrap", "", "", "", clock(self.begun)), *self.rows]
        cpu = sum(of["cpu"] for of in self.results.values())
        rows.append(("all", f"{cpu:.1f}", f"{cpu / self.machine.unit:.0f}", "", clock(self.here.elapsed())))
        print(f"\none calibration: {self.machine.unit:.2f} CPU s, {self.machine.cores:.2f} cores")
        for name, *cells in rows:
            print(f"{name:10}" + "".join(f"{cell:>9}" for cell in cells))
        for name in self.having("FAILED"):
            print(f"\n{name}:", *failures(self.state / "logs" / name), sep="\n  ")

    def last_line(self):
        """(everything that is not as it should be in one line, exit status)"""
        failed, skipped, left = self.having("FAILED"), self.having("skipped"), [s.name for s in self.left_out]
        lacking = [s.name for s in self.left_out if s.required]
        broken = failed + (self.over if self.weekly else [])
        prefix, notes = "scripts/test weekly" if self.weekly else "scripts/test", []
        if broken:
            notes.append(f"FAILED: {' '.join(broken)}; repeat with: {prefix} {' '.join(broken)}")
        if lacking:
            notes.append(f"FAILED: no time for {' '.join(lacking)}, without which nothing passes")
        if not notes:
            notes.append(f"All of {' '.join(name for name in self.names if name in self.having('passed'))} passed in {clock(self.here.elapsed())}")
        if left:
            notes.append(f"left out: {' '.join(left)}; make up for it with: {prefix} {' '.join(left)}")
        if skipped:
            notes.append(f"skipped: {' '.join(skipped)}")
        if self.over:
            notes.append(f"25 % over budget: {' '.join(self.over)}")
        missing = self.state / ".bootstrap" / "missing"
        if missing.exists() and missing.read_text().split():
            notes.append(f"without {' '.join(missing.read_text().split())}: their tests were skipped")
        if {s.name for s in SECTIONS if s.required} <= set(self.names) and (old := stale(self.here, skipped)):
            notes.append(f"docs/results/weekly.md: {old}; make test TIER=weekly")
        return "; ".join(notes) + ".", 1 if broken or lacking else 0


FAILURE = re.compile(r"^(FAILED|ERROR|E   )|, more than \d+$|\(Failed\)|\(Timeout\)|(^|\s)(fatal )?error:|Sanitizer: ")


def failures(log):
    """What the log of a section says about its failure, and its last lines: who sees only the end of a run sees what failed."""
    lines = [line[:240] for line in log.read_text(encoding="utf-8", errors="replace").splitlines()] if log.exists() else []
    return [line for line in lines[:-5] if FAILURE.search(line)][-20:] + lines[-5:]


# ---- docs/results/weekly.md ----

ROW = re.compile(r"^\| `(\w+)` \| (\S+) \| (\S*) \| (\S*) \| (\S*) \| (.+) \|$", re.M)


def page_of(here):
    return here.root / "docs" / "results" / "weekly.md"


def last_whole(here):
    """section -> (date of its last whole run or `never`, commit, CPU s, wall, result)"""
    page = page_of(here)
    return {name: cells for name, *cells in ROW.findall(page.read_text(encoding="utf-8"))} if page.exists() else {}


def stale(here, skipped=()):
    """Rows of the page that are older than a week."""
    rows = last_whole(here)
    limit = str(here.today() - WEEK)
    old = [s.name for s in SECTIONS if s.name not in skipped and (s.name not in rows or not rows[s.name][0] >= limit or rows[s.name][0] == "never")]
    if not old:
        return ""
    return "older than a week" + (f": {' '.join(old)}" if len(old) < len(SECTIONS) - len(skipped) else "")


def write_page(run):
    """The rows of what has run; those of the other sections stay."""
    rows = last_whole(run.here)
    for name, of in run.results.items():
        if of["result"] == "skipped":
            rows[name] = [*rows.get(name, ["never", "", "", ""])[:4], "skipped"]
        else:
            result = "25 % over budget" if name in run.over else of["result"]
            rows[name] = [str(run.here.today()), run.commit, f"{of['cpu']:.0f}", clock(of["wall"]), result]
    failed = [name for name in run.results if run.results[name]["result"] == "FAILED" or name in run.over]
    lines = [f"| `{s.name}` | {' | '.join(rows.get(s.name, ['never', '', '', '', 'not run yet']))} |" for s in SECTIONS]
    page_of(run.here).parent.mkdir(parents=True, exist_ok=True)
    page_of(run.here).write_text("\n".join([
        "# The weekly tier", "",
        "Every section in whole, and those that a change does not wait for. Written by `make test TIER=weekly`, which leaves the rows",
        "of what it did not run as they are.", "",
        f"Last run: {run.here.today()} at {run.commit} on {processor()}; one calibration took {run.machine.unit:.2f} CPU s.",
        f"It ran: {' '.join(run.results)}. Failed: {' '.join(failed) or 'nothing'}.", "",
        "| section | last ran whole | commit | CPU s | wall | result |", "|---|---|---|---:|---:|---|", *lines, ""]), encoding="utf-8")


# ---- arguments ----


def limit_of(text):
    """`45m` as seconds; nothing: no limit."""
    if not text:
        return math.inf
    found = re.fullmatch(r"(\d+)([smh])", text)
    if not found:
        sys.exit(f"DEADLINE={text}: a number and s, m or h, as in 45m")
    return int(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]]


def chosen(words):
    """(whether in whole, sections) of scripts/test's arguments."""
    tier, *names = words if words and words[0] in ("quick", "all", "weekly") else ("all", *words)
    known = {section.name: section for section in SECTIONS}
    for name in names:
        if name not in known:
            sys.exit(f"no section '{name}'; there are: {' '.join(known)}")
    if names:
        sections = [section for section in SECTIONS if section.name in names]
    else:
        sections = [s for s in SECTIONS if (s.name in QUICK if tier == "quick" else tier == "weekly" or not s.weekly)]
    return tier == "weekly", sections


def main(spent, *words):
    here = Here(float(spent))
    # Processes that outlive their parents become children of this one; otherwise their CPU time would not be counted.
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    if words[:1] == ("--cpu",):
        return measure(here, words[1:])
    if words[:1] == ("--record",):
        return record(here, words[1:], here.root)
    weekly, sections = chosen(words)
    try:
        return Run(here, sections, weekly, limit_of(os.environ.get("DEADLINE", ""))).run()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
