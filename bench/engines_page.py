# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""What engines.py found, as Markdown: every statement in it is computed from the figures."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from prose import bullets, table, wrapped

LIBRARIES = {"c10d": "torch.distributed", "gloo": "Gloo", "openmpi": "Open MPI", "mpich": "MPICH"}
MISSING = "not measured"
#: One exchange ranks before another where it is by so much faster: less may be noise.
CLEAR = 1.1

HEAD = """# Engines

What compressed averaging takes over each engine, beside the engine's own all-reduce and beside the wire alone: steps of as many bytes
with nothing to encode and nothing to decode, which no codec of that size can beat. Seconds are medians of the slowest rank; what is
compared took turns in one run. Everything on this page was written by `make engines`; a part of it again: `bench/engines.py NAME…`,
after its file under `out/engines` is deleted.
"""


def milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.1f}"


def mib(size: float) -> str:
    return f"{size / (1 << 20):.3g}"


# ---- one table for all libraries ----


@dataclass
class Call:
    """One library with one codec; seconds."""

    native: float
    step: float
    wire: float
    sent: float


def calls(library: str, cell: dict | None) -> dict[str, Call]:
    if cell is None:
        return {}
    if library == "c10d":
        return {spec: Call(v["native"], v["step"], v["wire"], v["wire_bytes"]) for spec, v in cell["specs"].items()}
    return {row["codec"]: Call(row["native"]["time"] / 1e6, row["time"] / 1e6, row["wire"] / 1e6, row["sent"])
            for row in cell["results"]}


def spec_name(spec: str, known) -> str:
    """Specs are asked for as users write them and answered as canonical ones, in the same order."""
    return spec if spec in known else next((other for other in known if other.split(":")[0] == spec.split(":")[0]), spec)


def flips(found: dict[str, dict[str, Call]]) -> list[str]:
    """Pairs of codecs of which one library has the one clearly first, and another the other."""
    lines = []
    names = list(found)
    for a in range(len(names)):
        for b in range(a + 1, len(names)):
            one, other = found[names[a]], found[names[b]]
            shared = [spec for spec in one if spec in other]
            for i, x in enumerate(shared):
                for y in shared[i + 1:]:
                    here, there = one[x].step / one[y].step, other[x].step / other[y].step
                    if max(here, 1 / here) > CLEAR and max(there, 1 / there) > CLEAR and (here > 1) != (there > 1):
                        fast, slow = (x, y) if here < 1 else (y, x)
                        lines.append(f"`{fast}` is before `{slow}` over {LIBRARIES[names[a]]} "
                                     f"({milliseconds(one[fast].step)} and {milliseconds(one[slow].step)} ms), behind it over "
                                     f"{LIBRARIES[names[b]]} ({milliseconds(other[fast].step)} and {milliseconds(other[slow].step)})")
    return lines


def libraries(cells: dict) -> str:
    found = {name: calls(name, cells[f"libraries-{name}"]) for name in LIBRARIES}
    reference = next((known for known in found.values() if known), {})
    found = {name: {spec_name(spec, reference): call for spec, call in known.items()} for name, known in found.items() if known}
    rows = []
    for spec in reference:
        row = [f"`{spec}`", mib(reference[spec].sent)]
        for name in LIBRARIES:
            call = found.get(name, {}).get(spec)
            row.append(f"{milliseconds(call.step)} ({milliseconds(call.wire)}), {8 / 1024 / call.step:.3f}" if call else "–")
        rows.append(row)
    own = ["engine's own all-reduce", mib(2 * 8 * (1 << 20) * 3 / 4)]
    for name in LIBRARIES:
        known = sorted(call.native for call in found.get(name, {}).values())
        own.append(f"{milliseconds(known[len(known) // 2])}, {8 / 1024 / known[len(known) // 2]:.3f}" if known else "–")
    named = flips(found)
    said = ("The ranking differs between libraries:\n\n" + bullets(named)) if named else \
        f"No two codecs that are {100 * (CLEAR - 1):.0f} % apart change places between libraries."
    return "\n".join([
        "## Every codec over every library", "",
        wrapped("8 MiB of gradients on four hosts of a lab, 200 Mbit/s each way, two cores for all. Milliseconds of a call (of the wire "
                "alone), and gradients averaged in GiB/s. MPICH's ranks spin while they wait, four of them on two cores."), "",
        table(["exchange", "sent MiB", *LIBRARIES.values()], [own, *rows]), "", said, ""])


# ---- bars ----

SUMS = ["library", "ranks", "MiB", "its sum ms", "and divided ms", "laconic ms", "of the sum", "of the mean"]
WINDOWS = ["exchange", "rate", "wire ms", "codec ms", "window 1 ms", "window 2 ms", "of the longer (quartiles)", "of window 1", "no limit ms", "no limit, of the longer"]
LONG = ["library", "exchange", "its own ms", "laconic ms", "wire ms", "codec ms", "times faster"]


