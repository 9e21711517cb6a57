# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""docs/guide/clusters.md: launchers over two hosts of the lab, and by their variables alone."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import laconic
from laconic import doctor
from laconic.core import environment
from laconic.core._lib import lib
from laconic.engines import plugin
from laconic.exchange import staging
from laconic.launch import together

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "guide" / "clusters.md").read_text(encoding="utf-8")
TORCHRUN = "torchrun --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint HOST0:29400 --rdzv-id job -m laconic.doctor"
#: the doctor on a host whose name is loopback, as Debian installs it, and whose user has chosen no interface; then ranks on hosts in turn
DEBIAN = """
import contextlib, ctypes, os, runpy, socket, sys

del os.environ["GLOO_SOCKET_IFNAME"]
assert ctypes.CDLL(None).unshare(0x04000000) == 0  # CLONE_NEWUTS
socket.sethostname("localhost")
with contextlib.suppress(SystemExit):
    runpy.run_module("laconic.doctor", run_name="__main__", alter_sys=True)

import torch
import torch.distributed as dist
import laconic

os.environ["GLOO_SOCKET_IFNAME"] = "eth0"  # for torch's own groups
os.environ["RANK"] = {"1": "2", "2": "1"}.get(os.environ["RANK"], os.environ["RANK"])
dist.init_process_group("gloo")
socket.sethostname(f"of_{dist.get_rank() % 2}")
for name, ranks in (("turns", [0, 1, 2, 3]), ("uneven", [0, 1, 2]), ("alone", [0, 1])):
    group = dist.new_group(ranks)
    if dist.get_rank() in ranks:
        ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(80, 80), process_group=group)
        handle = laconic.attach(ddp, "3lc", nodes="auto" if name == "uneven" else "on", quiet=True)
        for _ in range(2):
            ddp(torch.randn(4, 80, dtype=torch.float32, device="cpu")).square().mean().backward()
        told = handle.describe()
        handle.close()
        sums = [torch.zeros_like(ddp.module.weight.grad) for _ in ranks]
        dist.all_gather(sums, ddp.module.weight.grad, group=group)
        if dist.get_rank() == 0:
            print(name, all(torch.equal(sums[0], one) for one in sums), told, flush=True)
"""


def lab(tmp_path, *words, **variables):
    """What COMMAND says on two hosts of `laconic lab`."""
    command = os.environ.get("LACONIC_BIN") or ROOT / "build/release/bin/laconic"
    if not os.access(command, os.X_OK):
        pytest.skip("the laconic command is not built")
    if subprocess.run([command, "lab", "--check"], capture_output=True, check=False).returncode != 0:
        pytest.skip("laconic lab cannot run here: laconic lab --check")
    clean = {k: v for k, v in os.environ.items() if not k.startswith("LACONIC_") or k == "LACONIC_LIBRARY"}
    paths = os.pathsep.join([str(tmp_path), str(Path(laconic.__file__).parents[1])])
    done = subprocess.run([command, "lab", "--hosts", "2", "--timeout", "250s", *words], capture_output=True, text=True, timeout=280, check=False,
                          env={**clean, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **variables})
    assert done.returncode == 0, done.stdout + done.stderr
    return {line.split()[0]: line.split(None, 1)[1] for line in (line.partition("] ")[2] or line for line in done.stdout.splitlines()) if line[:1].isalpha() or line[:1] == "["}


def test_torchrun_meets_over_two_hosts(tmp_path):
    """The page's command, where the name of every host is loopback."""
    pytest.importorskip("torch")
    assert TORCHRUN in PAGE
    (tmp_path / "debian.py").write_text(DEBIAN)
    words = shlex.split(TORCHRUN.replace("HOST0", "host0").replace("laconic.doctor", "debian"))
    said = lab(tmp_path, "--", sys.executable, "-m", "torch.distributed.run", *words[1:])
    assert said["launcher"] == "torchrun, 4 ranks" and said["nodes"] == "2 hosts of 2 ranks" and said["usable"] == "yes"
    assert said["hosts"] == "localhost: rank 0, 1; localhost: rank 2, 3"
    assert said["interface"] == "localhost: eth0 10.77.0.1; localhost: eth0 10.77.0.2"
    assert "to 1 out of a host, replicas equal" in said["exchange"]
    assert said["turns"].startswith("True 3lc") and "between 2 nodes of 2 ranks, inside them gloo" in said["turns"]
    assert said["uneven"].startswith("True 3lc") and "; nodes: off, of_0 has 2 ranks and of_1 1" in said["uneven"]
    assert said["alone"].startswith("True 3lc") and "; nodes: off, each host has one rank" in said["alone"]


