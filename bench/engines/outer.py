# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Changes of parameters after the optimizer, exchanged by laconic.OuterStep, against gradients before it: docs/results/outer.md.

    make outer             what is missing (three hours on an idle machine, in parts), then the tables
    python -m bench.engines.outer NAME…   these cells, or all whose names begin so; --page: the tables alone; --quick: minutes, into out/bench

A cell is a file under out/outer: delete it to have it made again. Cells of learning and rates time nothing, nor does `torchft`, which counts bytes in the
lab (TORCHFT=the site-packages of an environment with torchft); the others need an idle machine and the lab. Needs a release build, or LACONIC_LIBRARY.
"""

from __future__ import annotations

import datetime
import functools
import json
import math
import os
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
#: optimizer → its class in torch.optim, its arguments, whether the rate rises at first
KINDS = {"SGD": ("SGD", {}, False), "SGD, momentum 0.9": ("SGD", {"momentum": 0.9}, False), "Adam": ("Adam", {}, True), "AdamW": ("AdamW", ADAMW, True)}
#: (model, optimizer) → steps, and the rates that are tried first, in one run with seed 0; AdamW's runs are those of READERS
RATES = {("mlp", "SGD"): (100, (0.25, 0.5, 1.0)), ("mlp", "SGD, momentum 0.9"): (100, (0.025, 0.05, 0.1)),
         ("cnn", "SGD"): (60, (0.5, 1.0, 2.0)), ("cnn", "SGD, momentum 0.9"): (60, (0.05, 0.1, 0.2)),
         ("gpt", "Adam"): (60, (2e-3, 4e-3, 8e-3)), ("lstm", "Adam"): (150, (4e-3, 8e-3, 16e-3))}
RATED = ("float32", "every1-3lc-1.5")
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
#: bytes of a round by the kernel's counters, beside a package that is no dependency: TORCHFT is the folder that has it
TORCHFT = {"ways": ["torchft", "every20-diloco", "every20-diloco-once"], "steps": 300}
TORCHFT_VERSION = "0.2.0"


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


def optimizer_of(kind, model, rate: float, fused: bool = False, name: str = "AdamW"):
    """At a rate; 0: the demo's own optimizer."""
    import torch

    made, arguments, _ = KINDS[name]
    return getattr(torch.optim, made)(model.parameters(), lr=rate, fused=fused, **arguments) if rate else kind.optimizer(model.parameters())


def steps_of(batches, loss, called, optimizer, rate: float, steps: int, rises: bool):
    """Trains; gives the number of each step after it."""
    from bench.lib.trainer import schedule

    for number in range(1, steps + 1):
        optimizer.param_groups[0]["lr"] = rate * schedule(number - 1, steps) * (min(1, number / RISE) if rises else 1)
        optimizer.zero_grad()
        loss(called, next(batches)).backward()
        optimizer.step()
        yield number


def learn(rank: int, model: str, way: str, rate: float, seed: int, steps: int, out: Path) -> None:
    """On one rank; rank 0 evaluates and writes."""
    import torch

    from bench.lib.trainer import ring_bytes

    kind, about = models.load(model), models.MODELS[model]
    data = kind.data(None)
    torch.manual_seed(seed)
    module = kind.build(data)
    optimizer = optimizer_of(kind, module, rate, fused=True)
    called, handle = exchanging(module, optimizer, way, seed)
    batches, curve = data.batches(kind.BATCH, seed, rank, WORLD), []
    for number in steps_of(batches, data.loss, called, optimizer, rate or kind.LEARNING_RATE, steps, bool(rate)):
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


def learn_rates(rank: int, model: str, name: str, way: str, steps: int, rates: tuple, seen: Path, out: Path) -> None:
    """On one rank, one rate after the other until the best is inside; rank 0 evaluates and writes, into `seen` what a run that is cut off has."""
    import torch
    import torch.distributed as dist

    import laconic

    kind = models.load(model)
    data, rates = kind.data(None), list(rates)
    bits = dict(json.loads(seen.read_text())) if seen.exists() else {}
    dist.barrier()  # all have read
    rates = known_rates(rates, bits)
    held_out = (data.test, data.test_labels) if hasattr(data, "test_labels") else data.test
    while len(bits) < len(rates):
        rate = next(rate for rate in rates if rate not in bits)
        torch.manual_seed(0)
        module = kind.build(data)
        optimizer = optimizer_of(kind, module, rate, fused=True, name=name)
        called, handle = exchanging(module, optimizer, way, 0)
        try:
            for _ in steps_of(data.batches(kind.BATCH, 0, rank, WORLD), data.loss, called, optimizer, rate, steps, KINDS[name][2]):
                pass
            module.eval()
            with torch.no_grad():
                found = data.loss(module, held_out).double().view(1) / math.log(2)
        except laconic.LaconicError as error:
            if error.name != "non_finite":
                raise
            found = torch.full((1,), math.inf, dtype=torch.float64)
        dist.broadcast(found, 0)
        bits[rate] = value if math.isfinite(value := found.item()) else math.inf
        if handle is not None:
            handle.close()
        if rank == 0:
            tables.write_whole(seen, json.dumps(list(bits.items())))
        rates = widened(rates, bits)
    if rank == 0:
        out.write_text(json.dumps({"steps": steps, "bits": sorted(bits.items())}))


