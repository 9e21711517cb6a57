# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The DDP hook with real processes and real Gloo: what holds in every mode of DDP."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import training  # noqa: E402


def same_everywhere(results):
    assert len({r["hash"] for r in results}) == 1, "replicas differ"
    assert all(r["finite"] for r in results)
    return results[0]


@pytest.mark.parametrize("spec", training.SPECS)
def test_replicas_are_bit_identical(ranks, spec):
    same_everywhere(ranks.run(training.train, spec=spec, steps=8, buckets=3))


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("spec", ["none", "3lc", "topk:ratio=0.05", "powersgd:rank=2"])
def test_any_number_of_ranks_trains(pools, spec, world):
    same_everywhere(pools(world).run(training.train, spec=spec, steps=4))


def _alone(spec, **options):
    ours, plain = (training.train(spec=s, steps=4, **o) for s, o in ((spec, options), (None, {})))
    return ours["hash"] == plain["hash"], ours["stats"]


@pytest.mark.parametrize(("spec", "options"), [
    ("3lc", {}), ("topk:ratio=0.01", {"attach_options": {"control": "dc2", "rules": [{"match": "*", "spec": "int8"}]}}),
    ("powersgd:rank=2", {"attach_options": {"warmup": 2}})])
def test_one_rank_passes_gradients_through(pools, spec, options):
    [(equal, stats)] = pools(1).run(_alone, spec=spec, **options)
    assert equal and (stats["ratio"], stats["wire_bytes"], stats["residual_norm"], stats["steps"]) == (1.0, 0, 0.0, 4)


def _loads_alone():
    import laconic
    from torch.nn.parallel import DistributedDataParallel

    ddp = DistributedDataParallel(torch.nn.Linear(80, 80))
    handle = laconic.attach(ddp, "3lc", quiet=True)
    state = handle.state_dict()
    handle.load_state_dict({**training.unsealed(state), "tensors": {"residual/weight": torch.ones(6400), "state/flush": torch.zeros(2)}})
    return state["tensors"], handle.stats()["residual_norm"]


def test_one_rank_loads_state_of_compressed_run(pools):
    assert pools(1).run(_loads_alone) == [({}, 0.0)]


def test_none_equals_plain_ddp(ranks):
    with_hook = same_everywhere(ranks.run(training.train, spec="none", steps=6))
    plain = same_everywhere(ranks.run(training.train, spec=None, steps=6))
    assert with_hook["hash"] == plain["hash"]


@pytest.mark.parametrize("spec", ["int8", "3lc", "topk:ratio=0.05", "sidco:ratio=0.05"])
def test_bucket_layout_changes_no_value(ranks, spec):
    one = same_everywhere(ranks.run(training.train, spec=spec, steps=6, buckets=1))
    many = same_everywhere(ranks.run(training.train, spec=spec, steps=6, buckets=6))
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
def test_all_modes_train(ranks, spec, mode):
    same_everywhere(ranks.run(training.train, spec=spec, steps=5, buckets=2, **MODES[mode]))


