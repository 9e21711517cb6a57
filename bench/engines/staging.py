# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The cost of the way through host memory, and whether copies and codecs overlap: docs/results/staging.md.

    python -m bench.engines.staging                          on the pretend device of the tests
    python -m bench.engines.staging --device cuda            on a GPU

Every figure is a ratio within one run. The pretend device's copies are memcpy, or take as long as they are set to: it shows what
laconic adds and what overlaps, never how fast a device is. Needs a release build, or LACONIC_LIBRARY.
"""

from __future__ import annotations

import argparse
import datetime
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.lib.programs import ROOT

MI = 1 << 20
STEPS = 15


# ---- two ranks -----------------------------------------------------------------------------------------------------------


def worker_of(engine, stage, spec: str, buckets: int, elements: int, threads: int = 1):
    """A worker for that many parameters of that many elements (rows of 1024), each a bucket."""
    from laconic.exchange.csession import CSession, Layout
    from laconic.exchange.driver import cards_of_all
    from laconic.exchange.worker import Worker

    shapes = [(f"p{i}", (max(elements >> 10, 1), min(elements, 1024))) for i in range(buckets)]
    session = CSession(spec, shapes, rank=engine.rank, world=engine.world, seed=0, small_elements=0, strategy="auto",
                       engine_sums=engine.probe_sums(), threads=threads, short_sends=engine.short_sends)
    session.check(cards_of_all(engine, session, None, "begin"))
    return Worker(session, engine, stage), [Layout([i], [0], elements) for i in range(buckets)]


def step_seconds(worker, layouts, gradients) -> float:
    """One step: all buckets submitted as DDP does, then all means waited for."""
    worker.engine.gather_bytes(b"x")  # the ranks begin together
    begin = time.perf_counter()
    futures = [worker.submit(layout, gradient) for layout, gradient in zip(layouts, gradients)]
    worker.next_step()
    for future in futures:
        future.wait()
    if worker.stage.path == "staged":
        import torch

        torch.accelerator.synchronize()
    return time.perf_counter() - begin


def extra_of_a_step(engine, device) -> dict:
    """64 MiB of gradients by 3lc: a staged step next to one on the CPU, in turn, and memcpy of the same number of
    bytes."""
    import torch

    from laconic.exchange import staging

    elements, buckets = 2 * MI, 8
    arms = []
    for stage in (staging.InPlace(), staging.stage_for([("it", torch.empty(1, device=device))])):
        worker, layouts = worker_of(engine, stage, "3lc", buckets, elements)
        arms.append((worker, layouts, [(torch.randn(elements) * 1e-3).to(stage.device) for _ in range(buckets)]))
    source, target, times = torch.randn(elements * buckets), torch.empty(elements * buckets), ([], [], [])
    for _ in range(STEPS + 2):
        for arm, found in zip(arms, times):
            found.append(step_seconds(*arm))
        begin = time.perf_counter()
        target.copy_(source)
        times[2].append(time.perf_counter() - begin)
    cpu, staged, memcpy = (statistics.median(found[2:]) for found in times)
    extra = statistics.median(b - a for a, b in zip(times[0][2:], times[1][2:]))
    for worker, *_ in arms:
        worker.close()
    return {"cpu": cpu, "staged": staged, "memcpy": memcpy, "extra": extra / memcpy}


def overlap(engine, device) -> dict:
    """Eight buckets of about 5 ms of codec work each; on the pretend device 5 ms a copy."""
    import torch

    from laconic.exchange import staging

    copy = 0.005
    elements = MI
    for _ in range(4):  # to a size whose codec work takes about as long
        worker, layouts = worker_of(engine, staging.InPlace(), "3lc", 1, elements)
        gradient = [torch.randn(elements) * 1e-3]
        for _ in range(4):
            step_seconds(worker, layouts, gradient)
        spent = {key: value for key, value in worker.stats().items() if key in ("encode_seconds", "decode_seconds")}
        for _ in range(4):
            step_seconds(worker, layouts, gradient)
        after = worker.stats()
        took = sum(after[key] - spent[key] for key in spent) / 4
        worker.close()
        agreed = engine.gather_bytes(int(took * 1e9).to_bytes(8, "little"))
        took = int.from_bytes(agreed[:8], "little") / 1e9
        elements = max(int(elements * copy / took) >> 10, 64) << 10
    worker, layouts = worker_of(engine, staging.stage_for([("it", torch.empty(1, device=device))]), "3lc", 8, elements)
    gradients = [(torch.randn(elements) * 1e-3).to(device) for _ in layouts]
    for _ in range(3):
        step_seconds(worker, layouts, gradients)
    pretends = str(device).startswith("pretend")
    if pretends:
        from tests.accelerator import pretend

        pretend.delay(0, int(copy * 1e6), int(copy * 1e6))
    before, times = worker.stats(), []
    for _ in range(STEPS):
        times.append(step_seconds(worker, layouts, gradients))
    after = worker.stats()
    if pretends:
        pretend.delay()
    parts = {key: (after[key] - before[key]) / STEPS for key in ("encode_seconds", "decode_seconds", "wire_seconds")}
    if pretends:
        pretend.delay(0, int(copy * 1e6), int(copy * 1e6))
    copies = copies_alone(worker.stage, layouts, gradients)
    if pretends:
        pretend.delay()
    worker.close()
    total = sum(parts.values()) + copies
    return {"step": statistics.median(times), "copies": copies, "sum": total, "elements": elements, **parts,
            "share": statistics.median(times) / total}


def copies_alone(stage, layouts, gradients) -> float:
    import torch

    begin = time.perf_counter()
    for layout, gradient in zip(layouts, gradients):
        ticket = stage.fetch(layout, [(0, gradient)])
        stage.ready(ticket)
        stage.deliver(ticket, torch.futures.Future(devices=stage.devices))
        torch.accelerator.synchronize()
    return time.perf_counter() - begin


def rank_of(rank: int, folder: str, device: str) -> None:
    import torch
    import torch.distributed as dist

    if device == "pretend":
        from tests.accelerator import pretend

        pretend.load()
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", 2), rank=rank, world_size=2)
    from laconic.engines.c10d import Engine

    engine = Engine(dist.group.WORLD)
    here = torch.empty(1, device=device).device
    found = {"extra": extra_of_a_step(engine, here), "overlap": overlap(engine, here)}
    Path(folder, f"{rank}.json").write_text(json.dumps(found), encoding="utf-8")
    dist.destroy_process_group()


def two_ranks(device: str) -> dict:
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        ranks = [context.Process(target=rank_of, args=(rank, folder, device)) for rank in range(2)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        return json.loads(Path(folder, "0.json").read_text(encoding="utf-8"))


# ---- one rank ------------------------------------------------------------------------------------------------------------


def threads() -> dict:
    """int8 of 4 MiB by one process alone: time with one thread over time with two, and the same of memcpy, which is what the machine gives."""
    done = subprocess.run([ROOT / "build" / "release" / "bin" / "threads_bench", "0.6", str(4 * MI), "int8"], check=True, capture_output=True)
    points = {point["codec"]: point for point in json.loads(done.stdout)["points"]}
    return {"encode": points["int8"]["encode"]["median"], "decode": points["int8"]["decode"]["median"], "memcpy": points["memcpy"]["encode"]["median"]}


# ---- tables --------------------------------------------------------------------------------------------------------------


def tables_of(found: dict) -> dict[str, dict]:
    import torch
    from bench.lib.machine import cpu
    from bench.lib.tables import of_pairs, table

    extra, over, two = found["extra"], found["overlap"], found["threads"]
    codec = over["encode_seconds"] + over["decode_seconds"]
    rows = [["a staged step of 64 MiB, `3lc`, two ranks, beside one on the CPU: extra time in memcpy of the gradients", extra["extra"], "≤ 3"],
            ["eight buckets: a step, of the sum of its parts", over["share"], "≤ 0.6"]]
    rows += [[f"`int8` of 4 MiB with two threads, {what}: times as fast as with one", two[what], "≥ 1.6"] for what in ("encode", "decode")]
    parts = [("a staged step of 64 MiB", extra["staged"]), ("one on the CPU", extra["cpu"]), ("memcpy of its gradients", extra["memcpy"]),
             (f"a step of eight buckets of {4 * over['elements'] / MI:.1f} MiB", over["step"]), ("its copies", over["copies"]), ("its codec", codec),
             ("its wire", over["wire_seconds"])]
    return {"bars": table(["what", ("seen", "{:.2f}"), "bar"], rows), "times": table(["what", ("ms", "{:.3g}")], ([what, 1e3 * s] for what, s in parts)),
            "machine": of_pairs([("CPU", cpu()), ("cores", os.cpu_count()), ("torch", torch.__version__), ("date", datetime.date.today()),
                                 ("memcpy with two threads, times as fast", f"{two['memcpy']:.2f}")])}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.engines.staging", description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="pretend")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results", metavar="FOLDER", help="of staging.md (docs/results)")
    given = parser.parse_args()
    from bench.lib.tables import publish

    if given.device == "pretend":
        from tests.accelerator import pretend

        pretend.library()
    found = {**two_ranks(given.device), "threads": threads()}
    print(json.dumps(found, indent=1), file=sys.stderr)
    print(publish(given.out, "staging", f"python -m bench.engines.staging --device {given.device}", tables_of(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
