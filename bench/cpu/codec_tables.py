# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The tables of codecs-cpu.md and aggregation-server.md, from what the programs of run.py print."""

from __future__ import annotations

from bench.lib.programs import size_word
from bench.lib.tables import of_pairs, table

SPREAD = "{:s3} ({:s3}–{:s3})"


def size_text(size: int) -> str:
    return size_word(size).replace("Mi", " MiB").replace("Ki", " KiB")


def figure(value):
    """Four digits."""
    return None if value is None else float(f"{value:.4g}")


def spread(found: dict, key: str = "median") -> list:
    return [figure(found[each]) for each in (key, "low", "high")]


def times(point: dict, direction: str) -> list:
    """Multiples of memcpy."""
    return spread({"median": point[f"{direction}_x_memcpy"], **point[f"{direction}_spread"]})


class Points:
    """Results of `laconic bench`, by what was measured."""

    def __init__(self, results: dict):
        self.isas = results["isas"]
        self.found = {(p["codec"], 4 * p["elements"], p["isa"]): p for p in results["points"]}

    def get(self, spec: str, size: int, isa: str | None = None):
        return self.found.get((spec, size, isa or self.isas[-1]))

    def of_best(self) -> list:
        """(spec, size, point), the sizes of a codec together."""
        specs = list(dict.fromkeys(spec for spec, _, _ in self.found))
        found = [key[:2] for key in self.found if key[2] == self.isas[-1]]
        return [(*key, self.get(*key)) for key in sorted(found, key=lambda key: (specs.index(key[0]), key[1]))]


def codecs(points: Points) -> dict:
    return table(["codec", "size", ("bytes", "{:,}"), ("ratio", "{:s3}"), ("rel. L2", "{:.3g}"), ("cosine", "{:.4f}"), ("encode", SPREAD), ("decode", SPREAD)],
                 ([f"`{spec}`", size_text(size), p["payload_bytes"], figure(p["ratio"]), *(figure(p["error_metrics"][key]) for key in ("relative_l2", "cosine")),
                   times(p, "encode"), times(p, "decode")] for spec, size, p in points.of_best()))


def instruction_sets(points: Points) -> dict:
    """All others at the one size at which they were measured."""
    rows = [[f"`{spec}`", size_text(size), isa, times(p, "encode"), times(p, "decode")]
            for (spec, size, isa), p in points.found.items() if isa != points.isas[-1]]
    return table(["codec", "size", "instruction set", ("encode", SPREAD), ("decode", SPREAD)], rows)


def fused(found: list) -> dict:
    return table(["codec", "size", "peers", ("decode", SPREAD)],
                 ([f"`{p['codec']}`", size_text(4 * p["elements"]), p["peers"], times(p, "decode")] for p in found))


def threads(found: list) -> dict:
    return table(["codec", "size", ("encode", SPREAD), ("decode", SPREAD)],
                 ([p["codec"] if p["codec"] == "memcpy" else f"`{p['codec']}`", size_text(p["bytes"]), spread(p["encode"]), spread(p["decode"])] for p in found))


def calls(found: list) -> dict:
    return table(["codec", ("frame bytes", "{:,}"), ("encode µs", SPREAD), ("decode µs", SPREAD)],
                 ([f"`{p['codec']}`", p["frame_bytes"], *(spread(p[way], "microseconds") for way in ("encode", "decode"))] for p in found if "encode" in p))


def laconic_time(points: Points, spec: str, size: int):
    """Encode, in multiples of memcpy; PowerSGD's hook decodes, too."""
    point = points.get(spec, size)
    if point is None or not spec.startswith("powersgd"):
        return point and point["encode_x_memcpy"]
    return 1 / (1 / point["encode_x_memcpy"] + 1 / point["decode_x_memcpy"])


def pytorch(points: Points, found: list) -> dict:
    rows = []
    for p in found:
        own = [laconic_time(points, spec, p["bytes"]) for spec in (p["laconic"], p["laconic"] + "+noef")]
        rows.append([p["what"], size_text(p["bytes"]), figure(1e3 * p["seconds"]), spread({"median": p["x_memcpy"], **p["spread"]}), f"`{p['laconic']}`",
                     *(each and figure(each / p["x_memcpy"]) for each in own)])
    return table(["PyTorch", "size", ("ms", "{:s3}"), ("x memcpy", SPREAD), "Laconic", ("times as fast", "{:.1f}"), ("without feedback", "{:.1f}")], rows)


