# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""`python -m laconic.selftest`: what it prints, and that it notices what is wrong."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import test_staging as staged_tests  # noqa: E402
from launches import environment_for, program  # noqa: E402
from ranks import Ranks  # noqa: E402

import laconic  # noqa: E402
from laconic.core import _lib  # noqa: E402
from laconic.exchange import staging  # noqa: E402

pretend = staged_tests.pretend
if why := pretend.why_not():
    pytest.skip(why, allow_module_level=True)
from laconic import selftest  # noqa: E402


#: `python -m laconic.selftest` where the device is there in every process, and changes values in copies of this number
#: of bytes
ON_PRETEND = f"""
import os, sys

os.environ["PRETEND_FLIPS"] = sys.argv[1]
sys.path.insert(0, {str(pretend.SOURCE.parent)!r})
import pretend

pretend.load()
from laconic import selftest

if __name__ == "__main__":
    sys.exit(selftest.main(sys.argv[2:]))
"""


#: the same with some codecs, where it is the GPU of the simulated driver
ON_GPU = ON_PRETEND.replace("pretend.load()", "assert pretend.load().pretend_over(os.environ['DRIVER'].encode())").replace("if __name__", """
listed = selftest.codecs()
selftest.codecs = lambda: {name: listed[name] for name in os.environ["CODECS"].split()}

if __name__""")
LIBRARIES = Path(_lib.lib.path).parent
DRIVER, LIBRARY = LIBRARIES / "liblaconic_fake_nccl.so", LIBRARIES / "liblaconic_on_fake.so"


def on_gpu(folder, codecs, *arguments, **environment):
    if not (DRIVER.exists() and LIBRARY.exists()):
        pytest.skip("not built: scripts/build release test_engines")
    pretend.library()
    script = folder / "on_gpu.py"
    script.write_text(ON_GPU)
    environment = {**environment_for(), "DRIVER": str(DRIVER), "CODECS": codecs, "LACONIC_LIBRARY": str(LIBRARY), **environment}
    return subprocess.run([sys.executable, script, "-1", "--size", "4Ki", *arguments], env=environment, capture_output=True, text=True,
                          timeout=600, check=False)


def on_pretend(folder, *arguments, flips=-1):
    pretend.library()
    script = folder / "on_pretend.py"
    script.write_text(ON_PRETEND)
    return program([script, flips, *arguments], folder)


def checked(report):
    assert set(report) == {"device", "torch", "checks", "rates", "break_even_gbit", "on_gpu", "verified_on_hardware"}
    assert report["verified_on_hardware"] is False and report["torch"] == torch.__version__
    names = [check["name"] for check in report["checks"]]
    assert names == ["copies", "copies after computation", *(f"exchange by {spec}" for spec in laconic.codecs())]
    assert all(set(check) == {"name", "ok", "detail"} for check in report["checks"])
    return {check["name"]: check for check in report["checks"]}


def test_cpu_selftest_passes(tmp_path):
    done = program(["-m", "laconic.selftest", "--device", "cpu", "--size", "256Ki", "--json"], tmp_path)
    assert done.code == 0, done.err
    report = json.loads(done.out)
    assert all(check["ok"] for check in checked(report).values()) and report["device"] == "cpu"
    assert report["on_gpu"] == {"codecs": {}, "break_even_gbit": {}, "why_host": {}}
    assert report["rates"]["copy_to_host"] is None and set(report["rates"]["codecs"]) == set(laconic.codecs())
    assert all(set(pays) == {"2", "4", "8"} for pays in report["break_even_gbit"].values())


def test_pretend_device_selftest_passes(tmp_path):
    """Without --device: it is the accelerator here."""
    done = on_pretend(tmp_path, "--size", "256Ki")
    assert done.code == 0, done.out + done.err
    assert done.out.startswith(f"device pretend:0, torch {torch.__version__}\n")
    assert done.out.count("\nok  ") == 2 + len(laconic.codecs()) and "\nNO" not in done.out
    assert "GB/s to the host" in done.out and "8 ranks" in done.out
    assert f"\nnot on the GPU: {', '.join(laconic.codecs())} (" in done.out


