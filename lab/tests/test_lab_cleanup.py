# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""No process or interface is left, however a lab ends."""

import contextlib
import json
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import tempfile

import pytest
from lab_support import children_of, eventually, processes_with

MARKER = f"lab-cleanup-test-{os.getpid()}"
# A COMMAND with a child in the background, in its own session, that ignores SIGTERM.
STUBBORN = f"""
import signal, time   # {MARKER}
signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(600)
"""
COMMAND = [
    sys.executable,
    "-c",
    f"""
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", {STUBBORN!r}], start_new_session=True)
print("up", flush=True)
time.sleep(600)
""",
]


def interfaces():
    return sorted(os.listdir("/sys/class/net"))


def mounts():
    return pathlib.Path("/proc/self/mounts").read_text()


@pytest.fixture(params=["kernel", "emulated", "per-host", "beside"])
def running(request):
    lab = request.getfixturevalue("any_lab" if request.param == "emulated" else "lab")
    before = interfaces(), mounts()
    process = lab.start(
        *(["--emulate"] if request.param == "emulated" else []),
        *(["--delay", "1ms", "--beside", "1", shlex.join(COMMAND)] if request.param == "beside" else []),
        *(["--hosts", "1", "--per-host"] if request.param == "per-host" else ["--hosts"]), "2", "--", *COMMAND
    )
    more = 1 if request.param == "beside" else 0
    for _ in range(2 + more):
        assert process.stdout.readline().endswith("up\n")
    assert len(processes_with(MARKER)) >= 5 + 3 * more  # the lab itself, two COMMANDs, two children
    yield process
    process.kill()
    process.wait()
    process.stdout.close()
    assert eventually(lambda: not processes_with(MARKER)), "processes are left"
    assert (interfaces(), mounts()) == before


def test_killed_lab_leaves_nothing(running):
    running.kill()
    running.wait()
    assert eventually(lambda: not processes_with(MARKER))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_stop_the_hosts_and_report(running, number):
    running.send_signal(number)
    output = running.communicate(timeout=280)[0]
    assert running.returncode == 1
    assert f"interrupted by {number.name}" in output and "SIGTERM" in output
    assert eventually(lambda: not processes_with(MARKER))


def test_background_children_end_with_the_run(any_lab, lab):
    script = f"{sys.executable} -c 'import time; time.sleep(600)  # {MARKER}' > /dev/null 2>&1 &"
    for words in ([], ["--emulate"]):
        assert lab.run(*words, "--", "sh", "-c", script).returncode == 0
        assert eventually(lambda: not processes_with(MARKER))


def test_emulation_is_marked_and_announces_the_rate(any_lab):
    code = """
import os
file = open(os.environ["LACONIC_EMULATE_RATE_FILE"]).read().strip()
print(os.environ["LACONIC_LAB"], os.environ["LACONIC_EMULATE_RATE"], file)
"""
    lines, report, _ = any_lab.python(code, "--emulate", "--rate", "50mbit")
    assert lines[1] == ["emulated 50000000 50000000"]
    assert report["shaped"] == "emulated" and report["per_host"][0]["tx_bytes"] is None
    assert "EMULATED" in any_lab.run("--emulate", "--", "true").stderr


def test_emulation_leaves_no_folder(any_lab):
    with tempfile.TemporaryDirectory() as folder:  # pytest's paths can be too long for a socket
        done = subprocess.run([*any_lab.command, "--emulate", "--", "true"], capture_output=True,
                              env={**os.environ, "TMPDIR": folder})
        assert done.returncode == 0, done.stderr
        assert os.listdir(folder) == []


@pytest.fixture
def emulation(any_lab):
    """A running emulation: its Popen, its processes (outer, guard, inner), its $TMPDIR."""
    with tempfile.TemporaryDirectory() as folder:
        outer = any_lab.start("--emulate", "--json", "--", *COMMAND, env={"TMPDIR": folder})
        for _ in range(2):
            assert outer.stdout.readline().endswith("up\n")
        [guard] = children_of(outer.pid)
        [inner] = children_of(guard)
        assert len(children_of(inner)) == 2 and len(os.listdir(folder)) == 1
        yield outer, {"outer": outer.pid, "guard": guard, "inner": inner}, folder
        for pid in processes_with(MARKER):
            os.kill(pid, signal.SIGKILL)
        outer.wait()
        outer.stdout.close()


def kill_at_once(pids):
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)  # so that none sees another one's death
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # where the kernel has taken it along with the one before
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    "victims",
    ["outer", "guard", "inner", "outer guard", "outer inner", "guard inner"],
)
def test_killed_emulation_leaves_nothing(emulation, victims):
    outer, processes, folder = emulation
    kill_at_once([processes[name] for name in victims.split()])
    outer.wait()
    assert eventually(lambda: not processes_with(MARKER)), "processes are left"
    assert eventually(lambda: not os.listdir(folder)), "a folder is left"
    if "outer" not in victims:
        assert outer.returncode == 1
        error = json.loads(outer.stdout.read())["error"]
        assert error["name"] == "engine_failed" and "ended by SIGKILL" in error["message"]


def test_killed_emulation_ends_its_commands(emulation):
    _, processes, _ = emulation
    commands = children_of(processes["inner"])
    kill_at_once(processes.values())
    assert eventually(lambda: not set(commands) & set(processes_with(MARKER)))


def test_emulation_spares_earlier_children_of_its_shell(any_lab):
    script = f'sleep 600 >/dev/null 2>&1 & echo $! && exec "$@"  # {MARKER}'
    done = any_lab.run("--emulate", "--hosts", "1", "--", "true", prefix=["sh", "-c", script, "sh"])
    sleeper = int(done.stdout.split()[0])
    try:
        assert done.returncode == 0
        assert pathlib.Path(f"/proc/{sleeper}/comm").read_text() == "sleep\n"
    finally:
        os.kill(sleeper, signal.SIGKILL)


def test_unshaped_emulation_sets_no_rate(any_lab):
    lines, _, _ = any_lab.python(
        "import os; print('LACONIC_EMULATE_RATE' in os.environ)", "--emulate"
    )
    assert lines[0] == ["False"]
