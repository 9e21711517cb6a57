# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Numbers before they reach ctypes, which would cut off silently what its type cannot hold."""

from __future__ import annotations

import math
import operator
import re

from . import errors

U32 = 2**32 - 1
U64 = 2**64 - 1
OLDEST_TORCH = (2, 4)


def supported_torch(version: str) -> None:
    """LaconicError (unsupported) for a PyTorch that is older than `OLDEST_TORCH`."""
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < OLDEST_TORCH:
        raise errors.error("unsupported", f"torch {version} is too old", "laconic needs torch 2.4 or newer: pip install --upgrade torch")


def whole(name: str, value, least: int, most: int) -> int:
    """`value` as an int from `least` to `most`; anything else is invalid_argument and names it."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or not least <= number <= most:
        raise errors.error("invalid_argument", f"{name} is {value!r}", f"a whole number from {least} to {most}")
    return number


def finite(name: str, value) -> float:
    """`value` as a float32 that is neither infinite nor NaN."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not abs(number) <= 3.4028234663852886e38:
        raise errors.error("invalid_argument", f"{name} is {value!r}", "a number that float32 can hold")
    return number


def text(name: str, value) -> bytes:
    """`value` as UTF-8 for a NUL-terminated argument."""
    if not isinstance(value, str) or "\0" in value:
        raise errors.error("invalid_argument", f"{name} is {value!r}", "a str without NUL")
    return value.encode(errors="replace")
