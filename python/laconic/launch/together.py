# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""`python -m laconic.doctor` as the program that a launcher starts: its ranks meet, tell where they are, and exchange."""

from __future__ import annotations

import array
import contextlib
import datetime
import hashlib
import json
import os
import random
import socket

from ..core import environment
from ..engines.hosts import Hosts, seat

_STEPS, _ELEMENTS = 3, 1 << 16


def started_by() -> environment.Launcher | None:
    """The launcher of this process, where its ranks can find each other: by MASTER_ADDR and MASTER_PORT, or by MPI."""
    launcher = environment.launcher()
    if launcher is None or (environment.number(launcher.world) or 0) < 2:
        return None
    return launcher if _has_master() else environment.launcher(of_mpi=True)


def _has_master() -> bool:
    return bool(os.environ.get("MASTER_ADDR")) and bool(os.environ.get("MASTER_PORT"))


def met(launcher: environment.Launcher, spec: str, timeout: float, train, interface) -> dict:
    """{"rank", "cards", "ratio", "port_ratio", "equal"}, cards of all ranks in rank order, or {"rank", "error"}. Collective over the ranks of
    the launcher. `train()`: exchanges over torch's group; gives "ratio", "port_ratio" and "equal". `interface()`: where this rank listens."""
    rank, world = environment.number(launcher.rank) or 0, environment.number(launcher.world)
    try:
        found = _by_torch(rank, world, timeout, train, interface) if _has_master() else _by_mpi(spec, timeout)
        return {"rank": rank, **found}
    except Exception as error:  # noqa: BLE001  no way to the other hosts, or a library's own trouble
        return {"rank": rank, "error": f"{type(error).__name__}: {error}"}


def _card(interface: str) -> dict:
    return {"host": socket.gethostname(), "seat": seat(), "interface": interface}


def _by_torch(rank: int, world: int, timeout: float, train, interface) -> dict:
    import torch.distributed as dist

    from ..engines import addresses

    limit = datetime.timedelta(seconds=timeout)
    elastic = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # torchrun has the store
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), None if elastic else world, rank == 0 and not elastic, limit,
                          wait_for_workers=False)
    known = _shared(store, "address", rank, world, addresses.towards_store(store), limit)
    with addresses.gloo_at(addresses.of_gloo(known, rank)):
        dist.init_process_group("gloo", store=dist.PrefixStore("laconic/doctor", store), rank=rank, world_size=world, timeout=limit)
    cards = _shared(store, "card", rank, world, _card(interface()), limit)
    found = train()
    dist.destroy_process_group()
    return {"cards": cards, **found}


def _shared(store, what: str, rank: int, world: int, own, limit: datetime.timedelta) -> list:
    """Every rank's `own`, in rank order. RuntimeError names who did not come."""
    keys = [f"laconic/doctor/{what}/{r}" for r in range(world)]
    store.set(keys[rank], json.dumps(own))
    try:
        store.wait(keys, limit)
    except RuntimeError:
        absent = [str(r) for r, key in enumerate(keys) if not store.check([key])]
        if absent:
            raise RuntimeError(f"rank {', '.join(absent)} did not come in {limit.total_seconds():g} s") from None
        raise
    return [json.loads(store.get(key)) for key in keys]


def _by_mpi(spec: str, timeout: float) -> dict:
    from ..engines import plugin
    from ..engines.texts import gather_texts
    from ..exchange.session import Session

    engine = plugin.open_mpi(timeout=timeout)
    cards = [json.loads(text) for text in gather_texts(engine, json.dumps(_card("")))]
    engine.close()
    values = random.Random(engine.rank)
    with contextlib.closing(Session(spec, [("weight", _ELEMENTS)], engine="mpi", timeout=timeout)) as session:
        for step in range(_STEPS):
            gradient = array.array("f", [values.gauss(0, 1) for _ in range(_ELEMENTS)])
            session.average(step, gradient)
        stats = session.stats()
    engine = plugin.open_mpi(timeout=timeout)
    hashes = gather_texts(engine, hashlib.sha256(gradient.tobytes()).hexdigest())
    engine.close()
    return {"cards": cards, "ratio": stats["ratio"], "port_ratio": None, "equal": len(set(hashes)) == 1}


def lines(launcher: environment.Launcher, found: dict, spec: str) -> list[tuple[str, bool | None, str]]:
    """(name, whether it works, text), for rank 0."""
    cards = found["cards"]
    hosts = Hosts([card["seat"] for card in cards])
    named = [(cards[ranks[0]]["host"], ranks) for ranks in hosts.ranks]
    interfaces = [f"{host}: {said}" for host, ranks in named if (said := cards[ranks[0]]["interface"])]
    out = f", {found['port_ratio']:.1f} to 1 out of a host" if found["port_ratio"] is not None else ""
    what = f"{len(cards)} ranks, {spec}: "
    return [("launcher", None, f"{launcher.name}, {len(cards)} ranks"),
            ("hosts", None, "; ".join(f"{host}: rank {', '.join(map(str, ranks))}" for host, ranks in named)),
            ("nodes", None, _nodes(hosts)),
            ("interface", None, "; ".join(interfaces) or "MPI's choice"),
            ("exchange", found["equal"], f"{what}{found['ratio']:.1f} to 1{out}, replicas equal" if found["equal"] else
             f"{what}the replicas differ; please report this")]


def _nodes(hosts: Hosts) -> str:
    counts = [len(ranks) for ranks in hosts.ranks]
    if len(counts) > 1 and min(counts) == max(counts) > 1:
        return str(hosts)
    return f"none: {hosts}" + ("" if min(counts) == max(counts) else ", not as many on each")
