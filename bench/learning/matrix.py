# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Every model of the demo with every exchange on every network: docs/results/models.md.

    make models                    all of it: about four hours, in parts; what was cut off goes on where it was
    python -m bench.learning.matrix --times        step times alone, an hour on an idle machine; --learning: quality alone; --page: the tables alone

Quality is learnt without a network, by bench/learning/learning.py with three seeds; bytes and step times are measured in the demo's
network lab. A cell is a file under out/models: delete it to have it made again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from bench.learning import learning, matrix_tables
from bench.lib import tables
from bench.lib.programs import ROOT

TIMES = ROOT / "out" / "models" / "times"
NETWORKS = ("20mbit", "50mbit", "200mbit", "1gbit")
SLOW_STEPS = 5


def times_file(model: str, network: str) -> Path:
    return TIMES / f"{model}-{network}" / "results.json"


def times_command(model: str, network: str) -> list[str]:
    return [sys.executable, "-m", "examples.demo.run", "--times-only", "--model", model, "--networks", network,
            "--slow-steps", str(SLOW_STEPS), "--specs", " ".join(learning.SPECS), "--out", str(times_file(model, network).parent)]


def measure() -> bool:
    """Every cell that is not there; False if one failed."""
    complete = True
    for network in NETWORKS:
        for model in learning.MODELS:
            if not times_file(model, network).exists():
                print(f"step times of {model} at {network}", file=sys.stderr, flush=True)
                complete &= subprocess.run(times_command(model, network), stdout=subprocess.DEVNULL, check=False).returncode == 0
    return complete


def found() -> dict:
    """{"learning": {(model, spec): [run per seed]}, "times": {(model, network): results.json}}, with what is missing named."""
    runs: dict[tuple[str, str], list] = {}
    missing = []
    for cell in learning.cells("seeds"):
        run = cell.load()
        runs.setdefault((cell.model, cell.spec), []).append(run)
        missing += [cell.path.stem] if run is None else []
    times = {}
    for model in learning.MODELS:
        for network in NETWORKS:
            try:
                times[model, network] = json.loads(times_file(model, network).read_text(encoding="utf-8"))
            except (OSError, ValueError):
                missing.append(f"times of {model} at {network}")
    return {"learning": runs, "times": times, "missing": missing}


def write(out: Path) -> int:
    everything = found()
    if everything["missing"]:
        print(f"no tables yet, missing: {', '.join(everything['missing'])}", file=sys.stderr)
        return 1
    page = tables.publish(out, "models", "make models", matrix_tables.tables_of(everything))
    (out / "models.svg").write_text(matrix_tables.picture(everything) + "\n", encoding="utf-8")
    print(page)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.learning.matrix", description=__doc__.splitlines()[0])
    parser.add_argument("--times", action="store_true", help="measure step times only")
    parser.add_argument("--learning", action="store_true", help="learn only")
    parser.add_argument("--page", action="store_true", help="write the tables only")
    parser.add_argument("--slots", type=int, default=1, help="runs that learn at once, of four ranks each (default 1)")
    parser.add_argument("--text", help="what lstm and gpt learn from (default: the sources of this Python's standard library)")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results", metavar="FOLDER", help="of models.md (docs/results)")
    given = parser.parse_args()
    everything = not (given.times or given.learning or given.page)
    if (given.times or everything) and not measure():
        return 1
    if given.learning or everything:
        learning.answer("seeds", given.slots, given.text)
    return write(given.out) if given.page or everything else 0


if __name__ == "__main__":
    sys.exit(main())
