# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""bench/engines/engines.py: tables from figures that are known, and the ranks over torch.distributed that it starts."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python" / "tests")]

from bench.engines import engines, engines_tables
from bench.lib import tables

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
                            # each relative to its longer one: 1.0, 1.2, 1.4, 1.6 and 3.0
                            "runs": {"window 2": [{"time": time, "wire": 5e3, "coding": 1e4} for time in (1.2e4, 1e4, 1.4e4, 3e4, 1.6e4)]}}
    known["long-openmpi"] = {"results": [row("int8", 8e6, 2e6, 1.9e6, 1e5), row("3lc", 8e6, 1e6, 4e5, 1e5)]}
    known["perceptron-200mbit"] = {"specs": {"pytorch:ddp": train(6.0), "little": train(0.4), "int8": train(2.0, 0.3, 1.6, 0.2),
                                             "3lc": train(0.61, 0.3, 0.1, 0.1), "sidco:ratio=0.001": train(0.51)}}
    known["buckets"] = {"specs": {"pytorch:ddp": train(0.02), "none": train(0.024), "3lc": train(0.026)}}
    known["buckets-100mbit"] = {"specs": {"pytorch:ddp": train(0.4), "3lc": train(0.1), "3lc part=65536": train(0.2)}}
    return {name: cell and {"machine": MACHINE, **cell} for name, cell in known.items()}


def rows_of(made, key):
    return tables.markdown(made[key]).splitlines()[2:]


def test_table_appears_once_all_cells_exist(cells):
    made = engines_tables.tables_of(cells, {})
    assert set(made) == {"perceptron, 200 Mbit/s", "buckets", "buckets, four hosts", "machine"}
    assert rows_of(made, "buckets")[1] == "| `none` | 24.0 | 1.20 | 100.0 | 0.0 | 0.0 |"
    cells |= {f"sums-{name}-{ranks}": cells["sums-gloo-2"] for name in ("gloo", "openmpi", "mpich") for ranks in (2, 4)}
    cells |= {"libraries-openmpi": cells["libraries-gloo"], "window-3lc": cells["window-int8"], "long-gloo": cells["long-openmpi"],
              "perceptron-off": cells["perceptron-200mbit"]}
    made = engines_tables.tables_of(cells, {})
    assert set(made) == {*engines_tables.TABLES, "machine"}
    assert rows_of(made, "sums")[:2] == ["| Gloo | 2 | 4 | 10.0 | 10.5 | 10.5 | 1.05 | 1.00 |", "| Gloo | 2 | 16 | 10.0 | 10.6 | 10.6 | 1.06 | 1.00 |"]
    assert rows_of(made, "two in flight")[0] == "| `int8` | 500mbit | 10.0 | 14.0 | 30.0 | 20.0 | 1.400 (1.10 to 2.30) | 0.67 | 15.0 | 1.07 |"
    assert rows_of(made, "a slow network")[0] == "| Open MPI | `int8` | 8,000.0 | 2,000.0 | 1,900.0 | 100.0 | 4.0 |"
    assert rows_of(made, "libraries")[0] == "| engine's own all-reduce | 12 | 1,000.0, 0.008 | 900.0, 0.009 | 900.0, 0.009 | 800.0, 0.010 |"
    assert rows_of(made, "libraries")[2] == "| `3lc` | 0.0625 | 490.0 (100.0), 0.016 | 200.0 (100.0), 0.039 | 200.0 (100.0), 0.039 | 300.0 (100.0), 0.026 |"


def test_tables_keep_machine_until_cells_are_repeated(cells, tmp_path, monkeypatch):
    monkeypatch.setattr(engines, "PUBLISHED", tmp_path)
    before = engines_tables.tables_of(cells, {})
    tables.publish(tmp_path, "engines", "make engines", before)
    none = {cell.name: None for cell in engines.CELLS}
    engines.publish({**none, "buckets": {"machine": {"CPU": "other"}, "specs": {"pytorch:ddp": train(0.02), "none": train(0.021)}}})
    after = json.loads((tmp_path / "engines.json").read_text())["tables"]
    assert rows_of(after, "buckets")[1] == "| `none` | 21.0 | 1.05 | 100.0 | 0.0 | 0.0 |"
    assert rows_of(after, "buckets, four hosts") == rows_of(before, "buckets, four hosts")
    assert dict(after["machine"]["rows"]) == {"perceptron, 200 Mbit/s": "CPU: some CPU, cores: 2", "buckets": "CPU: other", "buckets, four hosts": "CPU: some CPU, cores: 2"}


PLANS = {
    "average": {"what": "average", "bytes": 4 * ((1 << 18) + 10), "specs": ["none", "int8"], "warmup": 1, "steps": 2},
    "train": {"what": "train", "buckets": 3, "bytes": 1 << 14, "cap": (1 << 14) / (1 << 20), "repeats": 1, "warmup": 1, "steps": 2,
              "slow_steps": 1, "options": {"small_elements": 0}, "pause": 0.01,
              "specs": ["pytorch:ddp", "pytorch:hook", "little", "pytorch:fp16", "3lc", f"3lc part={1 << 14}"]},
}


@pytest.mark.parametrize("name", PLANS)
def test_ranks_measure_requested_cells(name, tmp_path, monkeypatch):
    """Forked, as an emulated lab would start them: what that does is the lab's own tests' to say."""
    pytest.importorskip("torch")
    from launches import launch

    def executed(words):
        *lab, interpreter, flag, program, asked, answered = words
        assert lab == [engines.COMMAND, "lab", "--hosts", 2, "--emulate", "--no-pin", "--"] and interpreter == sys.executable
        outcomes = launch([flag, program, asked, answered], tmp_path, cwd=ROOT, LACONIC_LAB="emulated")
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
