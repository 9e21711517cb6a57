# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The page and the picture of bench/controls.py."""

from __future__ import annotations

import re
import statistics

import charts
from models import MODELS
from pictures import Panel, panels

LOOP = """Laws against a seeded link model in virtual time, `build/release/bin/control_loop_bench` (`--markdown` prints this table; without it, JSON). 1.1 M elements, `topk` from 1 %, 200 Mbit/s and 0.86 ms per
peer where nothing else is said, 2,000 steps, means over five seeds; of reaction times the longest. The oracle is the largest ratio within the bounds that keeps the network time within 1.3 of the target, which is the
lower quartile of the first 20 steps. *Share of the oracle* is the mean of min(δ, δ\\*)/δ\\*; it does not see what is above the oracle, the next column does. *Swing*: standard deviation over mean of the last half.
*After the fall*, *the rise*: steps until δ is within 35 % of the oracle."""

AFTER = """`dc2` is DC2-R, a reconstruction. With 30 % noise the lower quartile lies a fifth below the mean, so single steps exceed 1.5 τ at any setting that is used well."""

LAB = """Four hosts in `laconic lab` train a model of the demo's; seconds to its target from the first step, evaluations taken out, the median over
seeds. × is how many times sooner than fp32 DDP. Where a run has not reached the target in 240 s of training, it has none. *Mean ratio*: over the steps of the run that `topk` sent, not those that a law sent as float32. *Final*: accuracy after all of the model's steps,
where they were all made. \\*: the steps of the same seed's unshaped run, of which the first were made on this network and the others take their median. Made by `make control`, which goes on where it was cut off; every run is in [control.json](control.json)."""


def label(spec: str, control: str | None) -> str:
    return {"pytorch:ddp": "PyTorch DDP, fp32", "pytorch:fp16": "PyTorch fp16 hook"}.get(spec, f"`{spec}`" + (f", `{control}`" if control else ""))


def ratio_of(spec: str) -> float:
    """Of a text of topk, in which a default may be missing."""
    found = re.search(r"ratio=([0-9.e-]+)", spec)
    return float(found[1]) if found else 0.01


def mean_ratio(run: dict) -> float | None:
    found = [ratio_of(spec) for _, _, spec in run["trace"] if spec.startswith("topk")]
    return statistics.fmean(found) if found else None


def middle(values: list) -> float | None:
    known = [v for v in values if v is not None]
    return statistics.median(known) if known else None


def seconds_to(run: dict) -> float | None:
    return run["reached"][1] if run["reached"] else None


def completed(runs: list) -> list:
    """Sampled runs with what they would have reached: the steps are those of the unshaped run, which computes the same."""
    steps = {(cell.model, cell.spec, cell.seed): run["reached"][0] for cell, run in runs
             if cell.scenario.name == "unshaped" and not cell.pairs and run["reached"]}
    found = []
    for cell, run in runs:
        needed = steps.get((cell.model, cell.spec, cell.seed))
        if run.get("sampled") and not run["reached"] and needed is not None:
            rest = (needed - run["steps"]) * statistics.median(row[1] for row in run["trace"])
            run = {**run, "reached": [needed, run["seconds"] + rest], "computed": True}
        found.append((cell, run))
    return found


def rows(runs: list[dict], base: float | None) -> list[str]:
    """Cells of one exchange: seconds, times sooner, steps, median step, mean ratio, changes, final."""
    times = [seconds_to(run) for run in runs]
    seconds = middle(times) if None not in times else None
    step = middle([statistics.median(row[1] for row in run["trace"]) for run in runs])
    ratio, changes = middle([mean_ratio(run) for run in runs]), middle([run["stats"].get("setting_changes") for run in runs])
    finals = [run["curve"][-1][2] for run in runs if run["whole"]]
    mark = "\\*" if any(run.get("computed") for run in runs) else ""
    return [f"{seconds:.1f}{mark}" if seconds is not None else "not reached", f"{base / seconds:.1f}" if base and seconds else "",
            f"{1e3 * step:.0f} ms", f"{100 * ratio:.2g} %" if ratio else "", f"{changes:.0f}" if changes else "",
            f"{100 * statistics.fmean(finals):.1f} %" if finals else "", str(len(runs))]


def lab(runs: list, scenarios: dict, exchanges) -> list[str]:
    text = []
    for name, scenario in scenarios.items():
        for model in ("mlp", "cnn"):
            here = [(cell, run) for cell, run in runs if cell.scenario.name == name and cell.model == model and not cell.pairs]
            if not here:
                continue
            of = {key: [run for cell, run in here if (cell.spec, cell.control) == key] for key in scenario.exchanges or exchanges}
            times = [seconds_to(run) for cell, run in runs
                     if (cell.scenario.name, cell.model, cell.spec, cell.pairs) == (scenario.like or name, model, "pytorch:ddp", 0)]
            base = middle(times) if times and None not in times else None
            text += ["", f"### {scenario.what}: `{model}`, to {100 * MODELS[model].target:g} %", "",
                     "| exchange | seconds | × fp32 | step (median) | mean ratio | changes | final | runs |", "|---|---:|---:|---:|---:|---:|---:|---:|"]
            text += ["| " + " | ".join([label(*key), *rows(found, base)]) + " |" for key, found in of.items() if found]
    return text


def fixed(runs: list) -> list[str]:
    pairs = [pair for cell, run in runs if cell.pairs for pair in run["pairs"]]
    if not pairs:
        return []
    shares = sorted(with_it / without for without, with_it in pairs)
    return ["", f'`control="fixed"` against no control, unshaped, {len(pairs)} pairs of ten steps in turn: {statistics.median(shares):.3f} of the step (median; '
            f"quartiles {shares[len(shares) // 4]:.3f} and {shares[3 * len(shares) // 4]:.3f})."]


def page(loop: str, runs: list, scenarios: dict, exchanges, remark: str) -> str:
    text = ["# Controls", "", "## Closed loop", "", LOOP, "", loop.strip(), "", AFTER]
    if runs:
        text += ["", "## In the network lab", "", LAB]
        loads = [run["load"] for _, run in runs]
        text += ["", f"{'; '.join(sorted({run['cpu'] for _, run in runs}))}; load before each run {min(loads):.1f} to {max(loads):.1f} (an idle machine: 0 to 4, of the run before)."]
        text += ["", remark] if remark else []
        text += lab(completed(runs), scenarios, exchanges) + fixed(runs)
        if any(cell.scenario.name == "turns" for cell, _ in runs):
            text += ["", "![The ratio over seconds while the rate changes](control.svg)"]
    return "\n".join(text) + "\n"


#: seconds of the picture
FIRST = 12


def picture(runs: list) -> str | None:
    """What laws made of the ratio, over seconds, while the rate took turns: `mlp`, the first seed."""
    colours = {"dc2": "s5", "dc2:target=compute": "s7", "aimd": "s10", "bdp": "s9"}
    series = []
    for cell, run in runs:
        if cell.scenario.name != "turns" or cell.model != "mlp" or cell.seed != 0 or cell.control not in colours:
            continue
        points = [(at, ratio_of(spec)) for at, _, spec in run["trace"] if at <= FIRST and spec != "uncompressed"]
        series.append(charts.Series(cell.control, colours[cell.control], points))
    if not series:
        return None
    title = f"topk's ratio while the rate takes turns: 100 and 10 Mbit/s, 3 s each; the first {FIRST} s"
    return panels(title, [(of.label, of.style) for of in series], [[Panel("mlp, four hosts", series, 8e-4, 0.12, "seconds")]],
                  lambda v: f"{100 * v:g} %", log=True, width=720)
