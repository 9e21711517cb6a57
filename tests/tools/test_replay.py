# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""laconic replay and laconic list --controls, against DC2-R written a second time."""

import json
import os
import random
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BINARY = Path(os.environ.get("LACONIC_CLI", ROOT / "build" / "release" / "bin" / "laconic"))

pytestmark = pytest.mark.skipif(not BINARY.exists(), reason=f"{BINARY} is not built")

DEADLINE = 0.05
START, LEAST, MOST = 0.01, 0.001, 0.125


def laconic(*words):
    return subprocess.run([BINARY, *map(str, words)], capture_output=True, text=True, timeout=280)


def second_dc2(times, first=0):
    """docs/algorithms.md, without float32 and without a mean."""
    value, r, updated, decisions = START, None, None, []
    row = []  # of steps without a gap: times over the target
    settled = 0
    passed = knee = 0.0
    for step, time in enumerate(times, first):
        if step < settled:
            continue
        if time is None:
            row = []
            continue
        now = min(time / DEADLINE, 16)
        row.append(now)
        if r is None:
            r = now
        else:
            kept = 1.0
            for _ in range(min(step - seen, 64)):
                kept *= 1 - 0.2
            r = now + kept * (r - now)
        seen = step
        last = ([0, 0, 0] + row)[-3:]
        two = min(last[1:])
        trend = max(last) if all(0 < x <= 0.5 for x in last) else r
        if updated not in (None, 0) and two <= 3 and step - updated < (6 if now > 3 else 5):
            continue
        updated, old = step, value
        if two > 3 or trend > 1.5:
            if value == LEAST:
                r = None
                continue
            if passed * 1.5 < value:
                knee = min(knee, passed)
            elif two > 3:
                knee = value
            halvings = 1
            while two > 3 and two / 2**halvings > 1.5:
                halvings += 1
            value = max(LEAST, value / 2**halvings)
            r = None if two > 3 else trend / 2
            settled, seen, row = step + 3, step + 2, []
        else:
            slowest = max([trend, *last])
            if slowest <= 1.5:
                passed = value
            if trend < 1.1 and value < MOST:
                share = min(max(1 / slowest - 1, 0.1), 1) if last[0] else 0.1
                share = max(share, min(knee / value - 1, 1))
                new = min(MOST, value + share * value)
                if new > knee and trend * (new / value) > 1.5:
                    continue
                value, r = new, trend
        if value != old:
            decisions.append({"step": step, "rule": 1, "from": old, "to": value})
    return decisions


def record(times, decisions, *, before=1, spec="topk", first=0):
    """The record of a run whose second of two ranks is always 10 ms late. `before` rules come before the one that moves."""
    span = {"name": "ratio", "start": START, "min": LEAST, "max": MOST, "lowest": 1e-9, "highest": 1, "sends": "more",
            "growth": "log", "whole": False, "most_bytes": 0, "dense_bytes": 0}
    control = f"dc2:deadline_ms={1000 * DEADLINE:g}"
    rules = [{"match": "", "spec": "fp16", "control": control, "inherited": True, "parameters": 1, "elements": 10,
              "range": None}] * before
    rules += [{"match": "*.weight", "spec": spec, "control": control, "inherited": False, "parameters": 3,
               "elements": 1000000, "range": span}]
    lines = [{"format": "laconic record", "version": 1, "laconic": "0.1.0", "model": "ab", "world": 2, "rules": rules,
              "state": []}]
    for step, time in enumerate(times, first):
        reports = [] if time is None else [[time, 0, 0, 0.3, 1], [time + 0.01, None, 0, 0.3, 1]]
        made = [{**d, "uncompressed": False, "reason": "slow" if d["to"] < d["from"] else "fast", "slowdown": 1,
                 "network_s": time, "target_s": DEADLINE, "parts": 0} for d in decisions if d["step"] == step]
        for d in made:
            del d["step"]
            d["rule"] = before
        lines.append({"step": step, "version": 0, "settings": [{"value": 0, "uncompressed": False}] * (before + 1),
                      "reports": reports, "bytes": 1000000, "rounds": 1, "decision": made, "reason": ""})
    return "".join(json.dumps(line) + "\n" for line in lines)


@pytest.fixture
def run():
    rng = random.Random(7)
    times = []
    while len(times) < 400:  # stretches of a network, each with its own time and noise
        level = rng.choice([0.1, 0.3, 0.7, 1.0, 1.3, 2.0, 6.0])
        times += [None if rng.random() < 0.1 else DEADLINE * level * rng.choice([0.8, 1.0, 1.2]) for _ in range(rng.randrange(4, 40))]
    return times[:400], second_dc2(times[:400])


