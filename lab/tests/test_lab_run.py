# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""A COMMAND's view, and how the lab reports its end."""

import os
import shlex
import shutil
import subprocess

import pytest

ENVIRONMENT = """
import os, socket
names = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT LACONIC_LAB"
print(*[os.environ[n] for n in names.split()])
print(*os.sched_getaffinity(0))
print(socket.gethostname(), socket.gethostbyname(socket.gethostname()))
mapped = socket.getnameinfo(("::ffff:10.77.0.1", 1), socket.NI_NAMEREQD)[0]
print(socket.gethostbyaddr("10.77.0.1")[0], mapped)
print(sorted(name for _, name in socket.if_nameindex()))
"""


def test_environment_names_and_cores(lab):
    lines, report, done = lab.python(ENVIRONMENT, "--hosts", "3")
    assert done.returncode == 0, done.stderr
    cores = sorted(os.sched_getaffinity(0))
    for rank in range(3):
        assert lines[rank][0] == f"{rank} 3 0 1 10.77.0.1 29500 kernel"
        assert lines[rank][1] == str(cores[rank % len(cores)])
        assert lines[rank][2] == f"host{rank} 10.77.0.{rank + 1}"
        assert lines[rank][3] == "host0 host0"  # c10d asks for the second form
        assert lines[rank][4] == "['eth0', 'lo']"
        assert report["per_host"][rank]["core"] == cores[rank % len(cores)]
        assert report["per_host"][rank]["address"] == f"10.77.0.{rank + 1}"


PER_HOST = """
import os, socket
names = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK MASTER_ADDR"
print(*[os.environ[n] for n in names.split()])
print(*os.sched_getaffinity(0), socket.gethostname())
print(*[os.readlink("/proc/self/ns/" + kind) for kind in ("net", "uts", "ipc", "mnt")])
"""


def test_per_host_numbers_ranks_as_torchrun_does(lab):
    lines, report, done = lab.python(PER_HOST, "--hosts", "2", "--per-host", "3")
    assert done.returncode == 0, done.stderr
    cores = sorted(os.sched_getaffinity(0))
    for rank in range(6):
        host, local = divmod(rank, 3)
        core = cores[rank % len(cores)]
        assert lines[rank][0] == f"{rank} 6 {local} 3 {host} 10.77.0.1"
        assert lines[rank][1] == f"{core} host{host}"
        assert report["per_rank"][rank] == {"rank": rank, "host": host, "local_rank": local, "core": core,
                                            "exit": 0, "signal": None}
    assert report["hosts"] == 2 and report["ranks_per_host"] == 3 and report["launcher"] is None
    assert [list(host) for host in report["per_host"]] == [
        ["host", "address", "tx_bytes", "rx_bytes", "tx_packets", "rx_packets"]] * 2
    places = [set(lines[rank][2].split()) for rank in range(6)]
    assert places[0] == places[1] == places[2] and places[3] == places[4] == places[5]
    assert not places[0] & places[3]


def test_ranks_of_a_host_share_memory_files(lab):
    code = """
import os, pathlib, time
rank = os.environ["RANK"]
other = pathlib.Path("/dev/shm/r" + str(int(rank) ^ 1))
pathlib.Path("/dev/shm/r" + rank).touch()
while not other.exists(): time.sleep(0.01)
print(sorted(f for f in os.listdir("/dev/shm") if f[0] == "r"))
"""
    lines, _, _ = lab.python(code, "--per-host", "2", "--timeout", "100s")
    assert lines == {0: ["['r0', 'r1']"], 1: ["['r0', 'r1']"], 2: ["['r2', 'r3']"], 3: ["['r2', 'r3']"]}


def test_failure_of_one_of_several_ranks_of_host(lab):
    code = "import os, time; os.environ['RANK'] == '2' and os.kill(os.getpid(), 9); time.sleep(600)"
    _, report, done = lab.python(code, "--per-host", "2", "--grace", "100ms")
    assert done.returncode == 1
    assert [rank["signal"] for rank in report["per_rank"]] == ["SIGTERM", "SIGTERM", "SIGKILL", "SIGTERM"]
    assert report["error"]["message"] == "COMMAND failed on rank 2 on host1 (SIGKILL)"


def test_table_has_a_row_per_rank_and_counts_per_host(lab):
    done = lab.run("--per-host", "2", "--", "true")
    first, heading, *rows = done.stderr.splitlines()
    assert "2 hosts of 2 ranks, unshaped" in first and heading.split()[0] == "rank"
    assert [row.split()[:2] for row in rows] == [
        ["0", "10.77.0.1"], ["1", "10.77.0.1"], ["2", "10.77.0.2"], ["3", "10.77.0.2"]]
    assert [len(row.split()) for row in rows] == [9, 5, 9, 5]


