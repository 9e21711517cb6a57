# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""--switch: a COMMAND where the ports of all hosts meet."""

import json
import os
import pathlib
import shlex
import signal
import sys
import time

import pytest
from lab_support import PER_PACKET, until

PYTHON = shlex.quote(sys.executable)
DATAGRAMS = str(pathlib.Path(__file__).with_name("datagrams.py"))
OPEN = 'import socket, time; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(("switch", 99)); '


def python(code):
    return f"{PYTHON} -c {shlex.quote(code)}"


WAITS = python(OPEN + "time.sleep(600)")


def of_switch(done):
    return [line.removeprefix("[switch] ") for line in done.stderr.splitlines() if line.startswith("[switch]")]


def test_switch_has_name_address_and_environment(lab, monkeypatch):
    monkeypatch.setenv("RANK", "7")  # from the environment of the lab
    script = "hostname; echo ${RANK-none} ${WORLD_SIZE-none} $LACONIC_LAB; ls /dev/shm; ls -d /sys/class/net/port*; "
    ranks = "import socket; print(socket.gethostbyname('switch'), socket.gethostbyaddr('10.77.0.254')[0])"
    lines, report, done = lab.python(ranks, "--switch", script + WAITS)
    assert done.returncode == 0, done.stderr
    assert lines == {rank: ["10.77.0.254 switch"] for rank in (0, 1)}
    assert of_switch(done) == ["switch", "none none kernel", "laconic-lab.sock", "/sys/class/net/port0",
                               "/sys/class/net/port1"]
    assert report["switch"]["address"] == "10.77.0.254" and report["switch"]["command"].endswith(WAITS)
    assert report["switch"]["signal"] == "SIGTERM" and "error" not in report


def test_missing_switch_has_no_name(lab):
    lines, report, _ = lab.python("print(open('/etc/hosts').read().count('switch'))")
    assert lines == {0: ["0"], 1: ["0"]} and report["switch"] is None


def test_ranks_start_once_switch_opens_port(lab, tmp_path):
    mark = tmp_path / "mark"
    code = f"import time; time.sleep(0.4); open({str(mark)!r}, 'w'); {OPEN} time.sleep(600)"
    for kind in ("SOCK_DGRAM", "SOCK_STREAM"):
        mark.unlink(missing_ok=True)
        opens = code.replace("SOCK_DGRAM", kind)
        if kind == "SOCK_STREAM":
            opens = opens.replace("time.sleep(600)", "s.listen(); time.sleep(600)")
        done = lab.run("--switch", python(opens), "--", "test", "-e", str(mark))
        assert done.returncode == 0, done.stderr


def test_switch_gets_sigterm_after_ranks(lab, tmp_path):
    # The handler comes first: ranks start when the port is open, and may end immediately.
    code = "import signal, sys; signal.signal(15, lambda *_: [print('bye'), sys.exit(4)]); " + OPEN + "time.sleep(600)"
    # A shell, which the signal ends, around it.
    done = lab.run("--logs", str(tmp_path), "--switch", python(code) + "; true", "--", "echo", "here")
    assert done.returncode == 0 and "[switch] bye" in done.stdout, done.stderr
    assert (tmp_path / "switch.out").read_text() == "bye\n" and (tmp_path / "rank0.out").read_text() == "here\n"
    row = next(line for line in done.stderr.splitlines() if line.startswith("switch"))
    assert row.split()[1] == "10.77.0.254"


# The first must end before the ranks are started without it, so it is nothing that takes seconds to load; the second when they are.
@pytest.mark.parametrize("opens", [False, True], ids=["closed", "open"])
def test_early_end_of_switch_fails_run(lab, tmp_path, opens):
    marks, command = [tmp_path / "0", tmp_path / "1"], "sleep 0.2; echo no; exit 3"
    if opens:
        command = f"{WAITS} & {until(*marks)}; echo no; kill $!; exit 3"
    done, report = lab.json("--grace", "100ms", "--switch", command, "--", "sh", "-c", f"touch {tmp_path}/$RANK; exec sleep 600")
    assert done.returncode == 1 and of_switch(done) == ["no"]
    assert report["error"]["name"] == "peer_failed"
    assert report["error"]["message"] == "the COMMAND in the switch ended (exit 3) before the ranks"
    assert report["switch"]["exit"] == 3
    assert [mark.exists() for mark in marks] == [opens] * 2  # before it listens no rank is started
    assert [rank["signal"] for rank in report["per_rank"]] == ["SIGTERM"] * 2 * opens


def test_lab_does_not_count_pauses_as_waiting(lab, tmp_path):
    mark = tmp_path / "mark"
    lab_process = lab.start("--switch", "echo started; sleep 12; exit 3", "--", "touch", str(mark))
    assert lab_process.stdout.readline() == "[switch] started\n"
    supervisor = int(pathlib.Path(f"/proc/{lab_process.pid}/task/{lab_process.pid}/children").read_text())
    os.kill(supervisor, signal.SIGSTOP)
    time.sleep(10.5)  # longer than the ranks wait
    os.kill(supervisor, signal.SIGCONT)
    said, _ = lab_process.communicate(timeout=280)
    assert lab_process.returncode == 1 and "ended (exit 3) before the ranks" in said
    assert not mark.exists()


def test_early_end_of_switch_is_reported_after_failed_ranks(lab, tmp_path):
    line = f"{WAITS} & {until(tmp_path / '0', tmp_path / '1')}; kill $!; touch {tmp_path}/ended"
    done, report = lab.json("--keep-going", "--switch", line, "--",
                            "sh", "-c", f"touch {tmp_path}/$RANK; {until(tmp_path / 'ended')}; sleep 0.5; exit $RANK")
    assert done.returncode == 1
    assert report["error"]["message"] == ("the COMMAND in the switch ended (exit 0) before the ranks; "
                                          "COMMAND failed on rank 1 (exit 1)")


