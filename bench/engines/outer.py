# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Changes of parameters after the optimizer, exchanged by laconic.OuterStep, against gradients before it: docs/results/outer.md.

    make outer             what is missing (three hours on an idle machine, in parts), then the tables
    python -m bench.engines.outer NAME…   these cells, or all whose names begin so; --page: the tables alone; --quick: minutes, into out/bench

A cell is a file under out/outer: delete it to have it made again. Cells of learning time nothing; the others need an idle machine and the network
lab. Needs a release build, or LACONIC_LIBRARY.
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
from bench.lib.results import final_of, first_at

RESULTS = ROOT / "out" / "outer"
WORLD, SEEDS = 4, (0, 1, 2)
ADAMW = {"weight_decay": 0.01}
RISE = 20  # steps in which AdamW's rate rises, before the cosine
#: way → how it is written; "attach" compresses gradients, "outer" changes, {} is plain DDP
WAYS = {
    "float32": ("gradients, float32", {}),
    "attach-3lc": ("gradients, `3lc`", {"attach": "3lc"}),
    "attach-powersgd": ("gradients, `powersgd:rank=4`", {"attach": "powersgd:rank=4"}),
    "every1-none": ("changes, every step, `none`", {"outer": "none"}),
    "every1-3lc": ("changes, every step, `3lc`", {"outer": "3lc"}),
    "every1-3lc-1.5": ("changes, every step, `3lc:s=1.5`", {"outer": "3lc:s=1.5"}),
    "every4-3lc": ("changes, every 4th step, `3lc`", {"outer": "3lc", "every": 4}),
    "every4-3lc-once": ("changes, every 4th step, `3lc`, `gather_all`", {"outer": "3lc", "every": 4, "strategy": "gather_all"}),
    "every20-none": ("changes, every 20th step, `none`", {"outer": "none", "every": 20}),
    "every20-3lc": ("changes, every 20th step, `3lc`", {"outer": "3lc", "every": 20}),
    "every20-3lc-once": ("changes, every 20th step, `3lc`, `gather_all`", {"outer": "3lc", "every": 20, "strategy": "gather_all"}),
    "fragments": ("changes, every 20th step, `3lc`, two fragments", {"outer": "3lc", "every": 20, "fragments": 2}),
    "delayed": ("changes, every 20th step, `3lc`, two fragments, ten steps late", {"outer": "3lc", "every": 20, "fragments": 2, "delay": 10}),
    "every20-diloco": ("changes, every 20th step, `none`, DiLoCo's rule (0.7, 0.9)", {"outer": "none", "every": 20, "nesterov": [0.7, 0.9]}),
    "every20-diloco-once": ("changes, every 20th step, `3lc`, `gather_all`, DiLoCo's rule (0.7, 0.9)",
                            {"outer": "3lc", "every": 20, "strategy": "gather_all", "nesterov": [0.7, 0.9]}),
    "every20-blocks": ("changes, every 20th step, `blocktopk:keep=128,values=2bit+decay=0.95`",
                       {"outer": "blocktopk:keep=128,values=2bit+decay=0.95", "every": 20}),
}
#: with AdamW each way takes the best of these rates, by seed 0; while the best is at an end, twice or half of it is tried, too
READERS = {"gpt": (2e-3, 4e-3, 8e-3), "lstm": (4e-3, 8e-3, 16e-3)}
READ = ("float32", "attach-3lc", "attach-powersgd", "every1-3lc-1.5", "every4-3lc", "every4-3lc-once")
#: with the demo's own optimizer, SGD with momentum
SEEN = {"mlp": ("attach-3lc", "every1-3lc", "every20-none", "every20-3lc", "every20-3lc-once", "every20-diloco", "every20-diloco-once"), "cnn": ("attach-3lc", "every1-3lc")}
LONG, LONG_STEPS, LONG_RATE = ("every20-diloco", "every20-blocks"), 600, 4e-3
ALL_REDUCED = "plain, and an all-reduce every 20th step"  # the least that a round can cost
STEPS = 300  # of gpt and lstm; of mlp and cnn the demo's
TIMED = {
    **{f"time-{model}-{rate}": ({"model": model, "ways": ["attach-powersgd", "every1-3lc-1.5"], "repeats": 3, "warmup": 3, "steps": 8}, rate)
       for model in READERS for rate in ("20mbit", "50mbit")},
    "time-mlp-1mbit": ({"model": "mlp", "ways": ["attach-3lc", "every20-none", "every20-3lc", "every20-3lc-once"], "repeats": 1, "warmup": 20, "steps": 20}, "1mbit"),
    "time-mlp-10mbit": ({"model": "mlp", "ways": ["fragments", "delayed"], "repeats": 3, "warmup": 20, "steps": 60}, "10mbit"),
    "local": ({"model": "mlp", "ways": ["plain", ALL_REDUCED, "every20-none"], "repeats": 6, "warmup": 20, "steps": 80}, None),
}


