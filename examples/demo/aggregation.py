# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Trains one model over aggregation servers and without them, on a network that loses nothing and on one that does.

    make demo-aggregation                       four workers, 100 Mbit/s, loss 0 and 1 %
    make demo-aggregation MODEL=gpt NETWORKS="200mbit 1gbit" WORKERS=8 SPECS="thc:bits=3@switch int8"

THC with a server in the switch, with a server on each worker's host, and by the group's own all-reduce, next to other exchanges;
as root also with a program in the switch's kernel.
Needs `laconic lab` with namespaces. Leaves demo/aggregation.html.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.lib import overview, servers
from bench.lib.host import machine
from bench.lib.lab import ROOT, DemoError, Progress, lab_works, laconic_command, run_lab
from bench.lib.results import by_network
from examples.demo import pages, run

SPECS = "thc@switch thc@hosts thc powersgd:rank=4 topk:ratio=0.1 dgc terngrad"
NETWORKS = "100mbit 100mbit,1%"
IN_THE_KERNEL = "thc@xdp"
LIMIT = 900  # seconds, with one seed; an idle machine needs less than a third


def options(arguments=None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.demo.aggregation", description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="mlp", choices=run.MODELS, help="what is trained (default mlp)")
    parser.add_argument("--networks", default=NETWORKS, help="rates with losses, separated by spaces: 100mbit,1%%")
    parser.add_argument("--specs", help=f"separated by spaces; @switch, @hosts, @xdp: where servers are (default {SPECS}, and as root "
                        f"{IN_THE_KERNEL})")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=1, help="number of runs whose mean is the final quality")
    parser.add_argument("--steps", type=int, help="of the runs that give the final quality (default: the model's)")
    parser.add_argument("--repeats", type=int, default=2, help="of the blocks on each network")
    parser.add_argument("--slow-steps", type=int, default=3, help="per repeat, of exchanges above 100 ms a step")
    parser.add_argument("--fast-steps", type=int, default=30, help="per repeat, of exchanges below 100 ms a step")
    parser.add_argument("--times-only", action="store_true", help="step times and bytes alone: nothing is learned")
    parser.add_argument("--out", type=Path, default=ROOT / "demo")
    parser.add_argument("--publish", type=Path, metavar="FOLDER", help="also write aggregation.json, .md and .svg there")
    return parser.parse_args(arguments)


def specs_of(given: argparse.Namespace, command: str, progress: Progress) -> str:
    if given.specs is None:
        if why := servers.why_not_in_the_kernel(command):
            progress.say(f"without a program in the switch's kernel: {why}")
            return SPECS
        return f"{SPECS} {IN_THE_KERNEL}"
    if any(map(servers.is_in_the_kernel, given.specs.split())) and (why := servers.why_not_in_the_kernel(command)):
        raise DemoError(f"no program in the switch's kernel: {why}")
    return given.specs


def plan_of(given: argparse.Namespace, specs: str) -> dict:
    numbers = ("workers", "seeds", "repeats", "slow_steps", "fast_steps")
    words = [word for name in numbers for word in (f"--{name.replace('_', '-')}", str(getattr(given, name)))]
    words += ["--model", given.model, "--specs", specs, "--pairs", "0", "--no-bound"]
    words += ["--steps", str(given.steps)] * bool(given.steps) + ["--times-only"] * given.times_only
    words += ["--publish", str(given.publish)] if given.publish else []
    plan = run.plan_of(run.options(words))
    networks = list(dict.fromkeys(given.networks.split()))
    for network in networks:
        run.bits_per_second(network.partition(",")[0])
    return {**plan, "networks": networks}


def train(given: argparse.Namespace, plan: dict, command: str, progress: Progress) -> dict:
    if not lab_works(command):
        raise DemoError("servers in a switch need a lab, and this machine permits none: `laconic lab --check` says why")
    with tempfile.TemporaryDirectory(prefix="laconic-demo-") as folder:
        asked, answered, token = (Path(folder) / name for name in ("plan.json", "result.json", "token"))
        subprocess.run([command, "serve", "--new-token", token], check=True, capture_output=True)
        os.environ["LACONIC_TOKEN_FILE"] = str(token)
        asked.write_text(json.dumps({**plan, "servers": command}))
        worker = [sys.executable, "-m", "examples.demo.worker", str(asked), str(answered)]
        lab = run_lab(command, given.workers, worker, LIMIT * given.seeds, False, progress, servers.in_the_switch(command))
        return {**json.loads(answered.read_text()), "lab": lab}


def demo(given: argparse.Namespace) -> None:
    begin = time.monotonic()
    progress, here, command = Progress(), machine(), laconic_command()
    plan = plan_of(given, specs_of(given, command, progress))
    raw = {**train(given, plan, command, progress), "machine": here, "command": run.command_line(given, "make demo-aggregation", options([]))}
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "aggregation.json").write_text(json.dumps({"plan": plan, **raw}))
    views = by_network(raw, plan)
    page = given.out / "aggregation.html"
    page.write_text(pages.page(views))
    if given.publish:
        pages.publish(views, given.publish, "aggregation")
    print(f"\n{pages.heading(views)}\n\n{overview.text(views)}\n")
    print(run.phases_text(views[0].phases, time.monotonic() - begin))
    print(f"\n{page}")


def main() -> int:
    try:
        demo(options())
    except (DemoError, ValueError) as error:
        print(f"demo-aggregation: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo-aggregation: interrupted; nothing is left running", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
