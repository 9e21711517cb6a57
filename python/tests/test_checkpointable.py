# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Saved state in torch.distributed.checkpoint, and states that were put together from several ranks'."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import torch.distributed.checkpoint as dcp  # noqa: E402
import training  # noqa: E402

import laconic  # noqa: E402


def _trained(spec, steps, follows=False):
    import torch.distributed as dist

    ddp, handle, optimizer = training.build(dist.group.WORLD, spec, buckets=2)
    if follows:
        handle.follow(optimizer)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 0.1 / (1 + step)
        training.step_once(ddp, optimizer, dist.get_rank(), step)
    return ddp, handle, optimizer


def _through_dcp(folder, spec, follows):
    """Compares a resumed run with one that went on: parameters after more steps; and the residuals of all ranks."""
    import torch.distributed as dist

    ddp, handle, optimizer = _trained(spec, 3, follows)
    weights = {name: p.clone() for name, p in ddp.module.state_dict().items()}
    momentum = [optimizer.state[p]["momentum_buffer"].clone() for p in ddp.parameters()]
    dcp.save({"laconic": laconic.checkpointable(handle)}, checkpoint_id=folder)
    norms = training.gathered(handle.stats()["residual_norm"])
    digests = []
    for resumed in (False, True):
        if resumed:
            ddp, handle, optimizer = _trained(spec, 0)
            ddp.module.load_state_dict(weights)
            for p, values in zip(ddp.parameters(), momentum):
                optimizer.state[p]["momentum_buffer"] = values
            if follows:
                handle.follow(optimizer)
            dcp.load({"laconic": laconic.checkpointable(handle)}, checkpoint_id=folder)
            assert training.gathered(handle.stats()["residual_norm"]) == norms
        for step in range(3, 6):
            optimizer.param_groups[0]["lr"] = 0.1 / (1 + step)
            training.step_once(ddp, optimizer, dist.get_rank(), step)
        handle.close()
        digests.append(training.digest(ddp))
    return digests, norms


@pytest.mark.parametrize(("spec", "follows"), [("topk:ratio=0.05", False), ("powersgd:rank=2", True)])
def test_torch_checkpoint_keeps_state_of_every_rank(pools, tmp_path, spec, follows):
    for (went_on, resumed), norms in pools(2).run(_through_dcp, folder=str(tmp_path / "checkpoint"), spec=spec, follows=follows):
        assert went_on == resumed and norms[0] != norms[1]


def _keys():
    import torch.distributed as dist

    ddp, handle, _ = _trained("topk:ratio=0.05", 2, True)
    before, state = f"rank{dist.get_rank()}/", laconic.checkpointable(handle).state_dict()
    refused = []
    for saved in ({}, {f"{before}about": 3}, {f"other{key}": value for key, value in state.items()}):
        try:
            laconic.checkpointable(handle).load_state_dict(saved)
        except laconic.LaconicError as error:
            refused.append(error.name)
    handle.close()
    del ddp  # with it the handle would have ended
    return all(key.startswith(before) for key in state), refused


def test_keys_begin_with_the_rank(pools):
    assert pools(2).run(_keys) == [(True, ["state_corrupt"] * 3)] * 2


def _mixed(kind):
    """A state as a checkpoint puts it together that takes equal names for copies: rank 0's, but for some of rank 1's values."""
    import torch.distributed as dist

    ddp, handle, _ = _trained("topk:ratio=0.05", 3, True)
    first, second = training.gathered(handle.state_dict())
    name = "residual/hidden.weight"
    mixed = {"tensor": {**first, "tensors": {**first["tensors"], name: second["tensors"][name]}},
             "rate": {**first, "rates": {**first["rates"], "hidden.weight": torch.tensor(0.75, dtype=torch.float64)}},
             "step": {**first, "step": first["step"] + 1},
             "layout": {**first, "layout": [names[::-1] for names in first["layout"]]}}[kind]
    before, error = handle.stats()["residual_norm"], None
    try:
        handle.load_state_dict(mixed)
    except laconic.LaconicError as e:
        error = e.name, e.hint
    if dist.get_rank() == 0:
        handle.load_state_dict(first)
        handle.load_state_dict(training.unsealed(first))  # an earlier release has saved no fingerprint
    same = handle.stats()["residual_norm"] == before
    handle.close()
    del ddp
    return error, same


@pytest.mark.parametrize("kind", ["tensor", "rate", "step", "layout"])
def test_state_mixed_from_two_ranks_is_refused_on_both(pools, kind):
    (first, same), (second, _) = pools(2).run(_mixed, kind=kind)
    assert first[0] == "state_corrupt" and "laconic.checkpointable(handle)" in first[1] and same
    assert second[0] == "state_rank"