# ---- learning ---------------------------------------------------------------------------------------------------------


def exchanging(model, optimizer, way: str, seed: int):
    """The model to call, and the handle that exchanges for it; "plain": neither, every rank trains alone. Ranks begin with equal parameters."""
    import torch

    import laconic

    how = dict(WAYS[way][1]) if way in WAYS else None
    if how is None:
        return model, None
    if "outer" not in how:
        wrapped = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=25, init_sync=False)
        return wrapped, laconic.attach(wrapped, how["attach"], seed=seed, quiet=True) if how else None
    how["spec"] = how.pop("outer")
    if "nesterov" in how:
        how["outer"] = laconic.nesterov(*how.pop("nesterov"))
    return model, laconic.OuterStep(model, optimizer, sync_parameters=False, seed=seed, quiet=True, **how)


def optimizer_of(kind, model, rate: float, fused: bool = False):
    """AdamW at a rate; 0: the demo's own optimizer."""
    import torch

    return torch.optim.AdamW(model.parameters(), lr=rate, fused=fused, **ADAMW) if rate else kind.optimizer(model.parameters())


def learn(rank: int, model: str, way: str, rate: float, seed: int, steps: int, out: Path) -> None:
    """On one rank; rank 0 evaluates and writes."""
    import torch

    from bench.lib.trainer import ring_bytes, schedule

    kind, about = models.load(model), models.MODELS[model]
    data = kind.data(None)
    torch.manual_seed(seed)
    module = kind.build(data)
    optimizer = optimizer_of(kind, module, rate, fused=True)
    called, handle = exchanging(module, optimizer, way, seed)
    batches, curve = data.batches(kind.BATCH, seed, rank, WORLD), []
    for number in range(1, steps + 1):
        optimizer.param_groups[0]["lr"] = (rate or kind.LEARNING_RATE) * schedule(number - 1, steps) * (min(1, number / RISE) if rate else 1)
        optimizer.zero_grad()
        data.loss(called, next(batches)).backward()
        optimizer.step()
        if rank == 0 and number % about.every == 0:
            module.eval()
            with torch.no_grad():
                curve.append([number, data.evaluate(module)])
            module.train()
    if rank == 0:
        elements = sum(p.numel() for p in module.parameters())
        sent = handle.stats()["wire_bytes"] if handle is not None else steps * ring_bytes(4 * elements, WORLD)
        out.write_text(json.dumps({"final": final_of(curve), "curve": curve, "sent": sent / steps, "of_ddp": steps * ring_bytes(4 * elements, WORLD) / sent}))
    if handle is not None:
        handle.close()


def learning(model: str, way: str, rate: float, seed: int, steps: int) -> dict:
    """Trained by four processes of this machine."""
    return group.answered(learn, WORLD, model, way, rate, seed, steps)


def timed(plan: dict, rate: str | None) -> dict:
    """outer_rank.py on four hosts of a lab, or without a rate as processes of this machine."""
    return engines.timed("bench.engines.outer_rank", plan, "--hosts", WORLD, *(["--emulate", "--no-pin"] if rate is None else ["--rate", rate]))


