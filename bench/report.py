# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The results as Markdown."""

from __future__ import annotations

import aggregation_page
import bounds
from plan import CEILING_SHARE, GOAL_SIZES, GOALS, SPARSE_ADD, Goal, small_call_goal, threads_goal
from programs import size_word, with_flag
from prose import table

MISSING = "–"


# ---- words ----


def size_text(size: int) -> str:
    return size_word(size).replace("Mi", " MiB").replace("Ki", " KiB")


def number(x, digits=2) -> str:
    if x is None:
        return MISSING
    return f"{x:.3f}" if x < 0.1 else f"{x:.{digits}f}" if x < 10 else f"{x:.1f}" if x < 100 else f"{x:.0f}"


def with_spread(x, spread) -> str:
    return f"{number(x)} ({number(spread['low'])}–{number(spread['high'])})"


def verdict(measured, goal) -> str:
    """met, or missed by how much; nothing when there is no goal."""
    if measured is None or goal is None:
        return MISSING
    part = measured / goal
    if part >= 2:
        return f"met, {part:.0f} times"
    return f"met, {100 * (part - 1):+.0f} %" if part >= 1 else f"**missed by {100 * (1 - part):.0f} %**"


def commands(results, *sections) -> str:
    lines = [line for section in sections for line in results["commands"].get(section, [])]
    return "```\n" + "\n".join(lines) + "\n```" if lines else ""


class Points:
    """Looks up what was measured."""

    def __init__(self, results):
        self.all = results["points"]
        self.best = results["isas"][-1] if results["isas"] else ""
        self._found = {(p["codec"], 4 * p["elements"], p["isa"]): p for p in results["points"]}

    def get(self, spec, size, isa=None):
        return self._found.get((spec, size, isa or self.best))

    def sizes(self):
        return sorted({4 * p["elements"] for p in self.all})

    def specs(self):
        return list(dict.fromkeys(p["codec"] for p in self.all))


def reproduction(results, points) -> str:
    """One command per instruction set for what the run did size by size."""
    program = next(iter(results["commands"].get("machine", ["laconic"]))).split()[0]
    lines = []
    for isa in dict.fromkeys(p["isa"] for p in points.all):
        sizes = sorted({4 * p["elements"] for p in points.all if p["isa"] == isa})
        words = [program, "bench", "--isa", isa, *with_flag("--size", map(size_word, sizes)),
                 *with_flag("--spec", points.specs())]
        lines.append(" ".join(words))
    return "```\n" + "\n".join(lines) + "\n```"


def fused_of(results, spec, size):
    return next((p for p in results["fused"] if p["codec"] == spec and 4 * p["elements"] == size), None)


# ---- sections: each is a list of paragraphs ----


def machine(results) -> list:
    return ["## Machine", table(["", ""], results["machine"].items(), left=2)]


METHOD = """\
- Every figure is a **multiple of memcpy**: the time of the C library's `memcpy` of the same float bytes, divided by the
  time of the call, for one thread pinned to its core. 1.0 means: as fast as copying the tensor.
- Every sample of a call lies between two samples of memcpy in the same process and is compared with those two only.
  Samples last 4 ms or one call, at least seven per figure; samples whose memcpy is more than 30 % off its median are
  dropped. Figures are medians, in parentheses the quartiles. Time is that of the thread, so that what other processes
  take does not count; where several threads work it is that on the wall.
- Buffers are allocated, touched and reused. Nothing is allocated while time is taken.
- *Encode* is the pipeline's whole work on one rank, into the payload that travels: the look for zeros and NaN, error
  feedback (the gradient joins the residual, what is sent leaves it) unless the spec says `+noef`, all rounds.
  *Decode* writes every element, or adds to a buffer for codecs that send few (top-k, random-k, SIDCo).
- The data is Laplace of scale 1e-3, seeded. Eight gradients come in turn, each the one before moved on by a cache
  line: with feedback the residual is in the steady state of these, its magnitudes flatter than a gradient's. Ratio: float bytes by payload bytes. Error and cosine:
  of one encoding without feedback; with feedback the error is sent later, not lost."""


def method(results) -> list:
    return ["## Method", METHOD]


def share_of_ceiling(results, points, spec: str, direction: str, size: int):
    point = points.get(spec, size)
    line = bounds.Roofline(results["roofline"]["points"])
    ceiling = line.ceiling(bounds.passes_of(spec, direction, bool(point and point.get("scanned"))), size)
    return point[f"{direction}_x_memcpy"] / ceiling if point and ceiling else None


