# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""torch's own kernels next to those of codecs on one GPU, in one run: docs/results/gpu.md.

    python -m bench.engines.gpu_peers              16 Mi and 64 Mi elements; --elements N, several times, for others

torch.topk at 1 % of magnitudes that are there already, and an 8-bit quantisation in blocks by torch.compile. Codecs' times are those of
`laconic bench --device`, encode, without error feedback, which torch's have neither. A row of JSON for each codec and size.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

import torch

from bench.lib.programs import ROOT, ProgramError, Programs, with_flag

RATIO, BLOCK = 0.01, 256
SPECS = (f"topk:ratio={RATIO}+noef", f"int8:block={BLOCK}+noef")


def select(magnitudes):
    return torch.topk(magnitudes, max(1, int(RATIO * magnitudes.numel())), sorted=False)


def quantise(values):
    blocks = values.view(-1, BLOCK)
    scales = blocks.abs().amax(1, keepdim=True) / 127
    return torch.round(blocks / scales).to(torch.int8), scales


def compiled(function, values):
    """The function by torch.compile and None, or as it is and why."""
    try:
        made = torch.compile(function, dynamic=False)  # for each size
        made(values)
    except Exception as error:  # noqa: BLE001  what compilers raise has no common name
        return function, f"{type(error).__name__}: {error}".partition("\n")[0][:200]
    return made, None


def once(call, device: torch.device) -> float:
    if device.type != "cuda":
        begin = time.perf_counter()
        call()
        return time.perf_counter() - begin
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3


def seconds_of(call, device: torch.device, seconds: float) -> float:
    """The median of at least five, for so long."""
    for _ in range(3):
        call()
    times, begun = [], time.monotonic()
    while len(times) < 5 or time.monotonic() - begun < seconds:
        times.append(once(call, device))
    return statistics.median(times)


def peers(elements: int, device: torch.device, seconds: float) -> list[dict]:
    """torch's times, in the order of SPECS."""
    torch.manual_seed(0)
    values = torch.empty(elements, device=device).exponential_() - torch.empty(elements, device=device).exponential_()  # Laplace's
    magnitudes = values.abs()
    quantised, eager = compiled(quantise, values)
    name = "torch.compile of an 8-bit quantisation" if eager is None else f"an 8-bit quantisation, eager ({eager})"
    return [{"peer": f"torch.topk, {100 * RATIO:g} %", "peer_s": seconds_of(lambda: select(magnitudes), device, seconds)},
            {"peer": f"{name}, blocks of {BLOCK}", "peer_s": seconds_of(lambda: quantised(values), device, seconds), "eager": eager}]


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.engines.gpu_peers", description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", help="of torch's kernels (cuda)")
    parser.add_argument("--elements", type=int, action="append", help=f"a multiple of {BLOCK} (default: 16 Mi and 64 Mi)")
    parser.add_argument("--seconds", type=float, default=0.5, help="for each time (0.5)")
    parser.add_argument("--build", type=Path, default=os.environ.get("LACONIC_BUILD", ROOT / "build" / "release"), help="with bin/laconic")
    given = parser.parse_args(arguments)
    programs = Programs(given.build, budget=600)
    for elements in given.elements or (16 << 20, 64 << 20):
        words = ["bench", "--device", "--json", "--seconds", given.seconds, "--size", 4 * elements, *with_flag("--spec", SPECS)]
        try:
            ours = programs.run([programs.binary("laconic"), *words])["results"]
        except ProgramError as error:
            print(f"bench/engines/gpu_peers.py: {error}", file=sys.stderr)
            return 1
        for point, peer in zip(ours, peers(elements, torch.device(given.device), given.seconds), strict=True):
            encode = point["encode"]["seconds"]
            print(json.dumps({"codec": point["codec"], "elements": elements, "encode_s": encode, **peer, "over_peer": encode / peer["peer_s"]}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