def test_interrupted_lab_ends_switch(lab):
    lab_process = lab.start("--switch", "echo started; sleep 600", "--", "true")
    assert lab_process.stdout.readline() == "[switch] started\n"  # no port: the ranks are not there yet
    lab_process.terminate()
    said, _ = lab_process.communicate(timeout=280)
    assert lab_process.returncode == 1 and "interrupted by SIGTERM" in said
    assert "SIGTERM" in next(line for line in said.splitlines() if line.startswith("switch"))


def test_lab_on_enters_switch(lab):
    on = " ".join(lab.command) + " --on switch"
    script = f"{on} 'hostname; cat /sys/class/net/br0/address | wc -l'; {on} true"
    done, _ = lab.json("--launcher", "--switch", WAITS, "--", "sh", "-c", script)
    assert done.returncode == 0 and done.stderr.splitlines() == ["switch", "1"]
    alone, _ = lab.json("--launcher", "--", "sh", "-c", on + " true")
    assert alone.returncode == 1 and "no host 'switch'" in alone.stderr


STREAM = """
import os, socket, sys, time
COUNT = 1_000_000
def take(peer):
    left = COUNT - len(peer.recv(1))  # the other direction is over
    start = time.monotonic()
    while left:
        left -= len(peer.recv(min(left, 1 << 16)))
    print(time.monotonic() - start, flush=True)
if "at-switch" in sys.argv:
    peer, _ = socket.create_server(("switch", 7000)).accept()
    take(peer)
    peer.sendall(bytes(COUNT))
    time.sleep(600)
elif os.environ["RANK"] == "0":
    peer = socket.create_connection(("switch", 7000))
    peer.sendall(bytes(COUNT))
    take(peer)
"""


def test_both_directions_have_the_hosts_rate(lab):
    lines, report, done = lab.python(STREAM, "--rate", "20mbit", "--switch", python(STREAM) + " at-switch")
    assert done.returncode == 0, done.stderr
    nominal = 1_000_000 * 8 / 20e6
    up, down = float(of_switch(done)[0]), float(lines[0][0])
    assert up > nominal / 2 and down > nominal / 2
    host, idle = report["per_host"]
    wire = 1_000_000 / PER_PACKET  # and the acknowledgements of the other direction
    for count, of_host in (("tx", "rx"), ("rx", "tx")):
        sent = report["switch"][count + "_bytes"]
        assert wire <= sent <= 1.05 * wire, (count, sent)
        assert abs(sent - host[of_host + "_bytes"]) < 1000
        assert report["switch"][count + "_packets"] >= 1_000_000 // 1448
    assert idle["rx_bytes"] < 10_000


def test_loss_is_per_packet_in_both_directions(lab, features):
    if not features["loss"]:
        pytest.skip("this kernel cannot drop at random, says laconic lab --check: no cls_bpf")
    done, report = lab.json("--rate", "50mbit", "--loss", "10%", "--switch", f"{PYTHON} {DATAGRAMS} at-switch", "--",
                            sys.executable, DATAGRAMS)
    assert done.returncode == 0, done.stderr
    up, down = of_switch(done)[0], next(line[4:] for line in done.stderr.splitlines() if line.startswith("[0]"))
    for line in (up, down):
        came, tens_in_part = map(int, line.split())
        assert 1720 < came < 1880, (up, down)
        assert tens_in_part > 80, (up, down)  # of 130; of whole segments lost, none


def test_packets_between_hosts_are_lost_once(lab, features):
    if not features["loss"]:
        pytest.skip("this kernel cannot drop at random, says laconic lab --check: no cls_bpf")
    done, _ = lab.json("--rate", "50mbit", "--loss", "10%", "--switch", WAITS, "--", sys.executable, DATAGRAMS, "host1")
    assert done.returncode == 0, done.stderr
    for line in done.stderr.splitlines():
        assert 1720 < int(line.split()[1]) < 1880, line  # twice: 1620


def test_loss_rate_can_change(lab, features):
    if not features["loss"]:
        pytest.skip("this kernel cannot drop at random, says laconic lab --check: no cls_bpf")
    send = " ".join(lab.command) + " --send"
    ping = "ping -c 30 -i 0.05 switch | grep -c 'icmp_seq=[1-8] '"  # the last may be late
    words = [f"{send} 'loss {share}'; {ping}" for share in ("0%", "75%", "0%")]
    done = lab.run("--hosts", "1", "--switch", WAITS, "--", "sh", "-c", "; ".join([*words, f"{send} 'loss 2'"]))
    lines = done.stdout.splitlines()
    assert lines[1] == lines[5] == "8" and int(lines[3]) < 8, done.stdout
    assert [json.loads(line).get("loss") for line in lines[::2]] == [0, 0.75, 0, None]


def test_plain_user_has_switch_too(lab, plain_user):
    done = lab.run("--switch", "echo $(id -u) $(hostname); " + WAITS.replace(PYTHON, "python3"), "--loss", "1%",
                   "--rate", "50mbit", "--", "true", prefix=plain_user)
    assert done.returncode == 0, done.stderr
    assert "[switch] 0 switch" in done.stdout


@pytest.mark.parametrize("words, message", [
    (["--emulate", "--switch", "true", "--", "true"], "--switch needs a network of its own"),
    (["--switch", " ", "--", "true"], "--switch lacks a COMMAND"),
])
def test_usage_errors_of_switch(any_lab, words, message):
    done, report = any_lab.json(*words)
    assert done.returncode == 2 and message in report["error"]["message"]