def failures(results: dict) -> dict:
    return table(["command", "why"], [*([f"`{f['command']}`", f["reason"]] for f in results["failures"]),
                                      *([what, "left out"] for what in results["left_out"])])


def of_codecs(results: dict) -> dict:
    points = Points(results)
    parts = {"machine": of_pairs(results["machine"].items()), "codecs": codecs(points), "instruction sets": instruction_sets(points),
             "fused decode": fused(results["fused"]), "two threads": threads(results["threads"]),
             "small calls": calls(results["c_abi"]), "pytorch": pytorch(points, results["baselines"].get("points", [])),
             "not measured": failures(results)}
    return {key: found for key, found in parts.items() if found["rows"]}


# ---- the aggregation server ----


def io(found: dict) -> dict:
    """Results of `gso`, and of a job next to one that floods."""
    names = {"gso_to_echo": "`gso` against the echo", "gso_to_mmsg": "`gso` against `mmsg`", "beside_flood": "beside a job that floods, against alone"}
    return table(["", ("results/s", "{:.2f} ({:.2f}–{:.2f})"), ("per processor second", "{:.2f} ({:.2f}–{:.2f})")],
                 ([text, spread(found[key]), None if key == "beside_flood" else spread(found[f"{key}_cpu"])] for key, text in names.items()))


def kernel(found: dict) -> dict:
    return table(["", ("", "{:.3f} ({:.3f}–{:.3f})")], [["`xdp` against `mmsg`", spread(found["xdp_to_mmsg"])],
                                                      ["processor time of `xdp`'s process, of the time", spread(found["process"])]])


def rates(found: dict) -> dict:
    known = [(name, where[name]) for where in (found, found.get("switch", {})) for name in ("gso", "echo", "mmsg", "xdp") if name in where]
    places = ["loopback", "loopback", "loopback"] + ["behind a switch"] * 2
    return table(["", "", ("thousand sums/s", "{:,.0f}")],
                 ([f"`{name}`", place, figure(each["median"] / 1e3)] for place, (name, each) in zip(places, known)))


SUMS = {"by_worker": "datagram by datagram", "as_server": "as the server adds", "at_once": "all workers at once"}


def sums(found: list) -> dict:
    return table([("Ki elements", "{:,}"), "", ("ns per element", "{:.3f}"), ("times float32", "{:.1f} ({:.1f}–{:.1f})")],
                 ([p["elements"] >> 10, text, figure(1e9 * p[key]["first"]["median"] / p["elements"]), spread(p[key]["ratio"])]
                  for p in found for key, text in SUMS.items()))


def middle(server: dict) -> dict:
    """Computation on a server: thc's time over the others'."""
    scale, rows = 1e3 / (server["elements"] / 1e6), []
    for row in server["rows"]:
        own = row["second"]["median"] if "ratio" in row else min(r["first"]["median"] for r in server["rows"] if "ratio" in r)
        rows.append([f"`{row['spec']}`", *(figure(8 * row[way] / server["elements"]) for way in ("up", "down")), figure(row.get("nmse")), figure(own * scale),
                     *(figure(1 / row[key]["median"]) if key in row else None for key in ("by_worker", "as_server", "cached", "ratio"))])
    return table(["codec", ("bits up", "{:.2f}"), ("bits down", "{:.2f}"), ("NMSE", "{:.2g}"), ("ms per million elements", "{:.2f}"),
                  ("`thc` / it, apart", "{:.3f}"), ("received", "{:.3f}"), ("in the cache", "{:.3f}"), ("all at once", "{:.3f}")], rows)


def of_server(results: dict) -> dict:
    found = {"machine": of_pairs(results["machine"].items())}
    io_found, cpu = results["server"]["io"], results["server"]["cpu"]
    if "gso" in io_found:
        found |= {"input and output": io(io_found), "rates": rates(io_found)}
    if "xdp" in io_found.get("switch", {}):
        found["in the kernel"] = kernel(io_found["switch"])
    if cpu:
        found |= {"sums": sums(cpu["sum"]), "a server in the middle": middle(cpu["server"])}
    return {key: each for key, each in (found | {"not measured": failures(results)}).items() if each["rows"]}
