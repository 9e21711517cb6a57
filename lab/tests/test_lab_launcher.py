# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Commands on a host of a running lab (--on), and launchers: both MPIs start their ranks on all hosts."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile

import pytest
from lab_support import PER_PACKET, eventually, processes_with

MEGABYTE = 1_000_000
PACKAGES = {"openmpi": "libopenmpi-dev openmpi-bin", "mpich": "libmpich-dev mpich"}


def remote(lab):
    return " ".join(lab.command) + " --on"


def on_host0(lab, script, *words, **kwargs):
    """The output of `script` on host 0, and the report."""
    done, report = lab.json(*words, "--launcher", "--", "sh", "-c", script, **kwargs)
    return done.stderr.splitlines(), report, done


def test_launcher_runs_once_on_host_0_and_is_no_rank(lab, monkeypatch):
    monkeypatch.setenv("RANK", "7")  # from the environment of the lab
    script = 'hostname; echo ${RANK-none} ${WORLD_SIZE-none} $MASTER_ADDR $LACONIC_LAB; exit 3'
    lines, report, done = on_host0(lab, script, "--hosts", "3", "--per-host", "2")
    assert lines == ["host0", "none none 10.77.0.1 kernel"]
    assert done.returncode == 1
    assert report["launcher"] == {"exit": 3, "signal": None} and report["per_rank"] == []
    assert report["error"]["message"] == "COMMAND failed (exit 3)"
    assert [host["address"] for host in report["per_host"]] == ["10.77.0.1", "10.77.0.2", "10.77.0.3"]
    assert "rank" not in report["per_host"][0]
    plain = lab.run("--hosts", "3", "--per-host", "2", "--launcher", "--", "sh", "-c", script)
    assert "3 hosts of 2 slots" in plain.stderr and plain.stdout.startswith("host0\n")


def test_launcher_has_its_own_logs(lab, tmp_path):
    lab.run("--launcher", "--logs", str(tmp_path), "--", "sh", "-c", "echo out; echo err >&2")
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {
        "launcher.out": "out\n", "launcher.err": "err\n"}


@pytest.mark.parametrize("name", ["host1", "10.77.0.2"])
def test_lab_on_enters_host(lab, name, tmp_path):
    kinds = "for k in net uts ipc mnt pid; do readlink /proc/self/ns/$k; done"
    enter = f"{remote(lab)} {name}"
    script = f"""
cd {tmp_path}
{kinds}
{enter} -- '{kinds}'
{enter} 'hostname; pwd; cat /dev/shm/mine 2>&1 | head -1; echo mine > /dev/shm/mine; cat'  < /etc/hostname
{enter} cat /dev/shm/mine
{enter} cat /proc/self/status | grep Cpus_allowed_list
"""
    lines, _, done = on_host0(lab, script)
    assert done.returncode == 0, done.stderr
    here, there = lines[:5], lines[5:10]
    assert all(a != b for a, b in zip(here[:4], there[:4])) and here[4] == there[4]
    cores = sorted(os.sched_getaffinity(0))
    assert lines[10:] == ["host1", str(tmp_path), "cat: /dev/shm/mine: No such file or directory",
                          pathlib.Path("/etc/hostname").read_text().strip(), "mine",
                          f"Cpus_allowed_list:\t{cores[1 % len(cores)]}"]


def test_lab_on_takes_words_like_ssh(lab):
    script = f"""
{remote(lab)} host1 echo 'a   b' '$(hostname)' --json --hosts 9
{remote(lab)} host1 'exit 7'; echo $?
{remote(lab)} host1 'kill -9 $$'; echo $?
"""
    lines, _, _ = on_host0(lab, script)
    assert [line for line in lines if "Killed" not in line] == ["a b host1 --json --hosts 9", "7", "137"]


def test_lab_on_works_from_every_rank_of_any_lab(lab):
    lines, _, done = lab.python(f"import os; os.system('{remote(lab)} host0 hostname')", "--hosts", "3")
    assert lines == {rank: ["host0"] for rank in range(3)}, done.stderr


