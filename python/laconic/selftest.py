# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""`python -m laconic.selftest`: tests the exchange on this machine's accelerator, and computes up to which link rate it helps.

Runs copies between device and host, every codec between two processes, those with kernels also on the GPU, and measures rates. Below the
printed link rates, compressed gradients arrive earlier than by a ring of bfloat16. Exit status 0 if every check passes, else 1.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import re
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from .codec.listing import codecs
from .core import _lib
from .core.errors import LaconicError
from .engines.c10d import Engine
from .exchange import staging
from .exchange.csession import CSession, Layout
from .exchange.driver import cards_of_all
from .exchange.worker import DTYPES, Worker

RANKS = (2, 4, 8)
STEPS = 20
TIMEOUT = 600.0  # seconds for two processes and all codecs
_SHAPES = [(120, 500), (500,), (64, 3, 64), (10,)]
_REPEATS = 7
IN_PLACE = {"copy_to_host": math.inf, "copy_to_device": math.inf}


@dataclass
class Check:
    name: str
    ok: bool
    detail: str


# ---- copies ------------------------------------------------------------------------------------------------------------


def _pattern(count: int, dtype, salt: int) -> torch.Tensor:
    return ((torch.arange(count) * 7 + salt) % 2039).to(dtype)


def _round_trip(stage, count: int, dtype, busy: bool) -> str:
    """Copies a pattern to the host and another one back; what is wrong, or nothing."""
    first, second = _pattern(count, dtype, 1), _pattern(count, dtype, 2)
    source, computed = torch.zeros(count, dtype=dtype, device=stage.device), first.to(stage.device)
    for _ in range(20 if busy else 1):  # the device works while the copy is requested, and its last part counts
        source.zero_()
        source.copy_(computed)
    layout = Layout([0], [0], count)
    ticket = stage.fetch(layout, [(0, source)])
    stage.ready(ticket)
    if not torch.equal(ticket.host, first):
        return f"{count} elements of {dtype} changed on their way to the host"
    ticket.host.copy_(second)
    future = torch.futures.Future(devices=stage.devices)
    stage.deliver(ticket, future)
    if not torch.equal(future.wait().clone().cpu(), second):
        return f"{count} elements of {dtype} changed on their way to the device"
    return ""


