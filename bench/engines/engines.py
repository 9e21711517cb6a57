# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Compressed averaging over every engine, against what the engine itself does: docs/results/engines.md.

    make engines             what is missing (half an hour on an idle machine), then the tables
    python -m bench.engines.engines NAME…   these cells, or all whose names begin so; --page: the tables alone

A cell is one run, in which what is compared takes turns, and a file under out/engines: delete it to have it made again. It needs
the network lab, mpirun of Open MPI and MPICH, and Gloo; cells of what is absent are named, and their tables stay as they were.
"""

from __future__ import annotations

import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Callable

from bench.engines import engines_tables
from bench.lib import cells, host, tables
from bench.lib.cells import Cell, CellError
from bench.lib.programs import ROOT

RESULTS = ROOT / "out" / "engines"
PUBLISHED = ROOT / "docs" / "results"
BUILD = ROOT / "build" / "release"
COMMAND = BUILD / "bin" / "laconic"
CODECS = ["none", "fp16", "bf16", "int8", "3lc", "topk:ratio=0.001", "sidco:ratio=0.001", "randomk:ratio=0.001", "powersgd:rank=4"]
MPIRUN = {"openmpi": ["mpirun.openmpi", "--oversubscribe"], "mpich": ["mpirun.mpich"]}
MI = 1 << 20


def environment() -> dict:
    found = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "python")]),
             "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
    found.pop("LACONIC_BIN", None)
    return found


def executed(words: list, timeout: float = 1200) -> str:
    """The output of a command."""
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=timeout, env=environment(),
                          cwd=ROOT, check=False)
    if done.returncode != 0:
        raise CellError((done.stderr or done.stdout).strip()[-600:])
    return done.stdout


def lab(hosts: int, rate: str, words: list, *, launcher: bool = False, mtu: int = 1500) -> str:
    """The output of rank 0 or of the launcher in a lab."""
    with tempfile.TemporaryDirectory() as logs:
        executed([COMMAND, "lab", "--hosts", hosts, "--rate", rate, "--mtu", mtu, "--logs", logs, *(["--launcher"] if launcher else []), "--", *words])
        return (Path(logs) / ("launcher.out" if launcher else "rank0.out")).read_text()


def bench(engine: str, hosts: int, rate: str, *words, mtu: int = 1500) -> dict:
    """`laconic bench --engine` on a number of hosts."""
    command = [COMMAND, "bench", "--json", "--engine", "gloo" if engine == "gloo" else "mpi", *words]
    if engine != "gloo":
        return json.loads(lab(hosts, rate, [*MPIRUN[engine], "-n", hosts, *command], launcher=True, mtu=mtu))
    with tempfile.TemporaryDirectory() as folder:
        each = 'exec "$@" --rank "$RANK" --world "$WORLD_SIZE" --interface eth0'
        return json.loads(lab(hosts, rate, ["sh", "-c", each, "sh", *command, "--rendezvous", f"file:{folder}"], mtu=mtu))


def specs(names) -> list:
    return [word for name in names for word in ("--spec", name)]


def timed(module: str, plan: dict, *shape, python=sys.executable) -> dict:
    """What a program of ranks (`module` PLAN ANSWER) answers in a lab of this shape."""
    with tempfile.TemporaryDirectory() as folder:
        asked, answered = Path(folder) / "plan.json", Path(folder) / "answer.json"
        asked.write_text(json.dumps(plan))
        executed([COMMAND, "lab", *shape, "--", python, "-m", module, asked, answered])
        return json.loads(answered.read_text())


def torch_ranks(hosts: int, rate: str | None, plan: dict) -> dict:
    """Without a rate: processes of this machine, not of a lab."""
    return timed("bench.engines.engines_rank", plan, "--hosts", hosts, *(["--emulate", "--no-pin"] if rate is None else ["--rate", rate]))


# ---- cells ----


def libraries(engine: str, rate: str = "200mbit") -> dict:
    """Every codec on four hosts, 8 MiB."""
    if engine == "c10d":
        return torch_ranks(4, rate, {"what": "average", "bytes": 8 * MI, "specs": CODECS, "warmup": 2, "steps": 5})
    return bench(engine, 4, rate, "--min", "8M", "--max", "8M", "--iterations", 5, "--warmup", 2, *specs(CODECS))


def long(engine: str) -> dict:
    """64 MiB on four hosts at 100 Mbit/s."""
    return bench(engine, 4, "100mbit", "--min", "64M", "--max", "64M", "--iterations", 3, "--warmup", 1, *specs(["int8", "3lc"]))


PARTS = ["--min", "32M", "--max", "32M", "--part", "4M", "--iterations", 10, "--warmup", 3]


def window(spec: str) -> dict:
    """Windows 1 and 2 in turn, on two hosts whose rate makes the wire take as long as the codec; and what the cores need without a limit."""

    def call(rate: float, width: int) -> dict:
        row, = bench("gloo", 2, f"{max(1, round(rate))}mbit" if rate else "off", *PARTS, "--window", width, *specs([spec]), mtu=9000)["results"]
        return {key: row[key] for key in ("time", "wire", "coding", "sent")}

    def medians(runs: list[dict]) -> dict:
        return {key: statistics.median(run[key] for run in runs) for key in runs[0]}

    free = call(0, 1)
    rate = free["sent"] * 8 / free["coding"]  # bits per microsecond
    for _ in range(3):  # a wire is more than its bits
        tried = call(rate, 1)
        rate *= tried["wire"] / tried["coding"]
    runs = {"window 1": [], "window 2": [], "no limit": []}
    for _ in range(15):
        runs["window 1"].append(call(rate, 1))
        runs["window 2"].append(call(rate, 2))
        runs["no limit"].append(call(0, 2))
    return {"rate": f"{round(rate)}mbit", "runs": runs, **{name: medians(some) for name, some in runs.items()}}


def sums(library: str, ranks: int) -> dict:
    """`none` by native_sum next to the library's own all-reduce, on this machine without a network."""
    program = BUILD / "bin" / ("gloo_sum_bench" if library == "gloo" else f"mpi_sum_bench_{library}")
    if not program.exists():
        raise CellError(f"{program.name} is not built")
    start = [program, ranks] if library == "gloo" else [*MPIRUN[library], "-n", ranks, program]
    # Which core a rank gets lasts for a launch, and ranks that share one take turns as it comes: medians of five launches, with more
    # calls where they are short.
    runs = [[json.loads(executed([*start, turns, *sizes])) for turns, sizes in ((200, [4]), (16, [16, 64]))] for _ in range(5)]
    points = zip(*[[point for run in launch for point in run["points"]] for launch in runs])
    return {**runs[0][0], "points": [median_point(launches) for launches in points]}


