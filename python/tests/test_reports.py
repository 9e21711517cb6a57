# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Buckets that PyTorch sums itself: their times are observed, and now and then one of them carries the ranks' reports."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import training  # noqa: E402

from laconic.ddp import reports  # noqa: E402


def test_buckets_carry_reports_when_due():
    assert [steps for steps in range(2200) if reports.due(steps)] == [64, 128, 256, 512, 1024, 1536, 2048]


def _observed(observes, steps=6, told=(3,)):
    import torch.distributed as dist

    from laconic.ddp import reports

    rank = dist.get_rank()
    ddp, handle, optimizer = training.build(dist.group.WORLD, "none", buckets=3)
    times, exchanges = [], []
    session, due = handle.worker.session, reports.due
    handle.settings.observes = observes
    summed = session.summed
    session.summed = lambda issued, completed: (times.append((issued, completed)), summed(issued, completed))
    reports.due = lambda since: since in told
    try:
        for step in range(steps):
            before = len(times)
            training.step_once(ddp, optimizer, rank, step)
            exchanges.append((handle.stats()["exchanges"], len(times) - before, len(handle.hook.layouts.last_seen)))
    finally:
        reports.due = due
    weights = torch.cat([p.detach().flatten() for p in ddp.parameters()])
    handle.close()
    return times, exchanges, weights


def test_reported_step_sends_one_bucket_through_worker(pools):
    for times, exchanges, weights in pools(2).run(_observed, observes=True):
        for step, (count, observed, buckets) in enumerate(exchanges):
            assert count == (1 if step >= 3 else 0)
            assert observed == buckets - (step == 3)
        assert all(issued < completed for issued, completed in times)
    for times, exchanges, plain in pools(2).run(_observed, observes=False):
        assert times == []
        assert [count for count, _, _ in exchanges] == [0] * 6
        assert torch.equal(weights, plain)
