# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""laconic.Session over the plug-ins of C++, with real processes: session_ranks.py has what they do."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from array import array
from pathlib import Path

import pytest

import laconic
from laconic import LaconicError
from laconic.core import _arrays, _lib
from laconic.engines import plugin

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "tests" / "support"))

import mpi_launchers  # noqa: E402
from mpi_launchers import GLOO, LAUNCHERS, MPICH, OPENMPI, PACKAGES, need_library  # noqa: E402

FILES = {OPENMPI: "liblaconic_mpi_openmpi.so", MPICH: "liblaconic_mpi_mpich.so", GLOO: "liblaconic_gloo.so"}
LIBRARIES = Path(_lib.lib.path).resolve().parent
ENVIRONMENT = {**mpi_launchers.ENVIRONMENT, "PYTHONPATH": os.pathsep.join(sys.path), "LACONIC_LIBRARY": str(_lib.lib.path)}


def need(*engines):
    for engine in engines:
        need_library(engine, LIBRARIES / FILES[engine])


class Job:
    """Ranks that have ended, or were ended after `limit` seconds: by the launcher of an MPI, or started one by one for Gloo."""

    def __init__(self, folder, engine, ranks, function, *arguments, environment=None, limit=200):
        need(engine)
        self.out = folder / function
        command = [sys.executable, str(HERE / "session_ranks.py"), function, str(self.out), *arguments]
        if engine == "gloo":
            commands = [[*command, "engine=gloo", f"rank={rank}", f"world={ranks}", f"rendezvous=file:{folder}/meet"]
                        for rank in range(ranks)]
        else:
            commands = [[*LAUNCHERS[engine], "-n", str(ranks), *command]]
        started = [subprocess.Popen(each, env={**ENVIRONMENT, **(environment or {})}, stdout=subprocess.PIPE,
                                    stderr=subprocess.STDOUT, text=True, start_new_session=True) for each in commands]
        self.output, self.in_time = "", True
        for process in started:
            try:
                self.output += process.communicate(timeout=limit)[0]
            except subprocess.TimeoutExpired:
                self.in_time = False
                os.killpg(process.pid, signal.SIGKILL)
                self.output += process.communicate()[0]
        for left in living(self.out):  # launchers put ranks into groups of their own
            os.kill(left, signal.SIGKILL)
        self.status = [process.returncode for process in started]
        self.ranks = {int(path.suffix[1:]): json.loads(path.read_text()) for path in folder.glob(f"{function}.[0-9]*")}

    def same(self, ranks):
        """The results of all ranks, the same on all."""
        assert sorted(self.ranks) == list(range(ranks)) and set(self.status) == {0}, self.output
        assert all(given == self.ranks[0] for given in self.ranks.values()), self.ranks
        return self.ranks[0]


def living(out):
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and str(out).encode() in (entry / "cmdline").read_bytes().split(b"\0"):
                yield int(entry.name)
        except OSError:
            continue


ENGINES = [("openmpi", 3), ("mpich", 2), ("gloo", 3)]


@pytest.fixture(scope="module")
def means(tmp_path_factory):
    jobs = {}

    def of(engine, ranks):
        need(engine)
        if (engine, ranks) not in jobs:
            jobs[engine, ranks] = Job(tmp_path_factory.mktemp("means"), engine, ranks, "means")
        return jobs[engine, ranks]

    return of


@pytest.mark.parametrize(("engine", "ranks"), ENGINES)
def test_means_have_same_bits_on_all_ranks(means, engine, ranks):
    job = means(engine, ranks)
    assert sorted(job.ranks) == list(range(ranks)) and set(job.status) == {0}, job.output
    for rank, given in job.ranks.items():
        assert given["place"] == [rank, ranks]
        assert given["away"] < 1e-6
        assert given["exact"] == job.ranks[0]["exact"]
        for key, digests in given["exact"].items():
            assert digests == given["exact"][key[:-1] + "1"], "no bit depends on the window"
    assert job.ranks[0]["library"].startswith({"openmpi": "Open MPI 4", "mpich": "MPICH", "gloo": "Gloo"}[engine])


@pytest.mark.parametrize(("engine", "ranks"), ENGINES)
def test_session_imports_neither_torch_nor_numpy(means, engine, ranks):
    assert {tuple(given["modules"] + given["modules_after"]) for given in means(engine, ranks).ranks.values()} == {()}


