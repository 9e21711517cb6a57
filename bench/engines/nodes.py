# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Gradients in two levels, inside a host and between hosts, against flat ones: docs/results/nodes.md.

    make nodes             what is missing (20 minutes on an idle machine, in parts), then the tables
    python -m bench.engines.nodes NAME…   these cells, or all whose names begin so; --page: the tables alone; --quick: minutes, into out/bench

A cell is a file under out/nodes: delete it to have it made again. Cells of learning time nothing; the others need an idle machine, and those of hosts
the network lab. Needs a release build, or LACONIC_LIBRARY.
"""

from __future__ import annotations

import datetime
import functools
import json
import statistics
import sys
from pathlib import Path

from bench.engines import engines
from bench.lib import cells, group, machine, models, tables
from bench.lib.programs import ROOT
from bench.lib.results import final_of

RESULTS = ROOT / "out" / "nodes"
SEEDS = (0, 1, 2)
SPECS = ("int8", "3lc", "topk:ratio=0.01")
GATHERED = "topk:ratio=0.01 off gather_all"
LEARNT = (*SPECS, "powersgd:rank=4")
TIMED = {
    "hosts": ({"ways": ["ddp", "none on", *(f"{spec} {nodes}" for spec in SPECS for nodes in ("off", "on")), "3lc auto", GATHERED],
               "repeats": 3, "warmup": 4, "steps": 8}, ("--hosts", 2, "--per-host", 4, "--rate", "50mbit")),
    "one-a-host": ({"ways": ["3lc off", "3lc auto"], "repeats": 6, "warmup": 5, "steps": 20}, ("--hosts", 2, "--rate", "50mbit")),
    "one-host": ({"ways": ["3lc off", "3lc auto"], "repeats": 6, "warmup": 5, "steps": 40}, ("--hosts", 4, "--emulate", "--no-pin")),
}


# ---- learning ---------------------------------------------------------------------------------------------------------


def learn(rank: int, spec: str, nodes, seed: int, steps: int, out: Path) -> None:
    """On one of four ranks; rank 0 evaluates and writes."""
    import torch

    import laconic

    kind, about = models.load("mlp"), models.MODELS["mlp"]
    data = kind.data(None)
    torch.manual_seed(seed)
    model = torch.nn.parallel.DistributedDataParallel(kind.build(data))
    optimizer, batches, curve = kind.optimizer(model.parameters()), data.batches(kind.BATCH, seed, rank, 4), []
    handle = laconic.attach(model, spec, nodes=nodes, seed=seed, quiet=True)
    for number in range(1, steps + 1):
        optimizer.zero_grad()
        data.loss(model, next(batches)).backward()
        optimizer.step()
        if rank == 0 and number % about.every == 0:
            model.eval()
            with torch.no_grad():
                curve.append([number, data.evaluate(model.module)])
            model.train()
    if rank == 0:
        out.write_text(json.dumps({"final": final_of(curve), "curve": curve}))
    handle.close()


def learning(spec: str, nodes, seed: int, steps: int) -> dict:
    """`nodes` 2: two nodes of two ranks on this machine, which exchange as those of two hosts do."""
    return group.answered(learn, 4, spec, nodes, seed, steps)


# ---- bytes without a network ------------------------------------------------------------------------------------------


def counted(nodes: int = 8, ranks: int = 8) -> dict:
    """Bytes that one of `nodes` hosts is expected to send in a step of the demo's mlp by `3lc`; no rank runs."""
    from laconic.core import _lib
    from laconic.exchange.csession import Options

    kind = models.load("mlp")
    parameters = [(name, tuple(p.shape)) for name, p in kind.build(kind.data(None)).named_parameters()]
    options, sums = Options(spec="3lc").read(), 1 << _lib.F32 | 1 << _lib.F16 | 1 << _lib.BF16 | 1 << _lib.I32

    def port(**where) -> int:
        session = options.session(parameters, rank=0, threads=1, engine_sums=sums, short_sends=True, record=None, **where)
        try:
            return session.explain()["port"]["bytes"]
        finally:
            session.close()

    return {"flat": port(world=nodes * ranks, ranks_per_host=ranks),
            "levels": sum(port(world=nodes, ranks_per_host=1, node_shards=ranks, node_shard=shard) for shard in range(ranks))}


# ---- cells ------------------------------------------------------------------------------------------------------------


def learning_name(spec: str, nodes, seed: int) -> str:
    return f"learning-{spec}-{nodes}-{seed}"


def cells_of(quick: bool = False) -> list[cells.Cell]:
    folder = ROOT / "out" / "bench" / "nodes" if quick else RESULTS
    steps, some = (20, {"repeats": 1, "warmup": 1, "steps": 2}) if quick else (models.MODELS["mlp"].steps, {})
    made = [cells.Cell(learning_name(spec, nodes, seed), functools.partial(learning, spec, nodes, seed, steps), folder)
            for spec in LEARNT for nodes in ("off", 2) for seed in (SEEDS[:1] if quick else SEEDS)]
    made += [cells.Cell(name, functools.partial(engines.timed, "bench.engines.nodes_rank", {**plan, **some}, *shape), folder)
             for name, (plan, shape) in TIMED.items()]
    return [*made, cells.Cell("counted", counted, folder)]


