# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""`laconic.codecs`: the codecs of this build."""

from __future__ import annotations

import json

from ..core import _lib


def codecs() -> dict[str, dict]:
    """Name → {"class", "summary", "source", "params": [...], "contract": {...}} of every codec in this build.

    "class" is that of GRACE's survey: quantization, sparsification, hybrid, low-rank, or cast and none.
    """
    listing = json.loads(_lib.lib.laconic_codecs_json().decode())["codecs"]
    return {entry.pop("name"): entry for entry in listing}
