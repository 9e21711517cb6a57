# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""ShardedOptimizer: what it trains is what torch's own optimizer trains, and every rank has the same bits."""

from __future__ import annotations

import contextlib
import io
import logging
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "accelerator"))

import pretend  # noqa: E402
import torch.distributed as dist  # noqa: E402
import training  # noqa: E402
from ranks import Ranks  # noqa: E402

import laconic  # noqa: E402

OPTIMIZERS = {"SGD": {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}, "Adam": {"lr": 2e-3}, "AdamW": {"lr": 2e-3, "weight_decay": 0.1},
              "NAdam": {"lr": 2e-3}, "RAdam": {"lr": 2e-3}, "Adamax": {"lr": 2e-3}, "RMSprop": {"lr": 1e-3, "momentum": 0.5}, "Adagrad": {"lr": 1e-2},
              "Adadelta": {"lr": 0.5}, "ASGD": {"lr": 0.05}}


def build(cls="AdamW", push="none", pull=None, *, width=32, dtype=torch.float32, device="cpu", net=None, keywords=None, **options):
    torch.manual_seed(7)
    net = net or training.Net(width).to(dtype).to(device)
    options.setdefault("small_elements", 64)
    options.setdefault("part", 4000)
    keywords = OPTIMIZERS[cls] if keywords is None else keywords
    return net, laconic.ShardedOptimizer(net, getattr(torch.optim, cls), push, pull or push, **options, **keywords)


def loss_of(net, rank, step, dtype=torch.float32):
    device = next(net.parameters()).device
    x, y = (t.to(device) for t in training.batch(rank, step, dtype=dtype))
    return torch.nn.functional.cross_entropy(net(x).float(), y)


def one(net, optimizer, rank, step, dtype=torch.float32, scaler=None):
    optimizer.zero_grad()
    loss = loss_of(net, rank, step, dtype)
    (loss if scaler is None else scaler.scale(loss)).backward()
    if scaler is None:
        optimizer.step()
    else:
        scaler.step(optimizer)
        scaler.update()
    return loss.item()


def plain(cls, world, steps, *, clip=None, keywords=None, schedule=None, width=32):
    """The plain optimizer on the mean of all ranks' gradients."""
    torch.manual_seed(7)
    net = training.Net(width)
    optimizer = getattr(torch.optim, cls)(net.parameters(), **(OPTIMIZERS[cls] if keywords is None else keywords))
    scheduler = schedule(optimizer) if schedule else None
    for step in range(steps):
        optimizer.zero_grad()
        for rank in range(world):
            (loss_of(net, rank, step) / world).backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(net.parameters(), clip)
        optimizer.step()
        if scheduler:
            scheduler.step()
    return net, optimizer


def near(net, other, atol=2e-5):
    for (name, a), b in zip(net.named_parameters(), other.parameters()):
        torch.testing.assert_close(a, b, atol=atol, rtol=1e-4, msg=lambda m: f"{name}: {m}")  # noqa: B023


def _equals_plain(cls, clip=None, scheduled=False, **options):
    rank, world = dist.get_rank(), dist.get_world_size()
    net, optimizer = build(cls, clip_norm=clip, **options)
    schedule = (lambda o: torch.optim.lr_scheduler.StepLR(o, 2, 0.5)) if scheduled else None
    scheduler = schedule(optimizer) if schedule else None
    for step in range(6):
        one(net, optimizer, rank, step)
        if scheduler:
            scheduler.step()
    other, _ = plain(cls, world, 6, clip=clip, schedule=schedule)
    near(net, other)
    stats = optimizer.stats()
    optimizer.close()
    return training.digest(net), stats


def same_on_all(results):
    assert len(set(results)) == 1, "replicas differ"
    return results[0]


@pytest.mark.parametrize("cls", OPTIMIZERS)
def test_uncompressed_run_equals_plain_optimizer_on_mean(pools, cls):
    results = pools(2).run(_equals_plain, cls=cls)
    same_on_all([digest for digest, _ in results])
    assert all(stats["step"] == 6 and stats["skipped_steps"] == 0 for _, stats in results)


def test_three_ranks_train_with_schedules_and_clipping(pools):
    for options in ({"scheduled": True}, {"clip": 0.1}, {"part": 0}, {"window": 1}, {"small_elements": 0}):
        results = pools(3).run(_equals_plain, cls="AdamW", **options)
        same_on_all([digest for digest, _ in results])
        assert ("grad_norm" in results[0][1]) == ("clip" in options)


