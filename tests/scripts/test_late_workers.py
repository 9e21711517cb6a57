# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""bench/late_workers.py with a few short steps: what it prints. How much a quorum saves is the bench's to say."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BINARY = ROOT / "build" / "release" / "bin" / "laconic"


@pytest.mark.parametrize(("program", "words"), [
    ("echo '{\"error\": \"no such thing\"}'", "no such thing"),
    ("exit 3", "said nothing and ended with status 3"),
    (None, "No such file"),
])
def test_a_server_that_does_not_start_is_said_in_a_line(tmp_path, program, words):
    pytest.importorskip("torch")
    binary = tmp_path / "laconic"
    if program is not None:
        binary.write_text(f"#!/bin/sh\n{program}\n")
        binary.chmod(0o755)
    done = subprocess.run([sys.executable, ROOT / "bench" / "late_workers.py", "--pairs", "1", "--binary", binary], capture_output=True,
                          text=True, timeout=280)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("late_workers.py: no server: ") and words in done.stderr


@pytest.mark.skipif(not BINARY.exists(), reason=f"{BINARY} is not built")
def test_one_pair_of_short_runs():
    pytest.importorskip("torch")
    done = subprocess.run([sys.executable, ROOT / "bench" / "late_workers.py", "--steps", "8", "--pairs", "1", "--compute-ms", "5",
                           "--binary", BINARY], capture_output=True, text=True, timeout=280, check=True)
    found = json.loads(done.stdout)
    (everybody,), (quorum,) = found["ms_a_step"]["quorum 1.0"], found["ms_a_step"]["quorum 0.75"]
    assert everybody >= 5 and quorum >= 5 and found["ratio"] == pytest.approx(quorum / everybody, rel=0.01)
