# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""make bench in miniature: which figures it has, not what they are."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("LACONIC_BUILD", ROOT / "build" / "release"))
PROGRAMS = ("laconic", "threads_bench", "c_abi_bench", "server_bench", "server_cpu_bench")
SPECS = ["int8", "int8:round=stochastic", "topk", "topk+noef", "topk:ratio=0.001", "topk:ratio=0.001+noef"]

from bench.cpu import codec_tables, plan


def run(*words):
    return subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True, timeout=300, cwd=ROOT)


def tables_of(path):
    """Rows as dictionaries under the headings."""
    found = json.loads(path.read_text(encoding="utf-8"))["tables"]
    return {key: [dict(zip([head for head, _ in each["columns"]], row)) for row in each["rows"]] for key, each in found.items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    missing = [name for name in PROGRAMS if not (BUILD / "bin" / name).exists()]
    if missing:
        pytest.skip(f"not built: {', '.join(missing)}")
    folder = tmp_path_factory.mktemp("bench")
    done = run("-m", "bench.cpu.run", "--quick", "--codecs", "topk,int8", "--budget", 300, "--build", BUILD, "--out", folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def tables(folder):
    return tables_of(folder / "codecs-cpu.json")


# ---- a whole run ----


def test_run_writes_two_files_and_nothing_else(folder):
    assert sorted(path.name for path in folder.iterdir()) == ["codecs-cpu.json", "codecs-cpu.md"]
    assert "python -m bench.cpu.run --quick --codecs topk,int8 --budget 300" in (folder / "codecs-cpu.md").read_text()


def test_every_spec_size_and_isa_is_measured(tables):
    assert "not measured" not in tables
    sizes = [codec_tables.size_text(size) for size in plan.QUICK.sizes]
    assert {(row["codec"], row["size"]) for row in tables["codecs"]} == {(f"`{spec}`", size) for spec in SPECS for size in sizes}
    lesser = {(row["codec"], row["instruction set"]) for row in tables["instruction sets"]}
    assert lesser == {(f"`{spec}`", isa) for spec in SPECS for _, isa in lesser} and ("`int8`", "scalar") in lesser
    for row in tables["codecs"]:
        assert row["bytes"] > 0
        for direction in ("encode", "decode"):
            median, low, high = row[direction]
            assert 0 < low <= median <= high


@pytest.mark.parametrize("key", ["two threads", "small calls", "machine"])
def test_every_part_has_a_table(tables, key):
    assert tables[key]


def test_baselines_are_measured_if_torch_is_installed(tables):
    pytest.importorskip("torch")
    assert [row["Laconic"] for row in tables["pytorch"]] == ["`topk`", "`topk:ratio=0.001`", "`int8`", "`int8`", "`fp16`", "`bf16`", "`powersgd`"]
    assert all((row["times as fast"] is None) == (row["Laconic"].strip("`") not in SPECS) for row in tables["pytorch"])


def test_server_has_its_own_page(tmp_path):
    if any(not (BUILD / "bin" / name).exists() for name in PROGRAMS):
        pytest.skip("not built")
    done = run("-m", "bench.cpu.run", "--server", "--quick", "--build", BUILD, "--out", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["aggregation-server.json", "aggregation-server.md"]
    found = tables_of(tmp_path / "aggregation-server.json")
    assert {row["codec"] for row in found["a server in the middle"]} == {"`thc`", "`int8`", "`topk:ratio=0.1`", "`terngrad`", "`dgc`"}
    assert {row[""] for row in found["sums"]} == set(codec_tables.SUMS.values())


def test_bench_workers_register_despite_lost_hellos():
    program = BUILD / "bin" / "server_bench"
    if not program.exists():
        pytest.skip(f"{program} is not built")
    said = json.loads(subprocess.run([program, "0.3", "1", "2"], capture_output=True, text=True, timeout=280, check=True).stdout)
    assert said.get("reason") or said["gso"]["median"] > 0


def test_slowdown_by_half_fails_comparison(folder, tmp_path):
    path = folder / "codecs-cpu.json"
    compare = ROOT / "scripts" / "bench_compare"
    same = run(compare, path, path, "--fail", 1)
    assert same.returncode == 0 and "0 of " in same.stdout
    results = json.loads(path.read_text(encoding="utf-8"))
    for key in ("codecs", "instruction sets"):
        found = results["tables"][key]
        at = [head for head, _ in found["columns"]].index("encode")
        for row in found["rows"]:
            row[at] = [row[at][0] / 2, row[at][0] * 0.45, row[at][0] * 0.55]
    (tmp_path / "slow.json").write_text(json.dumps(results))
    slower = run(compare, path, tmp_path / "slow.json", "--fail", 10)
    assert slower.returncode == 1 and "0.50  encode, geometric mean" in slower.stdout
    assert "1.00  decode, geometric mean" in slower.stdout


# ---- what goes wrong ----


def test_failed_cells_are_missing_and_named():
    results = {"isas": ["avx2"], "machine": {"CPU": "one"}, "points": [], "fused": [], "threads": [], "c_abi": [], "baselines": {},
               "failures": [{"command": "x", "reason": "y"}], "left_out": ["z"]}
    found = codec_tables.of_codecs(results)
    assert list(found) == ["machine", "not measured"] and found["not measured"]["rows"] == [["`x`", "y"], ["z", "left out"]]


def test_missing_build_writes_nothing(tmp_path):
    done = run("-m", "bench.cpu.run", "--quick", "--build", tmp_path, "--out", tmp_path / "out")
    assert done.returncode == 1 and "scripts/build release" in done.stderr
    assert not (tmp_path / "out").exists()


def test_unknown_codec_is_refused_with_list_of_known(tmp_path):
    done = run("-m", "bench.cpu.run", "--quick", "--codecs", "nonsense", "--out", tmp_path / "out")
    assert done.returncode == 2 and "topk" in done.stderr


def test_powersgd_is_compared_with_both_modes_of_hook():
    point = {"codec": "powersgd", "elements": 1 << 20, "isa": "avx2", "encode_x_memcpy": 0.5, "decode_x_memcpy": 1.0}
    points = codec_tables.Points({"isas": ["avx2"], "points": [point]})
    assert codec_tables.laconic_time(points, "powersgd", 4 << 20) == pytest.approx(1 / 3)
    assert codec_tables.laconic_time(points, "powersgd", 1 << 20) is None
