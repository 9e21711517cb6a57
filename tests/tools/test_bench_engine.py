# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""laconic bench --engine: its columns, what it refuses, and that ranks end together with one message."""

import contextlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).resolve().parents[up] / folder) for up, folder in ((1, "support"), (2, "python/tests"))]

from mpi_launchers import APART, ENVIRONMENT, LAUNCHERS, MPICH, OPENMPI, need_library  # noqa: E402
from ranks import free_port  # noqa: E402
from test_cli import BAD_ANSWER, BINARY, FINE, USAGE, answer, failure, laconic  # noqa: E402

pytestmark = pytest.mark.skipif(not BINARY.exists(), reason=f"{BINARY} is not built")

LIBRARIES = BINARY.parents[1] / "lib"
LOOPBACK = ("bench", "--engine", "loopback", "--iterations", "3", "--warmup", "1")
QUICK = ("--min", "4K", "--max", "8K", "--spec", "none")


# ---- the loopback: columns and numbers ----


def rows(text):
    return [line.split() for line in text.splitlines() if not line.startswith("#")]


def test_columns_match_nccl_tests():
    done = laconic(*LOOPBACK, "--ranks", "2", "--min", "4K", "--max", "16K", "--spec", "int8", "--spec", "none")
    assert done.returncode == FINE, done.stderr
    headings = [line.split() for line in done.stdout.splitlines() if line.startswith("#")]
    columns = ["time", "algbw", "busbw", "error"]
    assert ["#", "size", "count", "type", *columns, "codec", *columns, "speed-up", "wire", "coding"] in headings
    assert headings[0] == "# loopback, 2 ranks; 3 iterations after 2".split()
    found = rows(done.stdout)
    assert [row[:3] + [row[7]] for row in found] == [
        [str(size), str(size // 4), "float", spec] for size in (4096, 8192, 16384) for spec in ("int8", "none")]
    for row in found:
        native, codec, speedup = float(row[3]), float(row[8]), float(row[12])
        assert row[6] == "0", "sums of these gradients are exact"
        bandwidth = int(row[0]) / native / 1e3
        assert abs(float(row[4]) - bandwidth) <= 0.00501 + bandwidth * 0.051 / native, "printed: times to 0.1 us, the rest to 0.01"
        assert abs(speedup - native / codec) <= 0.00501 + speedup * (0.051 / native + 0.051 / codec)


@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_bandwidths_follow_from_the_time_in_the_same_row(ranks):
    """nccl-tests, doc/PERFORMANCE.md: algbw = S/t, busbw = algbw * 2(n-1)/n, GB/s of 1e9 bytes."""
    result = answer(*LOOPBACK, "--ranks", ranks, "--min", "4K", "--max", "8K", "--spec", "int8")
    assert result["engine"] == {"name": "loopback", "library": "loopback", "ranks": ranks}
    assert len(result["results"]) == 2
    for row in result["results"]:
        assert set(row) == {"size", "count", "type", "codec", "time", "algbw", "busbw", "error", "native", "speedup", "wire", "coding",
                            "sent", "settings"}
        for line in (row, row["native"]):
            assert line["time"] > 0
            assert line["algbw"] == pytest.approx(row["size"] / (line["time"] * 1e-6) / 1e9)
            assert line["busbw"] == pytest.approx(line["algbw"] * 2 * (ranks - 1) / ranks)
        assert row["speedup"] == pytest.approx(row["native"]["time"] / row["time"])


@pytest.mark.parametrize(("plan", "sent"), [
    ("native_sum", 2 * 3 / 4),    # a ring's: 2 (n - 1) / n of the gradient
    ("gather_all", 3 * 1 / 4),    # a quarter of it, to three others
    ("two_shot", 2 * 3 / 4 / 4),  # a quarter of each owner's share, and of the mean to three others
])
def test_sent_bytes_match_step_of_codec(plan, sent):
    spec = "fp16" if plan == "native_sum" else "int8"
    row, = answer(*LOOPBACK, "--ranks", "4", "--min", "4M", "--max", "4M", "--spec", spec, "--plan", plan)["results"]
    share = 1 / 2 if spec == "fp16" else 1
    assert row["sent"] == pytest.approx(row["size"] * sent * share, rel=0.05), "and a few bytes for scales and headers"
    assert row["wire"] > 0 and row["coding"] > 0


@pytest.mark.parametrize("words", [
    ["--plan", "gather_all"], ["--plan", "two_shot"], ["--plan", "native_sum"],
    ["--window", "1", "--part", "0"], ["--window", "3", "--part", "1M", "--min", "4M", "--max", "4M"], ["--seed", "7", "--threads", "2"],
])
def test_uncompressed_result_is_exact(words):
    sizes = () if "--min" in words else ("--min", "4K", "--max", "64K")
    for row in answer(*LOOPBACK, "--ranks", "4", "--spec", "none", *sizes, *words)["results"]:
        assert row["error"] == 0 and row["native"]["error"] == 0


@pytest.mark.parametrize(("spec", "low", "high"), [
    ("fp16", 1e-6, 2e-3),             # half a unit in the last of 11 bits; the largest mean is below the largest term
    ("int8", 1e-3, 0.05),             # a 127th of the block's largest, once or twice
    ("topk:ratio=0.001", 0.3, 1.01),  # most of the largest means are not sent in the first step
])
def test_errors_match_codec(spec, low, high):
    for row in answer(*LOOPBACK, "--ranks", "4", "--min", "4K", "--max", "64K", "--spec", spec)["results"]:
        assert low < row["error"] < high and row["native"]["error"] == 0


def test_sizes_double_from_min_to_max():
    def sizes(*words):
        return [row["size"] for row in answer(*LOOPBACK, "--spec", "none", *words)["results"]]

    assert sizes("--min", "5000", "--max", "40K") == [5000, 10000, 20000, 40000]
    assert sizes("--min", "1K", "--max", "4Ki") == [1024, 2048, 4096]
    assert sizes("--min", "1M", "--max", "1M") == [1 << 20]
    assert sizes("--min", "6", "--max", "12") == [4, 12], "whole elements"


def test_options_are_in_output():
    words = ("--window", "1", "--part", "64K", "--plan", "two_shot", "--seed", "9", "--threads", "2")
    said = answer(*LOOPBACK, *QUICK, *words)["options"]
    assert said == {"iterations": 3, "warmup": 1, "window": 1, "part": 65536, "threads": 2, "plan": "two_shot", "seed": 9,
                    "rules": "", "control": ""}


def settings_of(row):
    return [(s["rule"], s["parameters"], s["elements"], s["spec"], s["control"]) for s in row["settings"]]


def test_rules_and_control_match_sessions(tmp_path):
    """Four parameters of 1 MiB each."""
    words = ("bench", "--engine", "loopback", "--iterations", "5", "--warmup", "1", "--min", "4M", "--max", "4M", "--spec", "topk")
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rule]]\nmatch = "p1"\nspec = "int8"\n\n[[rule]]\nmatch = "p[0-9]*"\nspec = "none"\nmin_elements = 1000\n')
    plain, = answer(*words)["results"]
    assert settings_of(plain) == [("*", 4, 1 << 20, "topk", "fixed")]
    ruled, = answer(*words, "--rules", rules)["results"]
    assert settings_of(ruled) == [("p1", 1, 1 << 18, "int8", "fixed"), ("p[0-9]*", 3, 3 << 18, "none", "fixed"), ("*", 0, 0, "topk", "fixed")]
    assert ruled["codec"] == "topk" and ruled["sent"] > 5 * plain["sent"]
    held, = answer(*words, "--control", "schedule:0=0.001")["results"]
    assert settings_of(held) == [("*", 4, 1 << 20, "topk:ratio=0.001", "schedule:0=0.001")]
    assert held["sent"] < plain["sent"] / 5
    done = laconic(*words, "--rules", rules, "--control", "fixed")
    assert done.stdout.startswith(f"# loopback, 2 ranks; 5 iterations after 2; rules {rules}; control fixed\n"), done.stdout


def test_missing_spec_measures_every_codec():
    codecs = [codec["name"] for codec in answer("list")["codecs"]]
    rows = answer(*LOOPBACK, "--min", "4K", "--max", "4K")["results"]
    assert [row["codec"] for row in rows] == codecs


# ---- what is refused ----


@pytest.mark.parametrize(("words", "message"), [
    (["--engine", "loopback", "--max", "4X"], "--max '4X' is not a size"),
    (["--engine", "loopback", "--min", "4k"], "--min '4k' is not a size"),
    (["--engine", "loopback", "--min", "3"], "--min '3' is not a size of at least 4 bytes"),
    (["--engine", "loopback", "--part", "99999999999G"], "--part"),
    (["--engine", "loopback", "--min", "8K", "--max", "4K"], "--min 8K is more than --max 4K"),
    (["--engine", "loopback", "--spec", "int9"], "int9"),
    (["--engine", "loopback", "--plan", "ring"], "unknown strategy 'ring'"),
    (["--engine", "loopback", "--iterations", "0"], "--iterations"),
    (["--engine", "loopback", "--window", "9"], "--window"),
    (["--engine", "loopback", "--timeout", "0"], "--timeout"),
    (["--engine", "loopback", "--ranks", "0"], "--ranks"),
    (["--engine", "loopback", "--world", "2"], "--world is for --engine gloo"),
    (["--engine", "loopback", "--size", "4K"], "--size excludes --engine"),
    (["--engine", "loopback", "--codec-only"], "--codec-only excludes --engine"),
    (["--engine", "mpi", "--ranks", "2"], "--ranks is for --engine loopback"),
    (["--engine", "mpi", "--rank", "0"], "--rank is for --engine gloo"),
    (["--engine", "gloo", "--world", "2", "--rendezvous", "file:/tmp"], "needs --rank"),
    (["--engine", "gloo", "--rank", "0", "--rendezvous", "file:/tmp"], "needs --world"),
    (["--engine", "gloo", "--rank", "0", "--world", "2"], "needs --rendezvous"),
    (["--engine", "gloo", "--rank", "2", "--world", "2", "--rendezvous", "file:/tmp"], "--rank 2 of --world 2"),
    (["--engine", "tcp"], "--engine"),
    (["--min", "4K"], "--min requires --engine"),
    (["--rules", "rules.toml"], "--rules requires --engine"),
    (["--engine", "loopback", "--rules", "no/such.toml"], "no/such.toml: cannot open"),
    (["--engine", "loopback", "--control", "dc3"], "unknown control 'dc3'"),
])
def test_usage_errors_exit_with_2(words, message):
    assert message in failure(USAGE, "bench", *words)["message"]


def test_no_memory_is_error_on_every_rank():
    words = (*LOOPBACK, "--spec", "none", "--min", "64G", "--max", "64G")
    done = subprocess.run([BINARY, *words], capture_output=True, text=True, timeout=280,
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30)))
    assert (done.returncode, done.stdout) == (BAD_ANSWER, "")
    assert "rank 0 has not enough memory for 17179869184 elements (out_of_memory" in done.stderr


