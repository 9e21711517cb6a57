# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The first steps uncompressed: plain DDP bit for bit, then the codec; resumed at any step."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import training  # noqa: E402


def _hashes(spec, steps, **options):
    """The parameters' hash after every step, and the counters at the end."""
    import torch.distributed as dist

    ddp, handle, optimizer = training.build(dist.group.WORLD, spec, **options)
    hashes = []
    for step in range(steps):
        training.step_once(ddp, optimizer, dist.get_rank(), step)
        hashes.append(training.digest(ddp))
    return hashes, handle.stats() if handle else None


@pytest.mark.parametrize("spec", ["3lc", "topk:ratio=0.05", "powersgd:rank=2", "bf16"])
def test_first_steps_equal_plain_ddp_bit_for_bit(pools, spec):
    plain, _ = pools(3).run(_hashes, spec=None, steps=6, buckets=2)[0]
    outcomes = pools(3).run(_hashes, spec=spec, steps=6, buckets=2, attach_options={"warmup": 4})
    for hashes, stats in outcomes:
        assert hashes[:4] == plain[:4] and hashes[4] != plain[4]
        assert stats["coalesced"] == 2 * 2 and stats["steps"] == 6 and stats["exchanges"] == 2  # both buckets of a step in one exchange
        assert stats["failures"] == 0
    assert len({tuple(hashes) for hashes, _ in outcomes}) == 1


@pytest.mark.parametrize("before", [2, 4, 5])
@pytest.mark.parametrize(("spec", "buckets"), [("3lc", 4), ("randomk:ratio=0.05", 4), ("topk:ratio=0.05", 1)])
def test_run_resumed_in_or_after_warmup_is_bit_identical(pools, spec, buckets, before):
    for whole, resumed in pools(3).run(training.resume, spec=spec, buckets=buckets, before=before, after=4, attach_options={"warmup": 4}):
        assert whole == resumed


def _refused(warmups):
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import laconic

    ddp = DistributedDataParallel(torch.nn.Linear(80, 80))
    with pytest.raises(laconic.LaconicError) as caught:
        laconic.attach(ddp, "3lc", warmup=warmups[dist.get_rank()], quiet=True)
    return caught.value.name, str(caught.value)


@pytest.mark.parametrize(("warmups", "name", "words"), [
    ([3, 3, 5], "ranks_disagree", "warmup is 3 on rank 0 and 5 on rank 2"), ([-1] * 3, "invalid_argument", "warmup is -1"),
    ([0, 1.5, 0], "ranks_disagree", "rank 1 could not attach: warmup is 1.5")])
def test_different_warmup_on_one_rank_is_one_message_on_all(pools, warmups, name, words):
    outcomes = pools(3).run(_refused, warmups=warmups)
    assert len(set(outcomes)) == 1 and outcomes[0][0] == name and words in outcomes[0][1]


def _fails_while_warming_up():
    """The group's own sum fails: what this rank sees, and what later steps say without touching the network."""
    import torch.distributed as dist

    ddp, handle, optimizer = training.build(dist.group.WORLD, "3lc", attach_options={"warmup": 10})
    training.step_once(ddp, optimizer, dist.get_rank(), 0)

    class Failing:
        calls = 0

        def allreduce(self, buffers):
            Failing.calls += 1
            raise RuntimeError("the test ends the network")

    handle.hook.sums.group = Failing()
    said = []
    for step in (1, 2):
        try:
            training.step_once(ddp, optimizer, dist.get_rank(), step)
        except RuntimeError as error:
            said.append(str(error).splitlines()[0])
    return said, Failing.calls


def test_failure_in_warmup_breaks_handle(pools):
    for said, calls in pools(2).run(_fails_while_warming_up):
        assert len(said) == 2 and all("the test ends the network" in text and "step 1" in text for text in said)
        assert calls == 1  # nothing more goes out
