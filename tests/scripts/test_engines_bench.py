# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""bench/engines.py: the page from figures that are known, and the ranks over torch.distributed that it starts."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "python" / "tests")]

import engines  # noqa: E402
import engines_page  # noqa: E402

MACHINE = {"CPU": "some CPU", "cores": 2, "load at the start": "0.1"}


def row(codec, native, time, wire, coding, sent=1 << 20):
    """Microseconds."""
    return {"codec": codec, "native": {"time": native}, "time": time, "wire": wire, "coding": coding, "sent": sent, "speedup": native / time}


def train(step, computing=0.1, wire=0.0, encode=0.0):
    return {"step": step, "computing": computing, "wire": wire, "encode_seconds": encode, "decode_seconds": encode / 2}


@pytest.fixture
def cells():
    known = dict.fromkeys((cell.name for cell in engines.CELLS), None)
    known["libraries-gloo"] = {"results": [row("int8", 9e5, 4e5, 3e5, 1e4), row("3lc", 9e5, 2e5, 1e5, 2e4)]}
    known["libraries-mpich"] = {"results": [row("int8", 8e5, 1e5, 9e4, 1e4), row("3lc", 8e5, 3e5, 1e5, 2e4)]}
    known["libraries-c10d"] = {"specs": {"int8": {"native": 1.0, "step": 0.5, "wire": 0.4, "wire_bytes": 1 << 20},
                                         "3lc": {"native": 1.0, "step": 0.49, "wire": 0.1, "wire_bytes": 1 << 16}}}
    known["sums-gloo-2"] = {"points": [{"bytes": 4 << 20, "own": 0.010, "mean": 0.0105, "laconic": 0.0105, "ratio": 1.05},
                                       {"bytes": 16 << 20, "own": 0.010, "mean": 0.0106, "laconic": 0.0106, "ratio": 1.06}]}
    known["window-int8"] = {"rate": "500mbit", "window 1": {"time": 3e4, "wire": 1e4, "coding": 1.5e4},
                            "window 2": {"time": 2e4, "wire": 1e4, "coding": 1.4e4}, "no limit": {"time": 1.5e4},
                            # each against the longer of its own: 1.0, 1.2, 1.4, 1.6 and 3.0
                            "runs": {"window 2": [{"time": time, "wire": 5e3, "coding": 1e4} for time in (1.2e4, 1e4, 1.4e4, 3e4, 1.6e4)]}}
    known["long-openmpi"] = {"results": [row("int8", 8e6, 2e6, 1.9e6, 1e5), row("3lc", 8e6, 1e6, 4e5, 1e5)]}
    known["perceptron-200mbit"] = {"specs": {"pytorch:ddp": train(6.0), "little": train(0.4), "int8": train(2.0, 0.3, 1.6, 0.2),
                                             "3lc": train(0.61, 0.3, 0.1, 0.1), "sidco:ratio=0.001": train(0.51)}}
    known["buckets"] = {"specs": {"pytorch:ddp": train(0.02), "none": train(0.024), "3lc": train(0.026)}}
    known["buckets-100mbit"] = {"specs": {"pytorch:ddp": train(0.4), "3lc": train(0.1), "3lc part=65536": train(0.2)}}
    return {name: cell and {"machine": MACHINE, **cell} for name, cell in known.items()}


def lines_of(page, start):
    return [line for line in page.splitlines() if line.startswith(start)]


def test_verdicts_are_those_of_the_figures(cells):
    page = engines_page.page(cells)
    assert lines_of(page, "| Gloo | 2 |") == ["| Gloo | 2 | 4 | 10.0 | 10.5 | 10.5 | 1.05 yes | 1.00 |",
                                             "| Gloo | 2 | 16 | 10.0 | 10.6 | 10.6 | 1.06 **no** | 1.00 |"]
    assert "| `int8` | 500mbit | 10.0 | 14.0 | 30.0 | 20.0 | 1.400 (1.10 to 2.30) **no** | 0.67 yes | 15.0 | 1.07 |" in page
    assert "| Open MPI | `int8` | 8,000.0 | 2,000.0 | 1,900.0 | 100.0 | 4.0 yes (≥ 3.4) |" in page
    assert "| Open MPI | `3lc` | 8,000.0 | 1,000.0 | 400.0 | 100.0 | 8.0 **no** (≥ 12) |" in page
    # 2.0 of the longer of 1.6 and 0.3 + 0.2 + 0.1; 0.61 and 0.51 of 0.4
    assert "| `int8` of the longer of wire and computing with codec | 1.25 | 1.25 | yes |" in page
    assert "| `3lc` of the hook that gathers 100 bytes | 1.52 | 1.5 | **no** |" in page
    assert "| `3lc part=65536` | 200.0 | 0.50 | 100.0 |" in page
    assert "| `none` of plain DDP | 1.20 | 1.25 | yes |" in page and "| `3lc` of plain DDP | 1.30 | 1.25 | **no** |" in page


def test_sums_that_are_missed_are_told(cells):
    """1.06 of 10 ms: 0.6 ms more, 1.00 of the sum and a division; with another that takes 3 ms of 1, 1.50 of its mean."""
    page = " ".join(engines_page.page(cells).split())
    assert "1 of 2 is missed, by 0.6 ms more than the sum; of the sum and a division it takes 1.00." in page
    cells["sums-openmpi-2"] = {"machine": MACHINE, "points": [{"bytes": 4 << 20, "own": 0.001, "mean": 0.002, "laconic": 0.003, "ratio": 3.0}]}
    page = " ".join(engines_page.page(cells).split())
    assert "2 of 3 are missed, by 0.6 to 2 ms more than the sum; of the sum and a division they take 1.00 to 1.50." in page


