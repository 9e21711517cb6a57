# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""bench/engines/outer.py: rates are chosen as its page says, and every figure stands beside its bar, from runs with known answers."""

import json

import pytest

pytest.importorskip("torch")

from bench.engines import outer as bench  # noqa: E402

LEVEL = {"float32": 3.0, "attach-3lc": 3.3, "attach-powersgd": 3.1, "every1-3lc-1.5": 3.015, "every4-3lc": 3.03, "every4-3lc-once": 3.015}
SHARES = {"attach-3lc": 0.97, "every1-3lc": 0.972, "every20-none": 0.96, "every20-3lc": 0.955, "every20-3lc-once": 0.958, "every20-diloco": 0.96, "every20-diloco-once": 0.957}


def run(final, of_ddp=40.0, at=100):
    return {"final": final, "curve": [[at - 50, 5.0 if final > 1 else 0.1], [at, 2.9 if final > 1 else 0.99]], "sent": 1e6 / of_ddp, "of_ddp": of_ddp}


def everything(best=8e-3):
    """Results of every cell; the better a rate, the nearer it is to `best`."""
    found = {}
    for model in bench.READERS:
        for way in bench.READ:
            for rate in (1e-3, 2e-3, 4e-3, 8e-3, 16e-3, 32e-3, 64e-3):
                for seed in bench.SEEDS:
                    off = 0.1 * abs(best / rate - 1)
                    found[bench.learning_name(model, way, rate, seed)] = run(LEVEL[way] + off, at=120 if way == "attach-powersgd" else 100)
    for model, ways in bench.SEEN.items():
        for way in ways:
            for seed in bench.SEEDS:
                found[bench.learning_name(model, way, 0, seed)] = run(SHARES[way], of_ddp=2000.0 if way == "every20-3lc" else 40.0)
    for seed in bench.SEEDS:
        found[bench.learning_name("gpt", "every20-diloco", bench.LONG_RATE, seed)] = run(3.2, of_ddp=20.0)
        found[bench.learning_name("gpt", "every20-blocks", bench.LONG_RATE, seed)] = run(3.19 + 0.002 * seed, of_ddp=1200.0)
    for name, (plan, _) in bench.TIMED.items():
        found[name] = {"ways": {way: {"seconds": {"float32": 1.0, "attach-powersgd": 0.12, "attach-3lc": 0.4, "every20-none": 0.6}.get(way, 0.1),
                                      "exposed": 0.01 if way == "delayed" else 0.06} for way in plan["ways"]}}
    found["local"] = {"ways": {"plain": {"seconds": 0.01}, bench.ALL_REDUCED: {"seconds": 0.0101}, "every20-none": {"seconds": 0.0102}}}
    return found


def test_every_figure_has_its_bar():
    made = bench.tables_of(everything())
    assert [row[1:] for row in made["bars"]["rows"]] == [
        ["+0.50 %", "≤ 1 %"], ["40", "≥ 30"], ["+0.50 %", "≤ 1 %"], ["40", "≥ 30"], ["+1.00 %", "≤ 2 %"], ["40", "≥ 90"], ["+1.00 %", "≤ 2 %"], ["40", "≥ 90"],
        ["+0.50 %", "≤ 2 %"], ["40", "≥ 90"], ["+0.50 %", "≤ 2 %"], ["40", "≥ 90"],
        ["+0.20", "≥ −0.3"], ["+0.20", "≥ −0.3"], ["-0.008 ± 0.001", "≤ 0 beyond chance"], ["60", "≥ 50"],
        ["1.44", "≥ 1.3"], ["1.44", "≥ 1.3"], ["1.44", "≥ 1.3"], ["1.44", "≥ 1.3"], ["4.0", "≥ 3"], ["6.0", "≥ 5"], ["4.0", "≥ 3"], ["6.0", "≥ 5"],
        ["6.0", "≥ 5"], ["2,000", "≥ 1,000"], ["-0.50", "≥ −0.5"],
        ["40", "≥ 1,000"], ["-0.20", "≥ −0.5"], ["40", "≥ 1,000"], ["-0.30", "≥ −0.5"], ["1.01", ""], ["1.02", "≤ 1.03"]]
    assert made["gpt"]["rows"][0][2] == "8" and made["gpt"]["rows"][0][1].count(":") == 4  # 16e-3 was tried, since 8e-3 was the highest of three


