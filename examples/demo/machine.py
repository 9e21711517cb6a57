# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""What a reader needs to know of the machine that made the figures."""

from __future__ import annotations

import datetime
import os
import platform
import re
import subprocess
from pathlib import Path

from lab import ROOT


def cpu() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1] if found else platform.processor() or platform.machine()


def commit() -> str:
    asked = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True)
    return asked.stdout.strip() if asked.returncode == 0 else "not a git checkout"


def machine() -> dict:
    return {"CPU": cpu(), "cores": len(os.sched_getaffinity(0)), "kernel": f"{platform.system()} {platform.release()}",
            "commit": commit(), "date": datetime.date.today().isoformat()}
