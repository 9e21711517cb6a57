# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""scripts/gpu_check without a GPU, and its parts over the simulated driver of tests/engines."""

import importlib.util
import json
import os
import re
import subprocess
import sys
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
    assert sum(gpu_check.LIMITS.values()) <= 25 * 60
    assert gpu_check.LIMITS.keys() == gpu_check.PARTS.keys()


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
    for name in ("build", "tests", "selftest", "bench"):
        state["parts"][name] = {"result": "passed", "seconds": 1, "output": '{"results": []}'}
    (tmp_path / "state.json").write_text(json.dumps(state), encoding="utf-8")
    done, page = check(tmp_path, FAKE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "build: passed before" in done.stdout and "racecheck: passed\n" in done.stdout
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n") and text.endswith("after\n")
    assert "Fake GPU, driver of CUDA 13.0, commit " in text and text.count(" | passed | ") == 6
    assert text.count(" | not run | ") == len(gpu_check.MISSING)
    state["commit"] = "another"
    (tmp_path / "state.json").write_text(json.dumps(state), encoding="utf-8")
    check(tmp_path, FAKE, "memcheck")
    assert page.read_text(encoding="utf-8").count(" | passed | ") == 1


@pytest.mark.skipif(not FAKE.exists(), reason=f"{FAKE.name} is not built")
def test_sanitizer_that_is_missing_is_row_not_run(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_check.shutil, "which", lambda name: None)
    assert gpu_check.sanitized("memcheck", 1) == (None, "compute-sanitizer is not installed")
    assert gpu_check.run(["sleep", "60"], 0.1) == (False, "took more than 0 s")


@pytest.mark.skipif(not (FAKE.exists() and (BUILD / "bin" / "test_on_card").exists()), reason="test_on_card is not built")
def test_tests_and_bench_of_check_run_over_simulated_driver(tmp_path):
    library = tmp_path / "libcuda.so.1"
    library.symlink_to(FAKE)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    doctor = subprocess.run([BUILD / "bin" / "laconic", "doctor", "--json"], capture_output=True, text=True, env=environment)
    if not json.loads(doctor.stdout)["device"]["able"]:
        pytest.skip("built without nvcc")
    words = [BUILD / "bin" / "test_on_card", "--gtest_brief=1", gpu_check.SMALL]
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    assert done.returncode == 0 and re.search(r"PASSED  \] (2[1-9]|[3-9]\d) tests", done.stdout), done.stdout + done.stderr
    wrong = subprocess.run(words, capture_output=True, text=True, env={**environment, "FAKE_CUDA_WRONG": "1"})
    assert wrong.returncode == 1
    bench = subprocess.run([BUILD / "bin" / "laconic", "bench", "--device", "--json", "--size", "20000", "--seconds", "0.01", "--spec", "int8"],
                           capture_output=True, text=True, env=environment)
    rows = gpu_check.shares(bench.stdout)
    assert len(rows) == 4 and re.fullmatch(r"\| `int8[^`]*` \| 5,000 \| (yes|no) \| [\d.]+ \| [\d.]+ \| [\d.]+ \|", rows[3])


def test_page_of_results_has_place_for_check():
    text = (ROOT / "docs" / "results" / "gpu.md").read_text(encoding="utf-8")
    assert text.count(gpu_check.BEGIN) == text.count(gpu_check.END) == 1