@pytest.mark.parametrize(("mpi", "mpirun"), [("openmpi", "mpirun.openmpi")])
def test_mpirun_meets_over_two_hosts(tmp_path, mpi, mpirun):
    if shutil.which(mpirun) is None or not (Path(lib.path).parent / f"liblaconic_mpi_{mpi}.so").exists():
        pytest.skip(f"{mpirun} or its plug-in is missing")
    said = lab(tmp_path, "--per-host", "2", "--launcher", "--", "env", "-u", "MASTER_ADDR", "-u", "MASTER_PORT", mpirun, "-n", "4", sys.executable, "-m",
               "laconic.doctor")
    assert said["launcher"] == "mpirun of Open MPI, 4 ranks" and said["hosts"] == "host0: rank 0, 1; host1: rank 2, 3"
    assert said["nodes"] == "2 hosts of 2 ranks" and "replicas equal" in said["exchange"] and said["usable"] == "yes"


# ---- by their variables alone ----

OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
SRUN = {"SLURM_PROCID": "9", "SLURM_STEP_NUM_TASKS": "11", "SLURM_NTASKS": "11", "SLURM_LOCALID": "1"}
PMI = {"PMI_RANK": "9", "PMI_SIZE": "11"}
HYDRA = {**PMI, "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "3"}
TORCH = {"RANK": "5", "WORLD_SIZE": "9", "LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "4"}
CASES = {"torchrun": (TORCH, 5, 2, 4, None), "mpirun of Open MPI": (OPEN_MPI, 3, 1, 2, ["openmpi"]), "mpirun of MPICH": (HYDRA, 9, 1, 3, ["mpich"]),
         "another with PMI": (PMI, 9, None, None, ["mpich"]), "srun": (SRUN, 9, 1, None, None), "srun --mpi=pmi2": ({**SRUN, **PMI}, 9, 1, None, ["mpich", "openmpi"]),
         "srun --mpi=pmix": ({**SRUN, "PMIX_RANK": "9"}, 9, 1, None, ["openmpi", "mpich"])}


@pytest.fixture
def launched(monkeypatch):
    """launched(variables): those and no others of a launcher are set."""
    def by(variables):
        for name in [name for name in os.environ if name.startswith(("OMPI_COMM", "PMI", "SLURM_", "MPI_LOCAL", "MASTER_")) or name in TORCH]:
            monkeypatch.delenv(name)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    by({})
    return by


@pytest.mark.parametrize("name", CASES)
def test_launchers_are_known_by_their_variables(launched, monkeypatch, name):
    variables, rank, local_rank, here, mpis = CASES[name]
    launched(variables)
    found = environment.launcher()
    assert found.name == name and [environment.number(v) for v in (found.rank, found.local_rank)] == [rank, local_rank]
    assert environment.number(found.world) in (8, 9, 11) and environment.ranks_here() == here
    assert (None if (mpi := environment.launcher(of_mpi=True)) is None else list(mpi.mpi)) == mpis
    monkeypatch.setattr(staging.os, "sched_getaffinity", lambda pid: set(range(12)))
    assert staging.usable_threads(2, 4) == (12 // here if here else 3)
    row = f"| {name}{', and what sets the same' if name == 'torchrun' else ''} | `{found.rank}` | `{found.world}` | {f'`{found.local_rank}`' if found.local_rank else '–'} | {f'`{found.local_world}`' if here else '–'} |"
    assert row in PAGE


def test_launcher_within_job_of_slurm_counts(launched):
    launched({**SRUN, **OPEN_MPI})
    assert environment.launcher().name == "mpirun of Open MPI" and environment.ranks_here() == 2
    launched({**SRUN, **HYDRA})
    assert environment.launcher().name == "mpirun of MPICH"
    launched({**SRUN, **TORCH})
    assert environment.launcher().name == "torchrun" and environment.launcher(of_mpi=True) is None
    launched({"SLURM_PROCID": "0"})  # of a batch script
    assert environment.launcher() is None is environment.ranks_here()


def test_ranks_that_share_cores_count_for_threads(launched, monkeypatch):
    """Where no launcher tells, and not the number of devices, of which each may see one."""
    monkeypatch.setattr(staging.os, "sched_getaffinity", lambda pid: set(range(16)))
    assert [staging.usable_threads(1, ranks) for ranks in (None, 1, 4, 64)] == [8, 8, 4, 1]
    launched(TORCH)
    assert staging.usable_threads(1, 8) == 4


def test_srun_takes_mpi_that_is_here(launched, monkeypatch, tmp_path):
    monkeypatch.setattr(lib, "path", tmp_path / "liblaconic.so")
    monkeypatch.delenv("LACONIC_MPI_LIB", raising=False)
    launched({**SRUN, **PMI})
    with pytest.raises(laconic.LaconicError, match="the plug-in for MPI under srun --mpi=pmi2 was not found: there is no liblaconic_mpi_mpich.so"):
        plugin.mpi_path()
    (tmp_path / "liblaconic_mpi_openmpi.so").touch()
    assert plugin.mpi_path().endswith("liblaconic_mpi_openmpi.so")
    (tmp_path / "liblaconic_mpi_mpich.so").touch()
    assert plugin.mpi_path().endswith("liblaconic_mpi_mpich.so")
    launched({**SRUN, "PMIX_RANK": "9"})
    assert plugin.mpi_path().endswith("liblaconic_mpi_openmpi.so")


def test_srun_script_maps_variables(tmp_path):
    script = PAGE.partition("#!/bin/sh")[2].partition("```")[0]
    (tmp_path / "ranks.sh").write_text("#!/bin/sh" + script)
    show = "import os, json; print(json.dumps([os.environ[n] for n in ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'MASTER_ADDR', 'MASTER_PORT')]))"
    (tmp_path / "scontrol").write_text('#!/bin/sh\n[ "$*" = "show hostnames node[3-4]" ] && printf "node3\\nnode4\\n"\n')
    (tmp_path / "scontrol").chmod(0o755)
    done = subprocess.run(["sh", tmp_path / "ranks.sh", sys.executable, "-c", show], capture_output=True, text=True, check=True,
                          env={**SRUN, "SLURM_JOB_NODELIST": "node[3-4]", "PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert json.loads(done.stdout) == ["9", "11", "1", "node3", "29500"]


def test_doctor_tries_ranks_that_can_meet(launched):
    launched(TORCH)
    assert together.started_by() is None, "no MASTER_PORT"
    launched({**TORCH, "MASTER_ADDR": "host0", "MASTER_PORT": "1"})
    assert together.started_by().name == "torchrun"
    launched({**TORCH, "WORLD_SIZE": "1", "MASTER_ADDR": "host0", "MASTER_PORT": "1"})
    assert together.started_by() is None
    launched(HYDRA)
    assert together.started_by().name == "mpirun of MPICH"
    launched(SRUN)
    assert together.started_by() is None


def test_uneven_hosts_are_no_nodes():
    def lines(seats):
        cards = [{"host": f"of {seat}", "seat": [seat, ""], "interface": f"at {seat}"} for seat in seats]
        found = {"cards": cards, "ratio": 9.0, "port_ratio": None, "equal": len(seats) < 4}
        return {name: (ok, text) for name, ok, text in together.lines(environment.LAUNCHERS[0], found, "3lc")}

    assert lines("aab")["nodes"] == (None, "none: 2 hosts of 1 to 2 ranks, not as many on each")
    assert lines("aa")["nodes"][1] == "none: 1 host of 2 ranks" and lines("ab")["nodes"][1] == "none: 2 hosts of 1 rank"
    assert lines("aa")["exchange"] == (True, "2 ranks, 3lc: 9.0 to 1, replicas equal")
    differ = lines("abab")
    assert differ["exchange"][0] is False and differ["hosts"][1] == "of a: rank 0, 2; of b: rank 1, 3"
    assert differ["nodes"][1] == "2 hosts of 2 ranks" and differ["interface"][1] == "of a: at a; of b: at b"


def test_doctor_names_rank_that_does_not_come(launched, monkeypatch, capsys):
    pytest.importorskip("torch")
    from ranks import free_port

    monkeypatch.setattr(doctor, "TIMEOUT", 1.0)
    monkeypatch.setattr(doctor.signal, "signal", lambda *_: None)
    launched({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())})
    assert doctor.main([]) == 1
    said = capsys.readouterr().out
    assert "exchange     NO: rank 0 under torchrun, 3lc: RuntimeError: rank 1 did not come in 1 s" in said
