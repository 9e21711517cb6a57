# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The laconic command from outside: JSON shapes, exit statuses, error texts."""

import array
import json
import math
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "golden"))

from xxh3 import xxh3_64  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
BINARY = Path(os.environ.get("LACONIC_CLI", ROOT / "build" / "release" / "bin" / "laconic"))

pytestmark = pytest.mark.skipif(not BINARY.exists(), reason=f"{BINARY} is not built")

FINE, BAD_ANSWER, USAGE = 0, 1, 2


def laconic(*words, env=None):
    return subprocess.run([BINARY, *map(str, words)], capture_output=True, text=True, timeout=280,
                          env={**os.environ, **(env or {})})


def answer(*words):
    done = laconic(*words, "--json")
    assert done.returncode == FINE, done.stdout + done.stderr
    return json.loads(done.stdout)


def failure(status, *words):
    """The error as JSON, after a look at the same error as text."""
    text = laconic(*words)
    assert text.returncode == status
    assert text.stdout == ""
    done = laconic(*words, "--json")
    assert done.returncode == status
    error = json.loads(done.stdout)["error"]
    assert set(error) == {"code", "name", "message", "hint"}
    assert isinstance(error["code"], int)
    assert error["name"] in text.stderr and error["message"] in text.stderr
    return error


# ---- the program ----


def test_version_is_printed():
    header = (ROOT / "include/laconic/version.h").read_text()
    version = re.search(r'VERSION_STRING "([^"]+)"', header)[1]
    assert laconic("--version").stdout == f"laconic {version}\n"


def test_help_names_every_command():
    done = laconic("--help")
    assert done.returncode == FINE
    for command in ("list", "bench", "inspect", "verify", "doctor", "laws", "replay", "rules"):
        assert command in done.stdout
        assert laconic(command, "--help").returncode == FINE


@pytest.mark.parametrize("words", [[], ["nonsense"], ["list", "--nonsense"], ["inspect"], ["bench", "--threads", "0"]])
def test_usage_errors_exit_with_2(words):
    done = laconic(*words)
    assert done.returncode == USAGE
    assert "--help" in done.stderr


def test_output_has_no_colour_without_terminal():
    assert "\x1b" not in laconic("list").stdout
    assert "\x1b" not in laconic("list", env={"CLICOLOR_FORCE": "1"}).stdout


# ---- list ----


def test_list_prints_json():
    codecs = answer("list")["codecs"]
    names = [codec["name"] for codec in codecs]
    assert "none" in names and len(names) == len(set(names))
    for codec in codecs:
        assert {"name", "summary", "params", "contract"} <= set(codec)
        for param in codec["params"]:
            assert {"name", "type", "default", "min", "max", "help"} <= set(param)
            assert param["type"] in ("real", "integer", "word", "flag")
            if param["type"] == "word":
                assert param["default"] in param["words"]
            else:
                assert param["min"] <= param["default"] <= param["max"]
        contract = codec["contract"]
        assert contract["feedback"] in ("never", "own", "aggregate")
        assert set(contract["memories"]) <= {"none", "residual", "ema", "momentum"} and "none" in contract["memories"]
        assert contract["memory_default"] in contract["memories"]
        assert contract["feedback_default"] == (contract["memory_default"] != "none")
        assert ("residual" in contract["memories"]) == (contract["feedback"] != "never")


def test_list_has_survey_classes():
    known = {"none": "none", "fp16": "cast", "bf16": "cast", "int8": "quantization", "topk": "sparsification", "randomk": "sparsification",
             "sidco": "sparsification", "3lc": "hybrid", "powersgd": "low-rank", "u8": "quantization", "onebit": "quantization",
             "signsgd": "quantization", "signum": "quantization", "efsignsgd": "quantization", "qsgd": "quantization",
             "terngrad": "quantization", "natural": "quantization", "inceptionn": "quantization", "threshold": "sparsification",
             "dgc": "sparsification", "adaq": "hybrid", "sketchml": "hybrid", "blocktopk": "sparsification"}
    words = {"quantization", "sparsification", "hybrid", "low-rank", "cast", "none"}
    lines = {line.split()[0]: line.split()[1] for line in laconic("list").stdout.split("\n\n")[0].splitlines()[1:]}
    codecs = answer("list")["codecs"]
    assert lines == {codec["name"]: codec["class"] for codec in codecs}
    for codec in codecs:
        assert codec["class"] in words and codec["class"] == known.get(codec["name"], codec["class"])
        assert f"class: {codec['class']}" in laconic("list", codec["name"]).stdout


