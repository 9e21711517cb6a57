# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The tables of engines.md, from the cells of engines.py. A table is there once all of its cells are."""

from __future__ import annotations

import statistics

from bench.lib.tables import table

LIBRARIES = {"c10d": "torch.distributed", "gloo": "Gloo", "openmpi": "Open MPI", "mpich": "MPICH"}
MS, RATIO = "{:,.1f}", "{:.2f}"


def spec_name(spec: str, known) -> str:
    """Specs are given as users write them and answered as canonical ones, in the same order."""
    return spec if spec in known else next((other for other in known if other.split(":")[0] == spec.split(":")[0]), spec)


def calls(library: str, cell: dict) -> dict[str, tuple]:
    """For each codec: seconds of the engine's own all-reduce, of a call and of its wire, and the bytes sent."""
    if library == "c10d":
        return {spec: (v["native"], v["step"], v["wire"], v["wire_bytes"]) for spec, v in cell["specs"].items()}
    return {row["codec"]: (row["native"]["time"] / 1e6, row["time"] / 1e6, row["wire"] / 1e6, row["sent"]) for row in cell["results"]}


def libraries(cells: list[dict]) -> dict:
    found = [calls(name, cell) for name, cell in zip(LIBRARIES, cells)]
    found = [{spec_name(spec, found[0]): call for spec, call in known.items()} for known in found]
    natives = [sorted(native for native, *_ in known.values()) for known in found]
    rows = [["engine's own all-reduce", 12, *(f"{1e3 * (native := known[len(known) // 2]):,.1f}, {8 / 1024 / native:.3f}" for known in natives)]]
    for spec, (*_, sent) in found[0].items():
        rows.append([f"`{spec}`", sent / (1 << 20), *([1e3 * known[spec][1], 1e3 * known[spec][2], 8 / 1024 / known[spec][1]] if spec in known else None
                                                     for known in found)])
    return table(["exchange", ("sent MiB", "{:.3g}"), *((name, "{:,.1f} ({:,.1f}), {:.3f}") for name in LIBRARIES.values())], rows)


def sums(cells: list[dict]) -> dict:
    rows = [[LIBRARIES[name], ranks, p["bytes"] / (1 << 20), *(1e3 * p[key] for key in ("own", "mean", "laconic")), p["ratio"], p["laconic"] / p["mean"]]
            for (name, ranks), cell in zip(((name, ranks) for name in ("gloo", "openmpi", "mpich") for ranks in (2, 4)), cells) for p in cell["points"]]
    return table(["library", "ranks", ("MiB", "{:g}"), ("its sum ms", MS), ("and divided ms", MS), ("laconic ms", MS), ("of the sum", RATIO),
                  ("of the mean", RATIO)], rows)


def windows(cells: list[dict]) -> dict:
    rows = []
    for spec, cell in zip(("int8", "3lc"), cells):
        one, two, free = cell["window 1"], cell["window 2"], cell["no limit"]
        low, median, high = statistics.quantiles((call["time"] / max(call["wire"], call["coding"]) for call in cell["runs"]["window 2"]), n=4)
        rows.append([f"`{spec}`", cell["rate"], *(us / 1e3 for us in (two["wire"], two["coding"], one["time"], two["time"])), [median, low, high],
                     two["time"] / one["time"], free["time"] / 1e3, free["time"] / max(two["wire"], two["coding"])])
    return table(["exchange", "rate", ("wire ms", MS), ("codec ms", MS), ("window 1 ms", MS), ("window 2 ms", MS),
                  ("of the longer (quartiles)", "{:.3f} ({:.2f} to {:.2f})"), ("of window 1", RATIO), ("no limit ms", MS), ("no limit, of the longer", RATIO)], rows)


def slow(cells: list[dict]) -> dict:
    rows = [[LIBRARIES[name], f"`{row['codec']}`", row["native"]["time"] / 1e3, *(row[key] / 1e3 for key in ("time", "wire", "coding")), row["speedup"]]
            for name, cell in zip(("openmpi", "gloo"), cells) for row in cell["results"]]
    return table(["library", "exchange", ("its own ms", MS), ("laconic ms", MS), ("wire ms", MS), ("codec ms", MS), ("times faster", "{:.1f}")], rows)


def steps(cells: list[dict]) -> dict:
    found, = (cell["specs"] for cell in cells)
    rows = [[f"`{name}`", 1e3 * here["step"], here["step"] / found["pytorch:ddp"]["step"], 1e3 * here["computing"],
             *((1e3 * (here["encode_seconds"] + here["decode_seconds"]), 1e3 * here["wire"]) if "encode_seconds" in here else ("", ""))]
            for name, here in found.items()]
    return table(["exchange", ("step ms", MS), ("of plain DDP", RATIO), ("computing ms", MS), ("codec ms", MS), ("wire alone ms", MS)], rows)


def machine_of(cells: list[dict]) -> str:
    """Once for each that differs."""
    known = ({key: value for key, value in cell["machine"].items() if key != "load at the start"} for cell in cells)
    return "; ".join(dict.fromkeys(", ".join(f"{key}: {value}" for key, value in each.items()) for each in known))


TABLES = {"libraries": (libraries, [f"libraries-{name}" for name in LIBRARIES]),
          "sums": (sums, [f"sums-{name}-{ranks}" for name in ("gloo", "openmpi", "mpich") for ranks in (2, 4)]),
          "two in flight": (windows, ["window-int8", "window-3lc"]), "a slow network": (slow, ["long-openmpi", "long-gloo"]),
          "perceptron, 200 Mbit/s": (steps, ["perceptron-200mbit"]), "perceptron, without a limit": (steps, ["perceptron-off"]),
          "buckets": (steps, ["buckets"]), "buckets, four hosts": (steps, ["buckets-100mbit"])}


def tables_of(cells: dict, before: dict) -> dict[str, dict]:
    """cells: by name what engines.py has, or None; before: the tables that there are, which stand until all of their cells are made again."""
    whole = {key: [cells[name] for name in names] for key, (_, names) in TABLES.items() if all(cells[name] for name in names)}
    places = dict(before.get("machine", {"rows": []})["rows"]) | {key: machine_of(some) for key, some in whole.items()}
    made = {key: TABLES[key][0](some) for key, some in whole.items()}
    return {**before, **made, "machine": table(["table", "machine"], places.items())}
