# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Train, kill, resume equals uninterrupted, bit for bit; and whose state is refused."""

from __future__ import annotations

import hashlib
import types

import pytest

torch = pytest.importorskip("torch")

import training  # noqa: E402

import laconic  # noqa: E402
from laconic.ddp.resumed import Resumed  # noqa: E402


@pytest.mark.parametrize("spec", training.SPECS)
def test_resume_is_bit_identical_at_three_ranks(pools, spec):
    hashes = pools(3).run(training.resume, spec=spec, buckets=4)
    assert all(h == hashes[0] for h in hashes)
    assert hashes[0][0] == hashes[0][1]


@pytest.mark.parametrize("options", [{"ddp_options": {"static_graph": True}}, {"ddp_options": {"find_unused_parameters": True}}])
def test_resume_works_with_other_layouts(pools, options):
    for spec in ("none", "bf16", "powersgd:rank=2"):
        hashes = pools(3).run(training.resume, spec=spec, buckets=4, **options)
        assert hashes[0][0] == hashes[0][1], spec


@pytest.mark.parametrize("options", [{}, {"warmup": 4}, {"warmup": 5}, {"warmup": 3}])
@pytest.mark.parametrize("spec", ["powersgd:rank=2", "bf16", "3lc"])
def test_resume_works_with_divided_buckets(pools, spec, options):
    """Saved after four steps: the engine's sums are cut as before, in a warm-up by bucket, afterwards by part."""
    hashes = pools(3).run(training.resume, spec=spec, buckets=2, attach_options={"part": 4096, "window": 3, **options})
    assert all(h == hashes[0] for h in hashes) and hashes[0][0] == hashes[0][1]


@pytest.mark.parametrize("buckets", [2, 3])
def test_reports_travel_in_first_bucket_of_saved_layout(pools, buckets):
    """DDP begins with one bucket that ends with the first parameters, where the run had several and summed the last ones first:
    reports of a law before another sum would move it, and its last bits."""
    hashes = pools(3).run(training.resume, spec="randomk:ratio=0.2", buckets=buckets, before=10, after=14,
                          attach_options={"control": "schedule:0=0.2,13=0.1"})
    assert all(h == hashes[0] for h in hashes) and hashes[0][0] == hashes[0][1]


def test_saved_buckets_keep_their_order():
    saved = [types.SimpleNamespace(parameters=p, offsets=(0, 4)) for p in ((4, 5), (2, 3), (0, 1))]
    resumed = Resumed(saved, [4] * 6, bounded=False)
    gone = []

    def exchange(layout, pieces):
        gone.append(layout.parameters)
        return torch.futures.Future()

    for _ in range(2):
        for parameters in ((0, 1, 2), (3, 5), (4,)):
            own = types.SimpleNamespace(parameters=parameters, offsets=range(0, 4 * len(parameters), 4))
            resumed.submit(exchange, own, torch.zeros(4 * len(parameters)))
            assert len(gone) % 3 == 0
    assert gone == [(4, 5), (2, 3), (0, 1)] * 2


def _other_part(spec):
    return training.resume(spec=spec, buckets=2, attach_options={"part": 4096}, resumed_options={"part": 0})


@pytest.mark.parametrize("spec", ["powersgd:rank=2", "3lc"])
def test_saved_layout_with_other_parts_is_kept(pools, spec):
    hashes = pools(3).run(_other_part, spec=spec)
    assert all(h == hashes[0] for h in hashes) and hashes[0][0] == hashes[0][1]


def _after_one_step(spec):
    return training.resume(spec=spec, buckets=4, before=1)


@pytest.mark.parametrize("spec", ["topk:ratio=0.05", "3lc", "bf16", "powersgd:rank=2"])
def test_checkpoint_before_ddp_rebuilds_buckets_resumes(pools, spec):
    """The saved layout is then one that DDP never returns to: an engine's sums may differ in last bits from a run that
    was not interrupted; ours never do, and ranks agree in any case."""
    results = pools(3).run(_after_one_step, spec=spec)
    assert all(r == results[0] for r in results)
    if spec in ("topk:ratio=0.05", "3lc"):
        assert results[0][0] == results[0][1]


