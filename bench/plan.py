# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""What is measured, and what it ought to be."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

KI, MI = 1 << 10, 1 << 20
GOAL_SIZES = (4 * MI, 256 * MI)

# Every codec; those with feedback by default also without it.
SPECS = ("none", "fp16", "bf16", "int8", "int8:round=stochastic", "3lc", "3lc:scale=chunk", "topk", "topk+noef",
         "topk:ratio=0.001", "topk:ratio=0.001+noef", "sidco", "sidco:ratio=0.01,law=exp,stages=1",
         "sidco:ratio=0.01,law=exp,stages=1+noef", "sidco:ratio=0.01,law=exp,stages=2", "sidco:ratio=0.01,law=exp,stages=2+noef", "randomk",
         "randomk+noef", "powersgd", "powersgd+noef", "signsgd", "signum", "onebit", "onebit+noef", "onebit:scale=chunk", "efsignsgd",
         "efsignsgd+noef", "u8", "qsgd", "terngrad", "natural", "inceptionn", "sketchml", "threshold:v=0.0046", "threshold:v=0.0046+noef",
         "dgc", "dgc+noef", "adaq", "adaq+noef", "thc", "thc+noef")

FUSED_PEERS = 8
FUSED_SPECS = ("3lc", "3lc:scale=chunk", "signsgd", "onebit")

# Streaming codecs, from which two threads are expected to be worth nearly two; less from those that select elements.
THREADED_SPECS = ("fp16", "bf16", "int8", "int8:round=stochastic", "3lc", "3lc:scale=chunk", "topk", "topk+noef",
                  "sidco:ratio=0.01,law=exp,stages=1", "powersgd", "signsgd", "onebit:scale=chunk", "u8", "qsgd", "terngrad", "natural",
                  "inceptionn", "sketchml", "threshold:v=0.0046+noef", "dgc+noef", "adaq+noef")
SPARSE = ("topk", "sidco", "threshold", "dgc", "adaq")


def threads_goal(spec: str) -> float:
    return 1.7 if spec.split(":")[0].split("+")[0] in SPARSE else 1.9


def small_call_goal(spec: str) -> float:
    """Microseconds."""
    return 5.0 if spec.split(":")[0].split("+")[0] in ("powersgd", "sidco") else 2.0


@dataclass(frozen=True)
class Goal:
    """Multiples of memcpy at GOAL_SIZES; none where there is no goal.

    `encode` is AVX-512's. AVX2 has a figure of its own at the smaller size: of encode, or, for several peers, of their
    fused decode. Decoding one payload is bound by memory: its goals hold for both.

    Multiples mislead between machines: where memcpy is fast, sound kernels miss them. A goal is also met by `cycles` per
    element on a tensor in the second-level cache (AVX-512, AVX2; of encode unless `cycles_of` says decode), together with
    CEILING_SHARE of what the passes allow at both sizes. That share is out of reach where memory feeds a core faster than
    arithmetic at the goal's cycles takes it: there a goal is met at a size by the cycles of the call on that size. Adding few
    elements meets its goal by CEILING_SHARE of the roofline's row for it, too.
    """
    spec: str
    encode: tuple = (None, None)
    decode: tuple = (None, None)
    avx2: float | None = None
    peers: int = 1
    cycles: tuple | None = None
    cycles_of: str = "encode"

    def cycles_goal(self, direction: str, isa: str):
        if self.cycles is None or direction != self.cycles_of or isa not in ("avx512", "avx2"):
            return None
        return self.cycles[isa == "avx2"]

    def value(self, direction: str, size: int, isa: str):
        if isa == "avx2" and (direction == "encode" or self.peers > 1):
            own = self.avx2 if getattr(self, direction)[0] is not None else None
            return own if size == GOAL_SIZES[0] else None
        return getattr(self, direction)[GOAL_SIZES.index(size)] if isa in ("avx2", "avx512") else None