# ---- cells ------------------------------------------------------------------------------------------------------------


def learning_name(model: str, way: str, rate: float, seed: int) -> str:
    return f"learning-{model}-{way}-{rate:g}-{seed}"


def tried(found, model: str, way: str) -> tuple[list[float], float | None]:
    """The rates of an exchange, and the best one once all have been tried. found(name): a cell's result, or None."""
    rates = list(READERS[model])
    while True:
        seen = {rate: cell["final"] for rate in rates if (cell := found(learning_name(model, way, rate, 0)))}
        if len(seen) < len(rates):
            return rates, None
        best = min(seen, key=seen.__getitem__)  # bits: less is better
        if rates[0] < best < rates[-1]:
            return rates, best
        rates = [best / 2, *rates] if best == rates[0] else [*rates, best * 2]


def cells_of(quick: bool = False) -> list[cells.Cell]:
    """Those that are known: the seeds of an exchange follow when its rate has been chosen."""
    folder = ROOT / "out" / "bench" / "outer" if quick else RESULTS
    some = {"repeats": 1, "warmup": 1, "steps": 2} if quick else {}

    def cell(model: str, way: str, rate: float, seed: int, steps: int) -> cells.Cell:
        return cells.Cell(learning_name(model, way, rate, seed), functools.partial(learning, model, way, rate, seed, 20 if quick else steps), folder)

    made = []
    for model in READERS:
        for way in READ:
            rates, best = tried(lambda name: cells.Cell(name, dict, folder).load(), model, way)
            made += [cell(model, way, rate, 0, STEPS) for rate in rates]
            made += [cell(model, way, best, seed, STEPS) for seed in SEEDS[1:] if best and not quick]
    made += [cell(model, way, 0, seed, models.MODELS[model].steps) for model, ways in SEEN.items() for way in ways for seed in (SEEDS[:1] if quick else SEEDS)]
    made += [cell("gpt", way, LONG_RATE, seed, LONG_STEPS) for way in LONG for seed in (SEEDS[:1] if quick else SEEDS)]
    return made + [cells.Cell(name, functools.partial(timed, {**plan, **some}, rate), folder) for name, (plan, rate) in TIMED.items()]


# ---- tables -----------------------------------------------------------------------------------------------------------


class Found:
    """What the cells gave, None for those that are missing."""

    def __init__(self, found: dict):
        self._found = found

    def seeds(self, model: str, way: str, rate: float | None = None) -> list[dict]:
        """An exchange's runs by seed, at its best rate where it has several; empty while one is missing."""
        if rate is None:
            rate = tried(self._found.get, model, way)[1] if model in READERS else 0
        runs = [] if rate is None else [self._found.get(learning_name(model, way, rate, seed)) for seed in SEEDS]
        return runs if all(runs) else []

    def final(self, model: str, way: str, rate: float | None = None) -> float | None:
        runs = self.seeds(model, way, rate)
        return statistics.fmean(run["final"] for run in runs) if runs else None

    def best_rate(self, model: str, way: str) -> tuple[list[float], float | None]:
        return tried(self._found.get, model, way)

    def steps(self, model: str, way: str) -> float | None:
        """Median of the steps to the demo's target, infinite for a run that does not reach it."""
        about = models.MODELS[model]
        reached = [first_at(run["curve"], about.quality, about.target) or float("inf") for run in self.seeds(model, way)]
        return statistics.median(reached) if reached else None

    def seconds(self, cell: str, way: str) -> float | None:
        """Of a step."""
        return self._found[cell]["ways"][way]["seconds"] if self._found.get(cell) else None

    def exposed(self, cell: str, way: str) -> float | None:
        """Seconds of a step in which the optimizer waits for a round."""
        return self._found[cell]["ways"][way]["exposed"] if self._found.get(cell) else None

    def time(self, cell: str, model: str, way: str) -> float | None:
        """To the target."""
        steps, seconds = self.steps(model, way), self.seconds(cell, way)
        return None if steps is None or seconds is None else steps * seconds