def test_saved_layout_that_never_returns_is_dropped():
    saved, same, other = [types.SimpleNamespace(parameters=(0, 1), offsets=(0, 4))], [(0, 1)], [(1, 0)]
    for bounded in (True, False):
        assert Resumed(saved, [4, 4], bounded=bounded).ended(same) and Resumed(saved, [4, 4], bounded=bounded).ended(other, same)
    ours, engines = Resumed(saved, [4, 4], bounded=True), Resumed(saved, [4, 4], bounded=False)
    assert [ours.ended(other) for _ in range(3)] == [False, False, True]
    assert not any(engines.ended(other) for _ in range(10))


@pytest.mark.parametrize("asked", [1, 2, 4])
@pytest.mark.parametrize("spec", ["topk:ratio=0.05", "3lc", "powersgd:rank=2", "randomk:ratio=0.05"])
def test_state_saved_during_flush_continues_it(pools, spec, asked):
    """Saved after four steps: with two parts gone, one, or with the request not sent yet. Without the flush a run ends elsewhere."""
    flushed = pools(3).run(training.resume, spec=spec, buckets=4, flush=(asked, 4))
    assert all(h == flushed[0] for h in flushed) and flushed[0][0] == flushed[0][1]
    assert flushed[0] != pools(3).run(training.resume, spec=spec, buckets=4)[0]


@pytest.mark.parametrize("asked", [2, 3])
def test_bucket_groups_are_independent_of_policy_state(pools, asked):
    """With a ratio of 0.9 fewer buckets would be sent together, and a flush has the engine's sums."""
    options = {"spec": "topk:ratio=0.05", "buckets": 16, "width": 220, "attach_options": {"control": "schedule:0=0.05,1=0.9"}}
    flushed = pools(3).run(training.resume, flush=(asked, 4), **options)
    assert all(h == flushed[0] for h in flushed) and flushed[0][0] == flushed[0][1]


def _loads_as_data(spec):
    """torch.load with its default since 2.6: nothing but tensors and plain values."""
    import io

    import torch.distributed as dist

    ddp, handle, optimizer = training.build(dist.group.WORLD, spec)
    training.step_once(ddp, optimizer, dist.get_rank(), 0)
    file = io.BytesIO()
    torch.save(handle.state_dict(), file)
    file.seek(0)
    handle.load_state_dict(torch.load(file, weights_only=True))
    handle.close()
    return True


@pytest.mark.parametrize("spec", ["3lc", "powersgd:rank=2"])
def test_saved_state_is_plain_data(pools, spec):
    assert all(pools(3).run(_loads_as_data, spec=spec))


def _swap(what):
    import torch.distributed as dist

    ddp, handle, optimizer = training.build(dist.group.WORLD, "3lc")
    training.step_once(ddp, optimizer, dist.get_rank(), 0)
    state = handle.state_dict()
    states = training.gathered(state)
    error = None
    try:
        if what == "rank":
            handle.load_state_dict(states[(dist.get_rank() + 1) % 4])
        elif what == "world":
            state["header"]["world"] = 5
            handle.load_state_dict(state)
        elif what == "model":
            other, handle2, _ = training.build(dist.group.WORLD, "3lc", width=32)
            handle2.load_state_dict(state)
        elif what == "spec":
            other, handle2, _ = training.build(dist.group.WORLD, "topk")
            handle2.load_state_dict(state)
        elif what == "version":
            state["header"]["version"] = 99
            handle.load_state_dict(state)
        elif what == "lacking":
            state["tensors"].popitem()
            handle.load_state_dict(state)
        else:
            handle.load_state_dict({**state, "nonsense": 1})
    except laconic.LaconicError as e:
        error = (e.name, e.message, e.hint)
    handle.close()
    return error


@pytest.mark.parametrize(("what", "name", "word"), [
    ("rank", "state_rank", "rank"), ("world", "state_world", "one for 5"), ("model", "state_model", "found another"),
    ("spec", "state_spec", "3lc"), ("version", "state_version", "99"), ("lacking", "state_corrupt", "tensors lacks"),
    ("nonsense", "state_corrupt", "nonsense")])
def test_foreign_state_is_refused(ranks, what, name, word):
    for error in ranks.run(_swap, what=what):
        assert error is not None
        assert error[0] == name and word in error[1]