def rated(model: str, name: str, way: str, steps: int, rates: tuple, folder: Path) -> dict:
    """Rates of one exchange, by four processes of this machine."""
    folder.mkdir(parents=True, exist_ok=True)
    seen = folder / f"{rated_name(model, name, way)}.part"
    found = group.answered(learn_rates, WORLD, model, name, way, steps, rates, seen)
    seen.unlink()
    return found


def learning(model: str, way: str, rate: float, seed: int, steps: int) -> dict:
    """Trained by four processes of this machine."""
    return group.answered(learn, WORLD, model, way, rate, seed, steps)


def timed(plan: dict, rate: str | None) -> dict:
    """outer_rank.py on four hosts of a lab, or without a rate as processes of this machine."""
    return engines.timed("bench.engines.outer_rank", plan, "--hosts", WORLD, *(["--emulate", "--no-pin"] if rate is None else ["--rate", rate]))


def beside_torchft(plan: dict) -> dict:
    """outer_torchft.py on four hosts of a lab."""
    folder = os.environ.get("TORCHFT", "")
    if not (Path(folder) / "torchft").is_dir():
        raise cells.CellError(f"TORCHFT names no folder that has torchft: pip install torchft=={TORCHFT_VERSION} into an environment of its own, and "
                              "TORCHFT=its site-packages")
    return engines.timed("bench.engines.outer_torchft", {**plan, "torchft": folder}, "--hosts", WORLD, "--rate", "100mbit")


# ---- cells ------------------------------------------------------------------------------------------------------------


def learning_name(model: str, way: str, rate: float, seed: int) -> str:
    return f"learning-{model}-{way}-{rate:g}-{seed}"


def rated_name(model: str, name: str, way: str) -> str:
    return f"rates-{model}-{name.replace(', ', '-').replace(' ', '-')}-{way}"


def widened(rates: list[float], seen: dict[float, float]) -> list[float]:
    """With one more where the best of all is at an end."""
    if len(seen) < len(rates):
        return rates
    best = min(rates, key=seen.__getitem__)  # bits: less is better
    if rates[0] < best < rates[-1]:
        return rates
    return [best / 2, *rates] if best == rates[0] else [*rates, best * 2]


def known_rates(rates: list[float], seen: dict[float, float]) -> list[float]:
    """Those that a run has come to which has seen these."""
    while (more := widened(rates, {rate: seen[rate] for rate in rates if rate in seen})) != rates:
        rates = more
    return rates


def tried(found, model: str, way: str) -> tuple[list[float], float | None]:
    """The rates of an exchange, and the best one once all have been tried. found(name): a cell's result, or None."""
    rates = list(READERS[model])
    while True:
        seen = {rate: cell["final"] for rate in rates if (cell := found(learning_name(model, way, rate, 0)))}
        if len(seen) < len(rates):
            return rates, None
        if (more := widened(rates, seen)) == rates:
            return rates, min(rates, key=seen.__getitem__)
        rates = more


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
    made += [cells.Cell(rated_name(model, name, way), functools.partial(rated, model, name, way, 10 if quick else steps, rates, folder), folder)
             for (model, name), (steps, rates) in RATES.items() for way in RATED]
    made += [cell("gpt", way, LONG_RATE, seed, LONG_STEPS) for way in LONG for seed in (SEEDS[:1] if quick else SEEDS)]
    made += [cells.Cell(name, functools.partial(timed, {**plan, **some}, rate), folder) for name, (plan, rate) in TIMED.items()]
    return [*made, cells.Cell("torchft", functools.partial(beside_torchft, {**TORCHFT, "steps": 60} if quick else TORCHFT), folder)]


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


def rows_of_rates(found: Found, cells_found: dict) -> list:
    rows = []

    def add(what: str, steps: int, way: str, bits: list) -> None:
        best = min(bits, key=lambda pair: pair[1])[0]
        rows.append([what, str(steps), WAYS[way][0], ", ".join(f"{rate:g}: {value:.3f}" for rate, value in bits), f"{best:g}"])

    for model, name in RATES:
        for way in RATED:
            if cell := cells_found.get(rated_name(model, name, way)):
                add(f"{model}, {name}", cell["steps"], way, cell["bits"])
    for model in READERS:
        for way in RATED:
            rates, best = found.best_rate(model, way)
            if best is not None:
                add(f"{model}, AdamW", STEPS, way, [(rate, cells_found[learning_name(model, way, rate, 0)]["final"]) for rate in rates])
    return rows


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
    if sent := cells_found.get("torchft"):
        rows = [[WAYS[way][0] if way in WAYS else f"DiLoCo of torchft {TORCHFT_VERSION}, Gloo", sent[way] / 1000, sent["torchft"] / sent[way],
                 "≥ 20" if way == "every20-diloco-once" else ""] for way in TORCHFT["ways"]]
        made["torchft"] = tables.table(["exchange", ("kB of a round", "{:,.0f}"), ("× fewer than torchft", "{:.1f}"), "bar"], rows)
    rows = rows_of_rates(found, cells_found)
    if rows:
        made["rates"] = tables.table(["model, optimizer", "steps", "exchange", "rate: bits on held-out data", "best rate"], rows)
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
    while len(known := cells_of(given.quick)) > len(made):  # what was found makes more of them known; what cannot be made here is tried again
        made, status = known, cells.make(known, given, lambda found: tables.publish(folder, "outer", "make outer", tables_of(found), keep=True))
    return status


if __name__ == "__main__":
    sys.exit(main())
