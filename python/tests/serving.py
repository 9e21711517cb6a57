# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Aggregation servers for tests."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BINARY = Path(os.environ.get("LACONIC_CLI", ROOT / "build" / "release" / "bin" / "laconic"))


class Server:
    """`laconic serve` on the loopback. `address`: where it listens, also after a restart."""

    def __init__(self, *words, bind: str = "127.0.0.1:0"):
        self._words = words
        self._start(bind)

    def _start(self, bind: str) -> None:
        self.process = subprocess.Popen([BINARY, "serve", "--json", "--bind", bind, *map(str, self._words)],
                                        stdout=subprocess.PIPE, text=True)
        self.address = json.loads(self.process.stdout.readline())["serving"]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def restart(self) -> None:
        self.kill()
        self._start(self.address)


@contextlib.contextmanager
def servers(count: int = 1, *words):
    started = [Server(*words) for _ in range(count)]
    try:
        yield started
    finally:
        for server in started:
            server.kill()


def listed(started) -> str:
    return ",".join(server.address for server in started)


def new_token(path: Path) -> Path:
    subprocess.run([BINARY, "serve", "--new-token", path], check=True, capture_output=True)
    return path
