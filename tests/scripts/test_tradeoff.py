# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""bench/control/tradeoff.py: its virtual network, the rule of its bar, its page from cells with known answers, and its ranks for a few steps."""

import json
import math
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "python" / "tests")]

pytest.importorskip("torch")

from bench.control import tradeoff, tradeoff_tables as rule, virtual_network as net
from bench.lib import charts, tables
from training_here import needs_library  # noqa: E402

PLACE = {"CPU": "one", "date": "2026-01-02"}
TURNS = net.Scenario("1 and 10 MB a second", ("8mbit", "80mbit"), 1.0)

# ---- the network ------------------------------------------------------------------------------------------------------


def test_link_sends_at_the_rate_of_each_moment():
    link = net.Link(TURNS)
    assert link.send(net.BURST) == 0 and link.send(500_000) == 0.5
    link.idle(0.25)
    assert link.send(net.BURST + 250_000 + 10_000_000 + 100_000) == pytest.approx(0.25 + 1.0 + 0.1)
    assert link.now == pytest.approx(2.1)


def test_idle_link_gathers_one_burst_alone():
    link = net.Link(TURNS)
    link.send(net.BURST + 100_000)
    link.idle(1.4)
    assert link.now == 1.5 and link.send(net.BURST + 1_000_000) == pytest.approx(0.1)


def test_cross_traffic_is_the_same_everywhere():
    rates = net.SCENARIOS["cloud"].rates
    assert len(rates) == 240 and {int(rate.removesuffix("mbit")) for rate in rates} <= set(range(net.LEAST, net.LINK + 1))
    assert rates[3:13] == ("400mbit", "600mbit", "600mbit", *["200mbit"] * 6, "400mbit")
    assert rates.count("10mbit") == 41


COSTS = [[100.0, 110.0, 0.1, 0.01], [300.0, 330.0, 0.2, 0.03], [1000.0, 1100.0, 0.3, 0.4]]  # the last one is uncompressed


def test_costs_lie_on_lines_over_bytes():
    costs = net.Costs.read(COSTS)
    between, beyond, below = costs.of(200), costs.of(400), costs.of(-200)
    assert (between.wire, between.rest, between.base) == pytest.approx((220, 0.15, 0.02))
    assert (beyond.wire, beyond.rest, beyond.base) == pytest.approx((440, 0.25, 0.04))
    assert (below.wire, below.rest, below.base) == (0, 0, 0)
    assert costs.of(200, uncompressed=True) == net.Cost(*COSTS[-1])


def test_step_is_what_it_costs_and_what_its_bytes_take():
    costs = net.Costs([net.Cost(0, 0, 0.2, 0.01), net.Cost(1, 1, 0.2, 0.01)], net.Cost(0, 0, 0, 0))
    clock = net.Clock(costs, TURNS)
    assert clock.step(net.BURST) == pytest.approx((0.01, 0.21))
    clock = net.Clock(costs, TURNS)
    assert clock.step(net.BURST + 500_000) == pytest.approx((0.51, 0.71)) and clock.seconds == pytest.approx(0.71)
    assert net.seconds_of(costs, TURNS, 1000, 3) == pytest.approx(0.63)


def test_schedule_that_knows_the_rate_changes_with_it():
    slow_first = net.Scenario("slow, then fast", ("8mbit", "800mbit"), 1.0)
    costs = net.Costs([net.Cost(0, 0, 0.3, 0), net.Cost(1000, 1000, 0.3, 0)], net.Cost(0, 0, 0, 0))
    assert net.foreseen(costs, slow_first, 10.0, 1000.0, 7) == [False, False, False, True, True, True, False]


def unpacked(two: bytes) -> float:
    """As report.h says."""
    code = int.from_bytes(two, "little")
    exponent, mantissa = code >> 11, code & 2047
    return (mantissa if exponent == 0 else (2048 + mantissa) * 2 ** (exponent - 1)) / 16e6


def test_seconds_are_packed_as_reports_have_them():
    for seconds in (125e-9, 1e-4, 4095 / 16e6, 4096 / 16e6, 0.0123, 0.5, 3.21, 86_000):
        assert unpacked(net.packed(seconds)) == pytest.approx(seconds, rel=1 / 4096)
    assert net.packed(0) == b"\1\0"  # 0 would say that nothing was measured


