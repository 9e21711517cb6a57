# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""How exchanges are called in tables and pictures."""

from __future__ import annotations

BASELINES = {
    "pytorch:ddp": "PyTorch DDP, fp32",
    "pytorch:fp16": "PyTorch fp16 hook",
    "pytorch:powersgd": "PyTorch PowerSGD hook, rank 4",
}
#: Floats of 16 bits still count as uncompressed: everybody has them.
_UNCOMPRESSED = ("pytorch:ddp", "pytorch:fp16", "none", "bf16", "fp16")


#: Appended to a spec: the position of its aggregation servers (servers.py).
_PLACES = {"switch": "server in the switch", "hosts": "a server on each host", "xdp": "in the switch's kernel"}


def label_of(spec: str) -> str:
    spec, _, place = spec.partition("@")
    return (BASELINES.get(spec) or f"Laconic {spec}") + (f", {_PLACES[place]}" if place else "")


def is_uncompressed(spec: str) -> bool:
    return spec in _UNCOMPRESSED
