# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Shared by several tests of the lab."""

import os
import pathlib
import time

PER_PACKET = 1448 / 1514  # TCP payload of a full frame
TRANSFER = str(pathlib.Path(__file__).with_name("transfer.py"))


def processes_with(marker):
    """Process numbers whose command line contains `marker`."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if marker.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            pass
    return [pid for pid in found if pid != os.getpid()]


def until(*paths):
    """A line of the shell that waits until all of them are there."""
    return "; ".join(f"until [ -e {path} ]; do sleep 0.02; done" for path in paths)


def wait_for(path):
    """A COMMAND that ends well when `path` is there."""
    return ["--", "sh", "-c", until(path)]


def children_of(pid):
    return [int(word) for word in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def eventually(condition, limit=100.0):
    """Whether `condition` becomes true; the limit is only there to end a failing test."""
    end = time.monotonic() + limit
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True