def test_reports_keep_all_but_two_times():
    said = (2).to_bytes(8, "little") + bytes(range(1, 25)) + bytes(12)
    made = net.retimed(said, 0.5, 0.75)
    assert len(made) == len(said) and made[32:] == bytes(12)
    for at in (8, 20):
        assert unpacked(made[at : at + 2]) == pytest.approx(0.5, rel=1e-3) and unpacked(made[at + 6 : at + 8]) == pytest.approx(0.75, rel=1e-3)
        assert made[at + 2 : at + 6] + made[at + 8 : at + 12] == said[at + 2 : at + 6] + said[at + 8 : at + 12]
    assert net.retimed(bytes(44), 0.5, 0.75) == b""


# ---- the rule ---------------------------------------------------------------------------------------------------------


def point(name, seconds, *scores):
    return rule.Point(name, seconds, scores)


FIXED = [point("a", 10, 0.0), point("b", 20, 1.0), point("c", 40, 2.0), point("d", 50, 1.5), point("e", 160, 4.0)]


def behind(seconds, score, margin=0.0):
    return "".join(rule.not_ahead(point("dc2", seconds, score), FIXED, dict.fromkeys("abcde", margin)))


def test_front_has_what_nothing_dominates():
    assert [each.name for each in FIXED if rule.on_front(each, FIXED)] == ["a", "b", "c", "e"]
    twins = [point("a", 10, 1.0), point("b", 10, 1.0), point("c", 10, 0.5), point("d", 11, 1.0)]
    assert [each.name for each in twins if rule.on_front(each, twins)] == ["a", "b"]


def test_line_is_straight_over_logarithm_of_time():
    line = rule.Line(FIXED)
    assert line.score(9) is None and line.score(10) == 0 and line.score(20 * math.sqrt(2)) == pytest.approx(1.5) and line.score(80) == pytest.approx(3)
    assert line.score(1000) == 4
    assert line.seconds(0.5) == pytest.approx(10 * math.sqrt(2)) and line.seconds(3) == pytest.approx(80)
    assert line.seconds(4.1) is None and line.seconds(-1) is None


def test_policy_is_ahead_by_a_tenth_of_time_or_beyond_chance():
    assert behind(35, 2.0) == ""  # c by an eighth of its time, others on the line or beyond
    assert behind(37, 2.0) == "c"  # a twelfth
    assert behind(37, 2.0, 0.2) == "abce"  # and above the line by chance alone
    assert behind(40, 2.2, 0.1) == ""  # better at once; between b and e above the line
    assert "c" in behind(40, 2.05, 0.1)  # by chance
    assert behind(30, 1.55) == "abce"  # a trade for each, and on the line of all
    assert behind(15, 1.6) == ""
    assert "a" in behind(9.1, 0.5, 0.6) and "a" not in behind(8.9, 0.5, 0.6)
    assert "e" in behind(9.5, 1.0)  # sooner than all: a fixed setting that sends less might be, too
    assert behind(200, 3.9) == "abcde" and behind(200, 5.0) == ""


def test_chance_is_pooled_over_settings():
    points = [point("a", 1, 1.0, 3.0), point("b", 1, 4.0, 8.0, 6.0), point("c", 1, 5.0)]
    deviation, freedom = rule.spread(points)
    assert freedom == 3 and deviation == pytest.approx(math.sqrt(10 / 3))
    assert rule.chance(points, points[0], points[1]) == pytest.approx(3.182 * deviation * math.sqrt(1 / 2 + 1 / 3))
    assert rule.chance([point("a", 1, 1.0)], point("a", 1, 1.0), point("b", 1, 2.0)) is None


# ---- cells and page ---------------------------------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.setattr(tradeoff, "RESULTS", tmp_path / "cells")
    return tmp_path


GPT = tradeoff.GROUPS[1]
BITS = (4.0, 3.8, 3.6, 3.5, 3.4)  # of the five fixed settings


def steps_of(about):
    """10 ms in collectives besides the time of bytes, 100 ms without; the setting that follows sends three times as much."""
    def rates(sent):
        passing = 8 * max(sent - net.BURST, 0)
        return {rate: {"step": 0.11 + passing / bits, "network": 0.01 + passing / bits, "sent": sent, "wire": sent} for rate, bits in (("1gbit", 1e9), ("10mbit", 1e7))}

    return {**{spec: rates(float(net.BURST * 3**i)) for i, spec in enumerate(about.specs)}, "none": {"1gbit": rates(8e6)["1gbit"]}}


