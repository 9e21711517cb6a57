# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""--beside: hosts that are not ranks, and what they send to the ranks' ports."""

import json
import os
import shlex
import sys
import tempfile

import pytest
from lab_support import eventually, processes_with, until, wait_for

PYTHON = shlex.quote(sys.executable)
MARKER = f"lab-beside-test-{os.getpid()}"


def python(code):
    return f"{PYTHON} -c {shlex.quote(code)}"


def stubborn(mark):
    code = f"import signal, time; signal.signal(15, signal.SIG_IGN); open({str(mark)!r}, 'w'); time.sleep(600)"
    return python(f"{code}  # {MARKER}")


def said_beside(done, number):
    prefix = f"[beside{number}] "
    return [line.removeprefix(prefix) for line in done.stderr.splitlines() if line.startswith(prefix)]


FLOOD = """
import os, socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
while True:
    s.sendto(bytes(1000), (os.environ["LACONIC_LAB_RANK_0"], 7000))
"""
# Rank 0 ends when it has 200 datagrams, and some from each; the others end immediately.
TAKES = """
import os, socket
if os.environ["RANK"] == "0":
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind(("", 7000))
    senders = []
    while len(senders) < 200 or len(set(senders)) < 2:
        senders.append(s.recvfrom(2000)[1][0])
    print(sorted(set(senders)))
"""


def test_extra_process_has_names_and_environment(lab, monkeypatch, tmp_path):
    monkeypatch.setenv("RANK", "7")  # from the environment of the lab
    say = ("echo $LACONIC_LAB_BESIDE $LACONIC_LAB_ADDRESS $(hostname) ${RANK-none} ${WORLD_SIZE-none}; "
           "echo $LACONIC_LAB_RANKS; echo $LACONIC_LAB_RANK_0 $LACONIC_LAB_RANK_3 ${LACONIC_LAB_RANK_4-none}; "
           "getent ahostsv4 beside1 host1 | cut -d' ' -f1 | sort -u; ls /sys/class/net; touch "
           f"{tmp_path}/mark$LACONIC_LAB_BESIDE")
    ranks = f"import os, time\nwhile len(os.listdir({str(tmp_path)!r})) < 2: time.sleep(0.02)\nprint(os.environ['WORLD_SIZE'], 'LACONIC_LAB_BESIDE' in os.environ)"
    lines, report, done = lab.python(ranks, "--timeout", "100s", "--per-host", "2", "--beside", "2", say)
    assert done.returncode == 0, done.stderr
    assert lines == {rank: ["4 False"] for rank in range(4)}
    for number in (0, 1):
        assert said_beside(done, number) == [
            f"{number} 10.77.0.{201 + number} beside{number} none none", "10.77.0.1 10.77.0.1 10.77.0.2 10.77.0.2",
            "10.77.0.1 10.77.0.2 none", "10.77.0.2", "10.77.0.202", "eth0", "lo"]
    assert [(host["beside"], host["address"], host["exit"]) for host in report["beside"]] == [
        (0, "10.77.0.201", 0), (1, "10.77.0.202", 0)]
    assert report["hosts"] == 2 and len(report["per_host"]) == 2


def test_extra_traffic_reaches_port_of_rank_and_is_counted(lab):
    lines, report, done = lab.python(TAKES, "--timeout", "100s", "--rate", "20mbit", "--beside", "2", python(FLOOD))
    assert done.returncode == 0, done.stderr
    assert lines[0][0] == "['10.77.0.201', '10.77.0.202']"
    taken, idle = report["per_host"]
    sent = sum(host["tx_bytes"] for host in report["beside"])
    assert sent >= taken["rx_bytes"] > 200 * 1042 and idle["rx_bytes"] < 2000
    for host in report["beside"]:  # each of them has a port of the lab's rate
        assert 1042 < host["tx_bytes"] < 20e6 / 8 * report["seconds"] + 2 * report["burst"]
        assert host["tx_packets"] == pytest.approx(host["tx_bytes"] / 1042, abs=5)
        assert host["signal"] == "SIGTERM" and host["exit"] is None
    assert "error" not in report


def test_table_and_control_socket_have_extra_bytes(lab, tmp_path):
    send = " ".join(lab.command) + " --send counters"
    done = lab.run("--beside", "1", "ping -c 1 $LACONIC_LAB_RANK_1; touch " + str(tmp_path / "pinged"), "--logs",
                   str(tmp_path / "logs"), "--hosts", "2", "--", "sh", "-c",
                   f"until [ -e {tmp_path}/pinged ]; do sleep 0.01; done; [ $RANK = 1 ] || {send}")
    assert done.returncode == 0, done.stderr
    counters = json.loads(next(line[4:] for line in done.stdout.splitlines() if line.startswith("[0]")))
    assert [host["tx_bytes"] >= 98 for host in counters["beside"]] == [True] and len(counters["per_host"]) == 2
    row = next(line for line in done.stderr.splitlines() if line.startswith("beside"))
    assert row.split()[1:5] == ["10.77.0.201", "-", "exit", "0"]
    assert "1 received" in (tmp_path / "logs" / "beside0.out").read_text()


