# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Charts as SVG text. Colours and type are the page's: every mark has a class, nothing has its own colour."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape

WIDTH = 620
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 14, 12, 42


@dataclass
class Series:
    label: str
    style: str  # class of its colour
    points: list[tuple[float, float]]


def number(value: float) -> str:
    """Short, for an axis: 0.1, 1, 10, 100 k, 1 M."""
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


class Axis:
    """From values to places; `low` may be the larger one. `log` axes have ticks at powers of ten, or 1, 2 and 5 times those; linear ones, and
    short ones, at round steps."""

    def __init__(self, low: float, high: float, begin: float, end: float, log: bool = False):
        self.log, self.low, self.high, self.begin, self.end = log, low, high, begin, end

    def at(self, value: float) -> float:
        if self.log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.begin + share * (self.end - self.begin)

    def ticks(self) -> list[float]:
        if self.log:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            decades = [10.0**e for e in range(first, last + 1)]
            if len(decades) > 2:
                return decades
            few = [m * d for d in [10.0 ** (first - 1), *decades] for m in (1, 2, 5) if self.low <= m * d <= self.high]
            if len(few) > 1:
                return few
        low, high = sorted((self.low, self.high))
        span = high - low
        step = 10.0 ** math.floor(math.log10(span / 4))
        step *= next(m for m in (1, 2, 2.5, 5, 10) if span / (step * m) <= 6)
        count = math.floor((high + 1e-9) / step) - math.ceil((low - 1e-9) / step)
        return [(math.ceil((low - 1e-9) / step) + i) * step for i in range(count + 1)]


def svg(body: list[str], height: int, title: str, width: int = WIDTH) -> str:
    return (f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}" '
            f'xmlns="http://www.w3.org/2000/svg">' + "".join(body) + "</svg>")


def text(x: float, y: float, words: str, anchor: str = "middle", style: str = "tick") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{style}">{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{style}"/>'


def frame(x: Axis, y: Axis, x_label: str, y_text=None) -> list[str]:
    """Grid, ticks and the name of the horizontal axis; the vertical one has ticks if `y_text` writes them."""
    body = []
    for value in y.ticks() if y_text else ():
        body += [line(x.begin, y.at(value), x.end, y.at(value), "grid"),
                 text(x.begin - 8, y.at(value) + 4, y_text(value), "end")]
    for value in x.ticks():
        body += [line(x.at(value), y.begin, x.at(value), y.end, "grid"),
                 text(x.at(value), y.begin + 17, number(value) if x.log else f"{value:,g}")]
    return [*body, text((x.begin + x.end) / 2, y.begin + 36, x_label, style="name")]


def curves(series: list[Series], title: str, x_label: str, target: float, y_text, bottom: float, top: float,
           log: bool = False, height: int = 330) -> str:
    """From `bottom` to `top`, which may be less; `target` as a broken line."""
    values = [px for s in series for px, _ in s.points if px > 0]
    x_low = min(values) if log else 0.0
    x = Axis(x_low, max(values), _LEFT, WIDTH - _RIGHT, log)
    y = Axis(bottom, top, height - _BOTTOM, _TOP)
    least, most = sorted((bottom, top))
    body = frame(x, y, x_label, y_text)
    body += [line(x.begin, y.at(target), x.end, y.at(target), "target")]
    for s in series:
        points = [(x.at(px), y.at(min(max(py, least), most))) for px, py in s.points if px >= x_low and px > 0]
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in points)
        body.append(f'<g class="series {s.style}"><title>{escape(s.label)}</title>'
                    f'<polyline points="{path}" class="halo"/><polyline points="{path}"/></g>')
    return svg(body, height, title)


_ROW = 26
_NAMES = 205  # width of the column of names, at least


def _names_width(names: list[str]) -> int:
    """For DejaVu Sans, the widest font that chart.css names."""
    return max(_NAMES, 14 + math.ceil(6.2 * max(map(len, names), default=0)))


