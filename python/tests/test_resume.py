# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Train, kill, resume equals uninterrupted, bit for bit; and whose state is refused."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import training  # noqa: E402


@pytest.mark.parametrize("spec", training.SPECS)
def test_resume_is_bit_identical_at_three_ranks(pools, spec):
    hashes = pools(3).run(training.resume, spec=spec, buckets=4)
    assert all(h == hashes[0] for h in hashes)
    assert hashes[0][0] == hashes[0][1]


@pytest.mark.parametrize("options", [{"ddp_options": {"static_graph": True}}, {"ddp_options": {"find_unused_parameters": True}}])
def test_resume_under_other_layouts(pools, options):
    for spec in ("none", "bf16", "powersgd:rank=2"):
        hashes = pools(3).run(training.resume, spec=spec, buckets=4, **options)
        assert hashes[0][0] == hashes[0][1], spec


def _after_one_step(spec):
    return training.resume(spec=spec, buckets=4, before=1)


@pytest.mark.parametrize("spec", ["topk:ratio=0.05", "3lc", "bf16", "powersgd:rank=2"])
def test_a_checkpoint_before_ddp_has_rebuilt_its_buckets(pools, spec):
    """The saved layout is then one that DDP never returns to: an engine's sums may differ in last bits from a run that
    was not interrupted; ours never do, and ranks agree in any case."""
    results = pools(3).run(_after_one_step, spec=spec)
    assert all(r == results[0] for r in results)
    if spec in ("topk:ratio=0.05", "3lc"):
        assert results[0][0] == results[0][1]


def _loads_as_data(spec):
    """torch.load with its default since 2.6: nothing but tensors and plain values."""
    import io

    import torch.distributed as dist

    ddp, handle, optimizer = training.build(dist.group.WORLD, spec)
    training.step_once(ddp, optimizer, dist.get_rank(), 0)
    file = io.BytesIO()
    torch.save(handle.state_dict(), file)
    file.seek(0)
    handle.load_state_dict(torch.load(file, weights_only=True))
    handle.close()
    return True


@pytest.mark.parametrize("spec", ["3lc", "powersgd:rank=2"])
def test_the_saved_state_is_plain_data(pools, spec):
    assert all(pools(3).run(_loads_as_data, spec=spec))


def _swap(what):
    import torch.distributed as dist

    import laconic

    ddp, handle, optimizer = training.build(dist.group.WORLD, "3lc")
    training.step_once(ddp, optimizer, dist.get_rank(), 0)
    state = handle.state_dict()
    states = [None] * dist.get_world_size()
    dist.all_gather_object(states, state)
    error = None
    try:
        if what == "rank":
            handle.load_state_dict(states[(dist.get_rank() + 1) % 4])
        elif what == "world":
            state["header"]["world"] = 3
            handle.load_state_dict(state)
        elif what == "model":
            other, handle2, _ = training.build(dist.group.WORLD, "3lc", width=32)
            handle2.close()
            handle2.load_state_dict(state)
        elif what == "spec":
            other, handle2, _ = training.build(dist.group.WORLD, "topk")
            handle2.close()
            handle2.load_state_dict(state)
        elif what == "version":
            state["header"]["version"] = 99
            handle.load_state_dict(state)
        elif what == "lacking":
            state["tensors"].popitem()
            handle.load_state_dict(state)
        else:
            handle.load_state_dict({"nonsense": 1})
    except laconic.LaconicError as e:
        error = (e.name, e.message, e.hint)
    handle.close()
    return error


@pytest.mark.parametrize(("what", "name", "word"), [
    ("rank", "state_rank", "rank"), ("world", "state_world", "3 ranks"), ("model", "state_model", "another model"),
    ("spec", "state_spec", "3lc"), ("version", "state_version", "99"), ("lacking", "state_corrupt", "lacks"),
    ("nonsense", "state_corrupt", "not a state")])
def test_foreign_state_is_refused(ranks, what, name, word):
    for error in ranks.run(_swap, what=what):
        assert error is not None
        assert error[0] == name and word in error[1]
