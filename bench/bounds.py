# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""What memory allows: the passes that a call makes, each at the speed that this run measured for such a pass.

A pass is an operation of roofline_bench on every element, or on a part of them. Those that run on a chunk which lies
in the second-level cache already are counted at that cache's speed. Arithmetic counts as nothing, so a ceiling is not
always in reach.
"""

from __future__ import annotations

from dataclasses import dataclass

from plan import KI, MI

CACHED_SIZE = 256 * KI  # what the roofline of the second-level cache was measured on
STREAM_SIZE = 32 * MI  # above it the library writes its outputs past the caches
BYTES = {"read": 4, "read two": 8, "r += g": 12, "write": 4, "add 1 of 100": 1.28}  # per element; whole lines


@dataclass(frozen=True)
class Pass:
    operation: str
    part: float = 1  # of the elements' bytes
    cached: bool = False
    why: str = ""
    large: bool = False  # not of what the second-level cache holds


# The pipeline's, where the codec does not look itself; each point says whether.
LOOK = Pass("read", why="the look for NaN and infinity before anything changes")
LOOK_AT_SUM = Pass("read two", why="the look at g + r before anything changes")
FEEDBACK = Pass("r += g", why="the gradient joins the residual")


def narrow(part: float) -> Pass:
    return Pass("write", part, why="the payload")


def dense(part: float) -> list:
    return [Pass("read", part, why="the payload")] * (part > 0) + [Pass("write", why="every element")]


ADD_ALL = Pass("r += g", why="the mean leaves the residual")
# In the steady state: above the last call's threshold, without a fit.
SIDCO = [Pass("read", why="selection")]
TOPK = [Pass("read", why="selection")]
TOPK_FED_BACK = [Pass("read two", why="selection among the sums g + r"), FEEDBACK]
PRODUCTS = [Pass("read", why="P = M Q"), Pass("read", why="Q = transposed M P")]

# Two sums, then signs: what is summed first decides what signs leave behind.
SIGNS = [Pass("read", why="signs and sums"), narrow(1 / 32)]
SIGNS_FED_BACK = [Pass("read two", why="sums of g + r"), Pass("r += g", why="signs, and what they lose"), narrow(1 / 32)]

WHETHER = Pass("read", why="whether every chunk can be coded, before the first residual changes", large=True)

ENCODE = {
    "signsgd": [Pass("read", why="signs"), narrow(1 / 32)],
    "signum": [Pass("r += g", why="the gradient joins the running mean"), Pass("read", why="signs"), narrow(1 / 32)],
    "onebit+noef": SIGNS,
    "efsignsgd+noef": SIGNS,
    "onebit": SIGNS_FED_BACK,
    "efsignsgd": SIGNS_FED_BACK,
    "onebit:scale=chunk": [WHETHER,
                           Pass("r += g", why="signs, and what they lose"), Pass("read two", cached=True, why="sums of a chunk"), narrow(1 / 32)],
    "u8": [Pass("read", why="the largest magnitude"), Pass("read"), narrow(1 / 4)],
    "qsgd": [Pass("read"), Pass("read", cached=True, why="a bucket's norm"), narrow(1 / 4)],
    "terngrad": [Pass("read", why="deviation and largest magnitude"), Pass("read"), narrow(1 / 16)],
    "natural": [Pass("read"), narrow(1 / 4)],
    "inceptionn": [Pass("read", why="classes"), Pass("read"), narrow(0.16)],
    "sketchml": [Pass("read", why="counts"), Pass("read", why="what lies near quantiles"), Pass("read", why="bins"), narrow(3 / 16)],
    "thc+noef": [Pass("read", why="block by block: norm, rotation, codes"), narrow(1 / 8)],
    "thc": [Pass("r += g", why="block by block, and what codes lose"), narrow(1 / 8)],
    "threshold:v=0.0046+noef": TOPK,
    "threshold:v=0.0046": [FEEDBACK, *TOPK],
    "dgc+noef": TOPK,
    "adaq+noef": [Pass("read", why="how many of each sign"), Pass("read", why="selection")],
    "none": [Pass("read"), narrow(1)],
    "fp16": [Pass("read"), narrow(1 / 2)],
    "bf16": [Pass("read"), narrow(1 / 2)],
    "int8": [Pass("read"), narrow(1 / 4)],
    "int8:round=stochastic": [Pass("read"), narrow(1 / 4)],
    "3lc": [Pass("read two", why="max |g + r|"), Pass("r += g", why="quantise, and what it loses")],
    "3lc:scale=chunk": [WHETHER,
                        Pass("r += g", why="quantise, and what it loses"),
                        Pass("read two", cached=True, why="max |g + r| of a chunk")],
    "topk+noef": TOPK,
    "topk": TOPK_FED_BACK,
    "topk:ratio=0.001+noef": TOPK,
    "topk:ratio=0.001": TOPK_FED_BACK,
    "sidco:ratio=0.01,law=exp,stages=1+noef": SIDCO,
    "sidco:ratio=0.01,law=exp,stages=1": [FEEDBACK, *SIDCO],
    "sidco:ratio=0.01,law=exp,stages=2+noef": SIDCO,
    "sidco:ratio=0.01,law=exp,stages=2": [FEEDBACK, *SIDCO],
    "powersgd+noef": PRODUCTS,
    "powersgd": [FEEDBACK, *PRODUCTS, ADD_ALL],
}
ADD_FEW = [Pass("add 1 of 100", why="a line read and written per element sent")]
DECODE = {
    "none": dense(1), "fp16": dense(1 / 2), "bf16": dense(1 / 2), "int8": dense(1 / 4),
    "int8:round=stochastic": dense(1 / 4), "3lc": dense(0), "3lc:scale=chunk": dense(0), "powersgd": dense(0),
    "powersgd+noef": dense(0), "signsgd": dense(1 / 32), "onebit+noef": dense(1 / 32), "onebit:scale=chunk": dense(1 / 32),
    "u8": dense(1 / 4), "qsgd": dense(1 / 4), "terngrad": dense(1 / 16), "natural": dense(1 / 4), "inceptionn": dense(0.16),
    "sketchml": dense(3 / 16), "thc": dense(1 / 8), "thc+noef": dense(1 / 8), "topk+noef": ADD_FEW, "sidco:ratio=0.01,law=exp,stages=1+noef": ADD_FEW,
    "sidco:ratio=0.01,law=exp,stages=2+noef": ADD_FEW, "threshold:v=0.0046+noef": ADD_FEW,
}
SPARSE_ADD = "one cache line read and written per element sent: latency of the memory"
OTHER_BOUND = {
    ("topk+noef", "encode"): "what passes is compressed between two looks, a sample comes before them and the exact cut behind: a fifth of the time",
    ("3lc:scale=chunk", "decode"): "digits are unpacked in the first-level cache in between: stores past the caches leave in order, little overlaps",
    ("int8:round=stochastic", "encode"): "ten rounds of Philox per four numbers: arithmetic, not memory",
    ("topk:ratio=0.001+noef", "decode"): SPARSE_ADD,
    ("dgc+noef", "decode"): SPARSE_ADD,
    ("qsgd", "encode"): "Philox, as int8:round=stochastic",
    ("terngrad", "encode"): "Philox, as int8:round=stochastic",
    ("natural", "encode"): "Philox: 23 bits per element",
    ("sketchml", "encode"): "exact quantiles: a histogram, then those that lie in a quantile's bucket",
    ("powersgd+noef", "encode"): "16 multiplications and additions per element, not fused",
    ("powersgd+noef", "decode"): "9 multiplications and additions per element, not fused",
}


# Instructions per element (`valgrind --tool=callgrind` of a call on 65,536 and one on 131,072 elements with AVX2; loops of the compiled
# kernels by `objdump` with AVX-512), and what bounds them. To be counted again when a kernel changes.
COUNTED = {
    ("int8:round=stochastic", "encode", "avx2"): (4.5, "half of them for Philox, whose rounds take six and eight in turn for the bits of 32 elements, the others for "
                                                       "the largest magnitude and the codes"),
    ("u8", "encode", "avx2"): (2.7, "1.0 for the largest magnitude, 1.6 for the codes, among them a gather for each eight, which Zen takes apart into single loads"),
    ("adaq+noef", "encode", "avx2"): (4.3, "1.4 to count signs, 1.4 to collect candidates, the others for samples, exact cuts and what is kept, for each sign"),
    ("terngrad", "encode", "avx2"): (5.3, "1.4 for the deviation, 3.9 for Philox and the codes; nearly all are on vectors, of which Intel's "
                                          "processors with AVX2 begin three a cycle: 1.8 cycles at least"),
    ("sketchml", "encode", "avx2"): (26, "4.4 to count upper bits, 7.1 to collect what lies near quantiles, 13.3 for codes and sums: AVX2 has no "
                                         "scatter, so counters, members and sums go element by element, a load, an addition and a store in turn"),
    ("onebit+noef", "encode", "avx2"): (1.5, "12 for eight elements: a load, two sums in a fixed order, their two selections, a mask and its byte"),
    ("3lc", "decode", "avx2"): (1.2, "zeros are written a row of vectors at a time, and the bytes of digits looked through twice"),
    ("onebit:scale=chunk", "encode", "avx512"): (1.3, "the chunk and its residual, 256 KiB, come from the second-level cache twice and go back once"),
    ("3lc:scale=chunk", "encode", "avx512"): (1.8, "1.1 of them on vectors of 512 bits, of which two begin in a cycle; what the second-level "
                                                   "cache takes for its three passes is hidden behind them in part"),
}


# Why a call on 4 KiB takes longer than its goal, where it does; times of one core with AVX2 at 3.2 GHz (Zen 3).
SMALL_CALLS = {
    "sketchml": "1,024 elements are sorted exactly by 7,100 minima and maxima of eight lanes, 2,000 loads and as many stores, 1.4 µs; "
                "codes and the sums of bins, added in their order, take 1.4, edges 0.5, a frame with its checksum 0.5",
    "threshold:v=0.0046": "under feedback one gradient, again and again, fills the residual until more than the cap pass in every call: all of them "
                          "are collected, and the cap's largest found by counting, which touches each three times",
}


def passes_of(spec: str, direction: str, scanned: bool = False) -> list:
    if direction == "decode":
        return DECODE.get(spec, [])
    if spec not in ENCODE:
        return []
    look = LOOK_AT_SUM if FEEDBACK in ENCODE[spec] else LOOK
    return [look] * scanned + ENCODE[spec]


def bytes_per_element(passes) -> float:
    """That cross the memory or the shared cache."""
    return sum(BYTES[p.operation] * p.part for p in passes if not p.cached)


class Roofline:
    def __init__(self, points):
        self.speed = {(p["operation"], p["bytes"]): p["gb_per_s"] for p in points}

    def knows(self, size: int) -> bool:
        return ("memcpy", size) in self.speed

    def ceiling(self, passes, size: int):
        """In multiples of memcpy; None when the run has no roofline for it."""
        if not passes or not self.knows(size):
            return None
        if any(p.operation == "add 1 of 100" and (p.operation, size) not in self.speed for p in passes):
            return None  # a run from before it was measured
        seconds = sum(p.part / self._speed(p, size) for p in passes)
        return 1 / self.speed["memcpy", size] / seconds

    def _speed(self, p: Pass, size: int) -> float:
        cached = p.cached and ("memcpy", CACHED_SIZE) in self.speed
        operation = p.operation
        if operation == "write" and size > STREAM_SIZE:
            operation = "write past the caches"
        return self.speed[operation, CACHED_SIZE if cached else size]


def in_words(passes) -> str:
    return "; ".join(_word(p) for p in passes)


def _word(p: Pass) -> str:
    part = "" if p.part == 1 else f" ({p.part:g} of it)"
    place = " in the cache" if p.cached else ""
    return f"{p.operation}{part}{place}" + (f": {p.why}" if p.why else "")
