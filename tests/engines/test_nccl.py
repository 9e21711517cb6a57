# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""NcclEngine over NCCL itself, where it can run: the table that every engine has to pass, and a rank that does not take
part. Ranks that share a GPU pretend to be on different hosts, since NCCL wants another GPU for every rank of a host;
they use sockets then."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from laconic.engines import _nccl

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ.get("LACONIC_BUILD", ROOT / "build" / "release")) / "bin" / "nccl_ranks"


@pytest.fixture(scope="module")
def nccl():
    found = _nccl.find()
    if found.why_not or not found.gpus:
        pytest.skip(f"NCCL cannot run here: {found.why_not or 'no GPU'}")
    return found


def job(folder, nccl, mode, world, limit=300):
    processes = []
    for rank in range(world):
        words = [str(PROGRAM), mode, str(rank), str(world), str(rank % nccl.gpus), nccl.library, str(folder)]
        environment = {**os.environ, "NCCL_SOCKET_IFNAME": "lo"}
        if world > nccl.gpus:
            environment["NCCL_HOSTID"] = f"host-{rank}"
        processes.append(subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    try:
        outputs = [process.communicate(timeout=limit)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    files = [folder / f"{rank}.json" for rank in range(world)]
    assert all(file.exists() for file in files), "\n".join(outputs)
    return [json.loads(file.read_text(encoding="utf-8")) for file in files]


@pytest.mark.parametrize("world", [1, 2, 3])
def test_every_case_of_table_passes(tmp_path, nccl, world):
    for found in job(tmp_path, nccl, "table", world):
        assert "error" not in found, found
        assert found["failures"] == 0 and found["cases"] > 40, found


def test_absent_rank_is_reported(tmp_path, nccl):
    *others, last = job(tmp_path, nccl, "stalls", 3)
    assert (last["first"], last["sum"], last["waited"]) == ("ok", 6.0, True)
    for found in others:
        assert (found["first"], found["sum"]) == ("ok", 6.0)
        assert (found["code"], found["afterwards"]) == ("timed_out", "timed_out"), found
        assert 3 <= found["seconds"] < 20