def test_lab_on_refuses_with_message(lab, any_lab, tmp_path):
    def error(command, **variables):
        without = {k: v for k, v in os.environ.items() if k != "LACONIC_LAB_CONTROL"}
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=280,
                              env={**without, **variables})
        assert done.stdout == "" and done.returncode in (1, 2)
        return done.stderr.splitlines()

    on = remote(lab)
    for words in ("--on host1 true", "--send status"):
        assert error(" ".join([*lab.command, words])) == [
            "laconic lab: LACONIC_LAB_CONTROL is not set", f"  {words.split()[0]} works inside a lab only"]
    [ended, hint] = error(f"{on} host1 true", LACONIC_LAB_CONTROL=str(tmp_path / "gone"))
    assert ended == f"laconic lab: no lab answers at {tmp_path}/gone: No such file or directory"
    assert "running lab" in hint
    assert error(f"{on} host1")[0] == "laconic lab: there is no COMMAND"
    assert error(f"{on} '' true")[0] == "laconic lab: --on lacks the name of a host"
    lines, _, _ = on_host0(lab, f"{on} host2 true; {on} 10.77.0.9 true; {on} -- true")
    assert lines[:4] == ["laconic lab: there is no host 'host2'", "  this lab has host0 to host1",
                         "laconic lab: there is no host '10.77.0.9'", "  this lab has host0 to host1"]
    assert "--on" in lines[4]
    emulated = any_lab.run("--emulate", "--hosts", "1", "--", "sh", "-c", f"{on} host0 true")
    assert "an emulated lab has no hosts to enter" in emulated.stderr and emulated.returncode == 1


def test_ended_lab_cannot_be_entered(lab):
    # Its socket is gone with it: the name is that of the machine's own /dev/shm.
    lines, _, _ = on_host0(lab, "echo $LACONIC_LAB_CONTROL")
    done = lab.run("--on", "host0", "true", prefix=["env", f"LACONIC_LAB_CONTROL={lines[0]}"])
    assert done.returncode == 1 and "no lab answers" in done.stderr


def test_plain_user_enters_hosts_too(lab, plain_user):
    lines, report, done = on_host0(lab, f"{remote(lab)} host1 hostname", prefix=plain_user)
    assert lines == ["host1"], done.stderr
    assert report["isolation"] == "user namespace"


# ---- the MPIs -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session", params=PACKAGES)
def mpi(request, tmp_path_factory):
    """(mpirun, program) of one MPI."""
    compiler, mpirun = f"mpicc.{request.param}", f"mpirun.{request.param}"
    for program in (compiler, mpirun):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not here: apt install {PACKAGES[request.param]}")
    program = tmp_path_factory.mktemp(request.param) / "mpi_send"
    source = pathlib.Path(__file__).with_name("mpi_send.c")
    subprocess.run([compiler, "-O1", "-o", program, source], check=True)
    return mpirun, str(program)


def run_mpi(lab, mpi, tmp_path, words, ranks, count):
    mpirun, program = mpi
    done, report = lab.json("--timeout", "150s", *words, "--launcher", "--", mpirun, "-n", str(ranks), program,
                            str(count), str(tmp_path))
    assert done.returncode == 0, done.stderr
    # Hydra may put the lines of two ranks into one, followed by both line ends.
    found = re.findall(r"rank (\d+) of (\d+) on (\w+) with (\d+), (\d+) cores from (\d+): ([\d.]+) s", done.stderr)
    assert len(found) == ranks, done.stderr
    ranks = sorted((int(r), int(n), host, int(local), (int(cores), int(core)), float(s))
                   for r, n, host, local, cores, core, s in found)
    return ranks, report


