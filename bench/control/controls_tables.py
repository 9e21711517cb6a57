# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The tables of control.md, from control_loop_bench and from the runs of controls.py."""

from __future__ import annotations

import re
import statistics

from bench.lib.tables import table


def closed_loop(rows: list[dict]) -> dict:
    """rows: as control_loop_bench prints them."""
    def steps(value):
        return "" if value is None else value

    return table(["ranks", "link", "control", ("share of the oracle", "{:.2f}"), ("steps above 1.5 τ", "{:.1f} %"), ("swing", "{:.2f}"), "after the fall",
                  "after the rise"],
                 ([row["ranks"], row["scenario"], f"`{row['control']}`", row["share_of_oracle"], 100 * row["steps_above"], row["swing"],
                   steps(row["steps_after_fall"]), steps(row["steps_after_rise"])] for row in rows))


def label(spec: str, control: str | None) -> str:
    return {"pytorch:ddp": "PyTorch DDP, fp32", "pytorch:fp16": "PyTorch fp16 hook"}.get(spec, f"`{spec}`" + (f", `{control}`" if control else ""))


def ratio_of(spec: str) -> float:
    """The ratio of a spec of topk, in which a default may be missing."""
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
             if cell.scenario.name == "unshaped" and run["reached"]}
    found = []
    for cell, run in runs:
        needed = steps.get((cell.model, cell.spec, cell.seed))
        if run.get("sampled") and not run["reached"] and needed is not None:
            rest = (needed - run["steps"]) * statistics.median(row[1] for row in run["trace"])
            run = {**run, "reached": [needed, run["seconds"] + rest], "computed": True}
        found.append((cell, run))
    return found


def row_of(runs: list[dict], base: float | None) -> list:
    """Cells of one exchange: seconds, times sooner, median step, mean ratio, changes, final, runs."""
    times = [seconds_to(run) for run in runs]
    seconds = middle(times) if None not in times else None
    step = middle([statistics.median(row[1] for row in run["trace"]) for run in runs])
    ratio, changes = middle([mean_ratio(run) for run in runs]), middle([run["stats"].get("setting_changes") for run in runs])
    finals = [run["curve"][-1][2] for run in runs if run["whole"]]
    if seconds is None:
        shown = "not reached"
    else:
        shown = f"{seconds:.1f}\\*" if any(run.get("computed") for run in runs) else seconds
    return [shown, base / seconds if base and seconds else "", 1e3 * step, 100 * ratio if ratio else "", changes or "",
            100 * statistics.fmean(finals) if finals else "", len(runs)]


HEAD = ["exchange", ("seconds", "{:.1f}"), ("× fp32", "{:.1f}"), ("step (median)", "{:.0f} ms"), ("mean ratio", "{:.2g} %"), ("changes", "{:.0f}"),
        ("final", "{:.1f} %"), "runs"]


def lab(runs: list, scenarios: dict, exchanges) -> dict[str, dict]:
    """A table for each network and model, of what there is."""
    made = {}
    for name, scenario in scenarios.items():
        for model in ("mlp", "cnn"):
            here = [(cell, run) for cell, run in runs if cell.scenario.name == name and cell.model == model]
            of = {key: [run for cell, run in here if (cell.spec, cell.control) == key] for key in scenario.exchanges or exchanges}
            times = [seconds_to(run) for cell, run in runs
                     if (cell.scenario.name, cell.model, cell.spec) == (scenario.like or name, model, "pytorch:ddp")]
            base = middle(times) if times and None not in times else None
            if here:
                made[f"{name}, {model}"] = table(HEAD, ([label(*key), *row_of(found, base)] for key, found in of.items() if found))
    return made


def machine(runs: list) -> dict[str, dict]:
    loads = [run["load"] for _, run in runs]
    return {"machine": table(["machine", ("load before each run", "{:.1f} to {:.1f}")],
                             [["; ".join(sorted({run["cpu"] for _, run in runs})), [min(loads), max(loads)]]])} if runs else {}


def tables_of(loop: list[dict], runs: list, scenarios: dict, exchanges) -> dict[str, dict]:
    return {"closed loop": closed_loop(loop), **lab(completed(runs), scenarios, exchanges), **machine(runs)}
