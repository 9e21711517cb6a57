# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""A rank whose torch device is a GPU of the simulated CUDA driver: python gpu_ranks.py DRIVER RANK WORLD PORT, the runs as JSON on stdin.

In a process of its own, with LACONIC_LIBRARY: the library that has images for that driver.
"""

import contextlib
import ctypes
import gc
import json
import os
import signal
import sys
from pathlib import Path

DRIVER, RANK, WORLD, PORT = sys.argv[1], *map(int, sys.argv[2:5])
os.environ.update(RANK=str(RANK), WORLD_SIZE=str(WORLD), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(PORT), LOCAL_RANK=str(RANK),
                  GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "accelerator"))

import pretend  # noqa: E402
import test_failures  # noqa: E402
import test_staging  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import training  # noqa: E402

import laconic  # noqa: E402
from laconic.exchange.staging import CodecStage, Lender  # noqa: E402

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


def train(spec, steps=6, resumes=None, dtype=None, meets=True, device="pretend", **options):
    """As training.train or training.resume, with codecs="device". `resumes`: what the second half attaches with. `meets`: False where the group
    of a node's ranks cannot serve the device."""
    attach = {"codecs": "device", **options.pop("attach_options", {})}
    if not meets:
        laconic.engines.group._free_siblings.clear()
        with test_staging._without_all_to_all() if RANK == 1 else contextlib.nullcontext():
            return train(spec, steps, device=device, attach_options=attach, **options)
    if resumes is not None:
        return {"hashes": training.resume(spec, device=device, attach_options=attach, resumed_options=resumes, **options)}
    if dtype is not None:
        options["dtype"] = DTYPES[dtype]
    return training.train(spec, steps=steps, device=device, attach_options=attach, **options)


def told(spec="3lc", **options):
    """What the handle says of a short run."""
    ddp, handle, optimizer = training.build(dist.group.WORLD, spec, device="pretend", attach_options=options)
    training.step_once(ddp, optimizer, RANK, 0)
    explained, stats = handle.explain(), handle.stats()
    line, lent = handle.describe(), lent_bytes()
    handle.close()
    del ddp, handle, optimizer
    return {"lent": lent, "left": lent_bytes()} | {key: explained[key] for key in ("codecs", "why_host", "path")} | {
        key: stats[key] for key in ("device_bytes", "payload_bytes_staged", "staged_bytes", "pinned_bytes")} | {"line": line}


def lent_bytes() -> int:
    """Of torch's memory, to sessions."""
    gc.collect()
    return sum(t.numel() for lender in gc.get_objects() if type(lender) is Lender for t in lender._lent.values())


def starves(attached, victim=1):
    """torch has no more memory for the victim's codecs, after a step or from the start: what every rank hears."""
    kept = Lender._allocate
    if not attached and RANK == victim:
        Lender._allocate = lambda *_: None
    heard = ""
    try:
        ddp, _, optimizer = training.build(dist.group.WORLD, "3lc", device="pretend", attach_options={"codecs": "device"})
        for lender in gc.get_objects():
            if RANK == victim and type(lender) is Lender:
                lender._device = "nowhere"
        for step in range(2):
            training.step_once(ddp, optimizer, RANK, step)
    except RuntimeError as error:
        heard = str(error)
    Lender._allocate = kept
    return {"heard": heard}


@contextlib.contextmanager
def built_on_gpu():
    """Tests of other files train there, with their codecs."""
    build = training.build
    training.build = lambda *args, attach_options, **more: build(*args, **{"device": "pretend", **more}, attach_options={**attach_options, "codecs": "device"})
    yield
    training.build = build


def scaled():
    """test_staging's run with a GradScaler and an overflow."""
    with built_on_gpu():
        digest, scale, _, norm = test_staging._scaled("pretend")
    return {"hash": digest, "scale": scale, "norm": norm}


def set_timeout(handle, seconds):
    """In place of test_failures': torch does not tell the timeout of the pretend group, and its sibling has one of its own."""
    training.waits(handle.worker.engine.group, seconds)


def dies(sign, call, **options):
    """As test_failures, rank 1 sends itself this signal: what rank 0 hears, whose residuals hold its gradients."""
    test_failures.set_timeout = set_timeout
    with built_on_gpu():
        result = test_failures._dies(victim=1, call=call, signal=signal.Signals[sign], **options)
    result["gradients"] = {name: gradient.cpu() for name, gradient in result["gradients"].items()}
    test_failures.nothing_is_lost(result)
    return {"heard": result["raised"], "name": result["last"].name}


def hasty(delay, **options):
    """The worker does not wait until the gradients are computed."""
    CodecStage.ready, kept = lambda _, ticket: ticket.host.data_ptr(), CodecStage.ready
    pretend.delay(delay, delay, delay)
    try:
        return train(**options)
    finally:
        CodecStage.ready = kept


def refused(spec="3lc", device="pretend", **options):
    """The error of an attach on every rank."""
    try:
        training.build(dist.group.WORLD, spec, device=device, attach_options=options)
    except laconic.LaconicError as error:
        return {"name": error.name, "text": str(error)}
    return {"name": "", "text": "attached"}


def fails(calls, victim=1):
    """A call of the victim's driver fails in the third step: what every rank hears, in that step or the next."""
    ddp, _, optimizer = training.build(dist.group.WORLD, "3lc", device="pretend", attach_options={"codecs": "device"})
    heard = ""
    for step in range(4):
        if step == 2 and RANK == victim:
            device.pretend_fail_driver(calls, 999)
        try:
            training.step_once(ddp, optimizer, RANK, step)
        except RuntimeError as error:
            heard = heard or str(error)
    return {"heard": heard}


def benchmark(specs):
    """Rows of bench/engines/gpu_training.py, of a small model, and whether torch was deterministic."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from bench.engines import gpu_training

    gpu_training.HIDDEN, gpu_training.WARM = (80,), 2
    try:
        rows = list(gpu_training.rows(specs, 5, torch.device("pretend", 0)))
        return {"rows": rows, "deterministic": torch.are_deterministic_algorithms_enabled() and "CUBLAS_WORKSPACE_CONFIG" in os.environ}
    finally:
        torch.use_deterministic_algorithms(False)


RUNS = {"benchmark": benchmark, "train": train, "told": told, "refused": refused, "fails": fails, "starves": starves, "scaled": scaled, "hasty": hasty,
        "dies": dies}

device = pretend.load()
device.pretend_over.argtypes, device.pretend_over.restype = [ctypes.c_char_p], ctypes.c_bool
device.pretend_faults.argtypes = [ctypes.c_char_p, ctypes.c_int64]
device.pretend_fail_driver.argtypes = [ctypes.c_int, ctypes.c_int]
assert device.pretend_over(DRIVER.encode()), DRIVER
torch.set_num_threads(1)
dist.init_process_group("pretend")
results = []
for kind, keywords in json.load(sys.stdin):
    pretend.delay(200, 200, 200)
    with contextlib.redirect_stdout(sys.stderr):
        results.append(RUNS[kind](**keywords))
faults = ctypes.create_string_buffer(1 << 14)
device.pretend_faults(faults, len(faults))
print(json.dumps({"results": results, "faults": faults.value.decode()}))
sys.stdout.flush()
os._exit(0)
