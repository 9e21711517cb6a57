# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Gradients on an accelerator, through host memory: on a pretend device everywhere, on CUDA where there is one."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import signal
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "accelerator"))

import pretend  # noqa: E402
import test_nodes  # noqa: E402
import torch.distributed as dist  # noqa: E402
import training  # noqa: E402
from launches import launch  # noqa: E402
from ranks import RankError, Ranks  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import laconic  # noqa: E402
from laconic.exchange import staging  # noqa: E402


def _own_gpu():
    torch.cuda.set_device(int(os.environ["RANK"]) % torch.cuda.device_count())


@pytest.fixture(scope="module", params=["pretend", "cuda"])
def device(request):
    if request.param == "cuda":
        if not torch.cuda.is_available():
            pytest.skip("no CUDA device here")
    elif why := pretend.why_not():
        pytest.skip(why)
    else:
        pretend.library()
    return request.param


def start(device, world, **options) -> Ranks:
    if device == "pretend":
        return Ranks(world, backend="pretend", prepare=pretend.load, **options)
    nccl = torch.cuda.device_count() >= world  # it wants a device for each rank
    return Ranks(world, backend="cpu:gloo,cuda:nccl" if nccl else "gloo", prepare=_own_gpu, **options)


@pytest.fixture(scope="module")
def staged(device):
    """staged(world): ranks whose models lie on the device, started once for this file."""
    started: dict[int, Ranks] = {}

    def of(world: int) -> Ranks:
        if world not in started:
            started[world] = start(device, world)
        return started[world]

    yield of
    for pool in started.values():
        pool.close()


def late(device, compute=0, down=0, up=0) -> None:
    """Delay of operations, in microseconds. On CUDA gradients are late as in training.Late."""
    if device == "pretend":
        pretend.delay(compute, down, up)


def _train(device, delays=(200, 200, 200), **options):
    late(device, *delays)
    try:
        return training.train(device=device, **options)
    finally:
        late(device)


def same(results) -> str:
    assert len({r["hash"] for r in results}) == 1, "replicas differ"
    assert all(r["finite"] for r in results)
    return results[0]["hash"]


# ---- the same values as on the CPU -----------------------------------------------------------------------------------------

def test_every_codec_is_tested():
    assert {spec.partition(":")[0] for spec in training.SPECS + training.OTHER_SPECS} == set(laconic.codecs())


@pytest.mark.parametrize("spec", training.SPECS + training.OTHER_SPECS)
def test_staged_values_match_cpu(staged, pools, device, spec):
    run = {"spec": spec, "steps": 20, "buckets": 3}
    assert same(staged(2).run(_train, device=device, **run)) == same(pools(2).run(training.train, **run))


MODES = {
    "fp16": {"dtype": torch.float16},
    "bf16": {"dtype": torch.bfloat16},
    "accumulation": {"accumulate": 2},
    "static graph": {"ddp_options": {"static_graph": True}},
    "bucket view": {"ddp_options": {"gradient_as_bucket_view": True}},
    "unused": {"branch": training.on_odd_steps, "model_options": {"unused": True}, "ddp_options": {"find_unused_parameters": True}},
    "three parts": {"attach_options": {"part": 4000}},
    "warm-up": {"attach_options": {"warmup": 3}},
    "sums": {"spec": "bf16"},
    "sums by the group": {"spec": "none"},
}


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_trains(staged, pools, device, mode):
    run = {"spec": "3lc", "steps": 6, "buckets": 2, **MODES[mode]}
    assert same(staged(3).run(_train, device=device, **run)) == same(pools(3).run(training.train, **run))


def _by_nodes(device, weekly):
    """Runs with nodes of two: one launch for all specs."""
    specs = training.SPECS + training.OTHER_SPECS if weekly else ["3lc", "int8+ef", "powersgd:rank=2"]
    runs = [{"spec": spec} for spec in specs] + [{"spec": "topk:ratio=0.05", "dtype": torch.float16}]
    found = [_train(device, steps=6, buckets=3, attach_options={"nodes": 2, "window": 1}, **run) for run in runs]
    with _without_all_to_all() if dist.get_rank() == 1 else contextlib.nullcontext():
        found.append(_train(device, steps=6, buckets=3, attach_options={"nodes": 2, "window": 1}, spec="3lc"))
    laconic.engines.group._free_siblings.clear()  # others want one that serves the device
    return found


