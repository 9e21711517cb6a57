# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Puts the tables of result files into their pages. What stands around them is written by hand.

    python -m bench.lib.tables [FOLDER]            every page of docs/results
    python -m bench.lib.tables --check [FOLDER]    writes nothing; fails where a page does not show what its file says

NAME.json has the figures of NAME.md: {"command": ..., "tables": {KEY: {"columns": [[HEADING, FORMAT]...], "rows": [[CELL...]...]}}}. A cell is
text, a number, a list of numbers or null; FORMAT, a format string of Python, writes numbers and lists: {:s3} with three significant digits, {:d1}
with one decimal below 100. A table replaces what stands in the page between `<!-- table: KEY -->` and `<!-- end -->`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import string
import sys
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
PLACE = re.compile(r"<!-- table: ([^>]+) -->\n.*?<!-- end -->", re.S)
NUMBER = re.compile(r"[*+-]*\d[^A-Za-z:]*((points|ms|s)\W*)?")
MISSING = "–"


def rounded(cell):
    """To eight digits."""
    if isinstance(cell, list):
        return [rounded(each) for each in cell]
    return float(f"{cell:.8g}") if isinstance(cell, float) else cell


def table(columns, rows) -> dict:
    """A column is a heading, or (heading, format)."""
    rows = [[rounded(cell) for cell in row] for row in rows]
    if any(len(row) != len(columns) for row in rows):
        raise ValueError(f"a row of another length than {columns}")
    return {"columns": [[c, ""] if isinstance(c, str) else list(c) for c in columns], "rows": rows}


def of_pairs(pairs) -> dict:
    """Two columns without headings."""
    return table(["", ""], ([str(key), str(value)] for key, value in pairs))


class Figures(string.Formatter):
    def format_field(self, value, form: str) -> str:
        if form == "s3":
            return f"{value:,.{max(2 - math.floor(math.log10(abs(value) or 1)), 0)}f}"
        if form == "d1":
            return f"{value:,.{1 if abs(value) < 100 else 0}f}"
        return super().format_field(value, form)


def shown(cell, form: str) -> str:
    if cell is None:
        return MISSING
    if isinstance(cell, str):
        return cell
    return Figures().format(form or "{}", *(cell if isinstance(cell, list) else [cell]))


def is_numeric(heading: str, *cells) -> bool:
    """Whether most texts of a column are numbers with words, or some cell is one."""
    if any(not isinstance(cell, str | None) for cell in cells):
        return True
    texts = [cell for cell in cells if cell]
    return bool(heading) and 2 * sum(bool(NUMBER.fullmatch(text)) for text in texts) > len(texts)


def markdown(found: dict) -> str:
    """Columns of numbers are right-aligned."""
    columns = found["columns"]
    rows = [[shown(cell, form) for cell, (_, form) in zip(row, columns)] for row in found["rows"]]
    numbers = [is_numeric(heading, *cells) for (heading, _), *cells in zip(columns, *found["rows"])]
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in [[heading for heading, _ in columns], *rows]]
    return "\n".join([lines[0], "".join("|---:" if right else "|---" for right in numbers) + "|", *lines[1:]])


def filled(page: str, tables: dict) -> str:
    """The page with these tables, followed by those that have no marked position."""
    missing = [key for key in tables if f"<!-- table: {key} -->\n" not in page]
    for key in missing:
        page += f"\n## {key[0].upper()}{key[1:]}\n\n<!-- table: {key} -->\n<!-- end -->\n"

    def place(found) -> str:
        inside = markdown(tables[found[1]]) if found[1] in tables else "Not measured."
        return f"<!-- table: {found[1]} -->\n{inside}\n<!-- end -->"

    return PLACE.sub(place, page)


def write_whole(path: Path, text: str) -> None:
    """The file is the old one or the new one, never a part."""
    part = path.with_name(f".{path.name}")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)


def laid_out(results: dict) -> str:
    """A row a line."""
    def rows(found):
        return ",\n".join("   " + json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in found)

    parts = [f' {json.dumps(key, ensure_ascii=False)}: {{"columns": {json.dumps(found["columns"], ensure_ascii=False)},\n  "rows": [\n{rows(found["rows"])}]}}'
             for key, found in results["tables"].items()]
    return f'{{"command": {json.dumps(results["command"])},\n"tables": {{\n' + ",\n".join(parts) + "}}\n"


def publish(folder: Path, name: str, command: str, tables: dict, keep: bool = False) -> Path:
    """Writes the result file and the page; `keep`: tables that are not given stay as they were. Gives the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    data, page = folder / f"{name}.json", folder / f"{name}.md"
    before = json.loads(data.read_text(encoding="utf-8"))["tables"] if keep and data.exists() else {}
    results = {"command": command, "tables": {**before, **tables}}
    write_whole(data, laid_out(results))
    text = page.read_text(encoding="utf-8") if page.exists() else f"# {name}\n\n```\n{command}\n```\n"
    write_whole(page, filled(text, results["tables"]))
    return page


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.lib.tables", description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=RESULTS)
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args(arguments)
    differ = []
    for data in sorted(given.folder.glob("*.json")):
        page = data.with_suffix(".md")
        text = page.read_text(encoding="utf-8")
        wanted = filled(text, json.loads(data.read_text(encoding="utf-8"))["tables"])
        if wanted != text:
            differ.append(page)
            if not given.check:
                write_whole(page, wanted)
    for page in differ:
        print(f"{page}: {'does not show its figures: python -m bench.lib.tables' if given.check else 'written'}", file=sys.stderr)
    return 1 if given.check and differ else 0


if __name__ == "__main__":
    sys.exit(main())
