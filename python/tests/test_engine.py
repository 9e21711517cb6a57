# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The torch engine: what Gloo can do, and that it changes no bit."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import training  # noqa: E402


def _train(spec, short):
    import torch.distributed as dist

    from laconic.engine import Engine

    original = Engine._probe_short_sends
    if not short:
        Engine._probe_short_sends = lambda self: False
    try:
        ddp, handle, optimizer = training.build(dist.group.WORLD, spec, width=96, buckets=1)
    finally:
        Engine._probe_short_sends = original
    for step in range(12):
        training.step_once(ddp, optimizer, dist.get_rank(), step)
    stats, used, digest = handle.stats(), handle.worker.engine.short_sends, training.digest(ddp)
    handle.close()
    return used, stats, digest


@pytest.mark.parametrize("spec", ["3lc", "sidco:ratio=0.05", "topk:ratio=0.05"])
def test_exact_lengths_change_no_bit_and_repeat_no_round(ranks, spec):
    exact = ranks.run(_train, spec=spec, short=True)
    granted = ranks.run(_train, spec=spec, short=False)
    assert {digest for _, _, digest in exact} == {digest for _, _, digest in granted}
    assert all(used for used, _, _ in exact) and not any(used for used, _, _ in granted)
    assert all(stats["overflow_repeats"] == 0 for _, stats, _ in exact)
    assert exact[0][1]["wire_bytes"] <= granted[0][1]["wire_bytes"]


def test_what_has_begun_is_waited_for_when_the_batch_cannot_be_started():
    """Collectives in flight write to the exchange's memory."""
    from laconic.engine import Engine

    class Work:
        waited = False

        def wait(self):
            self.waited = True

    class Half(Engine):
        def __init__(self):
            self.limiter, self.begun = None, Work()

        def _start(self, step, works):
            if step == "second":
                raise ValueError("no")
            works.append(self.begun)
            return 0

    engine = Half()
    with pytest.raises(ValueError, match="no"):
        engine.run(["first", "second"], 2)
    assert engine.begun.waited