def test_equal_decisions_are_reported(tmp_path, run):
    times, decisions = run
    assert len(decisions) > 20
    path = tmp_path / "run.jsonl"
    path.write_text(record(times, decisions))
    done = laconic("replay", path, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    answer = json.loads(done.stdout)
    assert answer["equal"] is True and answer["first_difference"] is None
    assert [{k: d[k] for k in ("step", "rule", "from", "to")} for d in answer["decisions"]] == decisions
    assert set(answer["decisions"][0]) == {"part", "step", "rule", "from", "to", "uncompressed", "reason"}
    text = laconic("replay", path)
    assert text.returncode == 0 and text.stdout.endswith(f"400 steps, {len(decisions)} decisions: equal\n")


def test_first_difference_is_shown(tmp_path, run):
    times, decisions = run
    decisions[5] = {**decisions[5], "to": decisions[5]["to"] * 0.999}
    path = tmp_path / "run.jsonl"
    path.write_text(record(times, decisions))
    done = laconic("replay", path, "--json")
    assert done.returncode == 1
    difference = json.loads(done.stdout)["first_difference"]
    assert (difference["step"], difference["rule"]) == (decisions[5]["step"], 1)
    assert difference["line"] == decisions[5]["step"] + 2
    assert laconic("replay", path).returncode == 1


def test_another_control_is_compared(tmp_path, run):
    path = tmp_path / "run.jsonl"
    path.write_text(record(*run))
    done = laconic("replay", path, "--control", "schedule:0=0.01,100=0.02", "--json")
    assert done.returncode == 0
    answer = json.loads(done.stdout)
    assert "equal" not in answer
    assert [(d["step"], d["to"]) for d in answer["decisions"]] == [(98, 0.02)]
    done = laconic("replay", path, "--control", "dc3", "--json")
    assert done.returncode == 2
    assert "did you mean 'dc2'?" in json.loads(done.stdout)["error"]["hint"]


def test_decision_follows_rules_of_its_part(tmp_path, run):
    """After settings were replaced while it ran, a record's parts have other rules, and may have more."""
    times, decisions = run
    later = second_dc2(times, first=400)
    path = tmp_path / "run.jsonl"
    path.write_text(record(times, decisions) + record(times, later, before=6, spec="randomk:ratio=0.01", first=400))
    answer = json.loads(laconic("replay", path, "--json").stdout)
    assert answer["equal"] is True
    assert [(d["part"], d["rule"]) for d in answer["decisions"]] == [(0, 1)] * len(decisions) + [(1, 6)] * len(later)
    done = laconic("replay", path)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    begins = [f"step {d['step']}: topk: ratio " for d in decisions]
    begins += [f"step {d['step']}: randomk:ratio=0.01: ratio " for d in later]
    assert [line[:len(begin)] for line, begin in zip(lines, begins)] == begins
    assert lines[len(begins):] == [f"800 steps, {len(begins)} decisions: equal"]


@pytest.mark.parametrize("cut", [1, 40, 20000])
def test_truncated_record_is_refused_with_its_line(tmp_path, run, cut):
    path = tmp_path / "run.jsonl"
    whole = record(*run)
    path.write_text(whole[:-cut])
    done = laconic("replay", path, "--json")
    assert done.returncode == 1
    last = whole[:-cut].count("\n") + 1
    assert json.loads(done.stdout)["error"]["message"].startswith(f"line {last}: ")


def test_missing_file_is_reported():
    assert laconic("replay", "/nowhere.jsonl").returncode == 2


def test_controls_print_json():
    answer = json.loads(laconic("list", "--controls", "--json").stdout)
    assert [c["name"] for c in answer["controls"]] == ["fixed", "dc2", "aimd", "bdp", "schedule", "replay"]
    assert set(answer["controls"][1]["keys"][0]) == {"name", "type", "default", "accepts", "help"}
    moved = {m["codec"]: m for m in answer["moves"]}
    assert moved["topk"] == {"codec": "topk", "key": "ratio", "sends": "more", "growth": "log", "min": 0.001,
                             "max": 0.25}
    assert moved["3lc"]["sends"] == "less" and moved["powersgd"]["growth"] == "step"
    assert laconic("list", "--controls", "topk").returncode == 2


def test_control_page_matches_list():
    page = (ROOT / "docs/guide/control.md").read_text()
    assert laconic("list", "--controls", "--markdown").stdout.strip() in page, \
        "docs/guide/control.md is out of date: paste the output of `laconic list --controls --markdown`"


def test_results_page_matches_loop():
    """In virtual time: the same on every machine."""
    bench = BINARY.with_name("control_loop_bench")
    if not bench.exists():
        pytest.skip(f"{bench} is not built")
    from bench.control import controls_tables

    printed = json.loads(subprocess.run([bench], capture_output=True, text=True, timeout=280, check=True).stdout)["closed_loop"]
    assert controls_tables.closed_loop(printed) == json.loads((ROOT / "docs/results/control.json").read_text())["tables"]["closed loop"]