def _trains(push, pull, dtype=torch.float32, steps=40, **options):
    rank = dist.get_rank()
    net, optimizer = build("AdamW", push, pull, dtype=dtype, keywords={"lr": 1e-2}, **options)
    losses = [one(net, optimizer, rank, step % 4, dtype) for step in range(steps)]
    stats, explained = optimizer.stats(), optimizer.explain()
    optimizer.close()
    return training.digest(net), losses[0], losses[-1], stats, explained


@pytest.mark.parametrize("push, pull, dtype", [("3lc", "3lc", torch.float32), ("3lc", "3lc", torch.bfloat16), ("topk:ratio=0.05", "int8", torch.float32)])
def test_compressed_run_trains_and_replicas_stay_equal(pools, push, pull, dtype):
    results = pools(3).run(_trains, push=push, pull=pull, dtype=dtype, width=64)
    same_on_all([digest for digest, *_ in results])
    for _, first, last, stats, explained in results:
        assert last < 0.5 * first
        assert stats["ratio"] > 4
        assert explained["optimizer"] == "AdamW"
        assert explained["small_parameters"] == ["first.bias", "hidden.bias", "last.bias"]
    elements = sum(p.numel() for p in training.Net(64).parameters() if p.numel() > 64)
    assert sum(explained["owned_elements"] for *_, explained in results) == elements


def _warned(cases):
    """Lines on momentum that each optimizer logs."""
    told = []
    for cls, push, keywords in cases:
        stream = io.StringIO()
        with contextlib.redirect_stderr(stream):
            build(cls, push, keywords={"lr": 0.1, **keywords})[1].close()
        told.append([line for line in stream.getvalue().splitlines() if "twice" in line])
    return told


def test_momentum_of_push_and_optimizer_is_reported(pools):
    cases = [("SGD", "dgc:ratio=0.05", {}), ("SGD", "topk:ratio=0.05", {"momentum": 0.9}), ("AdamW", "3lc", {}), ("SGD", "dgc:ratio=0.05", {"momentum": 0.9})]
    first, other = pools(2).run(_warned, cases=cases)
    assert first[:3] == [[]] * 3 and other == [[]] * 4
    assert len(first[3]) == 1 and "dgc:ratio=0.05 keeps momentum, and SGD has momentum=0.9: gradients are accumulated twice" in first[3][0]


def _full_pull(every):
    rank = dist.get_rank()
    net, optimizer = build("AdamW", "topk:ratio=0.01", full_pull_every=every)
    gaps = []
    for step in range(4):
        one(net, optimizer, rank, step)
        masters = optimizer.full_state_dict()["masters"]
        gaps.append(max((p - masters[name]).abs().max().item() for name, p in net.named_parameters()))
    optimizer.close()
    return training.digest(net), gaps


def test_full_pull_brings_masters(pools):
    results = pools(2).run(_full_pull, every=2)
    same_on_all([digest for digest, _ in results])
    for _, gaps in results:
        assert gaps[0] > 0 and gaps[2] > 0
        assert gaps[1] == gaps[3] == 0


def _accumulates(parts):
    """Some backward() calls a step; the third step has one more, in no_sync."""
    rank, world = dist.get_rank(), dist.get_world_size()
    net, optimizer = build("AdamW")
    torch.manual_seed(7)
    other = training.Net(32)
    reference = torch.optim.AdamW(other.parameters(), **OPTIMIZERS["AdamW"])
    for step in range(4):
        optimizer.zero_grad()
        reference.zero_grad()
        if step == 2:
            with optimizer.no_sync():
                loss_of(net, rank, 77).backward()
            for r in range(world):
                (loss_of(other, r, 77) / world).backward()
        for k in range(parts):
            loss_of(net, rank, 10 * step + k).backward()
            for r in range(world):
                (loss_of(other, r, 10 * step + k) / world).backward()
        optimizer.step()
        reference.step()
    near(net, other)
    optimizer.close()
    return training.digest(net)


def test_several_backward_calls_make_one_step(pools):
    for parts in (1, 3):
        same_on_all(pools(2).run(_accumulates, parts=parts))


