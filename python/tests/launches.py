# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Whole programs as ranks, for the tests of laconic.run: forked from a process that has imported torch."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
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


def _launched(argv, environment, folder, name, cwd):
    """In a process of its own, forked from one that has imported torch: `python ARGV`, with its output in files."""
    import runpy

    os.setsid()  # killed with all that it starts
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


def launch(argv, folder, world=2, cwd="/", per_rank=None, daemon=True, **environment):
    """Runs `python ARGV` on `world` ranks. per_rank: rank → variables for that rank only. daemon=False: they start processes."""
    context = server()
    port, processes, outcomes = free_port(), [], []
    for rank in range(world):
        variables = {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1",
                     "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", **environment,
                     **(per_rank or {}).get(rank, {})}
        name = f"{len(list(Path(folder).iterdir()))}-{rank}"
        arguments = [str(a) for a in argv], variables, str(folder), name, str(cwd)
        process = context.Process(target=_launched, args=arguments, daemon=daemon)
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


def environment_for(**more):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("LACONIC_") or k == "LACONIC_LIBRARY"}
    return {**clean, "PYTHONPATH": str(Path(laconic.__file__).parents[1]), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", **more}
