# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Defects of GRACE's released code in the front end: the numbers are those of docs/guide/methods.md."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import laconic  # noqa: E402


def _order(spec):
    """For every bucket of a step: whether it was handed over before the model's last gradient was there."""
    import torch.distributed as dist

    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(6)))
    ddp = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.02)
    handle = laconic.attach(ddp, spec, small_elements=16)
    worker, events = handle.worker, []
    submit = worker.submit

    def watched(layout, *args, **options):
        events.append("bucket")
        return submit(layout, *args, **options)

    worker.submit = watched
    model[0].weight.register_hook(lambda g: events.append("last gradient"))
    for step in range(3):
        events.clear()
        torch.manual_seed(10 * step + dist.get_rank())
        ddp(torch.randn(8, 64)).square().sum().backward()
    handle.close()
    at = events.index("last gradient")
    return events[:at].count("bucket"), events.count("bucket")


@pytest.mark.parametrize("spec", ["topk:ratio=0.1", "signsgd", "fp16"])
def test_grace22_buckets_leave_before_the_last_gradient_exists(pools, spec):
    """Fused tensors and compression excluded each other, and nothing overlapped with the backward pass."""
    for early, all_of_them in pools(2).run(_order, spec=spec):
        assert early >= 1 and all_of_them > early
