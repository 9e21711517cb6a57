# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""How pytest runs here: which tests and in which order, what ends a test that hangs, and what the run writes down.

Each process that runs tests gets a folder of Open MPI's, too: two of its launchers that make the same folder in the same moment fail
("File exists")."""

import contextlib
import ctypes
import importlib.util
import json
import os
import shutil
import signal
import struct
import sys
import tempfile
import time
import zlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent
DURATIONS = ROOT / "tests" / "durations.json"  # CPU seconds of each file
GRACE = 60  # seconds that a test has after its limit to end by itself
LIBC = ctypes.CDLL(None, use_errno=True)


def pytest_addoption(parser):
    group = parser.getgroup("laconic")
    group.addoption("--tenth", metavar="SEED", help="run a tenth of the tests; SEED, a commit, chooses which")
    group.addoption("--record-durations", action="store_true", help="write the CPU seconds of each file that ran to tests/durations.json")
    group.addoption("--torch-imports", type=int, metavar="MOST", help="fail where tests import torch in more interpreters than MOST")


def pytest_configure(config):
    config.laconic_openmpi = tempfile.mkdtemp(prefix="ompi-")  # short: names of sockets lie in it
    os.environ["OMPI_MCA_orte_tmpdir_base"] = config.laconic_openmpi
    config.laconic_abort = Abort()
    if config.getoption("record_durations"):
        config.pluginmanager.register(Durations(config))
    if config.getoption("torch_imports") is not None and importlib.util.find_spec("torch"):
        config.pluginmanager.register(TorchImports(config))


def pytest_unconfigure(config):
    if hasattr(config, "laconic_run"):
        end_all_with(config.laconic_run)
    shutil.rmtree(config.laconic_openmpi, ignore_errors=True)


# ---- which tests, in which order ----


def file_of(item):
    return item.nodeid.partition("::")[0]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    if config.getoption("tenth"):
        turn = int(config.getoption("tenth"), 16) % 10
        chosen = {item for item in items if zlib.crc32(item.nodeid.encode()) % 10 == turn} or {*items[:1]}
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = [item for item in items if item in chosen]
    # What takes longest begins first, since the last file to begin decides when all is over.
    durations = json.loads(DURATIONS.read_text(encoding="utf-8"))
    items.sort(key=lambda item: durations.get(file_of(item), 0), reverse=True)


# ---- what ends a test that hangs ----


class Abort:
    """A timer of the kernel's that sends SIGABRT: pytest has faulthandler print all stacks then, and the process ends, whatever it waits for."""

    def __init__(self):
        self.timer = ctypes.c_void_p()
        event = struct.pack("Pii48x", 0, signal.SIGABRT, 0)  # struct sigevent: SIGEV_SIGNAL is 0
        LIBC.timer_create(time.CLOCK_MONOTONIC, event, ctypes.byref(self.timer))

    def after(self, seconds):
        """0: never."""
        LIBC.timer_settime(self.timer, 0, struct.pack("4l", 0, 0, int(seconds), 0), None)


@pytest.hookimpl(wrapper=True, optionalhook=True)
def pytest_timeout_set_timer(item, settings):
    """The plug-in raises an exception in the test, once: on a machine that stops it may meet pytest's own code, where it is lost, so it is raised
    again. C code that waits never sees it: then the process ends."""
    item.laconic_limit = settings
    item.config.laconic_abort.after(settings.timeout + GRACE)
    is_set = yield
    if settings.method == "signal":
        signal.setitimer(signal.ITIMER_REAL, settings.timeout, GRACE / 2)
    return is_set


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_timeout_cancel_timer(item):
    item.config.laconic_abort.after(0)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item):
    """A failure stops the plug-in's clock, for the sake of debuggers: what clears up after it begins with a new one."""
    if hasattr(item, "laconic_limit"):
        item.config.hook.pytest_timeout_set_timer(item=item, settings=item.laconic_limit)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):
        def remove_node(self, node):
            """Where a test ends its worker, the next worker goes on behind that test; xdist would run it again."""
            left = [(unit, test) for unit in self.assigned_work[node].values() for test, done in unit.items() if not done]
            if left:
                unit, test = left[0]
                unit[test] = True
            super().remove_node(node)
            return left[0][1] if left else None

    return ByFile(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error):
    node.config.laconic_run = f"PYTEST_XDIST_TESTRUNUID={node.workerinput['testrunuid']}"
    if error:
        end_all_with(node.config.laconic_run, f"PYTEST_XDIST_WORKER={node.workerinput['workerid']}")


