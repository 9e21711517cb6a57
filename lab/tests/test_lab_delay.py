# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""--delay, --jitter, --seed: what is promised is a least time and an order, no precision."""

import os
import pathlib
import re
import shlex
import signal
import sys

import pytest
from lab_support import PER_PACKET, TRANSFER, eventually, processes_with, wait_for
from test_lab_beside import said_beside
from test_lab_switch import WAITS, of_switch

DATAGRAMS = str(pathlib.Path(__file__).with_name("datagrams.py"))
MEGABYTE = 1_000_000


@pytest.fixture(scope="module", autouse=True)
def delays(features):
    if not features["delay"]:
        pytest.skip("this kernel lets nobody read frames from a port, says laconic lab --check: no AF_PACKET")


def pings(text):
    return [float(ms) for ms in re.findall(r"time=([\d.]+) ms", text)]


def test_round_trip_takes_twice_the_delay(lab):
    done, report = lab.json("--delay", "10ms", "--", "sh", "-c", "[ $RANK = 1 ] || ping -i 0.05 -c 10 host1")
    assert done.returncode == 0, done.stderr
    times = pings(done.stderr)
    assert len(times) == 10 and min(times) >= 20, times
    assert report["delay_seconds"] == 0.01 and report["jitter_seconds"] == 0
    forwarder = report["forwarder"]
    assert forwarder["frames"] >= 20 and forwarder["lost"] == forwarder["overrun"] == forwarder["refused"] == 0
    assert forwarder["cpu_seconds"] > 0


@pytest.mark.parametrize("mtu", [576, 9000])
def test_frames_of_any_length_are_held_back(lab, mtu):
    ping = f"ping -M do -s {mtu - 28} -i 0.05 -c 5 host1"
    done, report = lab.json("--delay", "2ms", "--mtu", str(mtu), "--", "sh", "-c", f"[ $RANK = 1 ] || {ping}")
    assert done.returncode == 0, done.stderr
    assert len(pings(done.stderr)) == 5 and min(pings(done.stderr)) >= 4
    assert report["forwarder"]["overrun"] == report["forwarder"]["refused"] == 0
    assert f"mtu {mtu}" in lab.run("--mtu", str(mtu), "--", "true").stderr


def test_jitter_varies_delay_within_bounds(lab):
    done, report = lab.json("--delay", "10ms", "--jitter", "8ms", "--seed", "5", "--",
                            "sh", "-c", "[ $RANK = 1 ] || ping -i 0.04 -c 25 host1")
    times = pings(done.stderr)
    assert len(times) == 25 and min(times) >= 4, times
    assert max(times) - min(times) > 4, times  # of 32; uniform draws
    assert report["jitter_seconds"] == 0.008 and report["seed"] == 5
    plain = lab.run("--delay", "10ms", "--jitter", "8ms", "--seed", "5", "--", "true")
    assert "delay 10ms, jitter 8ms (seed 5)" in plain.stderr and "\nforwarder: " in plain.stderr


def test_no_delay_starts_no_forwarder(lab):
    done, report = lab.json("--jitter", "0ms", "--delay", "0ms", "--", "true")
    assert done.returncode == 0 and report["forwarder"] is None


ORDER = """
import os, socket, time
COUNT = 1500
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as mine:
    other = 1 - int(os.environ["RANK"])
    mine.bind(("", 7000))
    mine.settimeout(100)
    # Until both are there: what waits for an address to be resolved may be dropped.
    while True:
        mine.sendto(b"hello", (f"host{other}", 7000))
        mine.settimeout(0.1)
        try:
            if mine.recv(100) == b"hello":
                break
        except TimeoutError:
            pass
    mine.sendto(b"hello", (f"host{other}", 7000))
    mine.setblocking(False)
    came, sent, end = [], 0, time.monotonic() + 100
    while (len(came) < COUNT or sent < COUNT) and time.monotonic() < end:
        if sent < min(COUNT, len(came) + 100):  # else the socket of one that gets no core would be full
            mine.sendto(b"%d" % sent, (f"host{other}", 7000))
            sent += 1
        time.sleep(0.0002)
        try:
            while True:
                if (data := mine.recv(100)) != b"hello":
                    came.append(int(data))
        except BlockingIOError:
            pass
    print(len(came), came == sorted(set(came)))
"""


@pytest.mark.parametrize("words", [["--rate", "50mbit"], []])
def test_order_of_frames_is_kept(lab, words):
    lines, report, done = lab.python(ORDER, "--delay", "5ms", "--jitter", "5ms", *words)
    assert done.returncode == 0, done.stderr
    assert lines == {0: ["1500 True"], 1: ["1500 True"]}
    assert report["forwarder"]["frames"] >= 3000


def test_delay_keeps_streams_and_rates(lab):
    # Sending slower than the rate delays no packet; the bytes are those of the wire, in real packets.
    done, report = lab.json("--hosts", "3", "--rate", "50mbit", "--delay", "2ms", "--jitter", "1ms", "--",
                            sys.executable, TRANSFER, str(MEGABYTE))
    assert done.returncode == 0, done.stderr
    receiver, sender, _ = report["per_host"]
    wire = MEGABYTE / PER_PACKET
    for host in report["per_host"][1:]:
        assert wire <= host["tx_bytes"] <= 1.3 * wire and host["tx_packets"] >= MEGABYTE // 1448
    assert receiver["rx_bytes"] >= 2 * wire
    assert float(done.stderr.split()[1]) > 2 * MEGABYTE * 8 / 50e6 / 2


