# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""scripts/gpu_check without a GPU, and its parts over the simulated driver of tests/engines."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import types
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("LACONIC_BUILD", ROOT / "build" / "release"))
FAKE = BUILD / "lib" / "liblaconic_fake_nccl.so"
loader = SourceFileLoader("gpu_check", str(ROOT / "scripts" / "gpu_check"))
gpu_check = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_check", loader))
loader.exec_module(gpu_check)


def check(tmp_path, driver, *parts, devices="2"):
    """Runs it with `driver` as the machine's, on a page and a state of its own."""
    page = tmp_path / "gpu.md"
    if not page.exists():
        page.write_text(f"before\n{gpu_check.BEGIN}\n{gpu_check.END}\nafter\n", encoding="utf-8")
    library = tmp_path / "lib" / "libcuda.so.1"
    library.parent.mkdir(exist_ok=True)
    library.unlink(missing_ok=True)
    library.symlink_to(driver)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(library.parent), "FAKE_NCCL_DEVICES": devices, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    return subprocess.run([sys.executable, ROOT / "scripts" / "gpu_check", "--page", page, "--state", tmp_path / "state.json", *parts],
                          capture_output=True, text=True, env=environment), page


def test_check_without_gpu_is_one_line_and_fails(tmp_path):
    nothing = tmp_path / "nothing"  # no library, also where the machine has one
    nothing.write_bytes(b"")
    done, page = check(tmp_path, nothing)
    assert done.returncode == 3 and done.stdout == ""
    assert re.fullmatch(r"gpu_check: cannot run: no NVIDIA driver .*; run it on a machine with a GPU\n", done.stderr)
    assert page.read_text(encoding="utf-8").count("\n") == 4


def test_check_takes_at_most_25_minutes():
    assert sum(gpu_check.LIMITS.values()) + len(gpu_check.PARTS) * gpu_check.GRACE <= 25 * 60
    assert gpu_check.LIMITS.keys() == gpu_check.PARTS.keys() and gpu_check.TABLES.keys() <= gpu_check.PARTS.keys()
    assert all(re.search(rf"\b{name}\b", gpu_check.__doc__) for name in gpu_check.PARTS)


STARTS_TWO = """
import signal, subprocess, sys, time
rank = subprocess.Popen(["sleep", "1000"], start_new_session=True)
subprocess.Popen(["sh", "-c", "trap '' TERM; exec sleep 1000"])
signal.signal(signal.SIGTERM, lambda *_: (rank.kill(), sys.exit()))
print("ready", flush=True)
time.sleep(1000)
"""