def cycles_of(points, spec: str, direction: str, isa: str, size: int = bounds.CACHED_SIZE):
    """Per element; on a tensor in the second-level cache unless told otherwise."""
    point = points.get(spec, size, isa)
    return point["cycles_per_element"][direction] if point and "cycles_per_element" in point else None


def met_by_cycles(results, points, goal: Goal, direction: str) -> bool:
    """The other way to meet a goal: see plan.Goal."""
    aim, cycles = goal.cycles_goal(direction, points.best), cycles_of(points, goal.spec, direction, points.best)
    shares = [share_of_ceiling(results, points, goal.spec, direction, size) for size in GOAL_SIZES]
    return aim is not None and cycles is not None and cycles <= aim and all(s is not None and s >= CEILING_SHARE for s in shares)


def met_otherwise(results, points, goal: Goal, direction: str, size: int) -> str:
    """How a goal whose multiple was missed is met all the same; empty where it is not: see plan.Goal."""
    if met_by_cycles(results, points, goal, direction):
        return "met by cycles"
    aim, there = goal.cycles_goal(direction, points.best), cycles_of(points, goal.spec, direction, points.best, size)
    if aim is not None and there is not None and there <= aim:
        return f"met, {number(there)} cycles here"
    share = share_of_ceiling(results, points, goal.spec, direction, size)
    if direction == "decode" and goal.decode == SPARSE_ADD and share is not None and share >= CEILING_SHARE:
        return f"met, {100 * share:.0f} % of the roofline"
    return ""


def goal_row(results, points, goal: Goal, direction: str) -> list:
    cells = []
    for size in GOAL_SIZES:
        point = points.get(goal.spec, size) if goal.peers == 1 else fused_of(results, goal.spec, size)
        measured = point and point[f"{direction}_x_memcpy"]
        aim = goal.value(direction, size, points.best)
        missed_it = measured is not None and aim is not None and measured < aim and goal.peers == 1
        cells += [MISSING if aim is None else f"{aim:g}", with_spread(measured, point[f"{direction}_spread"]) if point else MISSING,
                  (missed_it and met_otherwise(results, points, goal, direction, size)) or verdict(measured, aim)]
    aim, cycles = goal.cycles_goal(direction, points.best), cycles_of(points, goal.spec, direction, points.best)
    cells += [MISSING if aim is None or cycles is None else f"{cycles:.2f} of {aim:g}"]
    what = f"fused decode of {goal.peers} peers" if goal.peers > 1 else direction
    return [f"`{goal.spec}`", what, *cells]


def default_row(results, points, spec: str, direction: str) -> list:
    """With error feedback, beside a goal without: the ceiling of its passes stands where goals stand."""
    line = bounds.Roofline(results["roofline"]["points"])
    cells = []
    for size in GOAL_SIZES:
        point = points.get(spec, size)
        ceiling = line.ceiling(bounds.passes_of(spec, direction, bool(point and point.get("scanned"))), size)
        measured = with_spread(point[f"{direction}_x_memcpy"], point[f"{direction}_spread"]) if point else MISSING
        cells += [MISSING if ceiling is None else f"ceiling {ceiling:.2f}", measured, MISSING]
    cells.append(MISSING)
    return [f"`{spec}` (default)", direction, *cells]


def goal_rows(results, points) -> list:
    rows = []
    for goal in GOALS:
        if goal.spec not in points.specs() and not any(p["codec"] == goal.spec for p in results["fused"]):
            continue
        for direction in ("encode", "decode"):
            if any(v is not None for v in getattr(goal, direction)):
                rows.append(goal_row(results, points, goal, direction))
        default = goal.spec.removesuffix("+noef")
        if default != goal.spec and default in points.specs() and all(default != g.spec for g in GOALS):
            rows.append(default_row(results, points, default, "encode"))
    return rows


def feedback_bound(results) -> str:
    line = bounds.Roofline(results["roofline"]["points"])
    one = [line.ceiling([bounds.FEEDBACK], size) for size in GOAL_SIZES]
    two = [line.ceiling([bounds.FEEDBACK, bounds.Pass("read")], size) for size in GOAL_SIZES]
    sizes = " / ".join(map(size_text, GOAL_SIZES))
    return ("Error feedback alone reads two floats and writes one per element: here that bounds a codec at "
            f"{number(one[0])} / {number(one[1])} of memcpy at {sizes}, and at "
            f"{number(two[0])} / {number(two[1])} if the sum is read once more. A *ceiling* is what the passes of the "
            "row cost by the roofline below if arithmetic were free.")