def test_mpi_without_launcher_gives_hint():
    error = failure(BAD_ANSWER, "bench", "--engine", "mpi")
    assert "OMPI_COMM_WORLD_SIZE" in error["message"] and "PMI_SIZE" in error["message"]
    assert "mpirun" in error["hint"] and "LACONIC_MPI_LIB" in error["hint"]


@pytest.mark.parametrize(("rank", "local_rank", "said"), [(0, 0, "laconic: "), (1, 1, None), (2, 0, "laconic: rank 2: ")])
def test_missing_plugin_is_one_message_per_host(rank, local_rank, said):
    env = {"OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_LOCAL_RANK": str(local_rank)}
    done = laconic("bench", "--engine", "mpi", env={**env, "LACONIC_MPI_LIB": "/nonexistent/plugin.so"})
    assert done.returncode == BAD_ANSWER and done.stdout == ""
    if said is None:
        assert done.stderr == ""
    else:
        assert done.stderr.startswith(said + "/nonexistent/plugin.so") and "LACONIC_MPI_LIB" in done.stderr


@pytest.mark.parametrize(("rank", "local_rank", "said"), [(0, 0, "laconic: no/such.toml"), (1, 1, ""), (2, 0, "laconic: rank 2: no/such.toml")])
def test_missing_rules_are_one_message_per_host(rank, local_rank, said):
    env = {"OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_LOCAL_RANK": str(local_rank)}
    done = laconic("bench", "--engine", "mpi", "--rules", "no/such.toml", env=env)
    assert done.returncode == USAGE and done.stdout == ""
    assert done.stderr.startswith(said) and bool(done.stderr) == bool(said)


