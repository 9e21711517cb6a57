# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Shared by the scripts of this folder: starting ranks, collecting what each of them saw, comparing it."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

SECONDS = 240
TESTS = Path(__file__).resolve().parents[2] / "python" / "tests"
SKIPPED = 3  # exit status of a script that has nothing to run on here; its last line says why


signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))


def free_port(following: int = 99) -> int:
    """With those that follow it, at which sessions meet; below those that the system gives away."""
    while True:
        first = random.randrange(20000, 32000, following + 1)
        try:
            for port in range(first, first + following + 1):
                with socket.socket() as s:
                    s.bind(("127.0.0.1", port))
            return first
        except OSError:
            continue


def start(*arguments, seconds: int = SECONDS, cwd=None, **environment) -> str:
    """Runs `python ARGUMENTS` to its end and gives its output; SystemExit with that output where it fails or hangs."""
    process = subprocess.Popen([sys.executable, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               text=True, env={**os.environ, **environment}, cwd=cwd, start_new_session=True)
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        _end(process)
        output, _ = process.communicate()
        raise SystemExit(f"{output}\nstill running after {seconds} s: {' '.join(map(str, arguments))}") from None
    except BaseException:  # scripts/users, or a hand on the keyboard, ends this program
        _end(process)
        raise
    if process.returncode != 0:
        raise SystemExit(f"{output}\nexit status {process.returncode}: {' '.join(map(str, arguments))}")
    return output


def _end(process) -> None:
    """torchrun's ranks are in sessions of their own: it ends them itself, if it is given the time."""
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)


def torchrun(*arguments, world: int = 2, **options) -> str:
    """As `start`, by torchrun on `world` ranks."""
    return start("-m", "torch.distributed.run", "--nproc-per-node", world, "--master-addr", "127.0.0.1",
                 "--master-port", free_port(), *arguments, **options)


