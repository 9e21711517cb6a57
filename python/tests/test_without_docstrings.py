# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""python -OO: no docstrings, no assertions."""

from __future__ import annotations

import subprocess
import sys

import pytest
from launches import environment_for

pytest.importorskip("torch")

HELP = """
import runpy, sys
for module, *arguments in (("run", "--help"), ("doctor", "--help"), ("selftest", "--help"), ("run", "-m", "this_is_the_script")):
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(f"laconic.{module}", run_name="__main__")
    except SystemExit as ended:
        print(f"{module} ends with {ended.code}")
"""


def test_commands_run_without_docstrings(tmp_path):
    (tmp_path / "this_is_the_script.py").write_text("print('the script', __debug__)")
    done = subprocess.run([sys.executable, "-OO", "-c", HELP], cwd=tmp_path, env=environment_for(LACONIC_LOG="error"), capture_output=True,
                          text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    for module, words in (("run", "attaches laconic"), ("doctor", "Is everything here"), ("selftest", "up to which link")):
        assert f"usage: python -m laconic.{module}" in done.stdout and f"{module} ends with 0" in done.stdout
        assert words in " ".join(done.stdout.split())
    assert done.stdout.endswith("the script False\n")