def stacked(rows: list[tuple[str, list[tuple[str, float]]]], title: str, x_label: str, unit: float = 1e3) -> str:
    """A bar per row, made of (class, value) parts, followed by their sum."""
    height, names = len(rows) * _ROW + _TOP + _BOTTOM, _names_width([name for name, _ in rows])
    longest = max(sum(v for _, v in parts) for _, parts in rows)
    x = Axis(0.0, longest * unit * 1.12, names, WIDTH - _RIGHT)
    y = Axis(0.0, 1.0, height - _BOTTOM, _TOP)
    body = frame(x, y, x_label)
    for i, (name, parts) in enumerate(rows):
        top, at = _TOP + i * _ROW + 4, 0.0
        body.append(text(names - 8, top + 14, name, "end", "row"))
        for style, value in parts:
            begin, end = x.at(at * unit), x.at((at + value) * unit)
            body.append(f'<rect x="{begin:.1f}" y="{top}" width="{max(end - begin, 0):.1f}" height="{_ROW - 8}" '
                        f'class="{style}"><title>{escape(f"{name}, {style}: {value * unit:.1f}")}</title></rect>')
            at += value
        body.append(text(x.at(at * unit) + 5, top + 14, f"{at * unit:,.0f}" if at * unit >= 100 else f"{at * unit:.1f}",
                         "start"))
    return svg(body, height, title)


def dots(rows: list[tuple[str, str, float, float | None]], title: str, x_label: str) -> str:
    """On a logarithmic axis per row: a full dot (counted by the kernel) and a ring (own count); nothing for 0."""
    height, names = len(rows) * _ROW + _TOP + _BOTTOM, _names_width([row[0] for row in rows])
    values = [v for _, _, *pair in rows for v in pair if v] or [1.0]
    x = Axis(10 ** math.floor(math.log10(min(values))), max(values) * 2.6, names, WIDTH - _RIGHT, log=True)
    y = Axis(0.0, 1.0, height - _BOTTOM, _TOP)
    body = frame(x, y, x_label)
    for i, (name, style, own, kernel) in enumerate(rows):
        middle = _TOP + i * _ROW + _ROW / 2
        end = x.at(kernel or own or x.low)
        body += [text(names - 8, middle + 4, name, "end", "row"), line(x.begin, middle, end, middle, "stem")]
        if own:
            body.append(f'<circle cx="{x.at(own):.1f}" cy="{middle:.1f}" r="6" class="ring {style}"/>')
        if kernel:
            body.append(f'<circle cx="{end:.1f}" cy="{middle:.1f}" r="3.5" class="dot {style}"/>')
        body.append(text(end + 12, middle + 4, number(float(f"{kernel or own:.3g}")) + "B", "start"))
    return svg(body, height, title)


HEAT_LEVELS = 6
_CELL = 84


def heat_level(value: float, best: float) -> int:
    """0 near the best; each level more is twice the value, the last one has no end."""
    if value <= best:
        return 0
    return min(HEAT_LEVELS - 1, round(math.log2(value / best))) if best > 0 else HEAT_LEVELS - 1


def heat_map(rows: list[str], columns: list[str], values: list[list[float | None]], title: str, cell_text) -> str:
    """values[row][column], less is better, None where it is not reached; colours compare within a column."""
    head, names = 16 + _TOP, _names_width(rows)
    cell = max(_CELL, (WIDTH - names - _RIGHT) // len(columns))
    body = [text(names + (j + 0.5) * cell, head - 8, column) for j, column in enumerate(columns)]
    known = [[value for value in column if value is not None] for column in zip(*values)]
    for i, (row, line_of) in enumerate(zip(rows, values)):
        top = head + i * _ROW
        body.append(text(names - 8, top + 17, row, "end", "row"))
        for j, value in enumerate(line_of):
            style = "heat none" if value is None else f"heat h{heat_level(value, min(known[j]))}"
            words = "not reached" if value is None else cell_text(value)
            label = "cell best" if value is not None and value == min(known[j]) else "cell"
            about = escape(f"{row}, {columns[j]}: {words}")
            body += [f'<rect x="{names + j * cell + 1}" y="{top + 1}" width="{cell - 2}" height="{_ROW - 2}" rx="3" '
                     f'class="{style}"><title>{about}</title></rect>',
                     text(names + (j + 0.5) * cell, top + 17, words, style=label)]
    bottom = head + len(rows) * _ROW + 12
    return svg([*body, *heat_legend(bottom)], bottom + 26, title, max(WIDTH, names + len(columns) * cell + _RIGHT))


def heat_legend(top: int) -> list[str]:
    body = [text(_NAMES - 8, top + 13, "times the column's best", "end", "name")]
    for level in range(HEAT_LEVELS):
        words = f"{2**level}×" + (" and more" if level == HEAT_LEVELS - 1 else "")
        x = _NAMES + 58 * level
        body += [f'<rect x="{x + 1}" y="{top}" width="18" height="18" rx="3" class="heat h{level}"/>',
                 text(x + 24, top + 13, words, "start")]
    return body
