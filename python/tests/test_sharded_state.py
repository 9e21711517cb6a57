# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Saved state of a ShardedOptimizer: a rank's, which continues bit for bit, and the whole, which goes into any world."""

from __future__ import annotations

import io

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import training  # noqa: E402
from test_sharded import OPTIMIZERS, same_on_all, build, loss_of, near, one, plain  # noqa: E402


def through_a_file(thing):
    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def _resumes(cls, push, dtype, flush, scale):
    """Digests of a run and of one that is saved after step 3 and goes on in other objects."""
    rank, digests = dist.get_rank(), []
    for interrupted in (False, True):
        scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=2) if scale else None
        net, optimizer = build(cls, *push.split(), dtype=dtype, scaler=scaler, full_pull_every=5)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        for step in range(4):
            if flush and step == 3:
                optimizer.flush(3)
            one(net, optimizer, rank, step, dtype, scaler)
            scheduler.step()
        if interrupted:
            saved = through_a_file([net.state_dict(), optimizer.state_dict(), scheduler.state_dict(), scaler.state_dict() if scaler else None])
            optimizer.close()
            net, optimizer = build(cls, *push.split(), dtype=dtype, scaler=scaler, full_pull_every=5)
            for p in net.parameters():
                p.data.add_(1)
            net.load_state_dict(saved[0])
            optimizer.load_state_dict(saved[1])
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
            scheduler.load_state_dict(saved[2])
            if scaler:
                scaler.load_state_dict(saved[3])
        for step in range(4, 8):
            one(net, optimizer, rank, step, dtype, scaler)
            scheduler.step()
        digests.append((training.digest(net), optimizer.stats()["residual_norm"], optimizer.param_groups[0]["lr"]))
        optimizer.close()
    return digests


@pytest.mark.parametrize("cls, push, dtype, flush, scale", [
    ("AdamW", "3lc", torch.float32, False, 0), ("AdamW", "topk:ratio=0.05", torch.bfloat16, True, 0), ("SGD", "3lc:s=1.5", torch.float32, True, 64.0),
    ("NAdam", "topk:ratio=0.1 3lc:s=1.5", torch.float32, False, 0), ("NAdam", "int8:round=stochastic+ef", torch.float32, False, 0), ("ASGD", "none", torch.float32, False, 0)])
def test_resumed_run_continues_bit_for_bit(pools, cls, push, dtype, flush, scale):
    results = pools(2).run(_resumes, cls=cls, push=push, dtype=dtype, flush=flush, scale=scale)
    for whole, resumed in results:
        assert resumed == whole
    same_on_all([whole[0] for whole, _ in results])


def _whole(cls):
    """Full state after three steps, and the model's."""
    rank = dist.get_rank()
    net, optimizer = build(cls, "none")
    for step in range(3):
        one(net, optimizer, rank, step)
    full = optimizer.full_state_dict()
    optimizer.close()
    return full, net.state_dict()


