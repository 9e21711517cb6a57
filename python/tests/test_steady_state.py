# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The cost of a step: backward continues meanwhile, no round carries only control, threads change no bit."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import training  # noqa: E402


def _overlap(spec, buckets):
    """Holds the first exchange until DDP has brought the last bucket."""
    import threading
    import time

    import torch.distributed as dist

    rank = dist.get_rank()
    ddp, handle, optimizer = training.build(dist.group.WORLD, spec, buckets=buckets, width=800)  # above the first bucket's 1 MiB
    for step in range(3):  # until DDP has settled on its buckets
        training.step_once(ddp, optimizer, rank, step)
    log, all_hooks_returned = [], threading.Event()
    driver = handle.worker._driver
    on_bucket, submit = handle.hook.on_bucket, driver.submit

    def hook(bucket):
        future = on_bucket(bucket)
        log.append(("returned", bucket.index(), threading.current_thread().name, future.done()))
        if bucket.is_last():
            all_hooks_returned.set()
        return future

    def slow(*arguments, index, **keywords):
        time.sleep(0.04)
        held = all_hooks_returned.wait(100)
        code = submit(*arguments, index=index, **keywords)
        log.append(("finished", index, threading.current_thread().name, held))
        return code

    handle.hook.on_bucket, driver.submit = hook, slow
    training.step_once(ddp, optimizer, rank, 3)
    handle.hook.on_bucket, driver.submit = on_bucket, submit
    handle.close()
    return log, threading.current_thread().name


@pytest.mark.parametrize("spec", ["3lc", "powersgd:rank=2"])
def test_backward_does_not_wait_for_the_codec(pools, spec):
    for log, main in pools(2).run(_overlap, spec=spec, buckets=4):
        returned = [entry for entry in log if entry[0] == "returned"]
        finished = [entry for entry in log if entry[0] == "finished"]
        assert len(returned) == len(finished) >= 2
        assert log == returned + finished  # every hook was back before the first exchange ended
        assert all(not done for _, _, _, done in returned) and {name for _, _, name, _ in returned} == {main}
        assert all(held for _, _, _, held in finished), "an exchange was waited for inside the hook"
        assert {name for _, _, name, _ in finished} == {"laconic"}
        assert [index for _, index, _, _ in finished] == [index for _, index, _, _ in returned]  # first in, first out


class _CountedGroup:
    """A group whose all-reduces are noted: a bucket without compression goes to the group itself."""

    def __init__(self, group, asked):
        self.group, self.asked = group, asked

    def allreduce(self, *arguments):
        self.asked.append("allreduce")
        return self.group.allreduce(*arguments)


def _rounds(spec, buckets, steps=4, small=64, without=(), **options):
    """Collectives of `steps` steps after DDP has settled: as counted by the session, and as requested from torch."""
    import torch.distributed as dist

    import laconic
    from laconic.engines import c10d

    rank = dist.get_rank()
    torch.manual_seed(7)
    net = training.Net(48)
    total = sum(4 * p.numel() for p in net.parameters())
    ddp = torch.nn.parallel.DistributedDataParallel(net, process_group=dist.group.WORLD, bucket_cap_mb=total / buckets / 2**20)
    with training.engine_without(*without):
        handle = laconic.attach(ddp, spec, small_elements=small, quiet=True, **options)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    for step in range(4):
        training.step_once(ddp, optimizer, rank, step)
    before, asked = handle.stats(), []
    kept = {name: getattr(dist, name) for name in dir(dist)
            if name.startswith(("all_", "reduce", "gather", "broadcast", "barrier", "send", "recv", "isend", "irecv", "scatter"))
            and callable(getattr(dist, name))}
    flat = c10d._all_gather_flat

    def counted(name, function):
        def call(*arguments, **keywords):
            asked.append(name)
            return function(*arguments, **keywords)
        return call

    for name, function in kept.items():
        setattr(dist, name, counted(name, function))
    c10d._all_gather_flat = counted("flat", flat)
    handle.worker.engine._swap_step = counted("swap", handle.worker.engine._swap_step)
    user_group, handle.hook.sums.group = handle.hook.sums.group, _CountedGroup(handle.hook.sums.group, asked)
    for step in range(4, 4 + steps):
        training.step_once(ddp, optimizer, rank, step)
    for name, function in kept.items():
        setattr(dist, name, function)
    c10d._all_gather_flat = flat
    handle.hook.sums.group = user_group
    after, explained = handle.stats(), handle.explain()
    handle.close()
    return {"asked": len(asked), "strategy": explained["strategy"],
            **{key: after[key] - before[key] for key in ("rounds", "exchanges", "steps", "overflow_repeats")}}