def _over_c10d():
    import session_ranks

    return session_ranks.exact(lambda spec, **options: laconic.Session(spec, session_ranks.MODEL, engine="c10d", small_elements=100,
                                                                       **options))


@pytest.mark.parametrize(("engine", "ranks"), ENGINES)
def test_bits_match_torch_gloo(means, pools, engine, ranks):
    job = means(engine, ranks)
    assert pools(ranks).run(_over_c10d) == [job.ranks[0]["exact"]] * ranks


TOLD = [f"control of *: schedule:0=0.1,3=0.5,6=0.02: ratio {change}: scheduled"
        for change in ("0.1 -> 0.5 from step 3", "0.5 -> 0.02 from step 6")]


@pytest.mark.parametrize(("engine", "ranks"), [("openmpi", 2), ("gloo", 2)])
def test_every_policy_change_logs_a_line_on_rank_0(tmp_path, engine, ranks):
    job = Job(tmp_path, engine, ranks, "told")
    assert sorted(job.ranks) == list(range(ranks)) and set(job.status) == {0}, job.output
    assert job.ranks[0] == {"each": TOLD, "last": TOLD[1:], "modules": []}
    assert job.ranks[1] == {"each": [], "last": [], "modules": []}


def _alone_over_c10d():
    from laconic.core import environment

    said, (say, environment.say) = [], (environment.say, lambda line, level=0: said.append(line))
    try:
        with laconic.Session("3lc", [("w", (64, 32))], engine="c10d", small_elements=0, control="dc2") as session:
            given = array("f", [0.5 * i - 0.0 for i in range(2048)])
            gradient = array("f", given)
            session.average(0, gradient)
            state = session.state_dict()
            header = {key: value for key, value in state["header"].items() if key != "fingerprint"}
            compressed = {"version": 1, "header": header, "part": 8 << 20, "entries": {"residual/w": bytes(8192), "state/flush": bytes(8)}}  # by an earlier release
            session.load_state_dict(compressed)
            return said, gradient == given, session.stats(), session.explain()["reason"], state["entries"]
    finally:
        environment.say = say


def test_one_rank_passes_gradients_through(pools):
    [(said, equal, stats, reason, entries)] = pools(1).run(_alone_over_c10d)
    assert said == [reason] == ["one rank has nothing to exchange: gradients stay as they are"]
    assert equal and (stats["ratio"], stats["wire_bytes"]) == (1.0, 0) and entries == {}


def _told_over_c10d():
    import session_ranks

    found = session_ranks.told(session_ranks.Ranks(engine="c10d"))
    return found["each"], found["last"]


def test_every_policy_change_logs_a_line_over_torch_too(pools):
    assert pools(2).run(_told_over_c10d) == [(TOLD, TOLD[1:]), ([], [])]


@pytest.mark.parametrize(("engine", "ranks"), [("openmpi", 2), ("gloo", 2)])
def test_unsuitable_array_is_error_on_every_rank(tmp_path, engine, ranks):
    pytest.importorskip("numpy")
    job = Job(tmp_path, engine, ranks, "arrays")
    assert sorted(job.ranks) == [0, 1], job.output
    other, own = (job.ranks[rank]["heard"] for rank in (0, 1))
    words = {"float64": "float64", "swapped": ">f4", "int32": "int32", "read-only": "is read-only", "apart": "not C-contiguous",
             "short": "has 25285 elements, its parameters have 25286", "long": "format 'B'", "list": "got list", "bytes": "format 'B'",
             "none": "got NoneType", "interface, read-only": "is read-only", "interface, type": "<f8",
             "interface, apart": "not C-contiguous", "step": "step is 'three'"}
    assert set(words) == set(own)
    for name, word in words.items():
        assert other[name][0] == "peer_failed" and "rank 1" in other[name][1] and word in other[name][1], other[name]
        assert own[name][0] in ("dtype_unsupported", "shape_unsupported", "invalid_argument") and word in own[name][1], own[name]
    assert len({digest for given in job.ranks.values() for digest in given["found"]}) == 1, "buffers, matrices, interfaces"


@pytest.mark.parametrize(("engine", "ranks"), [("openmpi", 2), ("gloo", 2)])
def test_saved_run_continues_bit_for_bit(tmp_path, engine, ranks):
    given = Job(tmp_path, engine, ranks, "resume").same(ranks)
    assert len(given) == 3
    for through, resumed, same, remembers in given.values():
        assert resumed == through and same and remembers


