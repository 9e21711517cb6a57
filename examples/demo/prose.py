# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Words, lines and tables of pages in Markdown."""

from __future__ import annotations

import textwrap


def listed(names, nothing: str = "") -> str:
    """a, b and c; `nothing` of no names."""
    names = list(names)
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]])) or nothing


def wrapped(line: str, indent: str = "") -> str:
    return textwrap.fill(line, 130, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def bullets(lines) -> str:
    return "\n".join(wrapped(f"- {line}", "  ") for line in lines)


def table(head, rows, left: int = 1) -> str:
    """`left` columns of words, the others of numbers."""
    rule = "|---" * left + "|---:" * (len(head) - left) + "|"
    lines = ["| " + " | ".join(head) + " |", rule]
    return "\n".join(lines + ["| " + " | ".join(str(c).replace("|", "\\|") for c in row) + " |" for row in rows])
