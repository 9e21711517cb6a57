# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The clock of scripts/test: what fits into a deadline, what is left out and made up for, budgets against what was measured, the page of
the weekly tier. Sections and their clock are simulated, except in the tests of a whole checkout at the end."""

import datetime
import importlib.util
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SECTIONS_SH = (ROOT / "scripts" / "sections.sh").read_text(encoding="utf-8")
LIMITS = {"new": 2750, "warm": 2200}  # calibrations: about CPU seconds on a current server
CI_MINUTES = 70
TODAY = datetime.date(2026, 11, 27)

spec = importlib.util.spec_from_file_location("proof", ROOT / "scripts" / "proof.py")
proof = importlib.util.module_from_spec(spec)
sys.modules["proof"] = proof
spec.loader.exec_module(proof)
FIGURES = proof.load()
BY_NAME = {section.name: section for section in proof.SECTIONS}


def machine(**needs):
    """Figures of a machine whose calibration takes a CPU second on each of two cores; what sections need: seconds from nothing, warm."""
    def of(wall):
        return {"cpu": 2.0 * wall, "wall": wall, "budget": 2.0 * wall}
    needs = {name: (10, 5) for name in BY_NAME} | needs
    return {"machine": "a machine", "commit": "1", "date": "1", "unit": 1.0, "cores": 2.0, "sections": {name: {"new": of(new), "warm": of(warm)} for name, (new, warm) in needs.items()}}


class Simulated(proof.Here):
    """Sections that take what their figures say, times `slower`, or what `takes` says: (status, CPU seconds, seconds)."""

    def __init__(self, root, figures, bootstrap=0.0, slower=1.0, unit=1.0, cores=2.0, **takes):
        self.root, self.figures, self.now, self.slower, self.takes = root, figures, bootstrap, slower, takes
        self.measured = proof.Machine(unit, cores)
        self.ran, self.hash, self.day, self.calibrated = [], "sources", TODAY, 0

    def elapsed(self):
        return self.now

    def today(self):
        return self.day

    def commit(self):
        return "0123456789"

    def sources(self):
        return self.hash

    def calibrate(self):
        self.calibrated += 1
        return self.measured

    def execute(self, name, tier):
        self.ran.append(name)
        passed = self.root / "build" / ".passed" / name
        of = proof.entry(self.figures, name, "warm" if passed.exists() and passed.read_text() == self.hash else "new")
        wall = of["wall"] * self.measured.unit * self.figures["cores"] / min(self.figures["cores"], self.measured.cores) * self.slower
        status, cpu, wall = self.takes.get(name, (0, of["cpu"] * self.measured.unit, wall))
        self.now += wall
        return proof.Ended(status, cpu)


def run(here, words=(), deadline=math.inf):
    """(exit status, last line) of a run; here.ran has what ran in it."""
    here.ran = []
    weekly, sections = proof.chosen(words)
    this = proof.Run(here, sections, weekly, deadline, here.figures)
    status = this.run()
    return status, this.last_line()[0]


def left_out(here):
    file = here.root / "build" / "left-out"
    return file.read_text().splitlines() if file.exists() else []


@pytest.fixture
def here(tmp_path):
    (tmp_path / "build").mkdir()
    return lambda *args, **kwargs: Simulated(tmp_path, *(args or (machine(),)), **kwargs)


# ---- the table ----


def test_contributing_shows_the_budgets():
    assert f"\n\n{proof.table(FIGURES)}\n\n" in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_every_section_has_a_function_and_a_budget():
    assert list(FIGURES["sections"]) == list(BY_NAME)
    assert set(re.findall(r"^section_(\w+)\(\)", SECTIONS_SH, re.M)) == set(BY_NAME) == set(re.findall(r"^about_(\w+)=", SECTIONS_SH, re.M))
    for section in proof.SECTIONS:
        of = FIGURES["sections"][section.name]
        assert {"weekly"} == set(of) if section.weekly else {"new", "warm"} <= set(of), section.name


def test_budgets_add_up():
    for kind, limit in LIMITS.items():
        assert sum(proof.entry(FIGURES, s.name, kind)["budget"] for s in proof.SECTIONS if not s.weekly) <= limit


def test_section_budgets_grow_from_warm_to_whole():
    for name, of in FIGURES["sections"].items():
        if "new" in of:
            assert of["warm"]["budget"] <= of["new"]["budget"] <= of.get("weekly", of["new"])["budget"], name


def test_budgets_are_at_most_one_and_a_half_times_measured():
    for name, of in FIGURES["sections"].items():
        for kind, figures in of.items():
            assert figures["cpu"] <= figures["budget"] <= max(proof.LEAST, 1.5 * figures["cpu"]), (name, kind)


def test_measurement_replaces_budget_that_no_longer_fits():
    figures = machine(format=(100, 50))
    def measured(cpu):
        proof.take(figures, {"unit": 2.0, "sections": {"format": {"kind": "new", "cpu": cpu, "wall": 30.0, "result": "passed"},
                                                       "layers": {"kind": "new", "cpu": cpu, "wall": 30.0, "result": "FAILED"}}})
        return figures["sections"]["format"]["new"]
    assert measured(390) == {"cpu": 195, "wall": 15, "budget": 200}  # as it was
    assert measured(404) == {"cpu": 202, "wall": 15, "budget": 223}
    assert measured(260) == {"cpu": 130, "wall": 15, "budget": 143}
    assert measured(1) == {"cpu": 0.5, "wall": 15, "budget": proof.LEAST}
    assert figures["sections"]["layers"] == machine()["sections"]["layers"]


def test_table_names_machine_of_last_full_measurement():
    figures, result = machine(), {"nonumpy": "skipped"}
    for missing, unit in (("tsan", 1.0), ("", 2.0)):
        found = {name: {"kind": "new", "cpu": 9.0, "wall": 9.0, "result": result.get(name, "passed")} for name in BY_NAME if name != missing}
        proof.take(figures, {"machine": "another", "unit": 2.0, "cores": 2.0, "date": "2", "commit": "2", "sections": found})
        assert figures["unit"] == unit
    assert "another" in proof.table(figures)


# ---- order and deadline ----


def test_sections_run_in_order_of_list_without_deadline(here):
    this = here()
    assert run(this)[0] == 0
    assert this.ran == "layers format release python asan tsan install fuzz scalar nonumpy cuda".split()
    assert run(this, ["quick"])[0] == 0 and this.ran == "layers format release python".split()
    assert run(this, ["fuzz", "layers"])[0] == 0 and this.ran == ["layers", "fuzz"]


def test_large_sections_are_left_out_and_smaller_ones_run(here):
    this = here(machine(tsan=(100, 50), nonumpy=(51, 5)))
    status, line = run(this, deadline=130)
    assert (status, this.now) == (0, 90)
    assert this.ran == "layers format release python asan install fuzz scalar cuda".split()
    assert "; left out: tsan nonumpy; make up for it with: scripts/test tsan nonumpy;" in line
    assert left_out(this) == ["tsan", "nonumpy"]


def test_next_run_begins_with_omitted_sections(here):
    this = here(machine(tsan=(100, 50), nonumpy=(51, 5)))
    run(this, deadline=130)
    this.now = 0
    assert run(this, ["quick"])[0] == 0 and this.ran[0] == "layers" and left_out(this) == ["tsan", "nonumpy"]
    this.now = 0
    assert run(this)[0] == 0
    assert this.ran[:3] == ["tsan", "nonumpy", "layers"] and len(this.ran) == 11
    assert not (this.root / "build" / "left-out").exists()


def test_command_of_last_line_clears_omitted_sections(here):
    this = here(machine(tsan=(100, 50), nonumpy=(51, 5)))
    run(this, deadline=130)
    this.takes["tsan"] = (1, 1.0, 1.0)
    assert run(this, ["tsan"])[0] == 1  # it failed, which is known
    assert left_out(this) == ["nonumpy"]


def test_run_without_time_for_required_section_fails(here):
    this = here(machine(asan=(500, 400)))
    status, line = run(this, deadline=300)
    assert status == 1 and "asan" not in this.ran and len(this.ran) == 9
    assert line.startswith("FAILED: no time for asan, without which nothing passes; "
                           "left out: asan fuzz; make up for it with: scripts/test asan fuzz;")
    assert run(this, ["quick"], deadline=700)[0] == 0  # it is no part of that one


def test_required_sections_precede_omitted_ones_if_time_is_short(here):
    this = here(machine(release=(100, 100), python=(100, 100), asan=(100, 100), tsan=(100, 100)))
    (this.root / "build" / "left-out").write_text("tsan\n")
    assert run(this, deadline=350)[0] == 0
    assert this.ran[:3] == ["release", "python", "asan"] and left_out(this)[0] == "tsan"


def test_time_before_the_first_section_counts(here):
    assert run(here(bootstrap=5.0), ["layers"], deadline=15)[1].startswith("All of layers passed")
    assert "left out: format" in run(here(bootstrap=6.0), ["format"], deadline=15)[1]


def test_section_needs_less_after_passing_with_same_sources(here):
    this = here(machine(tsan=(100, 10)))
    assert "left out" in run(this, ["tsan"], deadline=50)[1]
    assert run(this, ["tsan"])[0] == 0
    this.now = 0
    assert "left out" not in run(this, ["tsan"], deadline=50)[1]
    this.now, this.hash = 0, "other sources"
    assert "left out" in run(this, ["tsan"], deadline=50)[1]


@pytest.mark.parametrize("status", [1, proof.SKIPPED])
def test_failed_or_skipped_section_is_not_warm(here, status):
    this = here(tsan=(status, 1.0, 1.0))
    assert run(this, ["tsan"])[0] == (status == 1)
    assert proof.Run(this, [], figures=this.figures).kind("tsan") == "new"


def test_section_that_builds_on_another_needs_time_of_both(here):
    this = here(machine(release=(100, 10), python=(50, 50)))
    assert "left out: python" in run(this, ["python"], deadline=140)[1]
    assert "left out" not in run(this, ["release", "python"], deadline=151)[1]
    this.now = 0
    assert "left out" not in run(this, ["python"], deadline=60)[1]


def test_machine_slower_than_its_calibration_is_detected(here):
    figures = machine(release=(600, 1), tsan=(100, 1))
    assert "left out" not in run(here(figures, slower=1.5), ["release", "tsan"], deadline=1080)[1]
    fresh = here(figures, slower=1.5)
    fresh.hash = "other sources"
    assert "left out: tsan" in run(fresh, ["release", "tsan"], deadline=1020)[1]


def test_compiler_cache_makes_no_machine_fast(here):
    """Release takes a tenth of its budget; Python after it does not."""
    this = here(machine(release=(600, 1), python=(700, 700)), release=(0, 120.0, 60.0))
    assert "left out: python" in run(this, ["release", "python"], deadline=750)[1]


def test_overrun_of_section_is_expected_of_next(here):
    this = here(machine(release=(600, 1), tsan=(100, 1)), release=(0, 2400.0, 1200.0))
    assert "left out: tsan" in run(this, ["release", "tsan"], deadline=1350)[1]


def test_slow_processor_and_few_cores_are_known_at_start(here):
    assert "left out" not in run(here(machine(tsan=(100, 1))), ["tsan"], deadline=101)[1]
    this = here(machine(tsan=(100, 1)), unit=2.0, cores=1.0)
    this.hash = "other sources"
    assert "left out: tsan" in run(this, ["tsan"], deadline=399)[1]


@pytest.mark.parametrize(("cores", "unit"), [(2 / 3, 1.0), (2.0, 3.0)])
def test_two_thirds_of_a_core_fit_required_sections_into_ci(here, cores, unit):
    """With the real budgets, from nothing. Three minutes of bootstrap."""
    this = here(FIGURES, bootstrap=180.0, unit=unit * FIGURES["unit"], cores=cores)
    assert run(this, deadline=60 * CI_MINUTES)[0] == 0
    assert {s.name for s in proof.SECTIONS if s.required} <= set(this.ran)
    assert this.now <= 60 * CI_MINUTES


@pytest.mark.parametrize("slower", [1.0, 1.3])
def test_five_minutes_end_within_five_and_a_half(here, slower):
    """With the real budgets, from nothing, also where sections take longer than the calibration expects."""
    this = here(FIGURES, bootstrap=60.0, slower=slower)
    status, line = run(this, deadline=300)
    assert this.now <= 330 and this.ran
    lacking = [s.name for s in proof.SECTIONS if s.required and s.name not in this.ran]
    assert lacking and status == 1 and f"FAILED: no time for {' '.join(lacking)}, without" in line


# ---- what a run says ----


def test_section_a_quarter_over_budget_is_named(here):
    this = here(layers=(0, 24.9, 1.0), format=(0, 25.1, 1.0))
    assert run(this, ["layers", "format"]) == (0, "All of layers format passed in 0:02; 25 % over budget: format.")


def test_section_is_not_over_budget_on_slowed_machine(here):
    this = here(format=(0, 25.1, 1.0))
    before = this.calibrate
    this.calibrate = lambda: before() if not this.ran else proof.Machine(1.01, 2.0)
    assert "over budget" not in run(this, ["format"])[1]


def test_failed_and_skipped_sections_are_named_and_others_run(here):
    this = here(layers=(1, 1.0, 1.0), format=(3, 1.0, 1.0), release=(2, 1.0, 1.0))
    assert run(this, ["layers", "format", "release", "python"]) == (
        1, "FAILED: layers release; repeat with: scripts/test layers release; skipped: format.")
    assert this.ran == ["layers", "format", "release", "python"]


def test_failure_is_no_evidence_about_machine(here):
    this = here(machine(release=(10, 1), tsan=(100, 1)), release=(1, 1.0, 300.0))
    assert "left out" not in run(this, ["release", "tsan"], deadline=420)[1]


def test_tests_skipped_for_a_missing_package_are_named(here):
    this = here()
    (this.root / "build" / ".bootstrap").mkdir()
    missing = this.root / "build" / ".bootstrap" / "missing"
    missing.write_text("mpich\nlibgloo-dev\n")
    assert run(this, ["layers"])[1].endswith("; without mpich libgloo-dev: their tests were skipped.")
    missing.write_text("")
    assert "without" not in run(this, ["layers"])[1]


def test_usage_is_printed_against_budget(here, capsys):
    run(here(unit=2.0, bootstrap=5.0, tsan=(0, 36.0, 21.0)), ["tsan"])
    out = capsys.readouterr().out
    assert "---- tsan: passed in 0:21, 36.0 CPU s, 18 of 20 calibrations" in out
    assert re.search(r"^section +CPU s +used +budget +wall\nbootstrap +0:05\ntsan +36.0 +18 +20 +0:21\nall +36.0 +18 +0:26$", out, re.M)


# ---- the weekly tier ----


def page(here):
    return {name: cells for name, *cells in proof.ROW.findall((here.root / "docs/results/weekly.md").read_text())}


def test_weekly_tier_runs_everything_and_writes_dates(here):
    this = here(nonumpy=(3, 0.0, 0.0))
    assert run(this, ["weekly"])[0] == 0 and set(this.ran) == set(BY_NAME)
    rows = page(this)
    assert list(rows) == list(BY_NAME)
    assert rows["soak"] == ["2026-11-27", "0123456789", "20", "0:10", "passed"]
    assert rows["nonumpy"] == ["never", "", "", "", "skipped"]
    this.day, this.takes["tsan"], this.takes["fuzz"] = TODAY + proof.WEEK, (1, 1.0, 1.0), (0, 26.0, 1.0)
    status, line = run(this, ["weekly", "tsan", "fuzz"])
    assert status == 1 and line.startswith("FAILED: tsan fuzz; repeat with: scripts/test weekly tsan fuzz; 25 % over budget: fuzz")
    rows = page(this)
    assert rows["tsan"][0] == "2026-12-04" and rows["tsan"][4] == "FAILED" and rows["fuzz"][4] == "25 % over budget"
    assert rows["soak"][0] == "2026-11-27"
    assert "Failed: tsan fuzz." in (this.root / "docs/results/weekly.md").read_text()


def test_weekly_run_uses_weekly_budgets(here):
    figures = machine()
    figures["sections"]["fuzz"]["weekly"] = {"cpu": 200, "wall": 100, "budget": 200}
    this = here(figures, fuzz=(0, 240.0, 100.0))
    assert "over" not in run(this, ["weekly", "fuzz"])[1]
    assert "over budget: fuzz" in run(this, ["fuzz"])[1]


def test_omissions_of_weekly_tier_are_repaired_by_weekly_tier(here):
    this = here(machine(soak=(1000, 1), tsan=(1000, 1)))
    (this.root / "build" / "left-out").write_text("fuzz\ntsan\n")
    status, line = run(this, ["weekly"], deadline=900)
    assert status == 0 and "left out: tsan soak; make up for it with: scripts/test weekly tsan soak" in line
    assert left_out(this) == ["tsan", "weekly tsan", "weekly soak"]  # fuzz has run in whole
    this.now = 0
    run(this)
    assert this.ran[0] == "tsan" and "soak" not in this.ran and left_out(this) == ["weekly tsan", "weekly soak"]
    run(this, ["weekly"])
    assert this.ran[:2] == ["tsan", "soak"] and not left_out(this)


def test_page_older_than_a_week_is_reported_in_last_line(here):
    this = here()
    assert run(this)[1].endswith("; docs/results/weekly.md: older than a week; make test TIER=weekly.")
    assert "weekly.md" not in run(this, ["release"])[1]  # no proof of everything
    run(this, ["weekly"])
    this.day = TODAY + proof.WEEK
    assert "weekly.md" not in run(this)[1]
    run(this, ["weekly", "soak"])
    this.day += datetime.timedelta(days=1)
    assert run(this)[1].endswith(f"older than a week: {' '.join(name for name in BY_NAME if name != 'soak')}; make test TIER=weekly.")
    this.takes["nonumpy"] = (3, 0.0, 0.0)
    assert " nonumpy " not in run(this)[1].split("older than a week:")[1]


# ---- this machine ----


@pytest.mark.parametrize(("text", "limit"), [("", math.inf), ("45m", 2700), ("90s", 90), ("2h", 7200)])
def test_deadline_is_parsed(text, limit):
    assert proof.limit_of(text) == limit


@pytest.mark.parametrize("text", ["45", "m", "5 m", "-1m"])
def test_invalid_deadline_is_refused(text):
    with pytest.raises(SystemExit, match="DEADLINE"):
        proof.limit_of(text)


def test_ci_omits_sections_that_do_not_fit():
    assert f"DEADLINE={CI_MINUTES}m" in (ROOT / ".ci" / "run").read_text()


@pytest.mark.parametrize(("group", "files", "jobs"), [
    ("0::/job\n", {}, 16), ("0::/job\n", {"cpu.max": "max 100000", "job/cpu.max": "max 100000"}, 16),
    ("0::/job\n", {"job/cpu.max": "350000 100000"}, 4), ("0::/a/b\n", {"a/cpu.max": "300000 100000", "a/b/cpu.max": "max 100000"}, 3),
    ("0::/job\n", {"job/cpu.max": "66666 100000"}, 2), ("0::/elsewhere\n", {"cpu.max": "500000 100000"}, 5),
    ("4:cpu,cpuacct:/job\n0::/\n", {"cpu/job/cpu.cfs_quota_us": "300000", "cpu/job/cpu.cfs_period_us": "100000"}, 3),
    ("4:cpu:/job\n", {"cpu/job/cpu.cfs_quota_us": "-1", "cpu/job/cpu.cfs_period_us": "100000"}, 16), ("3:cpuset:/job\n", {}, 16)])
def test_quota_lowers_the_number_of_jobs(tmp_path, monkeypatch, group, files, jobs):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    (tmp_path / "group").write_text(group)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    assert proof.cpus(tmp_path / "group", tmp_path) == jobs


def test_pause_during_calibration_repeats_it(tmp_path):
    this = proof.Here(root=tmp_path)
    this.jobs, now = "4", 0.0

    def calibrated(*compiled):
        """The ratios that it computes from (cores, seconds) of each time."""
        nonlocal now
        now, rest = 0.0, iter(compiled)

        def compile():
            nonlocal now
            cores, took = next(rest)
            now += took
            return proof.Machine(1.0, cores)

        this.elapsed, this.compile = lambda: now, compile
        return this.calibrate().cores

    assert calibrated((0.2, 11), (1.9, 1), (2.0, 1)) == 1.9
    assert calibrated((0.6, 5), (0.7, 5), (0.5, 5)) == 0.7
    assert calibrated((0.1, 16), (0.2, 16)) == 0.1


# ---- a checkout of scripts alone ----


@pytest.fixture
def checkout(tmp_path):
    """scripts/test with other sections, which are shell lines, a bootstrap that makes nothing but .venv, and a g++ that computes a little."""
    root = tmp_path / "laconic"
    for name in ("test", "proof.py", "ccache.sh", "calibration.cc"):
        (root / "scripts").mkdir(parents=True, exist_ok=True)
        (root / "scripts" / name).write_bytes((ROOT / "scripts" / name).read_bytes())
        (root / "scripts" / name).chmod(0o755)
    files = {"bin/g++": f"#!{sys.executable}\nsum(range(3000000))\n", "laconic/scripts/budgets.json": json.dumps(machine()),
             "laconic/scripts/bootstrap": f"#!/bin/bash\nmkdir -p .venv/bin; ln -sf {sys.executable} .venv/bin/python; eval \"${{BOOTSTRAP-}}\"\n"}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)

    def test(lines, *words, **variables):
        """(exit status, output)"""
        abouts = "".join(f"about_{name}={name}\n" for name in BY_NAME)
        (root / "scripts" / "sections.sh").write_text(f"{abouts}skip=3\n{lines}\n")
        path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
        others = {name: value for name, value in os.environ.items() if name not in ("DEADLINE", "TEST_TIER", "JOBS")}
        done = subprocess.run(["scripts/test", *words], cwd=root, env={**others, "PATH": path, **variables}, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False)
        return done.returncode, done.stdout

    test.root = root
    return test


def test_section_shell_stops_at_first_error(checkout):
    status, out = checkout("section_layers() { false; echo further; }; section_format() { return $skip; }; section_nonumpy() { echo $nothing; }; "
                           "section_tsan() { echo tier $TEST_TIER, jobs $JOBS; }", "layers", "format", "tsan", "nonumpy", JOBS="7")
    assert status == 1 and "further" not in out
    assert "\n==== layers: layers\n---- layers: FAILED in" in out and "---- format: skipped" in out
    assert "tier change, jobs 7\n---- tsan: passed" in out
    assert out.splitlines()[-1] == "FAILED: layers nonumpy; repeat with: scripts/test layers nonumpy; skipped: format."
    status, out = checkout("section_tsan() { echo tier $TEST_TIER; }", "weekly", "tsan")
    assert status == 0 and "tier weekly" in out
    written = (checkout.root / "docs" / "results" / "weekly.md").read_text()
    assert "It ran: tsan. Failed: nothing." in written and re.search(r"^\| `tsan` \| 20\S+ \| unknown \| 0 \| 0:00 \| passed \|$", written, re.M)


def test_failures_are_repeated_at_the_end(checkout):
    status, out = checkout("section_layers() { echo 'FAILED a.py::test_b - assert'; seq 100; echo '1 failed'; return 1; }", "layers")
    assert status == 1 and out.count("FAILED a.py::test_b") == 2
    assert out.endswith("""\nlayers:
  FAILED a.py::test_b - assert
  97\n  98\n  99\n  100\n  1 failed