def test_foreign_state_is_refused_and_changes_nothing(tmp_path):
    given = Job(tmp_path, "openmpi", 2, "refused").same(2)
    assert given["unchanged"]
    assert given["heard"] == {"rank": "state_rank", "world": "state_world", "spec": "state_spec", "model": "state_model",
                              "version": "state_version", "part": "state_spec",
                              **dict.fromkeys(["lacking", "short", "odd", "text", "nan", "list"], "state_corrupt")}


@pytest.mark.parametrize(("engine", "ranks"), [("openmpi", 3), ("gloo", 3)])
def test_ranks_that_differ_get_same_message(tmp_path, engine, ranks):
    heard = Job(tmp_path, engine, ranks, "disagree").same(ranks)
    assert len(heard.pop("good")) == 1, "sessions can be made after one that could not"
    assert {name for name, _ in heard.values()} == {"ranks_disagree"}
    for key, word in {"spec": "rank 1 has 'int8'", "unknown spec": "rank 1 could not create its session: unknown codec 'tokp'",
                      "window": "rank 1 has 3", "wrong window": "window is 9", "model": "rank 1 has 6 parameters",
                      "no model": "'int' object is not iterable", "shape": "the shape of 'a' is 'b'"}.items():
        assert word in heard[key][1], heard[key]
    if engine == "openmpi":
        assert "the launcher started this rank as 1 of 3, requested was rank 1 of 7" in heard["world"][1]


PYTHON_RANK = """
import array, sys, laconic
spec, steps, columns, *place = sys.argv[1:]
where = dict(zip(("rank", "world"), map(int, place))) | {"engine": "gloo", "rendezvous": place[2]} if place else {"engine": "mpi"}
try:
    with laconic.Session(spec, [("w", (64, int(columns))), ("b", (200,))], timeout=600, **where) as session:
        for step in range(int(steps)):
            values = array.array("f", [session.rank + 1.0]) * (65 * 200)
            session.average(step, values)
            print("mean", f"{values[0]:g} {values[-1]:g}", flush=True)
except laconic.LaconicError as error:
    print("error", error.message, flush=True)
"""


def test_processes_of_tf_config_meet():
    need("gloo")
    program = ("import laconic; from array import array; g = array('f', 5000 * [1 + laconic.exchange.launched.place().rank])\n"
               "with laconic.Session('none', [('w', 5000)], timeout=60) as s: s.average(0, g); print(s.rank, s.world, s.explain()['engine'], g[0])")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        workers = [f"127.0.0.1:{taken.getsockname()[1] - 1}", "127.0.0.1:1"]  # a session meets behind the first worker's port
    ranks = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env={
        **ENVIRONMENT, "GLOO_SOCKET_IFNAME": "lo", "TF_CONFIG": json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}})})
        for index in (0, 1)]
    assert [rank.communicate(timeout=120)[0].split() for rank in ranks] == [["0", "2", "gloo", "1.5"], ["1", "2", "gloo", "1.5"]]


def side_by_side(engine, folder, cpp, python, first):
    """The output of a rank of C++ and one of Python, in the order of their ranks; their arguments are given."""
    need(engine)
    program = LIBRARIES.parent / "bin" / ("beside_python" if engine == "gloo" else f"beside_python_{engine}")
    assert program.exists(), "it is built where the plug-in is, by the target laconic_launched"
    both = {"cpp": [str(program), *cpp], "python": [sys.executable, "-c", PYTHON_RANK, *python]}
    files = [folder / "said.0", folder / "said.1"]  # launchers mix what ranks print
    commands = [["sh", "-c", 'exec "$@" > "$0" 2>&1', str(file), *command] for file, command in zip(files, [both.pop(first), *both.values()])]
    if engine == "gloo":
        (folder / "meet").mkdir()
        commands = [[*command, str(rank), "2", f"file:{folder}/meet"] for rank, command in enumerate(commands)]
    else:
        commands = [[*LAUNCHERS[engine], "-n", "1", *commands[0], ":", "-n", "1", *commands[1]]]
    started = [subprocess.Popen(command, env=ENVIRONMENT) for command in commands]
    try:
        for process in started:
            process.wait(timeout=280)  # their timeout is a longer one
    finally:
        for process in started:
            process.kill()
    return [file.read_text() for file in files]


