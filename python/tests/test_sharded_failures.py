# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Refusals of a ShardedOptimizer, and a rank that fails or is gone: every other one receives the error in time."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import time

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import training  # noqa: E402
from ranks import Ranks  # noqa: E402
from test_sharded import same_on_all, build, loss_of, one  # noqa: E402

import laconic  # noqa: E402


def make(model, cls=torch.optim.AdamW, *, lr=1e-3, **options):
    return laconic.ShardedOptimizer(model, cls, lr=lr, **options)


class Own(torch.optim.SGD):
    pass


# ---- refused ------------------------------------------------------------------------------------------------------------------------

def lazy():
    return torch.nn.LazyLinear(3)


def wrapped():
    class FullyShardedDataParallel(torch.nn.Module):
        inner = torch.nn.Linear(2, 2)

    return torch.nn.Sequential(FullyShardedDataParallel())


REFUSED = {
    "LBFGS": (lambda: make(training.Net(), torch.optim.LBFGS), "LBFGS is not known to be elementwise"),
    "Adafactor": (lambda: make(training.Net(), torch.optim.Adafactor), "Adafactor is not known"),
    "SparseAdam": (lambda: make(training.Net(), torch.optim.SparseAdam), "SparseAdam is not known"),
    "one's own": (lambda: make(training.Net(), Own), "elementwise=True declares"),
    "an optimizer": (lambda: make(training.Net(), torch.optim.SGD([torch.zeros(1)], lr=1.0)), "expected an optimizer class, got an instance of SGD"),
    "no optimizer": (lambda: make(training.Net(), torch.nn.Linear), "is not an optimizer class"),
    "parameters": (lambda: make(training.Net().parameters()), "expected a model, got generator"),
    "FSDP": (lambda: make(wrapped()), "wrapped in FSDP"),
    "nothing to train": (lambda: make(torch.nn.ReLU()), "no parameter of the model requires a gradient"),
    "float16": (lambda: make(training.Net().half()), "parameter first.weight is float16"),
    "float64": (lambda: make(training.Net().double()), "is float64"),
    "complex": (lambda: make(torch.nn.ParameterList([torch.zeros(3, dtype=torch.complex64)])), "is complex64"),
    "sparse": (lambda: make(torch.nn.Embedding(9, 3, sparse=True)), "parameter weight gets sparse gradients"),
    "no shape": (lambda: make(lazy()), "has no shape yet"),
    "another keyword": (lambda: make(training.Net(), momentums=3), "momentums"),
    "learning rate": (lambda: make(training.Net(), lr=-1.0), "Invalid learning rate"),
    "clip_norm": (lambda: make(training.Net(), clip_norm=0.0), "clip_norm is 0.0"),
    "full_pull_every": (lambda: make(training.Net(), full_pull_every=-1), "full_pull_every is -1"),
    "a group": (lambda: make(training.Net(), groups=[{"lr": 1.0}]), "a group is dict"),
    "a group of another model": (lambda: make(training.Net(), groups=[{"params": list(training.Net().parameters())}]), "is not one of the model's"),
    "a group that lacks some": (lambda: make(n := training.Net(), groups=[{"params": [n.last.bias]}]), "no group contains first.weight and 4 more"),
    "two groups": (lambda: make(n := training.Net(), groups=[{"params": list(n.parameters())}, {"params": [n.last.bias]}]), "is in two groups"),
    "meta": (lambda: make(training.Net().to("meta")), "not an accelerator"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_unsupported_optimizers_are_refused(case):
    call, words = REFUSED[case]
    with pytest.raises(laconic.LaconicError) as error:
        call()
    assert words in str(error.value)


def test_muon_is_refused():
    muon = getattr(torch.optim, "Muon", None)
    if muon is None:
        pytest.skip("this torch has no Muon")
    with pytest.raises(laconic.LaconicError, match="Muon is not known"):
        make(training.Net(), muon)


def _vouched():
    net = training.Net()
    optimizer = make(net, Own, elementwise=True)
    one(net, optimizer, dist.get_rank(), 0)
    optimizer.close()
    return training.digest(net)


def test_vouched_optimizer_is_accepted(pools):
    same_on_all(pools(2).run(_vouched))


def _wrapped_in_ddp():
    make(torch.nn.parallel.DistributedDataParallel(training.Net()))


def test_ddp_model_is_refused(pools):
    for error in pools(2).errors(_wrapped_in_ddp):
        assert "wrapped in DistributedDataParallel" in error.message and "ddp.module" in error.message


def _sharded(apart):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2,))
    model = training.Net()
    if apart:
        model.first.weight = torch.nn.Parameter(distribute_tensor(model.first.weight.detach(), mesh, [Shard(0)]))
    else:
        fully_shard(model, mesh=mesh)
    make(model)


@pytest.mark.parametrize("apart, words", [(False, "unwrapped"), (True, "whole parameters on every rank")])
def test_sharded_parameters_are_refused(pools, apart, words):
    for error in pools(2).errors(_sharded, apart=apart):
        assert words in error.message


