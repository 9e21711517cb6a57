# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""OuterStep where something goes wrong: a rank that is gone, a change that is not finite, steps that a scaler skips, calls that differ."""

from __future__ import annotations

import contextlib
import os
import signal

import pytest

torch = pytest.importorskip("torch")

import outering  # noqa: E402
import torch.distributed as dist  # noqa: E402
import training  # noqa: E402
from ranks import Ranks  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import laconic  # noqa: E402
from laconic.exchange.state import fingerprint  # noqa: E402
from laconic.integrations import _shared, states  # noqa: E402
from laconic.outer.fragment import Fragment  # noqa: E402
from laconic.outer.whole import Whole  # noqa: E402

VICTIM = 1


def at_anchor(model, outer) -> bool:
    return all(torch.equal(p, a.to(p.dtype)) for p, a in zip(model.parameters(), outer.anchor.values()))


# ---- a rank that is gone --------------------------------------------------------------------------------------------------------------------


def _dies(spec, phase):
    """The victim dies in the third round: before it sends, with its first message under way, in its outer rule; or while it loads a state, which the
    others have loaded, or wait to load together with it."""
    model, optimizer, outer = outering.made(every=2, spec=spec, outer=laconic.nesterov(0.7, 0.9), kind="ddp")
    for step in range(5):
        outering.one(model, optimizer, step)
    worker = outer._exchange.opened.worker
    before = outer.state_dict()

    def die(*_, **__):
        os.kill(os.getpid(), signal.SIGKILL)

    if dist.get_rank() == VICTIM:
        if phase == "taken":
            outer._exchange.begin = die
        elif phase == "sent":
            start = worker.engine.start
            worker.engine.start = lambda *arguments: (start(*arguments), die())
        elif phase == "stepped":
            outer._rounds.parts[0].fragment.step = die
        else:
            worker.prepare = die
    said = []
    if phase == "loaded":
        outer.load_state_dict(before)
    elif phase == "resumed":
        whole, own = Whole(outer), training.digest(model)
        content = states.content(fingerprint(whole.parameters), whole.state_dict())
        with pytest.raises(laconic.LaconicError) as error:
            _shared.resume_from(whole, content)
        said.append((error.value.name, error.value.message))
        assert outer.step == 5 and training.digest(model) == own
    kept = {name: a.clone() for name, a in outer.anchor.items()}
    own = {}
    take = outer._rounds.parts[0].fragment.take_change

    def taken():
        take()
        own.update((name, kept[name] - p.detach()) for name, p in zip(kept, outer._rounds.parts[0].fragment.parameters))

    outer._rounds.parts[0].fragment.take_change = taken
    for step in range(5, 9):
        try:
            outering.one(model, optimizer, step)
        except laconic.LaconicError as error:
            said.append((error.name, error.message))
            break
    after = outer.state_dict()
    lost = [name for name, change in own.items() if not torch.allclose(
        _held(after, name) - _held(before, name), change.flatten(), atol=1e-6, rtol=1e-4)] if phase in ("taken", "sent") else []
    moved = [name for name, a in outer.anchor.items() if not torch.equal(a, kept[name])]
    result = said, at_anchor(model, outer), moved, lost, outer.stats()["failed_rounds"], training.digest(model)
    outer.close()
    return result


def _held(state, name):
    """What a rank's residual of a parameter and what it keeps of failed rounds come to."""
    state = state["fragments"][0]
    residual = state["session"]["tensors"].get(f"residual/{name}", torch.zeros(1))
    return residual + state["kept"].get(name, torch.zeros(1)).flatten()


@pytest.mark.parametrize(("spec", "phase"), [("3lc:s=1.5", "taken"), ("3lc:s=1.5", "sent"), ("none", "taken"), ("topk:ratio=0.05", "stepped"),
                                             ("topk:ratio=0.05", "loaded"), ("3lc:s=1.5", "resumed")])
def test_rank_that_is_killed_is_named_and_others_lose_nothing(spec, phase):
    pool = Ranks(3)
    try:
        pool.start(_dies, spec=spec, phase=phase)
        outcomes = pool.finish()
    finally:
        pool.close()
    assert outcomes[VICTIM][0] == "dead"
    survivors = [outcomes[rank] for rank in (0, 2)]
    for kind, result in survivors:
        assert kind == "ok", result
        said, anchored, moved, lost, failed, _ = result
        assert len(said) == (2 if phase == "resumed" else 1)
        assert all(name == "engine_failed" and "rank 1 is gone" in message for name, message in said), said
        assert anchored and failed == 1 and lost == []
        assert bool(moved) == (phase == "stepped")
    assert survivors[0][1][5] == survivors[1][1][5], "anchors differ"


# ---- changes that are not finite ------------------------------------------------------------------------------------------------------------