BESIDE = {"good": "", "python's spec": "unknown codec 'tokp'", "C++'s spec": "unknown codec 'tokp'",
          "model": "ranks disagree on the model", "python leaves": "has ended before the others"}


# A rank that leaves an MPI finalises it, which waits for the others.
@pytest.mark.parametrize(("engine", "case"), [(engine, case) for engine in ("gloo", "openmpi", "mpich") for case in BESIDE
                                              if engine == "gloo" or case != "python leaves"])
@pytest.mark.parametrize("first", ["cpp", "python"])
def test_ranks_of_cpp_and_python_share_a_job(tmp_path, engine, case, first):
    """An unsupported request of one of them is one message on both, without waiting."""
    words = BESIDE[case]
    spec = "none" if case == "good" else "3lc"
    said = side_by_side(engine, tmp_path, ["tokp" if case == "C++'s spec" else spec, "3"],
                        ["tokp" if case == "python's spec" else spec, "1" if case == "python leaves" else "3", "100" if case == "model" else "200"],
                        first)
    if case == "good":
        assert said == ["mean 1.5 1.5\n" * 3] * 2
    elif case == "python leaves":
        assert words in said[0 if first == "cpp" else 1]
    else:
        assert words in said[0] and words in said[1], said


@pytest.mark.parametrize(("engine", "ranks"), [("openmpi", 2), ("mpich", 2), ("gloo", 2)])
def test_sessions_open_and_close_repeatedly(tmp_path, engine, ranks):
    job = Job(tmp_path, engine, ranks, "lives")
    for norms in [given.pop("norms") for given in job.ranks.values()]:  # residuals differ
        assert norms[-1] == 0 and all(norms[:-1])
    given = job.same(ranks)
    assert given["left"] == [3, 4], "one step carries the request; asked again before it, the last one counts"
    assert given["stats"] == 2 and given["spec"].startswith("3lc")
    assert given["closed"] == ["this session is closed (create another one)", "invalid_argument"]


@pytest.mark.parametrize("error", ["engine", "interrupt"])
def test_engine_failure_undoes_all_in_flight(tmp_path, error):
    job = Job(tmp_path, "openmpi", 2, "undone", f"error={error}")
    assert sorted(job.ranks) == [0, 1], job.output
    for given in job.ranks.values():
        assert given["kept"] and given["calls"] == 3, given
        word = "the cable is out" if error == "engine" else "KeyboardInterrupt"
        assert given["heard"][0] == ("engine_failed" if error == "engine" else "KeyboardInterrupt"), given
        assert given["again"][0] == "engine_failed" and word in given["again"][1]


def test_trace_has_every_part(tmp_path):
    job = Job(tmp_path, "openmpi", 2, "traced", environment={"LACONIC_TRACE": f"{tmp_path}/trace.json"})
    assert job.status == [0], job.output
    for rank in range(2):
        events = json.loads((tmp_path / f"trace.rank{rank}.json").read_text())
        for kind in ("encode", "wire", "decode"):
            assert {event["args"]["part"] for event in events if event.get("cat") == kind} == set(range(6))


@pytest.mark.parametrize("engine", ["openmpi", "gloo"])
def test_stopped_rank_is_named_at_timeout(tmp_path, engine):
    job = Job(tmp_path, engine, 3, "stopped", f"pids={tmp_path}/pid")
    assert job.in_time and {0, 2}.issuperset(job.ranks) and job.ranks, job.output
    for given in job.ranks.values():
        assert given["heard"][0] == "timed_out", given
        assert re.search(r"\b(rank 1|ranks 0 and 1|ranks 1 and 2)\b", given["heard"][1]), given  # others, too, on a machine that stops
        assert given["again"] == given["heard"]


@pytest.mark.parametrize("how", ["raise", "exit"])
@pytest.mark.parametrize("library", ["openmpi", "mpich"])
def test_leaving_rank_ends_job(tmp_path, library, how):
    job = Job(tmp_path, library, 2, "leaves", f"how={how}")
    assert job.in_time and job.status != [0], job.output


def test_wrong_launcher_error_names_both(tmp_path):
    need("openmpi", "mpich")
    path = Path(_lib.lib.path).resolve().parent / FILES["mpich"]
    job = Job(tmp_path, "openmpi", 2, "opened", environment={"LACONIC_MPI_LIB": str(path)})
    assert job.ranks, job.output
    for given in job.ranks.values():
        assert given["said"][0] == "engine_failed"
        assert "MPICH 4" in given["said"][1] and "Open MPI's launcher started 2" in given["said"][1]


