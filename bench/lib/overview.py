# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Several networks at a glance: which exchange reaches the target first on each, and by how much."""

from __future__ import annotations

from dataclasses import dataclass

from bench.lib import charts, columns
from bench.lib.network import rate_text
from bench.lib.results import REFERENCE, Results, Row


@dataclass
class Lead:
    """On one network. What nothing reached, or nothing can be compared with, is None."""

    network: str
    first: Row | None
    runner_up: Row | None
    over_reference: float | None  # times sooner
    over_runner_up: float | None


def times_sooner(first: Row, other: Row | None) -> float | None:
    known = other is not None and other.time_to_target is not None and first.time_to_target
    return other.time_to_target / first.time_to_target if known else None


def lead(results: Results) -> Lead:
    timed = sorted((r for r in results.rows if r.time_to_target is not None), key=lambda r: r.time_to_target)
    if not timed:
        return Lead(results.network, None, None, None, None)
    first, runner_up = timed[0], timed[1] if len(timed) > 1 else None
    reference = next(r for r in results.rows if r.spec == REFERENCE)
    return Lead(results.network, first, runner_up, times_sooner(first, reference), times_sooner(first, runner_up))


def rows_of(views: list[Results]) -> list[list[str]]:
    target = views[0].target.replace(" ", "\u00a0")
    head = ["network", f"first to {target}", "time", "× sooner than fp32 DDP", "× sooner than the runner-up", "runner-up"]
    return [head, *(cells(lead(results)) for results in views)]


def cells(found: Lead) -> list[str]:
    if found.first is None:
        return [rate_text(found.network), "not reached", *[columns.MISSING] * 4]
    ratios = [columns.MISSING if ratio is None else f"{ratio:.1f}" for ratio in (found.over_reference, found.over_runner_up)]
    return [rate_text(found.network), found.first.label, columns.seconds_text(found.first), *ratios,
            found.runner_up.label if found.runner_up else columns.MISSING]


def heat_map(views: list[Results]) -> str:
    """Times to the target, exchanges by networks."""
    labels = [row.label for row in views[0].rows]
    values = [[results.rows[i].time_to_target for results in views] for i in range(len(labels))]
    networks = [rate_text(results.network) for results in views]
    return charts.heat_map(labels, networks, values, title(views), lambda seconds: f"{seconds:.1f} s")


def title(views: list[Results]) -> str:
    return f"Time to {views[0].target}" + (", emulated" if views[0].emulated else "")


def text(views: list[Results]) -> str:
    parts = [*([columns.text_of_rows(rows_of(views))] if views[0].learned else []), "\n".join(columns.shared_notes(views[0]))]
    for results in views:
        parts += [rate_text(results.network), columns.text_of_rows(columns.rows_of(results)), columns.best_uncompressed(results),
                  *columns.bound_text(results)]
    return "\n\n".join(parts)
