# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The lab's binary: LACONIC_BIN, or the newest one in build/ that has `lab`."""

import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def _command():
    if given := os.environ.get("LACONIC_BIN"):
        return [given] if given.endswith("laconic-lab") else [given, "lab"]
    places = ("*/laconic-lab", "*/bin/laconic")
    found = [path for place in places for path in ROOT.glob("build/" + place)]
    for path in sorted(found, key=lambda p: p.stat().st_mtime, reverse=True):
        command = [str(path)] if path.name == "laconic-lab" else [str(path), "lab"]
        help_text = subprocess.run([*command, "--help"], capture_output=True).stdout
        if help_text.startswith(b"Runs COMMAND"):
            return command
    return None


class Lab:
    """Runs the lab and reads what it says."""

    def __init__(self, command):
        self.command = command

    def run(self, *words, prefix=(), timeout=200):
        return subprocess.run(
            [*prefix, *self.command, *words],
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def json(self, *words, **kwargs):
        done = self.run("--json", *words, **kwargs)
        return done, json.loads(done.stdout)

    def python(self, code, *words, **kwargs):
        """Every host runs `code`; returns the output lines by rank and the report."""
        done, report = self.json(*words, "--", sys.executable, "-c", code, **kwargs)
        lines = {}
        for line in done.stderr.splitlines():
            if line.startswith("[") and line[1].isdigit():
                rank, text = line[1:].split("] ", 1)
                lines.setdefault(int(rank), []).append(text)
        return lines, report, done

    def start(self, *words, env=None):
        # A child of nohup inherits that SIGHUP is ignored, one of a shell's background job that SIGINT is; and then
        # they rightly stay ignored.
        return subprocess.Popen(
            [*self.command, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, **(env or {})},
            preexec_fn=lambda: [signal.signal(s, signal.SIG_DFL) for s in (signal.SIGHUP, signal.SIGINT)],
        )


@pytest.fixture(scope="session")
def any_lab():
    """The binary alone: for what needs no namespaces."""
    command = _command()
    if command is None:
        pytest.skip("no laconic binary: build one or set LACONIC_BIN")
    return Lab(command)


@pytest.fixture(scope="session")
def lab(any_lab):
    check = any_lab.run("--check", "--json")
    if not json.loads(check.stdout)["usable"]:
        pytest.skip("this machine permits no network namespaces: " + check.stdout)
    return any_lab


@pytest.fixture(scope="session")
def features(lab):
    check = json.loads(lab.run("--check", "--json").stdout)
    return check["root"] or check["user_namespace"]


@pytest.fixture(scope="session")
def plain_user(lab):
    """Prefix of a command with which a plain user runs it."""
    check = json.loads(lab.run("--check", "--json").stdout)["user_namespace"]
    if not check["usable"]:
        pytest.skip(f"plain users can make no lab here, says laconic lab --check: {check}")
    words = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []
    # A shell in between: setpriv itself still finds programs with root's rights.
    done = subprocess.run([*words, "sh", "-c", " ".join([*lab.command, "--help"])], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"a plain user cannot run {lab.command[0]}: {done.stderr.strip()}")
    return words
