# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Charts as files of their own: with a title, a ground, and the colours of the page."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import charts
from charts import Axis, Series

_HERE = Path(__file__).parent


def inside(chart: str) -> str:
    return chart[chart.index(">") + 1 : chart.rindex("</svg>")]


def style() -> str:
    """The page's colours and what charts make of them."""
    css = "".join((_HERE / name).read_text(encoding="utf-8") for name in ("page.css", "chart.css"))
    return f"<style>{css[: css.index('body {')]}{css[css.index('svg text'):]}</style>"


def on_ground(body: list[str], height: int, title: str, width: int) -> str:
    """As it is, with the page's colours behind it."""
    ground = f'<rect width="{width}" height="{height}" rx="8" style="fill: var(--paper)"/>'
    return charts.svg([style(), ground, *body], height, title, width)


def standing_alone(body: list[str], title: str, width: int, height: int) -> str:
    return on_ground([charts.text(52, 26, title, "start", "title"), f'<g transform="translate(0 36)">{"".join(body)}</g>'],
                     height + 40, title, width)


def of_chart(chart: str, title: str) -> str:
    width, height = map(int, re.match(r'<svg viewBox="0 0 (\d+) (\d+)"', chart).groups())
    return standing_alone([inside(chart)], title, width, height)


@dataclass
class Panel:
    """One of several charts, over steps if nothing else is said."""

    name: str
    series: list[Series]
    low: float
    high: float
    x_label: str = "steps"


_HIGH, _LEFT, _GAP, _TOP = 150, 60, 76, 92


def panels(title: str, legend: list[tuple[str, str]], rows: list[list[Panel]], y_text, log: bool = False,
           target: float | None = None, width: int = 400) -> str:
    """Charts of `width` in rows; a panel without points leaves its place free."""
    whole, step = _LEFT + max(map(len, rows)) * (width + _GAP) - _GAP + 24, _HIGH + 72
    body = [charts.text(_LEFT, 28, title, "start", "title")]
    place = _LEFT
    for label, colour in legend:
        body += [f'<g class="series {colour}"><polyline points="{place},48 {place + 24},48"/></g>',
                 charts.text(place + 30, 52, label, "start", "row")]
        place += 48 + 7 * len(label)
    for r, row in enumerate(rows):
        for c, panel in enumerate(row):
            left = _LEFT + c * (width + _GAP)
            body += panel_body(panel, left, left + width, _TOP + r * step, y_text, log, target)
    return on_ground(body, _TOP + len(rows) * step, title, whole)


def panel_body(panel: Panel, left: int, right: int, top: int, y_text, log: bool, target: float | None) -> list[str]:
    series = [s for s in panel.series if s.points]
    if not series:
        return []
    x = Axis(0.0, max(px for s in series for px, _ in s.points) or 1, left, right)
    y = Axis(panel.low, panel.high, top + _HIGH, top, log)
    body = [*charts.frame(x, y, panel.x_label, y_text), charts.text(left, top - 8, panel.name, "start", "name")]
    if target is not None:
        body.append(charts.line(x.begin, y.at(target), x.end, y.at(target), "target"))
    for s in series:
        points = " ".join(f"{x.at(px):.1f},{y.at(min(max(py, panel.low), panel.high)):.1f}" for px, py in s.points)
        body.append(f'<g class="series {s.style}"><polyline points="{points}"/></g>')
    return body
