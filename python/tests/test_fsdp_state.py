# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""State of sharded training: resumed runs are those that were never interrupted, and no rank takes another shard's."""

from __future__ import annotations

import copy
import io

import pytest

torch = pytest.importorskip("torch")

import sharding  # noqa: E402  skips below torch 2.13
import torch.distributed as dist  # noqa: E402
from ranks import Ranks  # noqa: E402

import laconic  # noqa: E402


@pytest.fixture(scope="module")
def four():
    ranks = Ranks(4)
    yield ranks
    ranks.close()


def trained(model, optimizer, numbers):
    for number in numbers:
        optimizer.zero_grad()
        sharding.loss_of(model, number).backward()
        optimizer.step()


def resumed(spec, way, folder=None, flush=0):
    """The digests of a run, and of one that begins again in its middle."""
    import torch.distributed.checkpoint as dcp

    more = {"replicate": sharding.mesh_of(2, 2)["replicate"]} if way == "1d" else {}
    digests, state = [], None
    for interrupted in (False, True):
        model = sharding.made(way)
        optimizer = sharding.sgd(model)
        handle = sharding.attached(model, spec, **more)
        if not interrupted:
            trained(model, optimizer, range(3))
            if flush:
                handle.flush(flush)
            file = io.BytesIO()
            torch.save(handle.state_dict(), file)
            file.seek(0)
            state = {name: p.to_local().clone() for name, p in model.named_parameters()}, copy.deepcopy(optimizer.state_dict()), file
            if folder:
                dcp.save({"model": model.state_dict(), "laconic": laconic.checkpointable(handle)}, checkpoint_id=folder)
        else:
            for name, p in model.named_parameters():
                with torch.no_grad():
                    p.to_local().copy_(state[0][name])
            optimizer.load_state_dict(state[1])
            if folder:
                dcp.load({"model": model.state_dict(), "laconic": laconic.checkpointable(handle)}, checkpoint_id=folder)
            else:
                handle.load_state_dict(torch.load(state[2], weights_only=True))
            assert handle.step == 3
        trained(model, optimizer, range(3, 6))
        digests.append(sharding.digest(model))
        handle.close()
    return digests


@pytest.mark.parametrize(("spec", "way", "flush"), [("3lc:s=1.75", "2d", 0), ("powersgd:rank=2", "1d", 0), ("topk:ratio=0.05", "2d", 2)])
def test_resumed_run_is_bit_identical(four, spec, way, flush):
    for whole, again in four.run(resumed, spec=spec, way=way, flush=flush):
        assert whole == again


def test_torch_checkpoint_returns_each_rank_its_own_state(four, tmp_path):
    for whole, again in four.run(resumed, spec="3lc", way="2d", folder=str(tmp_path / "checkpoint")):
        assert whole == again


def swapped():
    """Every rank loads its neighbour's state: that of another shard, then that of another replica."""
    from training import gathered

    model = sharding.made()
    with sharding.closing(sharding.attached(model, "3lc")) as handle:
        trained(model, sharding.sgd(model), [0])
        states = gathered(handle.state_dict())
        before, rank = handle.stats()["residual_norm"], dist.get_rank()
        refused = [sharding.said(lambda: handle.load_state_dict(states[rank ^ other])) for other in (1, 2)]  # noqa: B023
        return refused, before == handle.stats()["residual_norm"], sorted(states[rank]), [name for name, _ in handle.parameters]


def test_state_of_other_shard_is_refused_by_name(four):
    for rank, ((shard, replica), unchanged, keys, names) in enumerate(four.run(swapped)):
        place = rank % 2
        name = ("embed.weight", "scale")[place]  # the first parameter of which the other shard has a row
        assert shard[0] == "state_model" and f"it has {name}@{1 - place}/2, this rank holds {name}@{place}/2" in shard[1], shard
        assert replica[0] == "state_rank" and unchanged
        assert keys == ["header", "step", "tensors", "version"]
        assert names[0] == f"scale@{place}/2" and all(name.endswith(f"@{place}/2") for name in names)