def median_point(launches) -> dict:
    """Medians over several launches; the ratio is that of the medians."""
    point = {key: statistics.median(launch[key] for launch in launches) for key in launches[0] if key != "ratio"}
    return {**point, "ratio": point["laconic"] / point["own"]}


DIGITS = {"what": "train", "hidden": [3500, 3500, 3500], "cap": 25, "repeats": 2, "warmup": 4, "steps": 8, "slow_steps": 3}


def perceptron(rate: str) -> dict:
    """24.8 M parameters on four hosts, in DDP's own buckets."""
    measured = ["pytorch:ddp", "pytorch:fp16", "little", "none", "int8", "3lc", "sidco:ratio=0.001", "topk:ratio=0.001"]
    return torch_ranks(4, rate, {**DIGITS, "specs": measured})


BUCKETS = {"what": "train", "buckets": 32, "bytes": 1 << 16, "cap": (1 << 16) / MI, "slow_steps": 5, "options": {"small_elements": 0}}


def buckets() -> dict:
    """32 buckets of 64 kB, two processes."""
    return torch_ranks(2, None, {**BUCKETS, "repeats": 24, "warmup": 20, "steps": 40,
                                 "specs": ["pytorch:ddp", "pytorch:hook", "none", "3lc", "topk:ratio=0.001", "int8"]})


def buckets_of_hosts() -> dict:
    """32 buckets of 64 kB whose gradients come 2 ms apart, four hosts; together, and each on its own."""
    compressed = [spec + apart for spec in ("int8", "3lc", "topk:ratio=0.001") for apart in ("", f" part={1 << 16}")]
    return torch_ranks(4, "100mbit", {**BUCKETS, "pause": 0.002, "repeats": 4, "warmup": 5, "steps": 15,
                                      "specs": ["pytorch:ddp", "pytorch:fp16", *compressed]})


def on_machine(run: Callable[[], dict]) -> dict:
    """With what this machine was doing before."""
    about = host.machine()
    return {**run(), "machine": about}


def cell(name: str, run: Callable, *arguments) -> Cell:
    return Cell(name, functools.partial(on_machine, functools.partial(run, *arguments)), RESULTS)


CELLS = [*(cell(f"libraries-{e}", libraries, e) for e in ("c10d", "gloo", "openmpi", "mpich")),
         *(cell(f"sums-{e}-{n}", sums, e, n) for e in ("gloo", "openmpi", "mpich") for n in (2, 4)),
         *(cell(f"window-{s}", window, s) for s in ("int8", "3lc")),
         *(cell(f"long-{e}", long, e) for e in ("gloo", "openmpi")),
         *(cell(f"perceptron-{r}", perceptron, r) for r in ("200mbit", "off")),
         cell("buckets", buckets), cell("buckets-100mbit", buckets_of_hosts)]


def publish(found: dict) -> None:
    before = PUBLISHED / "engines.json"
    known = json.loads(before.read_text())["tables"] if before.exists() else {}
    tables.publish(PUBLISHED, "engines", "make engines", engines_tables.tables_of(found, known))


def main() -> int:
    return cells.make(CELLS, cells.options("python -m bench.engines.engines", __doc__, quick=False), publish)


if __name__ == "__main__":
    sys.exit(main())
