# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""LaconicError: the one exception of this package."""

from __future__ import annotations


class LaconicError(RuntimeError):
    """A failure with a stable number.

    Attributes: `code` (int, docs/format/ERRORS.md), `name` (its stable word), `message`, `hint` (what to try next).
    """

    def __init__(self, code: int, name: str, message: str, hint: str = ""):
        self.code = code
        self.name = name
        self.message = message
        self.hint = hint
        super().__init__(f"{message} ({hint})" if hint else message)

    def __reduce__(self):
        return (LaconicError, (self.code, self.name, self.message, self.hint))