def gave(cell, bits=3.5, seconds=60.0):
    """Policies end at `bits` after `seconds`."""
    kind, *words = cell.name.split("-")
    about = next((about for about in tradeoff.GROUPS if about.name in cell.name), None)
    found = {"environment": PLACE}
    if kind == "tune":
        return {**found, "runs": {"0.3": {"final": 3.9}, "1": {"final": 3.7}, "3": {"final": math.nan}}}
    if kind == "time":
        return {**found, "steps": steps_of(about)}
    if kind == "lab":
        ends = dict(zip(about.specs, BITS)) | dict.fromkeys(tradeoff.POLICIES, bits)
        return {**found, "runs": {name: {"seconds": 50.0 - 10 * end, "final": end, "mean": 0.01, "uncompressed": 0.0, "changes": 3} for name, end in ends.items()}}
    shift = 0.01 * int(words[0])
    if words[-1] == "fixed":
        return {**found, "runs": {spec: {"final": end + shift, "sent": net.BURST * 3**i, "steps": 400} for i, (spec, end) in enumerate(zip(about.specs, BITS))}}
    run = {"final": bits + shift, "sent": 1.0, "steps": 400, "seconds": seconds, "mean": 0.02, "uncompressed": 0.25, "changes": 7}
    known = {tradeoff.KNOWN: {**run, "seconds": 40.0, "final": 3.2}} if words[-1] == tradeoff.FORESEEN and words[0] == "0" else {}
    return {**found, "costs": rule.mark(tradeoff.costs_of(about)), "runs": dict.fromkeys(tradeoff.POLICIES, run) | known}


def write(which="", **more):
    """The cells whose names contain that, those of costs first."""
    for cell in tradeoff.cells_of():
        if which in cell.name and cell.load() is None:
            cell.save(gave(cell, **more))


def found():
    return {cell.name: cell.load() for cell in tradeoff.cells_of()}


def shown(table):
    return [line[2:-2].split(" | ") for line in tables.markdown(table).splitlines()[2:]]


def test_cells_are_short_and_name_every_training(here):
    cells = tradeoff.cells_of()
    assert len({cell.path for cell in cells}) == len(cells) and 0 < max(cell.minutes for cell in cells) <= 20
    assert len([cell for cell in cells if cell.name.startswith("learn")]) == 9 * 4 and sum(cell.minutes for cell in cells) <= 180
    assert {about.moved for about in tradeoff.GROUPS if about.mode == "outer"} == {"topk:ratio", "qsgd:levels", "powersgd:rank"}


def test_learning_rate_is_the_best_that_was_tried(here):
    with pytest.raises(tradeoff.cells.CellError, match="it needs the cell tune-lstm-sgd"):
        tradeoff.rate_of("lstm", "SGD")
    write("tune")
    assert tradeoff.rate_of("lstm", "SGD") == 1.0 and tradeoff.rate_of("gpt", "AdamW") == 4e-3


def test_fixed_settings_take_the_time_of_their_bytes(here):
    write("gpt-sgd")
    fixed, moved = rule.points_of(GPT, "turns3", found())
    assert [each.seconds for each in fixed][:1] == pytest.approx([400 * 0.11], rel=1e-3)
    assert all(a.seconds < b.seconds for a, b in zip(fixed, fixed[1:])) and [each.score for each in fixed] == [-bits for bits in BITS]
    assert [(each.name, each.seconds, each.score) for each in moved] == [(name, 60.0, -3.5) for name in tradeoff.POLICIES]