# ---- without ranks --------------------------------------------------------------------------------------------------------


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """The library lies where no plug-in is."""
    for variable in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "LACONIC_MPI_LIB", "LACONIC_GLOO_LIB"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(_lib.lib, "path", tmp_path / "liblaconic.so")
    return tmp_path


@pytest.fixture
def installed(elsewhere, monkeypatch):
    """As the wheel has it: the library inside the package."""
    monkeypatch.setattr(plugin, "__file__", str(elsewhere / "laconic" / "engines" / "plugin.py"))
    monkeypatch.setattr(_lib.lib, "path", elsewhere / "laconic" / "lib" / "liblaconic.so")
    (elsewhere / "laconic" / "lib").mkdir(parents=True)
    return elsewhere / "laconic" / "lib"


@pytest.mark.parametrize(("variable", "target", "words"), [
    (None, "laconic_mpi_openmpi", "the plug-in for MPI was not found"),
    ("OMPI_COMM_WORLD_SIZE", "laconic_mpi_openmpi", "Open MPI, whose launcher started this process"),
    ("PMI_SIZE", "laconic_mpi_mpich", "MPICH, whose launcher started this process")])
def test_missing_plugin_is_reported(elsewhere, monkeypatch, variable, target, words):
    if variable:
        monkeypatch.setenv(variable, "2")
    with pytest.raises(LaconicError) as caught:
        laconic.Session("3lc", [("w", 5)], engine="mpi")
    assert caught.value.name == "unsupported" and words in str(caught.value)
    assert f"there is no lib{target}.so in {elsewhere}" in str(caught.value)
    assert f"scripts/build release {target}" in caught.value.hint


def test_missing_gloo_is_reported(elsewhere):
    with pytest.raises(LaconicError, match="liblaconic_gloo.so in .*scripts/build release laconic_gloo"):
        laconic.Session("3lc", [("w", 5)], engine="gloo", rank=0, world=1, rendezvous="file:/nonexistent")


@pytest.mark.parametrize(("engine", "variable", "file"), [
    ("mpi", "OMPI_COMM_WORLD_SIZE", FILES["openmpi"]), ("mpi", "PMI_SIZE", FILES["mpich"]), ("gloo", None, FILES["gloo"])])
def test_wheel_without_gloo_is_reported(installed, monkeypatch, engine, variable, file):
    if variable:
        monkeypatch.setenv(variable, "2")
    options = {} if engine == "mpi" else {"rank": 0, "world": 1, "rendezvous": "file:/nonexistent"}
    with pytest.raises(LaconicError) as caught:
        laconic.Session("3lc", [("w", 5)], engine=engine, **options)
    name = next(name for name in FILES if FILES[name] == file)
    library = {"openmpi": "Open MPI", "mpich": "MPICH", "gloo": "Gloo"}[name]
    assert caught.value.name == "unsupported" and f"there is no {file} in {installed}" in caught.value.message
    assert caught.value.hint == (f"this wheel was built without {library}: apt install {PACKAGES[name]} and build laconic from its source "
                                 f"again, or set LACONIC_{engine.upper()}_LIB to a plug-in")
    (installed / file).touch()
    assert (plugin.mpi_path if engine == "mpi" else plugin.gloo_path)() == str(installed / file), "found without a variable"


def built(engine):
    here = LIBRARIES / FILES[engine]
    if not here.exists():
        pytest.skip(f"{here} is not built: apt install {PACKAGES[engine]}")
    return here


def without_its_library(plug_in, folder):
    """A plug-in that needs a library of a version that is nowhere. Gives its path, and what it needs."""
    data = plug_in.read_bytes()
    [needed] = set(re.findall(rb"lib(?:mpi|mpich|gloo)\.so\.[0-9.]+(?=\0)", data))
    nowhere = needed[:-1] + b"x"
    (folder / plug_in.name).write_bytes(data.replace(needed + b"\0", nowhere + b"\0"))
    return str(folder / plug_in.name), nowhere.decode()


@pytest.mark.parametrize("engine", list(FILES))
def test_plugin_with_missing_library_is_reported(elsewhere, engine):
    path, library = without_its_library(built(engine), elsewhere)
    with pytest.raises(LaconicError) as caught:
        plugin.load(path)
    assert caught.value.name == "unsupported"
    assert f"was not found: {path} needs {library}: cannot open shared object file" in caught.value.message
    assert caught.value.hint == f"apt install {PACKAGES[engine]}, or add the folder of {library} to LD_LIBRARY_PATH"


