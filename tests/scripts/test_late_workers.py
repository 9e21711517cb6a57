# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""bench/late_workers.py with a few short steps: what it prints. How much a quorum saves is the bench's to say."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BINARY = ROOT / "build" / "release" / "bin" / "laconic"


@pytest.mark.skipif(not BINARY.exists(), reason=f"{BINARY} is not built")
def test_one_pair_of_short_runs():
    pytest.importorskip("torch")
    done = subprocess.run([sys.executable, ROOT / "bench" / "late_workers.py", "--steps", "8", "--pairs", "1", "--compute-ms", "5",
                           "--binary", BINARY], capture_output=True, text=True, timeout=120, check=True)
    found = json.loads(done.stdout)
    (everybody,), (quorum,) = found["ms_a_step"]["quorum 1.0"], found["ms_a_step"]["quorum 0.75"]
    assert everybody >= 5 and quorum >= 5 and found["ratio"] == pytest.approx(quorum / everybody, rel=0.01)