def test_list_json_matches_library():
    from laconic.core import _lib

    said = _lib.lib.laconic_codecs_json()
    assert laconic("list", "--json").stdout.encode() == said + b"\n"
    for codec in json.loads(said)["codecs"]:
        assert answer("list", codec["name"])["codecs"] == [codec]


def test_list_shows_one_codec():
    assert [codec["name"] for codec in answer("list", "none")["codecs"]] == ["none"]
    error = failure(USAGE, "list", "nome")
    assert error["name"] == "unknown_codec" and "'none'" in error["hint"]


def test_specs_page_matches_list():
    page = (ROOT / "docs/guide/specs.md").read_text()
    assert laconic("list", "--markdown").stdout.strip() in page, \
        "docs/guide/specs.md is out of date: paste the output of `laconic list --markdown`"


# ---- bench ----


def test_bench_prints_json():
    result = answer("bench", "--spec", "none", "--spec", "none", "--size", "4Ki", "--size", "8k", "--seconds", "0.01")
    assert {"cpu", "cores", "isas"} <= set(result["machine"])
    assert [(r["codec"], r["elements"]) for r in result["results"]] == [("none", 1024)] * 2 + [("none", 2000)] * 2
    for r in result["results"]:
        assert {"isa", "threads", "encode_x_memcpy", "decode_x_memcpy", "encode_s", "decode_s", "payload_bytes",
                "ratio"} <= set(r)
        assert r["payload_bytes"] == 4 * r["elements"] and r["ratio"] == 1
        assert r["encode_x_memcpy"] > 0 and r["decode_s"] > 0
        for direction in ("encode", "decode"):
            cycles = r[f"{direction}_s"] * r["clock_ghz"] * 1e9 / r["elements"]
            assert r["cycles_per_element"][direction] == pytest.approx(cycles, rel=1e-9)
        assert 0.1 < r["clock_ghz"] < 20
        assert r["error_metrics"] == {"relative_l2": 0, "cosine": 1, "max_abs": 0}


def test_bench_runs_every_codec():
    result = answer("bench", "--size", "64Ki", "--seconds", "0.01", "--data", "layered")
    assert [r["codec"] for r in result["results"]] == [codec["name"] for codec in answer("list")["codecs"]]


def test_bench_runs_codec_on_every_isa():
    result = answer("bench", "--spec", "3lc", "--spec", "topk", "--size", "64Ki", "--seconds", "0.01", "--isa", "all", "--data", "layered")
    assert len(result["results"]) == 2 * len(result["machine"]["isas"])
    for name in ("3lc", "topk"):  # the same bytes on all of them
        assert len({r["payload_bytes"] for r in result["results"] if r["codec"].partition(":")[0] == name}) == 1


def test_bench_prints_the_canonical_spec():
    result = answer("bench", "--spec", "topk:ratio=1e-1+ef", "--size", "4Ki", "--seconds", "0.01")
    assert result["results"][0]["codec"] == "topk:ratio=0.1"
    assert result["results"][0]["decode"] == "add"


def test_bench_takes_input_and_peers(tmp_path):
    path = tmp_path / "gradient.f32"
    path.write_bytes(array.array("f", [(-1) ** i * i / 1000 for i in range(3000)]).tobytes())
    result = answer("bench", "--spec", "topk", "--input", path, "--peers", "3", "--seconds", "0.01")
    point = result["results"][0]
    assert point["elements"] == 3000 and point["peers"] == 3
    cycles = point["decode_s"] * point["clock_ghz"] * 1e9 / (3000 * 3)
    assert point["cycles_per_element"]["decode"] == pytest.approx(cycles, rel=1e-9)
    path.write_bytes(b"12345")
    assert "float32" in failure(USAGE, "bench", "--input", path)["message"]


