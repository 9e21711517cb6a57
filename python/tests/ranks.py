# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Real processes with real Gloo for tests: started once, given one function after another.

Importing torch costs seconds: a server process pays it once for the whole session, and ranks are forked from it. A test
that kills ranks takes a pool of its own.
"""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import os
import random
import signal
import socket
import traceback
from multiprocessing import forkserver

CROWD = 40  # threads of a rank: five of its own, and three of each group


def free_port() -> int:
    """Below those that the system hands out to connections: one of these would be somebody's before rank 0 listens."""
    while True:
        port = random.SystemRandom().randrange(12000, 32000)
        with socket.socket() as s, contextlib.suppress(OSError):
            s.bind(("127.0.0.1", port))
            return port


def server():
    """Where processes are forked from one that has imported torch."""
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["preloaded"])
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.path.dirname(os.path.abspath(__file__)), before]))
    try:
        forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
    return context


def _serve(rank: int, world: int, port: int, timeout: float, backend: str, prepare, pipe) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                      LOCAL_RANK=str(rank), GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1")
    os.environ.pop("LACONIC_SPEC", None)
    import datetime

    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    if prepare is not None:
        prepare()
    dist.init_process_group(backend, timeout=datetime.timedelta(seconds=timeout))
    pipe.send(("ready", None))
    while True:
        try:
            body, keywords = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(("ok", body(**keywords)))
        except BaseException as error:  # noqa: BLE001  the test decides what to make of it
            pipe.send(("error", (type(error).__name__, str(error), traceback.format_exc())))


class RankError(Exception):
    """What a rank's function raised: .kind, .message, .trace."""

    def __init__(self, rank, kind, message, trace):
        super().__init__(f"rank {rank}: {kind}: {message}\n{trace}")
        self.kind, self.message, self.trace = kind, message, trace


class Ranks:
    """`world` processes in one process group. `prepare`: what each of them calls before it joins."""

    def __init__(self, world: int, *, timeout: float = 60.0, backend: str = "gloo", prepare=None):
        context = server()
        self.world, self.backend, self.prepare = world, backend, prepare
        self.lost = False  #: a rank has said nothing for too long: what it says later is no answer to the next question
        for _ in range(3):  # a port that was free may be somebody else's by the time that rank 0 listens
            self.pipes, self.processes = [], []
            self._start(context, free_port(), timeout)
            if all(self._receive(rank, 180)[0] == "ready" for rank in range(world)):
                return
            self.close()
        raise RuntimeError(f"{world} ranks do not come together")

    def _start(self, context, port: int, timeout: float) -> None:
        for rank in range(self.world):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(rank, self.world, port, timeout, self.backend, self.prepare, there),
                                      daemon=True)
            process.start()
            there.close()
            self.pipes.append(here)
            self.processes.append(process)

    def _receive(self, rank: int, seconds: float):
        if not self.pipes[rank].poll(seconds):
            self.lost = True
            raise TimeoutError(f"rank {rank} of {self.world} said nothing for {seconds} s")
        try:
            return self.pipes[rank].recv()
        except (EOFError, ConnectionResetError):
            return "dead", None

    def start(self, body, **keywords) -> None:
        """Calls body(**keywords) on all ranks and does not wait."""
        for pipe in self.pipes:
            pipe.send((body, keywords))

    def finish(self, seconds: float = 240.0) -> list:
        """Every rank's outcome: ("ok", value), ("error", RankError) or ("dead", None)."""
        outcomes = []
        for rank in range(self.world):
            kind, value = self._receive(rank, seconds)
            outcomes.append((kind, RankError(rank, *value) if kind == "error" else value))
        return outcomes

    def run(self, body, *, seconds: float = 240.0, **keywords) -> list:
        """Every rank's value; the first failure is raised."""
        self.start(body, **keywords)
        outcomes = self.finish(seconds)
        for kind, value in outcomes:
            if kind == "error":
                raise value
            assert kind == "ok", "a rank died"
        return [value for _, value in outcomes]

    def errors(self, body, *, seconds: float = 240.0, **keywords) -> list[RankError]:
        """Every rank must fail; their errors."""
        self.start(body, **keywords)
        outcomes = self.finish(seconds)
        assert all(kind == "error" for kind, _ in outcomes), outcomes
        return [value for _, value in outcomes]

    def crowded(self) -> bool:
        """Groups that tests leave behind live as long as the process, each with threads that wake a hundred times a second: after
        a hundred tests, that is most of what the ranks do."""
        return len(os.listdir(f"/proc/{self.processes[0].pid}/task")) > CROWD

    def kill(self, rank: int) -> None:
        os.kill(self.processes[rank].pid, signal.SIGKILL)

    def close(self) -> None:
        for pipe in self.pipes:
            pipe.close()
        for process in self.processes:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()
