# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""scripts/check_layers on small trees, each with one thing wrong."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "check_layers"


def check(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    done = subprocess.run([sys.executable, SCRIPT, root], capture_output=True, text=True)
    return done.returncode, done.stdout


CLEAN = {
    "include/laconic/frame.h": '#include "laconic/error.h"\n',
    "include/laconic/error.h": "#include <string>\n",
    "src/base/error.cc": '#include "laconic/error.h"\n',
    "src/wire/frame.cc": '#include "laconic/frame.h"\n#include "wire/parse.h"\n#include <xxhash.h>\n',
    "src/wire/parse.h": "// #include <iostream>\n",
    "src/pipeline/pipeline.cc": '#include "codecs/registry/table.h"\n#include "base/bits.h"\n',
    "src/codecs/registry/table.h": '#include "codecs/topk/topk.h"\n#include "codecs/none/none.h"\n',
    "src/codecs/topk/topk.h": '#include "codecs/topk/list.h"\n#include "codecs/sparse/set.h"\n',
    "src/codecs/topk/list.h": '#include "codecs/dense/chunks.h"\n#include "kernels/select.h"\n',
    "src/codecs/none/none.h": "",
    "src/codecs/dense/chunks.h": "",
    "src/codecs/sparse/set.h": '#include "codecs/dense/chunks.h"\n',
    "src/kernels/select.h": "",
    "src/base/bits.h": "",
    "src/engines/mpi/engine.cc": '#include "../shared/steps.h"\n#include "queue.h"\n#include "laconic/error.h"\n#include <mpi.h>\n',
    "src/engines/mpi/queue.h": "",
    "src/engines/shared/steps.h": "namespace laconic::detail {\n",
    "src/aggregation/protocol/d.h": "namespace laconic::aggregation::protocol {\n",
    "src/engines/plugin/exports/mpi.cc": 'auto look_up = std::getenv("PMI_SIZE");\n',
    "src/session/session.cc": 'const char* spec = getenv("LACONIC_SPEC");\n',
}


def test_clean_tree_passes(tmp_path):
    assert check(tmp_path, CLEAN) == (0, "")


@pytest.mark.parametrize(
    ("name", "text", "where", "words"),
    [
        ("src/codecs/a/a.cc", '\n#include "engines/t.h"\n', ":2:", "codecs must not include engines"),
        ("src/codecs/a/a.cc", '#include "codecs/none/none.h"\n', ":1:", "codecs/a must not include codecs/none"),
        ("src/codecs/a/a.cc", '#include "../none/none.h"\n', ":1:", "codecs/a must not include codecs/none"),
        ("src/codecs/a/a.cc", '#include "codecs/registry/table.h"\n', ":1:", "must not include codecs/registry"),
        ("src/codecs/sparse/a.cc", '#include "codecs/topk/list.h"\n', ":1:", "must not include codecs/topk"),
        ("src/codecs/a.cc", "", ":1:", "holds folders only"),
        ("src/session/a.cc", '#include "codecs/topk/topk.h"\n', ":1:", "session must not include codecs/topk"),
        ("src/codecs/x/a.cc", '#include "../../wire/parse.h"\n', ":1:", "codecs must not include wire"),
        ("src/kernels/a.cc", '#include "laconic/frame.h"\n', ":1:", "kernels must not include wire"),
        ("src/wire/a.h", "#include <iostream>\n", ":1:", "never prints"),
        ("src/wire/a.cc", '\n\nauto v = std::getenv("X");\n', ":3:", "getenv in wire"),
        ("src/control/a.cc", "#include <chrono>\n", ":1:", "clock"),
        ("src/aggregation/link/a.cc", '#include "aggregation/server/s.h"\n', ":1:", "aggregation/link must not include aggregation/server"),
        ("src/aggregation/a.cc", "", ":1:", "src/aggregation is not a module"),
        ("src/stuff/a.cc", "", ":1:", "not a module"),
        ("src/wire/a.cc", "namespace laconic::codecs {\n", ":1:", "laconic::codecs in src/wire"),
        ("src/aggregation/protocol/a.h", "\nnamespace laconic::wire {\n", ":2:", "laconic::wire in src/aggregation/protocol"),
        ("src/aggregation/io/a.h", "namespace laconic::aggregation::server {\n", ":1:", "named after the file's module"),
        ("src/engines/mpi/a.cc", '#include "../shared/steps.h"\n#include "engines/t.h"\n', ":2:", "this source is installed"),
        ("src/engines/mpi/a.cc", 'auto v = std::getenv("X");\n', ":1:", "getenv in engines"),
        ("include/laconic/a.h", '#include "wire/parse.h"\n', ":1:", "only public headers"),
        ("include/laconic/a.h", "\n" * 251, ":251:", "at most 250 lines"),
        ("include/laconic/a.h", 'inline auto v = std::getenv("X");\n', ":1:", "getenv in a public header"),
    ],
)
def test_violation_is_named(tmp_path, name, text, where, words):
    files = {**CLEAN, "src/engines/t.h": "", "src/aggregation/server/s.h": "", name: text}
    status, out = check(tmp_path, files)
    assert status == 1
    assert out.startswith(name + where), out
    assert words in out
    assert out.count("\n") == 1, out


def test_public_header_reached_through_another(tmp_path):
    files = {**CLEAN, "include/laconic/all.h": '#include "laconic/frame.h"\n', "src/base/a.cc": '#include "laconic/all.h"\n'}
    status, out = check(tmp_path, files)
    assert status == 1
    assert "base must not include wire (laconic/all.h)" in out


@pytest.mark.parametrize(("count", "status"), [(250, 0), (251, 1)])
def test_intrinsics_of_kernels_are_counted(tmp_path, count, status):
    calls = "".join(f"a = {('_mm512_add_ps', '_mm_add_ps', '_pdep_u64')[i % 3]}(a, b);\n" for i in range(count))
    found, out = check(tmp_path, {**CLEAN, "src/kernels/a_hwy.cc": calls + "// _mm256_add_ps(a, b)\n"})
    assert found == status
    assert out.startswith("src/kernels: 251 intrinsics") == (status == 1), out


def test_repository_passes():
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
