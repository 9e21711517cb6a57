# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""PyTorch's means for the same purposes, with one thread, against memcpy in the same process. Prints JSON.

    python -m bench.cpu.baselines [--seconds S] BYTES...

Buffers are huge pages and outputs are allocated before, as in Laconic's own benchmark. The PowerSGD hook runs inside
DDP (gloo, one process, a 1024 x 1024 parameter): its time is that on the wall, because gloo has threads of its own.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import statistics
import time
import warnings

# The PowerSGD hook synchronises a GPU where there is one, even for CPU tensors, and fails.
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import torch


HUGE_PAGE = 2 << 20
SAMPLE_SECONDS = 4e-3
MIN_SAMPLES = 5
TOLERANCE = 0.3  # a sample whose memcpy is further from the median is dropped
HOOK_ELEMENTS = 1024


def tensor(count: int, dtype=torch.float32) -> torch.Tensor:
    """A function whose memory is offered to the kernel as huge pages."""
    memory = mmap.mmap(-1, -(-count * dtype.itemsize // HUGE_PAGE) * HUGE_PAGE)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype, count=count).zero_()


def gradient(count: int) -> torch.Tensor:
    """Laplace of scale 1e-3, as in `laconic bench`."""
    torch.manual_seed(1)
    out = tensor(count)
    step = 1 << 22
    for begin in range(0, count, step):
        u = torch.rand(min(step, count - begin)).mul_(2).sub_(1)
        out[begin:begin + step] = torch.sign(u) * -torch.log1p(-u.abs().clamp_(max=1 - 1e-7)) * 1e-3
    return out


# ---- timing, as tools/samples.h does it ----


def time_of(clock, repeats: int, call) -> float:
    start = clock()
    for _ in range(repeats):
        call()
    return clock() - start


def repeats_for(clock, call) -> int:
    call()
    once = max(time_of(clock, 1, call), 1e-7)
    return max(1, int(SAMPLE_SECONDS / once))


def paired(call, source: torch.Tensor, target: torch.Tensor, seconds: float, clock=time.thread_time) -> dict:
    """The call between memcpys of `source`'s bytes."""
    size = source.numel() * source.element_size()

    def copy():
        ctypes.memmove(target.data_ptr(), source.data_ptr(), size)

    copies, calls = repeats_for(clock, copy), repeats_for(clock, call)
    samples, total = [], 0.0
    before = time_of(clock, copies, copy) / copies
    while total < seconds or len(samples) < MIN_SAMPLES:
        taken = time_of(clock, calls, call) / calls
        after = time_of(clock, copies, copy) / copies
        samples.append(((before + after) / 2, taken))
        total += taken * calls + after * copies
        before = after
    return summary(samples)


def summary(samples) -> dict:
    usual = statistics.median(copy for copy, _ in samples)
    kept = [(copy, taken) for copy, taken in samples if abs(copy - usual) <= TOLERANCE * usual]
    ratios = sorted(copy / taken for copy, taken in kept)
    return {"x_memcpy": statistics.median(ratios),
            "spread": {"low": ratios[len(ratios) // 4], "high": ratios[len(ratios) * 3 // 4]},
            "seconds": statistics.median(taken for _, taken in kept), "rejected": len(samples) - len(kept)}


# ---- what is timed ----


def calls(g: torch.Tensor):
    """(what, Laconic's spec for the same purpose, call)"""
    n = g.numel()
    magnitudes = tensor(n).copy_(g).abs_()
    half, brain = tensor(n, torch.float16), tensor(n, torch.bfloat16)
    scale = float(magnitudes.max()) / 127

    def quantize_with_max():
        torch.quantize_per_tensor(g, float(g.abs().max()) / 127, 0, torch.qint8)

    yield "torch.topk of |g|, 1 %", "topk", lambda: torch.topk(magnitudes, n // 100, sorted=False)
    yield "torch.topk of |g|, 0.1 %", "topk:ratio=0.001", lambda: torch.topk(magnitudes, n // 1000, sorted=False)
    yield "quantize_per_tensor, int8, scale given", "int8", lambda: torch.quantize_per_tensor(g, scale, 0, torch.qint8)
    yield "the same, scale from abs().max()", "int8", quantize_with_max
    yield "float16 copy_", "fp16", lambda: half.copy_(g)
    yield "bfloat16 copy_", "bf16", lambda: brain.copy_(g)


def measure_calls(size: int, seconds: float):
    g = gradient(size // 4)
    target = tensor(size // 4)
    for what, spec, call in calls(g):
        yield {"what": what, "laconic": spec, "bytes": size, **paired(call, g, target, seconds)}


def measure_hook(seconds: float) -> dict:
    """DDP's PowerSGD hook, rank 4, from inside the hook: compression, both all-reduces (of one rank), decompression."""
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    state = powersgd.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2, min_compression_rate=1)
    found = {}

    def hook(_, bucket):
        buffer = bucket.buffer()
        g, target = gradient(buffer.numel()), tensor(buffer.numel())

        def call():
            return powersgd.powerSGD_hook(state, bucket).wait()

        for _ in range(4):  # the first steps are not compressed
            buffer.copy_(g)
            call()
        buffer.copy_(g)
        found.update(paired(call, g, target, seconds, time.perf_counter))
        return powersgd.powerSGD_hook(state, bucket)

    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(HOOK_ELEMENTS, HOOK_ELEMENTS, bias=False))
    model.register_comm_hook(None, hook)
    model(torch.ones(1, HOOK_ELEMENTS)).sum().backward()
    dist.destroy_process_group()
    return {"what": "DDP powerSGD_hook, rank 4, both phases", "laconic": "powersgd", "bytes": 4 * HOOK_ELEMENTS**2,
            **found}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=0.3, help="per point")
    parser.add_argument("--no-hook", action="store_true", help="without the PowerSGD hook")
    parser.add_argument("bytes", type=int, nargs="+")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    points = [point for size in given.bytes for point in measure_calls(size, given.seconds)]
    if not given.no_hook:
        points.append(measure_hook(given.seconds))
    print(json.dumps({"torch": torch.__version__, "points": points}, indent=2))


if __name__ == "__main__":
    main()
