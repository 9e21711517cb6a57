# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Short buckets travel together: which of them, with what bits, and what becomes of them when something fails."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import mmap
import random
import types
import weakref

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import training  # noqa: E402

import laconic  # noqa: E402
from laconic import _lib  # noqa: E402
from laconic._session import CSession, Layout  # noqa: E402
from laconic.coalescing import Coalescing, Piece  # noqa: E402


class Planned(CSession):
    """Knows what a plan knows, and nothing else."""

    def __init__(self, most_bytes=(), *, part=0, layout_matters=False):
        self._most_bytes, self.part, self.layout_matters = most_bytes, part, layout_matters
        self.released = []

    def release(self, layout):
        self.released.append(layout)


def _job(step=0, scale=None, rates=None):
    return types.SimpleNamespace(step=step, scale=scale, rates=rates, failure=None)


def _together(sizes, most_bytes, part=0, jobs=None, dtypes=None, parameters=None):
    """The groups that a worker's loop makes of buckets of these sizes, one parameter each."""
    coalescing, groups = Coalescing(Planned(most_bytes, part=part), None), []

    def send():
        groups.append([piece.index for piece in coalescing.take()])

    for number, size in enumerate(sizes):
        job, layout = jobs[number] if jobs else _job_of_all, Layout([parameters[number] if parameters else number], [0], size)
        layout.dtype = dtypes[number] if dtypes else _lib.F32
        waits = coalescing.takes(layout)
        if coalescing.waiting and not (waits and coalescing.goes_with(job, layout)):
            send()
        if not waits:
            groups.append([number])
        elif coalescing.add(Piece(job, layout, 0, number)):
            send()
    if coalescing.waiting:
        send()
    return groups


_job_of_all = _job()


@pytest.mark.parametrize(("sizes", "most_bytes", "part", "wanted"), [
    ([100, 100, 100], 10, 0, "0 1 2"),
    ([100, 65536, 65537, 100, 100], 10, 0, "0 1 | 2 | 3 4"),  # a long one goes alone, and nothing waits for what is behind it
    ([65536] * 6, 10, 0, "0 1 2 3 | 4 5"),
    ([65535] * 6, 10, 0, "0 1 2 3 4 | 5"),
    ([100] * 5, 32768, 0, "0 1 | 2 3 | 4"),
    ([100] * 5, 32767, 0, "0 1 2 | 3 4"),
    ([100] * 5, 65536, 0, "0 | 1 | 2 | 3 | 4"),
    ([100] * 5, 10, 800, "0 1 | 2 3 | 4"),
    ([100] * 5, 10, 799, "0 | 1 | 2 | 3 | 4"),
    ([100] * 5, 10, 1, "0 | 1 | 2 | 3 | 4"),
])
def test_some_groups_written_out(sizes, most_bytes, part, wanted):
    groups = _together(sizes, [most_bytes] * len(sizes), part)
    assert " | ".join(" ".join(map(str, group)) for group in groups) == wanted


def test_the_groups_of_any_sizes():
    """Said once more, from the end: a group goes on until it is full or the next one is not for it."""
    moments = random.Random(5)
    for _ in range(300):
        count = moments.randrange(1, 40)
        sizes = [moments.choice((1, 100, 20000, 65536, 65537, 300000)) for _ in range(count)]
        most = [moments.choice((4, 900, 30000, 66000)) for _ in range(count)]
        part = moments.choice((0, 1, 100000, 8 << 20))
        wanted = []
        for number, size in enumerate(sizes):
            group = wanted[-1] if wanted else []
            elements = sum(sizes[i] for i in group)
            if (group and size <= 65536 and max(sizes[i] for i in group) <= 65536 and sum(most[i] for i in group) < 65536
                    and elements < 262144 and (part == 0 or 4 * (elements + size) <= part)):
                group.append(number)
            else:
                wanted.append([number])
        assert _together(sizes, most, part) == wanted


def test_what_belongs_to_something_else_does_not_come_along():
    """Another type of element, step, loss scale or learning rates, and a parameter that is there already."""
    sizes, most = [100] * 4, [10] * 4
    f32, f16 = _lib.F32, _lib.F16
    assert _together(sizes, most, dtypes=[f32, f32, f16, f16]) == [[0, 1], [2, 3]]
    for other in (_job(step=1), _job(scale=object()), _job(rates={})):
        assert _together(sizes, most, jobs=[_job_of_all, _job_of_all, other, other]) == [[0, 1], [2, 3]]
    assert _together(sizes, most, parameters=[0, 1, 0, 1]) == [[0, 1], [2, 3]]
    engine_adds = Coalescing(Planned(layout_matters=True), None)
    assert not engine_adds.takes(Layout([0], [0], 100))


def test_layouts_of_no_further_use_are_freed():
    session = Planned([10] * 3)
    coalescing, memory = Coalescing(session, None), (ctypes.c_float * 8)()
    layouts = [Layout([i], [0], 4) for i in range(3)]
    for layout in layouts:
        layout.dtype = _lib.F32

    def joined(*numbers):
        pieces = [Piece(_job_of_all, layouts[i], ctypes.addressof(memory), i) for i in numbers]
        together = coalescing.join(pieces, 4)
        coalescing.give_back(together)
        return together.layout

    both = joined(0, 1)
    coalescing.end_step()
    assert joined(0, 1) is both and both.parameters == (0, 1) and both.offsets == (0, 4) and both.elements == 8
    coalescing.end_step()
    last = joined(1, 2)
    coalescing.end_step()
    assert session.released == []
    coalescing.end_step()
    assert session.released == [both]
    coalescing.end_step()
    assert session.released == [both, last]


