# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Texts that all ranks of an engine exchange, and ranks in a text. No torch in here."""

from __future__ import annotations


def gather_texts(engine, text: str, limit: int = 500) -> list[str]:
    """Every rank's text, cut to `limit` bytes, in rank order."""
    texts = engine.gather_bytes(text.encode()[:limit].ljust(limit, b"\0"))
    return [texts[limit * r : limit * (r + 1)].rstrip(b"\0").decode(errors="replace") for r in range(engine.world)]


def listed(ranks: list[int], limit: int = 8) -> str:
    return ", ".join(map(str, ranks[:limit])) + (f" and {len(ranks) - limit} more" if len(ranks) > limit else "")
