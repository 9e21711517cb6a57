# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""bench/controls.py: what it runs, and what its page makes of runs."""

import json
import re
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))

import controls  # noqa: E402
import controls_page  # noqa: E402


def run(seconds, ratio="0.01", whole=True, final=0.97, changes=0):
    trace = [[0.1 * k, 0.1, f"topk:ratio={ratio}"] for k in range(1, 11)]
    return {"reached": None if seconds is None else [10, seconds], "steps": 10, "seconds": 1.0, "whole": whole, "curve": [[10, 1.0, final]], "trace": trace,
            "stats": {"setting_changes": changes}, "settings": [], "load": 0.5, "cpu": "a machine"}


def cell(spec, control=None, seed=0, scenario="turns"):
    return controls.Cell(controls.SCENARIOS[scenario], "mlp", spec, control, seed)


def page(runs):
    return controls_page.page("| loop |", runs, controls.SCENARIOS, controls.EXCHANGES, "a remark")


def test_every_exchange_meets_every_network_with_every_seed_and_has_a_file():
    found = controls.cells(controls.SCENARIOS, ("mlp", "cnn"), 3)
    assert len(found) == 1 + 7 * 2 * 9 * 3 + len(controls.NARROW_EXCHANGES) * 3
    assert len({one.path for one in found}) == len(found)


def test_a_run_whose_file_was_cut_off_is_made_again(tmp_path, monkeypatch):
    monkeypatch.setattr(controls, "OUT", tmp_path)
    whole, cut, none = wanted = [cell("topk:ratio=0.01", "dc2", seed) for seed in range(3)]
    whole.path.write_text('{"steps": 10}')
    cut.path.write_text('{"steps": 1')
    assert controls.missing(wanted) == [cut, none]


def test_the_page_says_how_many_times_sooner_by_medians():
    runs = [(cell("pytorch:ddp", None, seed), run(at, whole=False)) for seed, at in enumerate((30.0, 10.0, 20.0))]
    runs += [(cell("topk:ratio=0.01", "dc2", seed), run(at, "0.02", changes=7)) for seed, at in enumerate((4.0, 5.0, 90.0))]
    row = next(line for line in page(runs).splitlines() if "`dc2`" in line and line.startswith("| `topk"))
    assert row == "| `topk:ratio=0.01`, `dc2` | 5.0 | 4.0 | 100 ms | 2 % | 7 | 97.0 % | 3 |"


def test_a_network_with_exchanges_of_its_own_is_measured_by_fp32_on_the_like():
    wanted = controls.cells(("narrow",), ("mlp", "cnn"), 1)[1:]
    assert [(one.model, one.spec, one.control) for one in wanted] == [("mlp", *key) for key in controls.NARROW_EXCHANGES]
    assert all(one.plan()["small_elements"] == 512 and one.plan()["whole"] for one in wanted)
    assert cell("topk:ratio=0.01").plan()["small_elements"] == 4096
    text = page([(cell("pytorch:ddp"), run(60.0)), (cell("pytorch:ddp", scenario="unshaped"), run(2.0)), (wanted[4], run(3.0))])
    assert "`small_elements=512`: `mlp`, to 95 %" in text
    assert "| `topk:ratio=0.01,values=bf16`, `dc2:target=compute` | 3.0 | 20.0 |" in text


def test_a_sample_of_steps_stands_for_the_steps_of_the_unshaped_run():
    sample = {**run(None), "steps": 10, "seconds": 12.0, "sampled": True}
    sample["trace"] = [[0, 3.0, "pytorch:ddp"]] + [[0, 1.0, "pytorch:ddp"]] * 9
    whole = {**run(2.0), "reached": [55, 2.0]}
    text = page([(cell("pytorch:ddp", scenario="steady"), sample), (cell("pytorch:ddp", scenario="unshaped"), whole)])
    assert "| PyTorch DDP, fp32 | 57.0\\* | 1.0 | 1000 ms |" in text
    assert "| PyTorch DDP, fp32 | 2.0 | 1.0 |" in text
    alone = page([(cell("pytorch:ddp", scenario="steady"), sample)])
    assert "| PyTorch DDP, fp32 | not reached |" in alone


def test_only_what_computes_the_same_everywhere_is_sampled():
    sampled = {(one.scenario.name, one.spec) for one in controls.cells(controls.SCENARIOS, ("mlp",), 1) if one.plan()["sampled"]}
    assert sampled == {(name, spec) for name in ("steady", "late", "delay1", "delay5") for spec in ("pytorch:ddp", "pytorch:fp16")}


def test_what_meets_the_same_network_shares_a_lab():
    found = controls.labs(controls.cells(("steady", "cross"), ("mlp",), 2))
    assert [len(group) for group in found] == [1, 9] + 9 * [1] + [9] + 9 * [1]


