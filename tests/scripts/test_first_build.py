# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""On a bare machine `make demo` and then `make test` compile everything once: ccache comes before the first build, and where it
comes later, a build that began without it goes on without it."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture
def checkout(tmp_path):
    """A checkout of scripts alone, and on the PATH programs of its own: fake(name, what it does)."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "scripts").mkdir()
    for name in ("bootstrap", "build", "ccache.sh", "requirements.txt", "requirements-torch.txt", "requirements-clang-format.txt"):
        shutil.copy(SCRIPTS / name, tmp_path / "scripts")

    def fake(name, does):
        program = tmp_path / "bin" / name
        program.write_text(f"#!/bin/bash\n{does}\n")
        program.chmod(0o755)

    def run(script, *arguments, **variables):
        path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
        others = {name: value for name, value in os.environ.items() if name != "CMAKE_CXX_COMPILER_LAUNCHER"}
        subprocess.run(["bash", f"scripts/{script}", *arguments], cwd=tmp_path, check=True, env={**others, "PATH": path, **variables})

    fake.root, fake.run = tmp_path, run
    return fake


@pytest.mark.parametrize(("begun", "named", "launcher"), [
    (None, None, "ccache"), ("  LAUNCHER = ccache \n", None, "ccache"), ("  FLAGS = -O3\n", None, ""),
    ("  FLAGS = -O3\n", "sccache", "sccache")])
def test_a_build_keeps_the_launcher_it_began_with(checkout, begun, named, launcher):
    checkout("ccache", "true")
    checkout("cmake", 'echo "$1 <${CMAKE_CXX_COMPILER_LAUNCHER-}>" >> calls')
    if begun is not None:
        ninja = checkout.root / "build" / "release" / "build.ninja"
        ninja.parent.mkdir(parents=True)
        ninja.write_text(begun)
    checkout.run("build", "release", "laconic_cli", **({"CMAKE_CXX_COMPILER_LAUNCHER": named} if named else {}))
    assert (checkout.root / "calls").read_text().splitlines()[0] == f"--preset <{launcher}>"


def test_ccache_comes_with_what_the_first_build_needs(checkout):
    checkout("dpkg-query", "false")  # nothing is installed
    checkout("apt-cache", "echo '  Candidate: 1'")
    checkout("apt-get", 'echo "$*" >> calls')
    checkout("sudo", 'if [[ $1 == -n ]]; then shift; fi; "$@"')
    checkout.run("bootstrap", "--required")
    asked, = [line.split() for line in (checkout.root / "calls").read_text().splitlines() if line.startswith("install")]
    assert {"g++", "cmake", "ccache"} <= set(asked) and "mpich" not in asked
