# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""CONTRIBUTING.md's worked example: a codec is a folder and a line, its kernels another one, and the whole suite follows from it.

The example is built in a copy of the sources and linked with the objects of the conformance suite as they are: what
was compiled before the codec existed must find it.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_kernels import kernels as kernels_script

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("LACONIC_BUILD", ROOT / "build" / "release"))
NAME, TYPE = "example_sign", "ExampleSign"
KERNELS = [f"{TYPE}{what}" for what in ("Encode", "Check", "Decode")]


@pytest.fixture
def tree(tmp_path):
    """The files that the script needs, and nothing else."""
    for module in ("codecs", "kernels"):
        shutil.copytree(ROOT / "src" / module, tmp_path / "src" / module)
    shutil.copytree(ROOT / "scripts" / "templates", tmp_path / "scripts" / "templates")
    shutil.copy(ROOT / "scripts" / "new_codec", tmp_path / "scripts" / "new_codec")
    return tmp_path


def new_codec(tree, *arguments):
    return subprocess.run([sys.executable, tree / "scripts" / "new_codec", *arguments], capture_output=True, text=True)


def register(tree):
    """The lines (and the includes that they need), as the script's answer says."""
    path = tree / "src" / "codecs" / "registry" / "codec_list.h"
    text = path.read_text()
    text = text.replace("\nnamespace laconic::codecs {", f'#include "codecs/{NAME}/{NAME}.h"\n\nnamespace laconic::codecs {{', 1)
    text = re.sub(r"using CodecList = TypeList<([^>]*)>", rf"using CodecList = TypeList<\1, {TYPE}>", text)
    path.write_text(text)
    path = tree / "src" / "kernels" / "kernel_list.h"
    text = path.read_text().replace("\n#define", f'#include "kernels/{NAME}/{NAME}_device.h"\n\n#define', 1)
    lines = "".join(f"  X({kernel}) \\\n" for kernel in KERNELS)
    path.write_text(text.replace("LACONIC_FOR_EACH_KERNEL(X) \\\n", f"LACONIC_FOR_EACH_KERNEL(X) \\\n{lines}"))


def test_new_codec_writes_files_and_names_line(tree):
    done = new_codec(tree, NAME)
    assert done.returncode == 0, done.stderr
    assert "codec_list.h" in done.stdout and TYPE in done.stdout
    assert all(f"X({kernel})" in done.stdout for kernel in KERNELS)
    for path in (f"src/codecs/{NAME}/{NAME}.h", f"src/codecs/{NAME}/{NAME}.cc", f"src/codecs/{NAME}/{NAME}_device.cc",
                 f"src/kernels/{NAME}/{NAME}_elements.h", f"src/kernels/{NAME}/{NAME}_device.h", f"docs/format/codecs/{NAME}.md"):
        text = (tree / path).read_text()
        assert "@" not in text, path
    number = int(re.search(rf'"{NAME}", (\d+)', (tree / f"src/codecs/{NAME}/{NAME}.h").read_text())[1])
    for header in (ROOT / "src" / "codecs").rglob("*.h"):
        assert f", {number}, " not in "".join(re.findall(r'CodecInfo info\{[^}]*\}', header.read_text()))


@pytest.mark.parametrize("name", ["", "Sign", "2bit", "a-b", "a b", "-x", "../x"])
def test_new_codec_refuses_names_invalid_in_specs(tree, name):
    assert new_codec(tree, name).returncode == 2
    assert new_codec(tree).returncode == 2


def test_new_codec_refuses_to_overwrite(tree):
    assert new_codec(tree, NAME).returncode == 0
    again = new_codec(tree, NAME)
    assert again.returncode == 1 and "exists" in again.stderr


def compile_command(source):
    for entry in json.loads((BUILD / "compile_commands.json").read_text()):
        if entry["file"] == str(ROOT / source):
            return shlex.split(entry["command"])
    raise AssertionError(f"{source} is not in compile_commands.json")


def compile_in(tree, source, like):
    """As the build compiles `like`, but with the copy's headers in front."""
    command = compile_command(like)
    output = tree / (Path(source).stem + ".o")
    command[command.index("-o") + 1] = str(output)
    command[-1] = str(tree / source)
    first_include = next(i for i, word in enumerate(command) if word.startswith("-I"))
    command.insert(first_include, f"-I{tree / 'src'}")
    command = [word for i, word in enumerate(command)
               if not word.startswith("-MD") and "-MF" not in command[max(0, i - 1):i + 1]
               and "-MT" not in command[max(0, i - 1):i + 1]]
    subprocess.run(command, check=True, cwd=tree)
    return output


def link_with(tree, objects):
    lines = subprocess.run(["ninja", "-C", BUILD, "-t", "commands", "test_conformance"], check=True, capture_output=True,
                           text=True).stdout.splitlines()
    link = next(line for line in reversed(lines) if " -o bin/test_conformance " in line)
    binary = tree / "test_conformance"
    link = link.replace(" -o bin/test_conformance ", f" {' '.join(map(str, objects))} -o {binary} ")
    subprocess.run(link, shell=True, check=True, cwd=BUILD)
    return binary


@pytest.mark.skipif(not (BUILD / "bin" / "test_conformance").exists(), reason=f"{BUILD} has no test_conformance")
def test_worked_example_passes_conformance_suite(tree):
    assert new_codec(tree, NAME).returncode == 0
    register(tree)
    shutil.copy(ROOT / "tests" / "support" / "checked_device.cc", tree / "checked_device.cc")
    objects = [compile_in(tree, source, like) for source, like in (
        ("src/codecs/registry/registry.cc", "src/codecs/registry/registry.cc"),
        (f"src/codecs/{NAME}/{NAME}.cc", "src/codecs/registry/registry.cc"),
        (f"src/codecs/{NAME}/{NAME}_device.cc", "src/codecs/registry/registry.cc"),
        ("checked_device.cc", "tests/support/checked_device.cc"))]
    binary = link_with(tree, objects)
    done = subprocess.run([binary, f"--gtest_filter=*/{NAME}*"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:]
    assert int(re.search(r"(\d+) tests? from", done.stdout)[1]) > 50
    assert re.search(rf"OK.*DeviceLaw.EncodingEqualsCpu/{NAME}", done.stdout)
    assert re.search(rf"OK.*DeviceLaw.DecodingEqualsCpu/{NAME}", done.stdout)


@pytest.mark.skipif(kernels_script.tool("nvcc") is None, reason="no nvcc")
def test_kernels_of_worked_example_compile_for_gpus(tree, tmp_path, monkeypatch):
    assert new_codec(tree, NAME).returncode == 0
    register(tree)
    for folder in ("src/device", "src/base", "include"):
        shutil.copytree(ROOT / folder, tree / folder)
    monkeypatch.setattr(kernels_script, "ROOT", tree)
    monkeypatch.setattr(kernels_script, "KERNELS", tree / "src" / "kernels")
    _, ptx = kernels_script.ptx_of(kernels_script.tool("nvcc"), tmp_path)
    assert kernels_script.faults_of_ptx(ptx, kernels_script.listed(tree)) == []
