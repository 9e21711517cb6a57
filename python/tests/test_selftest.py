# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""`python -m laconic.selftest`: what it prints, and that it notices what is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import test_staging as staged_tests  # noqa: E402
from ranks import Ranks  # noqa: E402

import laconic  # noqa: E402
from laconic import staging  # noqa: E402

pretend = staged_tests.pretend
if why := pretend.why_not():
    pytest.skip(why, allow_module_level=True)
from laconic import selftest  # noqa: E402


def run(*arguments, **variables):
    return subprocess.run([sys.executable, "-m", "laconic.selftest", *arguments], capture_output=True, text=True, timeout=300,
                          env={**os.environ, "OMP_NUM_THREADS": "1", **variables}, check=False)


@pytest.fixture(scope="module")
def with_device(tmp_path_factory):
    """Variables of a process that has the pretend device from torch itself."""
    pretend.library()
    path = os.pathsep.join(filter(None, [pretend.plugged_in(tmp_path_factory.mktemp("device")), os.environ.get("PYTHONPATH")]))
    return {"PYTHONPATH": path}


def checked(report):
    assert set(report) == {"device", "torch", "checks", "rates", "break_even_gbit", "verified_on_hardware"}
    assert report["verified_on_hardware"] is False and report["torch"] == torch.__version__
    names = [check["name"] for check in report["checks"]]
    assert names == ["copies", "copies behind computation", *(f"exchange by {spec}" for spec in laconic.codecs())]
    assert all(set(check) == {"name", "ok", "detail"} for check in report["checks"])
    return {check["name"]: check for check in report["checks"]}


def test_on_the_cpu():
    done = run("--device", "cpu", "--size", "256Ki", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert all(check["ok"] for check in checked(report).values()) and report["device"] == "cpu"
    assert report["rates"]["copy_to_host"] is None and set(report["rates"]["codecs"]) == set(laconic.codecs())
    assert all(set(pays) == {"2", "4", "8"} for pays in report["break_even_gbit"].values())


def test_on_the_pretend_device(with_device):
    """Without --device: it is the accelerator here."""
    done = run("--size", "256Ki", **with_device)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith(f"device pretend:0, torch {torch.__version__}\n")
    assert done.stdout.count("\nok  ") == 2 + len(laconic.codecs()) and "\nNO" not in done.stdout
    assert "GB/s to the host" in done.stdout and "8 ranks" in done.stdout


def test_a_device_that_changes_a_bit_ends_it_with_1(with_device):
    """In copies of the size of what the codecs exchange: the copies before them are right."""
    exchanged = 4 * sum(torch.Size(shape).numel() for shape in selftest._SHAPES)
    done = run("--device", "pretend", "--size", "256Ki", "--json", PRETEND_FLIPS=str(exchanged), **with_device)
    assert done.returncode == 1
    found = checked(json.loads(done.stdout))
    assert found["copies"]["ok"] and not found["exchange by none"]["ok"]
    assert "other means than on the CPU, first in step" in found["exchange by none"]["detail"]


def test_an_unknown_device_and_size_are_named():
    assert run("--device", "cuda:77", "--size", "4Ki").returncode == 1
    wrong = run("--size", "12")
    assert wrong.returncode == 2 and "at least 4Ki" in wrong.stderr


def _copies(kind):
    pretend.delay(2000, 2000, 20000)  # longer than a busy machine makes a reader wait
    stage = kind(torch.device("pretend", 0))
    return [check.ok for check in selftest.check_copies(stage, 1 << 16)]


@pytest.mark.parametrize("kind", [staging.HostStage, staged_tests.Disordered, staged_tests.Hasty, staged_tests.Early])
def test_an_order_that_is_missing_shows(kind):
    pool = Ranks(1, backend="pretend", prepare=pretend.load)
    try:
        found = pool.run(_copies, kind=kind)[0]
    finally:
        pool.close()
    assert all(found) == (kind is staging.HostStage)


def test_the_model_is_that_of_the_guide():
    """Break-even is where both sides of the guide's table are equal: 400 MB, 4 ranks, ratio 30."""
    copies = {"copy_to_host": 25.0, "copy_to_device": 25.0}
    one = {"ratio": 30.0, "encode": 2.9, "decode": 12.6 / 2}
    eight = {**one, "encode": 6 * 2.9, "decode": 6 * 12.6 / 2}
    rows = {1: (2400, 392, 225), 10: (240, 248, 81), 25: (96, 238, 71), 100: (24, 234, 67)}
    for gbit, (ring, *staged) in rows.items():
        for speed, milliseconds in zip((one, eight), staged):
            assert (milliseconds < ring) == (selftest.break_even_gbit(speed, copies, 4, "two_shot") > gbit)
    assert selftest.break_even_gbit(one, copies, 4, "two_shot") == pytest.approx(9.6, rel=0.02)
    assert selftest.break_even_gbit({**one, "ratio": 1.0}, copies, 4, "two_shot") == 0.0, "sends more than bfloat16"
    assert selftest.break_even_gbit(one, copies, 2, "gather_all") == selftest.break_even_gbit(one, copies, 2, "two_shot")
    assert selftest.break_even_gbit(one, copies, 64, "gather_all") == 0.0, "traffic grows with the ranks"


def test_no_figure_of_the_table_runs_into_the_next(capsys):
    """`none` decodes nothing, at a rate without bounds."""
    speed = {"ratio": 1.0, "encode": 12.18, "decode": 15420.24}
    selftest._print({"device": "cuda:0", "torch": "2.11.0", "checks": [], "break_even_gbit": {"none": {"2": 0.0, "4": 0.0, "8": 0.0}},
                     "rates": {"copy_to_host": 50.8, "copy_to_device": 51.0, "threads": 8, "codecs": {"none": speed}}})
    row, = (line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("none"))
    assert row == ["none", "12.18", "15420.24", "0.00", "0.00", "0.00"]


def test_the_strategy_is_that_of_so_many_ranks():
    assert [selftest.strategy_of("int8", ranks) for ranks in (2, 8)] == ["gather_all", "two_shot"]
    assert selftest.strategy_of("bf16", 4) == "native_sum"
