# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""laconic serve from outside: tokens, refusals, a clean end; a registration by the second reader's code."""

import json
import os
import signal
import socket
import stat
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "golden"))

import second_datagram as wire  # noqa: E402
from hand_worker import job  # noqa: E402

BINARY = Path(os.environ.get("LACONIC_CLI", ROOT / "build" / "release" / "bin" / "laconic"))
pytestmark = pytest.mark.skipif(not BINARY.exists(), reason=f"{BINARY} is not built")
FINE, BAD_ANSWER, USAGE = 0, 1, 2


def serve(*words):
    return subprocess.run([BINARY, "serve", *map(str, words)], capture_output=True, text=True, timeout=280)


@pytest.fixture
def serving():
    started = []

    def start(*words):
        process = subprocess.Popen([BINARY, "serve", "--json", *map(str, words)], stdout=subprocess.PIPE, text=True)
        started.append(process)
        said = json.loads(process.stdout.readline())
        host, port = said["serving"].rsplit(":", 1)
        return process, (host, int(port)), said

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_check_names_every_back_end():
    found = json.loads(serve("--check", "--json").stdout)
    works = {row["io"]: row["works"] for row in found["back_ends"]}
    assert set(works) == {"gso", "mmsg", "xdp"} and works["mmsg"] and works[found["auto"]]
    assert serve("--check").stdout.count("\n") >= 4


def test_token_is_32_random_bytes_for_its_owner(tmp_path):
    paths = [tmp_path / "a", tmp_path / "b"]
    for path in paths:
        assert serve("--new-token", path).returncode == FINE
        assert path.stat().st_size == 32 and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert paths[0].read_bytes() != paths[1].read_bytes()
    before = paths[0].read_bytes()
    again = serve("--new-token", paths[0])
    assert again.returncode == BAD_ANSWER and "exists" in again.stderr
    assert paths[0].read_bytes() == before


@pytest.mark.parametrize("words, status, text", [
    ((), USAGE, "--bind is missing"),
    (("--bind", "127.0.0.1"), BAD_ANSWER, "the port is missing"),
    (("--bind", "0.0.0.0:0"), BAD_ANSWER, "without a token the server may listen on the loopback interface only"),
    (("--bind", "127.0.0.1:0", "--io", "dpdk"), USAGE, "--io 'dpdk'"),
    (("--bind", "127.0.0.1:0", "--auth", "none"), USAGE, "--auth"),
    (("--bind", "127.0.0.1:0", "--io", "xdp"), USAGE, "--io xdp and --interfaces must be given together"),
    (("--bind", "127.0.0.1:0", "--io", "xdp", "--interfaces", "lo", "--auth", "full"), USAGE, "does not support --auth full"),
    (("--bind", "127.0.0.1:0", "--interfaces", "lo"), USAGE, "--io xdp and --interfaces must be given together"),
    (("--bind", "127.0.0.1:0", "--multicast", "10.0.0.1"), BAD_ANSWER, "multicast group 10.0.0.1 is not a multicast address"),
    (("--bind", "127.0.0.1:0", "--multicast", "239.7.4.2:0"), BAD_ANSWER, "not a multicast address"),
    (("--bind", "127.0.0.1:0", "--io", "xdp", "--interfaces", "lo", "--multicast", "239.7.4.2"), USAGE, "--io xdp does not support"),
    (("--bind", "127.0.0.1:0", "--memory", "much"), USAGE, "--memory 'much'"),
    (("--bind", "127.0.0.1:0", "--token", "/nowhere/token"), USAGE, "/nowhere/token"),
    (("--bind", "127.0.0.1:0", "--token", __file__), USAGE, "not a file of 32 bytes"),
])
def test_impossible_options_are_refused(words, status, text):
    done = serve(*words)
    assert done.returncode == status and text in done.stderr and done.stdout == ""


