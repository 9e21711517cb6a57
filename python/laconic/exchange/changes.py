# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Log lines, at limited intervals, for changes by control policies and for a record that ended early."""

from __future__ import annotations

import logging
import threading
import time

from ..core import environment

#: minimum seconds between two lines: a rule that changed several times in between logs its last change
APART = 5.0


def tell_record(explained: dict) -> bool:
    """Says why nothing is recorded any more, if that is so."""
    record = explained.get("record")
    if not record or not record["trouble"]:
        return False
    environment.say(f"record: {record['trouble']}; training continues, {record['steps']} steps are recorded", logging.WARNING)
    return True


class Changes:
    """Logs the changes in `explain` that have not been logged yet."""

    def __init__(self):
        self._told: dict[int, str] = {}  # by rule
        self._next = 0.0
        self._record_told = False
        self._one_at_a_time = threading.Lock()  # at the end of the process, the main thread and that of a model that goes away

    def tell(self, explain, *, last: bool = False) -> None:
        """`last`: at the end, so not to be put off."""
        with self._one_at_a_time:
            self._tell(explain, last)

    def _tell(self, explain, last: bool) -> None:
        now = time.monotonic()
        if now < self._next and not last:
            return
        self._next = now + APART
        explained = explain()
        self._record_told = self._record_told or tell_record(explained)
        settings = explained["settings"]
        globs = [setting["rule"] for setting in settings]
        for number, setting in enumerate(settings):
            change, rule = setting["last_change"], setting["rule"]
            if change and change != "set" and self._told.get(number) != change:
                self._told[number] = change
                named = f"{rule} (rule {number + 1})" if globs.count(rule) > 1 and number + 1 < len(globs) else rule
                environment.say(f"control of {named}: {change}")
