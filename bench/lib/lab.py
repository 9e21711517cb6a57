# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Runs the workers in `laconic lab` and follows what they say. Whatever ends this process ends the lab."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_LINE = re.compile(r"^(?:\[(\d+)\] )?(.*)$")


class DemoError(Exception):
    """A message for the user."""


def laconic_command() -> str:
    """LACONIC_BIN, this checkout's release build, or the one that is installed."""
    for found in (os.environ.get("LACONIC_BIN"), ROOT / "build/release/bin/laconic", shutil.which("laconic")):
        if found and os.access(found, os.X_OK):
            return str(found)
    raise DemoError("the laconic command is not built yet: run `make build`, or set LACONIC_BIN to its path")


def lab_works(command: str) -> bool:
    return subprocess.run([command, "lab", "--check"], capture_output=True).returncode == 0


class Progress:
    """One line that changes on a terminal; elsewhere a line for each thing done."""

    def __init__(self, stream=sys.stderr):
        self.stream, self.live = stream, stream.isatty()

    def show(self, event: dict) -> None:
        text = f"{event['phase']:>8} {event['done']:3}/{event['total']:<3} {event['text']}"
        if self.live:
            width = shutil.get_terminal_size().columns
            print("\r\033[K" + text[: width - 1], end="", file=self.stream, flush=True)
        else:
            print(text, file=self.stream, flush=True)

    def clear(self) -> None:
        if self.live:
            print("\r\033[K", end="", file=self.stream, flush=True)

    def say(self, line: str) -> None:
        self.clear()
        print(line, file=self.stream, flush=True)


def environment(root: Path) -> dict:
    """Workers find this checkout's packages first; one thread each, as they share cores."""
    found = dict(os.environ, OMP_NUM_THREADS="1", PYTHONUNBUFFERED="1")
    found.pop("LACONIC_BIN", None)  # ours, not the library's
    paths = [str(root), str(root / "python"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**found, "PYTHONPATH": os.pathsep.join(paths)}


def run_lab(command: str, hosts: int, worker: list[str], timeout: float, emulate: bool, progress: Progress,
            switch: str | None = None) -> dict:
    """Gives what the lab says at the end: --json, see lab/README.md. `switch`: what runs in the switch."""
    words = [command, "lab", "--hosts", str(hosts), "--json", "--timeout", f"{timeout:.0f}s"]
    words += ["--emulate"] if emulate else []
    words += ["--switch", switch] if switch else []
    # Its own session: Ctrl-C comes here, and we pass it on once.
    # A file: with a line for each change of the rate the result is longer than a pipe, which nothing reads before the end of stderr.
    with tempfile.TemporaryFile("w+", encoding="utf-8") as result:
        process = subprocess.Popen([*words, "--", *worker], stdout=result, stderr=subprocess.PIPE, text=True, env=environment(ROOT), start_new_session=True)
        errors: list[str] = []
        try:
            for line in process.stderr:
                _follow(line.rstrip("\n"), progress, errors)
            process.wait()
        except BaseException:
            _stop(process)
            raise
        finally:
            progress.clear()
        result.seek(0)
        answer = json.loads(result.read() or "{}")
    if process.returncode != 0:
        said = answer.get("error", {}).get("message", f"the lab ended with {process.returncode}")
        raise DemoError(errors[0] if errors else said)
    return answer


def _follow(line: str, progress: Progress, errors: list[str]) -> None:
    rank, text = _LINE.match(line).groups()
    if not text.startswith("@demo "):
        progress.say(line)
        return
    event = json.loads(text[len("@demo "):])
    if "error" in event:
        errors.append(f"worker {rank}: {event['error']}")
    else:
        progress.show(event)


def _stop(process: subprocess.Popen) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()  # the lab is in a namespace that dies with it
            process.wait()