def test_costs_without_bytes_are_lines_through_all_settings(here):
    cell = next(cell for cell in tradeoff.cells_of() if cell.name == "time-gpt-sgd-topk")
    noisy = gave(cell)
    for i, off in enumerate((0.02, 0.03, -0.05, -0.04, 0.0)):  # of no line
        spec = GPT.specs[i]
        noisy["steps"][spec]["1gbit"]["step"] += off + 1e-8 * net.BURST * 3**i
    cell.save(noisy)
    rows = tradeoff.costs_of(GPT)
    slopes = [(b[2] - a[2]) / (b[0] - a[0]) for a, b in zip(rows[:4], rows[1:5])]
    assert slopes == pytest.approx([slopes[0]] * 4) and sum(row[2] for row in rows[:5]) == pytest.approx(0.5 - 0.04 + 1e-8 * net.BURST * 121)
    assert [row[3] for row in rows[:5]] == pytest.approx([0.01] * 5) and rows[5] == [8e6, 8e6, pytest.approx(0.1), pytest.approx(0.01)]


def test_policy_that_decided_by_other_costs_is_left_out(here):
    write("gpt-sgd")
    assert rule.points_of(GPT, "cloud", found())[1]
    cell = next(cell for cell in tradeoff.cells_of() if cell.name == "time-gpt-sgd-topk")
    changed = gave(cell)
    changed["steps"]["topk"]["1gbit"]["step"] += 0.001
    cell.save(changed)
    assert rule.points_of(GPT, "cloud", found()) == ([], [])


def test_other_seeds_are_trained_where_the_screen_is_open(here):
    write("gpt-sgd", bits=3.7, seconds=500.0)
    assert not any(cell.name.startswith("learn-1") for cell in tradeoff.cells_of())
    better = {"turns20": (3.3, 45.0), "cloud": (3.3, 45.0), "turns3": (BITS[1] - 0.01, rule.points_of(GPT, "turns3", found())[0][1].seconds)}  # the last by chance
    for scenario, (bits, seconds) in better.items():
        cell = next(cell for cell in tradeoff.cells_of() if cell.name == f"learn-0-gpt-sgd-topk-{scenario}")
        cell.save(gave(cell, bits=bits, seconds=seconds))
    assert [] in rule.lags(GPT, "turns3", found(), 0.0).values()
    more = [cell.name for cell in tradeoff.cells_of() if cell.name.startswith(("learn-1", "learn-2"))]
    assert more == [f"learn-{seed}-gpt-sgd-topk-{which}" for seed in (1, 2) for which in ("fixed", "turns20", "cloud")]


def test_page_judges_by_all_seeds(here):
    write("gpt-sgd", bits=3.3, seconds=45.0)
    made = rule.tables_of(found())
    assert [row[-1] for row in shown(made["bar"])] == ["open: 1 of 3 seeds"] * 6
    write("gpt-sgd", bits=3.3, seconds=45.0)
    made = rule.tables_of(found())
    assert shown(made["bar"])[0] == ["turns3", "gpt, SGD, `topk:ratio`", "`dc2`", "0.02", "25 %", "7", "–", "ahead"]  # no fixed setting is as good
    row = shown(made["turns3"])[0]
    assert row[0] == "gpt, SGD, `topk:ratio`: 0.001, 0.003, 0.01, 0.03, 0.1" and row[1] == "**44 s, 4.010 ± 0.010**" and row[6] == "**45 s, 3.310 ± 0.010**"
    assert not row[5].startswith("**") and len(row) == 8
    assert shown(made["turns20"])[0][-1] == "40 s, 3.200"  # and takes nobody off the front, nor is it judged


def test_known_rate_makes_a_schedule_of_two_settings(here):
    write("gpt-sgd-topk-fixed")
    write("time-gpt-adamw-qsgd")
    write("gpt-adamw-qsgd-fixed")
    write("time-gpt-sgd")
    made = tradeoff.known(GPT, "turns20", tradeoff.costs_of(GPT))[tradeoff.KNOWN]
    assert made["control"].startswith("schedule:0=0.03,") and made["control"].count("=0.001") >= 1 and made["spec"] == "topk"
    qsgd = next(about for about in tradeoff.GROUPS if about.name == "gpt-adamw-qsgd")
    assert tradeoff.known(qsgd, "turns20", tradeoff.costs_of(qsgd))[tradeoff.KNOWN]["control"].startswith("schedule:0=127,")