def lesser_goals(results, points, isa: str = "avx2") -> list:
    """Of an instruction set that is not this machine's best."""
    size = GOAL_SIZES[0]
    rows = []
    for goal in GOALS:
        point = points.get(goal.spec, size, isa)
        aim = goal.value("encode", size, isa)
        if point and aim is not None and isa != points.best:
            measured = point["encode_x_memcpy"]
            rows.append([f"`{goal.spec}`", "encode", f"{aim:g}", with_spread(measured, point["encode_spread"]), verdict(measured, aim)])
        for direction in ("encode", "decode"):
            aim, cycles = goal.cycles_goal(direction, isa), cycles_of(points, goal.spec, direction, isa)
            if aim is not None and cycles is not None and isa != points.best:
                rows.append([f"`{goal.spec}`", f"{direction}, cycles at {size_text(bounds.CACHED_SIZE)}", f"at most {aim:g}", f"{cycles:.2f}",
                             verdict(aim, cycles)])
    if not rows:
        return []
    return [f"The same machine with {isa}, multiples of memcpy at {size_text(size)} unless it says cycles:",
            table(["codec", "", "goal", "measured", ""], rows, left=2)]


def goals(results) -> list:
    points = Points(results)
    heads = [f"{size_text(s)}: {word}" for s in GOAL_SIZES for word in ("goal", "measured", "")]
    rows = goal_rows(results, points)
    if not rows:
        return []
    share = f"{100 * CEILING_SHARE:.0f} %"
    rule = (f"One thread, {points.best}, multiples of memcpy. *Met by cycles*: the last column's goal, cycles per element on "
            f"{size_text(bounds.CACHED_SIZE)}, is reached, and {share} of the ceiling at both sizes. *Cycles here*: the call on this size "
            "takes no more cycles than the goal allows one in the cache, so arithmetic at the speed asked for would be no faster, however "
            f"fast memory is. *Of the roofline*: adding few elements reaches at least {share} of what a plain loop that adds one of a hundred does.")
    return ["## Goals", rule, table(["codec", "", *heads, "cycles"], rows, left=2),
            *lesser_goals(results, points), feedback_bound(results), commands(results, "goals", "fused")]


def missed(results, points) -> list:
    """(goal, direction, size, measured)"""
    found = []
    for goal in GOALS:
        for direction in ("encode", "decode"):
            for size in GOAL_SIZES:
                aim = goal.value(direction, size, points.best)
                point = points.get(goal.spec, size) if goal.peers == 1 else fused_of(results, goal.spec, size)
                if aim is not None and point and point[f"{direction}_x_memcpy"] < aim \
                        and (goal.peers > 1 or not met_otherwise(results, points, goal, direction, size)):
                    found.append((goal, direction, size, point[f"{direction}_x_memcpy"]))
    return found


def in_cache(points, spec: str, direction: str, size: int):
    """The speed of the same call on a tensor in the second-level cache, in multiples of memcpy at `size`: what
    arithmetic and fixed costs allow where memory costs little. None where either was not measured."""
    here, there = points.get(spec, size), points.get(spec, bounds.CACHED_SIZE)
    if not here or not there:
        return None
    return (here["memcpy_s"] / here["elements"]) / (there[f"{direction}_s"] / there["elements"])


def bound_row(results, line, goal, direction, size, measured) -> list:
    points = Points(results)
    point = points.get(goal.spec, size) or {}
    passes = bounds.passes_of(goal.spec, direction, point.get("scanned", False)) if goal.peers == 1 else []
    ceiling = line.ceiling(passes, size)
    alone = next((p["encode_x_memcpy"] for p in results["codec_only"] if direction == "encode"
                  and p["codec"] == goal.spec and 4 * p["elements"] == size), None)
    words = [bounds.in_words(passes), bounds.OTHER_BOUND.get((goal.spec, direction), "")]
    return [f"`{goal.spec}`" + (f", {goal.peers} peers" if goal.peers > 1 else ""), f"{direction}, {size_text(size)}",
            "; ".join(w for w in words if w) or MISSING, f"{bounds.bytes_per_element(passes):g}" if passes else MISSING,
            number(ceiling), number(in_cache(points, goal.spec, direction, size) if goal.peers == 1 else None),
            number(measured), f"{100 * measured / ceiling:.0f} %" if ceiling else MISSING, number(alone),
            f"{goal.value(direction, size, points.best):g}"]