def test_xdp_reports_why_it_cannot_run():
    row = next(row for row in json.loads(serve("--check", "--json").stdout)["back_ends"] if row["io"] == "xdp")
    text = "unknown interface 'nowhere'" if row["works"] else row["why"].split(";")[0]
    done = serve("--bind", "127.0.0.1:0", "--io", "xdp", "--interfaces", "nowhere")
    assert done.returncode == BAD_ANSWER and text in done.stderr
    assert os.geteuid() == 0 or not row["works"]


def exchange(sock, address, data):
    sock.sendto(data, address)
    return sock.recv(2048)


def test_header_tags_are_refused_under_auth_full(serving):
    _, address, _ = serving("--bind", "127.0.0.1:0", "--auth", "full")
    job, instance, token = 7, 9, bytes(32)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(100)
        for flags, answer in ((0, "refusal"), (wire.FULL, "welcome")):
            start = lambda kind, f=0: struct.pack("<HBBI", wire.MAGIC, 0x10 | wire.TYPES.index(kind), f, job)
            applicant = struct.pack("<QQIB", job, instance, 1, 0)
            challenge = wire.parse_message(exchange(sock, address, start("hello") + applicant + bytes(35)), "challenge")
            epoch, nonce = challenge["epoch"], challenge["nonce"]
            body = (start("enrol", flags) + applicant + bytes([1, 1, 4])
                    + struct.pack("<QQQIIIHHBB", epoch, nonce, 5, 1000, 60000, 8, 8, 0, 8, 16) + bytes(2)
                    + struct.pack("<16H", *range(16)) + bytes(4) + struct.pack("<QQ", 0, 0) + bytes(1))
            tag = wire.siphash(wire.derive_key(token, wire.ENROL, (job, instance, epoch, nonce)), body)
            found = wire.parse_message(exchange(sock, address, body + struct.pack("<Q", tag)), answer)
            assert answer == "welcome" or found["reason"] == 15


@pytest.mark.parametrize("io", ["auto", "mmsg"])
def test_job_of_one_worker_by_hand(serving, tmp_path, io):
    serve("--new-token", tmp_path / "token")
    token = (tmp_path / "token").read_bytes()
    process, address, said = serving("--bind", "127.0.0.1:0", "--token", tmp_path / "token", "--io", io)
    assert said["token"]
    job, instance = 0x1122334455667788, 99
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(100)
        start = lambda kind, flags=0: struct.pack("<HBBI", wire.MAGIC, 0x10 | wire.TYPES.index(kind), flags, job & 0xFFFFFFFF)
        applicant = struct.pack("<QQIB", job, instance, 1, 0)
        answer = exchange(sock, address, start("hello") + applicant + bytes(64 - 8 - len(applicant)))
        challenge = wire.parse_message(answer, "challenge")
        assert wire.message_tag_is_right(answer, wire.derive_key(token, wire.CHALLENGE, (job, instance)))
        epoch, nonce = challenge["epoch"], challenge["nonce"]
        body = (start("enrol") + applicant + bytes([1, 1, 4]) + struct.pack("<QQQIIIHHBB", epoch, nonce, 5, 1000, 60000, 8, 8, 0,
                                                                            8, 16) + bytes(2)
                + struct.pack("<16H", *range(16)) + bytes(4) + struct.pack("<QQ", 0, 0) + bytes(1))
        tag = wire.siphash(wire.derive_key(token, wire.ENROL, (job, instance, epoch, nonce)), body)
        welcome = wire.parse_message(exchange(sock, address, body + struct.pack("<Q", tag)), "welcome")
        assert welcome["complete"] and welcome["registered"] == 1
        key = wire.derive_key(token, wire.JOB, (job, epoch))
        codes = bytes.fromhex("0123abcd")
        header = start("data", wire.FIRST) + struct.pack("<IIHHHBB", 0, 77, epoch & 0xFFFF, 0, 5, 0, 0)
        tag = wire.siphash(key, header + struct.pack("<Q", len(codes) << 32))
        result = exchange(sock, address, header + struct.pack("<Q", tag) + codes)
        found = wire.parse_header(result, True)
        assert wire.header_tag_is_right(result, 40, key, 0)
        assert found["type"] == "result" and found["payload"] == bytes([0, 1, 2, 3, 10, 11, 12, 13])
        assert (found["bitmap"], found["added"], found["divisor"], found["norm"]) == (1, 1, 1, 5)
    process.send_signal(signal.SIGTERM)
    assert process.wait(100) == 0
    assert json.loads(process.stdout.readline())["datagrams"] == 3