@pytest.mark.parametrize(("variable", "library"), [("OMPI_COMM_WORLD_SIZE", "openmpi"), ("PMI_SIZE", "mpich")])
def test_plugin_matches_launcher(tmp_path, variable, library):
    """A copy of the command that has no plug-ins next to it names the one it wants, and what installs it."""
    program = tmp_path / "laconic"
    shutil.copy(BINARY, program)
    done = subprocess.run([program, "bench", "--engine", "mpi"], capture_output=True, text=True, timeout=280,
                          env={**os.environ, variable: "2"})
    assert done.returncode == BAD_ANSWER
    assert f"liblaconic_mpi_{library}.so" in done.stderr and "apt install" in done.stderr


@pytest.mark.parametrize("folder", [
    "lib", "lib64", "lib/x86_64-linux-gnu", "laconic/lib", "lib/python3.12/site-packages/laconic/lib",
    "lib64/python3.12/site-packages/laconic/lib", "lib/python3.11/dist-packages/laconic/lib"])
def test_plugin_is_found_where_cmake_and_pip_install_it(tmp_path, folder):
    (tmp_path / "bin").mkdir()
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "a-file").touch()
    program = shutil.copy(BINARY, tmp_path / "bin" / "laconic")
    plugin = tmp_path / folder / "liblaconic_gloo.so"
    plugin.parent.mkdir(parents=True, exist_ok=True)
    plugin.write_text("no library")
    done = subprocess.run([program, "bench", "--engine", "gloo", "--rank", "0", "--world", "1", "--rendezvous", "file:/nonexistent"],
                          capture_output=True, text=True, timeout=280)
    assert done.returncode == BAD_ANSWER and done.stderr.startswith(f"laconic: {plugin} is truncated"), done.stderr


