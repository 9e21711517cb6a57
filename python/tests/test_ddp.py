# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The DDP hook with real processes and real Gloo: what holds in every mode of DDP."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import training  # noqa: E402
from ranks import RankError  # noqa: E402


def alike(results):
    assert len({r["hash"] for r in results}) == 1, "replicas differ"
    assert all(r["finite"] for r in results)
    return results[0]


@pytest.mark.parametrize("spec", training.SPECS)
def test_replicas_are_bit_identical(ranks, spec):
    alike(ranks.run(training.train, spec=spec, steps=8, buckets=3))


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("spec", ["none", "3lc", "topk:ratio=0.05", "powersgd:rank=2"])
def test_any_number_of_ranks(pools, spec, world):
    alike(pools(world).run(training.train, spec=spec, steps=4))


def test_none_equals_plain_ddp(ranks):
    with_hook = alike(ranks.run(training.train, spec="none", steps=6))
    plain = alike(ranks.run(training.train, spec=None, steps=6))
    assert with_hook["hash"] == plain["hash"]


@pytest.mark.parametrize("spec", ["int8", "3lc", "topk:ratio=0.05", "sidco:ratio=0.05"])
def test_buckets_are_only_transport(ranks, spec):
    one = alike(ranks.run(training.train, spec=spec, steps=6, buckets=1))
    many = alike(ranks.run(training.train, spec=spec, steps=6, buckets=6))
    assert one["hash"] == many["hash"]