def test_bench_reads_npy(tmp_path):
    """The header of a .npy file is not measured as values."""
    values = [(-1) ** i * i / 1000 for i in range(3000)]
    path, raw = tmp_path / "gradient.npy", tmp_path / "gradient.f32"
    path.write_bytes(npy("(30, 100)", values))
    raw.write_bytes(array.array("f", values).tobytes())
    of_npy, of_raw = (answer("bench", "--spec", "topk", "--input", file, "--seconds", "0.01")["results"][0] for file in (path, raw))
    assert of_npy["elements"] == 3000 and of_npy["error_metrics"] == of_raw["error_metrics"]
    path.write_bytes(npy("(30, 100)", values[:-1]))
    assert "30 x 100 elements" in failure(USAGE, "bench", "--input", path)["message"]


@pytest.mark.parametrize(("words", "name", "hint"), [
    (["--spec", "topk:ratio=2"], "value_out_of_range", "default"),
    (["--spec", "topk:ration=0.1"], "unknown_key", "'ratio'"),
    (["--spec", "auto"], "unknown_codec", "name one"),
    (["--spec", "none+ef"], "unsupported", "+ef"),
    (["--spec", "a|b"], "unsupported", "one codec"),
    (["--size", "4X"], "invalid_argument", "4Mi"),
    (["--size", "0"], "invalid_argument", "4Mi"),
    (["--size", "99999999999999999999"], "invalid_argument", "4Mi"),
    (["--isa", "mmx"], "invalid_argument", "scalar"),
    (["--input", "/nonexistent"], "invalid_argument", ""),
])
def test_bench_errors_are_reported(words, name, hint):
    error = failure(USAGE, "bench", *words)
    assert error["name"] == name and hint in error["hint"]


# ---- inspect, verify ----


def test_missing_files_are_reported():
    for command in ("inspect", "verify"):
        assert "/nonexistent" in failure(USAGE, command, "/nonexistent")["message"]


@pytest.mark.parametrize("content", [b"", b"x", bytes(200), b"LCNC" + bytes(200)])
def test_non_frames_are_refused(tmp_path, content):
    path = tmp_path / "frame"
    path.write_bytes(content)
    for command in ("inspect", "verify"):
        assert failure(BAD_ANSWER, command, path)["name"].startswith("frame_")


def golden(condition):
    frames = json.loads((ROOT / "tests/golden/v1/manifest.json").read_text())["frames"]
    paths = [ROOT / "tests/golden/v1" / frame["file"] for frame in frames if condition(frame)]
    return pytest.mark.parametrize("path", sorted(paths), ids=lambda path: path.stem)


@golden(lambda frame: frame["errc"] != "ok")
def test_bad_golden_frames_are_refused(path):
    for command in ("inspect", "verify"):
        failure(BAD_ANSWER, command, path)


@golden(lambda frame: frame["errc"] == "ok")
def test_good_golden_frames_are_read(path, tmp_path):
    frame = answer("inspect", path)["frame"]
    assert frame["checksum"] == "ok" and frame["count"] == frame["rows"] * frame["cols"]
    decoded = path.with_suffix(".f32")
    if not decoded.exists():  # a header of no codec, for the parser alone
        assert laconic("verify", path).returncode == BAD_ANSWER
        return
    output = tmp_path / "decoded.f32"
    result = answer("verify", path, "--output", output, "--original", decoded)
    assert result["ok"] and result["error_metrics"]["max_abs"] == 0
    assert output.read_bytes() == decoded.read_bytes()
    broken = bytearray(path.read_bytes())
    broken[-1] ^= 1
    (tmp_path / "broken").write_bytes(broken)
    failure(BAD_ANSWER, "verify", tmp_path / "broken")


# ---- verify --spec ----


def measured(spec, path, *words):
    figures = answer("verify", "--spec", spec, "--input", path, *words)
    assert list(figures) == ["ratio", "cosine", "nmse", "max_error", "bias", "steady_ratio", "steady_nmse"]
    return figures


@pytest.fixture
def four(tmp_path):
    path = tmp_path / "four.f32"
    path.write_bytes(array.array("f", [3, -1, 0.5, -0.5]).tobytes())
    return path


