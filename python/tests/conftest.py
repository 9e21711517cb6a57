# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

started = {}  # world → Ranks


@pytest.fixture(scope="session")
def pools():
    """pools(world): that many ranks, which serve one test after the other."""
    pytest.importorskip("torch", reason="the DDP tests need torch")
    from ranks import Ranks

    def of(world: int) -> Ranks:
        if world in started and started[world].lost:
            started.pop(world).close()
        if world not in started:
            started[world] = Ranks(world)
        return started[world]

    yield of
    for pool in started.values():
        pool.close()


@pytest.fixture(autouse=True)
def no_crowded_pool():
    for world in [world for world, pool in started.items() if pool.crowded()]:
        started.pop(world).close()


@pytest.fixture
def ranks(pools):
    """Four ranks."""
    return pools(4)