def test_part_that_takes_too_long_leaves_no_process(monkeypatch):
    """torchrun's ranks are in sessions of their own, and it ends them on SIGTERM. Any that still runs holds the pipe open."""
    monkeypatch.setattr(gpu_check, "GRACE", 60)
    with subprocess.Popen([sys.executable, "-c", STARTS_TWO], stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout.readline() == "ready\n"
        gpu_check.end(process)
        assert process.communicate(timeout=60) == ("", None)
    assert gpu_check.run(["sleep", "1000"], 0.1) == (False, "took more than 0 s")


# ---- what needs torch ----

def test_parts_in_python_say_what_they_lack(monkeypatch):
    for answer in ("False\n", "True\n"):
        gpu_check.torch_sees_gpu.cache_clear()
        monkeypatch.setattr(gpu_check.subprocess, "run", lambda *_, answer=answer, **__: types.SimpleNamespace(stdout=answer))
        assert gpu_check.torch_sees_gpu() == (answer == "True\n")
    monkeypatch.setattr(gpu_check, "torch_sees_gpu", lambda: False)
    assert gpu_check.in_python(1, ["json"]) == (None, "no torch with CUDA here")
    monkeypatch.setattr(gpu_check, "torch_sees_gpu", lambda: True)
    assert gpu_check.in_python(1, ["json"], ["json", "no_such_module"]) == (None, "no no_such_module here")


@pytest.mark.parametrize("name", ["staging", "selftest", "training", "peers"])
def test_parts_in_python_name_what_is_there(monkeypatch, name):
    monkeypatch.setattr(gpu_check, "torch_sees_gpu", lambda: True)
    monkeypatch.setattr(gpu_check.importlib.util, "find_spec", lambda _: True)
    monkeypatch.setattr(gpu_check, "run", lambda command, limit, env: (command, env))
    command, environment = gpu_check.PARTS[name](1)
    assert command[:2] == [sys.executable, "-m"] and environment["LACONIC_LIBRARY"] == str(BUILD / "lib" / "liblaconic.so")
    ours = [word for word in command if word.startswith(("bench.", "laconic.", "python/"))]
    assert [(ROOT / folder / (word if "/" in word else word.replace(".", "/") + ".py")).exists()
            for word in ours for folder in ("python" if word.startswith("laconic.") else "",)] == [True]


TRAINED = """W1129 OMP_NUM_THREADS is 1
{"spec": "pytorch:ddp", "codecs": null, "step_ms": 40.0, "ratio": 1.0, "accuracy": 0.972, "same": true}
{"spec": "3lc", "codecs": "host", "step_ms": 10.0, "ratio": 128.1, "accuracy": 0.981, "same": true}
{"spec": "3lc", "codecs": "device", "step_ms": 8.0, "ratio": 128.1, "accuracy": 0.981, "same": true, "like_staged": true}
{"spec": "int8", "codecs": "device", "step_ms": 20.0, "ratio": 3.9, "accuracy": 0.5, "same": false, "like_staged": false}
{"spec": "powersgd", "codecs": "device", "why_not": "a|b"}
"""


def test_training_rows_are_table():
    assert gpu_check.training_rows(TRAINED)[2:] == [
        "| `pytorch:ddp` | – | 40.0 | 1.00 | 1.0 | 97.2 % | yes | – |",
        "| `3lc` | host | 10.0 | 4.00 | 128.1 | 98.1 % | yes | – |",
        "| `3lc` | GPU | 8.0 | 5.00 | 128.1 | 98.1 % | yes | yes |",
        "| `int8` | GPU | 20.0 | 2.00 | 3.9 | 50.0 % | no | not the same |",
        "| `powersgd` | GPU | not run: a\\|b | | | | | |"]


def test_training_compares_bits_and_replicas(monkeypatch, capsys):
    pytest.importorskip("torch")
    from bench.engines import gpu_training

    answers = {("pytorch:ddp", "host"): "a", ("none", "host"): "a", ("3lc", "host"): "b", ("3lc", "device"): "b", ("int8", "host"): "c",
               ("int8", "device"): "d", ("powersgd", "host"): "e", ("powersgd", "device"): None}
    monkeypatch.setattr(gpu_training, "deterministic", lambda: None)
    monkeypatch.setattr(gpu_training, "train", lambda spec, steps, device, codecs="host": {
        "spec": spec, "codecs": codecs, **({"digest": answers[spec, codecs]} if answers[spec, codecs] else {"why_not": "no kernels"})})
    found = list(gpu_training.rows(["pytorch:ddp", "none", "3lc", "int8", "powersgd"], 30, None))
    assert [(row["spec"], row["codecs"]) for row in found] == list(answers)
    assert [row.get("like_staged") for row in found] == [None, None, None, True, None, False, None, None]
    assert gpu_training.report([{"same": True}, {"why_not": ""}], prints=True) == 0
    assert capsys.readouterr().out == '{"same": true}\n{"why_not": ""}\n'
    assert gpu_training.report([{"same": False}, {"same": True}], prints=False) == 1 and not capsys.readouterr().out


def test_peers_are_timed_beside_bench(over_fake, monkeypatch, capsys):
    torch = pytest.importorskip("torch")
    from bench.engines import gpu_peers

    def broken(function, **_):
        raise RuntimeError("no compiler\nhere")

    monkeypatch.setenv("LD_LIBRARY_PATH", over_fake["LD_LIBRARY_PATH"])
    words = ["--device", "cpu", "--elements", "8192", "--seconds", "0.01", "--build", str(BUILD)]
    for compiler, eager in ((lambda function, **_: function, None), (broken, "RuntimeError: no compiler")):
        monkeypatch.setattr(torch, "compile", compiler)
        assert gpu_peers.main(words) == 0
        said = capsys.readouterr().out
        topk, int8 = gpu_check.json_lines(said)
        assert topk["codec"] == "topk+noef" and int8["codec"].startswith("int8") and int8["eager"] == eager
        for row in (topk, int8):
            assert row["elements"] == 8192 and row["over_peer"] == pytest.approx(row["encode_s"] / row["peer_s"])
        assert ("eager (RuntimeError: no compiler)" in gpu_check.peer_rows(said)[3]) == (eager is not None)
    assert re.fullmatch(r"\| `topk[^`]*` \| 8,192 \| [\d.]+ \| torch.topk, 1 % \| [\d.]+ \| [\d.]+ \|", gpu_check.peer_rows(said)[2])
    monkeypatch.setenv("FAKE_CUDA_WRONG", "1")
    assert gpu_peers.main(words) == 1 and "differ" in capsys.readouterr().err


def test_peers_select_and_quantise():
    torch = pytest.importorskip("torch")
    from bench.engines import gpu_peers

    values = torch.linspace(-1, 1, 512)
    chosen = gpu_peers.select(values.abs())
    assert chosen.values.numel() == 5 and chosen.values.min() >= values.abs().sort().values[-5]
    codes, scales = gpu_peers.quantise(values)
    assert codes.dtype == torch.int8 and codes.shape == (2, 256) and (codes.float() * scales - values.view(2, 256)).abs().max() <= scales.max() / 2


# ---- over the simulated driver ----

def has_kernels(environment):
    doctor = subprocess.run([BUILD / "bin" / "laconic", "doctor", "--json"], capture_output=True, text=True, env=environment)
    return json.loads(doctor.stdout)["device"]["able"]


@pytest.mark.skipif(not FAKE.exists(), reason=f"{FAKE.name} is not built")
def test_driver_without_gpus_cannot_be_checked(tmp_path):
    done, _ = check(tmp_path, FAKE, devices="0")
    assert done.returncode == 3 and "the NVIDIA driver finds no GPU" in done.stderr


@pytest.mark.skipif(not FAKE.exists(), reason=f"{FAKE.name} is not built")
def test_parts_are_rows_and_resume_where_they_failed(tmp_path):
    sanitizer = tmp_path / "compute-sanitizer"
    sanitizer.write_text("#!/bin/sh\necho races\nexit 9\n", encoding="utf-8")
    sanitizer.chmod(0o755)
    done, page = check(tmp_path, FAKE, "racecheck")
    assert done.returncode == 1 and "racecheck: failed\nraces" in done.stdout
    assert "| racecheck | failed |" in page.read_text(encoding="utf-8")
    assert "| memcheck | not run |" in page.read_text(encoding="utf-8")
    sanitizer.write_text("#!/bin/sh\nexit 0\n", encoding="utf-8")
    state = json.loads((tmp_path / "state.json").read_text(encoding="utf-8"))
    for name in gpu_check.PARTS.keys() - {"memcheck", "racecheck"}:
        state["parts"][name] = {"result": "passed", "seconds": 1, "output": {"bench": '{"results": []}', "training": TRAINED}.get(name, "")}
    (tmp_path / "state.json").write_text(json.dumps(state), encoding="utf-8")
    done, page = check(tmp_path, FAKE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "build: passed before" in done.stdout and "racecheck: passed\n" in done.stdout
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n") and text.endswith("after\n")
    assert "Fake GPU, driver of CUDA 13.0, commit " in text and text.count(" | passed | ") == 9
    assert text.count(" | not run | ") == len(gpu_check.MISSING)
    assert all(f"\n{what}\n\n| " in text for what, _ in gpu_check.TABLES.values()) and "\n".join(gpu_check.training_rows(TRAINED)) in text
    state["commit"] = "another"
    (tmp_path / "state.json").write_text(json.dumps(state), encoding="utf-8")
    check(tmp_path, FAKE, "memcheck")
    text = page.read_text(encoding="utf-8")
    assert text.count(" | passed | ") == 1 and not any(what in text for what, _ in gpu_check.TABLES.values())


@pytest.mark.skipif(not FAKE.exists(), reason=f"{FAKE.name} is not built")
def test_sanitizer_that_is_missing_is_row_not_run(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_check.shutil, "which", lambda name: None)
    assert gpu_check.sanitized("memcheck", 1) == (None, "compute-sanitizer is not installed")


@pytest.fixture
def over_fake(tmp_path):
    """The environment in which the machine's driver is the simulated one."""
    if not FAKE.exists():
        pytest.skip(f"{FAKE.name} is not built")
    (tmp_path / "libcuda.so.1").symlink_to(FAKE)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    if not has_kernels(environment):
        pytest.skip("built without nvcc")
    return environment


@pytest.mark.skipif(not (BUILD / "bin" / "test_on_card").exists(), reason="weekly, or scripts/build release test_on_card")
def test_tests_of_check_run_over_simulated_driver(over_fake):
    words = [BUILD / "bin" / "test_on_card", "--gtest_brief=1", gpu_check.SMALL]
    done = subprocess.run(words, capture_output=True, text=True, env=over_fake)
    assert done.returncode == 0 and re.search(r"PASSED  \] (2[1-9]|[3-9]\d) tests", done.stdout), done.stdout + done.stderr
    wrong = subprocess.run(words, capture_output=True, text=True, env={**over_fake, "FAKE_CUDA_WRONG": "1"})
    assert wrong.returncode == 1


def test_bench_of_check_runs_over_simulated_driver(over_fake, monkeypatch):
    monkeypatch.setattr(gpu_check, "run", lambda command, _: command)
    command = gpu_check.PARTS["bench"](1)
    assert "25Mi" in command and command[command.index("--units") + 1] == "60"
    small = [*command[: command.index("--size")], "--size", "20000", "--spec", "int8"]
    bench = subprocess.run(small, capture_output=True, text=True, env=over_fake)
    rows = gpu_check.share_rows(bench.stdout)
    assert len(rows) == 3 and re.fullmatch(r"\| `int8[^`]*` \| 5,000 \| (yes|no) \| [\d.]+ \| [\d.]+ \| [\d.]+ \| [\d.]+ × \|", rows[2])


def test_page_of_results_has_place_for_check():
    text = (ROOT / "docs" / "results" / "gpu.md").read_text(encoding="utf-8")
    assert text.count(gpu_check.BEGIN) == text.count(gpu_check.END) == 1
