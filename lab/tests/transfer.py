# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""All other ranks send N bytes each to rank 0, which prints the seconds that this took.

transfer.py N [RATE...]: with rates, one transfer per rate, which rank 0 asks the lab for first.
"""

import os
import socket
import sys
import threading
import time


def ask(line):
    with socket.socket(socket.AF_UNIX) as control:
        control.connect(os.environ["LACONIC_LAB_CONTROL"])
        control.sendall(line.encode() + b"\n")
        return control.makefile().readline().strip()


def receive(connection, count):
    while count:
        got = len(connection.recv(min(count, 1 << 16)))
        assert got, "the sender ended early"
        count -= got


def collect(peers, count):
    start = time.monotonic()
    for peer in peers:
        peer.sendall(b"g")
    # At the same time: an unread connection would hold its sender back.
    readers = [threading.Thread(target=receive, args=(peer, count)) for peer in peers]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    return time.monotonic() - start


def connect():
    for _ in range(200):
        try:
            return socket.create_connection(
                (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
            )
        except OSError:
            time.sleep(0.05)
    raise SystemExit("rank 0 does not answer")


def main():
    count, rates = int(sys.argv[1]), sys.argv[2:]
    if os.environ["RANK"] == "0":
        server = socket.create_server((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))
        peers = [server.accept()[0] for _ in range(int(os.environ["WORLD_SIZE"]) - 1)]
        for rate in rates or [None]:
            if rate:
                print(ask("rate " + rate), flush=True)
            print(collect(peers, count), flush=True)
    else:
        peer = connect()
        while peer.recv(1) == b"g":
            peer.sendall(bytes(count))


main()
