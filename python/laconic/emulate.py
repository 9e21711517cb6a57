# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""A slow link without a slow link: waits as long as the bytes of a step would have taken.

The fallback of `laconic lab --emulate`, for machines where network namespaces are not allowed. It knows no queue, no
packet and no other traffic: results made with it are marked "emulated" wherever they are shown.
"""

from __future__ import annotations

import os
import time

from .errors import LaconicError

VARIABLE = "LACONIC_EMULATE_RATE"


class Limiter:
    """`rate` in bits per second, one direction."""

    def __init__(self, rate: float):
        self.rate = rate

    def spend(self, count: int) -> None:
        """Sleeps for the time that `count` bytes take."""
        if count:
            time.sleep(8.0 * count / self.rate)


def limiter_from_environment() -> Limiter | None:
    text = os.environ.get(VARIABLE, "")
    if not text:
        return None
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not rate > 0:
        raise LaconicError(5, "value_out_of_range", f"{VARIABLE}={text} is not a rate in bits per second", "50000000")
    return Limiter(rate)
