# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""handle.follow(optimizer): residuals keep their weight when the learning rate changes."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import training  # noqa: E402

import laconic  # noqa: E402
from laconic.exchange.rates import Units, changes, parameter_of  # noqa: E402


def _gradient(ddp, rank, step):
    x, y = training.batch(rank, step)
    torch.nn.functional.cross_entropy(ddp(x).float(), y).backward()


def _factors(spec, rates, follow=True, **options):
    """Every residual after a step at each of these rates, and the same of a run whose residuals are scaled by hand."""
    import torch.distributed as dist

    rank, found = dist.get_rank(), []
    for by_hand in (False, True):
        ddp, handle, _ = training.build(dist.group.WORLD, spec, attach_options=options)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=rates[0])
        if follow and not by_hand:
            handle.follow(optimizer)
        held, states = next((r for r in rates if r > 0), None), []
        for step, rate in enumerate(rates):
            optimizer.param_groups[0]["lr"] = rate
            if by_hand and follow and rate > 0 and rate != held:
                state = handle.state_dict()
                for name, values in state["tensors"].items():
                    if name.startswith(("residual/", "owner_residual/")):
                        values *= held / rate
                handle.load_state_dict(training.unsealed(state))
                held = rate
            ddp.zero_grad()
            _gradient(ddp, rank, step)
            states.append({n: t.clone() for n, t in handle.state_dict()["tensors"].items()})
        handle.close()
        found.append(states)
    return all(torch.equal(a[n], b[n]) for a, b in zip(*found) for n in a) and any(
        bool(t.any()) for n, t in found[0][-1].items() if n.startswith("residual/"))


@pytest.mark.parametrize(("spec", "options"), [("topk:ratio=0.05", {}), ("3lc", {"strategy": "two_shot"}), ("powersgd:rank=2", {}),
                                               ("randomk:ratio=0.05", {})])
def test_residuals_are_scaled_by_old_over_new_rate(pools, spec, options):
    """A rate of 0 in between: they wait, and are then multiplied by what the last positive rate was over the new one."""
    assert all(pools(3).run(_factors, spec=spec, rates=[0.1, 0.1, 0.03, 0.03, 0.0, 0.0, 0.5, 0.7], **options))
    assert all(pools(3).run(_factors, spec=spec, rates=[0.0, 0.0, 0.1, 0.3], **options))  # a warm-up from 0


def test_missing_follow_keeps_residuals(pools):
    assert all(pools(2).run(_factors, spec="topk:ratio=0.05", rates=[0.1, 0.01, 0.5], follow=False))


def _delivered(follow):
    """The change of the parameters plus the residuals at the last rate equals the change under plain SGD."""
    import torch.distributed as dist

    ddp, handle, _ = training.build(dist.group.WORLD, "topk:ratio=0.05")
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.4)
    if follow:
        handle.follow(optimizer)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    weight = ddp.module.hidden.weight
    start, moved = weight.detach().clone(), torch.zeros_like(weight)
    for step in range(5):
        rate = optimizer.param_groups[0]["lr"]
        with ddp.no_sync():  # the uncompressed mean of this step
            ddp.zero_grad()
            _gradient(ddp, dist.get_rank(), step)
            plain = weight.grad.clone()
        dist.all_reduce(plain)
        moved -= rate * plain / dist.get_world_size()
        ddp.zero_grad()
        _gradient(ddp, dist.get_rank(), step)
        optimizer.step()
        scheduler.step()
    held = handle.state_dict()["tensors"]["residual/hidden.weight"].reshape(weight.shape)
    dist.all_reduce(held)
    handle.close()
    return float((weight.detach() - start - rate * held / dist.get_world_size() - moved).norm() / moved.norm())


def test_delayed_gradient_moves_weights_as_at_its_own_rate(pools):
    assert max(pools(2).run(_delivered, follow=True)) < 1e-5
    assert min(pools(2).run(_delivered, follow=False)) > 1e-2


