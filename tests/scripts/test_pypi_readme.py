# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""README.md on a package index: every link leads to a file of the project, at the address that pyproject.toml has."""

import re
import runpy
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SOURCE = PROJECT["project"]["urls"]["Source"]
METADATA = PROJECT["tool"]["scikit-build"]["metadata"]["readme"]
SCRIPT = runpy.run_path(str(ROOT / METADATA["provider-path"] / f"{METADATA['provider']}.py"))


def links(text):
    return re.findall(r"(!?)\[[^\]]*\]\(([^)]*)\)", text)


def test_every_link_points_to_same_file_online():
    here = links((ROOT / "README.md").read_text(encoding="utf-8"))
    there = links(SCRIPT["dynamic_metadata"]("readme")["text"])
    assert len(here) == len(there) > 30
    for (image, target), (_, shown) in zip(here, there):
        if target.startswith("#"):
            assert shown == SOURCE + target
        else:
            assert shown == f"{SOURCE}/{'raw' if image else 'blob'}/HEAD/{target}" and (ROOT / target.partition("#")[0]).exists()


def test_link_to_elsewhere_stays(monkeypatch, tmp_path):
    for name in ("README.md", "pyproject.toml"):
        (tmp_path / name).write_text((ROOT / name).read_text(encoding="utf-8").replace("(LICENSE)", "(https://example.org/a)"), encoding="utf-8")
    monkeypatch.setitem(SCRIPT["dynamic_metadata"].__globals__, "ROOT", tmp_path)
    assert "[Apache-2.0](https://example.org/a)" in SCRIPT["dynamic_metadata"]("readme")["text"]
