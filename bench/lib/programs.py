# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Running what measures. A program that fails costs its own figures, never the run."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GRACE = 30  # seconds that what began within the budget may go on after it


class ProgramError(Exception):
    pass


class TooSlow(ProgramError):
    pass


@dataclass
class Programs:
    """The programs of one build, with a record of what went wrong."""
    build: Path
    budget: float  # seconds from now
    failures: list = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    def elapsed(self) -> float:
        return time.monotonic() - self.started

    def time_left(self) -> float:
        return self.budget + GRACE - self.elapsed()

    def run(self, words: list) -> dict:
        """The program's JSON. Raises ProgramError with a message."""
        words = [str(word) for word in words]
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=max(1, self.time_left()), cwd=ROOT,
                                  env={**os.environ, "PYTHONWARNINGS": "ignore"})
            if done.returncode == 0:
                return json.loads(done.stdout)
            reason = (done.stderr or done.stdout).strip()[-400:] or f"exit status {done.returncode}"
        except subprocess.TimeoutExpired:
            raise TooSlow("not finished when the time was over") from None
        except (OSError, ValueError) as error:
            reason = str(error)
        raise ProgramError(reason)

    def attempt(self, words: list) -> dict:
        """As run, but a failure is only recorded: the answer is then empty."""
        try:
            return self.run(words)
        except ProgramError as error:
            self.failures.append({"command": self.shown([str(w) for w in words]), "reason": str(error)})
            return {}

    def binary(self, name: str) -> Path:
        return self.build / "bin" / name

    def shown(self, words: list) -> str:
        return shlex.join(w for w in words if w != "--json").replace(f"{ROOT}/", "")

    # ---- each program ----

    def bench(self, specs, size: int, isa: str, seconds: float, *more) -> list:
        """Points of `laconic bench`. When one spec fails, the others are measured without it."""
        head = [self.binary("laconic"), "bench", "--json", "--size", size_word(size), "--isa", isa, "--seconds",
                seconds, *more]
        words = head + with_flag("--spec", specs)
        try:
            return self.run(words)["results"]
        except TooSlow as error:
            self.failures.append({"command": self.shown([str(w) for w in words]), "reason": str(error)})
            return []
        except ProgramError:
            each = [self.attempt(head + ["--spec", spec]) for spec in specs]
            return [point for answer in each for point in answer.get("results", [])]

    def points(self, name: str, *words) -> list:
        return self.answer(name, *words).get("points", [])

    def answer(self, name: str, *words) -> dict:
        return self.attempt([self.binary(name), *words])


def with_flag(flag: str, values) -> list:
    return [word for value in values for word in (flag, value)]


def size_word(size: int) -> str:
    for factor, suffix in ((1 << 20, "Mi"), (1 << 10, "Ki")):
        if size % factor == 0:
            return f"{size // factor}{suffix}"
    return str(size)
