# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""One rank that the system gives no memory (RLIMIT_AS): every rank reports the same message, and the next step works."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from ranks import Ranks  # noqa: E402

ELEMENTS = 4_000_000  # exchange buffers of several MiB under every codec here
POOR = 1


def _memory_in_use() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * 4096


def _exchange_without_memory(spec, strategy, halves):
    """Gives (error of the step without memory, error of the next, sum of the mean, sum of residual and mean)."""
    import resource

    import torch.distributed as dist

    from laconic.engines.c10d import Engine
    from laconic.exchange.csession import CSession, Layout

    rank, world = dist.get_rank(), dist.get_world_size()
    engine = Engine(dist.group.WORLD)
    session = CSession(spec, [("w", (2000, 2000))], rank=rank, world=world, seed=0, small_elements=64, strategy=strategy,
                      engine_sums=engine.probe_sums(), threads=1, short_sends=engine.short_sends)
    heard, layout = [], Layout([0], [0], ELEMENTS)
    driver = session.driver(engine, lambda _tokens, _parts, error: heard.append(error) if error is not None else None)
    generator = torch.Generator().manual_seed(rank)
    gradient = torch.randn(ELEMENTS, generator=generator, dtype=torch.float32)
    buffer = gradient.to(torch.bfloat16) if halves else gradient.clone()

    def exchange(step):
        heard.clear()
        driver.submit(layout, buffer.data_ptr(), 2 if halves else 0, step=step)
        driver.finish()
        return str(heard[0]) if heard else None

    dist.barrier()
    before = resource.getrlimit(resource.RLIMIT_AS)
    if rank == POOR:
        resource.setrlimit(resource.RLIMIT_AS, (_memory_in_use() + (1 << 20), before[1]))
    try:
        first = exchange(0)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    return first, exchange(1), float(buffer.double().sum()), session.stats()["residual_resets"]


@pytest.fixture
def ranks():
    """New processes: what an earlier exchange has freed would be memory."""
    pool = Ranks(3)
    yield pool
    pool.close()


@pytest.mark.parametrize(("spec", "strategy", "halves"), [
    ("3lc", "two_shot", False), ("3lc", "two_shot", True), ("topk:ratio=0.2", "gather_all", False),
    ("randomk:ratio=0.5", "native_sum", False)])
def test_one_rank_without_memory_is_error_on_all(ranks, spec, strategy, halves):
    results = ranks.run(_exchange_without_memory, spec=spec, strategy=strategy, halves=halves)
    for first, second, total, resets in results:
        assert first is not None and f"rank {POOR} failed" in first and "out_of_memory" in first
        assert first == results[0][0], "every rank reports the same message"
        assert second is None, second
        assert total == results[0][2] and resets == 0
