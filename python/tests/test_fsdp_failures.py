# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Sharded training that cannot begin, or fails: one message on every rank, whatever its shard, and the next step begins as any other."""

from __future__ import annotations

import datetime
import os
import signal
import time

import pytest

torch = pytest.importorskip("torch")

import sharding  # noqa: E402  skips below torch 2.13
import torch.distributed as dist  # noqa: E402
from ranks import Ranks  # noqa: E402
from torch.distributed.distributed_c10d import _set_pg_timeout  # noqa: E402

import laconic  # noqa: E402
from laconic.fsdp import replicas  # noqa: E402

WAIT = 20.0  #: seconds of the group's timeout


@pytest.fixture(scope="module")
def four():
    ranks = Ranks(4, timeout=WAIT)
    yield ranks
    ranks.close()


def steps(model, numbers, optimizer=None):
    """What each step says: "ok", or the failure."""
    optimizer = optimizer or sharding.sgd(model)
    outcomes = []
    for number in numbers:
        optimizer.zero_grad()
        name, text = sharding.said(lambda: sharding.loss_of(model, number).backward())  # noqa: B023
        if name == "ok":
            optimizer.step()
        outcomes.append((name, text, sharding.digest(model)))
    return outcomes


# ---- exchanges ----------------------------------------------------------------------------------------------------------------------


def one_exchange_fails(inline):
    model = sharding.made()
    with sharding.closing(sharding.attached(model, "3lc")) as handle:
        stage, calls = handle.worker.stage, []
        ready = stage.ready

        def fails(ticket):
            calls.append(ticket)
            if dist.get_rank() == 3 and len(calls) == 4:
                raise RuntimeError("the test ends this copy")
            return ready(ticket)

        stage.ready = fails
        for unit in handle.hook.units if inline else ():
            unit.inline = lambda buffer: "the test asks for it"
        return steps(model, range(4)), handle.last_error and handle.last_error.name


@pytest.mark.parametrize("inline", [False, True])
def test_failed_exchange_is_raised_on_all_ranks_after_backward(four, inline):
    outcomes = four.run(one_exchange_fails, inline=inline)
    for rank, (found, last) in enumerate(outcomes):
        assert [name for name, _, _ in found] == ["ok", "peer_failed", "ok", "ok"], found
        assert "the test ends this copy" in found[1][1]
        assert ("another shard of this replica has failed, on rank" in found[1][1]) == (rank in (0, 2))
        assert found[0][2] == found[1][2] != found[2][2]
    assert outcomes[0][0] == outcomes[2][0] or outcomes[0][0][3][2] == outcomes[2][0][3][2]
    assert outcomes[1][0][3][2] == outcomes[3][0][3][2]


def limit_mesh(seconds):
    """Groups of a mesh have half an hour, whatever the others have."""
    mesh = sharding.mesh_of(2, 2)
    for axis in mesh.mesh_dim_names:
        _set_pg_timeout(datetime.timedelta(seconds=seconds), mesh[axis].get_group())


def gone_in_the_hook(spec, seconds, how):
    model = sharding.made()
    limit_mesh(seconds)
    handle = sharding.attached(model, spec)
    outcomes = steps(model, [0])
    if dist.get_rank() == 3:
        for unit in handle.hook.units:
            unit._group()._all_reduce_hook = lambda buffer: os.kill(os.getpid(), how)  # noqa: SLF001
    model.zero_grad()
    begin = time.monotonic()
    try:
        sharding.loss_of(model, 1).backward()
    except RuntimeError as error:
        return outcomes[0][0], str(error), time.monotonic() - begin
    return outcomes[0][0], "", time.monotonic() - begin


@pytest.mark.parametrize(("spec", "how"), [("none", signal.SIGKILL), ("3lc", signal.SIGKILL), ("3lc", signal.SIGSTOP)])
def test_lost_rank_ends_others_within_timeout(spec, how):
    ranks = Ranks(4)
    try:
        ranks.start(gone_in_the_hook, spec=spec, seconds=5, how=how)
        for rank in range(3):
            kind, value = ranks._receive(rank, 100)  # noqa: SLF001
            assert kind == "ok" and value[0] == "ok" and value[1] and value[2] < 30, value
        assert how != signal.SIGKILL or ranks._receive(3, 100)[0] == "dead"  # noqa: SLF001
    finally:
        if how == signal.SIGSTOP:
            ranks.kill(3)
        ranks.close()


