# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Faults that scripts/kernels finds in PTX. Compiling the kernels is the section `cuda`."""

import importlib.util
import re
from importlib.machinery import SourceFileLoader
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
loader = SourceFileLoader("kernels", str(ROOT / "scripts" / "kernels"))
kernels = importlib.util.module_from_spec(importlib.util.spec_from_loader("kernels", loader))
loader.exec_module(kernels)

GOOD = ".visible .entry a(\n)\n{\n\tmul.rn.f32 \t%f1, %f2, %f3;\n\tadd.rn.f32 \t%f4, %f1, %f5;\n\tdiv.rn.f32 %f6, %f4, %f1;\n\tmad.lo.s32 %r1, %r2, %r3, %r4;\n}\n"


def test_ptx_with_separate_roundings_is_accepted():
    assert kernels.faults_of_ptx(GOOD, {"a"}) == []


def test_ptx_that_changes_bits_is_refused():
    for bad in ("fma.rn.f32 %f1, %f2, %f3, %f4;", "mad.rn.f32 %f1, %f2, %f3, %f4;", "add.ftz.f32 %f1, %f2, %f3;", "mul.rn.ftz.f32 %f1, %f2, %f3;",
                "div.approx.f32 %f1, %f2, %f3;", "fma.rn.f64 %d1, %d2, %d3, %d4;"):
        assert kernels.faults_of_ptx(GOOD + bad, {"a"}) == [f"line 9: {bad}"]


def test_functions_of_doubles_fuse_in_their_kernels_alone():
    inside = "fma.rn.f64 %d1, %d2, %d3, %d4;\nrcp.approx.ftz.f64 %d5, %d1;\n"
    called = ".func (.param .b64 r) __internal_accurate_pow(\n)\n{\n" + inside + "}\n"
    fits = ".visible .entry laconic_SidcoFit(\n)\n{\n" + inside
    assert kernels.faults_of_ptx(GOOD + called + fits + "}\n", {"a", "laconic_SidcoFit"}) == []
    assert len(kernels.faults_of_ptx(fits + "fma.rn.f32 %f1, %f2, %f3, %f4;\n}\n", {"laconic_SidcoFit"})) == 1
    assert len(kernels.faults_of_ptx(called + GOOD + inside, {"a"})) == 2


def test_gpu_page_names_every_codec_with_kernels():
    page = (ROOT / "docs" / "guide" / "gpu.md").read_text(encoding="utf-8")
    listed = re.search(r"has the kernels of\s+the casts, (.*?) in liblaconic", page, re.S)[1]
    sources = {path.parent for path in (ROOT / "src" / "codecs").glob("*/*_device.cc")} - {ROOT / "src" / "codecs" / "cast"}
    names = {re.search(r'CodecInfo info\{\s*"(\w+)"', "".join(path.read_text(encoding="utf-8") for path in folder.glob("*.h")))[1] for folder in sources}
    assert set(re.findall(r"`(\w+)`", listed)) == names


def test_kernels_of_the_list_and_of_the_ptx_are_the_same():
    assert kernels.faults_of_ptx(GOOD, {"a", "b"}) == ["no kernel b"]
    assert kernels.faults_of_ptx(GOOD, set()) == ["a is not in kernel_list.h"]
    assert "laconic_Measure" in kernels.listed()


def test_library_embeds_what_is_compiled():
    source = (ROOT / "src" / "kernels" / "device_images.cc").read_text(encoding="utf-8")
    embedded = re.findall(r'LACONIC_EMBED\("\w+", "(sm_\d+)\.cubin"\)', source)
    assert embedded == kernels.SHIPPED == [f"sm_{number}" for number in (80, 90, 100, 120)]
    assert re.findall(r"\{(\d+), false, \{laconic_image_sm_(\d+),", source) == [(name[3:], name[3:]) for name in embedded]
    assert f"{{{kernels.OLDEST.removeprefix('compute_')}, true, {{laconic_image_ptx," in source


def test_flags_of_nvcc_keep_cpu_bits():
    flags = (ROOT / "src" / "kernels" / "nvcc.flags").read_text(encoding="utf-8").split()
    assert {"-fmad=false", "-ftz=false", "-prec-div=true", "-prec-sqrt=true"} <= set(flags)
