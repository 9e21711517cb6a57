# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The points that are measured, and their durations."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

KI, MI = 1 << 10, 1 << 20
LARGE_SIZES = (4 * MI, 256 * MI)

# Every codec; those with feedback by default also without it.
SPECS = ("none", "fp16", "bf16", "int8", "int8:round=stochastic", "3lc", "3lc:scale=chunk", "topk", "topk+noef",
         "topk:ratio=0.001", "topk:ratio=0.001+noef", "sidco", "sidco:ratio=0.01,law=exp,stages=1",
         "sidco:ratio=0.01,law=exp,stages=1+noef", "sidco:ratio=0.01,law=exp,stages=2", "sidco:ratio=0.01,law=exp,stages=2+noef", "randomk",
         "randomk+noef", "powersgd", "powersgd+noef", "signsgd", "signum", "onebit", "onebit+noef", "onebit:scale=chunk", "efsignsgd",
         "efsignsgd+noef", "u8", "qsgd", "terngrad", "natural", "inceptionn", "sketchml", "threshold:v=0.0046", "threshold:v=0.0046+noef",
         "dgc", "dgc+noef", "adaq", "adaq+noef", "thc", "thc+noef")

FUSED_PEERS = 8
FUSED_SPECS = ("3lc", "3lc:scale=chunk", "signsgd", "onebit")

THREADED_SPECS = ("fp16", "bf16", "int8", "int8:round=stochastic", "3lc", "3lc:scale=chunk", "topk", "topk+noef",
                  "sidco:ratio=0.01,law=exp,stages=1", "powersgd", "signsgd", "onebit:scale=chunk", "u8", "qsgd", "terngrad", "natural",
                  "inceptionn", "sketchml", "threshold:v=0.0046+noef", "dgc+noef", "adaq+noef")


@dataclass(frozen=True)
class Plan:
    """How much of it: the whole thing, or a minute's worth."""
    sizes: tuple
    other_size: int  # at which the other instruction sets are measured
    seconds: dict  # size -> per point of the best instruction set
    other_seconds: float
    threads: dict  # size -> seconds per point
    call_seconds: float
    server_seconds: float  # of a sample, of which there are three in a round
    server_rounds: int
    baseline_sizes: tuple
    budget: float  # seconds; what would begin later is left out, and the report names it
    specs: tuple = field(default=SPECS)

    def cut(self, names, budget) -> "Plan":
        return replace(self, specs=chosen(self.specs, names), budget=budget or self.budget)


def chosen(specs, names):
    """The specs of the requested codecs; all if none was requested."""
    return tuple(s for s in specs if not names or s.split(":")[0].split("+")[0] in names)


FULL = Plan(
    sizes=(4 * KI, 256 * KI, 4 * MI, 64 * MI, 256 * MI),
    other_size=256 * KI,
    seconds={4 * KI: 0.2, 256 * KI: 0.2, 4 * MI: 0.4, 64 * MI: 0.3, 256 * MI: 0.6},
    other_seconds=0.1, threads={4 * MI: 0.3, 64 * MI: 0.4}, call_seconds=0.05, server_seconds=0.2,
    server_rounds=15,
    baseline_sizes=LARGE_SIZES, budget=700)

QUICK = Plan(
    sizes=(4 * KI, 4 * MI),
    other_size=4 * KI,
    seconds={4 * KI: 0.02, 4 * MI: 0.02},
    other_seconds=0.02, threads={4 * MI: 0.05}, call_seconds=0.01, server_seconds=0.05,
    server_rounds=3,
    baseline_sizes=(4 * MI,), budget=90)