def _resumed(spec, weights_only, **options):
    import io

    import torch.distributed as dist

    rank, hashes = dist.get_rank(), []
    for interrupted in (False, True):
        ddp, handle, optimizer = training.build(dist.group.WORLD, spec, buckets=3, attach_options=options)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, [lambda step: 1 / (1 + step)])
        handle.follow(optimizer)
        for step in range(8):
            if interrupted and step == 4:
                file = io.BytesIO()
                torch.save(handle.state_dict(), file)
                kept = ddp.module.state_dict(), optimizer.state_dict(), scheduler.state_dict()
                handle.close()
                ddp, handle, optimizer = training.build(dist.group.WORLD, spec, buckets=3, attach_options=options)
                scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, [lambda step: 1 / (1 + step)])
                ddp.module.load_state_dict(kept[0])
                optimizer.load_state_dict(kept[1])
                scheduler.load_state_dict(kept[2])
                file.seek(0)
                state = torch.load(file, weights_only=True) if weights_only else torch.load(file)
                handle.load_state_dict(state)
                handle.follow(optimizer)
            training.step_once(ddp, optimizer, rank, step)
            scheduler.step()
        hashes.append(training.digest(ddp))
        handle.close()
    return hashes


@pytest.mark.parametrize(("spec", "options"), [("topk:ratio=0.05", {}), ("3lc", {"strategy": "two_shot"}), ("powersgd:rank=2", {})])
def test_resume_is_bit_identical_if_rate_changes_after_state(pools, spec, options):
    results = pools(3).run(_resumed, spec=spec, weights_only=True, **options)
    assert all(r == results[0] for r in results) and results[0][0] == results[0][1]


def _groups():
    """Two groups whose rates change differently, and a parameter of no followed optimizer."""
    import torch.distributed as dist

    ddp, handle, _ = training.build(dist.group.WORLD, "topk:ratio=0.05")
    net = ddp.module
    optimizer = torch.optim.SGD([{"params": [net.first.weight], "lr": 0.1}, {"params": [net.hidden.weight], "lr": 0.2}])
    handle.follow(optimizer)
    for step in range(2):
        _gradient(ddp, dist.get_rank(), step)
        ddp.zero_grad()
    before = handle.state_dict()
    optimizer.param_groups[0]["lr"], optimizer.param_groups[1]["lr"] = 0.05, 0.8
    optimizer.add_param_group({"params": [net.first.bias], "lr": 1.0})
    _gradient(ddp, dist.get_rank(), 2)
    after = handle.state_dict()
    by_hand = {name: values.clone() for name, values in before["tensors"].items()}
    by_hand["residual/first.weight"] *= 2
    by_hand["residual/hidden.weight"] *= 0.25
    handle.load_state_dict({**training.unsealed(before), "tensors": by_hand, "rates": after["rates"]})
    ddp.zero_grad()
    _gradient(ddp, dist.get_rank(), 2)
    again = handle.state_dict()["tensors"]
    handle.close()
    return all(torch.equal(again[n], after["tensors"][n]) for n in again), before["rates"], after["rates"]


def test_each_parameter_follows_its_own_group(pools):
    for same, before, after in pools(2).run(_groups):
        assert same
        assert before == {"first.weight": 0.1, "hidden.weight": 0.2}
        assert after == {"first.weight": 0.05, "hidden.weight": 0.8, "first.bias": 1.0}


def _refused():
    import torch.distributed as dist

    ddp, handle, optimizer = training.build(dist.group.WORLD, "topk:ratio=0.05")
    told = []
    foreign = torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1)
    for thing in (None, object(), foreign):
        try:
            handle.follow(thing)
        except laconic.LaconicError as error:
            told.append((error.name, str(error)))
    handle.follow(optimizer)
    handle.follow(optimizer)
    training.step_once(ddp, optimizer, dist.get_rank(), 0)
    state, damaged = handle.state_dict(), []
    def of(rate, **kind):
        return torch.tensor(rate, **{"dtype": torch.float64, **kind})

    for rates in (None, {"no.such": of(0.1)}, {"first.weight": of(0.0)}, {"first.weight": of(float("nan"))}, {"first.weight": 0.1},
                  {"first.weight": of(0.1, dtype=torch.float32)}, {"first.weight": of([0.1])}):
        try:
            handle.load_state_dict({**state, "rates": rates})
        except laconic.LaconicError as error:
            damaged.append(error.name)
    handle.load_state_dict({key: value for key, value in training.unsealed(state).items() if key != "rates"})  # of a run that followed nothing
    without = handle.state_dict()
    handle.close()
    return told, damaged, "rates" in without


def test_unsupported_optimizers_are_refused(pools):
    for told, damaged, rates in pools(2).run(_refused):
        assert [name for name, _ in told] == ["invalid_argument"] * 3 and "none of the exchanged parameters" in told[2][1]
        assert damaged == ["state_corrupt"] * 7 and not rates