class Branches(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.before = torch.nn.Linear(20, 20)
        self.first, self.last = torch.nn.Linear(20, 32), torch.nn.Linear(32, 5)
        self.other = torch.nn.Linear(20, 32)

    def forward(self, x, swapped=False):
        x = self.before(x)  # FSDP reduces at the end what has inputs without gradients
        if swapped:
            h = self.other(x)
            h = self.first(x) + h
        else:
            h = self.first(x)
            h = self.other(x) + h
        return self.last(h)


def another_order():
    torch.manual_seed(7)
    model, mesh = Branches(), sharding.mesh_of(2, 2)
    for layer in (model.first, model.other):
        sharding.fully_shard(layer, mesh=mesh)
    sharding.fully_shard(model, mesh=mesh)
    with sharding.closing(sharding.attached(model, "3lc", part=0)) as handle:
        for unit in handle.hook.units:
            unit.inline = lambda buffer: "the test asks for it"
        swapped = dist.get_rank() >= 2
        return [sharding.said(lambda: sharding.loss_of(model, step, swapped=swapped and step == 1).backward())  # noqa: B023
                for step in range(3)]


def test_replicas_in_other_module_order_are_named(four):
    for first, second, third in four.run(another_order):
        assert first[0] == third[0] == "ok", (first, third)
        assert second[0] == "ranks_disagree" and "in another order" in second[1]
        assert "reduced first where" in second[1] or "reduced other where" in second[1], second


# ---- layouts --------------------------------------------------------------------------------------------------------------------------


def lost_parameter():
    model = sharding.made()
    with sharding.closing(sharding.attached(model, "3lc")):
        model.set_reduce_scatter_unused_params(False)
        model.block.linear1.register_forward_hook(lambda module, inputs, output: output.detach())
        return steps(model, range(2))


def test_buffer_of_other_length_names_its_module(four):
    for found in four.run(lost_parameter):
        assert [name for name, _, _ in found] == ["unsupported"] * 2, found
        assert "block: FSDP's buffer has" in found[0][1] and "elements, its parameters have" in found[0][1]


def taken_in_the_order_of_names(spec, ranks, policy):
    model = sharding.made(**({"mp_policy": sharding.MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)} if policy else {}))
    with sharding.closing(sharding.attached(model, spec)) as handle:
        unit = next(unit for unit in handle.hook.units if unit.module == "block")
        named = [name for name, _ in model.named_parameters()]
        if dist.get_rank() in ranks:
            unit._present = lambda: tuple(sorted(range(len(unit.names)), key=lambda i: named.index(unit.names[i])))  # noqa: SLF001
        return steps(model, range(1))


@pytest.mark.parametrize(("spec", "ranks", "policy"), [("none", range(4), False), ("3lc", range(4), False), ("none", [3], False),
                                                         ("none", range(4), True)])
def test_gradients_elsewhere_are_noticed_in_first_step(four, spec, ranks, policy):
    for found in four.run(taken_in_the_order_of_names, spec=spec, ranks=list(ranks), policy=policy):
        assert found[0][0] in ("unsupported", "peer_failed") and "the gradient of block." in found[0][1], found
        assert "is not where FSDP of torch" in found[0][1]


# ---- a backward() that fails ------------------------------------------------------------------------------------------------------------


def broken_off(spec):
    model = sharding.made()
    with sharding.closing(sharding.attached(model, spec)) as handle:
        found = steps(model, [0])

        def fails(gradient):
            raise ValueError("the user's own")

        def late(module, inputs):
            value = inputs[0].clone()
            value.register_hook(fails)
            return (value,)

        handle_of_hook = model.block.register_forward_pre_hook(late)
        try:
            sharding.loss_of(model, 1).backward()
        except ValueError as error:
            found.append(str(error))
        handle_of_hook.remove()
        model.reset_iter_state()
        model.zero_grad()
        return found + steps(model, [2, 3]), handle.step