# ---- earlier versions ----


def _of_version_1():
    from pathlib import Path

    return torch.load(Path(__file__).with_name("states_of_version_1.pt"), weights_only=False)


def _gradients_here():
    """A hash over those of a model, which are not the same bits on every machine."""
    torch.manual_seed(7)
    net = training.Net(24)
    x, y = training.batch(0, 9)
    torch.nn.functional.cross_entropy(net(x), y).backward()
    return hashlib.sha256(b"".join(training.raw(p.grad) for p in net.parameters())).hexdigest()


def _goes_on_from_version_1(spec):
    """Is what was loaded what was saved? Exchanges of three steps, and what follows them."""
    import torch.distributed as dist

    saved = _of_version_1()[spec][dist.get_rank()]
    ddp, handle, optimizer = training.build(dist.group.WORLD, spec, buckets=6, width=24)
    ddp.module.load_state_dict(saved["model"])
    for p, momentum in zip(ddp.parameters(), saved["momentum"]):
        optimizer.state[p]["momentum_buffer"] = momentum.clone()
    handle.load_state_dict(saved["laconic"])
    there = handle.state_dict()
    same = all(torch.equal(there["tensors"][name], values) for name, values in saved["laconic"]["tensors"].items())
    for step in range(4, 7):
        training.step_once(ddp, optimizer, dist.get_rank(), step)
    state, digest = handle.state_dict(), training.digest(ddp)
    result = same, handle.stats()["exchanges"], there["layout"], state["layout"], state["version"], digest
    handle.close()
    return result


@pytest.mark.parametrize("spec", ["powersgd:rank=2", "topk:ratio=0.05"])
def test_state_of_version_1_resumes_with_its_own_groups(pools, spec):
    """As the release before the library's driver has saved it. Where the engine adds, its buckets go on apart, and what is saved
    then has them so; elsewhere short ones travel together, as they did."""
    made, results = _of_version_1(), pools(2).run(_goes_on_from_version_1, spec=spec)
    saved = made[spec][0]["laconic"]["layout"]
    together = [[name for bucket in saved for name in bucket]]
    for rank, (same, exchanges, before, after, version, digest) in enumerate(results):
        assert same and version == 2 and exchanges == made[spec][rank]["exchanges"] == (6 if spec.startswith("powersgd") else 3)
        assert before == after == (saved if spec.startswith("powersgd") else together)
        if made["local"] == _gradients_here():
            assert digest == made[spec][rank]["digest"]


# ---- damaged state ----

RESIDUAL, FACTOR = "residual/hidden.weight", "state/hidden.weight@0#0"


def _put(*path):
    """A change: the last of `path` is put where the others lead."""
    def change(state):
        *keys, last, value = path
        for key in keys:
            state = state[key]
        state[last] = value(state[last]) if callable(value) else value
    return change


def _drop(*path):
    def change(state):
        for key in path[:-1]:
            state = state[key]
        del state[path[-1]]
    return change


def _poisoned(value):
    def change(x):
        x = x.clone()
        x[-1] = value
        return x
    return change


