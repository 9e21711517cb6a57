# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""bench/control/controls.py: what it runs, and what its tables make of runs."""

import json
import sys
import time
from pathlib import Path

import pytest


from bench.control import controls, controls_tables
from bench.lib import tables


def run(seconds, ratio="0.01", whole=True, final=0.97, changes=0):
    trace = [[0.1 * k, 0.1, f"topk:ratio={ratio}"] for k in range(1, 11)]
    return {"reached": None if seconds is None else [10, seconds], "steps": 10, "seconds": 1.0, "whole": whole, "curve": [[10, 1.0, final]], "trace": trace,
            "stats": {"setting_changes": changes}, "settings": [], "load": 0.5, "cpu": "a machine"}


def cell(spec, control=None, seed=0, scenario="turns"):
    return controls.Cell(controls.SCENARIOS[scenario], "mlp", spec, control, seed)


def page(runs):
    """All tables of the lab, as they are shown."""
    found = controls_tables.tables_of([], runs, controls.SCENARIOS, controls.EXCHANGES)
    return "\n".join(f"{key}\n{tables.markdown(each)}" for key, each in found.items())


def test_every_exchange_network_and_seed_has_a_file():
    found = controls.cells(controls.SCENARIOS, ("mlp", "cnn"), 3)
    assert len(found) == 7 * 2 * 9 * 3 + len(controls.NARROW_EXCHANGES) * 3
    assert len({one.path for one in found}) == len(found)


def test_run_with_truncated_file_is_repeated(tmp_path, monkeypatch):
    monkeypatch.setattr(controls, "OUT", tmp_path)
    whole, cut, none = wanted = [cell("topk:ratio=0.01", "dc2", seed) for seed in range(3)]
    whole.path.write_text('{"steps": 10}')
    cut.path.write_text('{"steps": 1')
    assert controls.missing(wanted) == [cut, none]


def test_tables_show_speedup_of_medians():
    runs = [(cell("pytorch:ddp", None, seed), run(at, whole=False)) for seed, at in enumerate((30.0, 10.0, 20.0))]
    runs += [(cell("topk:ratio=0.01", "dc2", seed), run(at, "0.02", changes=7)) for seed, at in enumerate((4.0, 5.0, 90.0))]
    row = next(line for line in page(runs).splitlines() if "`dc2`" in line and line.startswith("| `topk"))
    assert row == "| `topk:ratio=0.01`, `dc2` | 5.0 | 4.0 | 100 ms | 2 % | 7 | 97.0 % | 3 |"


def test_own_exchanges_of_network_are_compared_with_similar_fp32():
    wanted = controls.cells(("narrow",), ("mlp", "cnn"), 1)
    assert [(one.model, one.spec, one.control) for one in wanted] == [("mlp", *key) for key in controls.NARROW_EXCHANGES]
    assert all(one.plan()["small_elements"] == 512 and one.plan()["whole"] for one in wanted)
    assert cell("topk:ratio=0.01").plan()["small_elements"] == 4096
    text = page([(cell("pytorch:ddp"), run(60.0)), (cell("pytorch:ddp", scenario="unshaped"), run(2.0)), (wanted[4], run(3.0))])
    assert "narrow, mlp\n" in text
    assert "| `topk:ratio=0.01,values=bf16`, `dc2:target=compute` | 3.0 | 20.0 |" in text


def test_sampled_steps_represent_unshaped_run():
    sample = {**run(None), "steps": 10, "seconds": 12.0, "sampled": True}
    sample["trace"] = [[0, 3.0, "pytorch:ddp"]] + [[0, 1.0, "pytorch:ddp"]] * 9
    whole = {**run(2.0), "reached": [55, 2.0]}
    text = page([(cell("pytorch:ddp", scenario="steady"), sample), (cell("pytorch:ddp", scenario="unshaped"), whole)])
    assert "| PyTorch DDP, fp32 | 57.0\\* | 1.0 | 1000 ms |" in text
    assert "| PyTorch DDP, fp32 | 2.0 | 1.0 |" in text
    alone = page([(cell("pytorch:ddp", scenario="steady"), sample)])
    assert "| PyTorch DDP, fp32 | not reached |" in alone


def test_only_deterministic_computation_is_sampled():
    sampled = {(one.scenario.name, one.spec) for one in controls.cells(controls.SCENARIOS, ("mlp",), 1) if one.plan()["sampled"]}
    assert sampled == {(name, spec) for name in ("steady", "late", "delay1", "delay5") for spec in ("pytorch:ddp", "pytorch:fp16")}


def test_runs_with_same_network_share_a_lab():
    found = controls.labs(controls.cells(("steady", "cross"), ("mlp",), 2))
    assert [len(group) for group in found] == [9] + 9 * [1] + [9] + 9 * [1]


def test_aborted_lab_keeps_its_results(tmp_path, monkeypatch):
    monkeypatch.setattr(controls, "cpu", lambda: "a machine")  # asks a process, too

    def breaks_off(words, **_):
        if "lab" in words:  # the name of the processor is read, too
            Path(words[-1]).write_text(json.dumps({"steps": 10}) + "\n")
        return controls.subprocess.CompletedProcess(words, 1, "", "rank 0 ended")

    monkeypatch.setattr(controls, "OUT", tmp_path)
    monkeypatch.setattr(controls.subprocess, "run", breaks_off)
    monkeypatch.setenv("LACONIC_BIN", sys.executable)
    wanted = [cell("topk:ratio=0.01", "dc2"), cell("topk:ratio=0.01", "aimd")]
    assert not controls.run(wanted)
    assert wanted[0].load()["steps"] == 10
    assert controls.missing(wanted) == wanted[1:]


def test_seed_that_misses_target_leaves_no_result():
    text = page([(cell("pytorch:ddp", None, 0), run(30.0)), (cell("pytorch:ddp", None, 1), run(None))])
    assert "| PyTorch DDP, fp32 | not reached |" in text


def test_own_policy_runs_on_every_network(tmp_path, monkeypatch):
    monkeypatch.setattr(controls, "OUT", tmp_path)
    asked = []

    def made(together):
        asked.extend(together)
        for one in together:
            one.path.write_text(json.dumps(run(2.5)))
        return True

    monkeypatch.setattr(controls, "run", made)
    monkeypatch.setattr(controls.subprocess, "run", lambda *_, **__: controls.subprocess.CompletedProcess([], 0, '{"closed_loop": []}', ""))
    own = "dc2:target=compute,share=0.25"
    monkeypatch.setattr(sys, "argv", ["controls.py", "--scenario", "steady", "--model", "mlp", "--seeds", "1", "--control", own, "--out", str(tmp_path)])
    controls.main()
    assert [one.control for one in asked if one.spec == "topk:ratio=0.01"] == [None, "dc2", "dc2:target=compute", "aimd", "bdp", own]
    assert f"| `topk:ratio=0.01`, `{own}` | 2.5 |" in (tmp_path / "control.md").read_text()


def test_run_whose_rates_do_not_alternate_fails(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    from bench.control import controls_rank

    monkeypatch.setenv("LACONIC_LAB_CONTROL", str(tmp_path / "nobody listens"))
    with pytest.raises(RuntimeError, match="the lab does not take rate 10mbit"), controls_rank.Turns(["100mbit", "10mbit"], 0.01):
        time.sleep(0.2)