@pytest.mark.parametrize("spec", ["none", "3lc"])
def test_interrupted_backward_leaves_next_step_sound(four, spec):
    outcomes = four.run(broken_off, spec=spec)
    for found, step in outcomes:
        assert found[1] == "the user's own" and [found[i][0] for i in (0, 2, 3)] == ["ok"] * 3 and step == 4
    assert outcomes[0][0][3][2] == outcomes[2][0][3][2] != outcomes[1][0][3][2] == outcomes[3][0][3][2]


# ---- attach ---------------------------------------------------------------------------------------------------------------------------


def attach_on(rank, **wrong):
    """One rank (None: all) attaches with other arguments, or another model."""
    ours = rank is None or dist.get_rank() == rank
    way = wrong.pop("way", "2d")
    change = wrong.pop("change", None) if ours else wrong.pop("change", None) and None
    model = sharding.made(way, seed=wrong.pop("seed", 7) if ours else wrong.pop("seed", 7) and 7)
    if change:
        CHANGES[change](model)
    options = {"spec": "3lc", **(wrong if ours else {})}
    if way == "1d":
        options = {"replicate": "replicate", **options}
    if options.get("replicate") in ("replicate", "shard"):
        options["replicate"] = sharding.mesh_of(2, 2)[options["replicate"]]
    if options.get("replicate") == "world":
        options["replicate"] = dist.group.WORLD
    outcome = sharding.said(lambda: sharding.attached(model, options.pop("spec"), **options))
    try:  # nothing was touched
        sharding.loss_of(model, 0).backward()
    except RuntimeError as error:
        return *outcome, str(error)
    return *outcome, "" if outcome[0] == "ok" or model.embed._get_fsdp_state()._fsdp_param_groups[0]._all_reduce_hook is None or change else "touched"  # noqa: SLF001


CHANGES = {"hook": lambda model: model.block.set_all_reduce_hook(lambda buffer: None)}

SAID = {
    "another spec": ({"spec": "int8"}, 2, "ranks_disagree", ["3lc", "int8"]),
    "an unknown spec": ({"spec": "4lc"}, 1, "ranks_disagree", ["4lc"]),
    "an unknown spec on all ranks": ({"spec": "4lc"}, None, "unknown_codec", ["4lc"]),
    "another warmup": ({"warmup": 3}, 3, "ranks_disagree", ["warmup"]),
    "a hook of its own": ({"change": "hook"}, 2, "ranks_disagree", ["block has an all-reduce hook already"]),
    "a hook on all ranks": ({"change": "hook"}, None, "unsupported", ["set_all_reduce_hook"]),
    "other values": ({"seed": 8}, 2, "ranks_disagree", ["embed.weight has other values on rank 0 than on rank 2", "sync_parameters=True"]),
    "an aggregator": ({"aggregator": "127.0.0.1:7420"}, None, "unsupported", ["aggregation servers"]),
    "replicate= of a 2-D mesh": ({"replicate": "replicate"}, None, "invalid_argument", ["the model's own mesh has replicas"]),
    "replicate= of a 2-D mesh on one rank": ({"replicate": "replicate"}, 1, "ranks_disagree", ["the model's own mesh has replicas"]),
    "no replicas": ({"way": "1d", "replicate": None}, None, "unsupported", ["1-D mesh", 'replicate=mesh["replicate"]']),
    "no group": ({"way": "1d", "replicate": 3}, None, "invalid_argument", ["replicate= is 3"]),
    "ranks of other shards": ({"way": "1d", "replicate": "shard"}, None, "ranks_disagree", ["replicate= has ranks of other shards"]),
    "no replicas on one rank": ({"way": "1d", "replicate": None}, 2, "ranks_disagree", ["1-D mesh"]),
    "no group on one rank": ({"way": "1d", "replicate": 3}, 3, "ranks_disagree", ["replicate= is 3"]),
    "other replicas on one rank": ({"way": "1d", "replicate": "shard"}, 3, "ranks_disagree", ["replicate= is ranks 1, 3 on rank 1 and ranks 2, 3 on rank 3"]),
    "all ranks on one rank": ({"way": "1d", "replicate": "world"}, 0, "ranks_disagree", ["replicate= is ranks 0, 1, 2, 3 on rank 0 and ranks 1, 3 on rank 1"]),
    "unknown reduce": ({"reduce": "median"}, None, "invalid_argument", ["reduce= is 'median'"]),
    "another reduce": ({"reduce": "sum"}, 1, "ranks_disagree", ["reduce= is None on rank 0 and sum on rank 1"]),
    "another sync_parameters": ({"sync_parameters": True}, 0, "ranks_disagree", ["sync_parameters= is True on rank 0 and False on rank 1"]),
    "nodes on one rank": ({"nodes": "on"}, 3, "ranks_disagree", ["exchange shards already"]),
}


