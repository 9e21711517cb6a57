# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Short buckets travel together: which of them, with what bits, and what becomes of them when something fails."""

from __future__ import annotations

import contextlib
import threading

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import training  # noqa: E402

import laconic  # noqa: E402
from laconic.exchange import worker as of_worker  # noqa: E402
from laconic.exchange.csession import Layout  # noqa: E402


class Many(torch.nn.Module):
    """A number of small tensors equal to that of the buckets, one that is long, and a few that are sent uncompressed."""

    def __init__(self, count=40, elements=5000):
        super().__init__()
        sizes = [70000 if i == count // 2 else 40 if i % 7 == 3 else elements for i in range(count)]
        self.parts = torch.nn.ParameterList([torch.nn.Parameter(torch.linspace(-1, 1, size)) for size in sizes])

    def forward(self, x):
        for i, part in enumerate(self.parts):
            x = x + torch.sin(part * (x.detach() + i)).sum()
        return x


def _many(spec, *, steps=4, coalesce=True, dtype=torch.float32, poison=(), skip=False, ddp_options=None, **options):
    torch.manual_seed(3)
    model = Many().to(dtype)
    ddp = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.01, **(ddp_options or {}))
    handle = laconic.attach(ddp, spec, small_elements=64, quiet=True, **options)
    if not coalesce:
        handle.hook.apart = True
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01, momentum=0.9)
    rank, gradients = dist.get_rank(), []
    with ddp.join() if skip else contextlib.nullcontext():
        for step in range(steps - (rank if skip else 0)):
            optimizer.zero_grad()
            loss = ddp(torch.full((), 0.3 * rank + 0.1 * step, dtype=dtype))
            if (rank, step) in poison:
                model.parts[5].register_hook(lambda g: g * float("nan"))
            loss.backward()
            gradients = [p.grad.clone() for p in model.parameters()]
            if all(bool(g.isfinite().all()) for g in gradients):
                optimizer.step()
    stats = handle.stats()
    result = {"hash": training.digest(ddp), "stats": stats, "gradients": [bool(g.isfinite().all()) for g in gradients]}
    handle.close()
    return result


@pytest.mark.parametrize(("spec", "options"), [
    ("3lc", {"strategy": "two_shot"}), ("3lc", {"strategy": "gather_all", "window": 1}), ("topk:ratio=0.05", {}),
    ("int8+ef", {"strategy": "two_shot", "window": 8, "part": 41000}), ("int8:round=stochastic", {"threads": 2}),
    ("topk:ratio=0.05+momentum=0.9", {"control": "schedule:0=0.05,2=0.2"}), ("onebit", {"ddp_options": {"static_graph": True}}),
    ("3lc", {"ddp_options": {"find_unused_parameters": True, "gradient_as_bucket_view": True}}), ("efsignsgd", {"skip": True}),
    ("int8+ef", {"strategy": "two_shot", "dtype": torch.bfloat16})])
def test_joined_or_separate_buckets_have_same_bits(pools, spec, options):
    apart, *others = pools(3).run(_many, spec=spec, coalesce=False, **options)
    together = pools(3).run(_many, spec=spec, **options)
    assert {result["hash"] for result in (*others, *together)} == {apart["hash"]}
    assert apart["stats"]["coalesced"] == 0
    for result in together:
        # All but the long one travel with others: of 40 buckets and 4 steps, less those of DDP's first iteration, which has others.
        assert result["stats"]["coalesced"] >= 40 and result["stats"]["exchanges"] < 0.8 * apart["stats"]["exchanges"]


@pytest.mark.parametrize("spec", ["fp16+ef", "powersgd:rank=2", "bf16"])
def test_sums_are_joined_too(pools, spec):
    """If the engine adds, a position in the buffer may decide the last bit of a sum, the same on all ranks."""
    results = pools(3).run(_many, spec=spec, strategy="native_sum")
    assert len({result["hash"] for result in results}) == 1
    for result in results:
        assert result["stats"]["coalesced"] >= 40


def test_part_size_limits_joined_buckets(pools):
    for result in pools(2).run(_many, spec="3lc", part=1):
        assert result["stats"]["coalesced"] == 0 and result["stats"]["exchanges"] > 0


def test_nonfinite_gradient_sends_its_group_uncompressed(pools):
    """And harms no other: NaN is where it was, on every rank."""
    results = pools(2).run(_many, spec="topk:ratio=0.05", poison=[(1, 3)])
    assert len({result["hash"] for result in results}) == 1
    for result in results:
        assert result["stats"]["fallbacks"] == 1 and result["gradients"] == [i != 5 for i in range(40)]


def _does_not_come():
    """Rank 1's second bucket does not reach its host in step 2: what all hear; residuals of the step, and its gradients."""
    ddp, handle, optimizer = training.build(dist.group.WORLD, "topk:ratio=0.05", buckets=16)
    rank = dist.get_rank()
    for step in range(2):
        training.step_once(ddp, optimizer, rank, step)
    before, gradients, asked = handle.state_dict()["tensors"], {}, []
    on_bucket, names, stage = handle.hook.on_bucket, {id(p): n for n, p in ddp.module.named_parameters()}, handle.worker.stage
    ready = stage.ready

    def recorded(bucket):
        for p, g in zip(bucket.parameters(), bucket.gradients()):
            gradients[names[id(p)]] = (bucket.index(), g.detach().clone().flatten())
        return on_bucket(bucket)

    def broken(ticket):
        asked.append(ticket)
        if len(asked) == 2:
            raise RuntimeError("the test cut the cable")
        return ready(ticket)

    handle.hook.on_bucket = recorded
    if rank == 1:
        stage.ready = broken
    try:
        training.step_once(ddp, optimizer, rank, 2)
        said = ""
    except RuntimeError as error:
        said = str(error)
    stage.ready, handle.hook.on_bucket = ready, on_bucket
    after, exchanges = handle.state_dict()["tensors"], handle.stats()["exchanges"]
    training.step_once(ddp, optimizer, rank, 3)
    result = said, before, after, gradients, handle.stats()["exchanges"] - exchanges, training.digest(ddp)
    handle.close()
    return result


