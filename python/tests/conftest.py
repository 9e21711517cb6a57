# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def pools():
    """pools(world): that many ranks, started once for the whole session."""
    pytest.importorskip("torch", reason="the DDP tests need torch")
    from ranks import Ranks

    started: dict[int, Ranks] = {}

    def of(world: int) -> Ranks:
        if world in started and started[world].lost:
            started.pop(world).close()
        if world not in started:
            started[world] = Ranks(world)
        return started[world]

    yield of
    for pool in started.values():
        pool.close()


@pytest.fixture
def ranks(pools):
    """Four ranks."""
    return pools(4)