def test_rates_alone_can_be_followed():
    held = {}
    assert changes(held, {"a": 0.0, "b": 0.5}) == {} and held == {"b": 0.5}
    assert changes(held, {"a": 0.1, "b": 0.25}) == {"b": 2.0}
    assert changes(held, {"a": 0.0, "b": float("nan")}) == {} and held == {"a": 0.1, "b": 0.25}
    assert changes(held, {"a": 0.2, "b": float("inf")}) == {"a": 0.5}
    assert [parameter_of(name) for name in ("residual/a@b", "owner_residual/a@b@64", "state/a@0#0", "state/flush", "momentum/a", "mean/a")] == [
        "a@b", "a@b", None, None, None, None]


@pytest.mark.parametrize(("kind", "strategy", "spec", "says"), [
    ("AdamW", "two_shot", "3lc", True), ("SGD", "two_shot", "3lc", False), ("AdamW", "gather_all", "3lc", False),
    ("AdamW", "two_shot", "3lc+noef", False)])
def test_explain_warns_adam_of_second_encoding(kind, strategy, spec, says):
    model = torch.nn.Linear(3, 2)
    units = Units([(name, p) for name, p in model.named_parameters()], None, None)
    explained = {"strategy": strategy, "feedback": "+noef" not in spec, "world": 4}
    assert units.second_leg(explained) is None, "nothing is followed"
    units.follow(getattr(torch.optim, kind)(model.parameters(), lr=0.1))
    assert ("gather_all" in (units.second_leg(explained) or "")) == says


@pytest.mark.parametrize(("spec", "kind", "settings", "says"), [
    ("dgc:ratio=0.05", "SGD", {"momentum": 0.9}, "dgc:ratio=0.05 keeps momentum, and SGD has momentum=0.9"),
    ("topk+momentum", "RMSprop", {"momentum": 0.5}, "keeps momentum, and RMSprop has momentum=0.5"),
    ("signum", "AdamW", {}, "signum keeps a running mean, and AdamW has betas=(0.9, 0.999)"),
    ("dgc", "SGD", {}, None), ("dgc", "Adam", {"betas": (0.0, 0.999)}, None), ("dgc", "RMSprop", {}, None), ("dgc", "Adagrad", {}, None),
    ("dgc+noef", "SGD", {"momentum": 0.9}, None), ("topk", "SGD", {"momentum": 0.9}, None), ("int8", "AdamW", {}, None)])
def test_momentum_is_twice_where_codec_and_optimizer_keep_it(spec, kind, settings, says):
    model = torch.nn.Linear(3, 2)
    units = Units([(name, p) for name, p in model.named_parameters()], None, None)
    explained = {"parameters": [{"name": "weight", "codec": spec}, {"name": "bias", "codec": "none"}]}

    def told(parameters):
        return units.momentum_twice(getattr(torch.optim, kind)(parameters, lr=0.1, **settings), explained)

    assert (says in told(model.parameters())) if says else told(model.parameters()) is None
    assert told([model.bias]) is None, "the codec of this parameter keeps nothing"
    assert told(torch.nn.Linear(3, 2).parameters()) is None, "another model's"


def _warned(spec, rules=None):
    """What follow() and check_momentum() log of an optimizer with momentum, and of one without."""
    import contextlib
    import io

    import torch.distributed as dist

    ddp, handle, _ = training.build(dist.group.WORLD, spec, attach_options={} if rules is None else {"rules": rules})
    stream = io.StringIO()
    with contextlib.redirect_stderr(stream):
        handle.follow(torch.optim.SGD(ddp.parameters(), lr=0.1))
        quiet = stream.getvalue()
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
        for _ in range(2):
            handle.follow(optimizer)
            handle.check_momentum(optimizer)
    handle.close()
    return quiet, stream.getvalue().splitlines()


def test_follow_warns_once_of_momentum_kept_twice(pools):
    (quiet, lines), (_, other) = pools(2).run(_warned, spec="dgc:ratio=0.05")
    assert not quiet and not other
    assert len(lines) == 1 and "dgc:ratio=0.05 keeps momentum, and SGD has momentum=0.9" in lines[0]
    assert pools(2).run(_warned, spec="topk:ratio=0.05") == [("", [])] * 2
    of_a_rule = pools(2).run(_warned, spec="topk:ratio=0.05", rules=[{"match": "hidden.weight", "spec": "signum"}])[0][1]
    assert len(of_a_rule) == 1 and "signum keeps a running mean" in of_a_rule[0]
