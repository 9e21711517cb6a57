# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""LaconicError: the only exception class of this package."""

from __future__ import annotations

#: Stable names and their numbers: docs/format/ERRORS.md, and what laconic_error_name says.
CODES = {
    "ok": 0,
    "invalid_argument": 1,
    "spec_syntax": 2,
    "unknown_codec": 3,
    "unknown_key": 4,
    "value_out_of_range": 5,
    "dtype_unsupported": 6,
    "shape_unsupported": 7,
    "buffer_too_small": 8,
    "unsupported": 9,
    "frame_truncated": 20,
    "frame_extended": 21,
    "frame_magic": 22,
    "frame_version": 23,
    "frame_field": 24,
    "frame_checksum": 25,
    "frame_codec": 26,
    "frame_count": 27,
    "payload_malformed": 28,
    "bound_exceeded": 29,
    "non_finite": 40,
    "ranks_disagree": 60,
    "peer_failed": 61,
    "engine_failed": 62,
    "timed_out": 63,
    "exchange_order": 64,
    "residuals_left": 65,
    "state_version": 80,
    "state_corrupt": 81,
    "state_rank": 82,
    "state_world": 83,
    "state_model": 84,
    "state_spec": 85,
    "out_of_memory": 100,
    "internal": 101,
}


class LaconicError(RuntimeError):
    """A failure with a stable number.

    Attributes: `code` (int, docs/format/ERRORS.md), `name` (stable identifier), `message`, `hint` (what to try next).
    """

    __module__ = "laconic"  # tracebacks and pickles name it as users do

    def __init__(self, code: int, name: str, message: str, hint: str = ""):
        self.code = code
        self.name = name
        self.message = message
        self.hint = hint
        super().__init__(f"{message} ({hint})" if hint else message)

    def __reduce__(self):
        return (LaconicError, (self.code, self.name, self.message, self.hint))


def error(name: str, message: str, hint: str = "") -> LaconicError:
    """A LaconicError with the given name, one of CODES."""
    return LaconicError(CODES[name], name, message, hint)
