# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""A page made of cells: runs that are files of their own, so that a page is made in parts and a part again."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

from bench.lib import tables


class CellError(Exception):
    """A run that cannot be made here; its text says why."""


@dataclass(frozen=True)
class Cell:
    name: str
    run: Callable[[], dict]
    folder: Path

    @property
    def path(self) -> Path:
        return self.folder / f"{self.name}.json"

    def load(self) -> dict | None:
        return json.loads(self.path.read_text()) if self.path.exists() else None

    def make(self) -> None:
        found = self.run()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        tables.write_whole(self.path, json.dumps(found, indent=1) + "\n")


def options(prog: str, about: str, arguments=None, *, quick: bool = True) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=prog, description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only the cells whose names begin so, and no page")
    parser.add_argument("--page", action="store_true", help="write the tables only")
    if quick:
        parser.add_argument("--quick", action="store_true", help="minutes, into out/bench")
    return parser.parse_args(arguments)


def make(cells: list[Cell], given: argparse.Namespace, publish: Callable[[dict], None]) -> int:
    """Makes the chosen cells that are missing, then the page: publish(what each cell gave, or None, by name). The exit status."""
    failed = False
    for cell in cells:
        if given.page or cell.load() is not None or (given.names and not any(cell.name.startswith(name) for name in given.names)):
            continue
        print(cell.name, file=sys.stderr, flush=True)
        try:
            cell.make()
        except (CellError, subprocess.TimeoutExpired, ValueError, OSError) as error:
            failed = True
            print(f"{cell.name} failed: {error}", file=sys.stderr, flush=True)
    if not given.names:
        publish({cell.name: cell.load() for cell in cells})
    return 1 if failed else 0