def test_page_names_what_a_policy_is_not_ahead_of(here):
    write("gpt-sgd", bits=3.3, seconds=45.0)
    write("gpt-sgd", bits=3.3, seconds=45.0)
    for seed in tradeoff.SEEDS:
        cell = next(cell for cell in tradeoff.cells_of() if cell.name == f"learn-{seed}-gpt-sgd-topk-cloud")
        late = gave(cell, bits=3.3, seconds=45.0)
        late["runs"] = {**late["runs"], "dc2": {**late["runs"]["dc2"], "seconds": 4000.0, "final": 3.4 + 0.01 * seed}}
        cell.save(late)
    rows = shown(rule.tables_of(found())["bar"])
    verdicts = {(row[0], row[2]): row[-1] for row in rows}
    as_good = rule.points_of(GPT, "cloud", found())[0][-1]  # the fifth setting ends at 3.4, too
    assert [row[6] for row in rows if (row[0], row[2]) == ("cloud", "`dc2`")] == [f"{4000 / as_good.seconds:.2f}"]
    assert verdicts["cloud", "`dc2`"] == "not ahead of the front, 0.001, 0.003, 0.01, 0.03, 0.1" and verdicts["cloud", "`dc2:target=compute`"] == "ahead"
    cell.path.unlink()
    assert {row[-1] for row in shown(rule.tables_of(found())["bar"]) if row[0] == "cloud"} == {"open: 2 of 3 seeds"}


@pytest.mark.parametrize(("low", "high", "ticks"), [(46.0, 84.0, [50.0, 60.0, 70.0, 80.0]), (45.0, 105.0, [50.0, 100.0]), (0.9, 1100.0, [1.0, 10.0, 100.0, 1000.0])])
def test_log_axis_has_two_ticks_or_more(low, high, ticks):
    assert charts.Axis(low, high, 0.0, 100.0, log=True).ticks() == pytest.approx(ticks)


def test_page_sets_clock_beside_lab(here):
    write()
    made = rule.tables_of(found())
    rows = shown(made["clock"])
    assert len(rows) == 21 and rows[7][:4] == ["turns3", "lstm, SGD, `topk:ratio`", "`topk:ratio=0.001`", "10 s, 4.000"] and rows[7][6:] == ["–"] * 3
    assert rows[12][2:] == ["`dc2`", "15 s, 3.500", "60.0", "4.00", "0.01", "0.02", "1.00"]  # the fourth setting is as soon and as good


def test_lab_shows_no_policy_without_its_training_by_the_clock(here):
    write("tune")
    write("time")
    write("fixed")
    write("lab")
    write("learn-0-lstm-sgd-topk-turns3")
    rows = shown(rule.tables_of(found())["clock"])
    assert {row[0] for row in rows} == {"turns3"}


def test_costs_are_those_that_were_measured(here):
    write()
    made = rule.tables_of(found())
    assert shown(made["costs"])[1][2:] == ["197", "100", "111", "215", "215"]


def test_cells_are_restored_from_next_to_the_page(here):
    write()
    assert tradeoff.main(["--page", "--out", str(here)]) == 0
    ends = ("tradeoff.md", "tradeoff.json", "tradeoff.cells", "tradeoff-turns3.svg", "tradeoff-turns20.svg", "tradeoff-cloud.svg")
    before = {end: (here / end).read_text() for end in ends}
    assert max(len(text) for end, text in before.items()) <= 50_000
    for cell in (here / "cells").iterdir():
        cell.unlink()
    assert tradeoff.main(["--page", "--restore", "--out", str(here)]) == 0
    assert {end: (here / end).read_text() for end in ends} == before


# ---- ranks ------------------------------------------------------------------------------------------------------------


def plan(mode, **more):
    return {"model": "mlp", "optimizer": "SGD" if mode == "attach" else "AdamW", "rate": 0.1 if mode == "attach" else 1e-3, "mode": mode, "key": "ratio", "seed": 0,
            "every": 20, "held_out": False, **more}


#: without the time of bytes a step takes 0.1 s
LIGHT = [[0.0, 0.0, 0.1, 0.0], [1e6, 1e6, 0.1, 0.0], [8e6, 8e6, 0.1, 0.0]]