@contextlib.contextmanager
def _without_all_to_all():
    """The device's backend has none."""
    kept = pretend._Group.alltoall_base
    del pretend._Group.alltoall_base, pretend._Group.all_to_all_single
    try:
        yield
    finally:
        pretend._Group.alltoall_base = pretend._Group.all_to_all_single = kept


def test_nodes_over_staged_buffers_match_cpu(staged, pools, device):
    weekly = os.environ.get("TEST_TIER") == "weekly"
    elements = sum(p.numel() for p in training.Net().parameters())
    here, there = (zip(*pool.run(_by_nodes, device=of, weekly=weekly)) for pool, of in ((staged(4), device), (pools(4), "cpu")))
    here, there = list(here), list(there)
    for number, (ours, theirs) in enumerate(zip(here, there)):
        assert same(ours) == same(theirs)
        assert [r["stats"]["node_bytes"] for r in ours] == [r["stats"]["node_bytes"] for r in theirs]
        width = 2 if number == len(here) - 2 else 4
        copies = (2, 1) if number == len(here) - 1 else (1, 1)  # of a node's ranks: the first node meets on the host there
        staged_bytes = [sum(r["stats"]["staged_bytes"] for r in node) for node in (ours[:2], ours[2:])]
        assert staged_bytes == [2 * 6 * width * elements * buckets for buckets in copies], "to the host and back, of shards alone"


def test_fault_in_node_on_device_reaches_all(staged, device):
    """As on the CPU; and where a shard does not come to the host, its node lacks it."""
    if device != "pretend":
        pytest.skip("a device that fails stays failed")
    joined, early = test_nodes.JOINED, test_nodes.EARLY
    cases = [("device", 1, [0], early, "rank 0 failed in bucket 1"),
             ("down", 0, [3], joined, "rank 3 failed in bucket 0 (peer_failed): gradients could not be copied from pretend"),
             ("permutation", 0, [3], joined, "rank 3, inside the node: RuntimeError: the test has no memory")]
    for case, ranks in zip(cases, zip(*staged(4).run(test_nodes._faulty, cases=cases, device=device, seconds=200))):
        test_nodes.check_fault(case, ranks)
        assert all("inside them pretend" in result["told"] for result in ranks)


def test_killed_rank_of_node_is_reported(device):
    if device != "pretend":
        pytest.skip("four ranks may share a GPU")
    pool = start(device, 4)
    try:
        pool.start(test_nodes._dies, victim=3, phase="in", sign=signal.SIGKILL, device=device)
        for rank in range(3):
            kind, (said, seconds, _) = pool._receive(rank, 40)
            assert kind == "ok" and "rank 3 is gone" in said and seconds < 25
    finally:
        pool.close()


def _scaled(device):
    """Loss scaling, with an overflow on rank 0 in the third step: its parameters, its scale, and whether the host was stalled."""
    rank, asked = dist.get_rank(), []
    late(device, 500, 500, 500)
    scaler = torch.amp.GradScaler(device, init_scale=1024.0)
    ddp, handle, optimizer = training.build(dist.group.WORLD, "topk:ratio=0.05", buckets=2, device=device,
                                            attach_options={"scaler": scaler})
    scaler.get_scale, kept = lambda: asked.append(1) or kept(), scaler.get_scale
    for step in range(6):
        optimizer.zero_grad()
        x, y = (t.to(training.inputs_device(ddp)) for t in training.batch(rank, step))
        loss = torch.nn.functional.cross_entropy(ddp(x), y).to(device)
        if step == 2 and rank == 0:
            loss = loss * float("inf")
        scaled = scaler.scale(loss)
        asked.clear()
        scaled.backward()
        scaler.step(optimizer)
        scaler.update()
    late(device)
    result = training.digest(ddp), kept(), len(asked), handle.stats()["residual_norm"]
    handle.close()
    return result


def test_changing_loss_scale_works(staged, pools, device):
    here, there = staged(2).run(_scaled, device=device), pools(2).run(_scaled, device="cpu")
    assert [r[:2] for r in here] == [r[:2] for r in there] and {r[1] for r in here} == {512.0}
    assert [r[3] for r in here] == [r[3] for r in there]
    assert {r[2] for r in here} == {0} and {r[2] for r in there} == {1}, "reading it would stall the host"