FAILED: layers; repeat with: scripts/test layers.\n"""), out[-300:]


def test_unknown_sections_and_deadlines_are_refused(checkout):
    assert checkout("", "layer") == (1, f"no section 'layer'; there are: {' '.join(BY_NAME)}\n")
    assert checkout("", "layers", DEADLINE="5")[1] == "DEADLINE=5: a number and s, m or h, as in 45m\n"


def test_clock_begins_before_bootstrap(checkout):
    instead = "sleep 1.1; rm .venv/bin/python; printf '#!/bin/bash\\necho \"$@\"' > .venv/bin/python; chmod +x .venv/bin/python"
    _, out = checkout("", "layers", "format", BOOTSTRAP=instead)
    script, spent, *words = out.split()
    assert script == "scripts/proof.py" and int(spent) >= 1 and words == ["layers", "format"]
    assert proof.Here(1000.0).elapsed() >= 1000
    assert checkout("section_layers() { :; }", "layers", BOOTSTRAP="false; exit 1")[0] == 1


def test_omitted_sections_are_written_to_file(checkout):
    status, out = checkout("section_layers() { echo ran; }", "layers", DEADLINE="0s")
    assert status == 0 and "ran\n" not in out and "left out: layers; make up for it with: scripts/test layers" in out
    assert (checkout.root / "build" / "left-out").read_text() == "layers\n"


def test_cpu_time_of_orphans_counts(checkout):
    burn = "import time\nwhile time.process_time() < 0.5: pass"
    _, out = checkout(f"section_layers() {{ ( {{ {sys.executable} -c '{burn}'; touch done; }} & ); while [[ ! -e done ]]; do sleep 0.05; done; }}", "layers")
    assert float(re.search(r"passed in \S+, (\S+) CPU s", out)[1]) >= 0.5


def test_measuring_runs_clone_cold_then_warm_and_records(checkout):
    (checkout.root / "CONTRIBUTING.md").write_text("Before.\n\nMeasured at 0.\n\n| section | old\n|---|\n| `x` | 1 |\n\nAfter.\n")
    lines = "section_layers() { pwd; echo $CCACHE_DIR; }; section_release() { :; }; section_python() { :; }"
    checkout(lines)
    (checkout.root / ".gitignore").write_text("/build/\n/.venv/\n")
    for words in (["init"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-m", "all"]):
        subprocess.run(["git", *words], cwd=checkout.root, check=True, capture_output=True)
    status, out = checkout(lines, "--cpu", "python", "layers", DEADLINE="1s", CCACHE_DIR="mine")
    assert status == 0, out
    folder, = {path for path in re.findall(r"^/.*/laconic$", out, re.M)}
    assert folder != str(checkout.root) and not Path(folder).exists() and f"\n{Path(folder).parent}/ccache\n" in out
    assert out.count("---- release: passed") == 2, "what Python builds on runs before it"
    found = json.loads((checkout.root / "scripts" / "budgets.json").read_text())["sections"]
    assert found["layers"]["new"]["budget"] == found["layers"]["warm"]["budget"] == proof.LEAST
    assert found["release"] == machine()["sections"]["release"], "it was not asked for"
    page = (checkout.root / "CONTRIBUTING.md").read_text()
    assert json.loads((checkout.root / "scripts" / "budgets.json").read_text())["unit"] == 1.0
    assert page.startswith("Before.\n\nMeasured at ") and "\n\n| section | from nothing | warm |" in page and page.endswith(" |\n\nAfter.\n") and "`python` | 5 | 5 |" in page


def test_last_run_is_recorded(checkout):
    (checkout.root / "CONTRIBUTING.md").write_text("Measured at 0.\n\n| section |\n\n")
    lines = "section_layers() { :; }; section_format() { :; }"
    checkout(lines, "layers", "format")
    assert checkout(lines, "--record", "format") == (0, "")
    found = json.loads((checkout.root / "scripts" / "budgets.json").read_text())["sections"]
    assert found["format"]["new"]["budget"] == proof.LEAST and found["layers"] == machine()["sections"]["layers"]
    assert "`format` | 5 | 10 |" in (checkout.root / "CONTRIBUTING.md").read_text()


def test_checkout_at_another_path_passes_and_is_removed(tmp_path):
    stubs = {"bin/git": 'mkdir -p "$4/scripts"; cp "$0" "$4/scripts/build"', "bin/ctest": ":", ".venv/bin/python": "pwd"}
    for name, text in stubs.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f'#!/bin/sh\n[ "${{0##*/}}" = build ] || {{ {text}; }}\n')
        (tmp_path / name).chmod(0o755)
    (tmp_path / "scripts").mkdir()
    (tmp_path / "tmp").mkdir()
    for name in ("sections.sh", "ccache.sh"):
        (tmp_path / "scripts" / name).write_bytes((ROOT / "scripts" / name).read_bytes())
    done = subprocess.run(["bash", "-c", "set -euo pipefail; source scripts/sections.sh; section_paths"], cwd=tmp_path, capture_output=True,
                          text=True, env={**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "TMPDIR": str(tmp_path / "tmp")})
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("/été 1/laconic\n") and list((tmp_path / "tmp").glob("tmp.*")) == []


# ---- what keeps it short ----


def test_compiling_sections_know_needs_of_ccache():
    """Under `make test`, too, whose own lines come first: without it no file of tests is ever served from the cache."""
    asked = "source scripts/sections.sh; echo $CCACHE_BASEDIR; echo $CCACHE_NOHASHDIR; echo $CCACHE_SLOPPINESS"
    clean = {name: value for name, value in os.environ.items() if not name.startswith("CCACHE_")}
    found = subprocess.run(["bash", "-c", asked], cwd=ROOT, env=clean, capture_output=True, text=True, check=True).stdout.splitlines()
    assert found[:2] == [str(ROOT), "1"] and "pch_defines" in found[2]
    assert all("source scripts/ccache.sh" in (ROOT / "scripts" / name).read_text() for name in ("build", "wheel", "sections.sh"))