def _uneven():
    """A branch that only rank 0 uses, in odd steps; shared and frozen parameters."""
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(7)
    net = training.Net(32, unused=True, frozen=True, shared=True)
    torch.manual_seed(7)
    other = training.Net(32, unused=True, frozen=True, shared=True)
    frozen = net.first.weight.clone()
    _, optimizer = build("AdamW", net=net)
    reference = torch.optim.AdamW([p for p in other.parameters() if p.requires_grad], **OPTIMIZERS["AdamW"])
    for step in range(5):
        for p in other.parameters():  # a gradient that no rank has is zero here
            p.grad = torch.zeros_like(p)
        optimizer.zero_grad()
        for r in range(world):
            x, y = training.batch(r, step)
            use = r == 0 and step % 2 == 1
            (torch.nn.functional.cross_entropy(other(x, use_branch=use), y) / world).backward()
            if r == rank:
                torch.nn.functional.cross_entropy(net(x, use_branch=use), y).backward()
        optimizer.step()
        reference.step()
    near(net, other)
    assert torch.equal(net.first.weight, frozen)
    optimizer.close()
    return training.digest(net)


def test_unused_shared_and_frozen_parameters_work(pools):
    same_on_all(pools(2).run(_uneven))


def _groups():
    rank, world = dist.get_rank(), dist.get_world_size()
    nets = []
    for _ in range(2):
        torch.manual_seed(7)
        nets.append(training.Net(32))
    net, other = nets

    def groups(n):
        return [{"params": [p for p in n.parameters() if p.dim() > 1], "lr": 3e-3},
                {"params": [p for p in n.parameters() if p.dim() == 1], "weight_decay": 0.0}]

    optimizer = laconic.ShardedOptimizer(net, torch.optim.AdamW, "none", "none", groups=groups(net), small_elements=8, lr=1e-3, weight_decay=0.5)
    reference = torch.optim.AdamW(groups(other), lr=1e-3, weight_decay=0.5)
    for step in range(4):
        optimizer.param_groups[1]["lr"] = reference.param_groups[1]["lr"] = 1e-3 * (step + 1)
        one(net, optimizer, rank, step)
        reference.zero_grad()
        for r in range(world):
            (loss_of(other, r, step) / world).backward()
        reference.step()
    near(net, other)
    optimizer.close()


def test_parameter_groups_keep_their_settings(pools):
    pools(2).run(_groups)


def _another_start(sync):
    """Ranks that begin with other values; the model is loaded after the optimizer was made."""
    rank = dist.get_rank()
    torch.manual_seed(rank)
    net = training.Net(32)
    optimizer = laconic.ShardedOptimizer(net, torch.optim.SGD, "none", "none", sync_parameters=sync, small_elements=64, lr=0.1)
    started = training.digest(net)
    torch.manual_seed(99)
    fresh = training.Net(32)
    net.load_state_dict(fresh.state_dict())
    one(net, optimizer, rank, 0)
    optimizer.close()
    return started, training.digest(net), max((a - b).abs().max().item() for a, b in zip(net.parameters(), fresh.parameters()))


def test_rank_0_initialises_all_and_model_may_be_loaded_later(pools):
    results = pools(2).run(_another_start, sync=True)
    torch.manual_seed(0)
    assert same_on_all([started for started, _, _ in results]) == training.digest(training.Net(32))
    same_on_all([ended for _, ended, _ in results])
    assert all(0 < moved < 0.2 for _, _, moved in results), "masters began with the loaded values"
    errors = pools(2).errors(_another_start, sync=False)
    assert "the parameters of rank 1 differ from those of rank 0" in same_on_all([e.message for e in errors])


def _memory_format():
    """Parameters that are not contiguous, and some that move."""
    rank, world = dist.get_rank(), dist.get_world_size()
    nets = []
    for _ in range(2):
        torch.manual_seed(3)
        nets.append(torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(128, 5)))
    net, other = nets
    net[0].to(memory_format=torch.channels_last)
    optimizer = laconic.ShardedOptimizer(net, torch.optim.AdamW, "none", "none", small_elements=5, lr=1e-2)
    reference = torch.optim.AdamW(other.parameters(), lr=1e-2)
    assert optimizer.explain()["host_copy_bytes"] == 4 * 216
    for step in range(4):
        if step == 2:
            for p in net.parameters():
                p.data = p.data.clone()
        optimizer.zero_grad()
        reference.zero_grad()
        for r in range(world):
            x = torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(10 * step + r))
            (other(x).square().mean() / world).backward()
            if r == rank:
                net(x).square().mean().backward()
        optimizer.step()
        reference.step()
    near(net, other)
    optimizer.close()
    return training.digest(net)


def test_noncontiguous_and_moved_parameters_work(pools):
    same_on_all(pools(2).run(_memory_format))