def _flushed(device):
    ddp, handle, optimizer = training.build(dist.group.WORLD, "topk:ratio=0.05", buckets=2, device=device)
    rank = dist.get_rank()
    for step in range(8):
        if step == 3:
            handle.flush(3)
        training.step_once(ddp, optimizer, rank, step)
        if handle.stats()["flush_steps_left"] == 0 and step > 4:
            break
    empty = handle.stats()["residual_norm"]
    try:
        laconic.attach(ddp, "3lc", quiet=True)
        again = None
    except laconic.LaconicError as error:
        again = error.message
    handle.close()
    handle.close()
    try:
        training.step_once(ddp, optimizer, rank, 9)
        closed = None
    except Exception as error:  # noqa: BLE001
        closed = str(error)
    return training.digest(ddp), empty, again, closed, handle.stats()


def test_flush_second_attach_and_close_work(staged, pools, device):
    here, there = staged(2).run(_flushed, device=device), pools(2).run(_flushed, device="cpu")
    for ours, theirs in zip(here, there):
        assert ours[:3] == theirs[:3] and ours[1] == 0.0
        assert "laconic is already attached to this model" in ours[2]
        assert "handle is closed" in ours[3]
        assert ours[4]["pinned_bytes"] == 0 and ours[4]["steps"] == theirs[4]["steps"]


# ---- orders that have to be kept: without one of them, other values --------------------------------------------------------

class Disordered(staging.HostStage):
    """Copies to the host do not wait for what computes the gradients."""

    def order_after_compute(self):
        pass


class Hasty(staging.HostStage):
    """The worker does not wait for the copy to the host."""

    def ready(self, ticket):
        return ticket.host.data_ptr()


class Early(staging.HostStage):
    """The future is not ordered after the copy to the device."""

    def deliver(self, ticket, future, error=None):
        aside = torch.futures.Future(devices=self.devices)
        super().deliver(ticket, aside, error)
        future.set_result(error or ticket.value)


@contextlib.contextmanager
def staged_by(kind):
    kept, staging.HostStage = staging.HostStage, kind
    try:
        yield
    finally:
        staging.HostStage = kept


def _train_with(kind, **options):
    with staged_by(kind):
        return _train(**options)


@pytest.mark.parametrize("kind", [Disordered, Hasty, Early])
def test_missing_synchronisation_is_detected(device, pools, kind):
    """Or the pretend device would be too tame to show anything."""
    if device != "pretend":
        pytest.skip("its times are not ours to choose")
    run = {"spec": "3lc", "steps": 20, "buckets": 3}
    right = same(pools(2).run(training.train, **run))
    for delay in (2000, 20000, 60000):  # microseconds; who finds no processor may be late enough for the right values
        pool = start(device, 2, timeout=20.0)
        try:
            wrong = pool.run(_train_with, kind=kind, device=device, delays=(delay,) * 3, **run)
        except RankError:
            return
        finally:
            pool.close()
        if {r["hash"] for r in wrong} != {right}:
            return
    pytest.fail("values are right without it")


def _copies(device):
    """A tensor whose memory is given away while it is copied to the host, and one while it is copied back."""
    layout = laconic.exchange.csession.Layout([0], [0], 1000)
    stage = staging.HostStage(torch.device(device, torch.accelerator.current_device_index()))
    late(device, 0, 50_000, 50_000)
    if device == "cuda":
        for stream in (stage._down, stage._up):
            with staging._on(stream):
                torch.cuda._sleep(100_000_000)
    source = torch.full((1000,), 3.0).to(device)
    ticket = stage.fetch(layout, [(0, source)])
    ticket.pieces = [(0, torch.zeros(1000).to(device))]
    place = source.data_ptr()
    del source
    other = torch.full((1000,), 5.0).to(device)
    stage.ready(ticket)
    arrived, reused = ticket.host.clone(), other.data_ptr() == place
    ticket.host.fill_(7.0)
    future = torch.futures.Future(devices=stage.devices)
    stage.deliver(ticket, future)
    ticket.pieces = None
    del future
    late(device)
    after = torch.full((1000,), 9.0).to(device)
    torch.accelerator.synchronize()
    return arrived.unique().tolist(), reused, other.cpu().unique().tolist(), after.cpu().unique().tolist()


def test_memory_being_copied_is_not_reused(staged, device):
    for arrived, reused, other, after in staged(2).run(_copies, device=device):
        assert arrived == [3.0] and other == [5.0] and after == [9.0]
        assert not reused, "of a block that record_stream named"