# ---- tables -----------------------------------------------------------------------------------------------------------


def finals(found: dict, spec: str, nodes) -> list[float]:
    runs = [found[name] for name in (learning_name(spec, nodes, seed) for seed in SEEDS) if name in found]
    return [run["final"] for run in runs] if runs and all(runs) else []


def tables_of(found: dict) -> dict:
    """found: by cell, what it gave, or None."""
    bars, made = [], {}

    def bar(what: str, seen: float | None, wanted: str, digits: int = 2) -> None:
        if seen is not None:
            bars.append([what, f"{seen:.{digits}f}", wanted])

    def ratio(key: str, above: str, below: str, cell: str = "hosts") -> float | None:
        return found[cell]["ways"][above][key] / found[cell]["ways"][below][key] if found.get(cell) else None

    for spec, most in zip(SPECS, ("0.30", "0.30", "0.10")):
        bar(f"`{spec}`: bytes out of a host, two levels / flat", ratio("port", f"{spec} on", f"{spec} off"), f"≤ {most}")
    bar(f"`{SPECS[2]}`: the same, beside flat `gather_all`", ratio("port", f"{SPECS[2]} on", GATHERED), "≤ 0.10", 3)
    for spec in ("int8", "topk:ratio=0.01"):
        bar(f"`{spec}`: step, two levels / flat", ratio("seconds", f"{spec} on", f"{spec} off"), "≤ 0.35")
    bar(f"`{SPECS[2]}`: the same, beside flat `gather_all`", ratio("seconds", f"{SPECS[2]} on", GATHERED), "≤ 0.35")
    bar("`none` in two levels / plain DDP: step", ratio("seconds", "none on", "ddp"), "≤ 0.65")
    bar("`int8` in two levels / plain DDP: step", ratio("seconds", "int8 on", "ddp"), "≤ 0.25")
    bar('`3lc`, `nodes="auto"` / flat: step', ratio("seconds", "3lc auto", "3lc off"), "≤ 1.02")
    for key, what in (("residual_bytes", "residuals"), ("exchange_bytes", "exchange buffers")):
        for spec in SPECS[1:]:
            bar(f"`{spec}`: {what} of a rank, two levels / flat", ratio(key, f"{spec} on", f"{spec} off"), "≤ 0.275 (1.1 / 4)", 3)
    bar('two hosts of one rank, `3lc`, `nodes="auto"` / flat: step', ratio("seconds", "3lc auto", "3lc off", "one-a-host"), "≤ 1.02")
    bar('one host of four ranks, `3lc`, `nodes="auto"` / flat: step', ratio("seconds", "3lc auto", "3lc off", "one-host"), "≤ 1.02")
    if count := found.get("counted"):
        bar("eight nodes of eight ranks, `3lc`, as `explain()` expects: bytes out of a host, two levels / flat", count["levels"] / count["flat"], "≤ 0.30")
    rows = []
    for spec in LEARNT:
        flat, levels = finals(found, spec, "off"), finals(found, spec, 2)
        if flat and levels:
            rows.append([f"`{spec}`", 100 * statistics.fmean(flat), 100 * statistics.fmean(levels)])
            bar(f"`{spec}`: accuracy, two levels − flat, points", rows[-1][2] - rows[-1][1], "≥ −0.3")
    if bars:
        made["bars"] = tables.table(["what", "seen", "bar"], bars)
    if found.get("hosts"):
        ways = found["hosts"]["ways"]
        made["times"] = tables.table(["exchange", ("a step, ms", "{:s3}"), ("inside the host, ms", "{:s3}"), ("kB out of a host in a step", "{:s3}")],
                                     [[f"`{way}`", 1e3 * seen["seconds"], 1e3 * seen["inside"] or None, seen["port"] / 1e3] for way, seen in ways.items()])
    if rows:
        made["learning"] = tables.table(["spec", ("flat, %", "{:.2f}"), ("two nodes of two ranks, %", "{:.2f}")], rows)
    if made:
        made["machine"] = tables.of_pairs([("CPU", machine.cpu()), ("date", datetime.date.today().isoformat())])
    return made


def main(arguments=None) -> int:
    given = cells.options("python -m bench.engines.nodes", __doc__, arguments)
    folder = ROOT / "out" / "bench" if given.quick else ROOT / "docs" / "results"
    return cells.make(cells_of(given.quick), given, lambda found: tables.publish(folder, "nodes", "make nodes", tables_of(found), keep=True))


if __name__ == "__main__":
    sys.exit(main())
