# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""A slow link without a slow link: waits as long as the bytes of a step would have taken.

The fallback of `laconic lab --emulate`, for machines where network namespaces are not allowed. It knows no queue, no
packet and no other traffic: results made with it are marked "emulated" wherever they are shown.
"""

from __future__ import annotations

import os
import time

from ..core import errors

RATE = "LACONIC_EMULATE_RATE"
RATE_FILE = "LACONIC_EMULATE_RATE_FILE"  # the same number where it may change while running; 0: no limit


def _rate(text: str, source: str) -> float:
    """Bits per second; 0 for no limit."""
    try:
        rate = float(text or 0)
    except ValueError:
        rate = -1.0
    if not 0 <= rate < float("inf"):
        raise errors.error("value_out_of_range", f"{source} is {text!r}, not a rate in bits per second",
                           "50000000, or 0 for no limit")
    return rate


class Limiter:
    """`rate` in bits per second, one direction. With `path`, that file says the rate of the moment."""

    def __init__(self, rate: float, path: str = ""):
        self.rate = rate
        self.path = path
        self.free = 0.0  # when the link has sent what it was given

    def send(self, count: int) -> float:
        """Sends `count` bytes after those in flight. Returns the time at which the last one arrives."""
        if self.path:
            self._reread()
        now = time.monotonic()
        if count and self.rate:
            self.free = max(self.free, now) + 8.0 * count / self.rate
            return self.free
        return now

    @staticmethod
    def wait(arrives: float) -> None:
        """Sleeps until then."""
        left = arrives - time.monotonic()
        if left > 0:
            time.sleep(left)

    def _reread(self) -> None:
        try:
            with open(self.path, encoding="ascii") as file:
                self.rate = _rate(file.read().strip(), self.path)
        except OSError:
            pass  # the lab is gone: its last word holds


def limiter_from_environment() -> Limiter | None:
    path = os.environ.get(RATE_FILE, "")
    rate = _rate(os.environ.get(RATE, ""), RATE)
    return Limiter(rate, path) if rate or path else None