def test_figures_match_hand_computation(four):
    """|x|^2 = 10.5. The largest goes: y = (3, 0, 0, 0), x.y = 9; one value and an index of two bits are 5 bytes. With feedback
    the steps encode (3, -1, .5, -.5), (3, -2, 1, -1), (3, -3, 1.5, -1.5) with the lower index first, (3, -4, 2, -2): they send
    3, 3, 3 of the first and -4 of the second, whose means are 2.25 and -1."""
    figures = measured("topk:ratio=0.25", four, "--steps", 4)
    assert figures == pytest.approx({"ratio": 16 / 5, "cosine": 9 / (3 * math.sqrt(10.5)), "nmse": 1.5 / 10.5, "max_error": 1,
                                     "bias": 9 / 10.5 - 1, "steady_ratio": 16 / 5, "steady_nmse": (0.75**2 + 2 * 0.5**2) / 10.5})
    alone = measured("topk:ratio=0.25+noef", four)  # nothing is remembered: all steps are the first
    assert alone["steady_nmse"] == alone["nmse"] == pytest.approx(1.5 / 10.5)


def test_figures_of_lossless_codec_are_zero(four):
    assert measured("none", four) == {"ratio": 1, "cosine": 1, "nmse": 0, "max_error": 0, "bias": 0, "steady_ratio": 1, "steady_nmse": 0}


def test_figures_of_random_rounding_match(tmp_path):
    """Each step draws again, so their mean is nearer than one of them: by the number of steps."""
    path = tmp_path / "x.f32"
    draw = random.Random(3)
    path.write_bytes(array.array("f", [draw.gauss(0, 1) for _ in range(20000)]).tobytes())
    figures = measured("int8:round=stochastic", path, "--steps", 16)
    assert abs(figures["bias"]) < 1e-3 and figures["steady_nmse"] == pytest.approx(figures["nmse"] / 16, rel=0.1)


def npy(shape, values, *, descr="<f4", order=False, version=1, header=None):
    text = header if header is not None else f"{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}"
    text += " " * (-(len(text) + 11) % 64) + "\n"
    size = len(text).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + size + text.encode() + array.array("f", values).tobytes()


@pytest.mark.parametrize("version", [1, 2, 3])
def test_figures_come_from_npy_files(tmp_path, four, version):
    path = tmp_path / "x.npy"
    for shape in ("(4,)", "(2, 2)", "(1, 4)"):
        path.write_bytes(npy(shape, [3, -1, 0.5, -0.5], version=version))
        assert measured("topk:ratio=0.25", path) == measured("topk:ratio=0.25", four)
    path.write_bytes(npy("(8, 8)", [i * j for i in range(1, 9) for j in range(1, 9)], version=version))
    assert measured("powersgd:rank=1", path)["nmse"] < 1e-9  # a matrix, not a vector: of rank one
    without = path.rename(tmp_path / "x")  # by its first bytes
    assert measured("powersgd:rank=1", without)["nmse"] < 1e-9


