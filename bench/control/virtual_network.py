# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""A network whose rate changes, in virtual time: how long the steps of a training take there, and what a control policy reads of it."""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass

from bench.lib.network import bits_per_second

BURST = 64 << 10  # bytes of the lab's bucket
LINK, LEAST = 1000, 10  # Mbit/s of a host's port, and what is left to it at least
SENDERS, SENDER = 8, 200  # other programs that send to the port, and Mbit/s of one
SHAPE, SENDS, WAITS = 1.5, 0.7, 1.0  # of Pareto's law; the shortest time in seconds that a sender sends, and waits
FAST = 100e6  # bits per second at which, and above, a law that knew the rate would send more
UNITS = 16e6  # a second, in a report's units
REPORT, HEAD = 12, 8  # bytes of a rank's report, and of their number


@dataclass(frozen=True)
class Scenario:
    """Rates that take turns of `every` seconds from the first step on; after the last, the first follows."""

    what: str
    rates: tuple[str, ...]
    every: float


def cross_traffic(seconds: float, every: float, seed: int) -> tuple[str, ...]:
    """The rate that other programs' traffic leaves, at the beginning of each turn. Senders send and wait in turn, for times of a heavy tail."""
    draw = random.Random(seed)
    marks = [0.0] * SENDERS  # when each changes next
    sends = [True] * SENDERS
    found = []
    for turn in range(round(seconds / every)):
        for i in range(SENDERS):
            while marks[i] <= turn * every:
                sends[i] = not sends[i]
                marks[i] += (SENDS if sends[i] else WAITS) * (1 - draw.random()) ** (-1 / SHAPE)
        found.append(f"{max(LINK - SENDER * sum(sends), LEAST)}mbit")
    return tuple(found)


SCENARIOS = {
    "turns3": Scenario("1 Gbit/s and 10 Mbit/s in turn, 3 s each", ("1gbit", "10mbit"), 3.0),
    "turns20": Scenario("1 Gbit/s and 10 Mbit/s in turn, 20 s each", ("1gbit", "10mbit"), 20.0),
    "cloud": Scenario("1 Gbit/s less other programs' traffic", cross_traffic(120.0, 0.5, 1), 0.5),
}


class Link:
    """A host's port: a token bucket that fills at the rate of the moment. now: seconds since the first step began."""

    def __init__(self, scenario: Scenario):
        self.now, self._turn, self._tokens, self._every = 0.0, 0, float(BURST), scenario.every
        self._rates = [bits_per_second(rate) / 8 for rate in scenario.rates]

    @property
    def bytes_per_second(self) -> float:
        """Now."""
        return self._rates[self._turn % len(self._rates)]

    @property
    def _end(self) -> float:
        """Of the turn."""
        return (self._turn + 1) * self._every

    def _until(self, moment: float) -> None:
        """Within the turn, or to its end."""
        self._tokens = min(self._tokens + (moment - self.now) * self.bytes_per_second, float(BURST))
        self.now = moment
        self._turn += int(moment == self._end)

    def idle(self, seconds: float) -> None:
        end = self.now + seconds
        while self._end <= end:
            self._until(self._end)
        self._until(end)

    def send(self, count: float) -> float:
        """Gives the seconds until the last byte has passed."""
        began = self.now
        self._tokens -= count
        while self._tokens < 0:
            done = self.now - self._tokens / self.bytes_per_second
            if done >= self._end:
                self._until(self._end)
            else:
                self._until(done)
                self._tokens = 0.0
        return self.now - began


@dataclass(frozen=True)
class Cost:
    """Of a step. sent: bytes, as the library counts them; wire: with all headers, as the kernel does; rest: seconds that do not depend on the
    network; base: seconds that collectives take besides the time of their bytes."""

    sent: float
    wire: float
    rest: float
    base: float


class Costs:
    """Measured steps; between them, and beyond, lines over the bytes that are sent. plain: that of an uncompressed step."""

    def __init__(self, measured: list[Cost], plain: Cost):
        self.measured, self.plain = sorted(measured, key=lambda cost: cost.sent), plain

    @classmethod
    def read(cls, rows: list[list[float]]) -> Costs:
        """The last one is plain."""
        *measured, plain = (Cost(*row) for row in rows)
        return cls(measured, plain)

    def of(self, sent: float, uncompressed: bool = False) -> Cost:
        if uncompressed:
            return self.plain
        after = next((i for i, cost in enumerate(self.measured) if i and cost.sent >= sent), len(self.measured) - 1)
        low, high = self.measured[after - 1], self.measured[after]
        share = (sent - low.sent) / (high.sent - low.sent)
        wire, rest, base = (max(one + share * (other - one), 0.0) for one, other in ((low.wire, high.wire), (low.rest, high.rest), (low.base, high.base)))
        return Cost(sent, wire, rest, base)


class Clock:
    """The time of a training whose steps cost so much, over a link."""

    def __init__(self, costs: Costs, scenario: Scenario):
        self.costs, self.link = costs, Link(scenario)

    @property
    def seconds(self) -> float:
        return self.link.now

    def step(self, sent: float, uncompressed: bool = False) -> tuple[float, float]:
        """Seconds in collectives, and of the whole step: computing first."""
        cost, began = self.costs.of(sent, uncompressed), self.link.now
        self.link.idle(cost.rest)
        computed = self.link.now
        self.link.send(cost.wire)
        self.link.idle(cost.base)
        return self.link.now - computed, self.link.now - began


def seconds_of(costs: Costs, scenario: Scenario, sent: float, steps: int) -> float:
    """Of a training of which each step sends as much."""
    clock = Clock(costs, scenario)
    for _ in range(steps):
        clock.step(sent)
    return clock.seconds


def foreseen(costs: Costs, scenario: Scenario, less: float, more: float, steps: int) -> list[bool]:
    """Whether each step sends more, where a law knew the rate at which its bytes begin to pass."""
    clock, made = Clock(costs, scenario), []
    for _ in range(steps):
        ahead = copy.copy(clock.link)
        ahead.idle(costs.of(less).rest)
        made.append(8 * ahead.bytes_per_second >= FAST)
        clock.step(more if made[-1] else less)
    return made


def packed(seconds: float) -> bytes:
    """As a report has it: 5 bits of exponent, 11 of mantissa (src/control/report.h)."""
    units, exponent = max(round(seconds * UNITS), 1), 0
    while (value := round(units / 2**exponent)) >= 4096:
        exponent += 1
    return (value + 2048 * exponent).to_bytes(2, "little")


def retimed(reports: bytes, network: float, step: float) -> bytes:
    """The same reports with these seconds in collectives and of the whole step, for every rank: what laconic.h's laconic_session_decide_by takes.
    Nothing where no rank has reported."""
    count = int.from_bytes(reports[:HEAD], "little")
    made = bytearray(reports)
    for at in range(HEAD, HEAD + REPORT * count, REPORT):
        made[at : at + 2], made[at + 6 : at + 8] = packed(network), packed(step)
    return bytes(made) if count else b""