class Many(torch.nn.Module):
    """As many small tensors as there are buckets, one that is long among them, and a few that travel as they are."""

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
        handle.worker._coalescing.takes = lambda layout: False
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
def test_together_or_apart_no_bit_changes(pools, spec, options):
    apart, *others = pools(3).run(_many, spec=spec, coalesce=False, **options)
    together = pools(3).run(_many, spec=spec, **options)
    assert {result["hash"] for result in (*others, *together)} == {apart["hash"]}
    assert apart["stats"]["coalesced"] == 0
    for result in together:
        # All but the long one travel with others: of 40 buckets and 4 steps, less those of DDP's first iteration, which has others.
        assert result["stats"]["coalesced"] >= 40 and result["stats"]["exchanges"] < 0.8 * apart["stats"]["exchanges"]


@pytest.mark.parametrize(("spec", "options"), [("fp16+ef", {"strategy": "native_sum"}), ("powersgd:rank=2", {}), ("3lc", {"part": 1})])
def test_these_stay_apart(pools, spec, options):
    """The engine's own sums depend on what lies beside what; `part` bounds what travels together, too."""
    for result in pools(2).run(_many, spec=spec, **options):
        assert result["stats"]["coalesced"] == 0 and result["stats"]["exchanges"] > 0


def test_a_gradient_that_is_not_finite_sends_what_is_with_it_uncompressed(pools):
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
    on_bucket, names, stage = handle.on_bucket, {id(p): n for n, p in ddp.module.named_parameters()}, handle.worker.stage
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

    handle.on_bucket = recorded
    if rank == 1:
        stage.ready = broken
    try:
        training.step_once(ddp, optimizer, rank, 2)
        said = ""
    except RuntimeError as error:
        said = str(error)
    stage.ready, handle.on_bucket = ready, on_bucket
    after, exchanges = handle.state_dict()["tensors"], handle.stats()["exchanges"]
    training.step_once(ddp, optimizer, rank, 3)
    result = said, before, after, gradients, handle.stats()["exchanges"] - exchanges, training.digest(ddp)
    handle.close()
    return result


def test_a_bucket_that_does_not_come_takes_the_others_along_and_loses_none(pools):
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
    """A backward() that ends in its first bucket's hook, on all ranks, and the end of the handle behind it."""
    ddp, handle, optimizer = training.build(dist.group.WORLD, "3lc", buckets=16)
    rank = dist.get_rank()
    for step in range(2):
        training.step_once(ddp, optimizer, rank, step)
    on_bucket, step, errors = handle.on_bucket, handle.step, []

    def ends(bucket):
        on_bucket(bucket)
        handle.on_bucket = on_bucket
        raise KeyError("the test stops here")

    handle.on_bucket = ends
    try:
        training.step_once(ddp, optimizer, rank, 2)
    except BaseException as error:  # noqa: BLE001
        errors.append(type(error).__name__)
    waiting = handle.worker._between_jobs(lambda: len(handle.worker._coalescing.waiting))
    handle.close()
    return errors, waiting, handle.step - step, handle.worker._coalescing.waiting, handle.closed


def test_close_within_an_iteration_that_was_broken_off(pools):
    """What waited does not keep the worker from its end."""
    for errors, waiting, steps, left, closed in pools(2).run(_broken_off):
        assert errors and waiting == 1 and steps == 0 and left == [] and closed


def _memory_after(abandoned):
    """Is it there when nobody knows the handle any more?"""
    ddp, handle, optimizer = training.build(dist.group.WORLD, "3lc", buckets=16)
    for step in range(2):
        training.step_once(ddp, optimizer, dist.get_rank(), step)
    memory = weakref.ref(handle.worker._coalescing._memory)
    handle.worker.engine.abandoned = abandoned
    handle.close()
    del ddp, handle, optimizer
    gc.collect()
    return memory() is not None


def test_memory_that_a_collective_may_still_use_stays(pools):
    """Sums of a step that goes out uncompressed are taken where the gradients lie."""
    assert pools(2).run(_memory_after, abandoned=False) == [False, False]
    assert pools(2).run(_memory_after, abandoned=True) == [True, True]


def test_memory_is_taken_when_a_step_needs_it():
    """mincore: which pages are there."""
    coalescing, page = Coalescing(Planned(), None), mmap.PAGESIZE
    size = ctypes.sizeof(coalescing._memory)
    assert size > 8 << 20
    libc, pages = ctypes.CDLL(None, use_errno=True), (ctypes.c_ubyte * ((size + page - 1) // page))()

    def there():
        assert libc.mincore(ctypes.c_void_p(ctypes.addressof(coalescing._memory)), ctypes.c_size_t(size), pages) == 0
        return sum(one & 1 for one in pages)

    assert there() == 0
    coalescing._memory[0] = b"1"
    assert 0 < there() < len(pages)