def _reused(device, microseconds):
    """Means that are still being copied back from a layout's buffer on the host when its next gradients come: what arrives."""
    layout = laconic.exchange.csession.Layout([0], [0], 1000)
    stage = staging.HostStage(torch.device(device, torch.accelerator.current_device_index()))
    first, second = (torch.full((1000,), value).to(device) for value in (3.0, 5.0))
    ticket = stage.fetch(layout, [(0, first)])
    stage.ready(ticket)
    ticket.host.fill_(7.0)
    late(device, 0, 0, microseconds)
    if device == "cuda":
        with staging._on(stage._up):
            torch.cuda._sleep(1000 * microseconds)
    future = torch.futures.Future(devices=stage.devices)
    stage.deliver(ticket, future)
    again = stage.fetch(layout, [(0, second)])  # as after a backward() that failed
    stage.ready(again)
    arrived = again.host.clone()
    torch.accelerator.synchronize()
    late(device)
    return first.cpu().unique().tolist(), arrived.unique().tolist(), again.host is ticket.host


def test_host_buffer_is_reused_after_last_copy_back(staged, device):
    for microseconds in (20_000, 500_000):
        assert staged(2).run(_reused, device=device, microseconds=microseconds) == [([7.0], [5.0], True)] * 2


def _collected(device):
    """The buffer that a node's stage collects from two pieces, and the pieces after the future of means that are still being made."""
    layout = laconic.exchange.csession.Layout([0], [0], 1000)
    stage = staging.DeviceStage(torch.device(device, torch.accelerator.current_device_index()))
    pieces = [(at, torch.full((500,), value).to(device)) for at, value in ((0, 3.0), (500, 5.0))]
    means = torch.full((1000,), 7.0).to(device)
    late(device, 20_000, 0, 0)
    ticket = stage.fetch(layout, pieces)
    stage.ready(ticket)
    gathered = ticket.host.cpu()
    with stage.working(ticket):
        for _ in range(4):  # later than a copy that does not wait for it
            torch.empty_like(means).copy_(means)
        ticket.host.copy_(means)
    future = torch.futures.Future(devices=stage.devices)
    stage.deliver(ticket, future)
    future.wait()
    found = [piece.cpu().unique().tolist() for _, piece in pieces]
    late(device)
    return gathered.unique().tolist(), found


def test_pieces_of_node_get_means_before_their_future(staged, device):
    assert staged(2).run(_collected, device=device) == [([3.0, 5.0], [[7.0], [7.0]])] * 2


def _hook(device):
    """For each bucket: had its copy ended when the hook returned, and is it true that the mean is waited for?"""
    ddp, handle, optimizer = training.build(dist.group.WORLD, "3lc", buckets=3, device=device)
    training.step_once(ddp, optimizer, dist.get_rank(), 0)
    tickets, ended, stage = [], [], handle.worker.stage
    fetch, on_bucket = stage.fetch, handle.hook.on_bucket

    def fetching(layout, pieces):
        tickets.append(fetch(layout, pieces))
        return tickets[-1]

    def hooked(bucket):
        future = on_bucket(bucket)
        ended.append(tickets[-1].event.query())
        return future

    stage.fetch, handle.hook.on_bucket = fetching, hooked
    late(device, 0, 200_000, 0)
    training.step_once(ddp, optimizer, dist.get_rank(), 1)
    late(device)
    stats = handle.stats()
    handle.close()
    return ended, stats["copy_seconds"]


def test_hook_never_waits(staged, device):
    for ended, seconds in staged(2).run(_hook, device=device):
        assert len(ended) > 1
        if device == "pretend":
            assert not any(ended) and seconds > 0.2


# ---- faults ------------------------------------------------------------------------------------------------------------

def _fails(device, victim=None, copies=0):
    """Trains until a backward() fails; returns its error, and what is left."""
    import signal

    ddp, handle, optimizer = training.build(dist.group.WORLD, "topk:ratio=0.05", buckets=3, device=device)
    rank, said = dist.get_rank(), None
    for step in range(4):
        if step == 2 and rank == victim:
            os.kill(os.getpid(), signal.SIGKILL)
        if step == 2 and rank == 0 and copies:
            pretend.load().pretend_fail_copies(copies)
        try:
            training.step_once(ddp, optimizer, rank, step)
        except RuntimeError as error:
            said = said or str(error)
            if victim is not None:
                break
    residuals = handle.state_dict()["tensors"]
    handle.close()
    layouts = len(handle.worker.stage._buffers)
    del ddp
    return said, all(bool(t.isfinite().all()) for t in residuals.values()), handle.stats()["pinned_bytes"], layouts