@pytest.mark.parametrize("branch", [training.on_rank_zero, training.on_odd_steps])
@pytest.mark.parametrize("spec", ["3lc", "topk:ratio=0.05", "int8", "powersgd:rank=2", "randomk:ratio=0.05"])
def test_unused_parameters_are_handled(ranks, spec, branch):
    same_everywhere(ranks.run(training.train, spec=spec, steps=6, buckets=2, branch=branch, model_options={"unused": True},
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
def test_parameter_without_gradient_keeps_residual(ranks, spec):
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
def test_accumulation_works_without_no_sync(pools, spec):
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


def test_compiled_model_trains_the_same(pools):
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
def test_join_handles_exhausted_ranks(ranks, spec):
    assert len(set(ranks.run(_join, spec=spec))) == 1


def _sizes(spec, buckets):
    import torch.distributed as dist

    ddp, handle, optimizer = training.build(dist.group.WORLD, spec, buckets=buckets)
    for step in range(5):
        training.step_once(ddp, optimizer, dist.get_rank(), step)
    stats, explained = handle.stats(), handle.explain()
    handle.close()
    return stats, explained


def test_stats_and_explain_are_complete(ranks):
    for stats, explained in ranks.run(_sizes, spec="topk:ratio=0.05", buckets=1):
        assert stats["steps"] == 5
        assert 0 < stats["wire_bytes"] < stats["dense_bytes"]
        assert explained["strategy"] == "gather_all" and explained["reason"]
        names = {p["name"]: p["codec"] for p in explained["parameters"]}
        assert names["hidden.weight"].startswith("topk") and names["hidden.bias"] == "none"


@pytest.mark.parametrize("buckets", [1, 3])
def test_stats_count_plain_all_reduce_bytes(ranks, buckets):
    for stats, _ in ranks.run(_sizes, spec="none", buckets=buckets):
        total = 5 * sum(p.numel() for p in training.Net(48).parameters())
        ring = 4 * 2 * total * (4 - 1) / 4
        assert (stats["steps"], stats["elements"], stats["exchanges"]) == (5, total, 0)
        assert 0 <= ring - stats["wire_bytes"] < 5 * 4 and stats["wire_bytes"] == stats["dense_bytes"]
        assert stats["ratio"] == 1.0 and stats["rounds"] >= 5


def _flush(spec, steps, asking=(0, 1, 2, 3), again=None, **options):
    """Four steps, a flush requested by some ranks, and the norm of the residuals after every later step."""
    import torch.distributed as dist

    ddp, handle, optimizer = training.build(dist.group.WORLD, spec, **options)
    rank = dist.get_rank()
    for step in range(4):
        training.step_once(ddp, optimizer, rank, step)
    empty_after = handle.flush(steps) if rank in asking else None
    norms, left = {}, {}
    for step in range(4, 4 + steps + 3):
        if step == again:
            assert handle.flush(7) == empty_after  # under way already
        training.step_once(ddp, optimizer, rank, step)
        norms[step], left[step] = handle.stats()["residual_norm"], handle.stats()["flush_steps_left"]
    result = {"norms": norms, "left": left, "empty_after": empty_after, "hash": training.digest(ddp), "stats": handle.stats()}
    handle.close()
    return result


FLUSHED = {"gather_all": ("topk:ratio=0.05", {}), "two_shot": ("3lc", {"attach_options": {"strategy": "two_shot"}}),
           "native_sum": ("randomk:ratio=0.05", {}), "native_sum, two rounds": ("powersgd:rank=2", {})}


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("which", FLUSHED)
def test_flush_drains_equal_parts(ranks, which, steps):
    spec, options = FLUSHED[which]
    results = ranks.run(_flush, spec=spec, steps=steps, buckets=2, **options)
    assert len({r["hash"] for r in results}) == 1
    for result in results:
        norms, left = result["norms"], result["left"]
        assert result["empty_after"] == 4 + steps and norms[4] > 0 and left[4] == steps
        # Under two_shot an owner's residual joins the rank's own with the first part.
        whole = norms[5] / (1 - 1 / steps) if which == "two_shot" and steps > 1 else norms[4]
        for part in range(1, steps):
            assert norms[4 + part] == pytest.approx(whole * (1 - part / steps), rel=1e-4) and left[4 + part] == steps - part
        assert norms[4 + steps] == 0 and left[4 + steps] == 0
        assert norms[5 + steps] > 0 and left[5 + steps] == 0  # compressed again


@pytest.mark.parametrize("asking", [[0], [3], [1, 2]])
@pytest.mark.parametrize("which", FLUSHED)
def test_one_rank_may_request_flush(ranks, which, asking):
    spec, options = FLUSHED[which]
    results = ranks.run(_flush, spec=spec, steps=2, asking=asking, again=None, buckets=3, **options)
    assert len({r["hash"] for r in results}) == 1
    for rank, result in enumerate(results):
        assert result["empty_after"] == (6 if rank in asking else None)
        assert result["norms"][5] > 0 and result["norms"][6] == 0 and result["norms"][7] > 0


def test_flush_in_progress_ignores_second_request(ranks):
    for result in ranks.run(_flush, spec="topk:ratio=0.05", steps=4, again=6):
        assert result["norms"][7] > 0 and result["norms"][8] == 0 and result["norms"][9] > 0


def test_flush_of_nothing_ends_at_once(ranks):
    for result in ranks.run(_flush, spec="none", steps=2, buckets=2):
        assert set(result["norms"].values()) == {0.0} and result["stats"]["exchanges"] == 0


def _wrong_flush():
    import torch.distributed as dist

    import laconic

    ddp, handle, _ = training.build(dist.group.WORLD, "topk")
    told = []
    for steps in (0, -1, 65536, 2**32 + 1, 2.0, "3"):
        try:
            handle.flush(steps)
        except laconic.LaconicError as error:
            told.append((error.name, f"steps is {steps!r}" in error.message))
    handle.close()
    return told


def test_flush_refuses_impossible_step_counts(pools):
    assert pools(2).run(_wrong_flush) == [[("invalid_argument", True)] * 6] * 2


def _watched(spec, steps):
    """Trains while another thread reads the counters all the time."""
    import json
    import threading

    import torch.distributed as dist

    ddp, handle, optimizer = training.build(dist.group.WORLD, spec, buckets=3)
    seen, wrong, done = [], [], threading.Event()

    def fixed(explained):
        """All but the memory of exchanges, which comes and goes with layouts."""
        return json.dumps({key: value for key, value in explained.items() if key != "exchange_bytes"})

    def watch():
        try:
            while not done.is_set():
                stats, explained = handle.stats(), handle.explain()
                seen.append((stats["steps"], stats["wire_bytes"], stats["elements"], stats["rounds"]))
                if fixed(explained) != expected:
                    wrong.append("explain")
        except BaseException as error:  # noqa: BLE001
            wrong.append(repr(error))

    expected = fixed(handle.explain())
    threads = [threading.Thread(target=watch) for _ in range(2)]
    for thread in threads:
        thread.start()
    for step in range(steps):
        training.step_once(ddp, optimizer, dist.get_rank(), step)
        handle.stats()
    done.set()
    for thread in threads:
        thread.join()
    final, hash_ = handle.stats(), training.digest(ddp)
    handle.close()
    return {"wrong": wrong, "seen": len(seen), "monotone": all(a <= final[key] for s in seen for a, key in zip(
        s, ("steps", "wire_bytes", "elements", "rounds"))), "steps": final["steps"], "hash": hash_}


@pytest.mark.parametrize("spec", ["topk:ratio=0.05", "none"])
def test_any_thread_may_read_counters(pools, spec):
    results = pools(2).run(_watched, spec=spec, steps=80)
    assert len({r["hash"] for r in results}) == 1
    for result in results:
        assert result["wrong"] == [] and result["monotone"] and result["seen"] > 20 and result["steps"] == 80


def _layouts(spec, steps, **options):
    """Layouts with buffers after each step."""
    import torch.distributed as dist

    ddp, handle, optimizer = training.build(dist.group.WORLD, spec, buckets=16, **options)
    counts = []
    for step in range(steps):
        training.step_once(ddp, optimizer, dist.get_rank(), step)
        handle.worker.state_dict()  # the worker has done what was queued
        counts.append((handle.stats()["exchange_layouts"], len(handle.hook.layouts.known)))
    hash_ = training.digest(ddp)
    handle.close()
    return counts, hash_


@pytest.mark.parametrize("options", [{}, {"ddp_options": {"static_graph": True}}, {"ddp_options": {"find_unused_parameters": True}}])
def test_buffers_of_unused_layouts_are_freed(pools, options):
    results = pools(2).run(_layouts, spec="topk:ratio=0.05", steps=6, coalesce=False, **options)
    assert len({hash_ for _, hash_ in results}) == 1
    for counts, _ in results:
        first = counts[0]
        if "find_unused_parameters" in options.get("ddp_options", {}):  # never rebuilt
            assert set(counts) == {first}
        else:  # rebuilt after the first step (static graph: the second)
            assert first == (1, 1) and max(counts) == (4, 4) and counts[-2:] == [(3, 3)] * 2


def test_uncompressed_bucket_has_no_buffers_and_stays(pools):
    for counts, _ in pools(2).run(_layouts, spec="none", steps=5):
        assert counts[-1] == (0, 3)


def _replicated(spec, steps=3):
    """Parameters after training a module that went through replicate(), and its handle's words."""
    import torch.distributed as dist
    from torch.distributed._composable.replicate import replicate

    import laconic

    torch.manual_seed(5)
    model = torch.nn.Sequential(torch.nn.Linear(20, 80), torch.nn.ReLU(), torch.nn.Linear(80, 5))
    model = replicate(model)
    assert laconic.handle_of(model) is None
    handle = laconic.attach(model, spec, small_elements=64, quiet=True) if spec else None
    assert laconic.handle_of(model) is handle
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(steps):
        x, y = training.batch(dist.get_rank(), step)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    values = [p.detach().clone() for p in model.parameters()]
    return values, handle and (handle.stats()["steps"], handle.stats()["ratio"])


def test_replicated_module_is_attached(pools):
    import sys

    pytest.importorskip("torch.distributed._composable.replicate")
    if not hasattr(sys.modules["torch.distributed._composable.replicate"], "DDP"):
        pytest.skip("this PyTorch's replicate() leaves no trace on the module")
    plain = pools(2).run(_replicated, spec=None)
    for (expected, _), (got, (steps, _)) in zip(plain, pools(2).run(_replicated, spec="none")):
        assert steps == 3 and all(map(torch.equal, expected, got))
    compressed = pools(2).run(_replicated, spec="topk:ratio=0.05")
    assert all(steps == 3 and ratio > 3 for _, (steps, ratio) in compressed)
    assert all(map(torch.equal, compressed[0][0], compressed[1][0]))
    assert not all(map(torch.equal, compressed[0][0], plain[0][0]))