CEILING_SHARE = 0.8
SPARSE_ADD = (20, 6)  # into a buffer
STREAM = (1.3, 1.5)  # decoding to every element
GOALS = (
    Goal("3lc:scale=chunk", (0.68, 0.52), (1.3, 1.4), avx2=0.55, cycles=(0.7, 1.0)),
    Goal("3lc", (0.48, 0.32), avx2=0.45),
    Goal("3lc", decode=(1.3, 1.4), cycles=(0.3, 0.35), cycles_of="decode"),
    Goal("topk+noef", (0.85, 0.85), SPARSE_ADD, avx2=0.65, cycles=(1.2, 1.2)),
    Goal("topk", (0.40, 0.30)),
    Goal("topk:ratio=0.001+noef", (1.5, 1.1), SPARSE_ADD, avx2=1.1, cycles=(0.8, 1.1)),
    Goal("sidco:ratio=0.01,law=exp,stages=1+noef", (0.95, 0.60), SPARSE_ADD, avx2=0.75, cycles=(1.0, 1.1)),
    Goal("sidco:ratio=0.01,law=exp,stages=2+noef", (0.65, 0.41), SPARSE_ADD, avx2=0.5),
    Goal("sidco:ratio=0.01,law=exp,stages=1", (0.25, 0.17)),
    Goal("int8", (1.35, 0.9), (1.3, 1.5), avx2=1.2),
    Goal("int8:round=stochastic", (0.80, 0.60), (1.3, 1.5), avx2=0.5, cycles=(0.95, 1.4)),
    Goal("fp16", (1.35, 1.1), (1.3, 1.4), avx2=1.2),
    Goal("bf16", (1.35, 1.1), (1.3, 1.4), avx2=1.2),
    Goal("powersgd+noef", (0.95, 0.5), (1.65, 1.3), avx2=0.8),
    Goal("signsgd", (2.0, 1.3), STREAM, cycles=(0.2, 0.3)),
    Goal("onebit+noef", (2.0, 1.3), STREAM, cycles=(0.2, 0.3)),
    Goal("onebit:scale=chunk", (0.72, 0.55), STREAM, cycles=(0.55, 0.8)),
    Goal("qsgd", (0.80, 0.60), STREAM, cycles=(1.2, 1.9)),
    Goal("terngrad", (0.65, 0.45), STREAM, cycles=(1.2, 1.9)),
    Goal("natural", (0.9, 0.6), STREAM, cycles=(1.2, 1.9)),
    Goal("u8", (0.6, 0.45), STREAM, cycles=(1.2, 2)),
    Goal("inceptionn", (0.6, 0.45), STREAM, cycles=(1.2, 2)),
    Goal("adaq+noef", (0.6, 0.45), cycles=(1.2, 2)),
    Goal("threshold:v=0.0046+noef", (1.8, 1.2), SPARSE_ADD, cycles=(0.4, 0.7)),
    Goal("dgc+noef", (0.9, 0.8), SPARSE_ADD, cycles=(0.8, 1.2)),
    Goal("sketchml", (0.12, 0.12), cycles=(7, 9)),
    Goal("thc+noef", (0.42, None)),
    Goal("thc", (0.25, None)),
    Goal("3lc", decode=(3.8, None), avx2=1.9, peers=FUSED_PEERS),
    Goal("signsgd", decode=(10, None), peers=FUSED_PEERS),
    Goal("onebit", decode=(10, None), peers=FUSED_PEERS),
)


@dataclass(frozen=True)
class Plan:
    """How much of it: the whole thing, or a minute's worth."""
    sizes: tuple
    isa_limits: dict  # instruction set -> largest size worth the time
    seconds: dict  # size -> per point of the best instruction set
    other_seconds: float
    roofline_seconds: float
    threads: dict  # size -> seconds per point
    call_seconds: float
    server_seconds: float  # of a sample, of which there are three in a round
    server_rounds: int
    baseline_sizes: tuple
    grace_size: int  # of the gradient that GRACE's definitions get
    budget: float  # seconds; what would begin later is left out, and the report names it
    specs: tuple = field(default=SPECS)

    def cut(self, names, budget) -> "Plan":
        return replace(self, specs=chosen(self.specs, names), budget=budget or self.budget)


def chosen(specs, names):
    """The specs of the codecs that were asked for; all when none was."""
    return tuple(s for s in specs if not names or s.split(":")[0].split("+")[0] in names)


FULL = Plan(
    sizes=(4 * KI, 256 * KI, 4 * MI, 64 * MI, 256 * MI),
    isa_limits={"scalar": 256 * KI},
    seconds={4 * KI: 0.2, 256 * KI: 0.2, 4 * MI: 0.4, 64 * MI: 0.3, 256 * MI: 0.6},
    other_seconds=0.1, roofline_seconds=0.2, threads={4 * MI: 0.3, 64 * MI: 0.4}, call_seconds=0.05, server_seconds=0.2,
    server_rounds=15,
    baseline_sizes=GOAL_SIZES, grace_size=64 * MI, budget=700)

QUICK = Plan(
    sizes=(4 * KI, 4 * MI),
    isa_limits={"scalar": 4 * KI, "sse4": 4 * KI, "avx2": 4 * KI},
    seconds={4 * KI: 0.02, 4 * MI: 0.02},
    other_seconds=0.02, roofline_seconds=0.02, threads={4 * MI: 0.05}, call_seconds=0.01, server_seconds=0.05,
    server_rounds=3,
    baseline_sizes=(4 * MI,), grace_size=4 * MI, budget=90)