@pytest.mark.parametrize("cls", OPTIMIZERS)
def test_full_state_matches_plain_optimizer(pools, cls):
    results = pools(2).run(_whole, cls=cls)
    (full, model), (other, _) = results
    net, reference = plain(cls, 2, 3)
    expected = reference.state_dict()
    assert full["param_groups"] == other["param_groups"] and expected["param_groups"] == full["param_groups"]
    assert full["state"].keys() == expected["state"].keys()
    for number, values in expected["state"].items():
        assert full["state"][number].keys() == values.keys()
        for key, value in values.items():
            got = full["state"][number][key]
            if isinstance(value, torch.Tensor):
                assert got.shape == value.shape and got.dtype == value.dtype
                torch.testing.assert_close(got, value, atol=1e-5, rtol=1e-3)
                assert torch.equal(other["state"][number][key], got)
            else:
                assert got == value
    for name, p in net.named_parameters():
        torch.testing.assert_close(full["masters"][name], p.detach(), atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(model[name], full["masters"][name], atol=1e-6, rtol=1e-5)
    torch.optim.Optimizer.load_state_dict(reference, full)  # plain torch takes it
    assert set(reference.state_dict()["state"]) == set(full["state"])


def _continues(cls, full, model, masters):
    rank, world = dist.get_rank(), dist.get_world_size()
    net, optimizer = build(cls, "none")
    full, model = through_a_file([full, model])  # of its own: ranks share what came by a pipe
    if not masters:
        full = {key: value for key, value in full.items() if key != "masters"}
        net.load_state_dict(model)
    optimizer.load_full_state_dict(full)
    again = optimizer.full_state_dict()
    for step in range(3, 6):
        one(net, optimizer, rank, step)
    # The same with the plain optimizer.
    other = training.Net(32)
    other.load_state_dict(model)
    reference = getattr(torch.optim, cls)(other.parameters(), **OPTIMIZERS[cls])
    reference.load_state_dict(full)
    for step in range(3, 6):
        reference.zero_grad()
        for r in range(world):
            (loss_of(other, r, step) / world).backward()
        reference.step()
    near(net, other)
    optimizer.close()
    return training.digest(net), again


def same_full(one, other):
    for number, values in one["state"].items():
        for key, value in values.items():
            got = other["state"][number][key]
            assert torch.equal(got, value) if isinstance(value, torch.Tensor) else got == value
    for name, values in one["masters"].items():
        assert torch.equal(other["masters"][name], values), name


@pytest.mark.parametrize("masters", [True, False])
def test_full_state_loads_at_another_world(pools, masters):
    full, model = pools(2).run(_whole, cls="AdamW")[0]
    results = pools(3).run(_continues, cls="AdamW", full=full, model=model, masters=masters)
    same_on_all([digest for digest, _ in results])
    if masters:
        same_full(full, results[1][1])


def test_full_state_loads_on_one_rank(pools):
    full, _ = pools(2).run(_whole, cls="AdamW")[0]
    net, optimizer = build("AdamW", "3lc")
    optimizer.load_full_state_dict(full)
    same_full(full, optimizer.full_state_dict())
    assert all(torch.equal(p, full["masters"][name]) for name, p in net.named_parameters())
    saved = through_a_file([net.state_dict(), optimizer.state_dict()])
    digests = []
    for resumed in (False, True):
        if resumed:
            net, optimizer = build("AdamW", "3lc")
            net.load_state_dict(saved[0])
            optimizer.load_state_dict(saved[1])
        one(net, optimizer, 0, 3)
        digests.append(training.digest(net))
        optimizer.close()
    assert digests[0] == digests[1]


def _regrouped():
    """Groups that take the model's parameters in another order: whole state and back."""
    import laconic

    rank = dist.get_rank()
    digests, fulls = [], []
    for loads in (False, True):
        torch.manual_seed(7)
        net = training.Net(32)
        groups = [{"params": [net.last.bias, net.last.weight, net.hidden.weight]},
                  {"params": [net.hidden.bias, net.first.bias, net.first.weight], "lr": 1e-2}]
        optimizer = laconic.ShardedOptimizer(net, torch.optim.Adam, "none", "none", groups=groups, small_elements=64, lr=1e-3)
        if loads:
            optimizer.load_full_state_dict(through_a_file(fulls[0]))
        for step in range(3 if not loads else 0):
            one(net, optimizer, rank, step)
        fulls.append(optimizer.full_state_dict())
        for step in range(3, 5):
            one(net, optimizer, rank, step)
        digests.append(training.digest(net))
        shapes = [tuple(fulls[-1]["state"][number]["exp_avg"].shape) for number in range(6)]
        optimizer.close()
    return digests, shapes


def test_reordered_groups_keep_their_state(pools):
    for digests, shapes in pools(2).run(_regrouped):
        assert shapes == [(5,), (5, 32), (32, 32), (32,), (32,), (32, 20)]
        assert digests[0] == digests[1]


def _refuses(case, state=None):
    """A state that is not this optimizer's: the error's name and text, and whether anything changed."""
    import laconic

    rank = dist.get_rank()
    net, optimizer = build("AdamW", "3lc")
    one(net, optimizer, rank, 0)
    own, model = optimizer.state_dict(), training.digest(net)
    given = {"another rank": lambda: training.gathered(own)[1 - rank],
             "another world": lambda: state,
             "a damaged master": lambda: {**own, "laconic": {**own["laconic"], "tensors": {
                 k: v[:-1] if k.startswith("master/first") else v for k, v in own["laconic"]["tensors"].items()}}},
             "a damaged moment": lambda: {**own, "state": {**own["state"], 0: {**own["state"][0], "exp_avg": torch.zeros(3)}}},
             "no small parameter": lambda: {**own, "laconic": {**own["laconic"], "small": {}}},
             "full": lambda: {k: v for k, v in own.items() if k != "laconic"},
             "other groups": lambda: {**own, "param_groups": own["param_groups"] * 2},
             "not a state": lambda: [own]}[case]()
    try:
        optimizer.load_state_dict(given)
    except laconic.LaconicError as error:
        raised = error.name, str(error)
    after = optimizer.state_dict()
    assert training.digest(net) == model
    assert after["laconic"]["tensors"].keys() == own["laconic"]["tensors"].keys()
    assert all(torch.equal(after["laconic"]["tensors"][k], v) for k, v in own["laconic"]["tensors"].items())
    assert all(torch.equal(a["exp_avg"], b["exp_avg"]) for a, b in zip(after["state"].values(), own["state"].values()))
    optimizer.close()
    return raised


@pytest.mark.parametrize("case, name, words", [
    ("another rank", "state_rank", "rank"), ("a damaged master", "state_corrupt", "master/first.weight"),
    ("a damaged moment", "state_corrupt", "exp_avg"), ("no small parameter", "state_corrupt", "bias"), ("full", "state_version", "load_full_state_dict"),
    ("other groups", "state_model", "groups"), ("not a state", "state_corrupt", "list")])
def test_state_that_does_not_fit_is_refused(pools, case, name, words):
    for raised, text in pools(2).run(_refuses, case=case):
        assert raised == name and words in text


def _state():
    net, optimizer = build("AdamW", "3lc")
    one(net, optimizer, dist.get_rank(), 0)
    state = optimizer.state_dict()
    optimizer.close()
    return state


def test_state_of_another_world_is_refused(pools):
    state = pools(2).run(_state)[0]
    for raised, text in pools(3).run(_refuses, case="another world", state=state):
        assert raised == "state_world" and "expected 3 ranks, found 2" in text and "full_state_dict" in text
