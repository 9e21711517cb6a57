# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""MpiEngine and its plug-ins under real launchers: the table that every engine has to pass, ranks that are killed or stopped,
the other library's launcher. Programs and plug-ins are those of the release build, or of the folder LACONIC_BUILD."""

import json
import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("LACONIC_BUILD", ROOT / "build" / "release"))
sys.path.insert(0, str(ROOT / "tests" / "support"))

from mpi_launchers import APART, ENVIRONMENT, LAUNCHERS, MPICH, OPENMPI, environment, need_library  # noqa: E402


def need(*libraries):
    for library in libraries:
        need_library(library, program(library))


def program(library):
    return BUILD / "bin" / f"mpi_ranks_{library}"


def plugin(library):
    return BUILD / "lib" / f"liblaconic_mpi_{library}.so"


class Job:
    """A launch that has ended, or was ended after `limit` seconds with everything that it had started."""

    def __init__(self, folder, library, ranks, *arguments, launcher=(), built_with=None, limit=200):
        out = folder / "out"
        folder.mkdir(exist_ok=True)
        alone = APART if built_with else []
        command = [*LAUNCHERS[library], *launcher, "-n", str(ranks), *alone, program(built_with or library), *arguments, f"out={out}"]
        with subprocess.Popen([str(part) for part in command], env=environment(), stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, start_new_session=True) as process:
            try:
                self.output, _ = process.communicate(timeout=limit)
                self.in_time = True
            except subprocess.TimeoutExpired:
                self.in_time = False
                os.killpg(process.pid, signal.SIGKILL)
                self.output, _ = process.communicate()
        for left in living(out):  # launchers put ranks into groups of their own
            os.kill(left, signal.SIGKILL)
        self.status = process.returncode
        self.ranks = sorted((json.loads(path.read_text()) for path in folder.glob("out.*")),
                            key=lambda line: line.get("rank", 0))


def living(out):
    """The processes of a job: no other has this argument."""
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"out={out}".encode() in (entry / "cmdline").read_bytes().split(b"\0"):
                yield int(entry.name)
        except OSError:
            continue


def expect_table(job, ranks):
    assert job.status == 0 and len(job.ranks) == ranks, job.output + str(job.ranks)
    for number, line in enumerate(job.ranks):
        assert (line["rank"], line["world"]) == (number, ranks)
        assert line["failures"] == 0 and line["cases"] > 40, line


@pytest.mark.parametrize(("library", "ranks"), [(OPENMPI, 3), (OPENMPI, 4), (MPICH, 2)])
def test_every_case_of_table_passes(tmp_path, library, ranks):
    need(library)
    expect_table(Job(tmp_path, library, ranks, "mode=table"), ranks)


@pytest.mark.parametrize(("library", "ranks"), [(OPENMPI, 3), (MPICH, 2)])
def test_table_passes_through_plugin(tmp_path, library, ranks):
    need(library)
    expect_table(Job(tmp_path, library, ranks, "mode=table", "stride=4", f"plugin={plugin(library)}"), ranks)


#: so small that rows of a model and steps of a few thousand bytes are cut
IN_PARTS = ["largest_call=512", "longest=5000"]


@pytest.mark.parametrize(("library", "ranks"), [(OPENMPI, 3), (MPICH, 2)])
def test_messages_longer_than_a_call_are_divided(tmp_path, library, ranks):
    need(library)
    expect_table(Job(tmp_path, library, ranks, "mode=table", "stride=3", *IN_PARTS), ranks)


@pytest.mark.parametrize(("library", "ranks", "more"), [
    (OPENMPI, 3, []), (OPENMPI, 4, [*IN_PARTS, "stride=12"]), (OPENMPI, 2, ["background=0", "stride=4"]),
    (MPICH, 3, [*IN_PARTS, "stride=12"])])
def test_large_sums_are_taken_in_rank_order(tmp_path, library, ranks, more):
    need(library)
    expect_table(Job(tmp_path, library, ranks, "mode=table", "large_share=0", *more), ranks)


