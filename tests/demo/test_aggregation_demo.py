# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""`make demo-aggregation` in miniature, and what it adds to the demo: networks that lose packets, servers next to an
exchange."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

from bench.lib import labels, network, servers
from examples.demo import aggregation as demo
from test_demo import laconic_command  # noqa: E402


def test_network_may_lose_packets():
    assert network.rate_and_loss("100mbit,1%") == ("100mbit", "1%") and network.rate_and_loss("off") == ("off", "0%")
    assert network.rate_text("100mbit,1%") == "100 Mbit/s, 1 % loss" and network.rate_text("100mbit") == "100 Mbit/s"
    with pytest.raises(ValueError, match="'9furlongs' is not a rate"):
        demo.plan_of(demo.options(["--networks", "100mbit 9furlongs,1%"]), demo.SPECS)


def test_servers_position_changes_only_the_label():
    assert labels.label_of("thc:bits=3@hosts") == "Laconic thc:bits=3, a server on each host"
    assert labels.label_of("thc") == "Laconic thc"


def test_kernel_row_appears_if_kernel_supports_it(monkeypatch):
    said = []
    progress = type("Progress", (), {"say": staticmethod(said.append)})
    for why, specs in (("", f"{demo.SPECS} thc@xdp"), ("this needs root", demo.SPECS)):
        monkeypatch.setattr(servers, "why_not_in_the_kernel", lambda _, why=why: why)
        assert demo.specs_of(demo.options([]), "laconic", progress) == specs
    assert said == ["without a program in the switch's kernel: this needs root"]
    assert demo.specs_of(demo.options(["--specs", "thc@switch"]), "laconic", progress) == "thc@switch"
    with pytest.raises(demo.DemoError, match="this needs root"):
        demo.specs_of(demo.options(["--specs", "thc@xdp"]), "laconic", progress)


@pytest.mark.parametrize(("works", "ifb", "why"), [(True, "ifb", ""), (True, None, "this kernel has no ifb"), (False, "ifb", "no program here")])
def test_kernel_server_needs_program_and_shaped_link(tmp_path, works, ifb, why):
    said = {"serve": {"back_ends": [{"io": "mmsg", "works": True}, {"io": "xdp", "works": works, "why": "no program here"}]},
            "lab": {"root": None, "user_namespace": {"xdp_at_switch": ifb}}}
    command = tmp_path / "laconic"
    command.write_text(f"#!{sys.executable}\nimport json, sys\nprint(json.dumps({said}[sys.argv[1]]))\n")
    command.chmod(0o755)
    found = servers.why_not_in_the_kernel(str(command))
    assert found.startswith(why) and bool(found) == bool(why)


def test_model_network_and_seeds_are_chosen():
    given = demo.options(["--model", "gpt", "--networks", "200mbit 1gbit", "--workers", "8", "--seeds", "3", "--specs", "thc@switch int8"])
    plan = demo.plan_of(given, given.specs)
    assert [plan[key] for key in ("model", "networks", "workers", "seeds", "times_only")] == ["gpt", ["200mbit", "1gbit"], 8, [0, 1, 2], False]
    assert demo.run.command_line(given, "make demo-aggregation", demo.options([])) == (
        'make demo-aggregation MODEL="gpt" NETWORKS="200mbit 1gbit" WORKERS="8" SPECS="thc@switch int8" SEEDS="3"')
    with pytest.raises(ValueError, match="no quality to --publish"):
        demo.plan_of(demo.options(["--times-only", "--publish", "docs"]), "int8")


def test_everything_is_measured_and_written(tmp_path):
    if not json.loads(subprocess.run([laconic_command(), "lab", "--check", "--json"], capture_output=True).stdout)["usable"]:
        pytest.skip("this machine permits no network namespaces: laconic lab --check says why")
    out = tmp_path / "out"
    in_kernel = [] if servers.why_not_in_the_kernel(laconic_command()) else ["thc@xdp"]  # root, and a kernel that takes it
    done = subprocess.run([sys.executable, "-m", "examples.demo.aggregation", "--workers", "2", "--specs", " ".join([*in_kernel, "thc@switch", "thc@hosts"]), "--networks", "1gbit,1%",
                           "--steps", "5", "--repeats", "1", "--fast-steps", "2", "--out", out, "--publish", tmp_path / "docs"],
                          cwd=ROOT, capture_output=True, text=True, timeout=600, env={**os.environ, "TMPDIR": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    said = json.loads((out / "aggregation.json").read_text())
    assert [said["about"][spec]["strategy"] for spec in ("thc@switch", "thc@hosts", *in_kernel)] == ["server_sum"] * (2 + len(in_kernel))
    assert said["lab"]["switch"]["rx_bytes"] > 100_000
    page = (tmp_path / "docs/aggregation.md").read_text()
    assert "step times at 1gbit, loss 1%" in page and "| Laconic thc, a server on each host |" in page
    assert len(re.findall(r"^\| Laconic thc, server in the switch \|", page, re.M)) == 1
    rows = re.findall(r"^\| Laconic thc, in the switch's kernel \|", page, re.M)
    assert len(rows) == len(in_kernel)
    assert (tmp_path / "docs/aggregation.svg").read_text().startswith("<svg")
    assert not list(tmp_path.glob("laconic-demo-*"))
