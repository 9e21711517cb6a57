# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Rates, counters, loss, changes while running. Times have generous bounds, bytes narrow ones."""

import json
import subprocess
import sys

import pytest
from lab_support import PER_PACKET, TRANSFER

MEGABYTE = 1_000_000


def transfer(lab, words, *arguments, **kwargs):
    done, report = lab.json(*words, "--", sys.executable, TRANSFER, *map(str, arguments), **kwargs)
    assert done.returncode == 0, done.stderr
    lines = [line[4:] for line in done.stderr.splitlines() if line.startswith("[0] ")]
    return lines, report


def test_bytes_match_those_on_the_wire(lab):
    _, report = transfer(lab, ["--rate", "100mbit"], 2 * MEGABYTE)
    receiver, sender = report["per_host"]
    wire = 2 * MEGABYTE / PER_PACKET
    assert wire <= sender["tx_bytes"] <= 1.02 * wire
    assert sender["tx_bytes"] == receiver["rx_bytes"]
    assert sender["rx_bytes"] == receiver["tx_bytes"] < 0.05 * wire
    assert sender["tx_packets"] >= 2 * MEGABYTE // 1448
    assert report["shaped"] == "kernel" and report["burst"] == 65536


@pytest.mark.parametrize("mtu", [576, 9000])
def test_frames_have_requested_length(lab, mtu):
    _, report = transfer(lab, ["--rate", "100mbit", "--mtu", str(mtu)], 2 * MEGABYTE)
    receiver, sender = report["per_host"]
    frames = 2 * MEGABYTE / (mtu - 52)  # of TCP with time stamps
    assert frames <= sender["tx_packets"] <= 1.02 * frames + 20  # what begins and ends a connection, ARP
    assert sender["tx_bytes"] == receiver["rx_bytes"] >= 2 * MEGABYTE + 66 * frames
    assert report["mtu"] == mtu


def test_rate_limits_stream(lab):
    nominal = 2 * MEGABYTE * 8 / 20e6
    lines, report = transfer(lab, ["--rate", "20mbit"], 2 * MEGABYTE)
    assert float(lines[0]) > nominal / 2
    assert report["seconds"] >= float(lines[0])
    assert report["rate_bits_per_second"] == 20_000_000


def test_receiving_is_limited_too(lab):
    # Three senders of 20 mbit each: only the receiver's own port can make them share 20 mbit.
    lines, report = transfer(lab, ["--hosts", "4", "--rate", "20mbit"], MEGABYTE)
    alone = MEGABYTE * 8 / 20e6
    assert float(lines[0]) > 2 * alone
    assert report["per_host"][0]["rx_bytes"] > 3 * MEGABYTE / PER_PACKET


def test_ranks_of_one_host_share_its_rate(lab):
    lines, report = transfer(lab, ["--hosts", "2", "--per-host", "2", "--rate", "20mbit"], MEGABYTE)
    alone = MEGABYTE * 8 / 20e6
    assert float(lines[0]) > 1.5 * alone  # ranks 2 and 3 send through one port
    wire = MEGABYTE / PER_PACKET
    first, second = report["per_host"]
    assert 2 * wire <= second["tx_bytes"] <= 2.1 * wire
    assert second["tx_bytes"] == first["rx_bytes"]  # what rank 1 sends to rank 0 stays on host 0


def test_control_changes_the_rate_and_acknowledges(lab):
    lines, report = transfer(lab, [], MEGABYTE, "20mbit", "off", "20mbit")
    answers = [json.loads(line) for line in lines[0::2]]
    times = [float(line) for line in lines[1::2]]
    assert [(a["ok"], a["rate"]) for a in answers] == [
        (True, "20mbit"),
        (True, "off"),
        (True, "20mbit"),
    ]
    nominal = MEGABYTE * 8 / 20e6
    assert times[0] > nominal / 2 and times[2] > nominal / 2
    assert times[1] < min(times[0], times[2])
    assert [(e["rate"], e["cause"]) for e in report["rates"]] == [
        ("off", "start"),
        ("20mbit", "control"),
        ("off", "control"),
        ("20mbit", "control"),
    ]


def test_control_refuses_with_message(lab):
    send = " ".join(lab.command) + " --send"
    script = f"[ $RANK = 1 ] || {{ {send} 'rate 9mbps'; {send} nonsense; {send} counters; }}"
    done = lab.run("--", "sh", "-c", script)
    answers = [json.loads(line[4:]) for line in done.stdout.splitlines()]
    assert [a["ok"] for a in answers] == [False, False, True]
    assert "mbps" in answers[0]["error"]["message"]
    assert "rate RATE" in answers[1]["error"]["hint"]
    assert len(answers[2]["per_host"]) == 2


