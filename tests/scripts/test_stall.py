# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""scripts/stall: what it freezes, what it leaves alone, and how it ends."""

import importlib.machinery
import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

STALL = Path(__file__).resolve().parents[2] / "scripts" / "stall"
SHORT = ["--every", "0.05", "--lasting", "0.3", "0.4"]

#: tick(file) writes down when it was awake, every few milliseconds, until its parent's file `over` is there
PRELUDE = """
import os, signal, subprocess, sys, time
from pathlib import Path

def tick(file):
    with open(file, "w", buffering=1) as out:
        while not Path("over").exists():
            print(time.monotonic(), file=out)
            time.sleep(0.01)

def forked(body):
    pid = os.fork()
    if pid == 0:
        body()
        os._exit(0)
    return pid

def pauses(file):
    \"\"\"Those in which nothing was written, three at least, as (begin, end).\"\"\"
    while True:
        times = [float(line) for line in Path(file).read_text().splitlines()[:-1]] if Path(file).exists() else []
        found = [(a, b) for a, b in zip(times, times[1:]) if b - a > 0.25]
        if len(found) >= 3:
            return found
        time.sleep(0.05)

def state(pid):
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
"""


def can_have_a_cgroup():
    loader = importlib.machinery.SourceFileLoader("stall", str(STALL))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("stall", loader))
    loader.exec_module(module)
    try:
        module.Cgroup().end()
    except (OSError, StopIteration):
        return False
    return True


@pytest.fixture(params=["cgroup", "signals"])
def by(request):
    if request.param == "cgroup" and not can_have_a_cgroup():
        pytest.skip("no cgroup of version 2 can be made here")
    return ["--by", request.param]


def run(tmp_path, program, *words):
    return subprocess.run([STALL, *SHORT, *words, sys.executable, "-c", PRELUDE + program], cwd=tmp_path, capture_output=True, text=True,
                          timeout=300, check=False)


def test_children_and_orphans_pause_together(tmp_path, by):
    done = run(tmp_path, """
def orphan():
    os.setsid()
    forked(lambda: tick("orphan"))  # and its parent ends

forked(lambda: forked(lambda: tick("grandchild")) and tick("child"))
os.waitpid(forked(orphan), 0)
names = ("child", "grandchild", "orphan")
for who in names:  # the last may have begun when the first had paused three times
    pauses(who)
found = {who: pauses(who) for who in names}
Path("over").touch()
together = [(begin, end) for begin, end in found["child"]
            if all(any(min(end, e) - max(begin, b) > 0.2 for b, e in found[who]) for who in ("grandchild", "orphan"))]
sys.exit(0 if together else f"{found}")
""", *by)
    assert done.returncode == 0, done.stderr
    assert f"by {by[1]}" in done.stderr


def test_stopped_process_stays_stopped(tmp_path, by):
    done = run(tmp_path, """
stopped, ticks = forked(lambda: tick("stopped")), forked(lambda: tick("ticks"))
os.kill(stopped, signal.SIGSTOP)
os.waitpid(stopped, os.WUNTRACED)
pauses("ticks")
after = state(stopped)
os.kill(stopped, signal.SIGCONT)
Path("over").touch()
os.waitpid(stopped, 0)
sys.exit(0 if after == "T" else after)
""", *by)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("ends", "status"), [("sys.exit(5)", 5), ("os.kill(os.getpid(), signal.SIGTERM)", 128 + signal.SIGTERM)])
def test_exit_status_is_passed_on(tmp_path, by, ends, status):
    assert run(tmp_path, ends, *by).returncode == status


def test_missing_command_is_reported(tmp_path):
    done = subprocess.run([STALL, "no-such-command"], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 127 and "no-such-command: No such file" in done.stderr


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_ends_all_children(tmp_path, by, how):
    read, write = os.pipe()
    program = PRELUDE + "forked(lambda: os.setsid() or forked(lambda: tick('orphan')))\ntick('command')"
    process = subprocess.Popen([STALL, *SHORT, *by, sys.executable, "-c", program], cwd=tmp_path, stdout=write, pass_fds=[write],
                               stderr=subprocess.PIPE, text=True)
    os.close(write)
    while not all((tmp_path / file).exists() and (tmp_path / file).stat().st_size for file in ("orphan", "command")):
        time.sleep(0.01)
    process.send_signal(how)
    assert os.read(read, 1) == b"", "all that was started has ended, and closed the pipe"
    process.communicate()
    assert process.returncode == 130
    os.close(read)


def test_remaining_children_end_with_command(tmp_path, by):
    done = run(tmp_path, "forked(lambda: os.setsid() or tick('left'))\nwhile not Path('left').exists(): time.sleep(0.01)", *by)
    assert done.returncode == 0  # the pipes of its output are closed


def test_seed_repeats_core_and_pauses(tmp_path):
    said = [run(tmp_path, "forked(lambda: tick('ticks'))\npauses('ticks')\nPath('ticks').unlink()", "--seed", "7").stderr for _ in range(2)]
    cores, pauses = zip(*((re.findall(r"--seed 7, core (\d+)", text), re.findall(r"frozen for (\S+) s", text)) for text in said))
    both = min(map(len, pauses))
    assert cores[0] == cores[1] and both >= 3 and pauses[0][:both] == pauses[1][:both], said


def test_all_processes_run_on_one_core(tmp_path):
    assert run(tmp_path, "sys.exit(len(os.sched_getaffinity(0)))").returncode == 1
