# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The demo over several networks: what it refuses, its overview and its heat map, from times that are known."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

from bench.lib import charts, columns, lab, models, network, overview, results
from examples.demo import pages, run
from test_demo import workers  # noqa: E402

NETWORKS = ["20mbit", "1gbit"]
#: milliseconds a step by network; steps to 95 %
STEPS = {"pytorch:ddp": (3000, 60), "3lc": (40, 20), "topk:ratio=0.01": (100, 10)}
BOUNDS = {"3lc": (35, 12), "topk:ratio=0.01": (20, 10.5)}
REACHED = {"pytorch:ddp": 50, "3lc": 60, "topk:ratio=0.01": None}


def block(rate, spec, step, **more):
    return {"network": rate, "spec": spec, "repeat": 0, "slow": step > 100, "times": [[step / 4e3, step / 2e3, step / 4e3]] * 3,
            "reached": None, "kernel_bytes": 1100.0, "own": {"wire_bytes": 1000.0}, **more}


def learned(spec):
    last = REACHED[spec]
    curve = [[0, 0.1]] + [[step, 0.96 if last and step >= last else 0.5] for step in range(10, 101, 10)]
    return {"spec": spec, "seed": 0, "curve": curve, "times": [[1e-3, 1e-3, 1e-3]] * 3}


def made_up(networks=NETWORKS, times_only=False, **changes):
    """The results of what two ranks would have recorded."""
    blocks = [block(rate, spec, STEPS[spec][NETWORKS.index(rate)]) for rate in networks for spec in STEPS]
    bounds = [{"network": rate, "spec": spec, "repeat": 0, "payload": 1000,
               "times": [[0.0, 1e-3 * BOUNDS[spec][NETWORKS.index(rate)], 0.0]]} for rate in networks for spec in BOUNDS]
    rank = {"learn": [] if times_only else [learned(spec) for spec in STEPS], "pairs": [], "blocks": blocks, "bounds": bounds,
            "phases": {"step times at 20mbit": 1.0}}
    raw = {"ranks": [rank, rank], "about": {spec: {"canonical": spec, "strategy": ""} for spec in STEPS}, "environment": {},
           "training": "batch 1", "parameters": 10, "emulated": False, "machine": {}, "command": "make demo",
           "lab": {"burst": 1024, "queue": 1024, "tcp": "reno"}}
    given = run.options(["--networks", " ".join(networks), "--specs", " ".join(STEPS)])
    return results.by_network(raw, {**run.plan_of(given), "times_only": times_only, **changes})


# ---- the options ----

def test_networks_are_one_rate_or_a_list():
    assert run.plan_of(run.options(["--networks", "20mbit  1gbit 20mbit"]))["networks"] == NETWORKS
    assert run.plan_of(run.options(["--rate", "2.5gbit"]))["networks"] == ["2.5gbit"]
    plan = run.plan_of(run.options([]))
    assert plan["networks"] == ["50mbit"] and "rate" not in plan
    assert run.command_line(run.options(["--networks", "20mbit 1gbit"])) == 'make demo NETWORKS="20mbit 1gbit"'


@pytest.mark.parametrize(("words", "said"), [
    (["--networks", "20mbit 1furlong"], "'1furlong' is not a rate"), (["--rate", "1.2.3mbit"], "'1.2.3mbit' is not a rate"),
    (["--networks", "20mbit", "--rate", "50mbit"], "give either RATE (--rate) or NETWORKS (--networks)"),
    (["--networks", " "], "names no rate")])
