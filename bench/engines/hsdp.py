# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Sharded training whose replicas exchange through laconic, against native HSDP: docs/results/hsdp.md.

    make hsdp              what is missing (half an hour on an idle machine, in parts), then the tables
    python -m bench.engines.hsdp NAME…   these cells, or all whose names begin so; --page: the tables alone; --quick: minutes, into out/bench

A cell is a file under out/hsdp: delete it to have it made again. Cells of learning time nothing; the others need an idle machine, and `hosts` and
`balanced` the network lab. Needs a release build, or LACONIC_LIBRARY.
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

RESULTS = ROOT / "out" / "hsdp"
WORLD, SEEDS, SPEC = 4, (0, 1, 2), "3lc:s=1.0"
#: how the demo's tiny GPT trains: plain and compressed, of shards and not
LEARNT = ("ddp", f"ddp {SPEC}", "native", f"hsdp {SPEC}")
PLAN = {"hidden": [512, 512, 512], "replicas": 2}
TIMED = {
    "hosts": ({**PLAN, "ways": ["native", SPEC], "repeats": 3, "warmup": 3, "steps": 8}, "10mbit"),
    "local": ({**PLAN, "ways": ["native", "none", SPEC, f"{SPEC} inline"], "repeats": 6, "warmup": 5, "steps": 20}, None),
    "balanced": ({**PLAN, "hidden": [512] * 12, "ways": [SPEC, f"{SPEC} inline"], "repeats": 3, "warmup": 5, "steps": 10}, "40mbit"),
}


# ---- learning ---------------------------------------------------------------------------------------------------------