def test_plugin_of_another_engine_is_refused():
    plugin = next(LIBRARIES.glob("liblaconic_mpi_*.so"), None)
    if plugin is None:
        pytest.skip(f"no plug-in for MPI is in {LIBRARIES}: apt install libopenmpi-dev, then build laconic_mpi_openmpi")
    done = laconic("bench", "--engine", "gloo", "--rank", "0", "--world", "1", "--rendezvous", "file:/tmp",
                   env={"LACONIC_GLOO_LIB": str(plugin)})
    assert done.returncode == BAD_ANSWER and "is a plug-in for mpi, not for gloo" in done.stderr


# ---- MPI, by real launchers ----

def need(*libraries):
    for library in libraries:
        need_library(library, LIBRARIES / f"liblaconic_mpi_{library}.so")


def mpirun(library, *words, env=None, first=(), second=(), before=()):
    """Two ranks with the same arguments, except for those given."""
    one = ["-n", "1", *before, BINARY, "bench", "--engine", "mpi", "--iterations", "3", "--timeout", "100"]
    command = [*LAUNCHERS[library], *one, *words, *first, ":", *one, *words, *second]
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=280,
                          env={**ENVIRONMENT, **(env or {})})


def messages(text):
    return [line for line in text.splitlines() if line.startswith("laconic: ")]