def test_a_ranking_that_differs_is_named_and_a_near_tie_is_not(cells):
    page = " ".join(engines_page.page(cells).split())
    assert "`3lc` is before `int8` over Gloo (200.0 and 400.0 ms), behind it over MPICH (300.0 and 100.0)" in page
    assert "over torch.distributed (" not in page, "2 % apart"
    cells["libraries-mpich"] = None
    assert "No two codecs that are 10 % apart change places between libraries." in engines_page.page(cells)


def test_what_no_window_can_reach_is_named(cells):
    assert "No window hides that" not in engines_page.page(cells)
    cells["window-int8"]["no limit"] = {"time": 1.8e4}  # 1.29 of 14 ms
    assert "A call of `int8` without a limit takes more than 1.25 of the longer, too" in " ".join(engines_page.page(cells).split())


def test_what_was_not_measured_is_named(cells):
    page = engines_page.page(cells)
    assert "| MPICH | 4 | not measured |" in page and "### Without a limit\n\nnot measured" in page
    empty = engines_page.page(dict.fromkeys(cells))
    assert "**no**" not in empty and "yes" not in empty


def test_a_machine_is_named_once(cells):
    page = engines_page.page(cells)
    assert page.endswith("## Machine\n\n- CPU: some CPU, cores: 2\n")
    cells["buckets"]["machine"] = {"CPU": "other"}
    assert "- CPU: other (buckets)" in engines_page.page(cells)


def test_figures_stand_until_their_cell_is_made_again(cells, tmp_path, monkeypatch):
    monkeypatch.setattr(engines, "RESULTS", tmp_path / "out")
    monkeypatch.setattr(engines, "PAGE", tmp_path / "engines.md")
    monkeypatch.setattr(engines, "FIGURES", tmp_path / "engines.json")
    engines.FIGURES.write_text(json.dumps(cells))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "buckets.json").write_text(json.dumps({"machine": MACHINE, "specs": {"pytorch:ddp": train(0.02), "none": train(0.021)}}))
    engines.publish()
    assert "| `none` of plain DDP | 1.05 | 1.25 | yes |" in engines.PAGE.read_text() and "1.400 (1.10 to 2.30) **no**" in engines.PAGE.read_text()
    assert json.loads(engines.FIGURES.read_text())["window-int8"] == cells["window-int8"]


PLANS = {
    "average": {"what": "average", "bytes": 4 * ((1 << 18) + 10), "specs": ["none", "int8"], "warmup": 1, "steps": 2},
    "train": {"what": "train", "buckets": 3, "bytes": 1 << 14, "cap": (1 << 14) / (1 << 20), "repeats": 1, "warmup": 1, "steps": 2,
              "slow_steps": 1, "options": {"small_elements": 0}, "pause": 0.01,
              "specs": ["pytorch:ddp", "pytorch:hook", "little", "pytorch:fp16", "3lc", f"3lc part={1 << 14}"]},
}


@pytest.mark.parametrize("name", PLANS)
def test_ranks_measure_what_they_are_asked_for(name, tmp_path, monkeypatch):
    """Forked, as an emulated lab would start them: what that does is the lab's own tests' to say."""
    pytest.importorskip("torch")
    from launches import launch

    def executed(words):
        *lab, interpreter, program, asked, answered = words
        assert lab == [engines.COMMAND, "lab", "--hosts", 2, "--emulate", "--no-pin", "--"] and interpreter == sys.executable
        outcomes = launch([program, asked, answered], tmp_path, LACONIC_LAB="emulated")
        assert [outcome.code for outcome in outcomes] == [0, 0], outcomes[0].err

    monkeypatch.setattr(engines, "executed", executed)
    plan = PLANS[name]
    found = engines.torch_ranks(2, None, plan)
    assert found["ranks"] == 2 and list(found["specs"]) == plan["specs"]
    for spec, here in found["specs"].items():
        assert here["step"] > 0
        if name == "average":
            assert here["native"] > 0 and here["wire"] > 0
            # of one peer: half of the array out and half of the means, or the array in a quarter of its bytes
            assert here["wire_bytes"] == pytest.approx(plan["bytes"] / (1 if spec == "none" else 4), rel=0.05)
        elif spec.startswith("3lc"):
            assert here["exchanges"] == (1 if spec == "3lc" else 3) and here["wire"] > 0 and here["encode_seconds"] > 0
        else:
            assert here["wire"] == []
        assert name == "average" or here["computing"] >= 3 * plan["pause"]


def test_sums_of_all_sizes_make_one_cell(monkeypatch):
    """Medians of five launches; of 4 MiB more turns than of the others, since ranks that share cores take them as it comes."""
    asked = []

    def executed(words):
        asked.append([str(word) for word in words[-4:]])
        launch = (len(asked) - 1) // 2
        sizes = [4] if words[-1] == 4 else [16, 64]
        own, laconic = [(5.0, 1.0, 2.0, 4.0, 3.0)[launch], (9.0, 6.0, 8.0, 7.0, 5.0)[launch]]
        points = [{"bytes": size << 20, "own": own, "mean": size, "laconic": laconic, "ratio": laconic / own} for size in sizes]
        return json.dumps({"library": "Gloo", "ranks": 2, "points": points})

    monkeypatch.setattr(engines, "executed", executed)
    monkeypatch.setattr(engines.Path, "exists", lambda self: True)
    found = engines.sums("gloo", 2)
    assert found == {"library": "Gloo", "ranks": 2, "points": [
        {"bytes": size << 20, "own": 3.0, "mean": size, "laconic": 7.0, "ratio": 7.0 / 3.0} for size in (4, 16, 64)]}
    assert [words[-2:] if i % 2 == 0 else words[-3:] for i, words in enumerate(asked)] == [["200", "4"], ["16", "16", "64"]] * 5
