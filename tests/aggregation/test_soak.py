# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""`make soak`, for twenty seconds."""

import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).with_name("soak.py")


def test_twenty_seconds_of_soak_pass():
    done = subprocess.run([sys.executable, SOAK, "20"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode == 3:
        pytest.skip(done.stdout)
    assert done.returncode == 0, done.stdout
    assert "all was right" in done.stdout and " worker kills" in done.stdout and " server kills" in done.stdout
