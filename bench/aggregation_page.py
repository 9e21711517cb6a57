# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The aggregation server's figures as Markdown: a section of any page that has them."""

from __future__ import annotations

import programs  # noqa: F401, where prose is
from prose import table

ECHO_GOAL, ECHO_AIM, MMSG_GOAL, FLOOD_GOAL, SUM_GOAL, CPU_GOAL = 0.6, 0.8, 4, 0.4, 12, 0.2
XDP_GOAL, XDP_CPU_GOAL = 1.0, 0.05


def verdict(measured: float, goal: float, at_most: bool = False) -> str:
    part = goal / measured if at_most else measured / goal
    return f"met, {100 * (part - 1):+.0f} %" if part >= 1 else f"**missed by {100 * (1 - part):.0f} %**"


def spread(s: dict, digits: int = 2) -> str:
    return f"{s['median']:.{digits}f} ({s['low']:.{digits}f}–{s['high']:.{digits}f})"


def thousands(x: float) -> str:
    return f"{x / 1e3:,.0f}"


def io_section(io: dict) -> list[str]:
    if "gso" not in io:
        return [f"Input and output were not measured: {io.get('reason', 'see the end')}."]
    rows = [["`gso` against the echo", spread(io["gso_to_echo"]), spread(io["gso_to_echo_cpu"]),
             f"≥ {ECHO_GOAL}, aim {ECHO_AIM}", verdict(io["gso_to_echo"]["median"], ECHO_GOAL)],
            ["`gso` against `mmsg`", spread(io["gso_to_mmsg"], 1), spread(io["gso_to_mmsg_cpu"], 1),
             f"≥ {MMSG_GOAL}", verdict(io["gso_to_mmsg"]["median"], MMSG_GOAL)],
            ["beside a job that floods, against alone", spread(io["beside_flood"]), "–", f"≥ {FLOOD_GOAL}",
             verdict(io["beside_flood"]["median"], FLOOD_GOAL)]]
    return [f"Sums that {io['workers']} workers get over the loopback interface, granules of {io['lanes']:,} codes of 4 bits, "
            f"medians of {io['rounds']} turns. The *echo* answers as many datagrams of the same lengths by segmentation in the kernel and "
            "looks at nothing in them. The job that floods repeats one contribution as fast as a thread can; alone, that thread sends "
            "elsewhere. One thread drives the workers: where it is the slower side, results per second of the "
            "server's processor time say more.",
            table(["", "results/s", "per processor second", "goal", ""], rows),
            f"Sums in a second: `gso` {thousands(io['gso']['median'])} thousand, echo {thousands(io['echo']['median'])}, `mmsg` "
            f"{thousands(io['mmsg']['median'])}.",
            *kernel_section(io.get("switch"))]


def kernel_section(switch: dict | None) -> list[str]:
    """`xdp` against `mmsg`; nothing in results of before it was measured."""
    if switch is None:
        return []
    if "xdp" not in switch:
        return [f"`xdp` was not measured: {switch.get('reason', 'see the end')}."]
    ratio, process = switch["xdp_to_mmsg"], switch["process"]
    rows = [["`xdp` against `mmsg`", spread(ratio), f"≥ {XDP_GOAL}", verdict(ratio["median"], XDP_GOAL)],
            ["processor time of `xdp`'s process, of the time", spread(process, 3), f"≤ {XDP_CPU_GOAL}",
             verdict(process["median"], XDP_CPU_GOAL, at_most=True)]]
    return [f"The same workers behind the ports of a switch of veth pairs, medians of {switch['rounds']} turns; `xdp`: a program in the "
            "kernel adds at the ports. The workers' thread and the kernel share the machine's processors.",
            table(["", "", "goal", ""], rows),
            f"Sums in a second: `xdp` {thousands(switch['xdp']['median'])} thousand, `mmsg` {thousands(switch['mmsg']['median'])}."]


def sum_section(cpu: dict) -> list[str]:
    rows = []
    for point in cpu["sum"]:
        for key, name in (("by_worker", "datagram by datagram"), ("as_server", "as the server adds"), ("at_once", "all workers at once")):
            if key not in point:
                continue  # results of before
            ratio = point[key]["ratio"]
            rows.append([f"{point['elements'] >> 10:,} Ki", name, f"{1e9 * point[key]['first']['median'] / point['elements']:.3f}",
                         spread(ratio, 1), verdict(ratio["median"], SUM_GOAL)])
    return [f"Adding codes of {cpu['sum'][0]['workers']} workers by table into lanes of 8 bits, beside adding as many float32 ({cpu['isa']}); "
            f"the goal is {SUM_GOAL} times as fast. Datagrams come by windows of 64 granules from each worker in turn. *Datagram by datagram* a sum is "
            "read and written again for every contribution: 12 bytes an element of float32 beside 2.5 of codes and lanes, 4.8 times as many, "
            "whatever the arithmetic. *As the server adds*: codes stay where they were received until that memory is used again, mostly until all "
            "workers' are there, and are added then; float32 datagram by datagram, as its payloads are eight times as long. *All workers at once*, on "
            "both sides: 36 bytes an element beside 5. Where both sides come out of the caches, these bytes bound the ratio at 7.2.",
            table(["elements", "", "ns per element", "times float32", ""], rows, left=2)]


def server_section(cpu: dict) -> list[str]:
    server = cpu["server"]
    scale = 1e3 / (server["elements"] / 1e6)
    rows = []
    for row in server["rows"]:
        measured = "ratio" in row
        share = 1 / row["ratio"]["median"] if measured else None
        own = row["second"]["median"] if measured else min(r["first"]["median"] for r in server["rows"] if "ratio" in r)
        nmse = f"{row['nmse']:.2g}" if "nmse" in row else "–"
        apart, received, cached = (f"{1 / row[key]['median']:.3f}" if key in row else "–" for key in ("by_worker", "as_server", "cached"))
        rows.append([f"`{row['spec']}`", f"{8 * row['up'] / server['elements']:.2f}", f"{8 * row['down'] / server['elements']:.2f}", nmse,
                     f"{own * scale:.2f}", apart, received, cached, f"{share:.3f}" if measured else "–", verdict(share, CPU_GOAL, at_most=True) if measured else "–"])
    return [f"What a server in the middle computes for {server['workers']} workers: `thc`'s adds codes, the others decode every payload, "
            "average and encode the mean again (`two_shot`). Arithmetic alone, one thread, all payloads in hand; *apart*: codes added datagram by datagram; "
            f"*received*: as the server adds them; *in the cache*: of {server.get('cached_elements', 0) >> 10} Ki elements, where moving codes and lanes is not what counts. The error is that of the first mean, "
            f"|found − mean|² / |mean|², of gradients that share half of what they are. `thc` may take {CPU_GOAL} of the others' time.",
            table(["codec", "bits up", "bits down", "NMSE", "ms per million elements", "`thc` / it, apart", "received", "in the cache", "`thc` / it", ""], rows)]


def section(results: dict) -> list[str]:
    """`results["server"]` of `make bench`: {"io": …, "cpu": …}."""
    found = results.get("server") or {}
    parts = [*(io_section(found["io"]) if found.get("io") else []),
             *(sum_section(found["cpu"]) + server_section(found["cpu"]) if found.get("cpu") else [])]
    return ["## The aggregation server", *parts] if parts else []
