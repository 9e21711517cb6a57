# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The tests of sharded training with the newest torch, whose private names they depend on. Needs build/venv-newest, which is not pinned:

    python3 -m venv build/venv-newest && build/venv-newest/bin/pip install torch numpy pytest
"""

import re
import subprocess
import sys
from pathlib import Path

from _launch import SKIPPED, check

NEEDS = []
ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / "build" / "venv-newest" / "bin" / "python"
FILES = ("", "_codecs", "_failures", "_guide", "_settings", "_state")

if __name__ == "__main__":
    if not PYTHON.exists():
        print("there is no build/venv-newest with the newest torch")
        sys.exit(SKIPPED)
    tests = [ROOT / "python" / "tests" / f"test_fsdp{name}.py" for name in FILES]
    done = subprocess.run([PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests], cwd=ROOT, env={"PYTHONPATH": str(ROOT / "python")}, check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(done.stdout)
    torch = subprocess.run([PYTHON, "-c", "import torch; print(torch.__version__)"], check=True, capture_output=True, text=True).stdout.strip()
    passed = re.search(r"(\d+) passed", done.stdout)
    check(done.returncode == 0 and "skipped" not in done.stdout and passed is not None, f"torch {torch}: {passed[1] if passed else 'no'} tests pass")