# spec, options, strategy, collectives per bucket
PLANNED = [("topk:ratio=0.05", {}, "gather_all", 1), ("int8", {"strategy": "gather_all"}, "gather_all", 1),
           ("int8", {"strategy": "two_shot"}, "two_shot", 2), ("topk:ratio=0.05", {"strategy": "two_shot"}, "two_shot", 2),
           ("randomk:ratio=0.05", {}, "native_sum", 1), ("powersgd:rank=2", {}, "native_sum", 2),
           ("fp16", {}, "native_sum", 2),  # one of halves, one of the small parameters' float32: in flight together
           ("fp16", {"small": 0}, "native_sum", 1)]


ENGINES = [(), ("_probe_short_sends",), ("_probe_short_sends", "_probe_flat_gather")]


@pytest.mark.parametrize("without", ENGINES)
@pytest.mark.parametrize(("spec", "options", "strategy", "planned"), PLANNED)
def test_no_round_carries_only_control(pools, spec, options, strategy, planned, without):
    for counts in pools(3).run(_rounds, spec=spec, buckets=1, without=without, **options):
        assert counts["strategy"] == strategy and counts["overflow_repeats"] == 0
        assert counts["steps"] == counts["exchanges"] == 4
        assert counts["rounds"] == counts["asked"] == 4 * planned


def test_uncompressed_buckets_cost_as_much_as_plain_ddp(pools):
    for counts in pools(3).run(_rounds, spec="none", buckets=1):
        assert counts["asked"] == 4 and counts["exchanges"] == 0  # the group's own all-reduce, no worker


@pytest.mark.parametrize("strategy", ["gather_all", "two_shot"])
@pytest.mark.parametrize("spec", ["3lc", "sidco:ratio=0.05"])
def test_varying_sizes_cost_a_round_only_above_prediction(pools, spec, strategy):
    """On engines whose receives take exactly what was announced; others need no prediction."""
    planned = {"gather_all": 1, "two_shot": 2}[strategy]
    for counts in pools(3).run(_rounds, spec=spec, buckets=1, strategy=strategy):
        assert counts["rounds"] == counts["asked"] == planned * counts["exchanges"] and counts["overflow_repeats"] == 0
    for counts in pools(3).run(_rounds, spec=spec, buckets=1, strategy=strategy, without=["_probe_short_sends"]):
        assert counts["rounds"] == counts["asked"]
        assert 0 <= counts["rounds"] - planned * counts["exchanges"] <= 2 * counts["overflow_repeats"] <= 2


def _hashes(spec, **options):
    import torch.distributed as dist

    hashes = []
    for without in ENGINES:
        with training.engine_without(*without):
            ddp, handle, optimizer = training.build(dist.group.WORLD, spec, buckets=3, attach_options=options)
        for step in range(5):
            training.step_once(ddp, optimizer, dist.get_rank(), step)
        hashes.append(training.digest(ddp))
        handle.close()
    return hashes


@pytest.mark.parametrize("strategy", ["gather_all", "two_shot"])
@pytest.mark.parametrize("spec", ["3lc", "sidco:ratio=0.05", "topk:ratio=0.05", "int8"])
def test_transport_changes_no_bit(pools, spec, strategy):
    hashes = pools(4).run(_hashes, spec=spec, strategy=strategy)
    assert len({h for of_rank in hashes for h in of_rank}) == 1


@pytest.mark.parametrize("spec", ["fp16", "int8:round=stochastic+ef", "topk:ratio=0.01", "randomk:ratio=0.01", "sidco:ratio=0.01",
                                  "3lc", "3lc:s=1.75,scale=chunk", "powersgd:rank=2"])
def test_threads_change_no_bit(pools, spec):
    results = [pools(2).run(training.train, spec=spec, steps=3, width=512, attach_options={"threads": threads})
               for threads in (1, 2, 1)]
    assert len({r["hash"] for ranks in results for r in ranks}) == 1
    assert len({r["stats"]["wire_bytes"] for ranks in results for r in ranks}) <= 2  # each rank sends what it sent


def _spent(spec, **options):
    """Bytes that an emulated link charges for, and those that the session counts."""
    import torch.distributed as dist

    from laconic.engines.emulate import Limiter

    class Counting(Limiter):
        total = 0

        def send(self, count):
            self.total += count
            return 0.0

    ddp, handle, optimizer = training.build(dist.group.WORLD, spec, buckets=2, attach_options=options)
    handle.worker.engine.limiter = Counting(1.0)
    for step in range(4):
        training.step_once(ddp, optimizer, dist.get_rank(), step)
    spent, counted = handle.worker.engine.limiter.total, handle.stats()["wire_bytes"]
    handle.close()
    return spent, counted


@pytest.mark.parametrize(("spec", "options"), [("topk:ratio=0.05", {}), ("3lc", {"strategy": "two_shot"}), ("powersgd:rank=2", {}),
                                               ("fp16", {})])
def test_emulated_link_charges_counted_bytes(pools, spec, options):
    for spent, counted in pools(3).run(_spent, spec=spec, **options):
        assert spent == counted > 0
