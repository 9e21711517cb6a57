# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The results as columns: for the terminal, for the page, for result files."""

from __future__ import annotations

from bench.lib.results import Results, Row

NOTE_PRODUCT = "* steps to the target, from the run without a limit, times the median step"
MISSING = "–"


def milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms" if seconds < 0.1 else f"{1e3 * seconds:,.0f} ms"


def bytes_text(count: float | None) -> str:
    return MISSING if count is None else f"{count:,.0f}"


def seconds_text(row: Row) -> str:
    if row.time_to_target is None:
        return "not reached" if row.curve else MISSING
    return f"{row.time_to_target:.1f} s" + ("*" if row.time_is_product else "")


def columns(results: Results) -> list[str]:
    target = results.target.replace(" ", "\u00a0")
    return ["exchange", "step (median)", "bytes a step, kernel", "bytes a step, Laconic", f"steps to {target}",
            f"time to {target}", f"final {results.quality.name}", "× fp32 DDP", "× best uncompressed"]


def cells(results: Results, row: Row) -> list[str]:
    own = bytes_text(row.own_bytes) + ("†" if row.spec.startswith("pytorch:") else "")
    steps = MISSING if row.steps_to_target is None else str(row.steps_to_target)
    return [row.label, milliseconds(row.step), bytes_text(row.kernel_bytes), own, steps, seconds_text(row),
            MISSING if row.final is None else results.quality.text(row.final), f"{row.speedup:.1f}",
            f"{row.speedup_uncompressed:.1f}"]


def best_uncompressed(results: Results) -> str:
    return f"Best uncompressed, 16-bit floats included: {results.best_uncompressed}."


EMULATED = "EMULATED: senders wait as long as their bytes would take; no network was shaped or counted."
COMPUTED = "† Computed, as a ring's all-reduce. The kernel counts whole Ethernet frames, acknowledgements included."
FINAL = "Final: the mean of the last five evaluations of a run without a limit, over all seeds."
HOOK = "PyTorch's PowerSGD hook sends its first two steps uncompressed: it does not start earlier."


def shared_notes(results: Results) -> list[str]:
    """Notes that hold for all networks."""
    found = [EMULATED] * results.emulated + ([NOTE_PRODUCT + ".", COMPUTED, FINAL] if results.learned else [COMPUTED, "Times only: nothing was learned."])
    if results.none_ratio is not None:
        found.append(f"Laconic none against plain DDP, unshaped: {results.none_ratio:.3f} of its step (median of {len(results.none_ratios)} alternating pairs).")
    return found + [HOOK] * any(row.spec == "pytorch:powersgd" for row in results.rows)


def notes(results: Results) -> list[str]:
    return [*shared_notes(results), best_uncompressed(results)]


BOUNDS = "What the codec's own work costs"
ABOUT_BOUNDS = ("Without codec work: as many zero bytes as the exchange sends, in as many rounds, and the gradients as they are. The "
                "difference is what encoding and decoding cost; below zero it is noise.")


def bound_rows(results: Results) -> list[list[str]]:
    """Nothing where nothing was measured."""
    rows = [[row.label, milliseconds(row.step), milliseconds(row.bound), f"{1e3 * (row.step - row.bound):,.1f} ms"]
            for row in results.rows if row.bound is not None]
    return [["exchange", "step", "the same bytes, no codec work", "difference"], *rows] if rows else []


def text(results: Results) -> str:
    return "\n\n".join([text_of_rows(rows_of(results)), "\n".join(notes(results)), *bound_text(results)])


def bound_text(results: Results) -> list[str]:
    rows = bound_rows(results)
    return [BOUNDS, text_of_rows(rows), ABOUT_BOUNDS] if rows else []


def rows_of(results: Results) -> list[list[str]]:
    return [columns(results)] + [cells(results, row) for row in results.rows]


def text_of_rows(rows: list[list[str]]) -> str:
    """The first one is the head."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]

    def line(row):
        return "  ".join([row[0].ljust(widths[0])] + [c.rjust(w) for c, w in zip(row[1:], widths[1:])])

    return "\n".join([line(rows[0]), "  ".join("─" * w for w in widths), *map(line, rows[1:])])