def _differs(case):
    rank = dist.get_rank()
    others = {"a class": {"cls": "SGD", "keywords": {"lr": 0.1}}, "lr": {"keywords": {"lr": 1e-2}}, "push": {"push": "topk"},
              "clip_norm": {"clip_norm": 1.0}, "small_elements": {"small_elements": 10}, "width": {"width": 33}}
    if case == "refused" and rank == 1:
        make(training.Net(), torch.optim.LBFGS)
    build(**({"cls": "AdamW", "push": "3lc", "keywords": {"lr": 1e-3}} | (others[case] if rank == 1 else {})))


@pytest.mark.parametrize("case, words", [
    ("a class", "is"), ("lr", "lr of group 0 is 0.001 on rank 0 and 0.01 on rank 1"), ("push", "topk"), ("clip_norm", "clip_norm is None on rank 0"),
    ("small_elements", "small_elements"), ("width", "1985 elements"), ("refused", "LBFGS is not known")])
def test_ranks_that_differ_are_refused_on_every_rank(pools, case, words):
    errors = pools(2).errors(_differs, case=case)
    assert all(error.kind == "LaconicError" for error in errors)
    assert words in errors[0].message and words in errors[1].message
    if case != "refused":
        same_on_all([error.message for error in errors])


# ---- a step that fails --------------------------------------------------------------------------------------------------------------

def _no_backward(optimizer, net, rank, step):
    if rank != 1:
        loss_of(net, rank, step).backward()
    optimizer.step()


def _raises_inside(optimizer, net, rank, step):
    inner = optimizer._work.inner.optimizer
    if rank == 1:
        inner.step = lambda: {}["the test"]
    try:
        loss_of(net, rank, step).backward()
        optimizer.step()
    finally:
        inner.__dict__.pop("step", None)


def _fails_to_push(optimizer, net, rank, step):
    driver = optimizer._work.exchange._driver
    submit = driver.submit

    def fails(*arguments, **keywords):
        driver.submit = submit
        told = laconic.LaconicError(100, "out_of_memory", "the test has no memory", "buy some")
        return submit(*arguments, **{**keywords, "failure": told})

    if rank == 1:
        driver.submit = fails
    loss_of(net, rank, step).backward()
    optimizer.step()


def _sparse(optimizer, net, rank, step):
    with optimizer.no_sync():
        loss_of(net, rank, step).backward()
    if rank == 1:
        net.first.weight.grad = net.first.weight.grad.to_sparse()
    optimizer.step()


def _another_lr(optimizer, net, rank, step):
    optimizer.param_groups[0]["lr"] = 0.5 if rank == 1 else 1e-3
    loss_of(net, rank, step).backward()
    try:
        optimizer.step()
    finally:
        optimizer.param_groups[0]["lr"] = 1e-3


def _another_gradient(optimizer, net, rank, step):
    loss_of(net, rank, step).backward()
    if rank == 1:
        loss_of(net, rank, step).backward()
    optimizer.step()


def _moved_model(optimizer, net, rank, step):
    loss_of(net, rank, step).backward()
    kept = net.first.weight.data
    if rank == 1:
        net.first.weight.grad = None
        net.first.weight.data = kept.double()
    try:
        optimizer.step()
    finally:
        net.first.weight.data = kept


def _not_finite_inside(optimizer, net, rank, step):
    if rank == 1:
        next(iter(optimizer._work.exchange.masters().values()))[0] = float("inf")
    loss_of(net, rank, step).backward()
    try:
        optimizer.step()
    finally:
        if rank == 1:
            next(iter(optimizer._work.exchange.masters().values()))[0] = 0.0


TROUBLES = {
    "no backward": (_no_backward, "exchange_order", ["step() was called without a backward() before it"]),
    "an exception inside": (_raises_inside, "internal", ["the optimizer's step failed: KeyError: 'the test'"]),
    "a push": (_fails_to_push, "out_of_memory", ["the test has no memory"]),
    "a sparse gradient": (_sparse, "unsupported", ["the gradient of first.weight is sparse"]),
    "another lr": (_another_lr, "ranks_disagree", ["lr of group 0 is 0.001 on rank 0 and 0.5 on rank 1"]),
    "another gradient": (_another_gradient, "exchange_order", ["received another gradient after its gradient was pushed"]),
    "another type": (_moved_model, "state_model", ["parameter first.weight is float64 on cpu"]),
    "a master that is not finite": (_not_finite_inside, "peer_failed", ["not finite"]),
}


def _in_trouble(case):
    rank = dist.get_rank()
    net, optimizer = build("AdamW", "3lc", keywords={"lr": 1e-3})
    for step in range(3):
        one(net, optimizer, rank, step)
    optimizer.zero_grad()
    raised = None
    try:
        TROUBLES[case][0](optimizer, net, rank, 3)
    except laconic.LaconicError as error:
        raised = error
    for step in (4, 5):
        one(net, optimizer, rank, step)
    stats = optimizer.stats()
    optimizer.close()
    return raised, stats["failed_steps"], stats["step"], training.digest(net)