def test_missing_seed_has_no_row():
    found = everything()
    found[bench.learning_name("lstm", "every4-3lc", 8e-3, 2)] = None
    made = bench.tables_of(found)
    assert len(made["lstm"]["rows"]) == len(bench.READ) - 1 and len(made["bars"]["rows"]) == 31
    assert bench.tables_of({name: None for name in found}) == {}


@pytest.mark.parametrize(("best", "rates"), [(4e-3, [2e-3, 4e-3, 8e-3]), (8e-3, [2e-3, 4e-3, 8e-3, 16e-3]), (1e-3, [5e-4, 1e-3, 2e-3, 4e-3, 8e-3])])
def test_rates_widen_until_best_is_inside(best, rates):
    found = everything(best) | {bench.learning_name("gpt", "float32", 5e-4, 0): run(4.0)}
    assert bench.tried(found.get, "gpt", "float32") == (rates, best)


def test_seeds_follow_once_a_rate_is_chosen(tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "RESULTS", tmp_path)
    first = {cell.name for cell in bench.cells_of()}
    assert bench.learning_name("gpt", "float32", 4e-3, 1) not in first
    for rate, final in ((2e-3, 3.1), (4e-3, 3.0), (8e-3, 3.2)):
        (tmp_path / f"{bench.learning_name('gpt', 'float32', rate, 0)}.json").write_text(json.dumps(run(final)))
    then = {cell.name for cell in bench.cells_of()}
    assert then - first == {bench.learning_name("gpt", "float32", 4e-3, seed) for seed in (1, 2)}


@pytest.mark.parametrize("seen", [{}, {2.0: 0.5, 4.0: 0.4, 8.0: 0.3}, {2.0: 0.3, 4.0: 0.4, 8.0: float("inf")}])
def test_rates_of_interrupted_run_go_on_from_seen(seen):
    wanted = {0.0: [2.0, 4.0, 8.0], 0.5: [2.0, 4.0, 8.0, 16.0], 0.3: [1.0, 2.0, 4.0, 8.0]}[seen.get(2.0, 0.0)]
    assert bench.known_rates([2.0, 4.0, 8.0], seen) == wanted


def test_best_rate_of_each_optimizer_is_in_table():
    found = everything() | {bench.rated_name("mlp", "SGD", "float32"): {"steps": 100, "bits": [[0.5, 0.3], [1.0, 0.2], [2.0, 0.7]]}}
    rows = bench.tables_of(found)["rates"]["rows"]
    assert rows[0] == ["mlp, SGD", "100", "gradients, float32", "0.5: 0.300, 1: 0.200, 2: 0.700", "1"]
    assert [(row[0], row[4]) for row in rows[1:]] == [("gpt, AdamW", "0.008")] * 2 + [("lstm, AdamW", "0.008")] * 2


def test_bytes_of_torchft_stand_beside_those_of_rounds(monkeypatch, tmp_path):
    found = everything() | {"torchft": {"torchft": 7.2e6, "every20-diloco": 7.1e6, "every20-diloco-once": 3e5}}
    assert bench.tables_of(found)["torchft"]["rows"][2][1:] == [300.0, 24.0, "≥ 20"]
    monkeypatch.setenv("TORCHFT", str(tmp_path))
    with pytest.raises(bench.cells.CellError, match="pip install torchft==0.2.0"):
        bench.beside_torchft(bench.TORCHFT)