@pytest.mark.parametrize("case", SAID)
def test_failed_attach_is_one_message_on_all_ranks(four, case):
    arguments, rank, name, words = SAID[case]
    for found, text, later in four.run(attach_on, rank=rank, seconds=60, **arguments):
        assert found == name or (rank is not None and found in ("unsupported", "unknown_codec", "invalid_argument")), (found, text)
        assert all(word in text for word in words), text
        assert later == ""


def arguments_of_shards():
    wrapper = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(20, 5))
    given = {"replicate": dist.group.WORLD}, {"reduce": "sum"}, {"sync_parameters": True}
    return [sharding.said(lambda: sharding.attached(wrapper, "3lc", **some)) for some in given]  # noqa: B023


def test_arguments_of_shards_are_refused_with_wrapper(four):
    for found in four.run(arguments_of_shards):
        assert [name for name, _ in found] == ["invalid_argument"] * 3 and all("for sharded models" in text for _, text in found)


def test_replicas_of_shards_must_correspond():
    def claims(*groups):
        given = {"places": "", "reduce": None, "sync_parameters": False}
        return {rank: {"axes": [[rank - rank % 2, rank - rank % 2 + 1]], "given": {**given, "places": f"{rank % 2}/2"}, "replicas": group}
                for group in groups for rank in group}

    assert replicas._contradiction(claims([0, 2, 4], [1, 3, 5])) == ""  # noqa: SLF001
    for groups in ([0, 2, 4], [1, 3], [5]), ([0, 2], [1, 5], [4, 6], [3, 7]):
        assert "which holds another shard: these are not the same replicas" in replicas._contradiction(claims(*groups))  # noqa: SLF001


def hidden(name):
    """What attach says on a torch that lacks this private name, and whether training goes on without laconic."""
    from torch.distributed.fsdp._fully_shard import _fsdp_common

    model = sharding.made()
    group = model.block._get_fsdp_state()._fsdp_param_groups[0]  # noqa: SLF001
    parameter = group.fsdp_params[1]
    owners = (torch._C, _fsdp_common, group, parameter, model.block._get_fsdp_state())  # noqa: SLF001
    owner = next(owner for owner in owners if name in vars(owner))
    value = vars(owner)[name]
    delattr(owner, name)
    try:
        outcome = sharding.said(lambda: sharding.attached(model, "3lc"))
    finally:
        setattr(owner, name, value)
    return *outcome, group._all_reduce_hook is None, steps(model, [0])[0][0]  # noqa: SLF001


@pytest.mark.parametrize("name", ["_current_graph_task_id", "FSDPMeshInfo", "_fsdp_param_groups", "all_reduce_grads", "sharded_size"])
def test_torch_without_private_name_is_refused_by_that_name(four, name):
    for found, text, untouched, trained in four.run(hidden, name=name):
        assert found == "unsupported" and untouched and trained == "ok"
        assert f"FSDP2 of torch {torch.__version__} is laid out in a way that this version does not know (no {name})" in text


