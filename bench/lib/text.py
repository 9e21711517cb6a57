# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Text as numbers: the sources of Python's standard library, or a file."""

from __future__ import annotations

import math
import sysconfig
from pathlib import Path

import torch
from torch.nn import functional

CHARACTERS = 128  # ASCII; other characters are read as "?"
CONTEXT = 64
TEST_EXCERPTS = 64


def read(path: str | None, limit: int = 2_000_000) -> torch.Tensor:
    """At most `limit` characters as numbers."""
    files = [Path(path)] if path else sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    data, left = [], limit
    for file in files:
        if left <= 0:
            break
        try:
            text = file.read_text(encoding="utf-8", errors="replace")[:left]
        except OSError as error:
            raise ValueError(f"{file} cannot be read: {error.strerror}") from None
        data.append(text.encode("ascii", errors="replace"))
        left -= len(text)
    return torch.frombuffer(bytearray(b"".join(data)), dtype=torch.uint8) if data and data[0] else torch.empty(0, dtype=torch.uint8)


def excerpts(text: torch.Tensor, count: int, generator: torch.Generator):
    """`count` random excerpts of CONTEXT characters, and the same moved on by one."""
    starts = torch.randint(len(text) - CONTEXT, (count,), generator=generator)
    found = torch.stack([text[s : s + CONTEXT + 1] for s in starts.tolist()]).long()
    return found[:, :-1], found[:, 1:]


class Text:
    """The last tenth is for evaluation: always the same excerpts."""

    def __init__(self, path: str | None):
        whole = read(path)
        cut = len(whole) * 9 // 10
        self.train, test = whole[:cut], whole[cut:]
        if len(test) <= CONTEXT:
            raise ValueError(f"{path} has {len(whole)} characters, of which the last tenth must be more than {CONTEXT}")
        self.test = excerpts(test, TEST_EXCERPTS, torch.Generator().manual_seed(0))

    def batches(self, size: int, seed: int, rank: int, world: int):
        generator = torch.Generator().manual_seed(1 + seed * world + rank)
        while True:
            yield excerpts(self.train, size, generator)

    @staticmethod
    def loss(model, batch) -> torch.Tensor:
        x, y = batch
        return functional.cross_entropy(model(x).flatten(0, 1), y.flatten())

    def evaluate(self, model) -> float:
        """Bits a character of the test excerpts."""
        return self.loss(model, self.test).item() / math.log(2)