def cycle_limit(results, points, goal: Goal, direction: str, isa: str) -> str:
    """Why a call on a tensor in the second-level cache takes more cycles than its goal; nothing when it does not."""
    aim, cycles = goal.cycles_goal(direction, isa), cycles_of(points, goal.spec, direction, isa)
    if aim is None or cycles is None or cycles <= aim:
        return ""
    point = points.get(goal.spec, bounds.CACHED_SIZE, isa)
    passes = [p for p in bounds.passes_of(goal.spec, direction, bool(point.get("scanned"))) if not p.large]
    ceiling = bounds.Roofline(results["roofline"]["points"]).ceiling(passes, bounds.CACHED_SIZE)
    said = f"- `{goal.spec}`, {direction}, {isa}: {cycles:.2f} cycles of {aim:g}."
    if ceiling is not None:
        least = point["memcpy_s"] / point["elements"] * 1e9 * point["clock_ghz"] / ceiling
        said += f" Its passes alone take {least:.2f} at the speeds of that cache ({bounds.in_words(passes)})."
    if (goal.spec, direction, isa) in bounds.COUNTED:
        count, words = bounds.COUNTED[goal.spec, direction, isa]
        said += f" {count:g} instructions per element, {count / cycles:.1f} a cycle: {words}."
    return said


def cycle_limits(results, points) -> list:
    isas = dict.fromkeys([points.best, "avx2"])
    lines = [cycle_limit(results, points, goal, direction, isa)
             for isa in isas for goal in GOALS for direction in ("encode", "decode")]
    lines = [line for line in lines if line]
    if not lines:
        return []
    return [f"Calls on {size_text(bounds.CACHED_SIZE)} that take more cycles per element than their goals, whether or not the multiples are reached:",
            "\n".join(lines)]


def what_bounds(results) -> list:
    points = Points(results)
    line = bounds.Roofline(results["roofline"]["points"])
    rows = [bound_row(results, line, *miss) for miss in missed(results, points)]
    if not rows:
        none = ["## What bounds the goals that were missed", "None was missed.", *cycle_limits(results, points)]
        return none if goal_rows(results, points) else []
    return ["## What bounds the goals that were missed",
            table(["codec", "", "passes", "bytes per element", "ceiling", "in the cache", "measured",
                   "of the ceiling", "codec alone", "goal"], rows, left=3),
            "Bytes per element: read and written beyond the second-level cache. Ceiling: the passes at the speeds of "
            "the roofline below, without arithmetic; more than 100 % where a pass finds part of the tensor in the "
            f"cache still. In the cache: the same call on {size_text(bounds.CACHED_SIZE)}, by memcpy of the row's "
            "size. Where that is near what was measured, arithmetic (and what a call costs whatever its size) bounds "
            "the row, not memory. Codec alone: its own encode, without the pipeline's look for zeros and NaN before it.",
            commands(results, "codec only"), *cycle_limits(results, points)]


def roofline(results) -> list:
    found = {(p["operation"], p["bytes"]): p for p in results["roofline"]["points"]}
    sizes = sorted({size for _, size in found})
    rows = [[operation, *(f"{p['gb_per_s']:.1f} ({p['x_memcpy']:.2f})" if p else MISSING for p in
                          (found.get((operation, s)) for s in sizes))]
            for operation in dict.fromkeys(operation for operation, _ in found)]
    if not rows:
        return []
    return ["## Roofline", "What one core does with plain loops: GB of the tensor per second, in parentheses "
            "multiples of memcpy. `read two` and `r += g` take two tensors, counted once.",
            table(["operation", *map(size_text, sizes)], rows), commands(results, "roofline")]


def threads(results) -> list:
    found = results["threads"]
    if not found:
        return []
    copies = {p["bytes"]: p["encode"] for p in found if p["codec"] == "memcpy"}

    def speedup(s, goal):
        own = f"{number(s['median'])} ({number(s['low'])}–{number(s['high'])})"
        return [own, verdict(s["median"], goal)]

    rows = [[f"`{p['codec']}`", size_text(p["bytes"]), *speedup(p["encode"], threads_goal(p["codec"])),
             *speedup(p["decode"], threads_goal(p["codec"])),
             number(copies[p["bytes"]]["median"])] for p in found if p["codec"] != "memcpy"]
    return ["## Two threads", f"Time with one thread over time with two, pairs by the clock on the wall; the goal is "
            f"{threads_goal('int8')} from 4 MiB on, {threads_goal('topk')} for codecs that select elements. The last column is memcpy in slices by the same two threads: what the "
            "machine gives.",
            table(["codec", "size", "encode", "", "decode", "", "memcpy"], rows), commands(results, "threads")]