def test_a_lab_that_breaks_off_keeps_what_it_has_made(tmp_path, monkeypatch):
    monkeypatch.setattr(controls, "cpu", lambda: "a machine")  # asks a process, too

    def breaks_off(words, **_):
        if "lab" in words:  # the name of the processor is asked for, too
            Path(words[-1]).write_text(json.dumps({"steps": 10}) + "\n")
        return controls.subprocess.CompletedProcess(words, 1, "", "rank 0 ended")

    monkeypatch.setattr(controls, "OUT", tmp_path)
    monkeypatch.setattr(controls.subprocess, "run", breaks_off)
    monkeypatch.setenv("LACONIC_BIN", sys.executable)
    wanted = [cell("topk:ratio=0.01", "dc2"), cell("topk:ratio=0.01", "aimd")]
    assert not controls.run(wanted)
    assert wanted[0].load()["steps"] == 10
    assert controls.missing(wanted) == wanted[1:]


def test_a_seed_that_has_not_reached_the_target_leaves_none():
    text = page([(cell("pytorch:ddp", None, 0), run(30.0)), (cell("pytorch:ddp", None, 1), run(None))])
    assert "| PyTorch DDP, fp32 | not reached |" in text


def test_the_page_names_the_limit_of_a_run():
    assert f"in {controls.LIMIT:.0f} s of training" in page([(cell("topk:ratio=0.01"), run(1.0))])


def test_runs_of_an_earlier_page_count_as_made(tmp_path, monkeypatch):
    monkeypatch.setattr(controls, "OUT", tmp_path / "out")
    kept, own = cell("topk:ratio=0.01", "dc2"), cell("topk:ratio=0.01", "aimd")
    made = run(4.0)
    made["stats"]["what no page has"] = 1
    made["trace"][3:5] = [[seconds, step, "topk:ratio=0.02"] for seconds, step, _ in made["trace"][3:5]]
    (tmp_path / "control.json").write_text(json.dumps([controls.packed(one, made) for one in (kept, own)]))
    own.path.parent.mkdir()
    own.path.write_text('{"made": "here"}')
    controls.unpack(tmp_path / "control.json")
    assert own.load() == {"made": "here"}
    found = kept.load()
    assert [row[2] for row in found["trace"]] == [row[2] for row in made["trace"]]
    assert [row[0] for row in found["trace"]] == pytest.approx([row[0] for row in made["trace"]])
    assert found["curve"] == [pytest.approx(row) for row in made["curve"]]
    del made["settings"]
    assert {**found, "trace": 0, "curve": 0} == {**made, "trace": 0, "curve": 0, "stats": {"setting_changes": 0}}


def test_fixed_is_compared_pair_by_pair():
    pairs = controls.Cell(controls.SCENARIOS["unshaped"], "mlp", "topk:ratio=0.01", None, 0, pairs=3)
    text = page([(pairs, {"pairs": [[1.0, 1.01], [2.0, 2.0], [1.0, 1.1]], "load": 0, "cpu": ""})])
    assert "3 pairs of ten steps in turn: 1.010 of the step" in text


@pytest.mark.parametrize("control", ["dc2", "dc2:target=compute", "aimd", "bdp"])
def test_the_picture_has_every_law(control):
    drawn = controls_page.picture([(cell("topk:ratio=0.01", control), run(1.0, "0.05"))])
    assert control in drawn and len(re.findall("<polyline", drawn)) == 2


def test_a_law_of_ones_own_runs_on_every_network_beside_those_of_the_page(tmp_path, monkeypatch):
    monkeypatch.setattr(controls, "OUT", tmp_path)
    asked = []

    def made(together):
        asked.extend(together)
        for one in together:
            one.path.write_text(json.dumps({**run(2.5), "pairs": [[1.0, 1.0]]}))
        return True

    monkeypatch.setattr(controls, "run", made)
    monkeypatch.setattr(controls.subprocess, "run", lambda *_, **__: controls.subprocess.CompletedProcess([], 0, "| loop |", ""))
    own = "dc2:target=compute,share=0.25"
    monkeypatch.setattr(sys, "argv", ["controls.py", "--scenario", "steady", "--model", "mlp", "--seeds", "1", "--control", own, "--out", str(tmp_path)])
    controls.main()
    assert [one.control for one in asked if one.spec == "topk:ratio=0.01" and not one.pairs] == [None, "dc2", "dc2:target=compute", "aimd", "bdp", own]
    assert f"| `topk:ratio=0.01`, `{own}` | 2.5 |" in (tmp_path / "control.md").read_text()
    assert controls_page.picture([(cell("topk:ratio=0.01", own), run(1.0))]) is None


def test_without_a_law_there_is_no_picture():
    assert controls_page.picture([(cell("topk:ratio=0.01"), run(1.0))]) is None


def test_a_run_whose_rates_do_not_take_turns_fails(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    import controls_rank

    monkeypatch.setenv("LACONIC_LAB_CONTROL", str(tmp_path / "nobody listens"))
    with pytest.raises(RuntimeError, match="the lab does not take rate 10mbit"), controls_rank.Turns(["100mbit", "10mbit"], 0.01):
        time.sleep(0.2)


def test_commands_are_published_without_paths_of_a_machine():
    words = ["lab", "--seed", "3", *controls.cross(3)]
    shown = controls.published(words)
    assert str(ROOT) not in shown and sys.executable not in shown and shown.endswith("bench/cross_traffic.py $LACONIC_LAB_RANK_1 30 3 3 3'")
    commands = [one["command"] for one in json.loads((ROOT / "docs/results/control.json").read_text())]
    assert commands and not [one for one in commands if re.search(r"(^|[ '])/", one)]
