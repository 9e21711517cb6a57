# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""What laws have changed, in a line each, and not too often."""

from __future__ import annotations

import time

from . import environment

#: seconds between two looks: a rule that changed more than once in between tells its last change
APART = 5.0


class Changes:
    """Says what `explain` knows of changes that have not been told yet."""

    def __init__(self):
        self._told: dict[str, str] = {}
        self._next = 0.0

    def tell(self, explain) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + APART
        for setting in explain()["settings"]:
            change, rule = setting["last_change"], setting["rule"]
            if change and self._told.get(rule) != change:
                self._told[rule] = change
                environment.say(f"control of {rule}: {change}")