def small_call_limits(found) -> list:
    slow = [p["codec"] for p in found if "encode" in p and p["encode"]["microseconds"] > small_call_goal(p["codec"])]
    lines = [f"- `{spec}`: {bounds.SMALL_CALLS[spec]}." for spec in slow if spec in bounds.SMALL_CALLS]
    return ["Where the time of a missed goal goes, with times of one core of Zen 3 at 3.2 GHz:", "\n".join(lines)] if lines else []


def small_calls(results) -> list:
    found = results["c_abi"]
    if not found:
        return []

    def micro(t, goal):
        good = t["microseconds"] <= goal
        return [f"{t['microseconds']:.2f} ({t['low']:.2f}–{t['high']:.2f})",
                "met" if good else f"**missed by {100 * (t['microseconds'] / goal - 1):.0f} %**"]

    rows = [[f"`{p['codec']}`" + (" (feedback)" if p["feedback"] else ""), p["frame_bytes"], 
             *micro(p["encode"], small_call_goal(p["codec"])), *micro(p["decode"], small_call_goal(p["codec"]))] for p in found if "encode" in p]
    return ["## A call on 4 KiB through the C ABI",
            "`laconic_encode` and `laconic_decode` of liblaconic.so on 32 x 32 floats: a whole frame with its header "
            "and checksum, in microseconds; eight gradients in turn. "
            f"The goal is {small_call_goal('int8'):g}, of powersgd and sidco {small_call_goal('sidco'):g}.",
            table(["codec", "frame bytes", "encode µs", "", "decode µs", ""], rows), *small_call_limits(found), commands(results, "c_abi")]


def server(results) -> list:
    found = aggregation_page.section(results)
    return [*found, commands(results, "server")] if found else []


def laconic_time(points, spec, size):
    """Encode, in multiples of memcpy; PowerSGD's hook decodes too."""
    point = points.get(spec, size)
    if not point:
        return None
    if spec.startswith("powersgd"):
        return 1 / (1 / point["encode_x_memcpy"] + 1 / point["decode_x_memcpy"])
    return point["encode_x_memcpy"]


def baseline_row(points, p) -> list:
    plain = p["laconic"] + "+noef"
    cells = []
    for spec in (p["laconic"], plain):
        own = laconic_time(points, spec, p["bytes"])
        cells += [number(own), MISSING if own is None else f"{own / p['x_memcpy']:.1f}"]
    return [p["what"], size_text(p["bytes"]), f"{1e3 * p['seconds']:.3g}", with_spread(p["x_memcpy"], p["spread"]),
            f"`{p['laconic']}`", *cells]


def baselines(results) -> list:
    found = results["baselines"].get("points", [])
    if not found:
        return ["## PyTorch on the same machine", "Not measured: " + results["baselines"].get("reason", "unknown")]
    points = Points(results)
    return ["## PyTorch on the same machine",
            f"PyTorch {results['baselines']['torch']}, one thread, against memcpy in its own process, huge pages. "
            "`torch.topk` is given |g| and keeps no order. Laconic's figures are of this run: encode, for PowerSGD "
            "encode and decode. *Times as fast*: of the multiples of memcpy.",
            table(["PyTorch", "size", "ms", "x memcpy", "Laconic", "x memcpy", "times as fast", "without feedback",
                   "times as fast"], [baseline_row(points, p) for p in found]), commands(results, "baselines")]


GRACE_GOAL = {"topk+noef": 50}  # times as fast; the others 20


#: what these are in PyTorch: passes that are vectorised there, too
GRACE_PASSES = {
    "threshold:v=0.0046+noef": "magnitudes, a comparison, the indices and a gather of few",
    "signsgd": "one comparison",
    "signum": "two products, a sum and a comparison",
    "efsignsgd+noef": "a comparison, magnitudes and their mean",
    "powersgd+noef": "two products by the BLAS, with fused multiply-adds, which round once and are not the same on every machine",
}