def test_emulation_has_several_ranks_per_host(any_lab):
    code = "import os; print(*[os.environ[n] for n in ('RANK', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE', 'WORLD_SIZE')])"
    lines, report, _ = any_lab.python(code, "--emulate", "--per-host", "2")
    assert lines == {rank: [f"{rank} {rank % 2} 2 4"] for rank in range(4)}
    assert len(report["per_host"]) == 2 and report["per_host"][1]["tx_bytes"] is None


def test_lab_exceeds_soft_limit_of_files(lab):
    few = ["sh", "-c", 'ulimit -Sn 64 && exec "$@"', "sh"]
    done = lab.run("--hosts", "10", "--per-host", "2", "--", "sh", "-c", "ulimit -n", prefix=few)
    assert done.returncode == 0, done.stderr
    assert {line.split()[1] for line in done.stdout.splitlines()} == {"64"}  # what we were given


def test_no_pin_leaves_all_cores(lab):
    lines, report, _ = lab.python("import os; print(len(os.sched_getaffinity(0)))", "--no-pin")
    assert lines[1] == [str(len(os.sched_getaffinity(0)))]
    assert report["per_host"][1]["core"] is None


def test_hosts_do_not_share_memory_files(lab):
    code = """
import os
open("/dev/shm/r" + os.environ["RANK"], "w")
print([f for f in os.listdir("/dev/shm") if f[0] == "r"])
"""
    lines, _, _ = lab.python(code)
    assert lines == {0: ["['r0']"], 1: ["['r1']"]}
    assert not os.path.exists("/dev/shm/r0")


def test_exit_codes_and_signals_are_named(lab):
    code = """
import os
if os.environ["RANK"] == "1": os._exit(3)
if os.environ["RANK"] == "2": os.kill(os.getpid(), 9)
"""
    _, report, done = lab.python(code, "--hosts", "3")
    assert done.returncode == 1
    assert [(h["exit"], h["signal"]) for h in report["per_host"]] == [
        (0, None),
        (3, None),
        (None, "SIGKILL"),
    ]
    assert report["error"]["name"] == "peer_failed"
    assert "rank 1 (exit 3), rank 2 (SIGKILL)" in report["error"]["message"]


def test_failure_stops_the_others_after_the_grace_period(lab):
    code = "import os, time; os.environ['RANK'] == '1' and os._exit(5); time.sleep(600)"
    _, report, done = lab.python(code, "--grace", "100ms")
    assert done.returncode == 1
    assert report["per_host"][0]["signal"] == "SIGTERM"
    assert "rank 1 (exit 5)" in report["error"]["message"]
    assert "rank 0" not in report["error"]["message"]


def test_keep_going_lets_the_others_finish(lab):
    code = (
        "import os, time; os.environ['RANK'] == '1' and os._exit(5); time.sleep(0.5); print('done')"
    )
    lines, report, done = lab.python(code, "--grace", "1ms", "--keep-going")
    assert lines[0] == ["done"] and report["per_host"][0]["exit"] == 0
    assert done.returncode == 1


def test_timeout_ends_run(lab):
    _, report, done = lab.python("import time; time.sleep(600)", "--timeout", "300ms")
    assert done.returncode == 1
    assert report["error"]["name"] == "timed_out"
    assert [h["signal"] for h in report["per_host"]] == ["SIGTERM", "SIGTERM"]


def test_output_keeps_stream_and_names_rank(lab):
    done = lab.run("--", "sh", "-c", "echo out; echo err >&2; printf unfinished")
    assert sorted(done.stdout.splitlines()) == [
        "[0] out",
        "[0] unfinished",
        "[1] out",
        "[1] unfinished",
    ]
    assert "[1] err\n" in done.stderr
    assert "2 hosts, unshaped" in done.stderr and "burst 64kb" in done.stderr


def test_single_host_and_raw_have_no_prefix(lab):
    assert lab.run("--hosts", "1", "--", "echo", "hello").stdout == "hello\n"
    assert lab.run("--raw", "--", "echo", "hello").stdout == "hello\nhello\n"


def test_ranks_have_own_logs(lab, tmp_path):
    lab.run(
        "--logs", str(tmp_path / "logs"), "--", "sh", "-c", "echo out $RANK; echo err $RANK >&2"
    )
    texts = {p.name: p.read_text() for p in (tmp_path / "logs").iterdir()}
    assert texts == {
        "rank0.out": "out 0\n",
        "rank0.err": "err 0\n",
        "rank1.out": "out 1\n",
        "rank1.err": "err 1\n",
    }


