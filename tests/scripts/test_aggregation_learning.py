# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""bench/aggregation/aggregation_learning.py: its runs, its tables from runs with known answers; the virtual workers."""

import dataclasses
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "python" / "tests")]

import training_here  # noqa: E402

training_here.needs_models()

from bench.aggregation import aggregation_learning as learning, aggregation_learning_tables
import serving  # noqa: E402
from bench.lib import tables
import torch  # noqa: E402

PLACE = {"CPU": "one", "date": "2026-01-02", "python": "3.11", "torch": "2.0", "scikit-learn": "1.0"}
BELOW = {"last": 0.2, "1 % loss": 0.4, "loss and quorum": 3.0, "bits=2": 2.5}


def run_of(cell):
    value = 0.95 + 0.001 * cell.seed - BELOW.get(cell.name, 0) / 100
    run = {"cell": dataclasses.asdict(cell), "curve": [[5 * i, value] for i in range(1, 8)], "nmse": [], "environment": PLACE}
    if cell.spec:
        run["nmse"] = [] if cell.served else [[0.8 / cell.world, (0.6 if cell.name == "last" else 0.4) / cell.world]] * 2
        run |= {"lane_bits": 16 if cell.world == 64 else 8, "granules": 1000, "resent": 100 * cell.world,
                "excluded": 2000 if cell.late else 0, "partial": 1000 if cell.late else 0}
    return run


def everything():
    return [(cell, run_of(cell)) for question in learning.QUESTIONS for cell in learning.cells(question)]


def rows(found, key, named=1):
    """As the page shows them, by their first cells."""
    lines = [line[2:-2].split(" | ") for line in tables.markdown(found[key]).splitlines()[2:]]
    return {line[0] if named == 1 else tuple(line[:named]): line[named:] for line in lines}


def test_every_run_has_its_own_file():
    cells = [cell for question in learning.QUESTIONS for cell in learning.cells(question)]
    assert len({cell.path for cell in cells}) == len(cells)
    faults = learning.cells("faults")
    assert {cell.seed for cell in faults} == {0, 1, 2} and {cell.world for cell in faults} == {10}
    assert {cell.batch * cell.world for cell in learning.cells("widths")} == {learning.SAMPLES}
    assert {cell.name for cell in faults if cell.loss} == {"1 % loss", "loss and quorum"}


def test_tables_match_expected_text():
    found = aggregation_learning_tables.tables_of(everything())
    faults, widths = rows(found, "faults"), rows(found, "widths", 2)
    assert faults["float32"] == ["95.1 ± 0.1", "95.1 ± 0.1", "–", "–", "–"]
    assert faults["last"] == ["94.9 ± 0.1 (-0.2)"] * 2 + ["–"] * 3
    assert faults["2 of 10 late"] == ["95.1 ± 0.1 (+0.0)"] * 2 + ["20.0 %", "100.0 %", "10.0 %"]
    assert faults["loss and quorum"][0] == "**92.1 ± 0.1 (-3.0)**"
    assert widths["4", "float32"] == ["4", "4"] + ["–", "–", "95.1 ± 0.1"] * 2
    assert widths["64", "bits 3"] == ["0.375", "2"] + ["0.013", "0.400", "95.0 (+0.0)"] * 2