def bars_of(found: Found) -> list:
    bars = []

    def bar(what: str, seen: str, wanted: str) -> None:
        bars.append([what, seen, wanted])

    for way, more, fewer in (("every1-3lc-1.5", 1, 30), ("every4-3lc", 2, 90), ("every4-3lc-once", 2, 90)):
        for model in READERS:
            plain, own = found.final(model, "float32"), found.seeds(model, way)
            if plain is not None and own:
                bar(f"{model}, AdamW, {WAYS[way][0]}: bits above float32's", f"{100 * (found.final(model, way) / plain - 1):+.2f} %", f"≤ {more} %")
                bar("the same: times fewer bytes", f"{statistics.fmean(run['of_ddp'] for run in own):.0f}", f"≥ {fewer}")
    for model in SEEN:
        mean, own = found.final(model, "attach-3lc"), found.final(model, "every1-3lc")
        if mean is not None and own is not None:
            bar(f"{model}, momentum, changes of every step by `3lc`: accuracy beside `attach(\"3lc\")`, points", f"{100 * (own - mean):+.2f}", "≥ −0.3")
    diloco, blocks = (found.seeds("gpt", way, LONG_RATE) for way in LONG)
    if diloco and blocks:
        above = [b["final"] - a["final"] for a, b in zip(diloco, blocks)]
        error = statistics.stdev(above) / len(above) ** 0.5
        bar("gpt, 600 steps, every 20th: bits of `blocktopk` and averages above those of `none` and DiLoCo's rule",
            f"{statistics.fmean(above):+.3f} ± {error:.3f}", "≤ 0 beyond chance")
        bar("the same: times fewer bytes of a round", f"{diloco[0]['sent'] / blocks[0]['sent']:.0f}", "≥ 50")
    for model in READERS:
        for rate in ("20mbit", "50mbit"):
            name = f"time-{model}-{rate}"
            best, own = (found.time(name, model, way) for way in ("attach-powersgd", "every1-3lc-1.5"))
            if best and own:
                bar(f"{model}, {rate.removesuffix('mbit')} Mbit/s: time to {models.MODELS[model].target:g} bits, {WAYS['attach-powersgd'][0]} / changes by "
                    "`3lc:s=1.5`", f"{best / own:.2f}", "≥ 1.3")
    gradients, plain = (found.time("time-mlp-1mbit", "mlp", way) for way in ("attach-3lc", "every20-none"))
    for way, how in (("every20-3lc", "`3lc`"), ("every20-3lc-once", "`3lc`, `gather_all`")):
        if own := found.time("time-mlp-1mbit", "mlp", way):
            bar(f"mlp, 1 Mbit/s: time to 95 %, `attach(\"3lc\")` / every 20th, {how}", f"{gradients / own:.1f}", "≥ 3")
            bar(f"the same, every 20th, `none` / {how}", f"{plain / own:.1f}", "≥ 5")
    exposed = [found.exposed("time-mlp-10mbit", way) for way in ("fragments", "delayed")]
    if all(exposed):
        bar("mlp, 10 Mbit/s, every 20th, two fragments: seconds that the optimizer waits, in time / ten steps late", f"{exposed[0] / exposed[1]:.1f}", "≥ 5")
    for way, how, beside in (("every20-3lc", "`3lc`", "every20-none"), ("every20-3lc-once", "`3lc`, `gather_all`", "every20-none"),
                             ("every20-diloco-once", "`3lc`, `gather_all`, DiLoCo's rule", "every20-diloco")):
        if own := found.seeds("mlp", way):
            bar(f"mlp, every 20th, {how}: times fewer bytes than float32 DDP", f"{statistics.fmean(run['of_ddp'] for run in own):,.0f}", "≥ 1,000")
            if (plain := found.final("mlp", beside)) is not None:
                bar("the same: accuracy beside `none` by the same rule, points", f"{100 * (found.final('mlp', way) - plain):+.2f}", "≥ −0.5")
    if plain := found.seconds("local", "plain"):
        bar("without a network: step of plain training with an all-reduce every 20th step / without", f"{found.seconds('local', ALL_REDUCED) / plain:.2f}", "")
        bar("the same, `OuterStep` every 20th, `none`", f"{found.seconds('local', 'every20-none') / plain:.2f}", "≤ 1.03")
    return bars


