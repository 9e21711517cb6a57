# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The second reader of datagrams against the golden ones; the hash as a program of the kernel sees it."""

import json
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
sys.path.insert(0, str(GOLDEN))

import second_datagram  # noqa: E402

DATAGRAMS = json.loads((GOLDEN / "v1" / "datagrams.json").read_text(encoding="utf-8"))["datagrams"]
TOKEN, JOB, INSTANCE, EPOCH = bytes(range(32)), 0x1122334455667788, 0xCAFEBABE12345678, 0x99AABBCCDDEEFF01


@pytest.mark.parametrize("entry", DATAGRAMS, ids=lambda entry: entry["name"])
def test_both_readers_agree(entry):
    data = bytes.fromhex(entry["hex"])
    assert second_datagram.verdict(data, entry["layout"], TOKEN, JOB, INSTANCE, EPOCH, entry["era"]) == entry["verdict"]


def test_page_shows_golden_datagram():
    page = (ROOT / "docs" / "format" / "DATAGRAM.md").read_text(encoding="utf-8")
    shown = {"".join(block.split()) for block in re.findall(r"```hex\n(.*?)```", page, re.S)}
    golden = {entry["hex"] for entry in DATAGRAMS}
    assert len(shown) >= 2 and shown <= golden


@pytest.mark.parametrize("command", [["cc", "-std=c99", "-Wall", "-Wextra", "-Werror"],
                                     ["clang-14", "-target", "bpf", "-O2", "-Wall", "-Werror"]], ids=["c99", "bpf"])
def test_hash_is_plain_c(command, tmp_path):
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not here")
    source = tmp_path / "tag.c"
    source.write_text('#include "aggregation/protocol/siphash.h"\n'
                      "unsigned long long tag(const struct laconic_sip_key* k, const unsigned char* p, unsigned long long e);\n"
                      "unsigned long long tag(const struct laconic_sip_key* k, const unsigned char* p, unsigned long long e) {\n"
                      "  return laconic_sip_header(k, p, 3, e);\n}\n", encoding="utf-8")
    subprocess.run([*command, "-I", str(ROOT / "src"), "-c", str(source), "-o", str(tmp_path / "tag.o")], check=True)