@pytest.mark.parametrize(("library", "name"), [(OPENMPI, "Open MPI "), (MPICH, "MPICH ")])
def test_mpi_ranks_measure_and_one_prints(library, name):
    need(library)
    done = mpirun(library, "--min", "4K", "--max", "16K", "--spec", "int8", "--json")
    assert done.returncode == FINE, done.stderr
    result = json.loads(done.stdout)
    assert result["engine"]["library"].startswith(name) and result["engine"]["ranks"] == 2
    assert [row["size"] for row in result["results"]] == [4096, 8192, 16384]
    for row in result["results"]:
        assert row["native"]["error"] == 0 < row["error"] < 0.05
        assert row["busbw"] == pytest.approx(row["algbw"]), "2(n-1)/n is 1"


@pytest.mark.parametrize(("first", "second", "status", "message"), [
    (["--nonsense"], ["--nonsense"], USAGE, "laconic: The following argument was not expected: --nonsense"),
    (["--min", "x"], ["--min", "x"], USAGE, "laconic: --min 'x' is not a size"),
    (["--spec", "int9"], ["--spec", "int9"], USAGE, "laconic: "),
    (["--plan", "ring"], ["--plan", "ring"], USAGE, "laconic: rank 0: plan: unknown strategy 'ring'"),
    (["--min", "4K"], ["--min", "2K"], BAD_ANSWER, "laconic: rank 1 was started with --min 2048, rank 0 with --min 4096"),
    (["--seed", "1"], ["--seed", "2"], BAD_ANSWER, "laconic: rank 1 was started with --seed 2, rank 0 with --seed 1"),
    (["--spec", "int8"], ["--spec", "none"], BAD_ANSWER, "laconic: rank 1 was started with --spec none, rank 0 with --spec int8"),
])
def test_common_error_is_one_message(first, second, status, message):
    need(MPICH)
    done = mpirun(MPICH, "--max", "8K", first=first, second=second)
    assert done.returncode == status, done.stdout + done.stderr
    said = messages(done.stdout + done.stderr)
    assert len(said) == 1 and said[0].startswith(message), said


@pytest.mark.parametrize(("library", "other", "names"), [
    (OPENMPI, MPICH, ("MPICH 4", "Open MPI's launcher started 2")),
    (MPICH, OPENMPI, ("Open MPI 4", "MPICH's launcher started 2")),
])
def test_other_plugin_is_one_message_with_both_names(library, other, names):
    need(library, other)
    done = mpirun(library, *QUICK, env={"LACONIC_MPI_LIB": str(LIBRARIES / f"liblaconic_mpi_{other}.so")}, before=APART)
    said = messages(done.stdout + done.stderr)
    assert done.returncode != FINE and len(said) == 1, done.stdout + done.stderr
    assert all(name in said[0] for name in names)