def test_missing_runs_are_counted_and_table_stays(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(learning, "RESULTS", tmp_path / "out")
    started = []
    monkeypatch.setattr(learning, "start", lambda cells: started.extend(cells) or 0)
    for cell, run in everything():
        learning.save(cell.path, run)
    assert learning.main(["--out", str(tmp_path)]) == 0 and not started
    before = json.loads((tmp_path / "aggregation-learning.json").read_text())["tables"]
    for cell in learning.cells("widths")[:2]:
        cell.path.unlink()
    assert learning.main(["--out", str(tmp_path)]) == 0 and len(started) == 2
    assert capsys.readouterr().err.splitlines()[-1] == f"2 of {len(everything())} runs are missing"
    after = json.loads((tmp_path / "aggregation-learning.json").read_text())["tables"]
    assert after["widths"] == before["widths"] and "widths" not in aggregation_learning_tables.tables_of(everything()[:-1] + [(everything()[-1][0], None)])


# ---- virtual workers ----

PARAMETERS = [("w", (40, 50)), ("b", (10,))]


def workers_of(monkeypatch, world, spec="thc:block=256", **options):
    training_here.needs_library(monkeypatch)
    from bench.aggregation import virtual_workers

    return virtual_workers.VirtualWorkers(spec, PARAMETERS, world, small_elements=16, **options)


def fill(workers, step):
    for rank, row in enumerate(workers.gradients):
        row[:] = torch.randn(2010, generator=torch.Generator().manual_seed(100 * step + rank)).numpy()
    return workers.gradients.mean(0)


@pytest.mark.parametrize("spec", ["thc:block=256", "3lc", "topk:ratio=0.3"])
def test_virtual_workers_share_mean_and_residuals_hold_the_rest(monkeypatch, spec):
    workers = workers_of(monkeypatch, 3, spec)
    delivered, came_in = 0, 0
    for step in range(4):
        came_in = came_in + fill(workers, step)
        workers.exchange()
        assert (workers.gradients == workers.gradients[0]).all()
        delivered = delivered + workers.gradients[0]
    kept = sum(workers.residuals(rank)["w"] for rank in range(3)) / 3 if workers.residuals(0) else 0
    assert abs(delivered[:2000] + kept - came_in[:2000]).max() < 1e-5
    assert abs(delivered[2000:] - came_in[2000:]).max() < 1e-6
    workers.close()


def test_late_workers_are_excluded_and_keep_gradients(monkeypatch):
    if not serving.BINARY.exists():
        pytest.skip(f"{serving.BINARY} is not built")
    training_here.needs_library(monkeypatch)
    monkeypatch.setattr("bench.aggregation.virtual_workers.TIMEOUT", 60)  # no worker is late four times in a row: exact, on a busy machine, too
    with serving.servers(1) as (server,):
        workers = workers_of(monkeypatch, 5, server=server.address, quorum=0.6, deadline_ms=2, late=2)
        delivered, came_in, steps = 0, 0, 4
        for step in range(steps):
            came_in = came_in + fill(workers, step)
            workers.exchange()
            delivered = delivered + workers.gradients[0]
            assert (workers.gradients == workers.gradients[0]).all()
        stats = workers.stats()
        # 8 blocks and a block of the small parameter
        assert sum(each["excluded_granules"] for each in stats) == 2 * 9 * steps
        assert all(each["partial_granules"] == 9 * steps for each in stats)
        assert max(each["excluded_granules"] for each in stats) < 9 * steps  # not always the same two
        # a mean is that of three; what was not in one waits
        kept = sum(workers.residuals(rank)["w"] for rank in range(5)) / 3
        assert abs(delivered[:2000] + kept - 5 / 3 * came_in[:2000]).max() < 1e-5
        workers.close()


def test_error_of_mean_matches_compressed_parameters(monkeypatch):
    workers = workers_of(monkeypatch, 2)
    fill(workers, 0)
    before = learning.inputs_of(workers)
    assert list(before) == [0] and before[0].shape == (2, 2000) and (before[0] == workers.gradients[:, :2000]).all()
    workers.gradients[:] = 2 * workers.gradients.mean(0)
    error, of_inputs = learning.error_of(workers, before)
    assert error == pytest.approx(1, rel=1e-5) and of_inputs == pytest.approx(0.5, rel=0.1)
    workers.close()


def test_short_training_runs(tmp_path, monkeypatch):
    cell = learning.Cell("faults", "2 of 10 late", "mlp", 0, 3, 4, "thc", True, 0.0, 0.5, 1, steps=5)
    training_here.needs_library(monkeypatch)
    monkeypatch.setattr(learning, "RESULTS", tmp_path)
    monkeypatch.setattr("bench.aggregation.virtual_workers.TIMEOUT", 60)
    monkeypatch.setenv("LACONIC_BIN", training_here.needs("LACONIC_CLI", "bin/laconic"))
    learning.run_here([cell])
    run = json.loads(next(tmp_path.glob("*.json")).read_text())
    assert run["cell"] == dataclasses.asdict(cell) and [step for step, _ in run["curve"]] == [5]
    assert run["partial"] == run["granules"] == run["excluded"] > 0  # one is late, in every sum