def test_killed_peer_is_reported(device):
    pool = start(device, 3)
    pool.start(_fails, device=device, victim=1)
    outcomes = pool.finish()
    pool.close()
    assert outcomes[1][0] == "dead"
    for kind, value in (outcomes[0], outcomes[2]):
        assert kind == "ok", value
        said, finite, pinned, _ = value
        assert "rank 1" in said and finite and pinned == 0


def test_failed_copy_on_one_rank_reaches_all(device):
    if device != "pretend":
        pytest.skip("a device that fails stays failed")
    pool = start(device, 2)
    try:
        results = pool.run(_fails, device=device, copies=1)
    finally:
        pool.close()
    for said, finite, pinned, _ in results:
        assert "rank 0" in said and "gradients could not be copied from pretend:0 to the host" in said
        assert finite and pinned == 0


def _raises(device, where):
    """Rank 1's gradients do not reach the host, as is seen in the hook or in the worker: all ranks report it; the next
    step works."""
    ddp, handle, optimizer = training.build(dist.group.WORLD, "topk:ratio=0.05", buckets=2, device=device, coalesce=False)
    rank, said = dist.get_rank(), []
    for step in range(3):
        if rank == 1 and step == 1:
            stage, kept = handle.worker.stage, getattr(handle.worker.stage, where)

            def broken(*_):
                setattr(stage, where, kept)
                raise RuntimeError("no more room")

            setattr(stage, where, broken)
        before = handle.state_dict()["tensors"]
        try:
            training.step_once(ddp, optimizer, rank, step)
        except RuntimeError as error:
            said.append((step, str(error)))
            after = handle.state_dict()["tensors"]
            same_residuals = {name for name in before if name.startswith("residual/") and torch.equal(before[name], after[name])}
    handle.close()
    return said, same_residuals, {name for name in before if name.startswith("residual/")}


@pytest.mark.parametrize("where", ["ready", "order_after_compute", "_pinned"])
def test_rank_that_cannot_copy_its_bucket_fails_all(staged, device, where):
    for rank, (said, same_residuals, residuals) in enumerate(staged(2).run(_raises, device=device, where=where)):
        assert [step for step, _ in said] == [1]
        assert "rank 1" in said[0][1] and "no more room" in said[0][1]
        assert residuals and (same_residuals != residuals if rank == 0 else len(same_residuals) > 0), same_residuals


def _unpinned(device):
    told = io.StringIO()
    pretend.load().pretend_fail_pins(1000)
    try:
        with contextlib.redirect_stderr(told):
            result = training.train("3lc", steps=6, buckets=3, device=device)
    finally:
        pretend.load().pretend_fail_pins(0)
    return {**result, "told": told.getvalue()}


def test_unpinnable_memory_is_reported_once(staged, pools, device):
    if device != "pretend":
        pytest.skip("its memory is pinned")
    results = staged(2).run(_unpinned, device=device)
    assert same(results) == same(pools(2).run(training.train, spec="3lc", steps=6, buckets=3))
    for result in results:
        assert result["told"].count("could not be pinned") == 1 and result["stats"]["pinned_bytes"] == 0


# ---- state -------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("spec", ["topk:ratio=0.05", "bf16", "none", "powersgd:rank=2"])
def test_resume_is_bit_identical(staged, device, spec):
    for whole, resumed in staged(2).run(training.resume, spec=spec, buckets=3, device=device):
        assert whole == resumed


def test_resume_works_during_warm_up(staged, device):
    run = {"spec": "3lc", "buckets": 3, "attach_options": {"warmup": 6}}
    for whole, resumed in staged(2).run(training.resume, device=device, **run):
        assert whole == resumed


def _first_half(device):
    ddp, handle, optimizer = training.build(dist.group.WORLD, "topk:ratio=0.05", buckets=3, device=device)
    for step in range(4):
        training.step_once(ddp, optimizer, dist.get_rank(), step)
    file = io.BytesIO()
    torch.save({"model": {k: v.cpu() for k, v in ddp.module.state_dict().items()}, "laconic": handle.state_dict(),
                "momentum": [optimizer.state[p]["momentum_buffer"].cpu() for p in ddp.parameters()]}, file)
    handle.close()
    return file.getvalue()


