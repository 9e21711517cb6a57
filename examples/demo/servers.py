# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Aggregation servers of exchanges that are called SPEC@switch or SPEC@hosts. Their token is in LACONIC_TOKEN_FILE."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess

_SWITCH_PORT, _HOST_PORT = 7420, 7421


def _serve(command: str, host: str, port: int) -> list[str]:
    return [command, "serve", "--bind", f"{host}:{port}", "--token", os.environ["LACONIC_TOKEN_FILE"]]


def in_the_switch(command: str) -> str:
    """What `laconic lab --switch` runs."""
    return f"exec {shlex.join(_serve(command, 'switch', _SWITCH_PORT))} > /dev/null"


@contextlib.contextmanager
def on_this_host(command: str | None, rank: int):
    """A server beside the worker, on the worker's core; none without a command."""
    if command is None:
        yield
        return
    server = subprocess.Popen(_serve(command, f"host{rank}", _HOST_PORT), stdout=subprocess.PIPE, text=True)
    try:
        if not server.stdout.readline():
            raise RuntimeError(f"laconic serve ended on host{rank}")
        yield
    finally:
        server.terminate()
        server.communicate()


def attach_options(spec: str, world: int) -> tuple[str, dict]:
    """The spec, and what laconic.attach takes beside it. Several servers share an exchange: granule number mod servers."""
    spec, _, place = spec.partition("@")
    servers = {"switch": f"switch:{_SWITCH_PORT}", "hosts": ",".join(f"host{rank}:{_HOST_PORT}" for rank in range(world))}
    return spec, {"aggregator": servers[place]} if place else {}
