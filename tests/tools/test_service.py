# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""contrib/laconic-serve.service: the command accepts its arguments and starts with them; systemd knows its keys."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
UNIT = ROOT / "contrib" / "laconic-serve.service"
BINARY = Path(os.environ.get("LACONIC_CLI", ROOT / "build" / "release" / "bin" / "laconic"))


def command_line():
    return re.search(r"^ExecStart=(.+)$", UNIT.read_text(encoding="utf-8"), re.M)[1].split()


def test_token_is_a_credential():
    text = UNIT.read_text(encoding="utf-8")
    name = re.search(r"^LoadCredential=([\w.]+):", text, re.M)[1]
    assert f"--token %d/{name}" in text
    assert not re.search(r"^(User=root|AmbientCapabilities)", text, re.M)


@pytest.mark.skipif(not BINARY.exists(), reason=f"{BINARY} is not built")
def test_command_takes_its_options(tmp_path):
    program, command, *words = command_line()
    assert Path(program).name == "laconic" and command == "serve"
    known = subprocess.run([BINARY, "serve", "--help"], capture_output=True, text=True, timeout=280).stdout
    for option in (word for word in words if word.startswith("-")):
        assert re.search(rf"^\s+{option}\b", known, re.M), option
    has_metrics = json.loads(subprocess.run([BINARY, "serve", "--check", "--json"], capture_output=True, text=True,
                                            timeout=280).stdout)["metrics"]["works"]
    subprocess.run([BINARY, "serve", "--new-token", tmp_path / "job.token"], check=True, capture_output=True, timeout=280)
    here = {"0.0.0.0:7420": "127.0.0.1:0", "127.0.0.1:9420": "127.0.0.1:0", "%d/job.token": str(tmp_path / "job.token")}
    assert set(here) <= set(words)
    words = [here.get(word, word) for word in words]
    if not has_metrics:
        at = words.index("--metrics")
        del words[at:at + 2]
    with subprocess.Popen([BINARY, "serve", *words], stdout=subprocess.PIPE, text=True) as process:
        said = json.loads(process.stdout.readline())
        process.terminate()
        assert process.wait(100) == 0
    assert said["token"] and ("metrics" in said) == has_metrics


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_accepts_unit_keys():
    done = subprocess.run(["systemd-analyze", "verify", UNIT], capture_output=True, text=True, timeout=280)
    assert not re.search(r"Unknown (key|section|lvalue)|Failed to parse", done.stdout + done.stderr), done.stderr