def _scaled(bad):
    """A GradScaler; in step 2 a gradient of rank 1 is not finite."""
    rank = dist.get_rank()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    net, optimizer = build("AdamW", "3lc", scaler=scaler, clip_norm=5.0)
    scales, before = [], None
    for step in range(7):
        if step == 2:
            before = training.digest(net)
            bomb = net.last.weight.register_hook(lambda g: g * float("inf")) if bad and rank == 1 else None
        one(net, optimizer, rank, step, scaler=scaler)
        if step == 2:
            if bomb is not None:
                bomb.remove()
            stood_still = training.digest(net) == before
        scales.append(scaler.get_scale())
    stats = optimizer.stats()
    optimizer.close()
    return training.digest(net), scales, stood_still, stats["skipped_steps"], stats["grad_norm"]


def test_scaler_sees_gradients_of_every_rank(pools):
    for bad in (False, True):
        results = pools(2).run(_scaled, bad=bad)
        same_on_all([digest for digest, *_ in results])
        scales = [1024.0] * 2 + ([512.0] * 3 + [1024.0] * 2 if bad else [2048.0] * 3 + [4096.0] * 2)
        for _, told, stood_still, skipped, norm in results:
            assert told == scales
            assert (stood_still, skipped) == (bad, int(bad))
            assert 0 < norm < 10, "of unscaled gradients"


def _unscaled(power):
    """The same training under another constant scale of the loss."""
    rank = dist.get_rank()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**power, growth_interval=1000)
    net, optimizer = build("AdamW", "3lc", scaler=scaler, clip_norm=0.5)
    for step in range(5):
        if step == 3 and power:
            scaler.update(2.0 ** (power + 3))
        one(net, optimizer, rank, step, scaler=scaler)
    optimizer.close()
    return training.digest(net)


def test_loss_scale_changes_no_bit(pools):
    assert same_on_all(pools(2).run(_unscaled, power=0)) == same_on_all(pools(2).run(_unscaled, power=8))


def _skips():
    rank = dist.get_rank()
    net, optimizer = build("AdamW", "3lc")
    for step in range(2):
        one(net, optimizer, rank, step)
    before, norm = training.digest(net), optimizer.stats()["residual_norm"]
    optimizer.zero_grad()
    (loss_of(net, rank, 2) * (float("nan") if rank == 0 else 1.0)).backward()
    optimizer.step()
    after, told = training.digest(net), optimizer.stats()
    one(net, optimizer, rank, 3)
    optimizer.close()
    return before == after, told["skipped_steps"], norm, told["residual_norm"], training.digest(net)


def test_step_with_nan_changes_nothing(pools):
    results = pools(2).run(_skips)
    for same, skipped, before, after, _ in results:
        assert same and skipped == 1
        assert after == pytest.approx(before, rel=1e-4)
    same_on_all([digest for *_, digest in results])


def _disabled():
    import os

    os.environ["LACONIC_DISABLE"] = "1"
    try:
        net, optimizer = build("AdamW", "3lc")
    finally:
        del os.environ["LACONIC_DISABLE"]
    for step in range(6):
        one(net, optimizer, dist.get_rank(), step)
    other, _ = plain("AdamW", dist.get_world_size(), 6)
    near(net, other)
    told = optimizer.push, optimizer.explain()["pull"]
    optimizer.close()
    return told


def test_disabled_run_compresses_nothing(pools):
    assert pools(2).run(_disabled) == [("none", "none")] * 2


def _disabled_here():
    import os

    if dist.get_rank() == 1:
        os.environ["LACONIC_DISABLE"] = "1"
    try:
        build("AdamW", "3lc")
    finally:
        os.environ.pop("LACONIC_DISABLE", None)


def test_disabled_on_some_ranks_is_refused(pools):
    errors = pools(2).errors(_disabled_here)
    assert "LACONIC_DISABLE=1 is set on rank 1 and not on rank 0" in same_on_all([e.message for e in errors])


def _flushes():
    rank = dist.get_rank()
    net, optimizer = build("AdamW", "topk:ratio=0.01")
    for step in range(3):
        one(net, optimizer, rank, step)
    before = optimizer.stats()["residual_norm"]
    until = optimizer.flush(2)
    while optimizer.stats()["step"] <= until:
        one(net, optimizer, rank, optimizer.stats()["step"])
    after = optimizer.stats()["residual_norm"]
    optimizer.close()
    return before, after, optimizer.stats()["residual_norm"], training.digest(net)


def test_flush_sends_residuals_of_pushes(pools):
    results = pools(2).run(_flushes)
    same_on_all([digest for *_, digest in results])
    for before, after, told_last, _ in results:
        assert before > 0 and after == told_last == 0