def grace_limit(results, own, p, goal) -> str:
    """Why a method that PyTorch does in few passes cannot be so many times as fast."""
    spec, size = p["laconic"], p["bytes"]
    passes = bounds.passes_of(spec, "encode", bool(own.get("scanned")))
    ceiling = bounds.Roofline(results["roofline"]["points"]).ceiling(passes, size)
    aim = goal * p["x_memcpy"]
    allowed = "" if ceiling is None else (
        f", of {ceiling:.2g} that its passes allow without arithmetic ({bounds.in_words(passes)})")
    return (f"- `{spec}`: PyTorch needs the time of {1 / p['x_memcpy']:.2g} memcpys ({GRACE_PASSES.get(spec, 'few passes')}); {goal} "
            f"times as fast would be {aim:.2g} x memcpy{allowed}.")


def grace(results) -> list:
    points = Points(results)
    found = results["baselines"].get("grace", [])
    if not found:
        return []
    rows, limits = [], []
    for p in found:
        own = points.get(p["laconic"], p["bytes"])
        goal = GRACE_GOAL.get(p["laconic"], 20)
        times = own["encode_x_memcpy"] / p["x_memcpy"] if own else None
        rows.append([f"`{p['laconic']}`", f"{1e3 * p['seconds']:.3g}", number(p["x_memcpy"]), number(own and own["encode_x_memcpy"]),
                     MISSING if times is None else f"{times:.0f}", verdict(times, goal)])
        if times is not None and times < goal:
            limits.append(grace_limit(results, own, p, goal))
    return ["## GRACE's definitions in PyTorch", f"The same methods as GRACE defines them (`bench/grace_methods.py`), one thread, "
            f"{size_text(found[0]['bytes'])}: what compressing alone takes, nothing packed. Made by the last command of the section before.",
            table(["Laconic", "PyTorch, ms", "x memcpy", "Laconic, x memcpy", "times as fast", "goal 20, topk 50"], rows),
            "Both sides encode alone. Of GRACE's step that leaves out its memory (compensation, decoding its own payload, the residual) and "
            "the decoding of every rank's payload; PowerSGD has Laconic's rank here, QSGD its buckets, the sparsifiers its ratios.",
            *(["Why the others fall short: the peer is a few vectorised passes itself.", "\n".join(limits)] if limits else [])]


def everything_row(points, isas, spec, size) -> list:
    found = [p for p in points.all if p["codec"] == spec and 4 * p["elements"] == size]
    point = found[0] if found else None
    if point is None:
        return []
    error = point["error_metrics"]
    cells = [f"`{spec}`", size_text(size), f"{point['payload_bytes']:,}", number(point["ratio"]),
             f"{error['relative_l2']:.3g}", f"{error['cosine']:.4f}"]
    for direction in ("encode", "decode"):
        for isa in isas:
            p = points.get(spec, size, isa)
            cells.append(MISSING if p is None else with_spread(p[f"{direction}_x_memcpy"], p[f"{direction}_spread"])
                         if isa == points.best else number(p[f"{direction}_x_memcpy"]))
    return cells


def everything(results) -> list:
    points = Points(results)
    isas = [isa for isa in reversed(results["isas"]) if any(p["isa"] == isa for p in points.all)]
    rows = [everything_row(points, isas, spec, size) for spec in points.specs() for size in points.sizes()]
    head = ["codec", "size", "bytes", "ratio", "rel. L2", "cosine", *(f"encode {isa}" for isa in isas),
            *(f"decode {isa}" for isa in isas)]
    return ["## Every codec, size and instruction set",
            "One thread, multiples of memcpy. Bytes and errors are the same on all instruction sets.",
            table(head, [row for row in rows if row]), reproduction(results, points)]


def not_measured(results) -> list:
    lines = [f"- `{f['command']}`: {f['reason']}" for f in results["failures"]]
    lines += [f"- left out for lack of time: {what}" for what in results["left_out"]]
    return ["## Not measured", "\n".join(lines)] if lines else []


def markdown(results) -> str:
    short = " of the short version: **not for publication**" if results["quick"] else ""
    intro = (f"Made by `{results.get('command', 'make bench')}` in one run{short}, {results['seconds']:.0f} s. All "
             "numbers, with their spreads, are in the JSON file beside this one; `scripts/bench_compare A.json B.json` "
             "compares two runs.")
    alone = results.get("server_alone", False)
    parts = ["# An aggregation server on a CPU" if alone else "# Codecs on a CPU", intro, results.get("remark", "")]
    everywhere = (machine, method, goals, what_bounds, roofline, threads, small_calls, server, baselines, grace, everything, not_measured)
    for section in (machine, server, not_measured) if alone else everywhere:
        parts += section(results)
    return "\n\n".join(part for part in parts if part) + "\n"