def test_mpirun_reaches_four_hosts_through_their_links(lab, mpi, tmp_path, monkeypatch):
    # Settings of the machine's own network do not hold in the lab's.
    for name, value in {"OMPI_MCA_plm": "slurm", "OMPI_MCA_btl": "self,vader", "OMPI_MCA_btl_tcp_if_include": "eno7",
                        "OMPI_MCA_oob_tcp_if_include": "eno7", "OMPI_MCA_pml": "cm", "HYDRA_LAUNCHER": "slurm",
                        "HYDRA_IFACE": "eno7", "UCX_TLS": "self,posix", "UCX_NET_DEVICES": "eno7"}.items():
        monkeypatch.setenv(name, value)
    ranks, report = run_mpi(lab, mpi, tmp_path, ["--hosts", "4", "--rate", "20mbit"], 4, MEGABYTE)
    assert [rank[:4] for rank in ranks] == [(r, 4, f"host{r}", 1) for r in range(4)]
    cores = sorted(os.sched_getaffinity(0))
    assert [rank[4] for rank in ranks] == [(1, cores[r % len(cores)]) for r in range(4)]
    assert ranks[3][5] > MEGABYTE * 8 / 20e6 / 2  # a transfer takes as long as the rate says
    first, *bystanders, last = report["per_host"]
    wire = MEGABYTE / PER_PACKET
    for bytes_seen in (first["tx_bytes"], last["rx_bytes"]):
        assert wire <= bytes_seen <= 1.4 * wire
    for host in bystanders:
        assert host["tx_bytes"] < 0.3 * wire and host["rx_bytes"] < 0.3 * wire
    assert report["launcher"] == {"exit": 0, "signal": None}


def test_slots_keep_the_ranks_of_a_host_together(lab, mpi, tmp_path):
    ranks, report = run_mpi(lab, mpi, tmp_path, ["--hosts", "2", "--per-host", "2"], 4, MEGABYTE)
    assert [rank[:4] for rank in ranks] == [(r, 4, f"host{r // 2}", 2) for r in range(4)]
    assert report["per_host"][0]["tx_bytes"] > MEGABYTE


def launched(name, marker):
    """Processes of a program `name` whose command line contains `marker`."""
    found = []
    for pid in processes_with(marker):
        with contextlib.suppress(OSError):  # it has just ended
            if name in pathlib.Path(f"/proc/{pid}/comm").read_text():
                found.append(pid)
    return found


@pytest.fixture
def waiting(lab, mpi):
    """A lab whose four ranks wait on four hosts: its Popen, and the program's path, by which they are found."""
    mpirun, program = mpi
    folder = tempfile.mkdtemp()  # where sessions of Open MPI would be
    process = lab.start("--hosts", "4", "--json", "--timeout", "150s", "--launcher", "--",
                        mpirun, "-n", "4", program, "wait", env={"TMPDIR": folder})
    seen = 0
    while seen < 4:
        line = process.stdout.readline()
        assert line, "the lab ended before its ranks were up"
        seen += line.count("up")
    assert len(launched("mpi_send", program)) == 4
    yield process, program
    process.kill()
    process.wait()
    process.stdout.close()
    assert eventually(lambda: not processes_with(program)), "processes are left"
    os.rmdir(folder)  # nothing is in it


def rest(process):
    """The report of a lab that ends by itself."""
    text = process.communicate(timeout=200)[0]
    return json.loads(text[text.index("{\n"):])


def test_killed_lab_ends_all_ranks(waiting):
    process, program = waiting
    process.kill()
    assert eventually(lambda: not processes_with(program))


@pytest.mark.parametrize("stopped", [False, True])
def test_killed_mpirun_ends_all_ranks_and_lab(waiting, stopped):
    process, program = waiting
    for pid in launched("mpi_send", program) if stopped else []:
        os.kill(pid, signal.SIGSTOP)
    for name in ("mpirun", "mpiexec", "orterun"):
        for pid in launched(name, program):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    report = rest(process)
    assert report["launcher"] == {"exit": None, "signal": "SIGKILL"}
    assert "COMMAND failed (SIGKILL)" in report["error"]["message"]
    assert eventually(lambda: not processes_with(program))


def test_ctrl_c_ends_all_ranks(waiting):
    process, program = waiting
    process.send_signal(signal.SIGINT)
    report = rest(process)
    assert process.returncode == 1 and "interrupted by SIGINT" in report["error"]["message"]
    assert eventually(lambda: not processes_with(program))


def test_killed_rank_ends_the_job(waiting):
    process, program = waiting
    os.kill(launched("mpi_send", program)[-1], signal.SIGKILL)
    report = rest(process)
    assert process.returncode == 1 and report["launcher"] != {"exit": 0, "signal": None}
    assert eventually(lambda: not processes_with(program))
