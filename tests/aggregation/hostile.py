# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Sends what an attacker on the path could: every datagram that leaves by DEVICE with PORT at either end follows again, as
it was, cut, with a bit of its header turned, or with random bytes in its place.

usage: hostile.py DEVICE PORT    until SIGTERM; says how many datagrams it has sent
"""

import json
import random
import signal
import socket
import struct
import sys

HEADER = 32  # of datagrams up, the shorter ones; its tag covers it and the length of the rest
IP, UDP, PAYLOAD = 14, 34, 42


def checksum(header):
    total = sum(struct.unpack(f">{len(header) // 2}H", header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def frame_like(frame, payload):
    """The same addresses; no checksum of UDP."""
    frame = bytearray(frame[:PAYLOAD])
    struct.pack_into(">H", frame, IP + 2, 28 + len(payload))
    struct.pack_into(">H", frame, IP + 10, 0)
    struct.pack_into(">H", frame, IP + 10, checksum(frame[IP:UDP]))
    struct.pack_into(">HH", frame, UDP + 4, 8 + len(payload), 0)
    return bytes(frame) + payload


def changed(payload, choose):
    kind = choose.choice(["same", "cut", "turned", "random"])
    if kind == "cut":
        return kind, payload[:choose.randrange(len(payload))]
    if kind == "turned":
        at = choose.randrange(min(HEADER, len(payload)))
        return kind, payload[:at] + bytes([payload[at] ^ 1 << choose.randrange(8)]) + payload[at + 1:]
    return kind, choose.randbytes(len(payload)) if kind == "random" else payload


def main():
    device, port = sys.argv[1], int(sys.argv[2])
    choose, counts = random.Random(7), {}

    def end(*_):
        print(json.dumps(counts), flush=True)
        sys.exit(0)

    signal.signal(signal.SIGTERM, end)
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0003)) as path:
        path.bind((device, 0x0003))
        print("listening", flush=True)
        while True:
            frame, (_, _, kind, _, _) = path.recvfrom(65536)
            if kind != socket.PACKET_OUTGOING or frame[12:14] != b"\x08\x00" or frame[IP] != 0x45 or frame[IP + 9] != 17:
                continue
            if port not in struct.unpack_from(">HH", frame, UDP) or not PAYLOAD < len(frame) <= 1514:
                continue
            what, payload = changed(frame[PAYLOAD:], choose)
            path.send(frame_like(frame, payload))
            counts[what] = counts.get(what, 0) + 1


main()