@pytest.mark.parametrize(("library", "ranks", "hosts", "shape", "why"), [
    (OPENMPI, 4, 2, (2, 2), ""), (MPICH, 4, 2, (2, 2), ""),
    (OPENMPI, 3, 2, (1, 1), "hosts have 1 to 2 ranks"), (MPICH, 2, 2, (1, 1), "each host has one rank")])
def test_nodes_of_even_hosts_have_bits_of_threads(tmp_path, library, ranks, hosts, shape, why):
    """Ranks of a host are not neighbours: rank r is on host r % hosts."""
    need(library)
    job = Job(tmp_path, library, ranks, "mode=nodes", f"hosts={hosts}")
    assert job.status == 0 and len(job.ranks) == ranks, job.output + str(job.ranks)
    for line in job.ranks:
        assert (line["count"], line["ranks"]) == shape and line["why"] == why, line
        assert line["status"]["code"] == "ok" and line["same"], line


@pytest.mark.parametrize("library", [OPENMPI, MPICH])
def test_sums_from_threshold_on_are_not_added_by_mpi(tmp_path, library):
    need(library)
    job = Job(tmp_path, library, 3, "mode=branch", "large_share=4096", "largest_call=1024")
    assert [line["right"] for line in job.ranks] == [True] * 3, job.output
    assert {name for line in job.ranks for name in line["small"]} == {"MPI_Iallreduce"}
    assert [line["large"] for line in job.ranks] == [[]] * 3


@pytest.mark.parametrize("lanes", [4, 20])
def test_large_sums_of_two_lengths_are_fatal_error(tmp_path, lanes):
    need(MPICH)
    job = Job(tmp_path, MPICH, 2, "mode=mismatched_sums", f"lanes={lanes}", "large_share=0", "reports=2", "timeout=300")
    assert job.ranks[0]["first"]["code"] == "exchange_order", job.ranks
    assert job.ranks[0]["again"] == job.ranks[0]["first"]


@pytest.mark.parametrize("library", [OPENMPI, MPICH])
def test_terms_of_sum_in_flight_outlive_engine(tmp_path, library):
    need(library)
    job = Job(tmp_path, library, 2, "mode=kept_terms", "timeout=200", "reports=2")
    assert job.ranks[0]["late"]["code"] == "timed_out", job.output
    assert "mpi: nothing arrived from rank 1 within " in job.ranks[0]["late"]["message"]
    assert job.ranks[0]["kept"]


@pytest.mark.parametrize("large", [[], ["large_share=0"]])
@pytest.mark.parametrize("library", [OPENMPI, MPICH])
def test_messages_with_one_tag_keep_order(tmp_path, library, large):
    need(library)
    job = Job(tmp_path, library, 2, "mode=one_tag", "largest_call=512", *large)
    assert [line["right"] for line in job.ranks] == [True, True], job.output


@pytest.mark.parametrize(("library", "ranks"), [(OPENMPI, 4), (MPICH, 3)])
def test_table_passes_on_two_hosts(tmp_path, library, ranks):
    need(library)
    expect_table(Job(tmp_path, library, ranks, "mode=table", "hosts=2", "far_call=512", "longest=5000", "large_share=0", "stride=3"), ranks)


@pytest.mark.parametrize("library", [OPENMPI, MPICH])
def test_only_messages_to_other_hosts_use_small_calls(tmp_path, library):
    need(library)
    job = Job(tmp_path, library, 3, "mode=sizes", "hosts=2", "far_call=1026", "large_share=0")  # cut to whole floats
    assert [line["right"] for line in job.ranks] == [True] * 3, job.output
    far, near = [1024, 1024, 1024, 928], [4000]
    gathers = [line["gather"] for line in job.ranks]  # ranks 0 and 2 are on one host
    assert [gathers[0][peer] for peer in "12"] == [far, near]
    assert [gathers[1][peer] for peer in "02"] == [far, far]
    assert [gathers[2][peer] for peer in "01"] == [near, far]
    # A third of the lanes as terms and a third as sums.
    sums = [line["sum"] for line in job.ranks]
    assert [sorted(sums[rank][str(peer)]) for rank, peer in ((0, 1), (0, 2), (1, 0))] == [sorted(far * 2), near * 2, sorted(far * 2)]


