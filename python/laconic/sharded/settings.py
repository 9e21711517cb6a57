# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Settings that must be the same on all ranks: the optimizer, its hyperparameters, the parameters' groups."""

from __future__ import annotations

import hashlib
import json

import torch

from ..core import errors
from ..core.errors import LaconicError


def _plain(value):
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, (tuple, list)):
        return [_plain(v) for v in value]
    return value if value is None or isinstance(value, (bool, int, str)) else repr(value)


def of_groups(groups: list[dict]) -> dict:
    """{"lr of group 0": "0.001", …}"""
    return {f"{key} of group {number}": _plain(value) for number, group in enumerate(groups) for key, value in group.items() if key != "params"}


def text(settings: dict) -> str:
    return json.dumps(settings, sort_keys=True)


def digest(said: str) -> bytes:
    return hashlib.blake2b(said.encode(), digest_size=8).digest()


def differing(told: list[dict]) -> LaconicError | None:
    """The first difference between ranks' settings, with the first rank that differs from rank 0."""
    for key in sorted(set().union(*told)):
        values = [settings.get(key, "missing") for settings in told]
        other = next((rank for rank, value in enumerate(values) if value != values[0]), None)
        if other is not None:
            return errors.error("ranks_disagree", f"{key} is {values[0]} on rank 0 and {values[other]} on rank {other}",
                                "give every rank the same call and the same schedule")
    return None
