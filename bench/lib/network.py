# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The lab as a COMMAND in it sees it: the rate that rank 0 may change, and the kernel's count of this host's bytes."""

from __future__ import annotations

import json
import os
import re
import socket
from pathlib import Path

_UNITS = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?)([kmgt]?)bit")
_SENT = Path("/sys/class/net/eth0/statistics/tx_bytes")


def rate_and_loss(network: str) -> tuple[str, str]:
    """'100mbit,1%': the rate of every port, and the share of packets that are lost."""
    rate, _, loss = network.partition(",")
    return rate, loss or "0%"


def bits_per_second(rate: str) -> float:
    """'50mbit' is 5e7, as `tc` and the lab read it; 'off' is 0."""
    if rate == "off":
        return 0.0
    match = _RATE.fullmatch(rate)
    if match is None:
        raise ValueError(f"{rate!r} is not a rate: 50mbit, 1gbit, off")
    return float(match[1]) * _UNITS[match[2]]


def rate_text(network: str) -> str:
    """'50mbit' as people write it: '50 Mbit/s'. '50mbit,1%': '50 Mbit/s, 1 % loss'."""
    rate, loss = rate_and_loss(network)
    if "," in network:
        return f"{rate_text(rate)}, {loss.removesuffix('%')} % loss"
    match = _RATE.fullmatch(rate)
    return f"{match[1]} {match[2] if match[2] == 'k' else match[2].upper()}bit/s" if match else "unshaped"


class Network:
    """The network of one host. `emulated`: nothing is shaped, senders wait by themselves, and nothing is counted."""

    def __init__(self, rank: int):
        self.rank = rank
        self._loss = "0%"
        self.emulated = os.environ.get("LACONIC_LAB") == "emulated"
        os.environ.pop("LACONIC_EMULATE_RATE", None)

    def announce(self, rate: str) -> float:
        """Before exchanges are made. Gives the rate that they have to keep to by themselves, 0 for none."""
        if not self.emulated or rate == "off":
            os.environ.pop("LACONIC_EMULATE_RATE", None)
            return 0.0
        os.environ["LACONIC_EMULATE_RATE"] = str(bits_per_second(rate))
        return bits_per_second(rate)

    def shape(self, network: str) -> None:
        """On rank 0, and followed by a barrier: rate and loss of every port, from now on."""
        if self.emulated or self.rank != 0:
            return
        rate, loss = rate_and_loss(network)
        self._ask(f"rate {rate}")
        if loss != self._loss:
            self._ask(f"loss {loss}")
            self._loss = loss

    def _ask(self, line: str) -> None:
        with socket.socket(socket.AF_UNIX) as control:
            control.connect(os.environ["LACONIC_LAB_CONTROL"])
            control.sendall(f"{line}\n".encode())
            answer = json.loads(control.makefile().readline())
        if not answer["ok"]:
            raise RuntimeError(f"the lab refused '{line}': {answer['error']['message']}")

    def sent_bytes(self) -> int | None:
        """Bytes sent by this host since it exists, frames with their headers; None without counters."""
        return None if self.emulated else int(_SENT.read_text())