def _second_half(device, saved):
    ddp, handle, optimizer = training.build(dist.group.WORLD, "topk:ratio=0.05", buckets=3, device=device)
    state = torch.load(io.BytesIO(saved[dist.get_rank()]), weights_only=False)
    ddp.module.load_state_dict(state["model"])
    for p, momentum in zip(ddp.parameters(), state["momentum"]):
        optimizer.state[p]["momentum_buffer"] = momentum.to(device)
    tensors = {name: values.to(device) for name, values in state["laconic"]["tensors"].items()}  # as map_location would
    handle.load_state_dict({**state["laconic"], "tensors": tensors})
    for step in range(4, 8):
        training.step_once(ddp, optimizer, dist.get_rank(), step)
    handle.close()
    return training.digest(ddp)


@pytest.mark.parametrize("there", [False, True], ids=["from the CPU", "to the CPU"])
def test_state_moves_between_devices(staged, pools, device, there):
    first, second = (staged, pools) if there else (pools, staged)
    ends = ((first, device if there else "cpu"), (second, "cpu" if there else device))
    saved = ends[0][0](2).run(_first_half, device=ends[0][1])
    moved = ends[1][0](2).run(_second_half, device=ends[1][1], saved=saved)
    stayed = pools(2).run(training.train, spec="topk:ratio=0.05", steps=8, buckets=3)
    assert set(moved) == {same(stayed)}


# ---- memory ------------------------------------------------------------------------------------------------------------

def _memory(device, steps):
    gc.collect()  # tests before this one have left failures, whose tracebacks hold buffers
    ddp, handle, optimizer = training.build(dist.group.WORLD, "3lc", buckets=3, device=device)
    gradients = sum(p.numel() * p.element_size() for p in ddp.parameters())
    seen = []
    for step in range(steps):
        training.step_once(ddp, optimizer, dist.get_rank(), step)
        told = handle.stats()["pinned_bytes"]
        real = pretend.load().pretend_pinned_bytes() if device == "pretend" else told
        used = pretend.load().pretend_device_bytes() if device == "pretend" else torch.cuda.memory_reserved()
        seen.append((told, real, used))
    staged_bytes = handle.stats()["staged_bytes"]
    handle.close()
    return gradients, seen, staged_bytes


def test_pinned_memory_matches_gradients_and_never_grows(staged, device):
    steps = 200
    for gradients, seen, staged_bytes in staged(2).run(_memory, device=device, steps=steps):
        assert {told for told, _, _ in seen[2:]} == {gradients}, "DDP's first layout goes after the rebuild"
        assert {real for _, real, _ in seen[2:]} == {gradients}
        assert seen[-1][2] == seen[20][2], "device memory"
        assert staged_bytes == steps * 2 * gradients


# ---- reports -----------------------------------------------------------------------------------------------------------

def _told(device):
    heard = io.StringIO()
    ddp = DistributedDataParallel(training.Net().to(device))
    with contextlib.redirect_stderr(heard):
        handle = laconic.attach(ddp, "3lc")
    explained, stats = handle.explain(), handle.stats()
    handle.close()
    return {key: explained[key] for key in ("device", "path", "threads", "exchange_backend")}, stats, heard.getvalue()


def test_explain_and_stats_describe_staging(staged, pools, device):
    results = staged(2).run(_told, device=device)
    for explained, stats, _ in results:
        assert explained["device"] in (f"{device}:0", f"{device}:1") and explained["path"] == "staged"
        assert explained["exchange_backend"] == "gloo" and 1 <= explained["threads"] <= 8
        assert stats["staged_bytes"] == stats["pinned_bytes"] == 0
    assert f"{device}:0 staged through host memory" in results[0][2]
    explained, stats, heard = pools(2).run(_told, device="cpu")[0]
    assert explained == {"device": "cpu", "path": "in_place", "threads": 1, "exchange_backend": "gloo"}
    assert stats["staged_bytes"] == stats["copy_seconds"] == stats["pinned_bytes"] == 0 and "cpu in place" in heard


def _by_turns(device):
    """Models on the CPU and on the device, one after the other, by the same group."""
    backends = []
    for place in ("cpu", device, "cpu", device):
        ddp = DistributedDataParallel(training.Net().to(place))
        handle = laconic.attach(ddp, "3lc", quiet=True)
        training.step_once(ddp, torch.optim.SGD(ddp.parameters(), lr=0.1), dist.get_rank(), 0)
        backends.append((handle.explain()["exchange_backend"], id(handle._opened.sibling.group)))
        handle.close()
        del ddp, handle
    return backends


