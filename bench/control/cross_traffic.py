# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Sends datagrams to a host at a rate, in turns: cross_traffic.py HOST MBITS ON_S OFF_S [SEED]. Ends when it is ended.

Turns last between half and one and a half of what is given, drawn by the seed. No program listens at the port: what counts is that
the datagrams pass the host's link.
"""

from __future__ import annotations

import random
import socket
import sys
import time

BYTES = 1400
PORT = 9  # discard


def main() -> None:
    host, mbits, on, off = sys.argv[1], *map(float, sys.argv[2:5])
    draw = random.Random(int(sys.argv[5]) if len(sys.argv) > 5 else 0)
    gap = 8 * BYTES / (mbits * 1e6)
    out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    load = bytes(BYTES)
    while True:
        time.sleep(off * draw.uniform(0.5, 1.5))
        end = time.monotonic() + on * draw.uniform(0.5, 1.5)
        due = time.monotonic()
        while (now := time.monotonic()) < end:
            while due <= now:
                try:
                    out.sendto(load, (host, PORT))
                except OSError:  # refused, or a full queue: lost, as on any network
                    pass
                due += gap
            time.sleep(min(0.002, gap))


if __name__ == "__main__":
    main()
