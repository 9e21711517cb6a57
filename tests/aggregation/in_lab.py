# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Runs a program of this folder as the launcher of a lab of four hosts at 100 Mbit/s, whose switch can run servers."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
BUILD = Path(os.environ.get("LACONIC_BUILD", HERE.parents[1] / "build" / "release")) / "bin"
LACONIC, RANK = BUILD / "laconic", BUILD / "aggregation_rank"
HOSTS, RATE = 4, "100mbit"


@functools.cache
def check():
    return json.loads(subprocess.run([LACONIC, "lab", "--check", "--json"], capture_output=True, text=True).stdout)


def features():
    said = check()
    return said["root"] or said["user_namespace"]


def why_not():
    """The requirements that are missing; empty if it can run here."""
    for program in (LACONIC, RANK):
        if not program.exists():
            return f"{program} is not built"
    if not check()["usable"] or not features()["loss"]:
        return f"this machine permits no network namespaces, or cannot drop packets: {check()}"
    return ""


def run(folder, limit, program, *words, **options):
    """`folder` takes the token. The program's status is the lab's."""
    token = Path(folder) / "token"
    subprocess.run([LACONIC, "serve", "--new-token", token], check=True, capture_output=True)
    environment = {**os.environ, "LACONIC_CLI": str(LACONIC), "AGGREGATION_RANK": str(RANK), "AGGREGATION_TOKEN": str(token),
                   "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"}
    # The switch's own COMMAND only has to be there: servers come and go by `--on switch`.
    return subprocess.run([LACONIC, "lab", "--hosts", str(HOSTS), "--rate", RATE, "--timeout", f"{limit}s", "--launcher",
                           "--switch", f"exec '{LACONIC}' serve --bind 127.0.0.1:7499 > /dev/null", "--", sys.executable,
                           HERE / program, *map(str, words)],
                          text=True, env=environment, timeout=limit + 60, **options)
