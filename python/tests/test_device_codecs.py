# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""attach(codecs="device"): torch's pretend device is the GPU of the simulated CUDA driver, and codecs run there."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "accelerator"))

import pretend  # noqa: E402
import test_staging  # noqa: E402
import training  # noqa: E402
from ranks import free_port  # noqa: E402

import laconic  # noqa: E402
from laconic.core import _lib  # noqa: E402

LIBRARIES = Path(_lib.lib.path).parent
DRIVER, LIBRARY = LIBRARIES / "liblaconic_fake_nccl.so", LIBRARIES / "liblaconic_on_fake.so"

pytestmark = [pytest.mark.skipif(not (DRIVER.exists() and LIBRARY.exists()), reason="not built: scripts/build release test_engines"),
              pytest.mark.skipif(pretend.why_not() is not None, reason=str(pretend.why_not()))]


def run(world: int, runs: list, gone: int | None = None) -> list[list]:
    """The results of every run, by run and rank. gone: a rank that does not come back, which has none."""
    pretend.library()
    port, ranks = free_port(), []
    environment = {**os.environ, "LACONIC_LIBRARY": str(LIBRARY)}
    for rank in range(world):
        ranks.append(subprocess.Popen([sys.executable, Path(__file__).with_name("gpu_ranks.py"), DRIVER, str(rank), str(world), str(port)],
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment))
    stays = [process for rank, process in enumerate(ranks) if rank != gone]
    try:
        for process in ranks:
            process.stdin.write(json.dumps(runs))
            process.stdin.close()
            process.stdin = None
        said = [process.communicate(timeout=300) for process in stays]
    finally:
        for process in ranks:
            process.kill()
    assert all(process.returncode == 0 for process in stays), "\n".join(err[-3000:] for _, err in said)
    outcomes = [json.loads(out.splitlines()[-1]) for out, _ in said]
    assert [outcome["faults"] for outcome in outcomes] == [""] * len(stays)
    return [list(of_run) for of_run in zip(*(outcome["results"] for outcome in outcomes))]


VALUES = {
    "3lc": {"spec": "3lc", "buckets": 3},
    "two_shot": {"spec": "3lc:s=1.75", "attach_options": {"strategy": "two_shot"}},
    "int8": {"spec": "int8:round=stochastic+ef", "buckets": 2},
    "topk": {"spec": "topk:ratio=0.05", "buckets": 3},
    "sidco": {"spec": "sidco:ratio=0.05", "buckets": 2},
    "onebit": {"spec": "onebit"},
    "rules": {"spec": "none", "attach_options": {"rules": [{"match": "hidden.weight", "spec": "3lc"}]}},
    "float16": {"spec": "3lc", "dtype": "float16"},
    "bfloat16": {"spec": "topk:ratio=0.05", "dtype": "bfloat16", "buckets": 2},
    "accumulation": {"spec": "3lc", "accumulate": 2},
    "three parts": {"spec": "3lc", "attach_options": {"part": 4000}},
    "warm-up": {"spec": "3lc", "attach_options": {"warmup": 3}},
}
RESUMED = {"to host": {"codecs": "host"}, "to device": {"codecs": "device"}}


@functools.cache
def of_two() -> dict:
    """One launch for all: importing torch costs seconds."""
    runs = {("value", name): ("train", keywords) for name, keywords in VALUES.items()}
    runs |= {("resumed", name): ("train", {"spec": "topk:ratio=0.05", "buckets": 3, "resumes": then}) for name, then in RESUMED.items()}
    runs[("flush", "")] = ("train", {"spec": "3lc", "buckets": 2, "resumes": {"codecs": "device"}, "flush": [3, 2]})
    runs |= {("told", codecs): ("told", {"codecs": codecs}) for codecs in ("auto", "host", "device")}
    for name, keywords in {"cpu": {"device": "cpu"}, "powersgd": {"spec": "powersgd"}, "bf16": {"spec": "bf16"}, "control": {"control": "dc2", "spec": "topk"},
                           "unknown": {"codecs": "gpu"}}.items():
        runs[("refused", name)] = ("refused", {"codecs": "device", **keywords})
    runs[("scaled", "")] = ("scaled", {})
    runs |= {("hasty", str(delay)): ("hasty", {"delay": delay, "spec": "3lc", "buckets": 3}) for delay in (2000, 20000)}
    runs |= {("starves", name): ("starves", {"attached": name == "attached"}) for name in ("attached", "attaching")}
    if importlib.util.find_spec("sklearn"):
        runs[("benchmark", "")] = ("benchmark", {"specs": ["pytorch:ddp", "3lc", "powersgd"]})
    runs |= {("fails", str(calls)): ("fails", {"calls": calls}) for calls in (5, 60)}
    return dict(zip(runs, run(2, list(runs.values()))))


def of_cpu(pools, keywords, world: int = 2) -> str:
    keywords = {key: value for key, value in keywords.items() if key != "meets"}
    if "dtype" in keywords:
        keywords["dtype"] = {"float16": torch.float16, "bfloat16": torch.bfloat16}[keywords["dtype"]]
    hashes = {result["hash"] for result in pools(world).run(training.train, **{"steps": 6, **keywords})}
    assert len(hashes) == 1
    return hashes.pop()


@pytest.mark.parametrize("name", VALUES)
def test_codecs_on_device_train_as_on_cpu(pools, name):
    expected = of_cpu(pools, VALUES[name])
    assert [result["hash"] for result in of_two()[("value", name)]] == [expected] * 2
    assert all(result["finite"] and result["stats"]["staged_bytes"] == 0 for result in of_two()[("value", name)])