def tables_of(cells_found: dict) -> dict:
    """cells_found: by cell, what it gave, or None."""
    found, made = Found(cells_found), {}
    if bars := bars_of(found):
        made["bars"] = tables.table(["what", "seen", "bar"], bars)
    for model in READERS:
        rows = []
        for way in READ:
            runs, (rates, best) = found.seeds(model, way), found.best_rate(model, way)
            if runs:
                screened = [cells_found[learning_name(model, way, rate, 0)]["final"] for rate in rates]
                rows.append([WAYS[way][0], ", ".join(f"{1e3 * rate:g}: {bits:.3f}" for rate, bits in zip(rates, screened)), f"{1e3 * best:g}",
                             [run["final"] for run in runs], found.final(model, way), statistics.fmean(run["of_ddp"] for run in runs),
                             str(steps) if (steps := found.steps(model, way)) < float("inf") else None])
        if rows:
            made[model] = tables.table(["exchange", "rate × 1000: bits, seed 0", "rate taken", ("bits by seed", "{:.3f}, {:.3f}, {:.3f}"), ("mean", "{:.3f}"),
                                        ("× fewer bytes", "{:d1}"), f"steps to {models.MODELS[model].target:g} bits"], rows)
    rows = [[model, WAYS[way][0], [100 * run["final"] for run in runs], 100 * found.final(model, way), statistics.fmean(run["of_ddp"] for run in runs)]
            for model, ways in SEEN.items() for way in ways if (runs := found.seeds(model, way))]
    if rows:
        made["momentum"] = tables.table(["model", "exchange", ("accuracy by seed, %", "{:.1f}, {:.1f}, {:.1f}"), ("mean, %", "{:.2f}"),
                                         ("× fewer bytes", "{:d1}")], rows)
    rows = [[WAYS[way][0], [run["final"] for run in runs], found.final("gpt", way, LONG_RATE), statistics.fmean(run["of_ddp"] for run in runs)]
            for way in LONG if (runs := found.seeds("gpt", way, LONG_RATE))]
    if rows:
        made["long rounds"] = tables.table(["exchange", ("bits by seed", "{:.3f}, {:.3f}, {:.3f}"), ("mean", "{:.3f}"), ("× fewer bytes", "{:d1}")], rows)
    rows = [[name, WAYS.get(way, (way,))[0], 1e3 * values["seconds"], found.time(name, plan["model"], way) if way in WAYS and rate else None]
            for name, (plan, rate) in TIMED.items() if cells_found.get(name) for way, values in cells_found[name]["ways"].items()]
    if rows:
        made["times"] = tables.table(["cell", "exchange", ("a step, ms", "{:s3}"), ("to the target, s", "{:s3}")], rows)
    if made:
        made["machine"] = tables.of_pairs([("CPU", machine.cpu()), ("date", datetime.date.today().isoformat())])
    return made


def main(arguments=None) -> int:
    given = cells.options("python -m bench.engines.outer", __doc__, arguments)
    folder = ROOT / "out" / "bench" if given.quick else ROOT / "docs" / "results"
    made, status = [], 0
    while len(known := cells_of(given.quick)) > len(made) and not status:  # what was found makes more of them known
        made, status = known, cells.make(known, given, lambda found: tables.publish(folder, "outer", "make outer", tables_of(found), keep=True))
    return status


if __name__ == "__main__":
    sys.exit(main())
