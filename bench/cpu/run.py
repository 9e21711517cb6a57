# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Measures every codec on this machine's CPU: the tables of docs/results/codecs-cpu.md.

    make bench                                 the whole thing, five minutes, never six; wants a quiet machine
    make bench QUICK=1                         a minute's worth, to see that it works
    python -m bench.cpu.run --quick --codecs topk,int8    a part of that
    python -m bench.cpu.run --server                      the aggregation server instead, a minute: aggregation-server.md

Needs a release build (`scripts/build release`). Nothing is written before everything is measured.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path

from bench.cpu import codec_tables, plan as plans
from bench.lib import tables
from bench.lib.machine import machine
from bench.lib.programs import ROOT, ProgramError, Programs, size_word


def options(arguments=None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.cpu.run", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a minute's worth; not for publication")
    parser.add_argument("--codecs", default="", help="names, separated by commas; all without it")
    parser.add_argument("--server", action="store_true", help="the aggregation server instead")
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release", help="folder of the build")
    parser.add_argument("--out", type=Path, metavar="FOLDER",
                        help="of NAME.md and NAME.json (default docs/results; with --quick out/bench)")
    parser.add_argument("--name", help="of the two files (default codecs-cpu; with --server aggregation-server)")
    parser.add_argument("--budget", type=float, metavar="SECONDS",
                        help="nothing begins later, all ends 30 s later (default 700)")
    given = parser.parse_args(arguments)
    given.name = given.name or ("aggregation-server" if given.server else "codecs-cpu")
    given.out = (given.out or ROOT / ("out/bench" if given.quick else "docs/results")).resolve()
    given.build = given.build.resolve()
    return given


def command_line(given: argparse.Namespace) -> str:
    """The command that repeats this run on another machine: without its folders."""
    if not given.codecs and given.budget is None and not given.server:
        return "make bench QUICK=1" if given.quick else "make bench"
    words = ["python -m bench.cpu.run", *["--server"] * given.server, *["--quick"] * given.quick, *(["--codecs", given.codecs] if given.codecs else [])]
    return " ".join(words + ([f"--budget {given.budget:g}"] if given.budget is not None else []))


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Run:
    """The measurements, in the order of their worth: what the budget cuts off is worth least."""

    def __init__(self, plan: plans.Plan, programs: Programs, names, server_alone: bool = False):
        self.plan, self.programs, self.names, self.server_alone = plan, programs, names, server_alone
        self.results = {"points": [], "fused": [], "threads": [], "c_abi": [], "baselines": {}, "left_out": []}

    def everything(self) -> dict:
        self.look_at_machine()
        steps = [*self.best_isa_steps(), ("fused decode", self.fused), ("calls through the C ABI", self.c_abi),
                 ("two threads", self.threads), ("PyTorch", self.baselines), *self.other_isa_steps()]
        if self.server_alone:
            steps = [("aggregation server", self.server)]
        for what, step in steps:
            if self.programs.elapsed() > self.programs.budget:
                self.results["left_out"].append(what)
                continue
            progress(f"{self.programs.elapsed():5.0f} s  {what}")
            step()
        return self.results

    # ---- steps ----

    def look_at_machine(self):
        """Also finds out whether there is a build at all."""
        answer = self.programs.run([self.programs.binary("laconic"), "bench", "--json", "--spec", "none", "--size", "4Ki", "--seconds", 0.01])
        self.bench_machine = answer["machine"]
        self.isas = answer["machine"]["isas"]

    def best_isa_steps(self):
        """Large tensors first."""
        best = self.isas[-1]
        for size in sorted(self.plan.sizes, key=lambda size: (size not in plans.LARGE_SIZES, size)):
            yield f"{size_word(size)}, {best}", lambda s=size: self.measure(s, best, self.plan.seconds[s])

    def other_isa_steps(self):
        size = self.plan.other_size
        for isa in reversed(self.isas[:-1]):
            yield f"{size_word(size)}, {isa}", lambda i=isa: self.measure(size, i, self.plan.other_seconds)

    def measure(self, size: int, isa: str, seconds: float):
        self.results["points"] += self.programs.bench(self.plan.specs, size, isa, seconds)

    def fused(self):
        specs = plans.chosen(plans.FUSED_SPECS, self.names)
        size = plans.LARGE_SIZES[0]
        if specs:
            self.results["fused"] += self.programs.bench(specs, size, self.isas[-1], self.plan.seconds[size], "--peers", plans.FUSED_PEERS)

    def c_abi(self):
        self.results["c_abi"] = self.programs.points("c_abi_bench", self.plan.call_seconds, *self.plan.specs)

    def threads(self):
        specs = plans.chosen(plans.THREADED_SPECS, self.names)
        for size, seconds in self.plan.threads.items():
            self.results["threads"] += self.programs.points("threads_bench", seconds, size, *specs)

    def server(self):
        self.results["server"] = {
            "io": self.programs.answer("server_bench", self.plan.server_seconds, self.plan.server_rounds),
            "cpu": self.programs.answer("server_cpu_bench", self.plan.server_rounds)}

    def baselines(self):
        if importlib.util.find_spec("torch") is None:
            self.results["left_out"].append("PyTorch, which this Python has not")
            return
        self.results["baselines"] = self.programs.attempt([sys.executable, "-m", "bench.cpu.baselines", "--seconds", self.plan.other_seconds,
                                                           *self.plan.baseline_sizes])


def main() -> int:
    given = options()
    names = [name for name in given.codecs.split(",") if name]
    plan = (plans.QUICK if given.quick else plans.FULL).cut(names, given.budget)
    if not plan.specs:
        progress(f"bench/cpu/run.py: no codec of --codecs {given.codecs} is in the plan; there are: "
                 + ", ".join(dict.fromkeys(s.split(":")[0].split("+")[0] for s in plans.SPECS)))
        return 2
    programs = Programs(given.build, plan.budget)
    run = Run(plan, programs, names, given.server)
    try:
        measured = run.everything()
    except ProgramError as error:
        progress(f"bench/cpu/run.py: {error}\n  build first: scripts/build release")
        return 1
    results = {"isas": run.isas, "machine": machine(given.build, run.bench_machine, max((p["clock_ghz"] for p in measured["points"]), default=None)), **measured,
               "failures": programs.failures}
    found = codec_tables.of_server(results) if given.server else codec_tables.of_codecs(results)
    path = tables.publish(given.out, given.name, command_line(given), found)
    progress(f"{programs.elapsed():5.0f} s  wrote {path}")
    for failure in programs.failures:
        progress(f"failed: {failure['command']}\n  {failure['reason']}")
    return 1 if programs.failures else 0


if __name__ == "__main__":
    sys.exit(main())
