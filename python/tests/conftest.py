# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def ranks():
    """Four ranks for the whole session; a test that needs fewer uses a subgroup."""
    pytest.importorskip("torch", reason="the DDP tests need torch")
    from ranks import Ranks

    pool = Ranks(4)
    yield pool
    pool.close()
