# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""On a bare machine `make demo` and then `make test` compile everything once: ccache comes before the first build, and where it
comes later, a build that began without it goes on without it. Packages that another process keeps from being installed are waited
for, and those that are missing in the end are written down."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
REQUIRED, OPTIONAL = (re.search(rf"^{name}=\((.*?)\)$", (SCRIPTS / "bootstrap").read_text(), re.M | re.S)[1].replace('"', "").split()
                      for name in ("required", "optional"))


@pytest.fixture
def checkout(tmp_path):
    """A checkout of scripts alone, and on the PATH programs of the test: fake(name, what it does)."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "scripts").mkdir()
    for name in ("bootstrap", "build", "wheel", "ccache.sh", "requirements.txt", "requirements-torch.txt", "requirements-clang-format.txt", "requirements-cuda.txt"):
        shutil.copy(SCRIPTS / name, tmp_path / "scripts")

    def fake(name, does):
        program = tmp_path / "bin" / name
        program.write_text(f"#!/bin/bash\n{does}\n")
        program.chmod(0o755)

    def run(script, *arguments, status=0, **variables):
        path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
        others = {name: value for name, value in os.environ.items() if name != "CMAKE_CXX_COMPILER_LAUNCHER"}
        done = subprocess.run(["bash", f"scripts/{script}", *arguments], cwd=tmp_path, check=False, capture_output=True, text=True,
                              env={**others, "PATH": path, **variables})
        assert done.returncode == status, done.stderr
        return done.stderr

    fake.root, fake.run = tmp_path, run
    return fake


@pytest.fixture
def machine(checkout):
    """A checkout on a machine of Debian's, all but its Python: what is installed is in `here`, what apt has in `has`, what it
    cannot install in `broken`; `calls` are those of apt-get, which finds its lock held while there is a file `held`."""
    for name in ("here", "broken", "calls"):
        (checkout.root / name).touch()
    (checkout.root / "has").write_text("\n".join(REQUIRED + OPTIONAL))
    checkout("dpkg-query", 'for name in "${@:3}"; do if grep -qx "$name" here; then echo "installed $name"; fi; done')
    checkout("apt-cache", 'if grep -qx "$2" has; then echo "  Candidate: 1"; fi')
    checkout("apt-get", """
echo "$*" >>calls
if [[ -e held ]]; then echo "E: Could not get lock /var/lib/dpkg/lock. It is held by process 7 (apt-get)"; exit 100; fi
if [[ $1 == install ]]; then
  for name in "${@:4}"; do if grep -qx "$name" broken; then exit 100; fi; done
  printf '%s\n' "${@:4}" >>here
