# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Servers in the switch and ranks on the hosts of the lab that this process runs in, as its launcher."""

import contextlib
import json
import os
import pathlib
import select
import shlex
import signal
import socket
import subprocess
import sys
import time

LACONIC = os.environ["LACONIC_CLI"]
RANK = os.environ["AGGREGATION_RANK"]
TOKEN = os.environ["AGGREGATION_TOKEN"]
HOSTS = [f"host{rank}" for rank in range(4)]
LIMIT = 100  # seconds that anything may take


def control(line):
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(os.environ["LACONIC_LAB_CONTROL"])
        sock.sendall(line.encode() + b"\n")
        answer = json.loads(sock.makefile().readline())
    assert answer["ok"], answer
    return answer


@contextlib.contextmanager
def loss(share):
    control(f"loss {share}")
    try:
        yield
    finally:
        control("loss 0%")


def start(host, *words):
    """A process on another host, or in the switch, as our child."""
    return subprocess.Popen([LACONIC, "lab", "--on", host, "exec " + shlex.join(map(str, words))], stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, text=True, bufsize=1)


def line_of(process):
    ready, _, _ = select.select([process.stdout], [], [], LIMIT)
    assert ready, f"{process.args} said nothing for {LIMIT} s"
    return process.stdout.readline().strip()


def rss(pid):
    """Bytes in memory."""
    return int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def on(host, *words):
    """The output of a command on that host."""
    process = start(host, *words)
    said = process.communicate(timeout=LIMIT)[0]
    assert process.returncode == 0, (words, said)
    return said


def counted(host):
    """Bytes that each device there received and sent."""
    lines = [line.replace(":", " ").split() for line in on(host, "cat", "/proc/self/net/dev").splitlines()[2:]]
    return {name: (int(counts[0]), int(counts[8])) for name, *counts in lines}


GROUP = "239.7.4.2"


@contextlib.contextmanager
def deaf(host):
    """No multicast to GROUP gets into that host."""
    drop = f"4,32 0 0 30,21 0 1 {0xEF070402},6 0 0 2,6 0 0 0"  # the destination of IPv4; 2: TC_ACT_SHOT
    here = ["dev", "eth0", "ingress", "pref", "1"]
    on(host, "tc", "qdisc", "replace", "dev", "eth0", "clsact")  # keeps the lab's own filter
    on(host, "tc", "filter", "add", *here, "protocol", "ip", "bpf", "da", "bytecode", drop)
    try:
        yield
    finally:
        on(host, "tc", "filter", "del", *here)


SWITCH_RECEIVE_OFFLOAD_ON = """
import ctypes, fcntl, socket, struct
value = ctypes.create_string_buffer(struct.pack("II", 0x2C, 1))  # ETHTOOL_SGRO
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any:
    fcntl.ioctl(any, 0x8946, struct.pack("16sP16x", b"eth0", ctypes.addressof(value)))  # SIOCETHTOOL
"""


def why_no_xdp():
    """Nothing where a program in the kernel can be a server; then the hosts' ends are prepared for it."""
    found = json.loads(on("switch", LACONIC, "serve", "--check", "--json"))["back_ends"]
    why = next("" if one["works"] else one["why"] for one in found if one["io"] == "xdp")
    if not why:
        for host in HOSTS:
            on(host, sys.executable, "-c", SWITCH_RECEIVE_OFFLOAD_ON)  # ethtool -K eth0 gro on
    return why


class Server:
    """laconic serve in the switch."""

    def __init__(self, port, *words):
        self.address, self.words = f"switch:{port}", words
        self.start()

    def start(self):
        self.process = start("switch", LACONIC, "serve", "--bind", self.address, "--token", TOKEN, "--json", *self.words)
        assert "serving" in json.loads(line_of(self.process))

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        """The server's counters."""
        self.process.send_signal(signal.SIGTERM)
        return json.loads(self.process.communicate(timeout=LIMIT)[0].splitlines()[-1])


class Job:
    """A rank on each host. `own`: further settings of single ranks."""

    ports = iter(range(30000, 60000))

    def __init__(self, servers=(), own=None, world=4, **settings):
        settings = {"world": world, "port": next(self.ports), "servers": ",".join(s.address for s in servers), **settings}
        if servers:
            settings["token"] = TOKEN
        self.ranks = []
        for rank in range(world):
            mine = {**settings, **(own or {}).get(rank, {}), "rank": rank}
            self.ranks.append(start(f"host{rank}", RANK, *(f"{key}={value}" for key, value in mine.items())))

    def wait_at(self, step):
        for rank in self.ranks:
            assert line_of(rank) == f"at {step}"

    def go(self):
        for rank in self.ranks:
            with contextlib.suppress(BrokenPipeError):  # it has ended
                rank.stdin.write("\n")
                rank.stdin.flush()

    def kill(self, rank):
        self.ranks[rank].kill()

    def results(self):
        """The result of each rank; None of one that was killed."""
        end, said = time.monotonic() + LIMIT, []
        for rank in self.ranks:
            out, _ = rank.communicate(timeout=max(0.1, end - time.monotonic()))
            lines = [line for line in out.splitlines() if line.startswith("{")]
            said.append(json.loads(lines[-1]) if lines else None)
        return said