def status_of(process):
    """For each thread: users, capabilities that it may have, whether a program that it starts could have more."""
    for status in Path(f"/proc/{process.pid}/task").glob("*/status"):
        found = dict(line.split(":", 1) for line in status.read_text().splitlines())
        yield set(found["Uid"].split()), int(found["CapPrm"], 16), found["NoNewPrivs"].strip()


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone has something to give up")
@pytest.mark.parametrize("words", [(), ("--metrics", "127.0.0.1:0")], ids=["alone", "metrics"])
def test_root_becomes_nobody_and_continues(serving, words):
    if words and not json.loads(serve("--check", "--json").stdout)["metrics"]["works"]:
        pytest.skip("no metrics in this build")
    process, address, _ = serving("--bind", "127.0.0.1:0", *words)
    assert {frozenset(users) for users, _, _ in status_of(process)} == {frozenset({"65534"})}
    assert {capabilities for _, capabilities, _ in status_of(process)} == {0}
    assert {new for _, _, new in status_of(process)} == {"1"}
    workers = job(address, 5, 2)
    for worker in workers:
        worker.contribute(0)
    assert [worker.result()["divisor"] for worker in workers] == [2, 2]


@pytest.mark.parametrize("mode, warned", [(0o600, False), (0o640, False), (0o644, True)])
def test_world_readable_token_is_named(tmp_path, mode, warned):
    path = tmp_path / "token"
    path.write_bytes(bytes(range(1, 33)))
    path.chmod(mode)
    process = subprocess.Popen([BINARY, "serve", "--json", "--bind", "127.0.0.1:0", "--token", str(path)],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert json.loads(process.stdout.readline())["token"]
    process.terminate()
    assert ("every user of this machine can read it" in process.communicate(timeout=280)[1]) == warned


def test_second_server_at_the_port_is_refused(serving):
    _, (host, port), _ = serving("--bind", "127.0.0.1:0")
    second = serve("--bind", f"{host}:{port}")
    assert second.returncode == BAD_ANSWER and "server uses this port" in second.stderr


def heap(process):
    """Bytes of the heap that are in memory."""
    lines = Path(f"/proc/{process.pid}/smaps").read_text().splitlines()
    where = next((i for i, line in enumerate(lines) if line.endswith("[heap]")), None)
    return 0 if where is None else 1024 * next(int(line.split()[1]) for line in lines[where:] if line.startswith("Rss:"))


def test_memory_of_ended_jobs_is_returned(serving):
    """Sockets and rings of jobs that have ended, also where something lives above them in the heap. Once a large ring was
    freed, malloc takes large ones from the heap."""
    process, address, _ = serving("--bind", "127.0.0.1:0")
    fresh, most = heap(process), []
    for generation, rings in enumerate(([4096], [1024] * 20 + [4096] * 3)):
        jobs = [job(address, 100 * generation + number, 2, ring=ring) for number, ring in enumerate(rings)]
        most.append(heap(process))
        for worker in (worker for workers in jobs for worker in workers):
            worker.leave()
        end = time.monotonic() + 100
        while heap(process) > fresh + (1 << 19) and time.monotonic() < end:
            time.sleep(0.2)
        assert heap(process) <= fresh + (1 << 19), (fresh, most)
        if generation == 0:
            time.sleep(12)  # a job that is over answers that it is for 10 s
    assert most[1] > fresh + (5 << 20), (fresh, most)
