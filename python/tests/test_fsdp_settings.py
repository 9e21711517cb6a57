# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Arguments of attach on shards: rules, control and record; several models of a rank; a mesh of three axes."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")

import sharding  # noqa: E402  skips below torch 2.13
import torch.distributed as dist  # noqa: E402
from ranks import Ranks  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402

import laconic  # noqa: E402


@pytest.fixture(scope="module")
def four():
    ranks = Ranks(4)
    yield ranks
    ranks.close()


def trained(model, steps, loss_of=sharding.loss_of):
    """The digests of this rank's shards after each step."""
    optimizer, digests = sharding.sgd(model), []
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
        digests.append(sharding.digest(model))
    return digests


# ---- rules, control, record -----------------------------------------------------------------------------------------------------------


def ruled():
    model = sharding.made()
    rules = [{"match": "block.*", "spec": "int8"}, {"match": "*.bias", "spec": "none"}]
    with sharding.closing(sharding.attached(model, "3lc:s=1.5", rules=rules)) as handle:
        digests, explained = trained(model, 2), handle.explain()
        return digests, {p["name"]: p["codec"] for p in explained["parameters"]}, [s["rule"] for s in explained["settings"]]


def test_rules_match_names_without_position(four):
    outcomes = four.run(ruled)
    for rank, (_, codecs, rules) in enumerate(outcomes):
        place = f"@{rank % 2}/2"
        assert rules == ["block.*", "*.bias", "*"]
        assert {codecs[f"block.linear1.{kind}{place}"] for kind in ("weight", "bias")} == {"int8"}
        assert codecs[f"embed.bias{place}"] == "none" and codecs[f"embed.weight{place}"] == "3lc:s=1.5"
    assert outcomes[0][0] == outcomes[2][0] != outcomes[1][0] == outcomes[3][0]


def controlled(folder):
    model = sharding.made()
    options = {"control": "schedule:0=0.25,2=0.05", "record": f"{folder}/record"}
    with sharding.closing(sharding.attached(model, "topk:ratio=0.1", **options)) as handle:
        digests, stats = trained(model, 4), handle.stats()
        return digests, stats["setting_changes"], stats["failures"], handle.explain()["settings"][0]["spec"]


