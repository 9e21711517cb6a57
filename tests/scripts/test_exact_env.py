# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""tests/install/exact_env.py: its environment holds what pip would install, and nothing else."""

import importlib.util
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[1] / "install" / "exact_env.py"
spec = importlib.util.spec_from_file_location("exact_env", TOOL)
exact_env = importlib.util.module_from_spec(spec)
spec.loader.exec_module(exact_env)


def test_requirements_of_torch_are_included():
    pytest.importorskip("torch")
    names = exact_env.closure(["laconic[torch]"], exact_env.of_checkout())
    assert {"laconic", "torch", "sympy", "mpmath", "filelock"} <= names  # mpmath by way of sympy
    assert not {"numpy", "pytest", "scikit-learn"} & names
    assert exact_env.closure(["laconic"], exact_env.of_checkout()) == {"laconic"}
    assert {"numpy", "scikit-learn"} <= exact_env.closure(["laconic[dev]"], exact_env.of_checkout())


@pytest.mark.parametrize(("wanted", "why"), [("no-such-package-of-ours", "not installed for"), ("pytest<1", "is .* here")])
def test_missing_packages_are_reported(wanted, why):
    with pytest.raises(SystemExit, match=why):
        exact_env.closure([wanted], [])


def test_environment_holds_exactly_requirements(tmp_path):
    done = subprocess.run([sys.executable, TOOL, tmp_path / "venv", "laconic", "pytest"], capture_output=True, text=True, check=True)
    names = set(done.stdout.split(": ")[1].strip().split(", "))
    program = ("import importlib.metadata as m, importlib.util as u; import laconic, pytest; print(*(d.metadata['Name'] for d in "
               "m.distributions())); print(*filter(u.find_spec, ['numpy', 'torch', 'coverage', 'pip', 'packaging']))")
    found = subprocess.run([tmp_path / "venv/bin/python", "-c", program], capture_output=True, text=True, check=True)
    listed, importable = found.stdout.splitlines()
    assert {exact_env.canonicalize_name(name) for name in listed.split()} == names - {"laconic"}
    assert importable == "packaging"
    version = subprocess.run([tmp_path / "venv/bin/pytest", "--version"], capture_output=True, text=True, check=True)
    assert metadata.version("pytest") in version.stdout + version.stderr


def test_wheel_names_its_own_requirements(tmp_path):
    wheel = tmp_path / "laconic-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("laconic-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: laconic\nVersion: 1.0\n"
                         'Requires-Dist: pluggy ; extra == "torch"\nRequires-Dist: numpy ; python_version < "3"\n')
    of_wheel = exact_env.of_wheel(wheel)
    assert exact_env.closure(["laconic[torch]"], of_wheel) == {"laconic", "pluggy"}
    assert exact_env.closure(["laconic"], of_wheel) == {"laconic"}


def test_non_environment_folder_stays(tmp_path):
    (tmp_path / "precious").touch()
    with pytest.raises(SystemExit, match="no environment"):
        exact_env.make(tmp_path, ["pytest"], None)
    assert (tmp_path / "precious").exists()


def test_packages_sharing_a_folder_are_taken_together(tmp_path, monkeypatch):
    for name in ("one", "two"):
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "RECORD").write_text(f"shared/{name}.py,,\n{info.name}/METADATA,,\n")
    monkeypatch.setattr(exact_env.metadata, "distributions", lambda: metadata.Distribution.discover(path=[str(tmp_path)]))
    (tmp_path / "site").mkdir()
    with pytest.raises(SystemExit, match="shared by one, two"):
        exact_env.link({"one"}, tmp_path / "site", tmp_path)
    exact_env.link({"one", "two"}, tmp_path / "site", tmp_path)
    assert (tmp_path / "site" / "shared").readlink() == tmp_path / "shared"