def elsewhere(kind, ranks):
    """Parameters on the meta device, or a parameter group on another device than the rest."""
    mesh = sharding.mesh_of(2, 2)
    if kind == "meta":
        torch.manual_seed(7)
        model = sharding.Net() if dist.get_rank() not in ranks else sharding.Net().to("meta")
        model = sharding.sharded(model, "2d", mesh)
    else:
        model = sharding.made()
        for module in (model.block,) if dist.get_rank() in ranks else ():
            module._get_fsdp_state()._fsdp_param_groups[0].device = torch.device("meta")  # noqa: SLF001
    outcome = sharding.said(lambda: sharding.attached(model, "3lc"))
    return *outcome, any(group._all_reduce_hook for module in model.modules() if hasattr(module, "_get_fsdp_state")  # noqa: SLF001
                         for group in module._get_fsdp_state()._fsdp_param_groups)  # noqa: SLF001


@pytest.mark.parametrize("ranks", [range(4), [1]], ids=["all", "one"])
@pytest.mark.parametrize(("kind", "words"), [("meta", "is on the meta device"), ("devices", "is on cpu, parameter block.")])
def test_parameters_elsewhere_are_refused_on_all_ranks(four, kind, words, ranks):
    for rank, (name, text, hooked) in enumerate(four.run(elsewhere, kind=kind, ranks=list(ranks))):
        assert name == ("unsupported" if rank in ranks else "ranks_disagree") and not hooked
        assert words in text, text


def without_the_last(limit):
    model = sharding.made()
    limit_mesh(limit)
    if dist.get_rank() == 3:
        return None
    begin = time.monotonic()
    return *sharding.said(lambda: sharding.attached(model, "3lc")), time.monotonic() - begin


def test_attach_without_one_rank_ends_within_timeout():
    ranks = Ranks(4)
    try:
        for found in ranks.run(without_the_last, limit=2)[:3]:
            assert found[0] != "ok" and found[2] < 20, found
    finally:
        ranks.close()


def twice_then_closed():
    model = sharding.made()
    handle = sharding.attached(model, "3lc")
    second = sharding.said(lambda: sharding.attached(model, "3lc"))
    found = [laconic.handle_of(model) is handle, laconic.handle_of(torch.nn.Sequential(model)) is None]
    steps(model, [0])
    handle.close()
    native = steps(model, [1])
    with sharding.closing(sharding.attached(model, "none")) as again:
        return second, found, native, steps(model, [2]), again.step


def test_closed_handle_returns_all_reduce_to_fsdp(four):
    for second, found, native, again, step in four.run(twice_then_closed):
        assert second[0] == "unsupported" and "attached to this model already" in second[1]
        assert found == [True, True] and native[0][0] == again[0][0] == "ok" and step == 1


def synchronized():
    model = sharding.made(seed=dist.get_rank() // 2)
    with sharding.closing(sharding.attached(model, "3lc", sync_parameters=True)):
        return sharding.digest(model), steps(model, [0])[0][2]


def test_sync_parameters_takes_those_of_replica_0(four):
    found = four.run(synchronized)
    assert found[0] == found[2] and found[1] == found[3] and found[0] != found[1]


def switched_off(ranks):
    if dist.get_rank() in ranks:
        os.environ["LACONIC_DISABLE"] = "1"
    try:
        model = sharding.made()
        name, text = sharding.said(lambda: sharding.attached(model, "3lc"))
        hooked = model.embed._get_fsdp_state()._fsdp_param_groups[0]._all_reduce_hook is not None  # noqa: SLF001
        return name, text, hooked, steps(model, [0])[0][0]
    finally:
        os.environ.pop("LACONIC_DISABLE", None)


@pytest.mark.parametrize("ranks", [[0, 1, 2, 3], [2]])
def test_kill_switch_is_for_all_ranks_or_none(four, ranks):
    for name, text, hooked, trained in four.run(switched_off, ranks=ranks):
        assert not hooked and trained == "ok"
        assert name == ("ok" if len(ranks) == 4 else "ranks_disagree"), text
        assert len(ranks) == 4 or "LACONIC_DISABLE=1 is set on rank 2 and not on rank" in text
