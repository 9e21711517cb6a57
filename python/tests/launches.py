# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Whole programs as ranks, or alone: forked from a process that has imported torch, which an interpreter of their own would do again."""

from __future__ import annotations

import contextlib
import json
import multiprocessing.context as mp
import os
import signal
import sys
from multiprocessing import forkserver
from pathlib import Path

import pytest
from ranks import free_port, server

import laconic


class Outcome:
    """What one rank printed, and how it ended."""

    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err
        self.notices = [line for line in err.splitlines() if line.startswith("laconic: ")]

    @property
    def report(self) -> dict:
        return json.loads(next(line for line in self.out.splitlines() if line.startswith("{")))


class _Spawned(mp.ForkServerProcess):
    """As spawned, it has the environment of the process that starts it, not of the server."""

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self._environment = dict(os.environ)

    def run(self):
        os.environ.clear()
        os.environ.update(self._environment)
        super().run()


class _Spawn(mp.ForkServerContext):
    Process = _Spawned


def fork_what_is_spawned(monkeypatch):
    """multiprocessing's `spawn` becomes a fork by the server of the tests."""
    server()
    monkeypatch.setitem(mp._concrete_contexts, "spawn", _Spawn())


def _launched(argv, environment, folder, name, cwd, forks):
    """In a process of its own, forked from one that has imported torch: `python ARGV`, with its output in files."""
    import runpy

    os.setsid()  # killed with all that it starts
    if forks:
        forkserver._forkserver.ensure_running = lambda: None  # where this process comes from; Python would start another
        mp._concrete_contexts["spawn"] = _Spawn()
    os.dup2(os.pipe()[0], 0)  # the other end stays open: nothing comes, and no end
    for stream, number in (("out", 1), ("err", 2)):
        file = os.open(f"{folder}/{name}.{stream}", os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(file, number)
    for variable in [v for v in os.environ if v.startswith("LACONIC_") and v != "LACONIC_LIBRARY"]:
        del os.environ[variable]
    os.environ.update(environment)
    os.chdir(cwd)
    sys.argv, sys.path[:] = list(argv), [cwd, *sys.path]
    if argv[0] == "-m":
        sys.argv = argv[1:]
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(argv[0])
        runpy.run_path(argv[0], run_name="__main__")


def launch(argv, folder, world=2, cwd="/", per_rank=None, daemon=True, forks=False, **environment):
    """Runs `python ARGV` on `world` ranks. per_rank: rank → variables for that rank only. daemon=False: they start processes;
    forks=True: what they spawn by multiprocessing is forked, too."""
    context = server()
    port, processes, outcomes = free_port(), [], []
    for rank in range(world):
        variables = {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1",
                     "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", **environment,
                     **(per_rank or {}).get(rank, {})}
        name = f"{len(list(Path(folder).iterdir()))}-{rank}"
        arguments = [str(a) for a in argv], variables, str(folder), name, str(cwd), forks
        process = context.Process(target=_launched, args=arguments, daemon=daemon and not forks)
        process.start()
        processes.append((process, Path(folder) / name))
    for process, path in processes:
        process.join(280)
        if process.exitcode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            pytest.fail("the script hangs: " + path.with_suffix(".err").read_text())
        out, err = (path.with_suffix(suffix).read_text() for suffix in (".out", ".err"))
        outcomes.append(Outcome(process.exitcode, out, err))
    return outcomes


def program(argv, folder, **more):
    """Runs `python ARGV` alone; all that it spawns is forked."""
    return launch(argv, folder, world=1, forks=True, **more)[0]


def environment_for(**more):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("LACONIC_") or k == "LACONIC_LIBRARY"}
    return {**clean, "PYTHONPATH": str(Path(laconic.__file__).parents[1]), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", **more}