def test_wrong_networks_are_refused(words, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        run.plan_of(run.options(words))


def test_wrong_network_is_reported_before_anything_starts(tmp_path):
    done = subprocess.run([sys.executable, "-m", "examples.demo.run", "--networks", "20mbit 50furlongs", "--out", str(tmp_path)],
                          cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 1 and done.stderr.splitlines() == ["demo: '50furlongs' is not a rate: 50mbit, 1gbit, off"]


def test_rates_are_formatted_for_readers():
    assert [network.rate_text(rate) for rate in ("50mbit", "2.5gbit", "9600bit", "64kbit", "off")] == [
        "50 Mbit/s", "2.5 Gbit/s", "9600 bit/s", "64 kbit/s", "unshaped"]


# ---- results and overview ----

def test_every_network_has_its_own_times():
    slow, fast = made_up()
    assert [row.step for row in slow.rows] == pytest.approx([3.0, 0.04, 0.1])
    assert [row.step for row in fast.rows] == pytest.approx([0.06, 0.02, 0.01])
    assert [row.slow for row in slow.rows] == [True, False, False]
    assert [row.time_to_target for row in slow.rows] == [pytest.approx(150.0), pytest.approx(2.4), None]
    assert [row.time_to_target for row in fast.rows] == [pytest.approx(3.0), pytest.approx(1.2), None]


def test_overview_names_winner_and_its_lead():
    head, slow, fast = overview.rows_of(made_up())
    assert head == ["network", "first to 95\u00a0%", "time", "× sooner than fp32 DDP", "× sooner than the runner-up", "runner-up"]
    assert slow == ["20 Mbit/s", "Laconic 3lc", "2.4 s*", "62.5", "62.5", "PyTorch DDP, fp32"]
    assert fast == ["1 Gbit/s", "Laconic 3lc", "1.2 s*", "2.5", "2.5", "PyTorch DDP, fp32"]


def test_overview_separates_runner_up_from_fp32(monkeypatch):
    monkeypatch.setitem(REACHED, "topk:ratio=0.01", 80)
    _, slow, fast = overview.rows_of(made_up())
    assert slow[2:] == ["2.4 s*", "62.5", "3.3", "Laconic topk:ratio=0.01"]
    assert fast[1:] == ["Laconic topk:ratio=0.01", "0.8 s*", "3.8", "1.5", "Laconic 3lc"]


def test_unreached_target_is_reported():
    views = made_up(target=0.99)
    assert overview.rows_of(views)[1] == ["20 Mbit/s", "not reached", *["–"] * 4]
    assert re.findall(r"<title>([^<]*)</title>", overview.heat_map(views))[0] == "PyTorch DDP, fp32, 20 Mbit/s: not reached"
    assert overview.text(views).count("not reached") == 2 + 6


def test_target_reached_at_start_is_reported():
    """Nothing is sooner than no time."""
    assert overview.rows_of(made_up(target=0.05))[1][2:] == ["0.0 s*", "–", "–", "Laconic 3lc"]


def test_several_networks_make_several_pages(tmp_path):
    views = made_up()
    page = pages.page(views)
    assert re.findall(r"<h2>([^<]*)</h2>", page)[:3] == ["Which exchange reaches the target first", "20 Mbit/s", "1 Gbit/s"]
    assert page.count("not reached") >= 4
    pages.publish(views, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["demo-networks.json", "demo-networks.md", "demo-networks.svg"]
    written = (tmp_path / "demo-networks.md").read_text()
    assert "\n## Exchanges, 1 Gbit/s\n" in written and "## Environment" in written and "| 20 Mbit/s | Laconic 3lc | 2.4 s\\* | 62.5 |" in written
    assert "20mbit, 1gbit each way" in written and "else until" not in written
    assert 'class="heat h0"' in (tmp_path / "demo-networks.svg").read_text()
    for results_of_one in made_up(["20mbit"], model="gpt"), made_up(model="gpt"):
        pages.publish(results_of_one, tmp_path)
    pages.publish(made_up(model="gpt"), tmp_path, "aggregation")
    assert {path.name for path in tmp_path.glob("*-gpt*")} == {
        f"{name}.{end}" for name in ("demo-gpt", "demo-gpt-networks", "aggregation-gpt") for end in ("json", "md", "svg")}


def test_one_network_needs_no_overview():
    page = pages.page(made_up(["20mbit"]))
    assert "Which exchange" not in page and "<h1>4 workers, 20 Mbit/s each way</h1>" in page


def test_pytorchs_powersgd_has_a_note(monkeypatch):
    assert columns.HOOK not in columns.text(made_up()[0])
    for known in (STEPS, REACHED, BOUNDS):
        monkeypatch.setitem(known, "pytorch:powersgd", known["3lc"])
    assert columns.HOOK in columns.text(made_up()[0])


# ---- times alone ----

def test_times_only_run_works(tmp_path):
    words = ["--times-only", "--networks", "10mbit 1gbit", "--workers", "2", "--specs", "3lc", "--repeats", "1", "--slow-steps", "1", "--fast-steps", "4"]
    plan = run.plan_of(run.options(words))
    outcomes, answered = workers(plan, tmp_path)
    assert [outcome.code for outcome in outcomes] == [0, 0], outcomes[0].err
    found = json.loads(answered.read_text())
    assert plan["networks"] == ["10mbit", "1gbit"]
    for rank in found["ranks"]:
        assert rank["learn"] == rank["pairs"] == []
        assert list(rank["phases"]) == ["step times at 10mbit", "step times at 1gbit"]
        assert [(b["network"], b["spec"], b["reached"]) for b in rank["blocks"]] == [
            (rate, spec, None) for rate in ("10mbit", "1gbit") for spec in ("pytorch:ddp", "3lc")]
        assert [(b["network"], b["spec"]) for b in rank["bounds"]] == [("10mbit", "3lc"), ("1gbit", "3lc")]
        # Milliseconds for 4.5 MB. A hundredfold apart, and the quickest of the fast steps: others may find no processor free.
        slow, fast = (min(1e3 * sum(step) for step in b["times"]) for b in rank["blocks"] if b["spec"] == "pytorch:ddp")
        assert slow > 3600 > fast > 36
    views = results.by_network({**found, "machine": {}, "command": "make demo", "lab": {}}, plan)
    said = overview.text(views)
    rows = [re.split(r"\s{2,}", line) for line in said.splitlines() if line.startswith(("Laconic 3lc", "PyTorch DDP"))]
    assert [row[4:7] for row in rows if len(row) == 9] == [["–", "–", "–"]] * 4
    assert "not reached" not in said and "Times only: nothing was learned." in said


@pytest.mark.parametrize("networks", [NETWORKS, NETWORKS[:1]])
def test_times_only_pages_are_complete(networks):
    views = made_up(networks, times_only=True)
    page = pages.page(views)
    assert "<td>–</td>" in page and "not reached" not in page and "Over steps" not in page and "Over seconds" not in page
    assert "else 40" in page and "Which exchange" not in page


def test_times_only_results_are_not_published():
    with pytest.raises(ValueError, match="--times-only has no quality"):
        run.plan_of(run.options(["--times-only", "--publish", "docs"]))


# ---- the same bytes without a codec ----

def test_codec_cost_is_computed():
    slow, fast = made_up()
    assert [row.bound for row in slow.rows] == [None, pytest.approx(0.035), pytest.approx(0.02)]
    assert columns.bound_rows(slow)[1:] == [["Laconic 3lc", "40.0 ms", "35.0 ms", "5.0 ms"],
                                           ["Laconic topk:ratio=0.01", "100 ms", "20.0 ms", "80.0 ms"]]
    assert columns.bound_rows(fast)[2] == ["Laconic topk:ratio=0.01", "10.0 ms", "10.5 ms", "-0.5 ms"]


def test_codec_cost_is_in_text_and_pages():
    views = made_up()
    assert columns.text(views[0]).count(columns.ABOUT_BOUNDS) == 1 and overview.text(views).count(columns.ABOUT_BOUNDS) == 2
    for page, heading in ((pages.page(views), "h3"), (pages.page(views[:1]), "h2")):
        assert f"<{heading}>What the codec&#x27;s own work costs</{heading}>" in page and "<td>35.0 ms</td>" in page


def test_missing_bounds_omit_table():
    assert run.plan_of(run.options([]))["bound"] and not run.plan_of(run.options(["--no-bound"]))["bound"]
    views = made_up()
    for results_of_one in views:
        for row in results_of_one.rows:
            row.bound = None
    written = columns.text(views[0]) + overview.text(views)
    assert columns.BOUNDS not in written
    assert "own work" not in pages.page(views)


# ---- how target and length were chosen ----

@pytest.mark.parametrize("name", models.MODELS)
def test_pages_explain_choice_of_steps_and_target(name):
    model = models.MODELS[name]
    own = {"model": name, "steps": model.steps, "target": model.target}
    assert model.choice in pages.page(made_up(NETWORKS[:1], **own)) and "had no part in" in model.choice
    for other in ({"steps": 7}, {"target": 0.5}, {"data": "text.txt"}):
        assert "had no part in" not in pages.page(made_up(NETWORKS[:1], **own | other))


# ---- heat map ----

def test_heat_levels_are_powers_of_two():
    levels = {2.0: 0, 2.7: 0, 3.0: 1, 4.0: 1, 8.0: 2, 16.0: 3, 32.0: 4, 64.0: 5, 6400.0: 5}
    assert {value: charts.heat_level(value, 2.0) for value in levels} == levels
    assert charts.heat_level(0.0, 0.0) == 0 and charts.heat_level(1.0, 0.0) == 5


def test_heat_map_compares_within_column():
    chart = charts.heat_map(["a", "b"], ["20mbit", "1gbit"], [[1.0, None], [8.0, 5.0]], "t", lambda s: f"{s:g} s")
    cells = re.findall(r'class="heat (\w+)"><title>([^<]*)</title>', chart)
    assert cells == [("h0", "a, 20mbit: 1 s"), ("none", "a, 1gbit: not reached"), ("h3", "b, 20mbit: 8 s"), ("h0", "b, 1gbit: 5 s")]
    labels = re.findall(r'class="cell( best)?">([^<]*)<', chart)
    assert labels == [(" best", "1 s"), ("", "not reached"), ("", "8 s"), (" best", "5 s")]
    assert all(f">{words}<" in chart for words in ("20mbit", "1gbit"))


def test_charts_do_not_cut_long_names():
    name = "Laconic thc, a server on each worker's host"
    drawn = [charts.heat_map([name], ["x"], [[1.0]], "t", str), charts.stacked([(name, [("wire", 1.0)])], "t", "ms"),
             charts.dots([(name, "laconic-0", 1.0, None)], "t", "bytes")]
    for chart in drawn:
        end = float(re.search(rf'<text x="([0-9.]+)"[^>]*>{re.escape(charts.escape(name))}<', chart)[1])
        assert end >= 6.1 * len(name)  # px a letter of DejaVu Sans, 12 px
    assert "<svg" in charts.dots([], "t", "bytes")


def test_wide_heat_map_is_wider():
    chart = charts.heat_map(["a"], ["x"] * 12, [[1.0] * 12], "t", str)
    width = int(re.match(r'<svg viewBox="0 0 (\d+)', chart)[1])
    last = max(float(x) + float(w) for x, w in re.findall(r'<rect x="(\d+)" y="\d+" width="(\d+)"', chart))
    assert charts.WIDTH < last <= width


def test_every_heat_level_has_light_and_dark_colour():
    colours, classes = ((ROOT / "bench/lib" / name).read_text() for name in ("page.css", "chart.css"))
    for level in range(charts.HEAT_LEVELS):
        assert colours.count(f"--h{level}:") == 2 and f".h{level} {{" in classes


def test_result_longer_than_a_pipe_does_not_stop_the_lab(tmp_path):
    command = tmp_path / "laconic"
    command.write_text(f"#!{sys.executable}\n" + 'import json, signal, sys\nsignal.alarm(20)\nprint("begins", file=sys.stderr)\nprint(json.dumps({"rates": "1" * 2**20}))\n')
    command.chmod(0o755)
    assert len(lab.run_lab(str(command), 1, ["worker"], 1, False, lab.Progress())["rates"]) == 2**20