def _diverges(spec, on_non_finite, **options):
    """Rank 1's parameters are infinite in the second round, those of both ranks fine in the third."""
    model, _, outer = outering.made(spec=spec, hook=False, on_non_finite=on_non_finite, **options)
    raised = []
    for number in range(3):
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(0.125 * (1 + dist.get_rank()))
            if number == 1 and dist.get_rank() == 1:
                model.hidden.weight[3, 3] = float("inf")
        try:
            outer.after_step()
        except laconic.LaconicError as error:
            raised.append((number, error.name))
        assert at_anchor(model, outer)
    stats = outer.stats()
    outer.close()
    return raised, stats["dropped_rounds"], stats["rounds"], all(bool(p.isfinite().all()) for p in model.parameters()), training.digest(model)


@pytest.mark.parametrize("spec", ["none", "3lc:s=1.5", "topk:ratio=0.05", "thc:block=256", "int8"])
def test_all_ranks_drop_a_round_with_a_change_that_is_not_finite(pools, spec):
    for word in ("raise", "skip"):
        results = pools(2).run(_diverges, spec=spec, on_non_finite=word)
        assert results[0] == results[1]
        assert results[0][:4] == ([(1, "non_finite")] if word == "raise" else [], 1, 2, True)


def test_large_finite_change_is_finite():
    fragment = Fragment(["weight"], [torch.nn.Parameter(torch.zeros(4))], "average")
    inf, most = float("inf"), torch.finfo(torch.float32).max
    for values, finite in (([most, most, -most, most], True), ([-most] * 4, True), ([1, inf, 1, 1], False), ([1, -inf, 1, 1], False),
                           ([inf, -inf, 1, 1], False), ([1, 1, float("nan"), 1], False), ([0, 0, 0, 0], True)):
        fragment.change.copy_(torch.tensor(values))
        assert fragment.finite() == finite, values


# ---- a GradScaler ---------------------------------------------------------------------------------------------------------------------------


def _scaled(given):
    model, optimizer, _ = outering.made()
    _.close()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    outer = laconic.OuterStep(model, optimizer, spec="none", every=2, scaler=scaler if given else None, quiet=True)
    seen = []
    for step in range(6):
        optimizer.zero_grad()
        x, y = training.batch(dist.get_rank(), step)
        loss = scaler.scale(torch.nn.functional.cross_entropy(model(x), y))
        (loss * float("inf") if step == 2 and dist.get_rank() == 1 else loss).backward()
        scaler.step(optimizer)
        scaler.update()
        seen.append(training.digest(model))
    stats = outer.stats()
    outer.close()
    assert "step" not in vars(scaler)
    return seen[1::2], stats["skipped_steps"], stats["rounds"], stats["inner_steps"]


def test_step_that_a_scaler_skips_counts_as_one_without_a_change(pools):
    first, second = pools(2).run(_scaled, given=True)
    assert first[0] == second[0] and first[1:] == (0, 3, 6) and second[1:] == (1, 3, 6)


def test_scaler_that_was_not_given_is_refused(pools):
    for error in pools(2).errors(_scaled, given=False):
        assert "OuterStep(..., scaler=scaler)" in error.message


# ---- what is refused ------------------------------------------------------------------------------------------------------------------------


def _refused(which):
    rank, net = dist.get_rank(), training.Net(8)
    optimizer, options = torch.optim.SGD(net.parameters(), lr=0.1), {"spec": "none", "quiet": True}
    handle = None
    if which == "attached":
        net = DistributedDataParallel(net)
        handle = laconic.attach(net, "none", quiet=True)
    elif which == "hooked":
        net = DistributedDataParallel(net)
        net.register_comm_hook(None, _other_hook)
    elif which == "lacking":
        optimizer = torch.optim.SGD(net.last.parameters(), lr=0.1)
    elif which == "double":
        net = net.double()
    elif which == "frozen":
        net.requires_grad_(False)
    elif which == "values":
        with torch.no_grad():
            net.last.bias.add_(rank)
    given = {"every": {"every": 0}, "every differs": {"every": 1 + rank}, "outer": {"outer": "mean"}, "no optimizer": {"outer": lambda parameters: 3},
             "raises": {"outer": lambda parameters: torch.optim.SGD(parameters, lr=-1)}, "outer differs": {"outer": laconic.nesterov(0.5 + rank, 0.9)},
             "word": {"on_non_finite": "stop"}, "spec": {"spec": "3lcc"}, "spec differs": {"spec": ["3lc", "int8"][rank]},
             "fragments": {"fragments": 2, "every": 3}, "delay": {"fragments": 2, "every": 4, "delay": 3}, "alpha": {"alpha": 1.0}, "many": {"fragments": 7, "every": 7},
             "modules": {"fragments": [[net.last if hasattr(net, "last") else net]]}, "twice": {"fragments": [[net], [net]], "every": 2},
             "one": {"every": 0 if rank else 1}, "values": {"sync_parameters": False}}.get(which, {})
    try:
        laconic.OuterStep(net, None if which == "none" else optimizer, **{**options, **given})
    except laconic.LaconicError as error:
        return error.name, str(error)
    finally:
        if handle is not None:
            handle.close()
    return None


