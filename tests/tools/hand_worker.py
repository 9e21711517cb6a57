# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""A worker of an aggregation server by hand: every datagram is one call. Written from docs/format/DATAGRAM.md."""

import socket
import struct
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "golden"))

import second_datagram as wire  # noqa: E402

LANES, RING = 8, 8


class HandWorker:
    def __init__(self, address, job, worker, world, needed=None, deadline_us=1000, token=bytes(32), ring=RING):
        self.address, self.job, self.worker, self.world, self.token = address, job, worker, world, token
        self.needed, self.deadline_us, self.ring = needed or world, deadline_us, ring
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sock.settimeout(100)

    def start(self, kind, flags=0):
        return struct.pack("<HBBI", wire.MAGIC, 0x10 | wire.TYPES.index(kind), flags, self.job & 0xFFFFFFFF)

    def send(self, data):
        self.sock.sendto(data, self.address)

    def receive(self):
        return self.sock.recv(2048)

    def enrol(self):
        """Asks to be registered; the welcome that says that all are follows when the last one has asked."""
        instance = 1000 + self.worker
        applicant = struct.pack("<QQIB", self.job, instance, 1, self.worker)
        self.send(self.start("hello") + applicant + bytes(64 - 8 - len(applicant)))
        challenge = wire.parse_message(self.receive(), "challenge")
        self.epoch, nonce = challenge["epoch"], challenge["nonce"]
        body = (self.start("enrol") + applicant + bytes([self.world, self.needed, 4])
                + struct.pack("<QQQIIIHHBB", self.epoch, nonce, 5, self.deadline_us, 60000, LANES, self.ring, 0, 8, 16) + bytes(2)
                + struct.pack("<16H", *range(16)) + bytes(4) + struct.pack("<QQ", 0, 0) + bytes(self.ring // 8))
        key = wire.derive_key(self.token, wire.ENROL, (self.job, instance, self.epoch, nonce))
        self.send(body + struct.pack("<Q", wire.siphash(key, body)))
        self.key = wire.derive_key(self.token, wire.JOB, (self.job, self.epoch))

    def welcomed(self):
        while not wire.parse_message(self.receive(), "welcome")["complete"]:
            pass

    def header(self, kind, number, ack, flags=0, payload=b""):
        head = self.start(kind, flags) + struct.pack("<IIHHHBB", number, 77, self.epoch & 0xFFFF, number - ack, 0, self.worker, 0)
        return head + struct.pack("<Q", wire.siphash(self.key, head + struct.pack("<Q", len(payload) << 32))) + payload

    def contribute(self, number, ack=0, codes=bytes(LANES // 2)):
        self.send(self.header("data", number, ack, payload=codes))

    def acknowledge(self, ack):
        self.send(self.header("ack", ack, ack))

    def leave(self, ack=0):
        self.send(self.header("leave", ack, ack))

    def result(self):
        """The next one; the server's word on how far it is may come before."""
        while (found := wire.parse_header(self.receive(), True))["type"] in ("status", "open"):
            pass
        assert found["type"] == "result", found
        return found


def job(address, number, world, **settings):
    """All workers of a job, registered."""
    workers = [HandWorker(address, number, w, world, **settings) for w in range(world)]
    for worker in workers:
        worker.enrol()
    for worker in workers:
        worker.welcomed()
    return workers