BAD_FILES = {
    "empty": (b"", "holds no elements"), "uneven": (b"12345", "5 bytes"),
    "nan": (array.array("f", [1, math.nan]).tobytes(), "element 1 of the gradient is nan"),
    "inf": (array.array("f", [-math.inf]).tobytes(), "element 0 of the gradient is -inf"),
    "zero": (bytes(8), "every element of the gradient is zero"),
    "not.npy": (bytes(16), "does not begin with"), "cut.npy": (npy("(4,)", [1] * 4)[:9], "ends within"),
    "cut2.npy": (npy("(4,)", [1] * 4)[:40], "ends within"), "new.npy": (npy("(4,)", [1] * 4, version=4), "version 4"),
    "double.npy": (npy("(2,)", [1] * 4, descr="<f8"), "'<f8'"), "big.npy": (npy("(4,)", [1] * 4, descr=">f4"), "'>f4'"),
    "fortran.npy": (npy("(2, 2)", [1] * 4, order=True), "Fortran"), "scalar.npy": (npy("()", [1]), "0 dimensions"),
    "cube.npy": (npy("(1, 2, 2)", [1] * 4), "3 dimensions"), "short.npy": (npy("(5,)", [1] * 4), "5 x 1 elements"),
    "long.npy": (npy("(3,)", [1] * 4), "3 x 1 elements"), "hollow.npy": (npy("(0, 3)", []), "holds no elements"),
    "wraps.npy": (npy("(4611686018427387905, 4)", [1] * 4), "has 16 bytes"), "huge.npy": (npy("(99999999999999999999,)", [1]), "not a dict"),
    "minus.npy": (npy("(-4,)", [1] * 4), "not a dict"), "list.npy": (npy("", [1], header="[1, 2]"), "not a dict"),
    "twice.npy": (npy("", [1], header="{'shape': (1,), 'shape': (1,), 'descr': '<f4', 'fortran_order': False}"), "not a dict"),
    "lacks.npy": (npy("", [1], header="{'shape': (1,), 'descr': '<f4'}"), "not a dict"),
    "tail.npy": (npy("", [1], header="{'shape': (1,), 'descr': '<f4', 'fortran_order': False} + 1"), "not a dict"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_unmeasurable_gradients_are_refused(tmp_path, name):
    content, word = BAD_FILES[name]
    (tmp_path / name).write_bytes(content)
    error = failure(USAGE, "verify", "--spec", "topk", "--input", tmp_path / name)
    assert word in error["message"] and "\n" not in error["message"], error


def test_npy_headers_are_parsed_totally(tmp_path):
    """Cut anywhere, or with any byte changed: an answer."""
    path, whole = tmp_path / "x.npy", npy("(4,)", [1, 2, 3, 4])
    draw = random.Random(5)
    for case in range(60):
        content = bytearray(whole[: draw.randrange(len(whole))] if case % 2 else whole)
        if content:
            content[draw.randrange(len(content))] = draw.randrange(256)
        path.write_bytes(content)
        assert laconic("verify", "--spec", "int8", "--input", path).returncode in (FINE, USAGE)


@pytest.mark.parametrize("words", [["--spec", "topk"], ["--input", "x"], [], ["frame", "--spec", "topk", "--input", "x"],
                                   ["frame", "--steps", "3"], ["--spec", "topk", "--input", "x", "--steps", "0"]])
def test_verify_takes_frame_or_spec(words):
    assert failure(USAGE, "verify", *words)["name"] == "invalid_argument"


def test_verify_prints_four_digits_and_all_in_json(tmp_path):
    path = tmp_path / "x.f32"
    path.write_bytes(array.array("f", [1.0, 0.3, -0.2] * 100).tobytes())
    words = ("verify", "--spec", "onebit", "--input", path)
    text = dict(line.split() for line in laconic(*words).stdout.splitlines())
    figures = json.loads(laconic(*words, "--json").stdout)
    assert list(text) == list(figures)
    assert all(value == f"{figures[name]:.4g}" for name, value in text.items())


def test_verify_names_limits_of_each_figure():
    text = laconic("verify", "--help").stdout
    assert text.count("blind to") == 7 and "a sign has no scale" in text
    for name in ("ratio", "cosine", "nmse", "max_error", "bias", "steady_ratio", "steady_nmse"):
        assert f"\n  {name} " in text


def test_verify_reports_spec_errors(four):
    assert failure(USAGE, "verify", "--spec", "topkk", "--input", four)["name"] == "unknown_codec"


def test_verify_requires_equal_number_of_values(tmp_path):
    path = tmp_path / "short.f32"
    path.write_bytes(bytes(4))
    frames = sorted((ROOT / "tests/golden/v1/frames").glob("topk*12x20.frame"))
    assert "240" in failure(USAGE, "verify", frames[0], "--original", path)["message"]


def test_verify_of_too_many_elements_is_refused(tmp_path):
    """A frame of zeros needs no payload: 106 bytes may claim 4 TiB."""
    frames = json.loads((ROOT / "tests/golden/v1/manifest.json").read_text())["frames"]
    whole = (ROOT / "tests/golden/v1" / next(f["file"] for f in frames if f["errc"] == "ok" and "topk" in f["file"]))
    data = bytearray(whole.read_bytes())
    data = data[:int.from_bytes(data[6:8], "little")]
    data[5] = 1  # all zero, so without a payload
    for at, value in ((24, 1 << 40), (32, 1 << 40), (40, 1), (80, 0)):
        data[at:at + 8] = value.to_bytes(8, "little")
    data[8:16] = xxh3_64(bytes(data[16:]), int.from_bytes(data[:8], "little")).to_bytes(8, "little")
    path = tmp_path / "frame"
    path.write_bytes(data)
    assert answer("inspect", path)["frame"]["count"] == 1 << 40
    assert failure(BAD_ANSWER, "verify", path)["name"] == "out_of_memory"


# ---- laws ----


def floats(path, values):
    path.write_bytes(array.array("f", values).tobytes())
    return path


def laplace(count, seed):
    """As quantiles in a random order, so that distances are small: signs in turn."""
    order = random.Random(seed).sample(range(count), count)
    return [(-1) ** i * -math.log1p(-(i + 0.5) / count) for i in order]


def test_laws_prints_json(tmp_path):
    path = floats(tmp_path / "layer.f32", laplace(20000, 0) + [math.copysign(math.expm1(0.2 * abs(x)) / 0.2, x)
                                                              for x in laplace(20000, 1)])
    specs = ["sidco:ratio=0.01,stages=3", "sidco:ratio=0.01,law=gp,stages=1,guard=off"]
    tensors = answer("laws", "--values", "20000", *[word for spec in specs for word in ("--spec", spec)], path)["tensors"]
    assert [(t["file"], t["index"], t["values"], t["nonzero"]) for t in tensors] == [(str(path), i, 20000, 20000) for i in (0, 1)]
    for t in tensors:
        assert {law: set(t["laws"][law]) for law in t["laws"]} == {
            "exponential": {"ks"}, "gamma": {"ks", "shape"}, "pareto": {"ks", "shape"}, "normal": {"ks"}, "laplace": {"ks"}}
        assert [fit["spec"] for fit in t["fits"]] == specs and t["compressibility"] > 0
        for fit, stages in zip(t["fits"], (3, 1)):
            assert fit["wanted"] == 200 and len(fit["stages"]) == stages
            assert fit["fitted"] == fit["stages"][-1]["selected"]
            assert fit["stages"][-1]["wanted"] == pytest.approx(200)
        assert t["fits"][0]["sent"] == pytest.approx(200, rel=0.2)
    near, far = (t["laws"] for t in tensors)
    assert near["exponential"]["ks"] < 0.002 and near["laplace"]["ks"] < 0.002 < 0.1 < near["normal"]["ks"]
    assert far["exponential"]["ks"] > 0.04 > 0.01 > far["pareto"]["ks"]
    assert far["pareto"]["shape"] == pytest.approx(0.2, abs=0.03)


def test_laws_selects_like_threshold(tmp_path):
    values = laplace(5000, 3)
    fit = answer("laws", floats(tmp_path / "a", values), "--spec", "sidco:ratio=0.01,stages=2")["tensors"][0]["fits"][0]
    assert sum(abs(x) > fit["threshold"] for x in array.array("f", values)) == fit["sent"]
    for stage in fit["stages"]:
        assert sum(abs(x) > stage["threshold"] for x in array.array("f", values)) == stage["selected"]


def test_laws_adapts_along_a_file(tmp_path):
    """A normal law needs more than one stage: five calls with a tensor move the number, one does not."""
    draw = random.Random(0).gauss
    path = floats(tmp_path / "a", [draw(0, 1) for _ in range(3 * 5000)])
    specs = ("--spec", "sidco:ratio=0.01,law=exp,mode=signed", "--values", 5000, path)
    assert [len(t["fits"][0]["stages"]) for t in answer("laws", *specs)["tensors"]] == [1, 1, 1]
    assert [len(t["fits"][0]["stages"]) for t in answer("laws", "--calls", 5, *specs)["tensors"]] == [1, 2, 3]


@pytest.mark.parametrize(("values", "why"), [
    ([], "too few values: 0"), ([1.0], "too few values: 1"), ([0.0] * 100, "too few values: 0"),
    ([0.0] * 100 + [1.0] * 15, "too few values: 15"), ([1.0] * 50 + [math.nan], "not finite"), ([math.inf] * 50, "not finite"),
])
def test_laws_reports_what_it_cannot_fit(tmp_path, values, why):
    path = floats(tmp_path / "a", values)
    tensor, = answer("laws", path)["tensors"]
    assert tensor["why"].startswith(why) and "laws" not in tensor and tensor["values"] == len(values)
    assert why in laconic("laws", path).stdout


def test_laws_handles_equal_and_tiny_tensors(tmp_path):
    """Equal magnitudes have no spread: what the codec does not fit is null."""
    tensor, = answer("laws", floats(tmp_path / "a", [2.0, -2.0] * 8))["tensors"]
    assert tensor["laws"]["gamma"] is None and tensor["laws"]["pareto"] is None
    assert tensor["fits"][0]["sent"] == tensor["fits"][0]["wanted"] == 1 and tensor["fits"][0]["exact"]
    tensor, = answer("laws", tmp_path / "a", "--spec", "sidco:ratio=1")["tensors"]
    assert tensor["fits"][0]["stages"] == [] and tensor["fits"][0]["sent"] == 16


@pytest.mark.parametrize(("words", "name", "message"), [
    (["/nonexistent"], "invalid_argument", "/nonexistent: cannot open"),
    (["/"], "invalid_argument", "/: cannot"),
    (["{file}", "--spec", "sidco:law=normal"], "value_out_of_range", "law"),
    (["{file}", "--spec", "topk"], "invalid_argument", "topk matches no distribution"),
    (["{file}", "--values", "3"], "invalid_argument", "8 values are not a whole number of tensors of 3"),
    (["{odd}"], "invalid_argument", "7 bytes are not a whole number of float32"),
    (["{file}", "--calls", "0"], "invalid_argument", "--calls"),
    ([], "invalid_argument", "files"),
])
def test_laws_errors_are_reported(tmp_path, words, name, message):
    paths = {"file": floats(tmp_path / "file", [1.0] * 8), "odd": tmp_path / "odd"}
    paths["odd"].write_bytes(bytes(7))
    error = failure(USAGE, "laws", *[word.format(**paths) for word in words])
    assert error["name"] == name and message in error["message"]


# ---- doctor ----


def test_doctor_passes():
    report = answer("doctor")
    assert report["ok"] is True
    assert report["isa"]["chosen"] == report["isa"]["available"][-1]
    assert report["nccl"]["able"] or report["nccl"]["why"]
    assert report["network_lab"]["able"] or report["network_lab"]["why"]
    text = laconic("doctor").stdout.splitlines()
    assert "usable       yes" in text and "python -m laconic.doctor" in text[-1]


def test_doctor_reports_nccl_and_why_it_cannot_run(tmp_path):
    done = laconic("doctor", env={"LACONIC_NCCL_LIB": "/nonexistent/libnccl.so.2"})
    assert re.search(r"^NCCL +no: NCCL cannot be used: /nonexistent/libnccl.so.2: cannot open", done.stdout, re.M)
    fake = BINARY.parents[1] / "lib" / "liblaconic_fake_nccl.so"
    if not fake.exists():
        pytest.skip("the recording NCCL is not built: scripts/build release laconic_fake_nccl")
    (tmp_path / "libcuda.so.1").symlink_to(fake)  # what the loader finds before a real driver
    env = {"LACONIC_NCCL_LIB": str(fake), "LD_LIBRARY_PATH": str(tmp_path)}
    assert "\nNCCL         2.27.3, GPUs: 2\n" in laconic("doctor", env=env).stdout
    found = json.loads(laconic("doctor", "--json", env={**env, "FAKE_NCCL_DEVICES": "0"}).stdout)["nccl"]
    why = "no GPU: cuInit failed: no CUDA-capable device is detected"
    assert found == {"found": True, "able": False, "library": str(fake), "version": "2.27.3", "gpus": 0, "why": why,
                     "override": "LACONIC_NCCL_LIB"}
    text = laconic("doctor", env={**env, "FAKE_NCCL_DEVICES": "0"}).stdout
    assert f"\nNCCL         2.27.3, and cannot run here: {why}\n" in text


@pytest.fixture
def fake_gpu(tmp_path):
    """The environment of a command that finds a simulated GPU."""
    fake = BINARY.parents[1] / "lib" / "liblaconic_fake_nccl.so"
    if not fake.exists():
        pytest.skip("the simulated driver is not built: scripts/build release laconic_fake_nccl")
    (tmp_path / "libcuda.so.1").symlink_to(fake)
    return {"LD_LIBRARY_PATH": str(tmp_path)}


@pytest.fixture
def no_driver(tmp_path):
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "libcuda.so.1").write_bytes(b"no library")
    return {"LD_LIBRARY_PATH": str(tmp_path / "none")}


def test_doctor_reports_kernels_for_gpus(fake_gpu, no_driver):
    found = json.loads(laconic("doctor", "--json", env=fake_gpu).stdout)["device"]
    text = laconic("doctor", env=fake_gpu).stdout
    assert (found["gpu"], found["driver"]) == ("Fake GPU, compute capability 9.0", "13.0")
    if found["embedded"]:
        assert found["able"] and found["image"] == "sm_90" and "PTX of compute_80" in found["embedded"]
        assert "\nGPU kernels  sm_90 on Fake GPU, compute capability 9.0; driver of CUDA 13.0\n" in text
    else:
        assert "\nGPU kernels  no: this build has no kernels for GPUs\n" in text
    none = laconic("doctor", env={**fake_gpu, "FAKE_NCCL_DEVICES": "0"}).stdout
    assert "\nGPU kernels  no: no GPU: cuInit failed: no CUDA-capable device is detected\n" in none
    assert re.search(r"^GPU kernels  no: no NVIDIA driver: .*libcuda.so.1", laconic("doctor", env=no_driver).stdout, re.M)


# ---- bench --device ----


def test_device_bench_without_gpu_is_one_line(no_driver):
    done = laconic("bench", "--device", "--size", "4Ki", env=no_driver)
    assert done.returncode == BAD_ANSWER and done.stdout == "" and "no NVIDIA driver" in done.stderr and len(done.stderr.splitlines()) <= 2
    assert laconic("bench", "--device", "--threads", "2").returncode == USAGE


def embeds_kernels():
    return bool(json.loads(laconic("doctor", "--json").stdout)["device"]["embedded"])


def test_device_bench_measures_codecs_with_kernels(fake_gpu):
    if not embeds_kernels():
        pytest.skip("built without nvcc")
    words = ["bench", "--device", "--size", "20000", "--seconds", "0.01"]
    report = json.loads(laconic(*words, "--json", env=fake_gpu).stdout)
    assert report["gpu"].startswith("Fake GPU") and report["image"] == "sm_90"
    points = {point["codec"].partition(":")[0].partition("+")[0]: point for point in report["results"]}
    assert {"fp16", "bf16", "int8", "3lc", "signsgd"} <= set(points)
    assert "inceptionn" not in points
    point = points["int8"]
    moved = 20000 * (3 if point["feedback"] else 1) + point["payload_bytes"]
    assert point["elements"] == 5000 and point["samples"] >= 4
    for name, moved in (("encode", moved), ("check", point["payload_bytes"]), ("decode", 20000 + point["payload_bytes"])):
        share = moved / (2 * 20000) * point["copy_s"] / point[name]["seconds"]
        assert abs(point[name]["share"] - share) < 1e-3 * share
    table = laconic(*words, "--spec", "int8", env=fake_gpu).stdout
    assert table.splitlines()[0].split()[:5] == ["codec", "size", "units", "ratio", "encode"] and "sm_90 of Fake GPU" in table


def test_device_bench_encodes_units_by_one_batch(fake_gpu):
    """And holds the payload of each against the CPU's: the third alone has that size."""
    if not embeds_kernels():
        pytest.skip("built without nvcc")
    words = ["bench", "--device", "--spec", "int8+noef", "--size", str(4 * 5002), "--seconds", "0.01", "--units", "3"]
    one, units = json.loads(laconic(*words, "--json", env=fake_gpu).stdout)["results"]
    sizes = [count + 4 * -(-count // 256) for count in (1667, 1667, 1668)]
    assert (one["units"], units["units"], units["elements"]) == (1, 3, 5002) and "encode_over_one" not in one
    assert units["payload_bytes"] == sum(sizes)
    assert units["encode_over_one"] == pytest.approx(units["encode"]["seconds"] / one["encode"]["seconds"])
    rows = laconic(*words, env=fake_gpu).stdout.splitlines()
    assert [row.split()[3] for row in rows[1:3]] == ["1", "3"] and float(rows[2].split()[-1]) > 0
    wrong = laconic(*words, env={**fake_gpu, "FAKE_CUDA_WRONG": str(sizes[2])})
    assert wrong.returncode == BAD_ANSWER and "payloads of the GPU and of the CPU differ" in wrong.stderr


def test_device_bench_refuses_more_units_than_elements():
    assert "--units 9: there are 8 elements" in failure(USAGE, "bench", "--device", "--size", "32", "--units", "9")["message"]
    assert laconic("bench", "--units", "2").returncode == USAGE


def test_device_bench_notices_wrong_payloads(fake_gpu):
    if not embeds_kernels():
        pytest.skip("built without nvcc")
    done = laconic("bench", "--device", "--spec", "int8+noef", "--size", "4Ki", env={**fake_gpu, "FAKE_CUDA_WRONG": "1"})
    assert done.returncode == BAD_ANSWER and "payloads of the GPU and of the CPU differ" in done.stderr