def test_extra_process_ends_with_ranks_even_if_it_ignores_term(lab, tmp_path):
    line = f"trap '' TERM; {stubborn(tmp_path / 'up')}"
    done, report = lab.json("--beside", "1", line, *wait_for(tmp_path / "up"))
    assert done.returncode == 0 and report["beside"][0]["signal"] == "SIGKILL"
    assert "error" not in report and "failed" not in done.stderr
    assert eventually(lambda: not processes_with(MARKER))


def test_background_children_of_extra_process_end_too(lab, tmp_path):
    line = f"setsid {stubborn(tmp_path / 'up')} > /dev/null 2>&1 &"
    done, report = lab.json("--beside", "1", line, *wait_for(tmp_path / "up"))
    assert done.returncode == 0 and report["beside"][0]["exit"] == 0
    assert eventually(lambda: not processes_with(MARKER))


def test_extra_process_gets_term_first(lab, tmp_path):
    code = (f"import signal, sys, time; signal.signal(15, lambda *_: [print('bye'), sys.exit(4)]); "
            f"open({str(tmp_path / 'up')!r}, 'w'); time.sleep(600)")
    done, report = lab.json("--beside", "1", python(code) + "; true", *wait_for(tmp_path / "up"))
    assert done.returncode == 0 and said_beside(done, 0) == ["bye"], done.stderr
    assert "failed" not in done.stderr and "error" not in report


def test_extra_process_failure_is_one_line_and_ranks_continue(lab, tmp_path):
    process = lab.start("--json", "--beside", "1", "exit 3", "--", "sh", "-c", until(tmp_path / "told") + "; echo done")
    assert process.stdout.readline() == "laconic lab: the COMMAND on beside0 failed (exit 3); the ranks go on\n"
    (tmp_path / "told").touch()
    said, _ = process.communicate(timeout=280)
    report = json.loads(said[said.index("{\n"):])
    assert process.returncode == 0 and "error" not in report and report["beside"][0]["exit"] == 3
    assert "beside0 failed" not in said and "[0] done" in said
    quiet, _ = lab.json("--beside", "1", "true", "--", "sleep", "0.3")
    assert quiet.returncode == 0 and quiet.stderr == ""


@pytest.mark.parametrize("line, status", [("no-such-program-here", 127), ("/etc/hosts", 126)])
def test_extra_process_that_cannot_start_fails_run(lab, line, status):
    done, report = lab.json("--beside", "1", line, "--", "sleep", "600")
    assert done.returncode == 1
    assert report["error"]["message"] == f"the COMMAND on beside0 could not be started (exit {status})"
    assert [rank["signal"] for rank in report["per_rank"]] == ["SIGTERM"] * 2
    kept, report = lab.json("--keep-going", "--beside", "1", line, "--", "sleep", "3")
    assert kept.returncode == 1 and [rank["exit"] for rank in report["per_rank"]] == [0, 0]


def test_extra_process_starts_with_ranks(lab, tmp_path):
    mark = tmp_path / "mark"
    done, report = lab.json("--switch", "exit 1", "--beside", "1", f"touch {mark}", "--", "true")
    assert done.returncode == 1 and "in the switch ended" in report["error"]["message"]
    assert not mark.exists() and report["beside"][0]["exit"] is None


def test_extra_host_is_hidden_from_launcher_and_can_be_entered(lab, tmp_path):
    on = " ".join(lab.command) + " --on"
    script = f"cat $HYDRA_HOST_FILE; {on} beside0 hostname; {on} 10.77.0.201 'echo $LACONIC_LAB'; {on} beside1 true"
    line = f"echo ${{HYDRA_HOST_FILE-none}} $LACONIC_LAB_RANK_1; touch {tmp_path}/up"
    done, _ = lab.json("--launcher", "--beside", "1", line, "--", "sh", "-c", f"{script}; {wait_for(tmp_path / 'up')[3]}")
    assert said_beside(done, 0) == ["none 10.77.0.2"]
    lines = [line for line in done.stderr.splitlines() if not line.startswith("[beside")]
    assert lines[:5] == ["host0:1", "host1:1", "beside0", "kernel", "laconic lab: there is no host 'beside1'"]


def test_plain_user_may_add_process(lab, plain_user):
    with tempfile.TemporaryDirectory() as folder:  # pytest's own is not the user's
        os.chmod(folder, 0o777)
        code = f"ping -c 1 -W 100 host0 > /dev/null && echo $(id -u) $(hostname); touch {folder}/done"
        done = lab.run("--beside", "1", code, *wait_for(f"{folder}/done"), prefix=plain_user)
    assert done.returncode == 0 and "[beside0] 0 beside0" in done.stdout, done.stderr


@pytest.mark.parametrize("words, message", [
    (["--emulate", "--beside", "1", "true", "--", "true"], "--beside needs hosts of their own"),
    (["--beside", "1", "--", "true"], "--beside takes a number of hosts and a COMMAND in one word"),
    (["--beside", "iperf3 -s", "--", "true"], "--beside takes a number"),
    (["--beside", "0", "true", "--", "true"], "--beside 0 is no number from 1 to 50"),
    (["--beside", "1", " ", "--", "true"], "--beside lacks a COMMAND"),
])
def test_usage_errors_of_beside(any_lab, words, message):
    done, report = any_lab.json(*words)
    assert done.returncode == 2 and message in report["error"]["message"]