def exchanging(model, way: str, seed: int):
    """The model as this way trains it, and its handle."""
    import torch

    import laconic

    kind, _, spec = way.partition(" ")
    if kind == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model)
    else:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (2, WORLD // 2), mesh_dim_names=("replicate", "shard"))
        for child in model.children():
            if any(True for _ in child.parameters()) and not isinstance(child, (torch.nn.ModuleList, torch.nn.ModuleDict)):
                fully_shard(child, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model, laconic.attach(model, spec, seed=seed, quiet=True) if spec else None


def learn(rank: int, way: str, seed: int, steps: int, out: Path) -> None:
    """On one rank; all evaluate, since all hold a part, and rank 0 writes."""
    import torch

    kind, about = models.load("gpt"), models.MODELS["gpt"]
    data = kind.data(None)
    torch.manual_seed(seed)
    model, handle = exchanging(kind.build(data), way, seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=kind.LEARNING_RATE)
    batches, curve = data.batches(kind.BATCH, seed, rank, WORLD), []
    for number in range(1, steps + 1):
        optimizer.zero_grad()
        data.loss(model, next(batches)).backward()
        optimizer.step()
        if number % about.every == 0:
            model.eval()
            with torch.no_grad():
                curve.append([number, data.evaluate(model)])
            model.train()
    if rank == 0:
        out.write_text(json.dumps({"final": final_of(curve), "curve": curve}))
    if handle is not None:
        handle.close()


def learning(way: str, seed: int, steps: int = 0) -> dict:
    return group.answered(learn, WORLD, way, seed, steps or models.MODELS["gpt"].steps)


# ---- time -------------------------------------------------------------------------------------------------------------


def timed(plan: dict, rate: str | None) -> dict:
    """hsdp_rank.py on two hosts of two ranks each, or without a rate as processes of this machine."""
    shape = ["--emulate", "--no-pin", "--hosts", WORLD] if rate is None else ["--hosts", 2, "--per-host", 2, "--rate", rate]
    return engines.timed("bench.engines.hsdp_rank", plan, *shape)


# ---- cells ------------------------------------------------------------------------------------------------------------


def cells_of(quick: bool = False) -> list[cells.Cell]:
    folder = ROOT / "out" / "bench" / "hsdp" if quick else RESULTS
    seeds, steps = (SEEDS[:1], 20) if quick else (SEEDS, 0)
    some = {"repeats": 1, "warmup": 1, "steps": 2} if quick else {}
    learnt = [cells.Cell(f"learning-{way.replace(' ', '-')}-{seed}", functools.partial(learning, way, seed, steps), folder)
              for seed in seeds for way in LEARNT]
    return learnt + [cells.Cell(name, functools.partial(timed, {**plan, **some}, rate), folder) for name, (plan, rate) in TIMED.items()]


# ---- tables -----------------------------------------------------------------------------------------------------------


def finals(found: dict, way: str) -> list[float]:
    runs = [cell for name, cell in found.items() if name.rpartition("-")[0] == f"learning-{way.replace(' ', '-')}"]
    return [run["final"] for run in runs] if runs and all(runs) else []


def learnt_bar(found: dict) -> list:
    """The cost of compression under HSDP, next to its cost under DDP and the spread of three seeds."""
    plain, packed, native, own = (finals(found, way) for way in LEARNT)
    if not (plain and packed and native and own):
        return []
    of_ddp, of_hsdp = ([b - a for a, b in zip(*pair)] for pair in ((plain, packed), (native, own)))
    spread = (statistics.variance(of_hsdp) / len(of_hsdp)) ** 0.5 if len(of_hsdp) > 1 else 0.0
    most = statistics.fmean(of_ddp) + 2 * spread
    return [["tiny GPT, 2 × 2: loss above native's after the demo's steps", f"{statistics.fmean(of_hsdp):.3f}", f"≤ {most:.3f} (DDP's, and two standard errors)"]]


def tables_of(found: dict) -> dict:
    """found: by cell, what it gave, or None."""
    bars, made = [], {}

    def ratio(cell: str, above: str, below: str) -> float:
        ways = found[cell]["ways"]
        return ways[above]["seconds"] / ways[below]["seconds"]

    if found.get("hosts"):
        bars.append([f"two hosts of two ranks, 10 Mbit/s: step of native HSDP / `{SPEC}`", f"{ratio('hosts', 'native', SPEC):.1f}", "≥ 10"])
    if found.get("local"):
        bars.append(["unshaped: `none` through the hook / native", f"{ratio('local', 'none', 'native'):.2f}", "≤ 1.05"])
        bars.append([f"unshaped, `{SPEC}`: overlap / inline", f"{ratio('local', SPEC, f'{SPEC} inline'):.2f}", "≤ 0.85"])
        held = found["local"]["ways"][SPEC]
        bars.append(["residual bytes of a rank, of 4 × shard elements", f"{held['residual_bytes'] / (4 * held['shard_elements']):.3f}", "≤ 1"])
    if found.get("balanced"):
        bars.append([f"an exchange as long as backward, `{SPEC}`: overlap / inline", f"{ratio('balanced', SPEC, f'{SPEC} inline'):.2f}", "≤ 0.7"])
    bars += learnt_bar(found)
    if bars:
        made["bars"] = tables.table(["what", "seen", "bar"], bars)
    learnt = [[f"`{way}`", statistics.fmean(values)] for way in LEARNT if (values := finals(found, way))]
    if learnt:
        made["learning"] = tables.table(["way", ("bits a character", "{:.3f}")], learnt)
    timings = [[name, f"`{way}`", 1e3 * values["seconds"], values["ratio"]] for name in TIMED if found.get(name)
               for way, values in found[name]["ways"].items()]
    if timings:
        made["times"] = tables.table(["cell", "way", ("a step, ms", "{:s3}"), ("times fewer bytes between replicas", "{:d1}")], timings)
    if made:
        made["machine"] = tables.of_pairs([("CPU", machine.cpu()), ("date", datetime.date.today().isoformat())])
    return made


def main(arguments=None) -> int:
    given = cells.options("python -m bench.engines.hsdp", __doc__, arguments)
    folder = ROOT / "out" / "bench" if given.quick else ROOT / "docs" / "results"
    return cells.make(cells_of(given.quick), given, lambda found: tables.publish(folder, "hsdp", "make hsdp", tables_of(found), keep=True))


if __name__ == "__main__":
    sys.exit(main())
