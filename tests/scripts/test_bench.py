# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""make bench in miniature: the report's shape, not its figures."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("LACONIC_BUILD", ROOT / "build" / "release"))
PROGRAMS = ("laconic", "roofline_bench", "threads_bench", "c_abi_bench", "server_bench", "server_cpu_bench")
SPECS = ["int8", "int8:round=stochastic", "topk", "topk+noef", "topk:ratio=0.001", "topk:ratio=0.001+noef"]

sys.path.insert(0, str(ROOT / "bench"))

import aggregation_page  # noqa: E402
import bounds  # noqa: E402
import plan  # noqa: E402
import report  # noqa: E402


def run(*words):
    return subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    missing = [name for name in PROGRAMS if not (BUILD / "bin" / name).exists()]
    if missing:
        pytest.skip(f"not built: {', '.join(missing)}")
    folder = tmp_path_factory.mktemp("bench")
    done = run(ROOT / "bench" / "run.py", "--quick", "--codecs", "topk,int8", "--budget", 300, "--build",
               BUILD, "--out", folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def results(folder):
    return json.loads((folder / "codecs-cpu.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def sections(folder):
    """Heading -> text."""
    text = (folder / "codecs-cpu.md").read_text(encoding="utf-8")
    return dict(part.split("\n", 1) for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:])


def cells(line):
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def table(section):
    """Rows as dictionaries under the headings; headings need not differ, so later ones win."""
    lines = [cells(line) for line in section.splitlines() if line.startswith("|")]
    assert {len(line) for line in lines} == {len(lines[0])}, "ragged table"
    return lines[0], lines[2:]


# ---- a whole run ----


def test_two_files_and_nothing_else(folder):
    assert sorted(path.name for path in folder.iterdir()) == ["codecs-cpu.json", "codecs-cpu.md"]


def test_every_spec_size_and_instruction_set_is_there(results):
    assert results["failures"] == [] and results["left_out"] == []
    best = results["isas"][-1]
    wanted = {(spec, size, best) for spec in SPECS for size in plan.QUICK.sizes}
    wanted |= {(spec, size, isa) for spec in SPECS for isa in results["isas"] for size in plan.QUICK.sizes
               if size <= plan.QUICK.isa_limits.get(isa, 0)}
    assert {(p["codec"], 4 * p["elements"], p["isa"]) for p in results["points"]} == wanted
    for p in results["points"]:
        assert p["encode_x_memcpy"] > 0 and p["decode_x_memcpy"] > 0 and p["payload_bytes"] > 0
        assert p["encode_spread"]["low"] <= p["encode_x_memcpy"] <= p["encode_spread"]["high"]


def test_every_section_has_a_table_and_its_command(sections):
    for heading in ("Goals", "Roofline", "Two threads", "A call on 4 KiB through the C ABI",
                    "Every codec, size and instruction set"):
        _, rows = table(sections[heading])
        assert rows and "\n```\n" in sections[heading], heading
    assert table(sections["Machine"])[1]


def test_the_aggregation_server_has_its_figures(sections, results):
    text = sections["The aggregation server"]
    assert "server_bench" in text and "server_cpu_bench" in text
    assert {row["spec"] for row in results["server"]["cpu"]["server"]["rows"]} == {"thc", "int8", "topk:ratio=0.1", "terngrad", "dgc"}
    said = [cells(line)[-1] for line in text.splitlines() if line.startswith("| `") and "| `thc` |" not in line]
    assert said and all(re.match(r"met, |\*\*missed by ", cell) for cell in said if cell not in ("", "–"))
    io = results["server"]["io"]
    assert io.get("reason") or io["gso_to_echo"]["median"] > 0
    kernel = io.get("switch", {"reason": io.get("reason")})
    assert kernel.get("reason") or kernel["xdp_to_mmsg"]["median"] > 0 and kernel["process"]["median"] < 0.5
    if kernel.get("reason") and "reason" not in io:
        assert f"`xdp` was not measured: {kernel['reason']}." in text


def test_the_server_alone_has_a_page_of_its_own(tmp_path):
    if any(not (BUILD / "bin" / name).exists() for name in PROGRAMS):
        pytest.skip("not built")
    done = run(ROOT / "bench" / "run.py", "--server", "--quick", "--build", BUILD, "--out", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["aggregation-server.json", "aggregation-server.md"]
    text = (tmp_path / "aggregation-server.md").read_text(encoding="utf-8")
    assert re.findall("^#+ (.*)$", text, re.M) == ["An aggregation server on a CPU", "Machine", "The aggregation server"]
    assert "`bench/run.py --server --quick`" in text and "as the server adds" in text


def test_workers_of_the_server_bench_register_though_hellos_are_lost():
    program = BUILD / "bin" / "server_bench"
    if not program.exists():
        pytest.skip(f"{program} is not built")
    said = json.loads(subprocess.run([program, "0.3", "1", "2"], capture_output=True, text=True, timeout=100, check=True).stdout)
    assert said.get("reason") or said["gso"]["median"] > 0


def test_the_kernels_figures_or_why_there_are_none():
    def spread(median):
        return {"median": median, "low": median, "high": median}

    assert aggregation_page.kernel_section(None) == []  # results of before
    assert aggregation_page.kernel_section({"reason": "it takes root"}) == ["`xdp` was not measured: it takes root."]
    measured = {"rounds": 3, "xdp": spread(160e3), "mmsg": spread(90e3), "xdp_to_mmsg": spread(1.75), "process": spread(0.06)}
    _, rows = table("\n".join(aggregation_page.kernel_section(measured)))
    assert [row[-1] for row in rows] == ["met, +75 %", "**missed by 17 %**"]


def test_goals_say_met_or_missed(sections):
    _, rows = table(sections["Goals"])
    assert [row[0] for row in rows if row[1] == "encode"] == [
        "`topk+noef`", "`topk`", "`topk:ratio=0.001+noef`", "`topk:ratio=0.001` (default)", "`int8`",
        "`int8:round=stochastic`"]
    for row in rows:
        if "(default)" not in row[0] and row[2] != report.MISSING:
            assert re.match(r"met, |met by cycles|\*\*missed by ", row[4]), row
        elif "(default)" in row[0]:
            assert row[2].startswith("ceiling 0.") and row[4] == report.MISSING
        else:  # no goal without AVX-512
            assert row[2] == row[4] == report.MISSING


def test_missed_goals_are_explained(sections, results):
    points = report.Points(results)
    missed = report.missed(results, points)
    if missed:
        _, rows = table(sections["What bounds the goals that were missed"])
        assert len(rows) == len(missed)


def test_cycles_above_their_goal_are_explained():
    point = {"codec": "terngrad", "elements": 2**16, "isa": "avx2", "memcpy_s": 2**16 * 0.2e-9, "clock_ghz": 4.0,
             "cycles_per_element": {"encode": 2.0, "decode": 0.3}}
    results = {"isas": ["avx2"], "points": [point], "roofline": {"points": [
        {"operation": o, "bytes": 2**18, "gb_per_s": s} for o, s in (("memcpy", 40.0), ("read", 80.0), ("write", 40.0))]}}
    said = "\n".join(report.cycle_limits(results, report.Points(results)))
    # two reads of half a memcpy, a sixteenth of a write: 1.0625 of 0.8 cycles
    assert "- `terngrad`, encode, avx2: 2.00 cycles of 1.9. Its passes alone take 0.85 " in said
    assert f"{5.3:g} instructions per element, {5.3 / 2:.1f} a cycle: " in said
    point["cycles_per_element"]["encode"] = 1.9
    assert report.cycle_limits(results, report.Points(results)) == []


def test_small_calls_above_their_goal_are_explained():
    def point(spec, microseconds):
        return {"codec": spec, "encode": {"microseconds": microseconds}}

    said = report.small_call_limits([point("sketchml", 3.1), point("int8", 2.5), point("sidco", 4.0)])
    assert len(said) == 2 and said[1].startswith("- `sketchml`: ") and "\n" not in said[1]
    assert report.small_call_limits([point("sketchml", 2.0), {"codec": "int8", "error": "none"}]) == []


def test_passes_of_large_units_do_not_count_in_the_cache():
    chunks = [p for p in bounds.passes_of("onebit:scale=chunk", "encode") if p.large]
    assert [p.operation for p in chunks] == ["read"]


def test_baselines_when_there_is_torch(sections):
    pytest.importorskip("torch")
    _, rows = table(sections["PyTorch on the same machine"])
    assert [row[4] for row in rows] == ["`topk`", "`topk:ratio=0.001`", "`int8`", "`int8`", "`fp16`", "`bf16`",
                                        "`powersgd`"]


def test_methods_are_compared_with_graces_definitions(sections, results):
    pytest.importorskip("torch")
    import grace_methods

    _, rows = table(sections["GRACE's definitions in PyTorch"])
    assert [row[0] for row in rows] == [f"`{spec}`" for spec, _ in grace_methods.METHODS]
    assert all(row[5].startswith(("met", "**missed")) for row in rows if row[0] == "`topk+noef`")
    missed = [row[0] for row in rows if row[5].startswith("**missed")]
    said = re.findall(r"^- (`[^`]+`): PyTorch needs the time of ", sections["GRACE's definitions in PyTorch"], re.M)
    assert said == missed


def test_a_method_that_pytorch_does_in_few_passes_is_explained():
    results = {"isas": ["scalar"], "points": [], "roofline": {"points": [
        {"operation": o, "bytes": 2**26, "gb_per_s": s} for o, s in (("memcpy", 7.0), ("read", 21.0), ("write past the caches", 14.0))]}}
    peer = {"laconic": "signsgd", "bytes": 2**26, "x_memcpy": 0.4, "seconds": 0.02}
    said = report.grace_limit(results, {"scanned": False}, peer, 20)
    assert "2.5 memcpys" in said and "would be 8 x memcpy" in said  # read 1/21, write 1/32 of 1/14: 2.9 of memcpy
    assert ", of 2.9 that its passes allow" in said


def test_compare(folder, results, tmp_path):
    path = folder / "codecs-cpu.json"
    compare = ROOT / "scripts" / "bench_compare"
    same = run(compare, path, path, "--fail", 1)
    assert same.returncode == 0 and "0 of " in same.stdout
    for p in results["points"]:
        p["encode_x_memcpy"] /= 2
        p["encode_spread"] = {"low": p["encode_x_memcpy"] * 0.9, "high": p["encode_x_memcpy"] * 1.1}
    (tmp_path / "slow.json").write_text(json.dumps(results))
    slower = run(compare, path, tmp_path / "slow.json", "--fail", 10)
    assert slower.returncode == 1 and "0.50  encode, geometric mean" in slower.stdout
    assert "1.00  decode, geometric mean" in slower.stdout


def test_the_page_can_be_made_again(folder):
    page = folder / "codecs-cpu.md"
    text = page.read_text(encoding="utf-8")
    page.unlink()
    assert run(ROOT / "bench" / "run.py", "--report", "--out", folder).returncode == 0
    assert page.read_text(encoding="utf-8") == text


@pytest.mark.parametrize("part", ["points", "fused", "codec_only", "threads", "c_abi", "baselines", "roofline"])
def test_a_page_without_a_part(results, part):
    """What failed or was cut off is missing, nothing else."""
    empty = {"roofline": {"points": []}, "baselines": {}}.get(part, [])
    text = report.markdown({**results, part: empty, "failures": [{"command": "x", "reason": "y"}]})
    assert text.startswith("# Codecs on a CPU") and "## Not measured" in text


# ---- what goes wrong ----


def test_no_build(tmp_path):
    done = run(ROOT / "bench" / "run.py", "--quick", "--build", tmp_path, "--out", tmp_path / "out")
    assert done.returncode == 1 and "scripts/build release" in done.stderr
    assert not (tmp_path / "out").exists()


def test_no_such_codec(tmp_path):
    done = run(ROOT / "bench" / "run.py", "--quick", "--codecs", "nonsense", "--out", tmp_path / "out")
    assert done.returncode == 2 and "topk" in done.stderr


# ---- parts ----


@pytest.mark.parametrize("measured, goal, words", [
    (1.0, 1.0, "met, +0 %"), (1.1, 1.0, "met, +10 %"), (230, 20, "met, 12 times"), (0.75, 1.0, "**missed by 25 %**"),
    (None, 1.0, "–"), (1.0, None, "–")])
def test_verdict(measured, goal, words):
    assert report.verdict(measured, goal) == words


def test_ceilings_are_sums_of_times():
    size = 4 << 20
    speeds = {"memcpy": 10, "read": 20, "read two": 10, "r += g": 10, "write": 20}
    line = bounds.Roofline([{"operation": o, "bytes": size, "gb_per_s": s} for o, s in speeds.items()])
    assert line.ceiling([bounds.Pass("read")], size) == 2
    assert line.ceiling([bounds.Pass("read"), bounds.Pass("read")], size) == 1
    assert line.ceiling(bounds.ENCODE["3lc"], size) == pytest.approx(0.5)
    assert line.ceiling(bounds.ENCODE["fp16"], size) == pytest.approx(1 / (1 / 2 + 1 / 4))
    assert line.ceiling([bounds.FEEDBACK], 64 << 20) is None
    assert bounds.bytes_per_element(bounds.ENCODE["3lc"]) == 20
    assert bounds.bytes_per_element(bounds.ENCODE["3lc:scale=chunk"]) == 16
    assert bounds.bytes_per_element(bounds.passes_of("threshold:v=0.0046", "encode", scanned=True)) == 24
    assert bounds.bytes_per_element(bounds.passes_of("threshold:v=0.0046", "encode", scanned=False)) == 16
    assert bounds.bytes_per_element(bounds.passes_of("topk", "encode", scanned=False)) == 20


def point(spec, isa, encode, decode=2.0):
    return {"codec": spec, "elements": 1 << 20, "isa": isa, "encode_x_memcpy": encode, "decode_x_memcpy": decode,
            "encode_spread": {"low": encode, "high": encode}, "decode_spread": {"low": decode, "high": decode}}


def test_the_speed_in_the_cache_is_by_memcpy_of_the_row():
    large = {**point("int8", "avx2", 1.0), "memcpy_s": 1e-3, "encode_s": 1e-3}
    small = {**point("int8", "avx2", 1.0), "elements": 1 << 16, "memcpy_s": 1e-5, "encode_s": 2.5e-5}
    points = report.Points({"isas": ["avx2"], "points": [large, small]})
    assert report.in_cache(points, "int8", "encode", 4 << 20) == pytest.approx(2.5)
    assert report.in_cache(points, "int8", "encode", 64 << 20) is None
    assert report.in_cache(report.Points({"isas": ["avx2"], "points": [large]}), "int8", "encode", 4 << 20) is None


def test_each_instruction_set_has_goals_of_its_own():
    """An AVX2 machine is judged by AVX2's figure; beside AVX-512 it gets a table of its own."""
    blank = {"fused": [], "codec_only": [], "roofline": {"points": []}, "commands": {}}
    alone = {**blank, "isas": ["scalar", "avx2"], "points": [point("int8", "avx2", 1.3)]}
    rows = report.goal_rows(alone, report.Points(alone))
    assert [row[2:5] for row in rows] == [["1.2", "1.30 (1.30–1.30)", "met, +8 %"],
                                          ["1.3", "2.00 (2.00–2.00)", "met, +54 %"]]
    both = {**blank, "isas": ["avx2", "avx512"], "points": [point("int8", "avx2", 0.6), point("int8", "avx512", 1.3)]}
    page = "\n".join(report.goals(both))
    assert "| `int8` | encode | 1.35 | 1.30 (1.30–1.30) | **missed by 4 %** |" in page
    assert "| `int8` | encode | 1.2 | 0.60 (0.60–0.60) | **missed by 50 %** |" in page
    fused = next(g for g in plan.GOALS if g.peers > 1 and g.spec == "3lc")
    assert fused.value("decode", plan.GOAL_SIZES[0], "avx2") == 1.9
    assert plan.GOALS[0].value("encode", plan.GOAL_SIZES[1], "avx2") is None
    assert plan.GOALS[0].value("decode", plan.GOAL_SIZES[0], "sse4") is None


def test_a_goal_may_be_met_by_cycles_and_the_ceiling():
    speeds = {"memcpy": 10, "read": 10, "read two": 5, "r += g": 5, "write": 10, "write past the caches": 10}
    line = [{"operation": o, "bytes": size, "gb_per_s": s} for o, s in speeds.items() for size in plan.GOAL_SIZES]
    goal = plan.Goal("natural", (0.9, 0.9), cycles=(1.2, 1.9))

    def met(cycles, *measured):
        points = [{**point("natural", "avx512", m), "elements": size // 4} for m, size in zip(measured, plan.GOAL_SIZES)]
        small = {**point("natural", "avx512", 1.0), "elements": bounds.CACHED_SIZE // 4, "cycles_per_element": {"encode": cycles, "decode": 1}}
        results = {"isas": ["avx512"], "points": [*points, small], "roofline": {"points": line}, "fused": []}
        words = report.goal_row(results, report.Points(results), goal, "encode")
        assert words[-1] == f"{cycles:.2f} of 1.2"
        return [words[4], words[7]]

    # The passes, a read and a quarter of a write, allow 0.8 here.
    assert met(1.2, 0.7, 0.65) == ["met by cycles"] * 2
    assert met(1.3, 0.7, 0.65) == ["**missed by 22 %**", "**missed by 28 %**"]
    assert met(1.2, 0.7, 0.6) == ["**missed by 22 %**", "**missed by 33 %**"]
    assert met(1.2, 0.95, 0.65) == ["met, +6 %", "met by cycles"]


def test_a_goal_may_be_met_by_the_cycles_of_the_size_itself():
    """Memory that is much faster than arithmetic at the goal's speed: no share of its ceiling says anything."""
    goal = plan.Goal("natural", (0.9, 0.9), cycles=(1.2, 1.9))

    def met(*cycles):
        points = [{**point("natural", "avx512", 0.3), "elements": size // 4, "cycles_per_element": {"encode": c, "decode": 1}}
                  for c, size in zip(cycles, plan.GOAL_SIZES)]
        results = {"isas": ["avx512"], "points": points, "roofline": {"points": []}, "fused": []}
        missed = report.missed(results, report.Points(results))
        return [report.goal_row(results, report.Points(results), goal, "encode")[i] for i in (4, 7)], {m[2] for m in missed if m[1] == "encode"}

    assert met(1.1, 1.25) == (["met, 1.10 cycles here", "**missed by 67 %**"], {plan.GOAL_SIZES[1]})
    assert met(1.2, 0.05) == (["met, 1.20 cycles here", "met, 0.050 cycles here"], set())


def test_a_sparse_add_may_be_met_by_the_roofline():
    line = [{"operation": o, "bytes": size, "gb_per_s": s} for size in plan.GOAL_SIZES for o, s in (("memcpy", 10), ("add 1 of 100", 40))]
    goal = plan.Goal("topk+noef", (0.85, 0.85), plan.SPARSE_ADD, cycles=(1.2, 1.2))

    def met(decode):
        points = [{**point("topk+noef", "avx512", 1.0, decode), "elements": size // 4} for size in plan.GOAL_SIZES]
        results = {"isas": ["avx512"], "points": points, "roofline": {"points": line}, "fused": []}
        return [report.goal_row(results, report.Points(results), goal, "decode")[i] for i in (4, 7)]

    assert met(3.2) == ["met, 80 % of the roofline"] * 2
    assert met(3.1) == ["**missed by 84 %**", "**missed by 48 %**"]
    assert met(8.0) == ["met, 200 % of the roofline", "met, +33 %"]
    dense = plan.Goal("int8", decode=plan.STREAM)  # no other pass is judged so
    points = [{**point("int8", "avx512", 1.0, 1.2), "elements": size // 4} for size in plan.GOAL_SIZES]
    line += [{"operation": o, "bytes": size, "gb_per_s": 10} for size in plan.GOAL_SIZES for o in ("read", "write", "write past the caches")]
    results = {"isas": ["avx512"], "points": points, "roofline": {"points": line}, "fused": []}
    assert all(report.goal_row(results, report.Points(results), dense, "decode")[i].startswith("**missed") for i in (4, 7))


def test_the_page_names_its_command_and_remark(results):
    text = report.markdown({**results, "command": "bench/run.py --budget 400", "remark": "On a borrowed machine."})
    assert "Made by `bench/run.py --budget 400` in one run" in text and "\n\nOn a borrowed machine.\n\n" in text


def test_every_goal_has_its_passes():
    for goal in plan.GOALS:
        if goal.encode[0] is not None:
            assert bounds.passes_of(goal.spec, "encode"), goal.spec
        assert goal.peers > 1 or goal.spec in plan.SPECS