def ranks_of(mark):
    """Process by rank: no other has this argument."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if entry.name.isdigit() and mark.encode() in words and words[0] == os.fsencode(BINARY):
                environment = dict(v.split(b"=", 1) for v in (entry / "environ").read_bytes().split(b"\0") if b"=" in v)
                found[int(environment[b"OMPI_COMM_WORLD_RANK"])] = int(entry.name)
        except OSError:
            continue
    return found


def kill_all(mark):
    for process in ranks_of(mark).values():
        with contextlib.suppress(ProcessLookupError):  # the launcher kills them, too
            os.kill(process, signal.SIGKILL)


@pytest.mark.parametrize(("stopped", "speaks"), [(1, "laconic: mpi: "), (0, r"laconic: rank [12]: mpi: ")])
def test_stopped_rank_ends_job_and_one_other_reports(stopped, speaks):
    """Both others see the timeout at the same moment."""
    need(OPENMPI)
    mark = str(time.monotonic_ns() >> 2)
    command = [*LAUNCHERS[OPENMPI], "-n", "3", BINARY, "bench", "--engine", "mpi", "--min", "1K", "--max", "1G", "--spec", "int8",
               "--timeout", "15", "--iterations", "50", "--seed", mark]
    with subprocess.Popen([str(word) for word in command], env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, start_new_session=True) as process:
        limit = threading.Timer(200, lambda: os.killpg(process.pid, signal.SIGKILL))  # no reader waits longer
        limit.start()
        try:
            while process.stdout.readline().startswith("#"):  # until the first row: all ranks are there
                pass
            number = ranks_of(mark)[stopped]
            os.kill(number, signal.SIGSTOP)
            said = []
            while not said:
                line = process.stderr.readline()
                assert line, "the job has ended without a message"
                said = messages(line)
            with contextlib.suppress(ProcessLookupError):  # the launcher may have ended it, or may wait for it
                os.kill(number, signal.SIGKILL)
            _, error = process.communicate(timeout=200)
            said += messages(error)
        finally:
            limit.cancel()
            kill_all(mark)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode != FINE
    assert len(said) == 1 or stopped == 0, said  # the launcher wakes rank 0 to end it: then it may say its own
    assert re.match(speaks, said[0]) and "timed_out" in said[0], said
    assert re.search(rf"(from|reached) ranks? [\d, and]*\b{stopped}\b|a sum did not complete", said[0]), said


# ---- Gloo: processes that are started by hand ----


class Gloo:
    """Ranks of two. They end with the test."""

    def __init__(self, meeting):
        self.meeting, self.processes = meeting, []

    def start(self, *words, seconds=100, error=subprocess.PIPE, env=None, before=None):
        rank = len(self.processes)
        command = [BINARY, "bench", "--engine", "gloo", "--rank", rank, "--world", 2, "--rendezvous", self.meeting,
                   "--interface", "lo", "--timeout", seconds, *words]
        self.processes.append(subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=error, text=True,
                                               env={**os.environ, **(env or {})}, preexec_fn=before))
        return self.processes[-1]

    def ended(self):
        """(exit status, stdout, stderr) of every rank."""
        return [(process.returncode, *said) for process, said in [(p, p.communicate(timeout=200)) for p in self.processes]]


@pytest.fixture(params=["file", "tcp"])
def gloo(request, tmp_path):
    if not (LIBRARIES / "liblaconic_gloo.so").exists():
        pytest.skip("gloo is not here: apt install libgloo-dev, then build laconic_gloo")
    ranks = Gloo(f"file:{tmp_path}" if request.param == "file" else f"tcp:127.0.0.1:{free_port()}")
    yield ranks
    for process in ranks.processes:
        process.kill()
        process.communicate()


def test_gloo_ranks_measure_and_rank_0_prints(gloo):
    for _ in range(2):
        gloo.start("--min", "4K", "--max", "16K", "--spec", "int8", "--iterations", "3", "--json")
    (status, out, error), *rest = gloo.ended()
    assert status == FINE, error
    assert rest == [(FINE, "", "")]
    result = json.loads(out)
    assert result["engine"]["library"].startswith("Gloo ") and result["engine"]["ranks"] == 2
    assert [row["size"] for row in result["results"]] == [4096, 8192, 16384]
    for row in result["results"]:
        assert row["native"]["error"] == 0 < row["error"] < 0.05


def test_gloo_ranks_that_differ_get_one_message(gloo):
    for size in ("8K", "16K"):
        gloo.start("--max", size, "--spec", "none")
    (status, out, error), *rest = gloo.ended()
    assert (status, out) == (BAD_ANSWER, "") and rest == [(BAD_ANSWER, "", "")]
    assert messages(error) == ["laconic: rank 1 was started with --max 16384, rank 0 with --max 8192 (ranks_disagree 60)"]


def test_gloo_ranks_with_other_rules_get_one_message(gloo, tmp_path):
    for rank, spec in enumerate(("int8", "fp16")):
        file = tmp_path / f"{rank}.toml"
        file.write_text(f'[[rule]]\nspec = "{spec}"\n')
        gloo.start("--min", "4K", "--max", "4K", "--spec", "none", "--rules", file)
    (status, _, error), *rest = gloo.ended()
    assert status != FINE and rest == [(status, "", "")]
    said, = messages(error)
    assert "the rules" in said and "int8" in said and "fp16" in said, said


def test_gloo_rank_without_memory_is_named_at_any_allocation(tmp_path):
    """Memory of arrays, or of the buffers that measure the wire alone: up to the limit that suffices."""
    if not (LIBRARIES / "liblaconic_gloo.so").exists():
        pytest.skip("gloo is not here: apt install libgloo-dev, then build laconic_gloo")
    failures = 0
    for mib in range(250, 1000, 15):
        meeting = tmp_path / str(mib)
        meeting.mkdir()
        gloo = Gloo(f"file:{meeting}")
        for limit in (None, lambda most=mib << 20: resource.setrlimit(resource.RLIMIT_AS, (most, most))):
            gloo.start("--min", "64M", "--max", "64M", "--spec", "none", "--plan", "native_sum", "--iterations", "1", "--warmup", "0",
                       seconds=20, before=limit)
        (status, _, error), (other, _, silence) = gloo.ended()
        if status == other == FINE:
            break
        if "not enough memory for 16777216 elements" not in error:
            assert failures == 0, error  # too little for the engine itself
            continue
        failures += 1
        assert (status, other, silence) == (BAD_ANSWER, BAD_ANSWER, "")
        assert messages(error) == ["laconic: rank 1 has not enough memory for 16777216 elements (out_of_memory 100)"]
    else:
        pytest.fail("1 GiB is not enough")
    assert failures > 5  # four arrays of 64 MiB, one after the other


def test_missing_gloo_rank_is_named(gloo):
    gloo.start(*QUICK, seconds=1)
    ((status, out, error),) = gloo.ended()
    assert (status, out) == (BAD_ANSWER, "") and messages(error) == ["laconic: rank 1 did not join within 1000 ms (timed_out 63)"]


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGSTOP])
def test_lost_gloo_rank_is_named(gloo, sign):
    first, second = (gloo.start("--min", "1K", "--max", "1G", "--spec", "int8", "--iterations", "50", seconds=15) for _ in range(2))
    while first.stdout.readline().startswith("#"):  # until the first row: both are there
        pass
    second.send_signal(sign)
    _, error = first.communicate(timeout=200)
    said = messages(error)
    assert first.returncode == BAD_ANSWER and len(said) == 1 and "rank 1" in said[0], error


@pytest.mark.parametrize("gloo", ["file"], indirect=True)
def test_launched_rank_0_reports_first(gloo, tmp_path):
    """Its end is that of the job: rank 1 has known for longer, and gives it time. They do not receive each other's
    errors."""
    with (tmp_path / "said").open("a") as error:
        for rank, seconds in enumerate((1.3, 1.0)):
            (tmp_path / str(rank)).mkdir()
            gloo.meeting = f"file:{tmp_path / str(rank)}"
            gloo.start(*QUICK, seconds=seconds, error=error,
                       env={"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": str(rank)})
    assert [status for status, _, _ in gloo.ended()] == [BAD_ANSWER] * 2
    assert messages((tmp_path / "said").read_text()) == ["laconic: rank 1 did not join within 1300 ms (timed_out 63)",
                                                         "laconic: rank 1: rank 0 did not join within 1000 ms (timed_out 63)"]
