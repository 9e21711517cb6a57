# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The address at which Gloo awaits the other ranks, where its own choice is one that other hosts cannot reach.

Gloo takes the address that the host's own name resolves to. Debian and Ubuntu make that 127.0.1.1, and a group over several hosts fails.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket

import torch.distributed as dist

IFNAME = "GLOO_SOCKET_IFNAME"
_DISCARD = 9  # a port; nothing is sent there


def towards(host: str, port: int = _DISCARD) -> str:
    """The address from which this host reaches another one; empty: it does not know a way."""
    with contextlib.suppress(OSError, UnicodeError):
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            return probe.getsockname()[0].partition("%")[0]
    return ""


def towards_store(store) -> str:
    """From where this rank reaches the store of a group; empty: it has no address, such as a file's."""
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return towards(store.host, store.port) if isinstance(store, dist.TCPStore) else ""


def reachable(address: str) -> bool:
    """From other hosts."""
    return bool(address) and not ipaddress.ip_address(address).is_loopback


def _gloo_would_take() -> str:
    """Of what this host's name resolves to, the first that is an address of this host; empty: Gloo falls back to loopback."""
    with contextlib.suppress(OSError, UnicodeError):
        for family, kind, _, _, address in socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM):
            with contextlib.suppress(OSError), socket.socket(family, kind) as probe:
                probe.bind(address)
                return address[0].partition("%")[0]
    return ""


def of_gloo(known: list[str], rank: int) -> str:
    """What a new group's Gloo has to be given on this rank; empty: its own choice is right, or the user's, by GLOO_SOCKET_IFNAME.
    `known`: towards_store() of all ranks. The store's host may reach it by loopback; then its way to another rank counts."""
    if os.environ.get(IFNAME) or not any(map(reachable, known)) or reachable(_gloo_would_take()):
        return ""
    own = known[rank] if reachable(known[rank]) else towards(next(filter(reachable, known)))
    return own if reachable(own) else ""


@contextlib.contextmanager
def gloo_at(address: str):
    """Groups made meanwhile have their Gloo at an address of this host; empty: at one of Gloo's choice. torch's new_group has no argument
    for it."""
    c10d = dist.distributed_c10d
    original = getattr(c10d, "ProcessGroupGloo", None)
    if not address or not hasattr(original, "_Options") or not hasattr(original, "create_device"):
        yield
        return

    class AtAddress(original):  # of which torch asks whether the group is one
        def __init__(self, store, rank, size, timeout):
            options = original._Options()  # noqa: SLF001
            options._devices, options._timeout = [original.create_device(hostname=address)], timeout  # noqa: SLF001
            super().__init__(store, rank, size, options)

    c10d.ProcessGroupGloo = AtAddress
    try:
        yield
    finally:
        c10d.ProcessGroupGloo = original
