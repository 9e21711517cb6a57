# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Trains one model with several gradient exchanges over a slow link, and says which was worth it.

    make demo                                   four workers, 50 Mbit/s, all exchanges
    make demo MODEL=gpt                         another model: mlp, cnn, lstm, gpt, recommendation
    make demo RATE=200mbit SPECS="3lc topk:ratio=0.01"
    make demo NETWORKS="20mbit 200mbit 1gbit"   learns once, then measures step times on each

Workers run in `laconic lab`: one host each, the kernel holds every port to the rate. Where the machine does not allow
that, senders wait instead, and everything is marked as emulated. Leaves demo/report.html.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from bench.lib import columns, models, overview
from bench.lib.host import machine
from bench.lib.lab import ROOT, DemoError, Progress, lab_works, laconic_command, run_lab
from bench.lib.models import MODELS
from bench.lib.network import bits_per_second
from bench.lib.results import REFERENCE, by_network
from examples.demo import pages

SPECS = ("pytorch:ddp pytorch:fp16 pytorch:powersgd bf16 int8 3lc 3lc:s=1.75 topk:ratio=0.01 topk:ratio=0.001 "
         "sidco:ratio=0.001 powersgd:rank=4")


RATE = "50mbit"


def options(arguments=None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.demo.run", description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="mlp", choices=MODELS, help="what is trained (default mlp)")
    parser.add_argument("--data", help="a file to learn from: CIFAR-10 as .npz for cnn, text for lstm and gpt")
    parser.add_argument("--rate", help=f"of every port, each way (default {RATE})")
    parser.add_argument("--networks", help="several rates, separated by spaces")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--specs", default=SPECS, help="separated by spaces; pytorch:ddp is always there")
    parser.add_argument("--seeds", type=int, default=1, help="number of runs whose mean is the final quality")
    parser.add_argument("--steps", type=int, help="of the runs that give the final quality (default: the model's)")
    parser.add_argument("--every", type=int, help="steps between evaluations (default: the model's)")
    parser.add_argument("--target", type=float, help="accuracy, or bits a character, on test samples (default: the model's)")
    parser.add_argument("--repeats", type=int, default=3, help="of the blocks at the rate")
    parser.add_argument("--slow-steps", type=int, default=3, help="per repeat, of exchanges above 100 ms a step")
    parser.add_argument("--fast-steps", type=int, default=40, help="per repeat at least, of the others")
    parser.add_argument("--pairs", type=int, default=31, help="of `none` against plain DDP")
    parser.add_argument("--pair-steps", type=int, default=5)
    parser.add_argument("--no-bound", dest="bound", action="store_false", help="leave out steps with the same bytes and no codec")
    parser.add_argument("--times-only", action="store_true", help="step times and bytes alone: nothing is learned")
    parser.add_argument("--out", type=Path, default=ROOT / "demo")
    parser.add_argument("--emulate", action="store_true", help="no network of the kernel: senders wait")
    parser.add_argument("--publish", type=Path, metavar="FOLDER", help="also write table and picture there")
    given = parser.parse_args(arguments)
    about = models.about(models.chosen(given.model, given.data))
    for name in ("steps", "every", "target"):
        if getattr(given, name) is None:
            setattr(given, name, getattr(about, name))
    return given


def networks_of(given: argparse.Namespace) -> list[str]:
    """A wrong rate is reported before anything starts."""
    if given.rate is not None and given.networks is not None:
        raise ValueError("give either RATE (--rate) or NETWORKS (--networks)")
    rates = [given.rate or RATE] if given.networks is None else list(dict.fromkeys(given.networks.split()))
    if not rates:
        raise ValueError("NETWORKS (--networks) names no rate")
    for rate in rates:
        bits_per_second(rate)
    return rates


def plan_of(given: argparse.Namespace) -> dict:
    if given.times_only and given.publish:
        raise ValueError("--times-only has no quality to --publish")
    networks = networks_of(given)
    specs = list(dict.fromkeys([REFERENCE, *given.specs.split()]))
    data = os.path.abspath(given.data) if given.data else None
    if data and not os.access(data, os.R_OK):
        raise ValueError(f"{given.data} cannot be read")
    names = ("steps", "every", "target", "repeats", "slow_steps", "fast_steps", "pairs", "pair_steps", "bound", "times_only")
    return {**{name: getattr(given, name) for name in names}, "model": models.chosen(given.model, data), "data": data,
            "networks": networks, "specs": specs, "workers": given.workers, "seeds": list(range(given.seeds)), "timeout": 60}


def command_line(given: argparse.Namespace, target: str = "make demo", defaults: argparse.Namespace | None = None) -> str:
    """The make command that repeats this run."""
    words, defaults = [target], defaults or options([])
    for name in ("model", "data", "rate", "networks", "workers", "specs", "seeds"):
        if getattr(given, name, None) != getattr(defaults, name, None):
            words.append(f'{name.upper()}="{getattr(given, name)}"')
    return " ".join(words)


def train(given: argparse.Namespace, plan: dict, progress: Progress) -> dict:
    command = laconic_command()
    emulate = given.emulate or not lab_works(command)
    if emulate and not given.emulate:
        progress.say("a lab cannot run here (`laconic lab --check` says why): going on with emulated links")
    limit = 300 + models.about(plan["model"]).limit * given.seeds + 300 * len(plan["networks"])
    with tempfile.TemporaryDirectory(prefix="laconic-demo-") as folder:
        asked, answered = Path(folder) / "plan.json", Path(folder) / "result.json"
        asked.write_text(json.dumps(plan))
        worker = [sys.executable, "-m", "examples.demo.worker", str(asked), str(answered)]
        lab = run_lab(command, given.workers, worker, limit, emulate, progress)
        raw = json.loads(answered.read_text())
    return {**raw, "lab": lab}


def phases_text(known: dict, total: float) -> str:
    lines = [f"{seconds:7.1f} s  {name}" for name, seconds in known.items()]
    lines.append(f"{max(total - sum(known.values()), 0):7.1f} s  start of the workers, report")
    return "\n".join([*lines, f"{total:7.1f} s  in all"])


def demo(given: argparse.Namespace) -> None:
    begin = time.monotonic()
    progress, plan = Progress(), plan_of(given)
    here = machine()
    raw = {**train(given, plan, progress), "machine": here, "command": command_line(given)}
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "results.json").write_text(json.dumps({"plan": plan, **raw}))
    views = by_network(raw, plan)
    page = given.out / "report.html"
    page.write_text(pages.page(views))
    if given.publish:
        pages.publish(views, given.publish)
    print(f"\n{pages.heading(views)}\n\n{overview.text(views) if len(views) > 1 else columns.text(views[0])}\n")
    print(phases_text(views[0].phases, time.monotonic() - begin))
    print(f"\n{page}")


def main() -> int:
    given = options()
    try:
        demo(given)
    except (DemoError, ValueError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo: interrupted; nothing is left running", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
