# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Rank 0 sends datagrams to a partner, which then sends the same number back; both print what arrived.

Ten at a time, by the kernel's segmentation: a line says how many came and how many tens came in part. The partner
is the switch, where this runs with the word `at-switch`, or rank 1 with the word `host1`.
"""

import os
import socket
import struct
import sys
import time

COUNT, BATCH, SIZE, PORT = 2000, 10, 1000, 7000
UDP_SEGMENT, SO_RCVBUFFORCE = 103, 33


def send(peer, to):
    peer.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, SIZE)
    for first in range(0, COUNT, BATCH):
        peer.sendto(b"".join(struct.pack("<I", i).ljust(SIZE, b".") for i in range(first, first + BATCH)), to)
        time.sleep(0.002)  # below 50mbit
    peer.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, 0)
    for _ in range(50):
        peer.sendto(b"end", to)


def receive(peer):
    came, partner = set(), None
    while True:
        data, partner = peer.recvfrom(2048)
        if data == b"end" and came:  # the last of the other direction may still be in flight
            break
        if data == b"hello":
            peer.sendto(b"here", partner)
        if len(data) == SIZE:
            came.add(struct.unpack_from("<I", data)[0])
    tens = [sum(first + i in came for i in range(BATCH)) for first in range(0, COUNT, BATCH)]
    print(len(came), sum(0 < ten < BATCH for ten in tens), flush=True)
    return partner


def greet(peer, to):
    """Whatever waits for an address to be resolved may be dropped: that is over when an answer comes."""
    peer.settimeout(0.1)
    for _ in range(200):
        peer.sendto(b"hello", to)
        try:
            if peer.recv(100) == b"here":
                return
        except TimeoutError:
            pass
    raise SystemExit("nobody answers")


def main():
    there = (sys.argv[1] if sys.argv[1:] == ["host1"] else "switch", PORT)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as mine:
        # Only the lab's loss is to be seen: COMMANDs are root in their network.
        mine.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 8 << 20)
        if "at-switch" in sys.argv or (there[0] == "host1" and os.environ["RANK"] == "1"):
            mine.bind(("", PORT))
            mine.settimeout(100)
            send(mine, receive(mine))
            while "at-switch" in sys.argv:
                time.sleep(600)  # until the end of the lab
        elif os.environ["RANK"] == "0":
            greet(mine, there)
            mine.settimeout(100)
            send(mine, there)
            receive(mine)


main()