def test_missing_bucket_fails_others_and_loses_none(pools):
    results = pools(2).run(_does_not_come)
    assert len({result[-1] for result in results}) == 1  # and the next step goes on
    for rank, (said, before, after, gradients, exchanges, _) in enumerate(results):
        assert "rank 1" in said and "the test cut the cable" in said and exchanges == 1
        assert f"rank {rank}, bucket 0 and 2 more (" in said
        kept = [name for name in gradients if f"residual/{name}" in after]
        assert {gradients[name][0] for name in kept} == {0, 1, 2}
        for name in kept:
            bucket, gradient = gradients[name]
            lost = rank == 1 and bucket == 1  # it never was on the host
            expected = before[f"residual/{name}"] + (0 if lost else gradient)
            torch.testing.assert_close(after[f"residual/{name}"], expected, rtol=1e-6, atol=1e-7)


def _broken_off():
    """A backward() that ends in its first bucket's hook, on all ranks, and then the end of the handle."""
    ddp, handle, optimizer = training.build(dist.group.WORLD, "3lc", buckets=16)
    rank = dist.get_rank()
    for step in range(2):
        training.step_once(ddp, optimizer, rank, step)
    on_bucket, step, errors = handle.hook.on_bucket, handle.step, []

    def ends(bucket):
        on_bucket(bucket)
        handle.hook.on_bucket = on_bucket
        raise KeyError("the test stops here")

    handle.hook.on_bucket = ends
    try:
        training.step_once(ddp, optimizer, rank, 2)
    except BaseException as error:  # noqa: BLE001
        errors.append(type(error).__name__)
    waiting = handle.worker.commands.between_jobs(lambda: len(handle.worker.exchanges._begun))
    handle.close()
    return errors, waiting, handle.step - step, handle.worker.exchanges._begun, handle.closed


def test_close_works_after_aborted_iteration(pools):
    """Buckets that wait do not keep the worker from its end."""
    for errors, waiting, steps, left, closed in pools(2).run(_broken_off):
        assert errors and waiting == 1 and steps == 0 and left == {} and closed


def _of_one_step(second):
    """Exchanges that a step of two short buckets takes, whose units are of one loss scale and one set of rates, or not."""
    ddp, handle, _ = training.build(dist.group.WORLD, "3lc")
    worker, same, half = handle.worker, {}, 0.5
    units = [(1.0, same), {"same": (1.0, same), "rates": (1.0, {}), "scale": (half, same)}[second]]
    for p, (scale, rates) in enumerate(units):
        count = handle._opened.parameters.counts[p]
        worker.submit(Layout((p,), (0,), count), torch.ones(count), index=p, scale=scale, rates=rates, coalesce=True)
    worker.next_step()
    handle.state_dict()  # after the worker's last job
    exchanges = handle.stats()["exchanges"]
    handle.close()
    del ddp  # whose end is the handle's, too
    return exchanges


@pytest.mark.parametrize(("second", "exchanges"), [("same", 1), ("rates", 2), ("scale", 2)])
def test_buckets_of_other_units_stay_separate(pools, second, exchanges):
    assert pools(2).run(_of_one_step, second=second) == [exchanges, exchanges]


def _drained():
    """Results of a hook that needs a bucket's mean within the step: means, exchanges and steps."""
    ddp, handle, _ = training.build(dist.group.WORLD, "none")
    worker, means = handle.worker, []
    for p in range(2):
        there = threading.Event()
        count = handle._opened.parameters.counts[p]
        future = worker.submit(Layout((p,), (0,), count), torch.full((count,), float(dist.get_rank())), index=p, coalesce=True)
        future.add_done_callback(lambda _, there=there: there.set())
        worker.drain()
        means.append(there.wait(60) and of_worker.result(future).unique().tolist())
    worker.next_step()
    handle.state_dict()  # after the worker's last job
    stats = handle.stats()
    handle.close()
    del ddp  # whose end is the handle's, too
    return means, stats["exchanges"], stats["steps"], handle.step


def test_drain_delivers_means_and_keeps_step_open(pools):
    assert pools(2).run(_drained) == [([[0.5], [0.5]], 2, 1, 1)] * 2


def _closed_in_a_collective():
    """How many of driver and session are freed, and left, when a collective of theirs has not ended."""
    ddp, handle, optimizer = training.build(dist.group.WORLD, "3lc")
    training.step_once(ddp, optimizer, dist.get_rank(), 0)
    left, worker = [], handle.worker
    for thing in (worker._driver, worker.session):
        thing.abandon = lambda abandon=thing.abandon: (left.append(thing), abandon())
    worker.engine.abandoned = True
    handle.close()
    return len(left)


def test_memory_of_running_collective_is_never_freed(pools):
    assert pools(2).run(_closed_in_a_collective) == [2, 2]