def missing(head: list[str], *words: str) -> list[str]:
    return [*words, MISSING, *[""] * (len(head) - len(words) - 1)]


def verdict(value: float, bar: float, least: bool = False) -> str:
    return "yes" if (value >= bar if least else value <= bar) else "**no**"


def sums(cells: dict) -> list[list[str]]:
    rows = []
    for name in ("gloo", "openmpi", "mpich"):
        for ranks in (2, 4):
            cell = cells[f"sums-{name}-{ranks}"]
            if cell is None:
                rows.append(missing(SUMS, LIBRARIES[name], str(ranks)))
                continue
            for point in cell["points"]:
                rows.append([LIBRARIES[name], str(ranks), mib(point["bytes"]), milliseconds(point["own"]), milliseconds(point["mean"]),
                             milliseconds(point["laconic"]), f"{point['ratio']:.2f} {verdict(point['ratio'], 1.05)}",
                             f"{point['laconic'] / point['mean']:.2f}"])
    return rows


def why_sums(cells: dict) -> list[str]:
    """Of bars that are missed: how they stand to a mean by the library's sum."""
    points = [point for name in ("gloo", "openmpi", "mpich") for ranks in (2, 4) if cells[f"sums-{name}-{ranks}"] is not None
              for point in cells[f"sums-{name}-{ranks}"]["points"]]
    missed = [point for point in points if point["ratio"] > 1.05]
    if not missed:
        return []
    over = span(f"{1e3 * (point['laconic'] - point['own']):.2g}" for point in missed)
    means = span(f"{point['laconic'] / point['mean']:.2f}" for point in missed)
    one = len(missed) == 1
    return ["", wrapped(f"{len(missed)} of {len(points)} {'is' if one else 'are'} missed, by {over} ms more than the sum; of the sum and a division "
                        f"{'it takes' if one else 'they take'} {means}.")]


def span(texts) -> str:
    """From the least to the most, or the one that there is."""
    known = sorted(set(texts), key=float)
    return known[0] if len(known) == 1 else f"{known[0]} to {known[-1]}"


def windows(cells: dict) -> list[list[str]]:
    rows = []
    for spec in ("int8", "3lc"):
        cell = cells[f"window-{spec}"]
        if cell is None:
            rows.append(missing(WINDOWS, f"`{spec}`"))
            continue
        one, two, free = cell["window 1"], cell["window 2"], cell["no limit"]
        bound = longer(two)
        low, median, high = statistics.quantiles((call["time"] / longer(call) for call in cell["runs"]["window 2"]), n=4)
        rows.append([f"`{spec}`", cell["rate"], *(milliseconds(ns / 1e6) for ns in (two["wire"], two["coding"], one["time"], two["time"])),
                     f"{median:.3f} ({low:.2f} to {high:.2f}) {verdict(median, 1.25)}",
                     f"{two['time'] / one['time']:.2f} {verdict(two['time'] / one['time'], 1.02)}",
                     milliseconds(free["time"] / 1e6), f"{free['time'] / bound:.2f}"])
    return rows


def longer(call: dict) -> float:
    return max(call["wire"], call["coding"])


def why_windows(cells: dict) -> list[str]:
    """Of exchanges that no window can bring to the bar."""
    found = [f"`{spec}`" for spec in ("int8", "3lc") for cell in [cells[f"window-{spec}"]]
             if cell and cell["no limit"]["time"] > 1.25 * longer(cell["window 2"])]
    if not found:
        return []
    return ["", wrapped(f"A call of {' or '.join(found)} without a limit takes more than 1.25 of the longer, too: each host has one core, "
                        "which encodes, decodes and copies what TCP sends and receives. No window hides that.")]


def longs(cells: dict) -> list[list[str]]:
    rows = []
    for name in ("openmpi", "gloo"):
        cell = cells[f"long-{name}"]
        if cell is None:
            rows.append(missing(LONG, LIBRARIES[name]))
            continue
        for row in cell["results"]:
            bar = {"int8": 3.4, "3lc": 12}[row["codec"].split(":")[0]]
            rows.append([LIBRARIES[name], f"`{row['codec']}`", milliseconds(row["native"]["time"] / 1e6), milliseconds(row["time"] / 1e6),
                         milliseconds(row["wire"] / 1e6), milliseconds(row["coding"] / 1e6),
                         f"{row['speedup']:.1f} {verdict(row['speedup'], bar, least=True)} (≥ {bar})"])
    return rows


def step_row(name: str, here: dict, of: float) -> list[str]:
    coding = here["encode_seconds"] + here["decode_seconds"] if "encode_seconds" in here else None
    return [f"`{name}`", milliseconds(here["step"]), f"{here['step'] / of:.2f}", milliseconds(here["computing"]),
            "" if coding is None else milliseconds(coding), "" if coding is None else milliseconds(here["wire"])]


STEPS = ["exchange", "step ms", "of plain DDP", "computing ms", "codec ms", "wire alone ms"]