def test_much_output_arrives_complete(lab):
    done = lab.run("--", "seq", "100000")
    for rank in "01":
        mine = [line[4:] for line in done.stdout.splitlines() if line[1] == rank]
        assert mine == [str(n) for n in range(1, 100001)]


@pytest.mark.parametrize(
    "words, message, hint",
    [
        (["--hosts", "4"], "no COMMAND", "-- COMMAND"),
        (["--rate", "50mbps", "--", "true"], "unknown unit 'mbps'", "kbit, mbit, gbit"),
        (["--rate", "50", "--", "true"], "no unit", "kbit, mbit, gbit"),
        (["--burst", "5mbit", "--", "true"], "unknown unit 'mbit'", "kb, mb, gb"),
        (["--schedule", "100mbit", "--", "true"], "schedule entry", "t=0 100mbit"),
        (["--loss", "0.01", "--", "true"], "share", "for example 1%"),
        (["--speed", "1", "--", "true"], "--speed", "--help"),
        (["python", "x.py"], "'python'", "follow --"),
        (["--", "no-such-program"], "no program 'no-such-program'", "PATH"),
        (["--emulate", "--loss", "1%", "--", "true"], "cannot lose", "--loss"),
        (["--rate", "1mbit,2mbit", "--", "true"], "--every does not say", "--every 3s"),
        (["--rate", "1mbit", "--every", "3s", "--", "true"], "--every needs several rates", "--every 3s"),
        (["--mtu", "9001", "--", "true"], "--mtu 9001 is no number from 576 to 9000", "--help"),
        (["--mtu", "9000", "--burst", "8kb", "--", "true"], "--burst is below 9548b", "--help"),
        (["--jitter", "1ms", "--", "true"], "--jitter 1ms is above --delay 0ms", "minus"),
        (["--delay", "11s", "--", "true"], "--delay is above 10s", "--help"),
        (["--delay", "1ms", "--seed", "-1", "--", "true"], "--seed -1 is no whole number", "--help"),
        (["--per-host", "0", "--", "true"], "--per-host 0 is outside 1 to 100", "--help"),
        (["--hosts", "3", "--per-host", "67", "--", "true"], "67 is outside 1 to 66, as a lab has", "--help"),
        (["--per-host", "two", "--", "true"], "--per-host", "--help"),
        (["--emulate", "--launcher", "--", "true"], "--emulate does not make", "mpirun"),
    ],
)
def test_usage_errors(any_lab, words, message, hint):
    done, report = any_lab.json(*words)
    assert done.returncode == 2
    assert report["error"]["name"] == "invalid_argument" and report["error"]["code"] == 1
    assert message in report["error"]["message"]
    assert hint in report["error"]["hint"]
    plain = any_lab.run(*words)
    assert plain.returncode == 2 and message in plain.stderr and plain.stdout == ""


def test_missing_iproute2_is_reported_with_remedy(any_lab):
    ip = shutil.which("ip", path=os.environ["PATH"] + ":/usr/sbin:/sbin")
    cover = f'mount --bind /dev/null {os.path.realpath(ip or "/")} && exec "$@"'
    hide = ["unshare", "-m", "sh", "-c", cover, "sh"]
    if ip is None or subprocess.run([*hide, "true"], capture_output=True).returncode:
        pytest.skip(f"cannot hide ip here: {shlex.join([*hide, 'true'])}")
    done, report = any_lab.json("--", "true", prefix=hide)
    assert done.returncode == 1 and report["error"]["name"] == "unsupported"
    assert "'ip' is missing" in report["error"]["message"]
    assert "apt install iproute2" in report["error"]["hint"]
    check = any_lab.run("--check", prefix=hide)
    assert check.returncode == 1 and "apt install iproute2" in check.stdout


def test_missing_namespaces_name_fallback(any_lab):
    # In a user namespace that may not have further ones, without any capability.
    forbid = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
    drop = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
    strip = ["unshare", "-U", "-r", "sh", "-c", forbid, "sh", *drop]
    if subprocess.run([*strip, "true"], capture_output=True).returncode:
        pytest.skip(f"cannot forbid namespaces here: {shlex.join([*strip, 'true'])}")
    done, report = any_lab.json("--", "true", prefix=strip)
    assert done.returncode == 1 and report["error"]["name"] == "unsupported"
    assert (
        "user namespaces" in report["error"]["message"] and "--emulate" in report["error"]["hint"]
    )
    assert any_lab.run("--emulate", "--", "true", prefix=strip).returncode == 0


def test_unknown_congestion_control_names_the_allowed_ones(lab):
    done, report = lab.json("--tcp", "carrier-pigeon", "--", "true")
    assert done.returncode == 1
    assert "carrier-pigeon" in report["error"]["message"] and "reno" in report["error"]["hint"]