def test_command_reads_its_own_counters(lab):
    code = """
kernel = int(next(l for l in open("/proc/net/dev") if "eth0" in l).split(":")[1].split()[8])
print(kernel, open("/sys/class/net/eth0/statistics/tx_bytes").read().strip())
"""
    lines, _, done = lab.python(code)
    assert done.returncode == 0, done.stderr
    proc, sysfs = lines[0][0].split()
    assert proc == sysfs


def test_schedule_changes_rates(lab):
    status = " ".join(lab.command) + " --send status"
    done, report = lab.json("--schedule", "t=0 30mbit, t=0.2 10mbit, t=0.4 off", "--", "sh", "-c",
                            f"""until {status} | grep '"rate":"off"'; do sleep 0.02; done""")
    assert done.returncode == 0, done.stderr
    assert [(e["rate"], e["cause"]) for e in report["rates"]] == [
        ("30mbit", "start"),
        ("10mbit", "schedule"),
        ("off", "schedule"),
    ]
    assert report["rate"] == "30mbit"


def test_rates_alternate(lab):
    status = " ".join(lab.command) + " --send status"
    seen = [f"""until {status} | grep '"rate":"{rate}"'; do sleep 0.02; done""" for rate in ("10mbit", "100mbit")]
    done, report = lab.json("--rate", "100mbit,10mbit,off", "--every", "200ms", "--", "sh", "-c", "; ".join(seen))
    assert done.returncode == 0, done.stderr
    seen = [(e["rate"], e["cause"]) for e in report["rates"]]
    assert seen[:4] == [("100mbit", "start"), ("10mbit", "every"), ("off", "every"), ("100mbit", "every")]
    for turn, event in enumerate(report["rates"]):
        assert event["t"] >= 0.2 * turn
    assert report["rate"] == "100mbit"
    text = lab.run("--rate", "100mbit,10mbit", "--every", "3s", "--", "true").stderr
    assert "rates: 100mbit,10mbit in turn, 3s each\n" in text


def test_rates_that_alternate_limit_stream(lab):
    # Each change fills the token bucket again: 400 ms carry at most 500 + 125 kB and two buckets, so that 2 MB take 0.97 s from the best
    # moment on. At 20 mbit alone they take 0.77.
    lines, _ = transfer(lab, ["--rate", "5mbit,20mbit", "--every", "200ms"], 2 * MEGABYTE)
    assert float(lines[0]) > 0.85


def test_rates_alternate_in_emulation(any_lab):
    code = """
import os, time
seen = []
while len(seen) < 4:
    rate = open(os.environ["LACONIC_EMULATE_RATE_FILE"]).read().strip()
    if seen[-1:] != [rate]:
        seen.append(rate)
    time.sleep(0.005)
print(*seen)
"""
    lines, report, done = any_lab.python(code, "--emulate", "--rate", "100mbit,off", "--every", "300ms", "--timeout", "100s")
    assert done.returncode == 0, done.stderr
    assert lines[0][0] in ("100000000 0 100000000 0", "0 100000000 0 100000000")  # a slow start may have missed the first
    assert report["rates"][0]["rate"] == "100mbit"


def test_loss_drops_packets_and_tcp_survives(lab, features):
    if not features["loss"]:
        pytest.skip("this kernel cannot drop at random, says laconic lab --check: no cls_bpf")
    _, report = transfer(lab, ["--loss", "5%"], MEGABYTE // 2)
    receiver, sender = report["per_host"]
    lost = sender["tx_packets"] - receiver["rx_packets"]
    assert 0 < lost < 0.2 * sender["tx_packets"]
    assert report["loss"] == 0.05


def test_plain_user_has_shaped_network(lab, plain_user):
    if not plain_user:
        pytest.skip("the other tests run as a plain user already")

    def runs(program):
        return subprocess.run([*plain_user, "sh", "-c", f"{program} --help"], capture_output=True).returncode == 0

    pythons = [sys.executable, "/usr/bin/python3"]
    python = next(filter(runs, pythons), None)
    if python is None:
        pytest.skip(f"a plain user can run none of {pythons}")
    code = open(TRANSFER).read()
    done, report = lab.json(
        "--rate", "50mbit", "--", python, "-c", code, str(MEGABYTE), prefix=plain_user
    )
    assert done.returncode == 0, done.stderr
    assert report["isolation"] == "user namespace"
    assert report["per_host"][1]["tx_bytes"] >= MEGABYTE / PER_PACKET


def test_check_matches_what_works(lab):
    text = lab.run("--check")
    assert text.returncode == 0 and "a lab can run here" in text.stdout
