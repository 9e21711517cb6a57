# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""README.md for package indexes, where a link into the tree leads nowhere: all lead to the project's pages. pyproject.toml
names this file to scikit-build-core, and has the address."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?![a-z]+:)([^)\s]+)\)")


def absolute(source, image, target):
    if target.startswith("#"):
        return source + target
    return f"{source}/{'raw' if image else 'blob'}/HEAD/{target}"


def dynamic_metadata(field, settings=None):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    source = project["urls"]["Source"]
    text = LINK.sub(lambda link: f"{link[1]}[{link[2]}]({absolute(source, link[1], link[3])})", (ROOT / "README.md").read_text(encoding="utf-8"))
    return {"content-type": "text/markdown", "text": text}
