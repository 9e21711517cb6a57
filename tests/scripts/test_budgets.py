# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The time that `make test` may take: scripts/test against CONTRIBUTING.md, the sums, what a run prints, and what keeps it short."""

import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = (ROOT / "scripts" / "test").read_text(encoding="utf-8")
LIMITS = (24 * 60, 10 * 60)  # from nothing, cached


def seconds(clock):
    minutes, rest = clock.split(":")
    return 60 * int(minutes) + int(rest)


def in_script():
    rows = re.findall(r'^  \[(\w+)\]="(\d+:\d\d) (\d+:\d\d)"$', SCRIPT, re.M)
    return {section: (seconds(new), seconds(cached)) for section, new, cached in rows}


def in_contributing():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `?(\w+)`? \| (\d+:\d\d) \| (\d+:\d\d) \|$", text, re.M)
    return {section: (seconds(new), seconds(cached)) for section, new, cached in rows}


def run(tmp_path, lines):
    """scripts/test with other sections, which are shell lines, and without bootstrap."""
    command = f"source scripts/test; scripts/bootstrap() {{ :; }}; passed_before={tmp_path}/passed; {lines}"
    return subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def test_contributing_shows_the_budgets_of_the_script():
    shown = in_contributing()
    assert shown.pop("all") == tuple(map(sum, zip(*in_script().values())))
    assert shown == in_script()


def test_every_section_has_a_budget():
    assert set(in_script()) == set(re.findall(r"^section_(\w+)\(\)", SCRIPT, re.M))


def test_budgets_add_up():
    for limit, budgets in zip(LIMITS, zip(*in_script().values())):
        assert sum(budgets) <= limit


def test_used_is_printed_against_the_budget_of_a_first_and_a_second_run(tmp_path):
    lines = "about_easy=easy; section_easy() { :; }; budgets[easy]='9:10 0:50'; main easy"
    for budget in ("9:10", "0:50"):
        done = run(tmp_path, lines)
        assert done.returncode == 0, done.stderr
        assert re.search(rf"^---- easy: passed in \d:\d\d \(budget {budget}\)$", done.stdout, re.M)
        assert re.search(rf"^section +used +budget\neasy +\d:\d\d +{budget}$", done.stdout, re.M)
        assert re.fullmatch(r"All of easy passed in \d:\d\d\.", done.stdout.splitlines()[-1])


def test_over_budget_is_said_and_does_not_fail(tmp_path):
    done = run(tmp_path, "about_slow=slow; section_slow() { sleep 1.1; }; budgets[slow]='0:00 0:00'; main slow")
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1].endswith(" (over budget: slow).")


def test_a_section_that_fails_or_is_skipped_stays_without_the_cached_budget(tmp_path):
    done = run(tmp_path, "about_bad=bad; section_bad() { false; true; }; budgets[bad]='9:10 0:50'; "
                         "about_none=none; section_none() { return $skip; }; budgets[none]='9:10 0:50'; main bad none")
    assert done.returncode == 1
    assert "---- bad: FAILED after" in done.stdout and "---- none: skipped" in done.stdout
    assert done.stdout.splitlines()[-1] == "FAILED: bad (skipped: none); repeat with: scripts/test bad"
    assert not list(tmp_path.glob("passed/*"))


def test_what_the_old_torch_leaves_out_is_there():
    names = re.search(r"^readonly as_any_torch=\((.*)\)$", SCRIPT, re.M)[1].split()
    assert names and all((ROOT / "python/tests" / f"test_{name}.py").is_file() for name in names)
    assert '"${left_out[@]/%/.py}"' in SCRIPT


def test_what_compiles_knows_what_ccache_needs():
    """Under `make test`, too, whose own lines come first: without it no file of tests is ever served from the cache."""
    asked = "source scripts/test; echo $CCACHE_BASEDIR; echo $CCACHE_NOHASHDIR; echo $CCACHE_SLOPPINESS"
    clean = {name: value for name, value in os.environ.items() if not name.startswith("CCACHE_")}
    found = subprocess.run(["bash", "-c", asked], cwd=ROOT, env=clean, capture_output=True, text=True, check=True).stdout.splitlines()
    assert found[:2] == [str(ROOT), "1"] and "pch_defines" in found[2]
    assert all("source scripts/ccache.sh" in (ROOT / "scripts" / name).read_text() for name in ("build", "wheel", "test"))