def test_one_process_uses_installed_mpi(elsewhere):
    openmpi, mpich = built("openmpi"), built("mpich")
    without_its_library(openmpi, elsewhere)
    assert plugin.mpi_path() == str(elsewhere / openmpi.name), "alone it is the one to complain of"
    shutil.copy(mpich, elsewhere)
    assert plugin.mpi_path() == str(elsewhere / mpich.name)
    shutil.copy(openmpi, elsewhere)
    assert plugin.mpi_path() == str(elsewhere / openmpi.name)


def test_launcher_decides_which_mpi(elsewhere, monkeypatch):
    for name in FILES.values():
        (elsewhere / name).touch()
    assert plugin.mpi_path().endswith("mpi_openmpi.so")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "")  # nothing, as for `laconic bench`
    monkeypatch.setenv("PMI_SIZE", "2")
    assert plugin.mpi_path().endswith("mpi_mpich.so")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    assert plugin.mpi_path().endswith("mpi_openmpi.so")


@pytest.mark.parametrize(("variable", "path_of"), [("LACONIC_MPI_LIB", plugin.mpi_path), ("LACONIC_GLOO_LIB", plugin.gloo_path)])
def test_variable_may_name_plugin(elsewhere, monkeypatch, variable, path_of):
    (elsewhere / "liblaconic_gloo.so").touch()
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    monkeypatch.setenv(variable, "mine.so")
    assert path_of() == "mine.so"
    monkeypatch.setenv(variable, "/nonexistent/mine.so")
    with pytest.raises(LaconicError, match=f"{variable} is /nonexistent/mine.so, which does not exist"):
        path_of()


def test_invalid_plugin_is_refused(tmp_path):
    with pytest.raises(LaconicError, match="it has no laconic_plugin_v1"):
        plugin.load(str(_lib.lib.path))
    (tmp_path / "text.so").write_text("nothing")
    with pytest.raises(LaconicError, match="text.so"):
        plugin.load(str(tmp_path / "text.so"))


@pytest.mark.parametrize("part", [0.001, 0.5, 0.99])
def test_truncated_plugin_is_refused(tmp_path, part):
    data = Path(_lib.lib.path).read_bytes()
    (tmp_path / "cut.so").write_bytes(data[: int(part * len(data))])
    code = f"from laconic.engines import plugin; plugin.load({str(tmp_path / 'cut.so')!r})"
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 1 and ("is truncated" in done.stderr or "laconic_plugin_v1" in done.stderr), done


@pytest.mark.parametrize(("options", "words"), [
    ({"engine": "nccl"}, "one of auto, mpi, gloo, c10d"),
    ({"timeout": 0}, "timeout is 0"),
    ({"timeout": "soon"}, "timeout is 'soon'"),
    ({"rank": 0}, "give both or neither"),
    ({"engine": "mpi", "rendezvous": "file:x"}, "does not accept rendezvous"),
    ({"engine": "mpi", "group": object()}, "does not accept group"),
    ({"engine": "gloo"}, "needs rank, world and rendezvous"),
    ({"engine": "gloo", "rank": 2, "world": 2, "rendezvous": "file:x"}, "rank is 2"),
])
def test_unsupported_engine_arguments_are_refused(options, words):
    with pytest.raises(LaconicError) as caught:
        laconic.Session("3lc", [("w", 5)], **options)
    assert caught.value.name == "invalid_argument" and words in str(caught.value)


def test_arrays_of_any_layout_are_accepted():
    torch = pytest.importorskip("torch")
    plain = array("f", [1, 2, 3])
    for values in (plain, torch.tensor([1.0, 2.0, 3.0]), (ctypes.c_float * 3)(1, 2, 3), memoryview(plain[:])):
        view = _arrays.floats_in_place(values, 3)
        view[1] = 7
        assert list(map(float, values)) == [1, 7, 3]
    with pytest.raises(LaconicError, match="not contiguous"):
        _arrays.floats_in_place(torch.zeros(4, 4).t(), 16)
    with pytest.raises(LaconicError, match="float16 cannot be exchanged"):
        _arrays.floats_in_place(torch.zeros(4, dtype=torch.float16), 4)
    assert len(_arrays.floats_in_place(array("f"), 0)) == 0
