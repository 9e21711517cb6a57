# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""laconic serve --metrics, read back."""

import json
import os
import re
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest

import hand_worker

ROOT = Path(__file__).resolve().parents[2]
BINARY = Path(os.environ.get("LACONIC_CLI", ROOT / "build" / "release" / "bin" / "laconic"))
pytestmark = pytest.mark.skipif(not BINARY.exists(), reason=f"{BINARY} is not built")
BAD_ANSWER = 1


def laconic(*words):
    return subprocess.run([BINARY, *map(str, words)], capture_output=True, text=True, timeout=280)


@pytest.fixture(scope="module")
def has_metrics():
    found = json.loads(laconic("serve", "--check", "--json").stdout)["metrics"]
    if not found["works"]:
        pytest.skip(found["why"])


@pytest.fixture
def serving():
    started = []

    def start(*words):
        process = subprocess.Popen([BINARY, "serve", "--json", *words], stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process, json.loads(process.stdout.readline())

    yield start
    for process in started:
        process.kill()
        process.wait()


def with_regular_expressions(text):
    found = {}
    for name, labels, value in re.findall(r"^(\w+)(?:\{(.*)\})? (\S+)$", text, re.M):
        found[name, frozenset(re.findall(r'(\w+)="([^"]*)"', labels))] = float(value)
    return found


def with_prometheus_client(text):
    parser = pytest.importorskip("prometheus_client.parser", reason="prometheus_client is not installed")
    return {(sample.name, frozenset(sample.labels.items())): sample.value
            for family in parser.text_string_to_metric_families(text) for sample in family.samples}


def busy_server(serving):
    """Two jobs whose every datagram is known."""
    _, said = serving("--bind", "127.0.0.1:0", "--metrics", "127.0.0.1:0")
    metrics = said["metrics"]
    host, port = said["serving"].rsplit(":", 1)
    address = host, int(port)
    # Job 1: a duplicate, a wrong tag, a sum that one worker has acknowledged; a second sum that is open.
    a, b = hand_worker.job(address, 0x1111111111111111, 2)
    a.contribute(0)
    a.contribute(0)
    forged = bytearray(a.header("data", 0, 0, payload=bytes(4)))
    forged[24] ^= 1
    a.send(bytes(forged))
    # Several threads serve: were b's contribution read first, the duplicate would be a question for a result.
    duplicates = "laconic_job_duplicates_total", frozenset({job_of("1")})
    for _ in range(100):
        if with_regular_expressions(text_of(metrics)).get(duplicates) == 1:
            break
        time.sleep(0.1)
    b.contribute(0)
    assert a.result()["divisor"] == b.result()["divisor"] == 2
    a.acknowledge(1)
    a.contribute(1, ack=1)
    # Job 2: one contribution suffices after a millisecond; the other one comes too late.
    c, d = hand_worker.job(address, 0x2222222222222222, 2, needed=1, deadline_us=1000)
    c.contribute(0)
    assert c.result()["bitmap"] == 1 and d.result()["bitmap"] == 1
    d.contribute(0)
    assert d.result()["bitmap"] == 1
    return metrics, [a, b, c, d]


def job_of(digit):
    return "job", digit * 16


WANTED = {
    ("laconic_job_datagrams_total", ("1",)): 5,
    ("laconic_job_duplicates_total", ("1",)): 1,
    ("laconic_job_sums_total", ("1",)): 1,
    ("laconic_job_partial_sums_total", ("1",)): 0,
    ("laconic_job_late_total", ("1",)): 0,
    ("laconic_job_multicast_sums_total", ("1",)): 0,
    ("laconic_job_rejected_total", ("1", ("reason", "tag"))): 1,
    ("laconic_job_rejected_total", ("1", ("reason", "size"))): 0,
    ("laconic_job_open_slots", ("1",)): 1,
    ("laconic_job_kept_slots", ("1",)): 1,
    ("laconic_job_state", ("1", ("state", "running"))): 1,
    ("laconic_worker_lag_sums", ("1", ("worker", "0"))): 0,
    ("laconic_worker_lag_sums", ("1", ("worker", "1"))): 1,
    ("laconic_worker_round_trip_seconds", ("1", ("worker", "1"))): 0,
    ("laconic_job_datagrams_total", ("2",)): 2,
    ("laconic_job_sums_total", ("2",)): 1,
    ("laconic_job_partial_sums_total", ("2",)): 1,
    ("laconic_job_late_total", ("2",)): 1,
    ("laconic_job_resent_results_total", ("2",)): 1,
    ("laconic_job_rejected_total", ("2", ("reason", "tag"))): 0,
    ("laconic_server_jobs", ()): 2,
    ("laconic_server_rejected_total", (("reason", "tag"),)): 1,
}


def text_of(metrics):
    with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=280) as answer:
        return answer.read().decode()


