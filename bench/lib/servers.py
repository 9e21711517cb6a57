# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Aggregation servers of exchanges that are called SPEC@switch, SPEC@hosts or SPEC@xdp. Their token is in LACONIC_TOKEN_FILE."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import shlex
import socket
import struct
import subprocess

_SWITCH_PORT, _HOST_PORT, _KERNEL_PORT = 7420, 7421, 7422
_SIOCETHTOOL, _ETHTOOL_SGRO = 0x8946, 0x2C


def _serve(command: str, host: str, port: int) -> list[str]:
    return [command, "serve", "--bind", f"{host}:{port}", "--token", os.environ["LACONIC_TOKEN_FILE"]]


def in_the_switch(command: str) -> str:
    """The command for `laconic lab --switch`."""
    return f"exec {shlex.join(_serve(command, 'switch', _SWITCH_PORT))} > /dev/null"


@contextlib.contextmanager
def on_this_host(command: str | None, rank: int):
    """A server next to the worker, on the worker's core; none without a command."""
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


def why_not_in_the_kernel(command: str) -> str:
    """Nothing if the kernel takes the program that adds at the ports of the switch, and the lab can shape what that sends."""
    def said(*words: str) -> dict:
        return json.loads(subprocess.run([command, *words, "--check", "--json"], capture_output=True, text=True).stdout)

    if why := next("" if one["works"] else one["why"] for one in said("serve")["back_ends"] if one["io"] == "xdp"):
        return why
    lab = said("lab")
    return "" if (lab["root"] or lab["user_namespace"])["xdp_at_switch"] else "this kernel has no ifb, which shapes what the program sends"


def is_in_the_kernel(spec: str) -> bool:
    return spec.endswith("@xdp")


def _take_redirected(device: str) -> None:
    """`ethtool -K DEVICE gro on`: without it a virtual interface accepts nothing that a program redirects to it."""
    value = ctypes.create_string_buffer(struct.pack("II", _ETHTOOL_SGRO, 1))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCETHTOOL, struct.pack("16sP16x", device.encode(), ctypes.addressof(value)))


@contextlib.contextmanager
def in_the_kernel(command: str, rank: int, world: int):
    """A program at the ports of the switch, which all packets there pass. Other ranks wait for rank 0."""
    _take_redirected("eth0")
    if rank != 0:
        yield
        return
    words = [*_serve(command, "switch", _KERNEL_PORT), "--io", "xdp", "--interfaces", ",".join(f"port{host}" for host in range(world))]
    server = subprocess.Popen([command, "lab", "--on", "switch", f"exec {shlex.join(words)}"], stdout=subprocess.PIPE, text=True)
    try:
        if not server.stdout.readline():
            raise RuntimeError("laconic serve --io xdp ended in the switch")
        yield
    finally:
        server.terminate()
        server.communicate()


def attach_options(spec: str, world: int) -> tuple[str, dict]:
    """The spec, and further arguments of laconic.attach. Several servers share an exchange: granule number mod servers."""
    spec, _, place = spec.partition("@")
    servers = {"switch": f"switch:{_SWITCH_PORT}", "xdp": f"switch:{_KERNEL_PORT}",
               "hosts": ",".join(f"host{rank}:{_HOST_PORT}" for rank in range(world))}
    return spec, {"aggregator": servers[place]} if place else {}