def test_codecs_with_kernels_are_held_to_cpu_on_gpu(tmp_path):
    """The copy of int8's payload for the largest parameter is wrong."""
    payload = 60_000 + 4 * math.ceil(60_000 / 256)
    done = on_gpu(tmp_path, "none bf16 powersgd 3lc int8", "--json", FAKE_CUDA_WRONG=str(payload))
    assert done.returncode == 1, done.stdout + done.stderr
    report = json.loads(done.stdout)
    checks = {check["name"]: check["ok"] for check in report["checks"][2:]}
    assert list(checks) == ["exchange by none", "exchange by bf16", "bf16 on the GPU", "exchange by powersgd", "exchange by 3lc", "3lc on the GPU",
                            "exchange by int8", "int8 on the GPU"]
    assert [name for name, ok in checks.items() if not ok] == ["int8 on the GPU"] and report["verified_on_hardware"] is False
    found = report["on_gpu"]
    assert found["codecs"].keys() == found["break_even_gbit"].keys() == {"bf16", "3lc"}
    assert found["codecs"]["3lc"]["ratio"] == report["rates"]["codecs"]["3lc"]["ratio"]
    assert found["why_host"] == {"none": "nothing is encoded", "powersgd": "codecs=device: strategy native_sum needs the host"}


def test_device_that_changes_a_bit_exits_with_1(tmp_path):
    """In copies of the size of what the codecs exchange: the copies before them are right."""
    exchanged = 4 * sum(torch.Size(shape).numel() for shape in selftest._SHAPES)
    done = on_pretend(tmp_path, "--device", "pretend", "--size", "256Ki", "--json", flips=exchanged)
    assert done.code == 1, done.err
    found = checked(json.loads(done.out))
    assert found["copies"]["ok"] and not found["exchange by none"]["ok"]
    assert "means differ from those on the CPU, first in step" in found["exchange by none"]["detail"]


def test_unknown_device_ends_its_own_interpreter():
    done = subprocess.run([sys.executable, "-m", "laconic.selftest", "--device", "cuda:77", "--size", "4Ki"], env=environment_for(),
                          capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1 and done.stderr.splitlines()[-1].startswith("laconic: "), done.stderr


def test_too_small_size_is_named(capsys):
    with pytest.raises(SystemExit) as wrong:
        selftest.main(["--size", "12"])
    assert wrong.value.code == 2 and "at least 4Ki" in capsys.readouterr().err


@pytest.mark.parametrize(("size", "sent"), [(4 << 10, 4 << 10), (256 << 10, 256 << 10), (12 << 20, 12 << 20)])
def test_rates_are_measured_at_requested_size(size, sent):
    assert sum(4 * rows * columns for rows, columns in selftest.shapes_of(size)) == sent


def _copies(kind):
    pretend.delay(2000, 2000, 20000)  # longer than a busy machine makes a reader wait
    stage = kind(torch.device("pretend", 0))
    return [check.ok for check in selftest.check_copies(stage, 1 << 16)]


@pytest.mark.parametrize("kind", [staging.HostStage, staged_tests.Disordered, staged_tests.Hasty, staged_tests.Early])
def test_missing_synchronisation_is_detected(kind):
    pool = Ranks(1, backend="pretend", prepare=pretend.load)
    try:
        found = pool.run(_copies, kind=kind)[0]
    finally:
        pool.close()
    assert all(found) == (kind is staging.HostStage)


def test_model_matches_guide():
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


def test_table_columns_do_not_run_together(capsys):
    """`none` decodes nothing, at a rate without bounds."""
    speed = {"ratio": 1.0, "encode": 12.18, "decode": 15420.24}
    selftest._print({"device": "cuda:0", "torch": "2.11.0", "checks": [], "break_even_gbit": {"none": {"2": 0.0, "4": 0.0, "8": 0.0}},
                     "on_gpu": {"codecs": {}, "break_even_gbit": {}, "why_host": {}},
                     "rates": {"copy_to_host": 50.8, "copy_to_device": 51.0, "threads": 8, "codecs": {"none": speed}}})
    row, = (line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("none"))
    assert row == ["none", "12.18", "15420.24", "0.00", "0.00", "0.00"]


def test_strategy_matches_number_of_ranks():
    assert [selftest.strategy_of("int8", ranks) for ranks in (2, 8)] == ["gather_all", "two_shot"]
    assert selftest.strategy_of("bf16", 4) == "native_sum"