def check_copies(stage, size: int) -> list[Check]:
    """Both ways, of little and much, with the device idle and busy."""
    checks = []
    for name, busy in (("copies", False), ("copies after computation", True)):
        cases = [(count, dtype) for count in (1, 1000, size // 4) for dtype in (torch.float32, torch.float16, torch.bfloat16)]
        wrong = next(filter(None, (_round_trip(stage, count, dtype, busy) for count, dtype in cases)), "")
        checks.append(Check(name, not wrong, wrong or f"{len(cases)} patterns of up to {size // 4} elements, both ways"))
    return checks


def copy_rates(stage, size: int) -> dict:
    """GB/s of copies to the host and to the device: medians."""
    layout, tensor = Layout([0], [0], size // 4), torch.zeros(size // 4, device=stage.device)
    down, up = [], []
    for _ in range(_REPEATS + 1):
        _synchronize(stage)
        begin = time.perf_counter()
        ticket = stage.fetch(layout, [(0, tensor)])
        stage.ready(ticket)
        down.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        stage.deliver(ticket, torch.futures.Future(devices=stage.devices))
        _synchronize(stage)
        up.append(time.perf_counter() - begin)
    if stage.path == "in_place":
        return IN_PLACE
    return {"copy_to_host": size / statistics.median(down[1:]) / 1e9, "copy_to_device": size / statistics.median(up[1:]) / 1e9}


def _synchronize(stage) -> None:
    if stage.path == "staged":
        torch.accelerator.synchronize()


# ---- every codec, between two processes --------------------------------------------------------------------------------


def _session(engine, spec: str, shapes, threads: int, strategy: str = "auto", device: torch.device | None = None) -> CSession:
    """With its codecs on the host, or on a GPU."""
    gpu, lender = (None, None) if device is None else (staging.gpu_of("device", device)[0], staging.Lender(device))
    return CSession(spec, [(f"p{i}", shape) for i, shape in enumerate(shapes)], rank=engine.rank, world=engine.world, seed=1,
                    small_elements=64, strategy=strategy, engine_sums=engine.probe_sums(), threads=threads,
                    short_sends=engine.short_sends, gpu=gpu, lender=lender)


def _worker(engine, session: CSession, stage) -> Worker:
    session.check(cards_of_all(engine, session, None, "begin"))
    return Worker(session, engine, stage)


def _on_gpu(engine, spec: str, shapes, threads: int, device: torch.device) -> tuple[CSession | None, str]:
    """A session with its codecs on the GPU, or None, and why one of the ranks has none."""
    session, why = None, ""
    try:
        session = _session(engine, spec, shapes, threads, _gathered(spec), device)
    except LaconicError as error:
        why = error.message
    if session is not None and session.all_raw:
        why = "nothing is encoded"
    reasons = [None] * engine.world
    dist.all_gather_object(reasons, why)
    why = next(filter(None, reasons), "")
    if why and session is not None:
        session.close()
    return (None if why else session), why


def _gathered(spec: str) -> str:
    """A strategy with payloads: without, the engine sums casts."""
    return "gather_all" if codecs()[spec]["class"] == "cast" else "auto"


def _layout(shapes) -> Layout:
    counts = [math.prod(shape) for shape in shapes]
    return Layout(range(len(shapes)), [sum(counts[:i]) for i in range(len(counts))], sum(counts))


def _means(worker: Worker, shapes, device) -> list[torch.Tensor]:
    """The means of STEPS steps, on the host."""
    layout, means = _layout(shapes), []
    draw = torch.Generator().manual_seed(worker.engine.rank)
    for _ in range(STEPS):
        buffer = torch.randn(layout.elements, generator=draw).to(device)
        future = worker.submit(layout, buffer)
        worker.next_step()
        value = future.wait()
        if isinstance(value, LaconicError):
            raise value
        means.append(value.clone().cpu())
    return means


def shapes_of(size: int) -> list[tuple[int, int]]:
    """Parameters of 4 MiB, or one of what is less."""
    return [(1024, 1024)] * (size >> 22) or [(size >> 12, 1024)]


def _speed(worker: Worker, shapes) -> dict:
    """GB/s of float32 that encoding and decoding take two ranks in one exchange, and the ratio of what travels for it. Closes the worker."""
    layout = _layout(shapes)
    buffer = (torch.randn(layout.elements, generator=torch.Generator().manual_seed(worker.engine.rank)) * 1e-3).to(worker.stage.device)
    seen = []
    for _ in range(4):
        before = worker.stats()
        future = worker.submit(layout, buffer.clone())
        worker.next_step()
        future.wait()
        after = worker.stats()
        seen.append({key: after[key] - before[key] for key in ("encode_seconds", "decode_seconds", "wire_bytes", "dense_bytes")})
    worker.close()
    median = {key: statistics.median(step[key] for step in seen[1:]) for key in seen[0]}
    bytes_ = 4 * layout.elements
    return {"ratio": median["dense_bytes"] / max(median["wire_bytes"], 1),
            "encode": bytes_ / max(median["encode_seconds"], 1e-9) / 1e9, "decode": bytes_ / max(median["decode_seconds"], 1e-9) / 1e9}


def _differing(*workers: Worker) -> list[int]:
    """The steps in which the means of two workers have different bits. Closes them."""
    one, other = (_means(worker, _SHAPES, worker.stage.device) for worker in workers)
    for worker in workers:
        worker.close()
    return [step for step in range(STEPS) if not torch.equal(one[step].view(torch.int32), other[step].view(torch.int32))]


def _found_on_gpu(engine, spec: str, shapes, threads: int, device: torch.device) -> dict:
    """As of the other workers, or {"why": ...} where the codec does not run there."""
    session, why = _on_gpu(engine, spec, _SHAPES, threads, device)
    if session is None:
        return {"why": why}
    host = _session(engine, spec, _SHAPES, threads, _gathered(spec))
    wrong = _differing(_worker(engine, host, staging.InPlace()), _worker(engine, session, staging.CodecStage(device)))
    session, why = _on_gpu(engine, spec, shapes, threads, device)
    return {"why": why} if session is None else {"wrong": wrong, **_speed(_worker(engine, session, staging.CodecStage(device)), shapes)}


def _two_ranks(rank: int, folder: str, device: str, size: int) -> None:
    """One of the two processes; leaves its findings in a file."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", 2), rank=rank, world_size=2)
    engine, found = Engine(dist.group.WORLD), {}
    place = torch.empty(1, device=device).device
    for spec in codecs():
        try:
            stages = (staging.InPlace(), staging.stage_for([("it", torch.empty(1, device=place))]))
            threads = stages[1].threads
            wrong = _differing(*(_worker(engine, _session(engine, spec, _SHAPES, stage.threads), stage) for stage in stages))
            shapes = shapes_of(size)
            found[spec] = {"wrong": wrong, **_speed(_worker(engine, _session(engine, spec, shapes, threads), None), shapes)}
            if place.type != "cpu":
                found[spec]["on_gpu"] = _found_on_gpu(engine, spec, shapes, threads, place)
        except Exception as error:  # noqa: BLE001  it is what the check says
            found[spec] = {"error": f"{type(error).__name__}: {error}"}
            break  # the other process is not where this one is
    Path(folder, f"{rank}.json").write_text(json.dumps(found), encoding="utf-8")
    dist.destroy_process_group()


def _in_two_processes(device: str, size: int) -> list[dict | None]:
    """The findings of each process; None for one that failed."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="laconic-selftest-") as folder:
        processes = [context.Process(target=_two_ranks, args=(rank, folder, device, size), daemon=True) for rank in range(2)]
        for process in processes:
            process.start()
        deadline = time.monotonic() + TIMEOUT
        for process in processes:
            process.join(max(deadline - time.monotonic(), 0.1))
            if process.is_alive():
                process.kill()
                process.join()
        files = [Path(folder, f"{rank}.json") for rank in range(2)]
        return [json.loads(file.read_text(encoding="utf-8")) if file.exists() else None for file in files]


def _judged(name: str, found: list[dict | None]) -> Check:
    """By what each process has found."""
    wrong = next((f"process {r} {'exited early' if f is None else f['error']}" for r, f in enumerate(found) if f is None or "error" in f), "")
    if not wrong and any(f["wrong"] for f in found):
        wrong = f"means differ from those on the CPU, first in step {min(step for f in found for step in f['wrong'])}"
    return Check(name, not wrong, wrong or f"{STEPS} steps: the means of the CPU, bit for bit")


@dataclass
class Speeds:
    """Of the codecs that hold: rank 0's ratio, and GB/s of float32 that encoding and decoding take."""

    on_host: dict[str, dict]
    on_gpu: dict[str, dict]
    why_host: dict[str, str]  # codec → why it does not run on the GPU


def check_codecs(device: str, size: int) -> tuple[list[Check], Speeds]:
    """A check for each codec, and another one if it has run on the GPU."""
    ranks = _in_two_processes(device, size)
    checks, speeds = [], Speeds({}, {}, {})
    for spec in codecs():
        found = [None if rank is None else rank.get(spec) for rank in ranks]
        there = [rank["on_gpu"] for rank in found if rank and "on_gpu" in rank]
        if why := next((rank["why"] for rank in there if "why" in rank), ""):
            speeds.why_host[spec] = why
        for name, each, kept in ((f"exchange by {spec}", found, speeds.on_host), (f"{spec} on the GPU", [] if why else there, speeds.on_gpu)):
            if each:
                checks.append(_judged(name, each))
                if checks[-1].ok:
                    kept[spec] = {key: each[0][key] for key in ("ratio", "encode", "decode")}
    return checks, speeds


# ---- what it pays for --------------------------------------------------------------------------------------------------


def strategy_of(spec: str, ranks: int) -> str:
    """The planner's strategy for this number of ranks over Gloo, for a parameter of 4 MiB."""
    sums = sum(1 << dtype for dtype in DTYPES.values()) | 1 << _lib.I32  # Gloo adds all of them
    session = CSession(spec, [("it", (1024, 1024))], rank=0, world=ranks, seed=0, small_elements=64, strategy="auto", engine_sums=sums,
                       threads=1, short_sends=True)
    strategy = session.explain()["strategy"]
    session.close()
    return strategy


def break_even_gbit(speed: dict, copies: dict, ranks: int, strategy: str) -> float:
    """Gbit/s of a rank's link below which the exchange ends before a ring of bfloat16; 0: on none.

    Nothing overlaps in this model. speed: ratio (of what two ranks send, to a ring of float32) and GB/s of float32 that encoding and
    decoding take two ranks; copies: GB/s of gradients and means. Under gather_all traffic and decoding grow with the ranks.
    """
    ring = 2 * (ranks - 1) / ranks  # of the tensor's bytes, per rank
    all_of_others = strategy == "gather_all"
    sent = (ranks - 1 if all_of_others else ring) / speed["ratio"]
    decoded = ranks / 2 if all_of_others else 1.0
    seconds = 1 / copies["copy_to_host"] + 1 / copies["copy_to_device"] + 1 / speed["encode"] + decoded / speed["decode"]
    return max(ring / 2 - sent, 0.0) / seconds * 8  # of a gigabyte


# ---- the command -------------------------------------------------------------------------------------------------------


def _bytes(text: str) -> int:
    found = re.fullmatch(r"(\d+)([KMG]i?)?", text)
    size = int(found[1]) << {"K": 10, "M": 20, "G": 30}[found[2][0]] if found and found[2] else int(found[1]) if found else 0
    if size < 4096:
        raise argparse.ArgumentTypeError(f"{text} is not a size of at least 4Ki")
    return size


def _chosen(name: str | None) -> torch.device:
    if name is None:
        here = torch.accelerator.current_accelerator(check_available=True) if hasattr(torch, "accelerator") else None
        return here or torch.device("cpu")
    return torch.device(name)


def _rounded(speeds: dict) -> dict:
    return {spec: {key: round(value, 3) for key, value in speed.items()} for spec, speed in speeds.items()}


def _pays(speeds: dict, copies: dict) -> dict:
    """By codec and number of ranks."""
    return {spec: {str(ranks): round(break_even_gbit(speed, copies, ranks, strategy_of(spec, ranks)), 2) for ranks in RANKS}
            for spec, speed in speeds.items()}


def examine(device: torch.device, size: int) -> dict:
    """The output of `--json`."""
    stage = staging.stage_for([("it", torch.empty(1, device=device))])
    checks = check_copies(stage, size)
    found, speeds = check_codecs(str(device), size)
    checks += found
    rates = copy_rates(stage, size)
    told = {key: None if math.isinf(rate) else round(rate, 2) for key, rate in rates.items()}
    told.update({"threads": stage.threads, "codecs": _rounded(speeds.on_host)})
    on_gpu = {"codecs": _rounded(speeds.on_gpu), "break_even_gbit": _pays(speeds.on_gpu, IN_PLACE), "why_host": speeds.why_host}
    hardware = device.type != "cpu" and not getattr(torch.get_device_module(device.type), "pretends", False)
    return {"device": str(stage.device), "torch": torch.__version__, "checks": [asdict(check) for check in checks], "rates": told,
            "break_even_gbit": _pays(speeds.on_host, rates), "on_gpu": on_gpu, "verified_on_hardware": hardware and all(check.ok for check in checks)}


def _print_speeds(where: str, speeds: dict, pays: dict) -> None:
    print(f"{where:<16}{'encode':>10}{'decode':>10}" + "".join(f"{f'{n} ranks':>10}" for n in RANKS))
    for spec, speed in speeds.items():
        print(f"{spec:<16}{speed['encode']:>10.2f}{speed['decode']:>10.2f}" + "".join(f"{pays[spec][str(n)]:>10.2f}" for n in RANKS))


def _print(report: dict) -> None:
    print(f"device {report['device']}, torch {report['torch']}")
    for check in report["checks"]:
        print(f"{'ok' if check['ok'] else 'NO':<4}{check['name']:<28}{check['detail']}")
    rates = report["rates"]
    if rates["copy_to_host"] is not None:
        print(f"\ncopies: {rates['copy_to_host']:.2f} GB/s to the host, {rates['copy_to_device']:.2f} GB/s to the device")
    threads = f"with {rates['threads']} thread{'s' if rates['threads'] > 1 else ''}"
    print("\nGB/s of float32; Gbit/s of each rank's link below which it arrives before a ring of bfloat16")
    _print_speeds(threads, rates["codecs"], report["break_even_gbit"])
    on_gpu = report["on_gpu"]
    if on_gpu["codecs"]:
        _print_speeds("on the GPU", on_gpu["codecs"], on_gpu["break_even_gbit"])
    if on_gpu["why_host"]:
        print(f"not on the GPU: {', '.join(on_gpu['why_host'])} ({next(iter(on_gpu['why_host'].values()))})")
    print("The link rates are arithmetic from these figures, in which nothing overlaps; docs/guide/gpu.md has the model.")


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m laconic.selftest",
        description="Tests the exchange with this machine's accelerator, and computes up to which link rate it helps.")
    parser.add_argument("--device", metavar="NAME", help="cpu, cuda, … (default: the accelerator, else the CPU)")
    parser.add_argument("--size", type=_bytes, default=64 << 20, help="bytes of float32 to measure rates with (64Mi)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args(arguments)
    try:
        report = examine(_chosen(given.device), given.size)
    except (LaconicError, RuntimeError, AssertionError) as error:  # the last of a torch without CUDA
        print(f"laconic: {error}", file=sys.stderr)
        return 1
    if given.json:
        print(json.dumps(report))
    else:
        _print(report)
    return 0 if all(check["ok"] for check in report["checks"]) else 1


if __name__ == "__main__":
    sys.exit(main())