def step_table(found: dict) -> str:
    plain = found["pytorch:ddp"]["step"]
    return table(STEPS, [step_row(name, here, plain) for name, here in found.items()])


def perceptron(cells: dict, rate: str) -> str:
    cell = cells[f"perceptron-{rate}"]
    if cell is None:
        return MISSING + "\n"
    found = cell["specs"]
    plain, little, bars = found["pytorch:ddp"]["step"], found["little"]["step"], []
    if rate == "200mbit":
        int8 = found["int8"]
        bound = max(int8["wire"], int8["computing"] + int8["encode_seconds"] + int8["decode_seconds"])
        bars.append(("`int8` of the longer of wire and computing with codec", int8["step"] / bound, 1.25))
        bars.append(("`3lc` of the hook that gathers 100 bytes", found["3lc"]["step"] / little, 1.5))
        bars.append(("`sidco:ratio=0.001` of that hook", found["sidco:ratio=0.001"]["step"] / little, 1.3))
    else:
        bars.append(("`none` of plain DDP", found["none"]["step"] / plain, 1.05))
        bars.append(("`3lc` of plain DDP", found["3lc"]["step"] / plain, 1.0))
        bars.append(("`topk:ratio=0.001` of plain DDP", found["topk:ratio=0.001"]["step"] / plain, 1.0))
    return "\n".join([step_table(found), "", bar_table(bars), ""])


def bar_table(bars) -> str:
    return table(["bar", "measured", "at most", ""], [[what, f"{value:.2f}", f"{bar:g}", verdict(value, bar)] for what, value, bar in bars])


def buckets(cells: dict, name: str, bar: float | None = None) -> str:
    cell = cells[name]
    if cell is None:
        return MISSING + "\n"
    found = cell["specs"]
    lines = [step_table(found), ""]
    if bar is not None:
        plain = found["pytorch:ddp"]["step"]
        lines += [bar_table([(f"`{spec}` of plain DDP", here["step"] / plain, bar) for spec, here in found.items()
                             if not spec.startswith("pytorch:")]), ""]
    return "\n".join(lines)


def machines(cells: dict) -> str:
    """Once for each that differs."""
    seen: dict[str, list[str]] = {}
    for name, cell in cells.items():
        if cell is not None:
            known = {key: value for key, value in cell["machine"].items() if key != "load at the start"}
            seen.setdefault(", ".join(f"{key}: {value}" for key, value in known.items()), []).append(name)
    return bullets(f"{text} ({', '.join(names)})" if len(seen) > 1 else text for text, names in seen.items())


def page(cells: dict) -> str:
    """cells: by name what engines.py keeps, or None."""
    return "\n".join([
        HEAD,
        libraries(cells),
        "## Sums that the engine takes", "",
        wrapped("`none` by `native_sum` in a C++ session beside the library's own blocking all-reduce of the same array, on this machine "
                "without a network. Laconic gives the mean, the library the sum; divided: with the pass that makes a mean of it. Medians of "
                "five launches. Bar: at most 1.05 of the sum."), "",
        table(SUMS, sums(cells), left=2), *why_sums(cells), "",
        "## Two exchanges in flight", "",
        wrapped("32 MiB in parts of 4 MiB over Gloo, two hosts, at the rate at which the wire takes as long as the codec. Bars: a call "
                "with window 2 takes at most 1.25 times the longer of wire and codec, and at most 1.02 of a call with window 1. Of the longer: each turn against its own wire and codec. No limit: the same with window 2, all of it work of the cores. Frames carry 9,000 bytes."), "",
        table(WINDOWS, windows(cells)), *why_windows(cells), "",
        "## A slow network from C++", "",
        "64 MiB on four hosts at 100 Mbit/s, against the engine's all-reduce.", "",
        table(LONG, longs(cells), left=2), "",
        "## PyTorch: a perceptron of 24.8 M parameters", "",
        wrapped("Digits, hidden layers of 3500, 3500 and 3500, DDP's buckets of 25 MB, four hosts that share two cores. `little` is a "
                "hook that gathers 100 bytes for each bucket; computing is a step without an exchange."), "",
        "### 200 Mbit/s", "", perceptron(cells, "200mbit"),
        "### Without a limit", "", perceptron(cells, "off"),
        "## PyTorch: 32 buckets of 64 kB", "",
        wrapped("Two processes of this machine; a step is hardly more than its exchanges. `pytorch:hook` is PyTorch's own all-reduce, as a "
                "hook in Python. Which core each thread of two processes gets changes from minute to minute, and the step of plain DDP with "
                "it: make this cell several times before you believe its ratios."), "",
        buckets(cells, "buckets", 1.25),
        "### Four hosts, 100 Mbit/s", "",
        wrapped("Gradients come 2 ms apart, as from a GPU: nobody computes meanwhile. Buckets that would be longer than `part` together "
                "travel apart."), "",
        buckets(cells, "buckets-100mbit"),
        "## Machine", "", machines(cells), ""])