@pytest.mark.parametrize("case", TROUBLES)
def test_failure_of_one_rank_is_error_on_all_and_run_continues(pools, case):
    results = pools(3).run(_in_trouble, case=case)
    _, name, words = TROUBLES[case]
    for rank, (raised, failed, step, _) in enumerate(results):
        assert raised is not None, f"rank {rank} noticed nothing"
        assert all(word in raised.message for word in words), raised.message
        if rank == 1:
            assert raised.name == name
        else:
            assert raised.name == ("ranks_disagree" if name == "ranks_disagree" else "peer_failed")
        assert (failed, step) == (1, 6)
    same_on_all([raised.message for raised, *_ in results])
    same_on_all([digest for *_, digest in results])


def _said(case):
    """The error of a rank alone."""
    net, optimizer = build("AdamW", "3lc")
    try:
        if case == "scaler":
            scaler = torch.amp.GradScaler("cpu")
            one(net, optimizer, dist.get_rank(), 0, scaler=scaler)
        elif case == "closed":
            optimizer.close()
            optimizer.close()
            one(net, optimizer, dist.get_rank(), 0)
        elif case == "group":
            optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(3))]})
        elif case == "pickle":
            pickle.dumps(optimizer)
        elif case == "closure":
            loss = optimizer.step(lambda: (loss := loss_of(net, dist.get_rank(), 0)).backward() or loss)
            raise AssertionError(f"{loss.requires_grad}")
    finally:
        optimizer.close()


@pytest.mark.parametrize("case, words", [("scaler", "scaler=scaler"), ("closed", "this optimizer is closed"), ("group", "groups="),
                                         ("pickle", "cannot be copied or pickled"), ("closure", "True")])
def test_misuse_gives_helpful_message(pools, case, words):
    for error in pools(2).errors(_said, case=case):
        assert words in error.message


def _writes_elsewhere():
    rank = dist.get_rank()
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("laconic").addHandler(handler)
    try:
        net, optimizer = build("AdamW", "3lc")
        for step in range(5):
            one(net, optimizer, rank, step)
            if step >= 2:
                with torch.no_grad():
                    net.first.weight.clamp_(-0.1, 0.1)
        optimizer.close()
    finally:
        logging.getLogger("laconic").removeHandler(handler)
    return [line for line in lines if "changed" in line]


def test_foreign_writes_to_parameters_are_reported_once(pools):
    for rank, lines in enumerate(pools(2).run(_writes_elsewhere)):
        assert len(lines) == 1 and f"rank {rank}: first.weight was changed" in lines[0]


# ---- a rank that is gone ----------------------------------------------------------------------------------------------------------------

def _dies(where, how):
    """Two steps; in the third, rank 1 sends itself a signal, and the others wait for it."""
    rank = dist.get_rank()
    net, optimizer = build("AdamW", "3lc")
    for step in range(2):
        one(net, optimizer, rank, step)

    def die(call):
        def dies(*arguments, **keywords):
            os.kill(os.getpid(), how)
            time.sleep(600)  # another thread may take the signal
            return call(*arguments, **keywords)

        return dies

    if rank == 1:
        driver, inner = optimizer._work.exchange._driver, optimizer._work.inner
        if where == "push":
            driver.submit = die(driver.submit)
        elif where == "turn":
            inner.step_masters = die(inner.step_masters)
        else:
            driver.pull = die(driver.pull)
    elif how == signal.SIGSTOP:
        engine = optimizer._work.exchange._engine
        for group in (engine.group, dist.group.WORLD):
            training.waits(group, 4)
        engine._faults.timeout = 4
    since = time.monotonic()
    raised = []
    for step in (2, 3):
        try:
            one(net, optimizer, rank, step)
        except laconic.LaconicError as error:
            raised.append(error)
    took = time.monotonic() - since
    optimizer.close()
    return raised, took


@pytest.mark.parametrize("where, how", [("push", signal.SIGKILL), ("turn", signal.SIGKILL), ("pull", signal.SIGKILL), ("turn", signal.SIGSTOP)])
def test_lost_rank_is_error_within_timeout(where, how):
    pool = Ranks(3, timeout=60)
    try:
        pool.start(_dies, where=where, how=how)
        outcomes = {}
        for rank in (0, 2):
            kind, value = pool._receive(rank, 120)
            outcomes[rank] = kind, value
        if how == signal.SIGSTOP:
            os.kill(pool.processes[1].pid, signal.SIGKILL)
    finally:
        pool.close()
    for kind, value in outcomes.values():
        assert kind == "ok", value
        raised, took = value
        assert took < 40
        assert [error.name for error in raised] == ["engine_failed"] * 2, raised
        assert "rank 1" in raised[0].message and "checkpoint" in raised[0].hint
        assert raised[1].message == raised[0].message