def by_hand(*arguments, world: int = 2, seconds: int = SECONDS, per_rank=None, cwd=None, **environment) -> list[str]:
    """As `start`, `world` processes without a launcher: per_rank(rank) gives variables. The output of each."""
    processes = [subprocess.Popen([sys.executable, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=cwd,
                                  env={**os.environ, **environment, **(per_rank(rank) if per_rank else {})}) for rank in range(world)]
    try:
        outputs = [process.communicate(timeout=seconds)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    if any(process.returncode for process in processes):
        raise SystemExit("\n".join([*outputs, f"exit status {[process.returncode for process in processes]}: {' '.join(map(str, arguments))}"]))
    return outputs


def variables(world: int = 2):
    """per_rank of `by_hand`, as a user sets them."""
    port = str(free_port())
    return lambda rank: {"RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}


def lab(script, world: int = 2, **options) -> str:
    """As `start`, by `laconic lab --emulate`."""
    command = "import os, sys; os.execv(sys.argv[1], sys.argv[1:])"
    library = Path(os.environ.get("LACONIC_LIBRARY", Path(__file__).resolve().parents[2] / "build" / "release" / "lib" / "liblaconic.so"))
    return start("-c", command, library.parents[1] / "bin" / "laconic", "lab", "--hosts", world, "--emulate", "--", sys.executable, script, **options)


def blocks(page: str) -> list[str]:
    """The Python of a page of docs/guide, as it is written."""
    text = (Path(__file__).resolve().parents[2] / "docs" / "guide" / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def run_page(page: str) -> list[dict]:
    """The first block, then each of the others as if it stood right behind it: their names."""
    first, *others = blocks(page)
    whole = {"__name__": "guide"}
    exec(compile(first, page, "exec"), whole)
    found = [whole]
    for block in others:
        found.append(dict(whole))
        exec(compile(block, page, "exec"), found[-1])
    return found


def run_test(name: str) -> None:
    """A test of python/tests. SystemExit where it fails, and with its reason where it is skipped."""
    output = start("-m", "pytest", "-q", "-rs", TESTS / name, seconds=500)
    for reason in re.findall(r"^SKIPPED \[1\] \S+ (.*)$", output, re.MULTILINE):
        print(reason)
        raise SystemExit(SKIPPED)
    check("1 passed" in output, name)


def fsdp_on_cpus() -> None:
    """Accelerate turns its FSDP plugin on for accelerators only; from now on, for CPUs as well."""
    from accelerate.state import AcceleratorState, PartialState
    from accelerate.utils import DistributedType

    original = AcceleratorState.__init__

    def made(self, *arguments, fsdp_plugin=None, **keywords):
        original(self, *arguments, fsdp_plugin=fsdp_plugin, **keywords)
        if fsdp_plugin is not None and self.distributed_type == DistributedType.MULTI_CPU:
            self.fsdp_plugin, self.distributed_type = fsdp_plugin, DistributedType.FSDP
            PartialState._shared_state["distributed_type"] = DistributedType.FSDP  # noqa: SLF001

    AcceleratorState.__init__ = made


def digest(model) -> str:
    """Hash over all parameters, bit for bit."""
    h = hashlib.sha256()
    for p in model.parameters():
        h.update(p.detach().cpu().numpy().tobytes())
    return h.hexdigest()


def shard_digest(model) -> str:
    """Hash over this rank's shards of all parameters, bit for bit."""
    h = hashlib.sha256()
    for p in model.parameters():
        h.update(p.detach().to_local().cpu().numpy().tobytes())
    return h.hexdigest()


def report(folder, name: str, rank: int, **values) -> None:
    """The results of one rank."""
    Path(folder, f"{name}-{rank}.json").write_text(json.dumps(values), encoding="utf-8")


def report_training(folder, name: str, rank: int, model, losses: list[float], **more) -> None:
    """For check_training, by a program that need not know laconic: it looks for itself whether laconic is here."""
    laconic = sys.modules.get("laconic")
    handle = laconic.handle_of(model) if laconic else None
    report(folder, name, rank, digest=digest(model), first=losses[0], last=losses[-1],
           ratio=handle.stats()["ratio"] if handle else 0, **more)


def reports(folder, name: str, world: int = 2) -> list[dict]:
    return [json.loads(Path(folder, f"{name}-{rank}.json").read_text(encoding="utf-8")) for rank in range(world)]


def check(holds: bool, what: str) -> None:
    print(("ok: " if holds else "FAILED: ") + what, flush=True)
    if not holds:
        raise SystemExit(1)


def check_training(seen: list[dict], output: str, *, ratio: float = 5.0) -> None:
    """Replicas are equal, the loss fell on every rank, and few bytes travelled."""
    check(len({rank["digest"] for rank in seen}) == 1, "replicas are equal bit for bit")
    _check_learning(seen, output, ratio)


def _check_learning(seen: list[dict], output: str, ratio: float) -> None:
    check(all(rank["last"] < 0.8 * rank["first"] for rank in seen),
          "the loss fell: " + ", ".join(f"{rank['first']:.3f} to {rank['last']:.3f}" for rank in seen))
    check(seen[0]["ratio"] > ratio, f"{seen[0]['ratio']:.1f} : 1")
    check("Traceback" not in output, "no traceback")


def check_shards(seen: list[dict], output: str, *, shards: int = 2, ratio: float = 5.0) -> None:
    """As check_training, for replicas of `shards` ranks each: rank r and rank r + shards hold the same shard."""
    digests = [rank["digest"] for rank in seen]
    check(len(set(digests)) == shards and digests == digests[:shards] * (len(seen) // shards), "shards differ, replicas are equal bit for bit")
    _check_learning(seen, output, ratio)


def check_announced(output: str, words: str = "laconic: ") -> None:
    lines = [line for line in output.splitlines() if words in line]
    check(len(lines) > 0, f"rank 0 says: {lines[0] if lines else '(nothing)'}")