def test_exchange_group_is_reused_if_backend_fits(device):
    if device != "pretend":
        pytest.skip("Gloo serves the CPU beside NCCL")
    pool = start(device, 2)
    try:
        for found in pool.run(_by_turns, device=device):
            assert [backend for backend, _ in found] == ["pretend", "gloo", "pretend", "gloo"]
            assert found[:2] == found[2:] and found[0][1] != found[1][1]
    finally:
        pool.close()


def _of_no_named_backend():
    result = training.train("3lc", steps=4)
    ddp, handle, _ = training.build(dist.group.WORLD, "3lc")
    backend = handle.explain()["exchange_backend"]
    handle.close()
    return {**result, "backend": backend, "group's": dist.get_backend()}


def test_group_without_backend_exchanges_over_gloo(pools):
    """init_process_group() alone: Gloo for the CPU, something else for accelerators."""
    if not hasattr(torch, "accelerator"):
        pytest.skip("this torch wants a backend's name")
    pool = Ranks(2, backend=None)
    try:
        results = pool.run(_of_no_named_backend)
    finally:
        pool.close()
    assert same(results) == same(pools(2).run(training.train, spec="3lc", steps=4))
    assert {(r["group's"], r["backend"]) for r in results} == {("undefined", "gloo")}


SCRIPT = f"""
import json, sys
sys.path.insert(0, {str(Path(pretend.__file__).parent)!r})
import pretend
pretend.load()
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("pretend")
torch.manual_seed(0)
ddp = DistributedDataParallel(torch.nn.Linear(100, 100).to("pretend"))
for step in range(3):
    ddp.zero_grad()
    ddp(torch.full((4, 100), 1.0 + dist.get_rank(), device="pretend")).square().sum().backward()
import laconic
[handle] = laconic.handles()
explained = handle.explain()
print(json.dumps({{"sum": ddp.module.weight.grad.cpu().double().sum().item(), "path": explained.get("path", explained.get("reason")),
                  "threads": explained.get("threads")}}))
"""


@pytest.mark.parametrize("variables", [{}, {"LACONIC_DISABLE": "1"}])
def test_script_for_device_needs_no_change(device, tmp_path, variables):
    if device != "pretend":
        pytest.skip("the pretend device tells")
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    outcomes = launch(["-m", "laconic.run", "--spec", "int8", str(script)], tmp_path, LOCAL_WORLD_SIZE="1", **variables)
    assert [outcome.code for outcome in outcomes] == [0, 0], outcomes[0].err
    assert len({outcome.report["sum"] for outcome in outcomes}) == 1
    if variables:
        assert {outcome.report["path"] for outcome in outcomes} == {"LACONIC_DISABLE=1"}
    else:
        assert "pretend:0 staged through host memory" in outcomes[0].err
        threads = min(len(os.sched_getaffinity(0)), staging.MOST_THREADS)
        assert all(outcome.report["path"] == "staged" and outcome.report["threads"] == threads for outcome in outcomes)


def test_runner_takes_a_number_of_threads_or_auto(capsys):
    from laconic.run import _parse

    assert _parse(["train.py"]).threads == "auto" and _parse(["--threads", "auto", "train.py"]).threads == "auto"
    assert _parse(["--threads", "3", "train.py"]).threads == 3
    with pytest.raises(SystemExit):
        _parse(["--threads", "many", "train.py"])
    assert "many is not a whole number" in capsys.readouterr().err


def _of_doubles(device):
    torch.manual_seed(0)
    ddp = DistributedDataParallel(torch.nn.Linear(80, 80).double().to(device))
    handle = laconic.attach(ddp, "3lc", quiet=True)
    ddp(torch.full((4, 80), 1.0 + dist.get_rank(), dtype=torch.float64).to(device)).square().sum().backward()
    result = training.raw(ddp.module.weight.grad), handle.explain()["exchange_backend"]
    handle.close()
    return result


def test_model_without_compressible_parameters_works(staged, pools, device):
    """Its group sums it, on the device. A group that serves nothing else would not do for the exchange."""
    here, there = staged(2).run(_of_doubles, device=device), pools(2).run(_of_doubles, device="cpu")
    assert [gradient for gradient, _ in here] == [gradient for gradient, _ in there]
    assert {backend for _, backend in here} == {"gloo"}