fi""")
    checkout("sudo", 'if [[ $1 == -n ]]; then shift; fi; "$@"')
    checkout("sleep", "echo x >>slept")
    python = checkout.root / ".venv/bin/python"  # whose packages all are there
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/bash\n")
    python.chmod(0o755)
    (checkout.root / ".venv/lib/python3.11/site-packages").mkdir(parents=True)

    def lines(name):
        file = checkout.root / name
        return file.read_text().splitlines() if file.exists() else None

    checkout.lines = lines
    checkout.missing = lambda: lines("build/.bootstrap/missing")
    checkout.installs = lambda: [line.split()[3:] for line in lines("calls") if line.startswith("install")]
    return checkout


@pytest.mark.parametrize(("begun", "named", "launcher"), [
    (None, None, "ccache"), ("  LAUNCHER = ccache \n", None, "ccache"), ("  FLAGS = -O3\n", None, ""),
    ("  FLAGS = -O3\n", "sccache", "sccache")])
def test_build_keeps_its_first_compiler_launcher(checkout, begun, named, launcher):
    checkout("ccache", "true")
    checkout("cmake", 'echo "$1 <${CMAKE_CXX_COMPILER_LAUNCHER-}>" >> calls')
    if begun is not None:
        ninja = checkout.root / "build" / "release" / "build.ninja"
        ninja.parent.mkdir(parents=True)
        ninja.write_text(begun)
    checkout.run("build", "release", "laconic_cli", **({"CMAKE_CXX_COMPILER_LAUNCHER": named} if named else {}))
    assert (checkout.root / "calls").read_text().splitlines()[0] == f"--preset <{launcher}>"


@pytest.mark.parametrize(("named", "taken"), [({}, "c++"), ({"CXX": "clang++"}, "clang++")])
def test_wheel_uses_compiler_of_build(machine, named, taken, monkeypatch):
    """The name counts: to ccache g++, which scikit-build-core takes from Python, is another compiler than c++."""
    monkeypatch.delenv("CXX", raising=False)
    machine("c++", "true")
    (machine.root / ".venv/bin/python").write_text('#!/bin/bash\nif [[ $* == *" wheel "* ]]; then echo "$CXX" >>calls; exit 1; fi\n')
    machine.run("wheel", status=1, **named)
    assert machine.lines("calls") == [taken]


def test_ccache_comes_with_first_build(machine):
    machine.run("bootstrap", "--required")
    [asked] = machine.installs()
    assert {"g++", "cmake", "ccache"} <= set(asked) and "mpich" not in asked


def test_all_optional_packages_install_in_one_call(machine):
    machine.run("bootstrap")
    required, optional = machine.installs()
    assert sorted(required + optional) == sorted({*REQUIRED, *OPTIONAL} - {"clang"})  # clang-14 is there
    assert machine.missing() is None
    machine.run("bootstrap")
    assert len(machine.installs()) == 2


def test_broken_package_is_retried_and_costs_no_other(machine):
    (machine.root / "broken").write_text("libgloo-dev\n")
    assert "going on without: libgloo-dev" in machine.run("bootstrap")
    assert set(OPTIONAL) - set(machine.lines("here")) == {"clang", "libgloo-dev"}
    assert machine.missing() == ["libgloo-dev"]
    (machine.root / "broken").write_text("")
    machine.run("bootstrap")
    assert machine.installs()[-1] == ["libgloo-dev"]
    assert machine.missing() is None


def test_package_unknown_to_apt_is_recorded_and_not_requested(machine):
    (machine.root / "has").write_text("\n".join({*REQUIRED, *OPTIONAL} - {"mpich", "clang-14", "clang"}))
    machine.run("bootstrap")
    assert machine.missing() == ["clang-14", "mpich"]
    calls = len(machine.lines("calls"))
    with (machine.root / "here").open("a") as here:  # from elsewhere
        here.write("mpich\n")
    machine.run("bootstrap")
    assert machine.missing() == ["clang-14"]
    assert len(machine.lines("calls")) == calls


@pytest.mark.parametrize("has_nvcc", [True, False])
def test_nvcc_comes_from_system_or_pip(machine, has_nvcc):
    if has_nvcc:
        machine("nvcc", "true")
        machine("ptxas", "true")
    (machine.root / ".venv/bin/python").write_text('#!/bin/bash\necho "$*" >>pip\n')
    folders = [folder for folder in os.environ["PATH"].split(os.pathsep) if not Path(folder, "nvcc").exists()]
    said = machine.run("bootstrap", "--cuda", PATH=os.pathsep.join([str(machine.root / "bin"), *folders]))
    assert ("nvcc is here" in said) == has_nvcc
    assert any("-r scripts/requirements-cuda.txt" in line for line in machine.lines("pip")) != has_nvcc


def test_held_lock_is_awaited(machine):
    (machine.root / "held").touch()
    machine("sleep", "echo x >>slept; if (($(wc -l <slept) == 3)); then rm held; fi")
    assert machine.run("bootstrap").count("waiting for another process, ten minutes at most: Could not get lock") == 1
    assert len(machine.lines("slept")) == 3
    assert set(REQUIRED) <= set(machine.lines("here")) and machine.missing() is None


@pytest.mark.parametrize(("here", "stamps"), [([], []), (REQUIRED, ["required"])], ids=["required packages", "optional packages"])
def test_lock_held_too_long_is_error_without_stamp(machine, here, stamps):
    (machine.root / "held").touch()
    (machine.root / "here").write_text("".join(f"{name}\n" for name in here))
    said = machine.run("bootstrap", status=1).splitlines()
    assert said[-1] == "bootstrap: gave up waiting: Could not get lock /var/lib/dpkg/lock. It is held by process 7 (apt-get)"
    assert len(machine.lines("slept")) * 10 == 600
    assert [path.name.partition("-")[0] for path in machine.root.glob("build/.bootstrap/*-*")] == stamps


HOLD = "import fcntl, sys; lock = open(sys.argv[1], 'w'); fcntl.lockf(lock, fcntl.LOCK_EX); print(flush=True); "


@pytest.mark.parametrize("lock", ["lists/lock", "dpkg/lock-frontend", "archives/lock"])
def test_every_apt_lock_is_awaited(machine, lock):
    """Calls apt as it is installed here, with the test's own folders."""
    if not (apt := shutil.which("apt-get", path=os.defpath)):
        pytest.skip("no apt here")
    apt_folder = machine.root / "apt"
    for name in ("lists/partial", "archives/partial", "dpkg", "etc"):
        (apt_folder / name).mkdir(parents=True)
    (apt_folder / "dpkg/status").write_text("".join(  # where all is installed, so that apt has nothing to do
        f"Package: {name}\nStatus: install ok installed\nArchitecture: all\nVersion: 1\nMaintainer: x\nDescription: x\n\n"
        for name in REQUIRED))
    (apt_folder / "apt.conf").write_text(
        f'Dir::State "{apt_folder}"; Dir::State::status "{apt_folder}/dpkg/status"; Dir::Cache "{apt_folder}"; Dir::Etc "{apt_folder}/etc";')
    (machine.root / "has").write_text("\n".join(REQUIRED))
    machine("apt-get", f'echo "$*" >>calls; "{apt}" "$@"')
    with subprocess.Popen([sys.executable, "-c", HOLD + "sys.stdin.read()", apt_folder / lock], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE) as holder:
        holder.stdout.readline()
        machine("sleep", f"echo x >>slept; kill {holder.pid}; '{sys.executable}' -c \"{HOLD}\" '{apt_folder / lock}'")
        said = machine.run("bootstrap", "--required", APT_CONFIG=str(apt_folder / "apt.conf"))
    assert said.count(f"Could not get lock {apt_folder / lock}") == 1
    assert machine.lines("slept") == ["x"]