@pytest.mark.parametrize("library", [OPENMPI, MPICH])
def test_one_host_counts_no_rank_as_remote(tmp_path, library):
    need(library)
    job = Job(tmp_path, library, 2, "mode=sizes", "far_call=1024")
    assert [line["gather"][str(1 - line["rank"])] for line in job.ranks] == [[4000], [4000]], job.output


@pytest.mark.parametrize(("hosts", "begun"), [(1, [1 << 20]), (2, [1 << 18] * 3)])
@pytest.mark.parametrize("library", [OPENMPI, MPICH])
def test_large_sum_starts_with_more_pieces_between_hosts(tmp_path, library, hosts, begun):
    need(library)
    job = Job(tmp_path, library, 2, "mode=pace", f"hosts={hosts}", f"far_call={1 << 30}", "background=0")
    assert [line["begun"] for line in job.ranks] == [begun] * 2, job.output
    assert [(line["ended"]["code"], line["right"]) for line in job.ranks] == [("ok", True)] * 2


@pytest.mark.parametrize("library", [OPENMPI, MPICH])
def test_divided_message_blocks_no_other_tag(tmp_path, library):
    need(library)
    job = Job(tmp_path, library, 2, "mode=other_tag", "largest_call=512", "reports=2")
    assert [line[what]["code"] for line in job.ranks for what in ("other", "told", "one")] == ["ok"] * 6, job.output


@pytest.mark.parametrize("library", [OPENMPI, MPICH])
def test_message_ends_with_its_own_calls(tmp_path, library):
    need(library)
    job = Job(tmp_path, library, 2, "mode=places", "largest_call=512", "background=0", "reports=2")
    assert [line["first"]["code"] for line in job.ranks] == ["ok"] * 2, job.output
    assert [line["right"] for line in job.ranks] == [True] * 2
    assert [line["ahead"] for line in job.ranks] == [8] * 2  # of 24


@pytest.mark.parametrize("library", [OPENMPI, MPICH])
def test_messages_progress_between_start_and_wait(tmp_path, library):
    need(library)
    job = Job(tmp_path, library, 2, "mode=between", "reports=2")
    assert job.status == 0 and job.ranks[1]["ended"]["code"] == "ok", job.output


@pytest.mark.parametrize("library", [OPENMPI, MPICH])
def test_memory_in_flight_outlives_the_engine(tmp_path, library):
    need(library)
    job = Job(tmp_path, library, 2, "mode=kept", "timeout=200", "reports=2")
    assert job.ranks[0]["late"]["code"] == "timed_out", job.output
    assert job.ranks[0]["kept"]


# MPICH 4.0 hangs in MPI_Finalize across hosts unless all ranks have talked to each other and rest.
ENDS = {OPENMPI: ["MPI_Ibarrier", "MPI_Finalize"], MPICH: ["MPI_Ialltoall in place", "MPI_Ibarrier", "MPI_Finalize"]}


@pytest.mark.parametrize("library", [OPENMPI, MPICH])
def test_all_ranks_meet_before_mpi_is_finalised(tmp_path, library):
    need(library)
    job = Job(tmp_path, library, 3, "mode=end")
    assert job.status == 0, job.output
    assert [line["calls"] for line in job.ranks] == [ENDS[library]] * 3
    assert library == OPENMPI or all(line["rest"] >= 0.1 for line in job.ranks), job.ranks


@pytest.mark.parametrize("library", [OPENMPI, MPICH])
def test_absent_rank_at_end_is_not_awaited(tmp_path, library):
    need(library)
    job = Job(tmp_path, library, 3, "mode=end", "absent=1", "timeout=300", "reports=3")
    assert job.in_time, job.output
    assert [line.get("calls") for line in job.ranks] == [ENDS[library][:1], None, ENDS[library][:1]], job.output


def test_table_passes_without_progress_thread(tmp_path):
    need(OPENMPI)
    expect_table(Job(tmp_path, OPENMPI, 2, "mode=table", "stride=4", "background=0"), 2)