def _shards(device, way, shape, specs):
    """Models of FSDP2, whose collectives and copies are late: the digests of this rank's shards, and what overlapped."""
    import sharding
    from torch.distributed.device_mesh import init_device_mesh

    late(device, 200, 200, 200)
    mesh, found = init_device_mesh(device, shape, mesh_dim_names=("replicate", "shard")), []
    for spec in specs:
        torch.manual_seed(7)
        model = sharding.sharded(sharding.Square().to(device), way, mesh)
        optimizer = sharding.sgd(model)
        with sharding.closing(sharding.attached(model, spec)) as handle:
            for step in range(3):
                optimizer.zero_grad()
                x, y = (t.to(device) for t in sharding.batch(step))
                torch.nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
            found += [[training.raw(p.detach().to_local().cpu()) for p in model.parameters()], handle.explain()["overlap"]["overlapped"]]
    late(device)
    return found


@pytest.mark.parametrize(("way", "shape"), [("2d", (2, 2)), ("replicate", (4, 1))])
def test_sharded_values_match_cpu(staged, pools, device, way, shape):
    pytest.importorskip("sharding", reason="this torch lacks names of FSDP2")
    if device != "pretend":
        pytest.skip("its ranks may share a GPU, where Gloo cannot reduce shards")
    run = {"way": way, "shape": shape, "specs": ["none", "3lc"]}
    here = staged(4).run(_shards, device=device, **run)
    assert here == pools(4).run(_shards, device="cpu", **run)
    assert here[0][1] == here[0][3] == 6 and (here[0][2] == here[1][2]) == (way == "replicate")


def _benchmark(device, spec):
    from bench.engines import gpu_training

    gpu_training.HIDDEN, gpu_training.WARM = (200,), 2
    return gpu_training.train(spec, 40, torch.device(device, torch.accelerator.current_device_index()))


@pytest.mark.parametrize("spec", ["pytorch:ddp", "3lc"])
def test_training_benchmark_runs(staged, device, spec):
    pytest.importorskip("sklearn", reason="bench/engines/gpu_training.py trains on scikit-learn's digits")
    for found in staged(2).run(_benchmark, device=device, spec=spec):
        assert found["same"] and found["accuracy"] > 0.3 and found["step_ms"] > 0
        assert (found["path"], found["ratio"] > 2) == (("staged", True) if spec == "3lc" else (None, False))


@pytest.mark.parametrize(("cpus", "variables", "devices", "threads"), [
    (16, {"LOCAL_WORLD_SIZE": "4"}, 1, 4), (64, {"LOCAL_WORLD_SIZE": "4"}, 4, 8), (2, {"LOCAL_WORLD_SIZE": "4"}, 4, 1),
    (16, {}, 8, 2), (16, {}, 0, 8), (16, {"LOCAL_WORLD_SIZE": "none"}, 4, 4), (12, {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, 8, 6)])
def test_threads_are_share_of_usable_cpus(monkeypatch, cpus, variables, devices, threads):
    for name in ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(staging.os, "sched_getaffinity", lambda pid: set(range(cpus)))
    assert staging.usable_threads(devices) == threads


def _refused(device, how):
    ddp = DistributedDataParallel(torch.nn.Linear(80, 80).to(device))
    if how == "mixed":
        ddp.module.bias.data = ddp.module.bias.data.to(f"{device}:1")
    kept = torch.accelerator, dist.is_gloo_available
    if how == "no Gloo" and dist.get_rank() == 0:
        dist.is_gloo_available = lambda: False
    if how == "no torch.accelerator":
        del torch.accelerator
    try:
        laconic.attach(ddp, "3lc")
    except laconic.LaconicError as error:
        return error.name, str(error)
    finally:
        torch.accelerator, dist.is_gloo_available = kept


@pytest.mark.parametrize(("how", "told"), [
    ("mixed", "parameter weight is on {0}:0, parameter bias on {0}:1"),
    ("no Gloo", "has no Gloo"),
    ("no torch.accelerator", "has no torch.accelerator (gradients on an accelerator need torch 2.6 or newer)")])
def test_unsupported_devices_are_refused_on_every_rank(staged, device, how, told):
    if device != "pretend":
        pytest.skip("the pretend device tells")
    results = staged(2).run(_refused, device=device, how=how)
    assert {name for name, _ in results} == {"ranks_disagree" if how == "no Gloo" else "unsupported"}
    assert all(told.format(device) in text for _, text in results)


def test_older_torch_names_missing_feature():
    if hasattr(torch, "accelerator"):
        pytest.skip("this torch has torch.accelerator")

    class Elsewhere:
        device = torch.device("cuda", 0)

    with pytest.raises(laconic.LaconicError, match="has no torch.accelerator") as refused:
        staging.stage_for([("weight", Elsewhere())])
    assert refused.value.name == "unsupported" and "2.6" in refused.value.hint
