# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""examples/sharded.cc as a user starts it: over both MPIs and over Gloo. Its threads are a test of their own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("LACONIC_BUILD", ROOT / "build" / "release"))
sys.path.insert(0, str(ROOT / "tests" / "support"))

from mpi_launchers import ENVIRONMENT, GLOO, LAUNCHERS, MPICH, OPENMPI, need_library  # noqa: E402

RANKS = 3


def program(engine):
    return BUILD / "bin" / f"example_sharded_{engine}"


def expect_equal_weights(printed):
    for optimizer in ("momentum", "AdamW"):
        found = re.findall(rf"{optimizer}, rank (\d) of {RANKS}: loss [\d.]+ -> [\d.]+, weights (\S+)", printed)
        assert sorted(rank for rank, _ in found) == [str(rank) for rank in range(RANKS)], printed
        assert len({weights for _, weights in found}) == 1, printed


@pytest.mark.parametrize("library", [OPENMPI, MPICH])
def test_sharded_example_over_mpi_learns_equal_weights(library):
    need_library(library, program(library))
    done = subprocess.run([*LAUNCHERS[library], "-n", str(RANKS), program(library)], env=ENVIRONMENT, capture_output=True,
                          text=True, timeout=280, check=True)
    expect_equal_weights(done.stdout)


def test_sharded_example_over_gloo_learns_equal_weights(tmp_path):
    need_library(GLOO, program(GLOO))
    ranks = [subprocess.Popen([program(GLOO), str(rank), str(RANKS), f"file:{tmp_path}"], stdout=subprocess.PIPE, text=True)
             for rank in range(RANKS)]
    printed = [rank.communicate(timeout=280)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * RANKS, printed
    expect_equal_weights("".join(printed))
