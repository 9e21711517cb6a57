# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Facts about the machine that made the figures."""

from __future__ import annotations

import datetime
import os
import platform
import re
import subprocess
from pathlib import Path

from bench.lib.lab import ROOT


def cpu() -> str:
    try:
        fields = dict(re.findall(r"^(model name|cpu family|model)\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE))
    except OSError:
        fields = {}
    name = fields.get("model name", platform.processor() or platform.machine())
    return f"{name}, family {fields['cpu family']} model {fields['model']}" if "cpu family" in fields else name


def commit() -> str:
    """Commit of this checkout, marked if files differ from it."""
    asked = subprocess.run(["git", "-C", str(ROOT), "describe", "--always", "--abbrev=12", "--dirty=, with local changes"],
                           capture_output=True, text=True)
    return asked.stdout.strip() if asked.returncode == 0 else "not a git checkout"


def machine() -> dict:
    """Called when the runs begin: the load is what others do, not the demo's own."""
    found = {"CPU": cpu(), "cores": len(os.sched_getaffinity(0)),
             "kernel": f"{platform.system()} {platform.release()}", "commit": commit(),
             "date": datetime.date.today().isoformat(),
             "load at the start": f"{os.getloadavg()[0]:.1f} (an idle machine: 0)"}
    if "LACONIC_LIBRARY" in os.environ:
        found["library"] = "named by LACONIC_LIBRARY; the commit above may not be its own"
    return found