# what → change, code's name, word of the message
DAMAGES = {
    "no version": (_drop("version"), "state_corrupt", "'version'"),
    "version 3": (_put("version", 3), "state_version", "version 3"),
    "version true": (_put("version", True), "state_corrupt", "version is True"),
    "version text": (_put("version", "1"), "state_corrupt", "version is '1'"),
    "unknown key": (_put("extra", 1), "state_corrupt", "'extra'"),
    "header none": (_put("header", None), "state_corrupt", "header is a NoneType"),
    "header lacks": (_drop("header", "agreement"), "state_corrupt", "lacks 'agreement'"),
    "header unknown": (_put("header", "more", 1), "state_corrupt", "'more'"),
    "rank wraps": (_put("header", "rank", lambda rank: rank + 2**32), "state_corrupt", "header's rank"),
    "rank negative": (_put("header", "rank", -1), "state_corrupt", "header's rank is -1"),
    "rank bool": (_put("header", "rank", bool), "state_corrupt", "header's rank"),
    "rank float": (_put("header", "rank", float), "state_corrupt", "header's rank"),
    "world wraps": (_put("header", "world", lambda world: world + 2**32), "state_corrupt", "header's world"),
    "model wraps": (_put("header", "model_hash", lambda hash: hash + 2**64), "state_corrupt", "header's model_hash"),
    "agreement negative": (_put("header", "agreement", -1), "state_corrupt", "header's agreement"),
    "header's version wraps": (_put("header", "version", lambda version: version + 2**32), "state_corrupt", "header's version"),
    "spec none": (_put("header", "spec", None), "state_corrupt", "header's spec"),
    "spec cut off": (_put("header", "spec", lambda spec: spec + "\0more"), "state_corrupt", "header's spec"),
    "spec long": (_put("header", "spec", "x" * 256), "state_corrupt", "header's spec"),
    "step uneven": (_put("step", 2.5), "state_corrupt", "step is 2.5"),
    "step negative": (_put("step", -1), "state_corrupt", "step is -1"),
    "step bool": (_put("step", True), "state_corrupt", "step is True"),
    "step large": (_put("step", 2**64), "state_corrupt", "step is"),
    "step text": (_put("step", "3"), "state_corrupt", "step is '3'"),
    "tensors none": (_put("tensors", None), "state_corrupt", "tensors is a NoneType"),
    "tensor lacks": (_drop("tensors", RESIDUAL), "state_corrupt", f"tensors lacks '{RESIDUAL}'"),
    "tensor unknown": (_put("tensors", "residual/more", torch.zeros(1)), "state_corrupt", "'residual/more'"),
    "tensor list": (_put("tensors", RESIDUAL, lambda x: x.tolist()), "state_corrupt", f"{RESIDUAL} is a list"),
    "tensor half": (_put("tensors", RESIDUAL, lambda x: x.half()), "state_corrupt", f"{RESIDUAL} is a tensor of torch.float16"),
    "tensor int": (_put("tensors", RESIDUAL, lambda x: x.long()), "state_corrupt", f"{RESIDUAL} is a tensor of torch.int64"),
    "tensor double": (_put("tensors", FACTOR, lambda x: x.double()), "state_corrupt", "torch.float64"),
    "tensor sparse": (_put("tensors", RESIDUAL, lambda x: x.to_sparse()), "state_corrupt", "sparse"),
    "tensor elsewhere": (_put("tensors", RESIDUAL, lambda x: x.to("meta")), "state_corrupt", "meta"),
    "tensor short": (_put("tensors", RESIDUAL, lambda x: x[1:]), "state_corrupt", "shape"),
    "tensor square": (_put("tensors", RESIDUAL, lambda x: x.reshape(48, 48)), "state_corrupt", "shape"),
    "residual nan": (_put("tensors", RESIDUAL, _poisoned(float("nan"))), "state_corrupt", f"{RESIDUAL} holds"),
    "residual inf": (_put("tensors", RESIDUAL, _poisoned(float("inf"))), "state_corrupt", f"{RESIDUAL} holds"),
    "codec nan": (_put("tensors", FACTOR, _poisoned(float("nan"))), "state_corrupt", f"{FACTOR} holds"),
    "codec inf": (_put("tensors", FACTOR, _poisoned(float("-inf"))), "state_corrupt", f"{FACTOR} holds"),
    "flush half a step": (_put("tensors", "state/flush", torch.tensor([0.0, 1.5])), "state_corrupt", "state/flush holds [0.0, 1.5]"),
    "flush negative": (_put("tensors", "state/flush", torch.tensor([-1.0, 0.0])), "state_corrupt", "state/flush holds"),
    "flush too long": (_put("tensors", "state/flush", torch.tensor([0.0, 65536.0])), "state_corrupt", "state/flush holds"),
    "layout none": (_put("layout", None), "state_corrupt", "layout is not"),
    "layout text": (_put("layout", [["last.bias"], "last.weight"]), "state_corrupt", "layout is not"),
    "layout hollow": (_put("layout", lambda layout: [*layout, []]), "state_corrupt", "layout is not"),
    "layout empty": (_put("layout", []), "state_corrupt", "layout lacks"),
    "layout lacks": (_put("layout", -1, lambda bucket: bucket[:-1]), "state_corrupt", "layout lacks"),
    "layout twice": (_put("layout", lambda layout: [*layout, layout[0][:1]]), "state_corrupt", "twice"),
    "layout unknown": (_put("layout", -1, lambda bucket: [*bucket, "more"]), "state_corrupt", "'more'"),
    "layout number": (_put("layout", -1, lambda bucket: [*bucket, 3]), "state_corrupt", "unknown parameter 3"),
}