def end_all_with(*variables):
    """Ends the processes that a worker has left: they have inherited what xdist put into its environment."""
    found = True
    while found:  # some begin while others end
        found = False
        for environ in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):  # somebody else's, or gone
                if {variable.encode() for variable in variables} <= set(environ.read_bytes().split(b"\0")):
                    os.kill(int(environ.parent.name), signal.SIGKILL)
                    found = True


# ---- what the run writes down ----


def fork_server():
    """The process id of this process's fork server, or None."""
    module = sys.modules.get("multiprocessing.forkserver")
    return module and module._forkserver._forkserver_pid


class Durations:
    """The CPU seconds of each file, with those of all processes that it started, in tests/durations.json."""

    def __init__(self, config):
        self.config, self.seconds, self.until_now = config, {}, 0.0

    def used(self):
        """By this process and all below it, those that have ended included. The fork server's own time, which is torch's import, belongs to no file."""
        rows = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                fields = stat.read_text().rpartition(")")[2].split()
                rows[int(stat.parent.name)] = int(fields[1]), [int(ticks) for ticks in fields[11:15]]
        family, size = {os.getpid()}, 0
        while size < len(family):
            size = len(family)
            family.update(pid for pid, (parent, _) in rows.items() if parent in family)
        ticks = sum(sum(times[2:] if pid == fork_server() else times) for pid, (_, times) in rows.items() if pid in family)
        return ticks / os.sysconf("SC_CLK_TCK")

    def pytest_collection_finish(self):
        self.until_now = self.used()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item, nextitem):
        result = yield
        if nextitem is None or file_of(item) != file_of(nextitem):
            before, self.until_now = self.until_now, self.used()
            self.seconds[file_of(item)] = self.seconds.get(file_of(item), 0) + self.until_now - before
        return result

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node):
        self.seconds.update(getattr(node, "workeroutput", {}).get("laconic_durations", {}))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self):
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput["laconic_durations"] = self.seconds
        else:
            self.write()

    def write(self):
        """Whole seconds, and what has hardly changed stays: a run of today differs from yesterday's by little."""
        before = json.loads(DURATIONS.read_text(encoding="utf-8"))
        after = {name: seconds for name, seconds in before.items() if (ROOT / name).is_file()}
        for name, seconds in self.seconds.items():
            old = before.get(name)
            if old is None or abs(seconds - old) > max(1, old / 4):
                after[name] = round(seconds)
        DURATIONS.write_text(json.dumps(after, indent=0, sort_keys=True) + "\n", encoding="utf-8")


class TorchImports:
    """Counts how often an interpreter reads torch's compiled __init__, which each does that imports torch and is no fork of one that has.

    The kernel reports each: nothing changes in the environment of the tests, and none of their processes is missed. Other programs that
    import this copy of torch meanwhile are counted, too; the workers and their fork servers are not."""

    OPENED, CLOSED = 0x20, 0x10  # without the second the kernel makes one event of two that follow each other

    def __init__(self, config):
        self.config, self.opened, self.before, self.own = config, 0, None, []
        if hasattr(config, "workerinput"):
            return
        self.events = LIBC.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        compiled = importlib.util.cache_from_source(os.path.realpath(importlib.util.find_spec("torch").origin))
        if LIBC.inotify_add_watch(self.events, compiled.encode(), self.OPENED | self.CLOSED) < 0:
            raise pytest.UsageError(f"--torch-imports cannot watch {compiled}: {os.strerror(ctypes.get_errno())}")

    def seen(self):
        """How often the file has been opened until now. The kernel queues the events, so none that came before this call is missed."""
        with contextlib.suppress(BlockingIOError):
            while events := os.read(self.events, 1 << 16):
                self.opened += sum(bool(mask & self.OPENED) for _, mask, _, _ in struct.iter_unpack("iIII", events))
        return self.opened

    def pytest_runtest_logstart(self):
        if self.before is None and not hasattr(self.config, "workerinput"):
            self.before = self.seen()  # by collecting the tests

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node):
        self.own += getattr(node, "workeroutput", {}).get("laconic_torch", [])

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session):
        self.own += [("torch" in sys.modules, bool(fork_server()))]
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput["laconic_torch"] = self.own
        elif self.judge() and session.exitstatus == 0:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def judge(self):
        """What is wrong, or an empty text."""
        most = self.config.getoption("torch_imports")
        seen = self.seen()
        self.count = seen - (self.before or 0) - sum(server for _, server in self.own)
        if any(imported for imported, _ in self.own) and not seen:
            return "; those of the processes that ran the tests went unseen"
        return f", more than {most}" if self.count > most else ""

    def pytest_terminal_summary(self, terminalreporter):
        wrong = self.judge()
        terminalreporter.line(f"fresh imports of torch by tests: {self.count}{wrong}", red=bool(wrong))
