# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""A page made of cells: runs that are files of their own, so that a page is made in parts and a part again.

A page that takes hours to make also has a file next to it, NAME.cells, a line of JSON for each cell, from which a fresh checkout restores them.
"""

from __future__ import annotations

import argparse
import json
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
    minutes: int = 0  # on two idle cores; 0 where a page does not list its cells

    @property
    def path(self) -> Path:
        return self.folder / f"{self.name}.json"

    def load(self) -> dict | None:
        return json.loads(self.path.read_text()) if self.path.exists() else None

    def make(self) -> None:
        self.save(self.run())

    def save(self, found: dict) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        tables.write_whole(self.path, json.dumps(found, indent=1) + "\n")


def lines_of(cells: list[Cell]) -> str:
    """A line for each cell that there is."""
    return "".join(json.dumps({"cell": cell.name, **found}, separators=(",", ":")) + "\n" for cell in cells if (found := cell.load()))


def restore(cells: list[Cell], path: Path) -> None:
    """Writes the cells that are missing, of those that the file has a line for."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    found = {line.pop("cell"): line for line in lines}
    for cell in cells:
        if cell.load() is None and cell.name in found:
            cell.save(found[cell.name])


def short(found):
    """With six digits of each figure."""
    if isinstance(found, dict):
        return {key: short(value) for key, value in found.items()}
    if isinstance(found, list):
        return [short(value) for value in found]
    return float(f"{found:.6g}") if isinstance(found, float) else found


def options(prog: str, about: str, arguments=None, *, quick: bool = True, kept: bool = False, data: bool = False) -> argparse.Namespace:
    """kept: cells have their minutes, and the page a file with all of them."""
    parser = argparse.ArgumentParser(prog=prog, description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only the cells whose names begin so, and no page")
    parser.add_argument("--page", action="store_true", help="write the tables only")
    if quick:
        parser.add_argument("--quick", action="store_true", help="minutes, into out/bench")
    if kept:
        parser.add_argument("--list", action="store_true", help="the cells with their minutes on two idle cores, and which are missing")
        parser.add_argument("--restore", action="store_true", help="first take what is missing from the file of cells next to the page")
        parser.add_argument("--out", type=Path, default=tables.RESULTS, metavar="FOLDER", help="of the page (docs/results)")
    if data:
        parser.add_argument("--data", metavar="FILE", help="what is learned from")
    return parser.parse_args(arguments)


def listed(cells: list[Cell]) -> str:
    return "\n".join(f"{cell.name:32} {cell.minutes:3} minutes" + ", missing" * (cell.load() is None) for cell in cells)


def make(cells: list[Cell], given: argparse.Namespace, publish: Callable[[dict], None]) -> int:
    """Makes the chosen cells that are missing, then the page: publish(what each cell gave, or None, by name). The exit status."""
    unknown = [name for name in given.names if not any(cell.name.startswith(name) for cell in cells)]
    for name in unknown:
        print(f"no cell begins with {name}", file=sys.stderr, flush=True)
    failed = bool(unknown)
    for cell in cells:
        if given.page or cell.load() is not None or (given.names and not any(cell.name.startswith(name) for name in given.names)):
            continue
        print(cell.name + f", {cell.minutes} minutes" * bool(cell.minutes), file=sys.stderr, flush=True)
        try:
            cell.make()
        except Exception as error:  # noqa: BLE001  whatever ends a cell's ranks: other cells are made
            failed = True
            print(f"{cell.name} failed: {error}", file=sys.stderr, flush=True)
    if not given.names:
        publish({cell.name: cell.load() for cell in cells})
    return 1 if failed else 0


def make_kept(cells: list[Cell], given: argparse.Namespace, name: str, publish: Callable[[dict], None]) -> int:
    """Also restores and lists, and writes NAME.cells next to the page."""
    file = given.out / f"{name}.cells"
    if given.restore:
        restore(cells, file)
    if given.list:
        print(listed(cells))
        return 0

    def whole(found: dict) -> None:
        publish(found)
        tables.write_whole(file, lines_of(cells))

    return make(cells, given, whole)