@pytest.mark.parametrize("name", RESUMED)
def test_run_resumes_on_either_side(pools, name):
    whole = of_cpu(pools, {"spec": "topk:ratio=0.05", "buckets": 3, "steps": 8})
    assert [result["hashes"] for result in of_two()[("resumed", name)]] == [[whole, whole]] * 2


def test_loss_scale_changes_residuals_on_device(pools):
    expected = [{"hash": digest, "scale": scale, "norm": norm} for digest, scale, _, norm in pools(2).run(test_staging._scaled, device="cpu")]
    assert of_two()[("scaled", "")] == expected


def test_missing_wait_for_gradients_is_detected(pools):
    """Or the pretend device would be too tame to show anything."""
    expected = of_cpu(pools, VALUES["3lc"])
    assert any(result["hash"] != expected for delay in (2000, 20000) for result in of_two()[("hasty", str(delay))])


def test_flush_is_saved_on_device(pools):
    expected = pools(2).run(training.resume, spec="3lc", buckets=2, flush=(3, 2))
    assert [result["hashes"] for result in of_two()[("flush", "")]] == expected


def test_place_of_codecs_is_explained():
    for codecs, where in (("auto", "host"), ("host", "host"), ("device", "device")):
        for told in of_two()[("told", codecs)]:
            assert told["codecs"] == where
            if where == "device":
                assert told["why_host"] is None and told["path"] == "codecs" and "where its codecs run" in told["line"]
                assert told["device_bytes"] > 0 and told["payload_bytes_staged"] > 0
                assert told["staged_bytes"] == told["pinned_bytes"] == 0
                assert told["lent"] == told["device_bytes"] and told["left"] == 0
            else:
                assert told["why_host"] == ("requested" if codecs == "host" else "no GPU has been measured with codecs on it yet")
                assert told["staged_bytes"] > 0 and told["device_bytes"] == told["payload_bytes_staged"] == 0


@pytest.mark.parametrize(("name", "said"), [
    ("cpu", "codecs='device': gradients are on the CPU"), ("powersgd", "codecs=device: strategy native_sum needs the host"),
    ("bf16", "codecs=device: strategy native_sum needs the host"), ("control", "codecs=device: a control policy or record needs the host")])
def test_codecs_that_need_host_are_refused_everywhere(name, said):
    for error in of_two()[("refused", name)]:
        assert error["name"] == "unsupported" and said in error["text"], error


def test_unknown_place_is_invalid():
    for error in of_two()[("refused", "unknown")]:
        assert error["name"] == "invalid_argument" and "codecs='gpu'" in error["text"]


@pytest.mark.parametrize("calls", ["5", "60"])
def test_failed_driver_call_reaches_every_rank(calls):
    for result in of_two()[("fails", calls)]:
        assert "CUDA error 999" in result["heard"] and "GPU" in result["heard"], result


@pytest.mark.parametrize("when", ["attached", "attaching"])
def test_rank_without_device_memory_is_reported(when):
    for result in of_two()[("starves", when)]:
        assert "rank 1" in result["heard"] and "memory" in result["heard"], result


@pytest.mark.parametrize(("sign", "call", "options"), [
    ("SIGKILL", 1, {"strategy": "two_shot", "buckets": 3}), ("SIGSTOP", 0, {"timeout": 4})])
def test_rank_that_is_gone_loses_nothing_of_others(sign, call, options):
    (found,), = run(2, [("dies", {"sign": sign, "call": call, "spec": "3lc", **options})], gone=1)
    assert found["name"] == "engine_failed"
    assert ("rank 1 did not answer within 4 s" if sign == "SIGSTOP" else "rank 1 is gone") in found["heard"]


def test_training_benchmark_compares_codecs_on_both_sides():
    pytest.importorskip("sklearn", reason="bench/engines/gpu_training.py trains on scikit-learn's digits")
    for found in of_two()[("benchmark", "")]:
        assert found["deterministic"]
        plain, staged, there, sums, refused = found["rows"]
        assert [(row["spec"], row["codecs"]) for row in found["rows"]] == [
            ("pytorch:ddp", None), ("3lc", "host"), ("3lc", "device"), ("powersgd", "host"), ("powersgd", "device")]
        assert (staged["path"], there["path"]) == ("staged", "codecs") and there["like_staged"] and there["digest"] != plain["digest"]
        assert all(row["same"] and row["step_ms"] > 0 for row in (plain, staged, there, sums)) and there["ratio"] == staged["ratio"] > 2
        assert "strategy native_sum needs the host" in refused["why_not"]


NODES = [{"spec": "3lc", "attach_options": {"nodes": 2, "window": 1}}, {"spec": "topk:ratio=0.05", "dtype": "float16", "attach_options": {"nodes": 2}},
         {"spec": "3lc", "attach_options": {"nodes": 2, "window": 1}, "meets": False}]


def test_shards_of_nodes_stay_on_device(pools):
    """Also where one node's ranks have to meet on the host."""
    found = run(4, [("train", keywords) for keywords in NODES])
    for keywords, ranks in zip(NODES, found):
        assert {result["hash"] for result in ranks} == {of_cpu(pools, keywords, world=4)}
        staged = [result["stats"]["staged_bytes"] > 0 for result in ranks]
        assert staged == ([False] * 4 if keywords.get("meets", True) else [True, True, False, False])
        assert all(result["stats"]["payload_bytes_staged"] > 0 for result in ranks)
