# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""bench/aggregation/late_workers.py with a few short steps: what it prints. How much a quorum saves is the bench's to say."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python" / "tests"))
BINARY = ROOT / "build" / "release" / "bin" / "laconic"


def late_workers(folder, *words):
    pytest.importorskip("torch")
    from launches import program

    return program(["-m", "bench.aggregation.late_workers", *words], folder, cwd=ROOT)


@pytest.mark.parametrize(("program", "words"), [
    ("echo '{\"error\": \"no such thing\"}'", "no such thing"),
    ("exit 3", "said nothing and ended with status 3"),
    (None, "No such file"),
])
def test_server_that_does_not_start_is_one_line(tmp_path, program, words):
    binary = tmp_path / "laconic"
    if program is not None:
        binary.write_text(f"#!/bin/sh\n{program}\n")
        binary.chmod(0o755)
    said = tmp_path / "said"
    said.mkdir()
    done = late_workers(said, "--pairs", "1", "--binary", binary)
    assert done.code == 1 and done.out == ""
    assert done.err.count("\n") == 1 and done.err.startswith("late_workers.py: no server: ") and words in done.err


@pytest.mark.skipif(not BINARY.exists(), reason=f"{BINARY} is not built")
def test_pair_of_short_runs_completes(tmp_path):
    done = late_workers(tmp_path, "--steps", "8", "--pairs", "1", "--compute-ms", "5", "--binary", BINARY)
    assert done.code == 0, done.err
    found = json.loads(done.out)
    (everybody,), (quorum,) = found["ms_a_step"]["quorum 1.0"], found["ms_a_step"]["quorum 0.75"]
    assert everybody >= 5 and quorum >= 5 and found["ratio"] == pytest.approx(quorum / everybody, rel=0.01)