@pytest.mark.parametrize("level", ["single", "funneled", "serialized", "multiple"])
def test_program_may_initialise_mpi_itself(tmp_path, level):
    need(OPENMPI)
    expect_table(Job(tmp_path, OPENMPI, 2, "mode=foreign", f"level={level}", "stride=4"), 2)


def test_only_main_thread_communicates_below_serialized(tmp_path):
    need(MPICH)
    job = Job(tmp_path, MPICH, 2, "mode=foreign", "level=funneled", "thread=1")
    assert [line["level"] for line in job.ranks] == [1, 1], job.output
    assert {line["ran"]["code"] for line in job.ranks} == {"unsupported"}


def test_session_works_in_unlaunched_process(tmp_path):
    need(OPENMPI, MPICH)
    for library in (OPENMPI, MPICH):
        out = tmp_path / library
        subprocess.run([program(library), "mode=create", f"out={out}"], check=True, timeout=200)
        (found,) = tmp_path.glob(f"{library}.*")
        line = json.loads(found.read_text())
        assert (line["world"], line["average"]["code"]) == (1, "ok")


@pytest.mark.parametrize("call", ["MPI_Comm_idup", "MPI_Iallgather"])
@pytest.mark.parametrize("library", [OPENMPI, MPICH])
def test_engine_gives_up_on_missing_rank(tmp_path, library, call):
    need(library)
    job = Job(tmp_path, library, 2, "mode=create", f"stops_at={call}", "timeout=300")
    (line,) = job.ranks
    assert line["create"] == line["status"] == {"code": "timed_out", "message": "mpi: not every rank created its engine within 300 ms"}, job.output


@pytest.mark.parametrize("through_plugin", [False, True])
@pytest.mark.parametrize(("library", "other", "names"), [
    (OPENMPI, MPICH, ("MPICH 4", "Open MPI's launcher started 2")),
    (MPICH, OPENMPI, ("Open MPI 4", "MPICH's launcher started 2")),
])
def test_other_launcher_is_reported(tmp_path, library, other, names, through_plugin):
    need(library, other)
    extra = [f"plugin={plugin(other)}"] if through_plugin else []
    job = Job(tmp_path, library, 2, "mode=create", *extra, built_with=other)
    assert len(job.ranks) == 2, job.output
    for line in job.ranks:
        said = line["opened" if through_plugin else "create"]
        assert said["code"] == "engine_failed"
        assert all(name in said["message"] for name in names), said


def test_plugin_refuses_world_that_differs_from_launcher(tmp_path):
    need(OPENMPI)
    job = Job(tmp_path, OPENMPI, 2, "mode=table", "world=3", f"plugin={plugin(OPENMPI)}")
    assert {line["opened"]["code"] for line in job.ranks} == {"invalid_argument"}, job.output
    # The launcher ends the other rank with the first one, whichever that is.
    assert all(re.search(r"as rank [01] of 2, requested was rank 0 of 3", line["opened"]["message"]) for line in job.ranks)


@pytest.mark.parametrize(("sent", "message"), [(5, "mpi: rank 1 sent 5 bytes, expected 10"), (20, "mpi: receiving from rank 1: ")])
def test_mismatched_steps_are_fatal_error(tmp_path, sent, message):
    need(MPICH)
    job = Job(tmp_path, MPICH, 2, "mode=mismatch", f"sent={sent}", "reports=2")
    assert job.ranks[0]["first"]["code"] == "exchange_order", job.output
    assert job.ranks[0]["first"]["message"].startswith(message)
    assert job.ranks[0]["again"] == job.ranks[0]["first"]


def example(library):
    return BUILD / "bin" / f"example_mpi_train_{library}"


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    pytest.importorskip("sklearn")
    file = tmp_path_factory.mktemp("digits") / "digits.txt"
    subprocess.run([sys.executable, ROOT / "examples" / "export_digits.py", file], check=True, timeout=280)
    return file