def test_one_rank_is_the_plain_optimizer(caplog):
    with caplog.at_level(logging.INFO, "laconic"):
        net, optimizer = build("AdamW", "3lc", clip_norm=0.1)
    assert [r.message for r in caplog.records] == ["AdamW: one rank has nothing to exchange: torch's optimizer is used"]
    for step in range(6):
        one(net, optimizer, 0, step)
    other, _ = plain("AdamW", 1, 6, clip=0.1)
    near(net, other, atol=1e-7)
    before = training.digest(net)
    optimizer.zero_grad()
    (loss_of(net, 0, 9) * float("nan")).backward()
    optimizer.step()
    assert training.digest(net) == before and optimizer.stats()["skipped_steps"] == 1
    optimizer.close()


def _order(steps):
    """The actions of a rank, in order: numbers are pushes."""
    rank = dist.get_rank()
    net, optimizer = build("AdamW", "3lc")
    pushes, did = optimizer._work.pushes, []
    push, rest = optimizer._work._push, pushes.rest
    pushes._push = lambda: lambda number, failure: (did.append(number), push(number, failure))[1]
    pushes.rest = lambda: (did.append("step"), rest())[1]
    for step in range(steps):
        if step == 2 and rank == 1:  # the last layer has no gradient here
            net.last.requires_grad_(False)
        one(net, optimizer, rank, step)
        net.last.requires_grad_(True)
    buckets = [[optimizer._work.trained.names[i] for i in bucket.parameters] for bucket in optimizer._work._buckets]
    optimizer.close()
    return did, buckets, training.digest(net)


def test_buckets_are_pushed_during_backward_in_one_order(pools):
    results = pools(2).run(_order, steps=4)
    same_on_all([digest for *_, digest in results])
    for did, buckets, _ in results:
        assert buckets == [["last.bias", "last.weight", "hidden.bias"], ["hidden.weight"], ["first.bias", "first.weight"]]
        assert did[:4] == ["step", 0, 1, 2], "how many gradients a step brings is learned in the first"
        assert did[4:8] == did[12:] == [0, 1, 2, "step"]
    assert results[0][0][8:12] == [0, 1, 2, "step"]
    assert results[1][0][8:12] == ["step", 0, 1, 2], "those behind the one that lacks a gradient wait"


def _dropped():
    """One that was not closed, and another one of the same model."""
    import threading

    rank = dist.get_rank()
    net, optimizer = build("AdamW", "3lc")
    one(net, optimizer, rank, 0)
    thread = optimizer._work.exchange._lane.thread
    del optimizer
    thread.join(30)
    assert not thread.is_alive() and thread not in threading.enumerate()
    _, optimizer = build("AdamW", "3lc", net=net)
    for step in range(3):
        one(net, optimizer, rank, step)
    optimizer.close()
    loss_of(net, rank, 5).backward()
    return training.digest(net)


def test_dropped_optimizer_leaves_model_alone(pools):
    same_on_all(pools(2).run(_dropped))


def _memory():
    rank, world = dist.get_rank(), dist.get_world_size()
    net, optimizer = build("Adam", "3lc", width=256)
    one(net, optimizer, rank, 0)
    inner = optimizer._work.inner
    own = sum(t.numel() for t in inner.tensors.values())
    state = sum(v.numel() for values in inner.optimizer.state.values() for v in values.values() if v.dim())
    small = sum(p.numel() for p in net.parameters() if p.numel() <= 64)
    elements = sum(p.numel() for p in net.parameters())
    optimizer.close()
    return own, state, 1.05 * elements / world + small


def test_rank_keeps_state_of_its_part(pools):
    for own, state, most in pools(4).run(_memory):
        assert own <= most and state == 2 * own


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_accelerator_gives_values_of_cpu(pools, dtype):
    if why := pretend.why_not():
        pytest.skip(why)
    pretend.library()
    run = {"push": "3lc", "pull": "3lc", "steps": 8, "dtype": dtype}
    staged = Ranks(2, backend="pretend", prepare=pretend.load)
    try:
        results = staged.run(_trains, device="pretend", **run)
    finally:
        staged.close()
    assert same_on_all([digest for digest, *_ in results]) == same_on_all([digest for digest, *_ in pools(2).run(_trains, **run)])
    elements = sum(p.numel() for p in training.Net(32).parameters())
    for *_, explained in results:
        assert explained["device"].startswith("pretend")
        assert explained["host_copy_bytes"] == elements * (4 if dtype == torch.float32 else 2)
