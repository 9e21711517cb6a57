# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Parameters whose names wrappers decorate, and parameters that sleep when laconic is attached."""

from __future__ import annotations

import re

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import training  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import laconic  # noqa: E402
from laconic.exchange import names  # noqa: E402

WORDS = {"compiled": "_orig_mod.", "checkpointed": "_checkpoint_wrapped_module.", "inside": "module.", "sharded": "_fsdp_wrapped_module."}


class Inside(torch.nn.Module):
    """A module under one of the words that wrappers use."""

    def __init__(self, module, word):
        super().__init__()
        setattr(self, word.removesuffix("."), module)
        self._inner = [module]

    def forward(self, x):
        return self._inner[0](x)


def _built(kind, spec, **options):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32))
    if kind == "checkpointed":
        net[0] = Inside(net[0], WORDS[kind])
    elif kind != "plain":
        net = Inside(net, WORDS[kind])
    ddp = DistributedDataParallel(net)
    return ddp, laconic.attach(ddp, spec, small_elements=64, quiet=True, **options)


def _trains(ddp, steps, seed):
    optimizer, draw = torch.optim.SGD(ddp.parameters(), 0.1), torch.Generator().manual_seed(seed + dist.get_rank())
    for _ in range(steps):
        optimizer.zero_grad()
        ddp(torch.randn(8, 32, generator=draw)).square().mean().backward()
        optimizer.step()


def _resumes(one, other, spec, older=False):
    """Whether a state of the model in one form goes on in another, bit for bit. older: its names have the words, as they once had."""
    keep, names.undecorated = names.undecorated, (lambda them: them) if older else names.undecorated
    try:
        ddp, handle = _built(one, spec)
    finally:
        names.undecorated = keep
    _trains(ddp, 4, 1)
    state, weights = handle.state_dict(), [p.detach().clone() for p in ddp.parameters()]
    ddp2, handle2 = _built(other, spec)
    with torch.no_grad():
        for p, w in zip(ddp2.parameters(), weights):
            p.copy_(w)
    handle2.load_state_dict(training.unsealed(state) if older else state)
    held = handle2.stats()["residual_norm"] == handle.stats()["residual_norm"] != 0
    for model in (ddp, ddp2):
        _trains(model, 3, 2)
    same = training.digest(ddp) == training.digest(ddp2)
    handle.close()
    handle2.close()
    return held, same


@pytest.mark.parametrize("spec", ["topk:ratio=0.05", "powersgd:rank=2"])
@pytest.mark.parametrize(("one", "other"), [("plain", "compiled"), ("compiled", "plain"), ("checkpointed", "compiled"), ("inside", "sharded")])
def test_state_continues_for_any_wrapper_of_model(pools, one, other, spec):
    assert pools(2).run(_resumes, one=one, other=other, spec=spec) == [(True, True)] * 2


@pytest.mark.parametrize(("one", "other"), [("compiled", "compiled"), ("checkpointed", "plain")])
def test_state_of_earlier_release_continues_under_bare_names(pools, one, other):
    assert pools(2).run(_resumes, one=one, other=other, spec="topk:ratio=0.05", older=True) == [(True, True)] * 2


def _ruled():
    ddp, handle = _built("compiled", "topk:ratio=0.05", rules=[{"match": "_orig_mod.0.*", "spec": "int8"}])
    found = [(p["name"], p["codec"]) for p in handle.explain()["parameters"]]
    handle.close()
    del ddp
    return found


def test_rules_may_omit_wrapper_names(pools):
    assert pools(2).run(_ruled)[0] == [("0.weight", "int8"), ("0.bias", "none"), ("2.weight", "topk:ratio=0.05"), ("2.bias", "none")]


def test_wrapper_prefixes_are_removed_unless_names_collide():
    assert names.undecorated(["module.a.w", "_orig_mod.module.b", "c._checkpoint_wrapped_module.w"]) == ["a.w", "b", "c.w"]
    assert names.undecorated(["a", "module.a"]) == ["a", "module.a"]
    assert names.undecorated(["submodule.a", "my_module.b"]) == ["submodule.a", "my_module.b"]


def _another():
    ddp, handle = _built("plain", "topk:ratio=0.05")
    _trains(ddp, 1, 1)
    other = DistributedDataParallel(torch.nn.ModuleDict({"0": torch.nn.Linear(32, 64), "head": torch.nn.Linear(64, 32)}))
    handle2 = laconic.attach(other, "topk:ratio=0.05", small_elements=64, quiet=True)
    try:
        handle2.load_state_dict(handle.state_dict())
    except laconic.LaconicError as error:
        return error.name, error.message
    finally:
        handle.close()
        handle2.close()


def test_another_models_state_is_refused_with_a_name_of_each(pools):
    for name, message in pools(2).run(_another):
        assert name == "state_model" and re.search(r"the state has 2\.(weight|bias), this model has head\.weight$", message), message


# ---- parameters that sleep ----


def _freeze(net, which, frozen=True):
    for name, p in net.named_parameters():
        if name in which:
            p.requires_grad_(not frozen)


def _asleep(before, at_attach):
    """Trains with parameters `before` frozen while DDP is made and then for good, `at_attach` in the moment of attach."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32))
    _freeze(net, before)
    ddp = DistributedDataParallel(net)
    _freeze(net, before, False)
    _freeze(net, at_attach)
    handle = laconic.attach(ddp, "topk:ratio=0.05", small_elements=64, quiet=True)
    _freeze(net, at_attach, False)
    _freeze(net, before)
    _trains(ddp, 3, 1)
    handle.load_state_dict(handle.state_dict())
    found = [p["name"] for p in handle.explain()["parameters"]], handle.stats()["ratio"], handle.describe()
    handle.close()
    return *found, training.digest(ddp)


def _asleep_and_sparse(before, at_attach):
    net = torch.nn.Sequential(torch.nn.Embedding(8, 4, sparse=True), torch.nn.Linear(32, 64))
    _freeze(net, before)
    ddp = DistributedDataParallel(net)
    _freeze(net, at_attach)
    try:
        handle = laconic.attach(ddp, "topk", quiet=True)
    except laconic.LaconicError as error:
        return error.message
    found = [p["name"] for p in handle.explain()["parameters"]]
    handle.close()
    return found


ALL = ["0.weight", "0.bias", "2.weight", "2.bias"]


@pytest.mark.parametrize(("before", "at_attach"), [([], ALL), ([], ALL[:1]), ([], ALL[2:]), (ALL[:2], []), (ALL[:2], ALL), (ALL[:1], ALL[2:3])])
def test_parameters_frozen_at_attach_are_exchanged(pools, before, at_attach):
    results = pools(2).run(_asleep, before=before, at_attach=at_attach)
    assert len({digest for *_, digest in results}) == 1
    for exchanged, ratio, said, _ in results:
        assert exchanged == [name for name in ALL if name not in before] and ratio > 2 and " of 0 tensors" not in said


def test_sparse_gradients_and_frozen_parameters_work(pools):
    assert pools(2).run(_asleep_and_sparse, before=["1.bias"], at_attach=[]) == [["1.weight", "0.weight"]] * 2
    assert pools(2).run(_asleep_and_sparse, before=[], at_attach=["0.weight", "1.weight", "1.bias"]) == [["1.weight", "1.bias", "0.weight"]] * 2
    for refused in pools(2).run(_asleep_and_sparse, before=["1.bias"], at_attach=["1.weight"]):
        assert "of a model with sparse gradients" in refused