@pytest.mark.parametrize("read", [with_regular_expressions, with_prometheus_client])
def test_figures_match_datagrams(has_metrics, serving, read):
    metrics, workers = busy_server(serving)
    wanted = {(name, frozenset(job_of(label) if isinstance(label, str) else label for label in labels)): value
              for (name, labels), value in WANTED.items()}
    for _ in range(100):  # they are refreshed a few times a second
        found = read(text_of(metrics))
        if all(found.get(key) == value for key, value in wanted.items()):
            break
        time.sleep(0.1)
    assert {key: found.get(key) for key in wanted} == wanted
    assert 0 < found["laconic_worker_round_trip_seconds", frozenset({job_of("1"), ("worker", "0")})] < 60
    assert found["laconic_server_memory_bytes", frozenset()] > 0
    assert found["laconic_server_datagrams_total", frozenset()] == 16  # eight of registration


def test_unfinished_requests_delay_no_client_for_long(has_metrics, serving):
    _, said = serving("--bind", "127.0.0.1:0", "--metrics", "127.0.0.1:0")
    host, port = said["metrics"].rsplit(":", 1)
    slow = [socket.create_connection((host, int(port))) for _ in range(60)]
    for client in slow:
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: a")
    assert "laconic_server_jobs 0" in text_of(said["metrics"])  # each of them was waited for 30 s
    for client in slow:
        client.close()


def test_multicast_sums_are_counted(has_metrics, serving):
    _, said = serving("--bind", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--multicast", "239.7.4.2")
    host, port = said["serving"].rsplit(":", 1)
    workers = hand_worker.job((host, int(port)), 0x3333333333333333, 2)
    for worker in workers:  # both report that the group reaches them
        worker.send(worker.header("data", 0, 0, flags=hand_worker.wire.GROUP, payload=bytes(4)))
    for _ in range(100):
        found = with_regular_expressions(text_of(said["metrics"]))
        sums, together = (found.get((name, frozenset({job_of("3")}))) for name in ("laconic_job_sums_total", "laconic_job_multicast_sums_total"))
        if together:
            break
        time.sleep(0.1)
    assert (sums, together) == (1, 1)


def test_two_servers_cannot_have_one_port(has_metrics, serving):
    _, said = serving("--bind", "127.0.0.1:0", "--metrics", "127.0.0.1:0")
    for address, text in ((said["metrics"], "cannot listen"), ("127.0.0.1", "no port")):
        done = laconic("serve", "--bind", "127.0.0.1:0", "--metrics", address)
        assert done.returncode == BAD_ANSWER and text in done.stderr, done.stderr


def test_missing_prometheus_cpp_is_reported():
    found = json.loads(laconic("serve", "--check", "--json").stdout)["metrics"]
    if found["works"]:
        pytest.skip("this build has metrics")
    done = laconic("serve", "--bind", "127.0.0.1:0", "--metrics", "127.0.0.1:0")
    assert done.returncode == BAD_ANSWER and found["why"] in done.stderr
