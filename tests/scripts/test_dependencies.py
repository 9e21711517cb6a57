# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""CMake names all missing system packages in one message."""

import os
import re
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CMAKE, COMPILER, NINJA = (shutil.which(name) for name in ("cmake", "c++", "ninja"))
REQUIRED = re.search(r"^required=\((.*?)\)", (ROOT / "scripts/bootstrap").read_text(encoding="utf-8"), re.M | re.S)[1].split()

pytestmark = pytest.mark.skipif(None in (CMAKE, COMPILER, NINJA), reason="cmake, a compiler and ninja are needed")


def configure(folder, *definitions, **environment):
    command = [CMAKE, "-S", ROOT, "-B", folder / "build", "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={NINJA}",
               *(f"-D{definition}" for definition in definitions)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, **environment)
    errors = re.findall(r"CMake Error.*?\n\n\n", done.stderr + "\n\n\n", re.S)
    return done.returncode, " ".join(" ".join(errors).split()), len(errors)


def hidden(*prefixes):
    return f"CMAKE_CXX_COMPILER={COMPILER}", "CMAKE_IGNORE_PREFIX_PATH=" + ";".join(prefixes)


def test_all_missing_dependencies_are_named_at_once(tmp_path):
    status, said, count = configure(tmp_path, *hidden("/", "/usr", "/usr/local"))
    assert status != 0 and count == 1, said
    for what, package in (("xxHash", "libxxhash-dev"), ("Highway", "libhwy-dev"), ("fmt", "libfmt-dev"), ("CLI11", "libcli11-dev"),
                          ("nlohmann_json", "nlohmann-json3-dev"), ("toml++", "libtomlplusplus-dev"), ("GoogleTest", "libgtest-dev libgmock-dev")):
        assert what in said.partition("Debian")[0] and package in said.partition("apt install")[2], said
    assert set(re.search(r"apt install ([-\w ]+?) The", said)[1].split()) <= set(REQUIRED)
    # The code of all but one goes into what is installed, with its notice.
    compiled_in = set(re.search(r"Laconic needs (.*?)\. Debian", said)[1].split(", ")) - {"GoogleTest"}
    assert compiled_in == set(runpy.run_path(str(ROOT / "tests/install/audit"))["NOTICES"])


def test_installed_and_unused_dependencies_are_not_named(tmp_path):
    status, said, count = configure(tmp_path, "CMAKE_DISABLE_FIND_PACKAGE_fmt=ON", "CMAKE_DISABLE_FIND_PACKAGE_GTest=ON", "BUILD_TESTING=OFF")
    assert status != 0 and count == 1, said
    assert "Laconic needs fmt. " in said and "sudo apt install libfmt-dev The" in said


def test_library_alone_needs_no_packages_of_command(tmp_path):
    status, said, _ = configure(tmp_path, "BUILD_TESTING=OFF", "LACONIC_BUILD_TOOLS=OFF", *(
        f"CMAKE_DISABLE_FIND_PACKAGE_{name}=ON" for name in ("fmt", "CLI11", "nlohmann_json", "GTest")))
    assert status == 0, said


def test_missing_compiler_gives_install_hint(tmp_path):
    kept = {name: value for name, value in os.environ.items() if name != "CXX"}
    hidden_folders = ";".join({*os.environ["PATH"].split(os.pathsep), "/usr/bin", "/bin", "/usr/local/bin"})
    status, said, count = configure(tmp_path, f"CMAKE_IGNORE_PATH={hidden_folders}", env=kept)
    assert status != 0 and count == 1, said
    wanted = re.search(r"apt install ([-\w+ ]+)", said)[1].split()
    assert "g++" in wanted and set(wanted) <= set(REQUIRED)


@pytest.mark.parametrize(("header", "files"), [
    ("nlohmann/", ["tools/json_read.cc"]),
    ("CLI/", ["lab/src/options.cc", "tools/command.cc"]),
    ("toml++/", ["tools/rules_file.cc"]),
])
def test_expensive_headers_are_included_in_one_file_per_program(header, files):
    sources = [file for folder in ("include", "src", "tools", "lab", "bench", "examples", "tests") for file in (ROOT / folder).rglob("*.*")
               if file.suffix in (".h", ".cc")]
    found = [str(file.relative_to(ROOT)) for file in sources if f"#include <{header}" in file.read_text(encoding="utf-8")]
    assert sorted(found) == files


def test_readme_names_same_packages():
    """In its install lines: what CMake names where there is no compiler."""
    named = [set(re.search(r"sudo apt install (g\+\+[-\w+ ]+)", (ROOT / file).read_text(encoding="utf-8"))[1].split())
             for file in ("README.md", "CMakeLists.txt")]
    assert named[0] == named[1] and "libhwy-dev" in named[0]