def _other_hook(state, bucket):
    raise AssertionError


@pytest.mark.parametrize(("which", "name", "words"), [
    ("every", "value_out_of_range invalid_argument", ["every is 0"]), ("fragments", "invalid_argument", ["every is 3, and 2 fragments do not divide it"]),
    ("delay", "invalid_argument", ["delay is 3", "every 2 steps"]), ("alpha", "invalid_argument", ["alpha is 1.0"]), ("many", "invalid_argument", ["7 fragments"]),
    ("modules", "invalid_argument", ["no fragment has first.weight and 3 more"]), ("twice", "invalid_argument", ["another fragment"]),
    ("every differs", "ranks_disagree", ["every is 1 on rank 0 and 2 on rank 1"]),
    ("outer", "invalid_argument", ["outer is 'mean'", "laconic.nesterov"]), ("no optimizer", "invalid_argument", ["outer gave a int"]),
    ("raises", "invalid_argument", ["outer could not make its optimizer", "learning rate"]), ("word", "invalid_argument", ["on_non_finite is 'stop'"]),
    ("outer differs", "ranks_disagree", ["outer is", "0.5", "1.5"]), ("spec", "unknown_codec", ["3lcc"]), ("spec differs", "ranks_disagree", ["3lc"]),
    ("attached", "unsupported", ["laconic.attach", "group="]), ("hooked", "unsupported", ["_other_hook"]), ("none", "invalid_argument", ["after_step()"]),
    ("lacking", "unsupported", ["first.weight and 3 more", "hook=False", "after_step()"]), ("double", "dtype_unsupported", ["float64"]),
    ("frozen", "invalid_argument", ["nothing to train"]), ("values", "ranks_disagree", ["parameters of rank 1", "sync_parameters"])])
def test_impossible_request_is_refused_on_all_ranks(pools, which, name, words):
    for got in pools(2).run(_refused, which=which):
        assert got is not None and got[0] in name.split(), got
        assert all(word.lower() in got[1].lower() for word in words), got


def test_refusal_of_one_rank_is_every_ranks(pools):
    first, second = pools(2).run(_refused, which="one")
    assert first[0] == "ranks_disagree" and "rank 1 could not create its OuterStep: every is 0" in first[1]
    assert second == first


def _out_of_step(spec):
    """Rank 0 has made a step more than rank 1 before a round."""
    model, optimizer, outer = outering.made(every=3, spec=spec)
    for step in range(4 if dist.get_rank() else 5):
        outering.one(model, optimizer, step)
    with contextlib.closing(outer):
        outer.sync()


def test_ranks_out_of_step_are_told_so(pools):
    pool = Ranks(2)
    try:
        for error in pool.errors(_out_of_step, spec="topk:ratio=0.05"):
            assert "ranks are out of step" in error.message and "scaler=" in error.message, error.message
    finally:
        pool.close()


# ---- switched off, and alone ------------------------------------------------------------------------------------------------------------------


def _disabled(every):
    os.environ["LACONIC_DISABLE"] = "1"
    try:
        found, stats, explained = outering.digests(4, spec="3lc", every=every, kind="ddp")
    finally:
        del os.environ["LACONIC_DISABLE"]
    plain, _, _ = outering.digests(4, spec="none", every=every)
    return found == plain, stats["rounds"], explained["spec"]


def test_disabled_rounds_stay_uncompressed(pools):
    assert pools(2).run(_disabled, every=2) == [(True, 2, "none")] * 2


def test_one_process_trains_as_without():
    torch.manual_seed(7)
    plain = training.Net(32)
    inner = torch.optim.AdamW(plain.parameters(), lr=1e-2)
    model, optimizer, outer = _alone(outer="average")
    for step in range(4):
        outering.one(plain, inner, step, rank=0)
        outering.one(model, optimizer, step, rank=0)
    assert training.digest(model) == training.digest(plain)
    assert outer.stats()["rounds"] == 2 and outer.explain()["every"] == 2 and outer.stats()["wire_bytes"] == 0
    outer.close()
    outering.one(model, optimizer, 4, rank=0)
    with pytest.raises(laconic.LaconicError, match="closed"):
        outer.sync()


def _alone(**options):
    torch.manual_seed(7)
    model = training.Net(32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return model, optimizer, laconic.OuterStep(model, optimizer, spec="3lc", every=2, quiet=True, **options)


def test_one_process_has_the_outer_rule():
    model, optimizer, outer = _alone(outer=laconic.nesterov(0.5, 0.5))
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    for step in range(2):
        outering.one(model, optimizer, step, rank=0)
    assert at_anchor(model, outer)
    state = outer.state_dict()
    other, _, again = _alone(outer=laconic.nesterov(0.5, 0.5))
    again.load_state_dict(state)
    assert all(torch.equal(a, b) for a, b in zip(again.anchor.values(), outer.anchor.values())) and again.step == 2
    assert any(not torch.equal(start[name], p) for name, p in model.named_parameters())
