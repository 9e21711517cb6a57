# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""engine="auto": which engine joins the processes that a launcher, or a framework, has started. It looks at modules that are imported
already, and imports none."""

from __future__ import annotations

import itertools
import json
import os
import sys
from typing import NamedTuple

from ..core import environment, errors

PORT = "LACONIC_PORT"
_PORTS = 65535
#: sessions over one port each, in the order in which all ranks create them: rank 0 listens while its session lives
_opened = itertools.count()


class Place(NamedTuple):
    """An engine, what chose it, and for "gloo" who meets where."""

    engine: str
    by: str
    rank: int | None = None
    world: int | None = None
    host: str = ""
    port: int = 0

    def said(self, ranks: int, rendezvous: str | None) -> str:
        """For the log of rank 0."""
        if self.engine == "none":
            return "one rank alone: no launcher's variables and no process group were found"
        return f"engine {self.engine}, by {self.by}: {ranks} rank{'s' * (ranks > 1)}" + (f" at {rendezvous}" if rendezvous else "")

    def rendezvous(self) -> str:
        """For the next session of this process. Every rank creates its sessions in the same order."""
        port = self.port + next(_opened)
        if port > _PORTS:
            raise errors.error("invalid_argument", f"no port is left from {self.port} on", f"set {PORT} to a lower one")
        return f"tcp:{self.host}:{port}"


def place() -> Place:
    """The first row of docs/guide/engines.md's table that fits.

    Raises:
        LaconicError: a variable that decides cannot be read.
    """
    for row in (_of_jax, _of_torch, _of_mpi, _of_variables, _of_tensorflow):
        found = row()
        if found is not None:
            return found
    return Place("none", "nothing", 0, 1)


def _of_jax() -> Place | None:
    state = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
    if getattr(state, "client", None) is None or not state.coordinator_address:
        return None
    return _meeting("jax.distributed", state.process_id, state.num_processes, state.coordinator_address)


def _of_torch() -> Place | None:
    dist = sys.modules.get("torch.distributed")
    if dist is None or not (dist.is_available() and dist.is_initialized()):
        return None
    return Place("c10d", "torch's process group")


def _of_mpi() -> Place | None:
    launcher = environment.launcher(of_mpi=True)
    return None if launcher is None else Place("mpi", launcher.world)


def _of_variables() -> Place | None:
    rank, world, port = map(environment.number, ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    host = os.environ.get("MASTER_ADDR")
    if rank is None or world is None or port is None or not host:
        return None
    listens = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # torchrun, on that port
    return Place("gloo", "RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT", rank, world, host, _port(port + listens))


def _of_tensorflow() -> Place | None:
    text = os.environ.get("TF_CONFIG")
    if not text:
        return None
    try:
        config = json.loads(text)
        workers = config.get("cluster", {}).get("worker")
        if not workers or "task" not in config:
            return None
        kind, index = config["task"]["type"], int(config["task"]["index"])
        if kind != "worker" or "chief" in config["cluster"] or not 0 <= index < len(workers):
            raise ValueError(f"task {kind} {index}")
        return _meeting("TF_CONFIG", index, len(workers), workers[0])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise errors.error("invalid_argument", f"TF_CONFIG cannot be used: {type(error).__name__}: {error}",
                           "a cluster of workers, and a task of type worker") from None


def _meeting(by: str, rank: int, world: int, address: str) -> Place:
    """At the host of a port that is in use."""
    host, _, port = address.rpartition(":")
    return Place("gloo", by, rank, world, host, _port(int(port) + 1))


def _port(otherwise: int) -> int:
    text = os.environ.get(PORT, "")
    if not text:
        return otherwise
    port = environment.number(PORT)
    if port is None or not 0 < port <= _PORTS:
        raise errors.error("invalid_argument", f"{PORT} is {text!r}", f"a port, 1 to {_PORTS}")
    return port
