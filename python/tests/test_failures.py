# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""A rank that fails, and a rank that is gone: every other one hears of it in time, and nothing undelivered is lost."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import training  # noqa: E402
from ranks import Ranks  # noqa: E402

import laconic  # noqa: E402

# spec, options: every strategy
STRATEGIES = {
    "native_sum": ("bf16", {}),
    "native_sum, two rounds": ("powersgd:rank=2", {}),
    "gather_all": ("topk:ratio=0.05", {}),
    "two_shot": ("3lc", {"strategy": "two_shot"}),
}


def _fails(spec, victim, buckets=1, flush=False, resume=False, **options):
    """Trains three steps, fails on `victim` in the fourth, trains two more."""
    import torch.distributed as dist

    import laconic

    rank = dist.get_rank()
    ddp, handle, optimizer = training.build(dist.group.WORLD, spec, buckets=buckets, attach_options=options)
    for step in range(3):
        training.step_once(ddp, optimizer, rank, step)
    if resume:
        state = handle.state_dict()
        handle.close()
        ddp, handle, optimizer = training.build(dist.group.WORLD, spec, buckets=buckets, attach_options=options)
        handle.load_state_dict(state)
    if flush:
        handle.flush()
    if rank == victim:
        handle._failure = laconic.LaconicError(101, "internal", "the test told this rank to fail", "stop telling it")
    before = handle.stats()["residual_norm"]
    raised = None
    try:
        training.step_once(ddp, optimizer, rank, 3)
    except RuntimeError as error:
        raised = str(error)
    last, after = handle.last_error, handle.stats()["residual_norm"]
    for step in (4, 5):
        training.step_once(ddp, optimizer, rank, step)
    result = {"raised": raised, "last": last, "before": before, "after": after, "hash": training.digest(ddp),
              "failures": handle.stats()["failures"], "strategy": handle.explain()["strategy"]}
    handle.close()
    return result


def heard_by_all(results, rank):
    """Every rank's backward() raised the failing rank's sentence, with where it happened and what to do."""
    for r, result in enumerate(results):
        assert result["raised"] is not None, f"rank {r} noticed nothing"
        for word in (f"rank {rank} failed in bucket", "(internal)", "the test told this rank to fail", f"rank {r}, bucket ",
                     ".weight", "step 3"):
            assert word in result["raised"], result["raised"]
        error = result["last"]
        assert isinstance(error, laconic.LaconicError)
        assert (error.name, error.code) == (("internal", 101) if r == rank else ("peer_failed", 61))
        assert str(error) in result["raised"] and error.hint and error.hint in result["raised"]
        assert result["failures"] >= 1
    assert len({result["last"].message.partition("step 3: ")[2] for result in results}) == 1, "not the same sentence"


@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize("which", STRATEGIES)
def test_a_failing_rank_is_heard_by_all(pools, which, victim):
    spec, options = STRATEGIES[which]
    results = pools(3).run(_fails, spec=spec, victim=victim, **options)
    heard_by_all(results, victim)
    assert {r["strategy"] for r in results} == {which.partition(",")[0]}
    assert len({r["hash"] for r in results}) == 1, "training after the failure went apart"


@pytest.mark.parametrize("which", STRATEGIES)
def test_a_failure_in_one_of_several_buckets(pools, which):
    spec, options = STRATEGIES[which]
    results = pools(3).run(_fails, spec=spec, victim=1, buckets=4, **options)
    heard_by_all(results, 1)
    assert len({r["hash"] for r in results}) == 1


@pytest.mark.parametrize("spec", ["bf16", "powersgd:rank=2"])
def test_a_failure_in_the_first_step_after_resuming(pools, spec):
    results = pools(3).run(_fails, spec=spec, victim=1, buckets=4, resume=True, seconds=60)
    heard_by_all(results, 1)


@pytest.mark.parametrize("spec", ["3lc", "powersgd:rank=2", "topk:ratio=0.05"])
def test_a_failure_during_a_flush_keeps_what_was_not_delivered(pools, spec):
    results = pools(3).run(_fails, spec=spec, victim=1, flush=True)
    heard_by_all(results, 1)
    assert len({r["hash"] for r in results}) == 1
    assert all(r["after"] > 0 for r in results)