def test_control_changes_every_shard_and_each_has_its_record(four, tmp_path):
    outcomes = four.run(controlled, folder=str(tmp_path))
    assert [outcome[1:] for outcome in outcomes] == [(1, 0, "topk:ratio=0.05")] * 4
    assert outcomes[0][0] == outcomes[2][0] != outcomes[1][0] == outcomes[3][0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["record", "record.1-2"]
    heads = [json.loads((tmp_path / name).read_text().splitlines()[0]) for name in ("record", "record.1-2")]
    assert [head["world"] for head in heads] == [2, 2] and heads[0]["model"] != heads[1]["model"]


# ---- the handle -----------------------------------------------------------------------------------------------------------------------


def after_the_group():
    """What laconic.run and users read once the script has destroyed its process groups."""
    with sharding.closing(sharding.attached(sharding.made(), "3lc")) as handle:
        world, dist.GroupMember.WORLD = dist.GroupMember.WORLD, None
        try:
            explained = handle.explain()
            return handle.speaks, handle.shards, explained["shards"], explained["replicas"], handle.stats()["steps"]
        finally:
            dist.GroupMember.WORLD = world


def test_handle_reports_after_process_groups_are_destroyed(four):
    for rank, found in enumerate(four.run(after_the_group)):
        shards = [rank // 2 * 2, rank // 2 * 2 + 1]
        assert found == (rank == 0, shards, shards, [rank % 2, rank % 2 + 2], 0)


# ---- several models of a rank ---------------------------------------------------------------------------------------------------------


def stages(together):
    """Two models with a handle each, each trained by a backward() of its own or both by one; alone is what the first does without the second."""
    found = {}
    for how in ("alone", "both"):
        models = [sharding.made(seed=7), sharding.made(seed=8, kind=sharding.Square)]
        handles = [sharding.attached(model, "3lc", seed=i) for i, model in enumerate(models)]
        assert all(laconic.handle_of(model) is handle for model, handle in zip(models, handles))
        try:
            if how == "alone":
                found[how] = [trained(model, 3) for model in models]
            else:
                found[how] = in_turn(models, together)
            found[f"{how} steps"] = [handle.step for handle in handles]
        finally:
            for handle in handles:
                handle.close()
    return found


def in_turn(models, together):
    optimizers, digests = [sharding.sgd(model) for model in models], [[], []]
    for step in range(3):
        losses = [sharding.loss_of(model, step) for model in models]
        for loss in [sum(losses)] if together else losses:
            loss.backward()
        for optimizer, model, listed in zip(optimizers, models, digests):
            optimizer.step()
            optimizer.zero_grad()
            listed.append(sharding.digest(model))
    return digests


@pytest.mark.parametrize("together", [False, True])
def test_models_of_a_rank_train_as_each_alone(four, together):
    for found in four.run(stages, together=together):
        assert found["alone"] == found["both"] and found["alone steps"] == found["both steps"] == [3, 3]


# ---- tensor parallelism ---------------------------------------------------------------------------------------------------------------


def cut_twice():
    """A model of tensor parallelism inside of FSDP, and a batch that the ranks of a tensor share."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = sharding.init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("replicate", "shard", "tensor"))
    torch.manual_seed(7)
    model = parallelize_module(sharding.Square(), mesh["tensor"], {"first": ColwiseParallel(), "last": RowwiseParallel()})
    for module in (model.first, model):
        fully_shard(module, mesh=mesh["replicate", "shard"])
    return model


def loss_of_tensors(model, step):
    g = torch.Generator().manual_seed(1000 * step + dist.get_rank() // 2)
    x, y = torch.randn(8, 20, generator=g), torch.randint(0, 5, (8,), generator=g)
    return torch.nn.functional.cross_entropy(model(x), y)


def on_three_axes(folder):
    found = {"native": trained(cut_twice(), 3, loss_of_tensors)}
    for spec in ("none", "3lc"):
        model = cut_twice()
        with sharding.closing(sharding.attached(model, spec, record=f"{folder}/{spec}")) as handle:
            found[spec] = trained(model, 3, loss_of_tensors)
            found["names"] = [name for name, _ in handle.parameters]
            ready, stage = handle.worker.stage.ready, handle.worker.stage
            if dist.get_rank() == 7:
                stage.ready = fails
            found[f"{spec} failed"] = sharding.said(lambda: loss_of_tensors(model, 4).backward())  # noqa: B023
            stage.ready = ready
            model.zero_grad()
            found[f"{spec} after"] = sharding.said(lambda: loss_of_tensors(model, 5).backward())[0]  # noqa: B023
    return found


def fails(ticket):
    raise RuntimeError("the test ends this copy")


@pytest.fixture(scope="module")
def eight():
    ranks = Ranks(8)
    yield ranks
    ranks.close()


def test_replicas_resharded_to_pairs_equal_native(eight):
    native, ours = (eight.run(sharding.train, spec=spec, steps=2, shape=(2, 4), reshard=2) for spec in (None, "none"))
    assert [found for found, _, _ in ours] == [found for found, _, _ in native]


def test_three_axes_name_shards_and_hear_of_each_failure(eight, tmp_path):
    outcomes = eight.run(on_three_axes, folder=str(tmp_path))
    for rank, found in enumerate(outcomes):
        shard, tensor = rank // 2 % 2, rank % 2
        assert found["names"] == [f"last.weight@{shard}/2,{tensor}/2", f"last.bias@{shard}/2", f"first.weight@{shard}/2,{tensor}/2",
                                  f"first.bias@{shard}/2,{tensor}/2"]
        assert found["none"] == found["native"] != found["3lc"] == outcomes[rank ^ 4]["3lc"]
        name, text = found["3lc failed"]
        assert name == "peer_failed" and "the test ends this copy" in text
        assert ("another shard of this replica has failed, on rank" in text) == (rank not in (3, 7))
        assert found["none after"] == found["3lc after"] == "ok"
    assert len({found["3lc"][-1] for found in outcomes}) == 4
    records = {path.name for path in tmp_path.iterdir() if path.name[0] == "3"}
    assert records == {"3lc", "3lc.0-2_0-2_1-2", "3lc.1-2_1-2_0-2", "3lc.1-2_1-2_1-2"}