def test_rates_change_on_a_delayed_network(lab):
    done, report = lab.json("--delay", "1ms", "--", sys.executable, TRANSFER, str(MEGABYTE), "20mbit", "off")
    assert done.returncode == 0, done.stderr
    slow, fast = [float(line[4:]) for line in done.stderr.splitlines() if re.fullmatch(r"\[0\] [\d.]+", line)]
    assert slow > MEGABYTE * 8 / 20e6 / 2 and fast < slow
    assert [event["rate"] for event in report["rates"]] == ["off", "20mbit", "off"]


def test_frames_reach_only_their_host(lab):
    done, report = lab.json("--hosts", "3", "--delay", "1ms", "--", "sh", "-c",
                            "[ $RANK != 0 ] || ping -q -i 0.01 -c 50 host1")
    assert done.returncode == 0, done.stderr
    _, pinged, other = report["per_host"]
    assert pinged["rx_packets"] >= 50 and other["rx_packets"] <= 5  # a request for an address
    assert pinged["rx_packets"] <= 60  # once each


def test_switch_is_one_delay_away(lab):
    on = " ".join(lab.command) + " --on switch"
    script = f"ping -i 0.05 -c 5 switch; grep 10.77.0.254 /proc/net/arp; {on} cat /proc/net/arp"
    done, report = lab.json("--delay", "50ms", "--switch", "hostname; " + WAITS, "--", "sh", "-c", script)
    assert done.returncode == 0, done.stderr
    times = pings(done.stderr)
    assert len(times) == 10 and 50 <= min(times) < 100, times
    assert done.stderr.count("02:00:0a:4d:00:fe") == 2
    assert "br0" in done.stderr and not re.search(r"port\d$", done.stderr, re.M)  # the bridge alone answers, no port
    assert report["switch"]["rx_packets"] >= 10


def test_loss_hits_each_packet_once(lab):
    words = ["--rate", "50mbit", "--loss", "10%", "--delay", "1ms"]
    done, report = lab.json(*words, "--switch", f"{shlex.quote(sys.executable)} {DATAGRAMS} at-switch", "--",
                            sys.executable, DATAGRAMS)
    assert done.returncode == 0, done.stderr
    lines = of_switch(done) + [line[4:] for line in done.stderr.splitlines() if line.startswith("[0]")]
    between, _ = lab.json(*words, "--", sys.executable, DATAGRAMS, "host1")
    lines += [line[4:] for line in between.stderr.splitlines() if line[:3] in ("[0]", "[1]")]
    assert len(lines) == 4
    for line in lines:
        came, tens_in_part = map(int, line.split())
        assert 1720 < came < 1880 and tens_in_part > 80, lines
    assert 350 < report["forwarder"]["lost"] < 500


def test_loss_rate_can_change(lab):
    send = " ".join(lab.command) + " --send"
    ping = "ping -c 30 -i 0.05 host1 | grep -c 'icmp_seq=[1-8] '"  # the last may be late
    script = f"[ $RANK = 1 ] || {{ {ping}; {send} 'loss 99%'; {ping}; {send} 'loss 0%'; {ping}; }}"
    done = lab.run("--delay", "1ms", "--", "sh", "-c", script)
    counts = [line[4:] for line in done.stdout.splitlines() if re.fullmatch(r"\[0\] \d", line)]
    assert counts[0] == counts[2] == "8" and int(counts[1]) < 8, done.stdout


def test_extra_hosts_are_delayed_too(lab, tmp_path):
    line = f"ping -i 0.05 -c 5 $LACONIC_LAB_RANK_0; touch {tmp_path}/done"
    done, _ = lab.json("--delay", "10ms", "--beside", "1", line, *wait_for(tmp_path / "done"))
    assert done.returncode == 0, done.stderr
    times = pings("\n".join(said_beside(done, 0)))
    assert len(times) == 5 and min(times) >= 20, done.stderr


def test_end_of_forwarder_is_error_of_run(lab):
    marker = f"lab-forwarder-test-{os.getpid()}"
    process = lab.start("--delay", "1ms", "--", "sh", "-c", f"echo up; sleep 600; : {marker}")
    for _ in range(2):
        assert process.stdout.readline().endswith("up\n")
    inside = [pid for pid in processes_with(marker)
              if pathlib.Path(f"/proc/{pid}/comm").read_text() == "lab-forwarder\n"]
    assert len(inside) == 1
    os.kill(inside[0], signal.SIGKILL)
    said, _ = process.communicate(timeout=280)
    assert process.returncode == 1 and "the process that delays frames ended (SIGKILL)" in said
    assert eventually(lambda: not processes_with(marker))


def test_plain_user_has_delay_too(lab, plain_user):
    script = "[ $RANK = 1 ] || ping -i 0.2 -c 5 host1"
    done = lab.run("--delay", "10ms", "--rate", "50mbit", "--", "sh", "-c", script, prefix=plain_user)
    assert done.returncode == 0, done.stderr
    assert min(pings(done.stdout)) >= 20