def _bits(state):
    return {**state, "tensors": {name: training.raw(x) for name, x in state["tensors"].items()}}


def _damaged(cases):
    """For every case: what loading raised, and whether the handle's state and its next step are what they would have been."""
    import copy

    import torch.distributed as dist

    rank, told, hashes = dist.get_rank(), {}, []
    for damaged in (False, True):
        ddp, handle, optimizer = training.build(dist.group.WORLD, "powersgd:rank=2", buckets=3)
        for step in range(3):
            training.step_once(ddp, optimizer, rank, step)
        good = handle.state_dict()
        for step in (3, 4):
            training.step_once(ddp, optimizer, rank, step)
        for case in cases if damaged else ():
            state, before, error = copy.deepcopy(good), handle.state_dict(), None
            DAMAGES[case][0](state)
            try:
                handle.load_state_dict(state)
            except laconic.LaconicError as e:
                error = (e.code, e.name, e.message)
            told[case] = error, _bits(handle.state_dict()) == _bits(before)
        for step in (5, 6):
            training.step_once(ddp, optimizer, rank, step)
        hashes.append(training.digest(ddp))
        handle.close()
    return told, hashes[0] == hashes[1]


@pytest.fixture(scope="module")
def damages(pools):
    return pools(2).run(_damaged, cases=list(DAMAGES))


@pytest.mark.parametrize("case", DAMAGES)
def test_damaged_state_is_named_and_changes_nothing(damages, case):
    _, name, word = DAMAGES[case]
    for told, _ in damages:
        error, untouched = told[case]
        assert error is not None, "was accepted"
        assert error[:2] == ({"state_corrupt": 81, "state_version": 80}[name], name) and word in error[2], error
        assert untouched


def test_training_continues_after_refused_states(damages):
    assert all(same for _, same in damages)


def _loaded_halfway(spec):
    """A saved residual that fits into float32, but not in the unit of a scaler's gradients."""
    import torch.distributed as dist

    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    scaler.scale(torch.ones(1))
    ddp, handle, optimizer = training.build(dist.group.WORLD, spec, attach_options={"scaler": scaler})
    x, y = training.batch(dist.get_rank(), 0)
    (torch.nn.functional.cross_entropy(ddp(x), y) * scaler.get_scale()).backward()
    state, before = handle.state_dict(), handle.state_dict()
    state["tensors"][RESIDUAL].fill_(1e30)
    try:
        handle.load_state_dict(state)
        return "was accepted"
    except laconic.LaconicError as error:
        return error.name, _bits(handle.state_dict()) == _bits(before)
    finally:
        handle.close()


def test_residual_too_large_for_the_loss_scale_is_refused(pools):
    assert pools(2).run(_loaded_halfway, spec="topk:ratio=0.05") == [("state_corrupt", True)] * 2


def test_state_from_before_codec_had_state_loads():
    """Entries whose names end in '?' may be missing: zeros are a fresh state. Others may not."""
    from laconic.exchange.state import check_tensors

    entries = [("residual/w", 11, 2), ("state/w@0#0?", 22, 1), ("state/flush", 33, 2)]
    older = {"residual/w": torch.tensor([1.0, 2.0]), "state/flush": torch.zeros(2)}
    ready = [(address, values.tolist()) for address, values in check_tensors(older, entries, 2.0)]
    assert ready == [(11, [2.0, 4.0]), (22, [0.0]), (33, [0.0, 0.0])]
    full = {**older, "state/w@0#0?": torch.tensor([0.5])}
    assert [values.tolist() for _, values in check_tensors(full, entries, 2.0)][1] == [0.5]
    for name in older:
        with pytest.raises(laconic.LaconicError) as caught:
            check_tensors({key: value for key, value in full.items() if key != name}, entries, 1.0)
        assert caught.value.name == "state_corrupt" and name in str(caught.value)
