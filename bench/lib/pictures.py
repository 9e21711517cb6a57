# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Charts as files of their own: with a title, a ground, and the colours of the page."""

from __future__ import annotations

import re
from pathlib import Path

from bench.lib import charts

_HERE = Path(__file__).parent


def colours() -> str:
    """The style sheet of a page with charts."""
    return "".join((_HERE / name).read_text(encoding="utf-8") for name in ("page.css", "chart.css"))


def inside(chart: str) -> str:
    return chart[chart.index(">") + 1 : chart.rindex("</svg>")]


def style() -> str:
    """The page's colours and what charts make of them."""
    css = colours()
    return f"<style>{css[: css.index('body {')]}{css[css.index('svg text'):]}</style>"


def on_ground(body: list[str], height: int, title: str, width: int) -> str:
    """The picture unchanged, on the page's background."""
    ground = f'<rect width="{width}" height="{height}" rx="8" style="fill: var(--paper)"/>'
    return charts.svg([style(), ground, *body], height, title, width)


def standing_alone(body: list[str], title: str, width: int, height: int) -> str:
    return on_ground([charts.text(52, 26, title, "start", "title"), f'<g transform="translate(0 36)">{"".join(body)}</g>'],
                     height + 40, title, width)


def of_chart(chart: str, title: str) -> str:
    width, height = map(int, re.match(r'<svg viewBox="0 0 (\d+) (\d+)"', chart).groups())
    return standing_alone([inside(chart)], title, width, height)