MODES = {
    "accumulation": {"accumulate": 2},
    "static_graph": {"ddp_options": {"static_graph": True}},
    "bucket_view": {"ddp_options": {"gradient_as_bucket_view": True}},
    "bf16": {"dtype": torch.bfloat16},
    "fp16": {"dtype": torch.float16},
    "frozen": {"model_options": {"frozen": True}},
    "shared": {"model_options": {"shared": True}},
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("spec", ["3lc", "topk:ratio=0.05", "powersgd:rank=2", "bf16"])
def test_modes(ranks, spec, mode):
    if mode in ("bf16", "fp16"):
        plain_ddp_works(ranks, mode)
    alike(ranks.run(training.train, spec=spec, steps=5, buckets=2, **MODES[mode]))


def plain_ddp_works(ranks, mode):
    try:
        ranks.run(training.train, spec=None, steps=1, **MODES[mode])
    except RankError as error:  # torch 1.13
        pytest.skip(f"this torch trains no {mode} model on the CPU: {error.message}")


@pytest.mark.parametrize("branch", [training.on_rank_zero, training.on_odd_steps])
@pytest.mark.parametrize("spec", ["3lc", "topk:ratio=0.05", "int8", "powersgd:rank=2", "randomk:ratio=0.05"])
def test_unused_parameters(ranks, spec, branch):
    alike(ranks.run(training.train, spec=spec, steps=6, buckets=2, branch=branch, model_options={"unused": True},
                    ddp_options={"find_unused_parameters": True}))


def _keeps_unused(spec):
    import torch.distributed as dist

    ddp, handle, optimizer = training.build(dist.group.WORLD, spec, model_options={"unused": True},
                                            ddp_options={"find_unused_parameters": True})
    rank = dist.get_rank()
    for step in range(3):
        training.step_once(ddp, optimizer, rank, step, branch=True)
    before = handle.state_dict()["tensors"]["residual/branch.weight"].clone()
    training.step_once(ddp, optimizer, rank, 3, branch=False)
    after = handle.state_dict()["tensors"]["residual/branch.weight"]
    handle.close()
    return bool(before.abs().sum() > 0), bool(torch.equal(before, after))


@pytest.mark.parametrize("spec", ["3lc", "topk:ratio=0.05", "randomk:ratio=0.05", "powersgd:rank=2"])
def test_a_parameter_without_gradient_keeps_its_residual(ranks, spec):
    assert ranks.run(_keeps_unused, spec=spec) == [(True, True)] * 4


def _accumulates_in_the_open(spec):
    """Two backward passes per step without no_sync: the second bucket holds the first one's mean as well."""
    import torch.distributed as dist

    ddp, handle, optimizer = training.build(dist.group.WORLD, spec)
    rank = dist.get_rank()
    for step in range(3):
        optimizer.zero_grad()
        for half in range(2):
            x, y = training.batch(rank, 10 * step + half)
            torch.nn.functional.cross_entropy(ddp(x), y).backward()
        optimizer.step()
    handle.close()
    return training.digest(ddp)


@pytest.mark.parametrize("spec", ["3lc", "powersgd:rank=2"])
def test_accumulation_without_no_sync(pools, spec):
    assert len(set(pools(3).run(_accumulates_in_the_open, spec=spec))) == 1


def _compiled(spec):
    import torch.distributed as dist

    rank, hashes = dist.get_rank(), []
    for compiled in (False, True):
        ddp, handle, optimizer = training.build(dist.group.WORLD, spec, width=800, buckets=2)
        model = torch.compile(ddp, backend="eager") if compiled else ddp
        for step in range(4):
            training.step_once(model, optimizer, rank, step)
        hashes.append(training.digest(ddp))
        handle.close()
    return hashes


@pytest.mark.skipif(not hasattr(torch, "compile"), reason="this torch has no torch.compile")
def test_a_compiled_model_trains_the_same(pools):
    for plain, compiled in pools(2).run(_compiled, spec="3lc"):
        assert plain == compiled


def _join(spec):
    import torch.distributed as dist

    ddp, handle, optimizer = training.build(dist.group.WORLD, spec)
    rank = dist.get_rank()
    with ddp.join():
        for step in range(2 + rank):  # uneven inputs
            training.step_once(ddp, optimizer, rank, step)
    steps = handle.step
    handle.close()
    return steps


@pytest.mark.parametrize("spec", ["3lc", "topk:ratio=0.05", "none"])
def test_join_with_exhausted_ranks(ranks, spec):
    assert len(set(ranks.run(_join, spec=spec))) == 1


def _sizes(spec, buckets):
    import torch.distributed as dist

    ddp, handle, optimizer = training.build(dist.group.WORLD, spec, buckets=buckets)
    for step in range(5):
        training.step_once(ddp, optimizer, dist.get_rank(), step)
    stats, explained = handle.stats(), handle.explain()
    handle.close()
    return stats, explained


def test_stats_and_explain(ranks):
    for stats, explained in ranks.run(_sizes, spec="topk:ratio=0.05", buckets=1):
        assert stats["steps"] == 5
        assert 0 < stats["wire_bytes"] < stats["dense_bytes"]
        assert explained["strategy"] == "gather_all" and explained["reason"]
        names = {p["name"]: p["codec"] for p in explained["parameters"]}
        assert names["hidden.weight"].startswith("topk") and names["hidden.bias"] == "none"


@pytest.mark.parametrize("buckets", [1, 3])
def test_stats_count_what_plain_all_reduce_sums(ranks, buckets):
    for stats, _ in ranks.run(_sizes, spec="none", buckets=buckets):
        total = 5 * sum(p.numel() for p in training.Net(48).parameters())
        ring = 4 * 2 * total * (4 - 1) / 4
        assert (stats["steps"], stats["elements"], stats["exchanges"]) == (5, total, 0)
        assert 0 <= ring - stats["wire_bytes"] < 5 * 4 and stats["wire_bytes"] == stats["dense_bytes"]
        assert stats["ratio"] == 1.0 and stats["rounds"] >= 5


def _flush(spec):
    import torch.distributed as dist

    ddp, handle, optimizer = training.build(dist.group.WORLD, spec)
    rank = dist.get_rank()
    for step in range(4):
        training.step_once(ddp, optimizer, rank, step)
    before = handle.stats()["residual_norm"]
    handle.flush()
    training.step_once(ddp, optimizer, rank, 4)
    after = handle.stats()["residual_norm"]
    training.step_once(ddp, optimizer, rank, 5)
    result = before, after, handle.stats()["residual_norm"], training.digest(ddp)
    handle.close()
    return result


@pytest.mark.parametrize("spec", ["3lc", "topk:ratio=0.05", "powersgd:rank=2"])
def test_flush(ranks, spec):
    results = ranks.run(_flush, spec=spec)
    assert len({r[3] for r in results}) == 1
    for before, after, later, _ in results:
        assert before > 0 and after == 0 and later > 0
