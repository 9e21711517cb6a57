# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Facts about the machine and the build that made the figures."""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
import shlex
import subprocess
from pathlib import Path

from bench.lib.host import cpu
from bench.lib.programs import ROOT

# Flags that change what the compiler makes; warnings and paths do not.
TELLING = re.compile(r"-(O|f(?!visibility|PIC|diagnostics)|m|std=|DNDEBUG)")


def read(path) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def caches() -> str:
    found = []
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        kind = {"Data": "d", "Instruction": "i"}.get(read(folder / "type"), "")
        shared = read(folder / "shared_cpu_list")
        found.append(f"L{read(folder / 'level')}{kind} {read(folder / 'size')}"
                     + (f" (CPUs {shared})" if re.search("[-,]", shared) else ""))
    return ", ".join(found) or "unknown"


def memory() -> str:
    total = re.search(r"MemTotal:\s*(\d+)", read("/proc/meminfo"))
    return f"{int(total[1]) / (1 << 20):.0f} GiB" if total else "unknown"


def flags(build: Path) -> str:
    """Compile flags of a file that is compiled like all others."""
    try:
        commands = json.loads((build / "compile_commands.json").read_text())
        words = next(shlex.split(c["command"]) for c in commands if c["file"].endswith("pipeline/unit_codec.cc"))
    except (OSError, ValueError, KeyError, StopIteration):
        return "unknown"
    return " ".join(dict.fromkeys(word for word in words if TELLING.match(word)))


def commit() -> str:
    def git(*words):
        done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else ""

    changed = git("status", "--porcelain", "--untracked-files=no", "--", "src", "include", "tools", "cmake")
    return (git("rev-parse", "--short=12", "HEAD") or "not a git checkout") + (" with local changes" if changed else "")


def machine(build: Path, bench: dict, clock_ghz) -> dict:
    """`bench` is what `laconic bench --json` says of the machine."""
    return {
        "CPU": cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "clock": f"{clock_ghz:.2f} GHz (dependent multiplications, at 3 cycles each)" if clock_ghz else "unknown",
        "caches": caches(),
        "memory": memory(),
        "huge pages": f"transparent: {bench.get('huge_pages', 'unknown')}; buffers from 2 MiB on ask for them",
        "instruction sets": ", ".join(bench.get("isas", [])),
        "kernel": f"{platform.system()} {platform.release()}",
        "C library": " ".join(platform.libc_ver()),
        "compiler": bench.get("compiler", "unknown"),
        "flags": flags(build),
        "Laconic": f"{bench.get('laconic', 'unknown')}, commit {commit()}",
        "load before the run": " ".join(read("/proc/loadavg").split()[:3]),
        "date": datetime.date.today().isoformat(),
    }