def trained(library, digits, spec, ranks):
    """Accuracy and weights of every rank; 1: without a launcher."""
    command = [example(library), digits, spec]
    if ranks > 1:
        command = [*LAUNCHERS[library], "-n", str(ranks), *command]
    result = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=280, check=True)
    found = re.findall(rf"rank \d of {ranks}: accuracy ([\d.]+), weights ([0-9a-f]+)", result.stdout)
    assert len(found) == ranks, result.stdout + result.stderr
    return [(float(accuracy), weights) for accuracy, weights in found]


def test_example_reaches_accuracy_of_one_process(digits):
    need(OPENMPI, MPICH)
    if not example(OPENMPI).exists():
        pytest.skip("Eigen is not here: apt install libeigen3-dev")
    ((alone, _),) = trained(OPENMPI, digits, "none", 1)
    found = [*trained(OPENMPI, digits, "3lc", 2), *trained(MPICH, digits, "3lc", 2)]
    assert alone > 0.95
    assert all(accuracy >= alone - 0.01 for accuracy, _ in found)
    assert len({weights for _, weights in found}) == 1, "replicas and libraries give the same bits"


# ---- ranks that are killed or stopped ----

# Strategy, spec, batch, before or after it; the first batch of a layout is its status round.
PHASES = [("gather_all", "3lc", 0, 0), ("gather_all", "3lc", 1, 0), ("two_shot", "3lc", 1, 0), ("two_shot", "int8", 2, 0),
          ("two_shot", "3lc", 1, 1), ("native_sum", "fp16+ef", 1, 0), ("native_sum large", "fp16+ef", 1, 0),
          ("native_sum large", "fp16+ef", 1, 1)]


@pytest.fixture(scope="module")
def struck(tmp_path_factory):
    """All jobs in which rank 1 of 3 is killed or stopped: mostly they wait, so several run in parallel."""
    need(OPENMPI)
    with ThreadPoolExecutor(4) as pool:
        jobs = {}
        for sign in ("kill", "stop"):
            for phase in PHASES:
                plan, spec, at, behind = phase
                plan, *large = plan.split()
                launcher = ["--enable-recovery"] if sign == "kill" else []
                jobs[sign, phase] = pool.submit(
                    Job, tmp_path_factory.mktemp("struck"), OPENMPI, 3, "mode=struck", f"signal={sign}", f"plan={plan}",
                    f"spec={spec}", f"at={at}", f"behind={behind}", "reports=2", "timeout=600000", *(["large_share=0"] if large else []), launcher=launcher)
        yield {key: job.result() for key, job in jobs.items()}


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("sign", ["kill", "stop"])
def test_survivors_time_out_and_keep_gradients(struck, sign, phase):
    job = struck[sign, phase]
    assert job.in_time, job.output
    survivors = [line for line in job.ranks if line["rank"] != 1]
    assert [line["rank"] for line in survivors] == [0, 2], job.output
    for line in survivors:
        failed = line["first"] if line["first"]["code"] != "ok" else line["next"]
        assert failed["code"] == "timed_out", line
        assert line["next"] == failed, "the engine is dead"
        if line["first"]["code"] != "ok":
            assert line["away"] < 1e-6, "what was not delivered is in the residual"
            if phase[0] != "native_sum" and phase[3] == 0:  # MPI's own sums name no rank
                assert "rank 1 " in failed["message"], line


@pytest.mark.parametrize("library", [OPENMPI, MPICH])
def test_launcher_ends_job_of_killed_rank(tmp_path, library):
    need(library)
    job = Job(tmp_path, library, 2, "mode=struck", "signal=kill", "plan=gather_all", "at=1", "deadline=600000")
    assert job.in_time and job.status != 0, job.output


def test_stalled_rank_times_out_through_plugin(tmp_path):
    need(MPICH)
    job = Job(tmp_path, MPICH, 2, "mode=struck", "signal=stop", "plan=two_shot", "at=1", f"plugin={plugin(MPICH)}")
    survivor = job.ranks[0]
    assert job.in_time and survivor["first"]["code"] == "timed_out", job.output
    assert "mpi: nothing arrived from rank 1 within " in survivor["first"]["message"]
    assert survivor["away"] < 1e-6
