#!/usr/bin/env python3
# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Run the marked shell and Python snippets of pages as someone does who has installed the package and nothing else.

usage: tests/install/snippets.py VENV PAGE...

The search path holds VENV/bin and a shell: no compiler, no CMake, no command of this checkout. NumPy must not be there.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "scripts"))

from test_readme import snippets  # noqa: E402

ALONE = """
import importlib.util, laconic
assert "site-packages" in laconic.__file__, laconic.__file__
assert importlib.util.find_spec("numpy") is None, "NumPy is here, so this proves nothing"
"""


def bare_environment(venv, folder):
    tools = folder / ".tools"
    tools.mkdir()
    (tools / "bash").symlink_to(shutil.which("bash"))
    kept = {name: value for name, value in os.environ.items() if name in ("LANG", "LC_ALL", "TMPDIR")}
    path = os.pathsep.join([str(venv / "bin"), str(tools)])
    for absent in ("g++", "c++", "cc", "cmake", "ninja"):
        assert shutil.which(absent, path=path) is None, absent
    return {**kept, "PATH": path, "HOME": str(folder), "OMP_NUM_THREADS": "1"}


def run(what, venv, folder, environment):
    program = [venv / "bin" / "python", "-c"] if what[0] == "python" else [folder / ".tools" / "bash", "-euo", "pipefail", "-c"]
    done = subprocess.run([*program, what[1]], cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{what[1]}\n{done.stdout}\n{done.stderr}\nthis snippet failed")
    return done.stdout


def run_page(page, venv):
    """How many snippets of the page were run, in their order and in one folder."""
    count = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = bare_environment(venv, folder)
        run(("python", ALONE), venv, folder, environment)
        for todo, language, text in snippets(page):
            if todo != "run":
                (folder / todo.split()[1]).write_text(text, encoding="utf-8")
            elif language in ("sh", "python"):
                if not run((language, text), venv, folder, environment):
                    raise SystemExit(f"{text}\nthis snippet shows nothing")
                count += 1
    return count


def main(argv):
    if len(argv) < 3:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    venv = Path(os.path.abspath(argv[1]))
    for page in map(Path, argv[2:]):
        count = run_page(page.resolve(), venv)
        if not count:
            raise SystemExit(f"{page} has no snippet to run")
        print(f"{page}: {count} snippets")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