def followed(folder):
    """Twice each: 30 steps of 0.1 s on a fast link, then a slow one."""
    import torch.distributed as dist

    from bench.control import tradeoff_rank
    from bench.lib import models

    net.SCENARIOS["falls"] = net.Scenario("a fall", ("1gbit", *["2mbit"] * 9), 3.0)
    data, rank = models.load("mlp").data(None), dist.get_rank()
    for mode in ("attach", "outer"):
        run = {"spec": "topk:ratio=0.05", "control": "dc2:target=compute", "scenario": "falls"}
        for turn in range(2):
            made = tradeoff_rank.trained(plan(mode, steps=50, costs=LIGHT), run, data, str(folder / f"{mode}-{turn}.jsonl"))
            if rank == 0:
                (folder / f"{mode}-{turn}.json").write_text(json.dumps(made))
    still = tradeoff_rank.trained(plan("outer", steps=4, costs=[]), {"spec": "topk:ratio=0.05", "control": None, "scenario": None}, data)
    if rank == 0:
        (folder / "still.json").write_text(json.dumps(still))


def in_emulated_lab(folder):
    import os

    import torch.distributed as dist

    from bench.control import tradeoff_rank
    from bench.lib import models
    from bench.lib.network import Network

    os.environ["LACONIC_LAB"] = "emulated"
    found = {}
    for mode in ("attach", "outer"):
        found[mode] = tradeoff_rank.measure(plan(mode, steps=50, specs=["topk:ratio=0.01", "topk:ratio=0.05"], seconds=0.0), Network(dist.get_rank()))
    runs = {control: {"spec": "topk:ratio=0.05", "control": control, "scenario": "turns3"} for control in ("dc2", "fixed")}
    brief = plan("attach", steps=12, runs=runs, costs=[]) | {"every": 2}  # one evaluation more than is judged
    found["follow"] = tradeoff_rank.follow(brief, Network(dist.get_rank()))
    found["clock"] = tradeoff_rank.trained(brief, {"spec": "topk:ratio=0.05", "control": None, "scenario": None}, models.load("mlp").data(None))
    if dist.get_rank() == 0:
        (folder / "lab.json").write_text(json.dumps(found))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    needs_library(patch)
    from ranks import Ranks

    folder = tmp_path_factory.mktemp("tradeoff")
    pair = Ranks(2)
    try:
        pair.run(followed, folder=folder)
        pair.run(in_emulated_lab, folder=folder)
    finally:
        pair.close()
        patch.undo()
    return folder


@pytest.mark.parametrize("mode", ["attach", "outer"])
def test_policy_follows_the_virtual_rate(trained, mode):
    first, again = (json.loads((trained / f"{mode}-{turn}.json").read_text()) for turn in range(2))
    assert first == again  # whatever this machine did meanwhile
    lines = [json.loads(line) for line in (trained / f"{mode}-0.jsonl").read_text().splitlines()][1:]
    values = [line["settings"][0]["value"] for line in lines]
    fast = [line for line in lines if 3 < line["step"] < 30]
    assert all(report[3] == pytest.approx(0.1 + report[0], rel=1e-3) for line in fast for report in line["reports"])
    assert max(values[20:30]) > 0.05 > 2 * values[-1]  # more while it is fast, less when it is slow
    assert first["seconds"] > 5 and first["changes"] >= 2 and 0.01 < first["mean"] < 0.2


def test_fixed_setting_sends_the_same_in_each_step(trained):
    still, moved = (json.loads((trained / f"{name}.json").read_text()) for name in ("still", "outer-0"))
    assert "seconds" not in still and still["steps"] == 4 and 0.02 * 4.5e6 < still["sent"] < 0.2 * 4.5e6
    assert moved["sent"] != still["sent"]


def test_lab_gives_costs_of_every_setting(trained):
    made = json.loads((trained / "lab.json").read_text())
    for mode, plain in (("attach", "pytorch:ddp"), ("outer", "none")):
        steps = made[mode]["steps"]
        assert list(steps) == ["topk:ratio=0.01", "topk:ratio=0.05", plain] and list(steps["topk:ratio=0.01"]) == ["1gbit", "10mbit"] and list(steps[plain]) == ["1gbit"]
        small, large, whole = (steps[spec]["1gbit"] for spec in steps)
        assert small["sent"] < large["sent"] < whole["sent"] and all(0 < each["network"] < each["step"] for each in (small, large, whole))
    follow = made["follow"]["runs"]["dc2"]
    assert follow["seconds"] > 0 and follow["mean"] == pytest.approx(0.05) and follow["changes"] == 0
    assert made["follow"]["runs"]["fixed"]["final"] == made["clock"]["final"]  # evaluated afterwards as in between
