# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Reports of a handle: where the time went, in figures and to torch's profiler; the line at start."""

from __future__ import annotations

import contextlib
import io
import json
import os
import time

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import training  # noqa: E402
from ranks import Ranks  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import laconic  # noqa: E402


class Slow:
    """An engine that takes its time."""

    def __init__(self, engine, seconds):
        self._engine, self._seconds = engine, seconds

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def wait(self, batch):
        time.sleep(self._seconds)
        self._engine.wait(batch)


def _timed(pause, steps, **options):
    """Counters of `steps` steps whose engine takes `pause` seconds a batch; what backward() took in all; batches."""
    ddp, handle, optimizer = training.build(dist.group.WORLD, "topk:ratio=0.05", buckets=2, coalesce=False, **options)
    for step in range(3):  # buckets have their places, lengths are known
        training.step_once(ddp, optimizer, dist.get_rank(), step)
    handle.worker._driver.table.engine = Slow(handle.worker.engine, pause)
    before, took = handle.stats(), 0.0
    for step in range(steps):
        x, y = training.batch(dist.get_rank(), step)
        loss = torch.nn.functional.cross_entropy(ddp(x), y)
        begin = time.perf_counter()
        loss.backward()
        took += time.perf_counter() - begin
    after = handle.stats()
    handle.close()
    return {key: after[key] - before[key] for key in ("queue_seconds", "backward_wait_seconds", "wire_seconds", "exchanges")}, took


def test_queue_and_backward_wait_measure_what_they_name(pools):
    """Two buckets of 50 ms each, submitted at once: one by one they wait 0 and 50 ms, backward() for all 100."""
    for counted, took in pools(2).run(_timed, pause=0.05, steps=3, attach_options={"window": 1}):
        assert counted["exchanges"] == 2 * 3
        assert counted["wire_seconds"] >= 6 * 0.05
        assert 0.7 * 3 * 0.05 < counted["queue_seconds"] < took
        assert 0.7 * counted["wire_seconds"] < counted["backward_wait_seconds"] < took


def _nothing_waits():
    """Plain sums count as no wait: the worker has no part in them."""
    ddp, handle, optimizer = training.build(dist.group.WORLD, "none", buckets=2)
    for step in range(3):
        training.step_once(ddp, optimizer, dist.get_rank(), step)
    stats = handle.stats()
    handle.close()
    return stats["queue_seconds"], stats["backward_wait_seconds"]


def test_plain_sums_are_not_counted_as_wait(pools):
    assert pools(2).run(_nothing_waits) == [(0.0, 0.0)] * 2


ALL_THREADS = "profile_all_threads"


def _profiled(all_threads):
    """Names and counts of our ranges in a profile of two steps, the longest of them in seconds, and the exchanges in it."""
    ddp, handle, optimizer = training.build(dist.group.WORLD, "3lc", buckets=2, attach_options={"strategy": "two_shot"}, coalesce=False)
    for step in range(3):
        training.step_once(ddp, optimizer, dist.get_rank(), step)
    handle.worker._driver.table.engine = Slow(handle.worker.engine, 0.02)
    options = {}
    if all_threads:
        options["experimental_config"] = torch._C._profiler._ExperimentalConfig(**{ALL_THREADS: True})
    before = handle.stats()["exchanges"]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], **options) as profile:
        for step in range(3, 5):
            training.step_once(ddp, optimizer, dist.get_rank(), step)
    exchanges = handle.stats()["exchanges"] - before
    handle.close()
    ours = {e.key: e for e in profile.key_averages() if e.key.startswith("laconic::")}
    return {key: e.count for key, e in ours.items()}, {key: e.cpu_time_total / 1e6 for key, e in ours.items()}, exchanges


def test_profiler_sees_every_exchange(pools):
    for counts, seconds, exchanges in pools(2).run(_profiled, all_threads=False):
        assert exchanges == 4 and counts["laconic::exchange"] == 4
        assert seconds["laconic::exchange"] > 4 * 2 * 0.02  # until the mean is here


@pytest.mark.skipif(ALL_THREADS not in (getattr(torch._C._profiler, "_ExperimentalConfig", int).__init__.__doc__ or ""),
                    reason="this PyTorch's profiler sees one thread")
def test_profile_of_all_threads_has_encode_wire_and_decode(pools):
    for counts, seconds, exchanges in pools(2).run(_profiled, all_threads=True):
        assert counts["laconic::encode"] == exchanges == 4
        assert counts["laconic::wire"] == counts["laconic::decode"] == 2 * exchanges  # there and back
        assert seconds["laconic::wire"] > 8 * 0.02 > seconds["laconic::encode"] + seconds["laconic::decode"]


def _profile_changes_nothing(profiled):
    context = torch.profiler.profile() if profiled else contextlib.nullcontext()
    with context:
        return training.train("3lc", steps=4, buckets=2)["hash"]


def test_profiling_changes_no_bit(pools):
    assert pools(2).run(_profile_changes_nothing, profiled=True) == pools(2).run(_profile_changes_nothing, profiled=False)


# ---- the start line, and who is awaited ----

def _start_line(spec="3lc", variables=(), size=80):
    heard = io.StringIO()
    os.environ.update(variables)
    try:
        with contextlib.redirect_stderr(heard):
            handle = laconic.attach(DistributedDataParallel(torch.nn.Linear(size, size)), spec)
        handle.close()
    finally:
        for name in dict(variables):
            del os.environ[name]
    return heard.getvalue()


def test_start_line_warns_if_one_machine_needs_no_compression(pools):
    said = pools(2).run(_start_line)
    assert said[1] == "" and said[0].count("\n") == 1
    assert said[0].rstrip().endswith("all ranks are on this machine, so compression cannot help: no network connects them")
    assert "this machine" not in pools(2).run(_start_line, variables=[("LACONIC_LAB", "50mbit")])[0]
    assert "this machine" not in pools(2).run(_start_line, spec="none")[0]


def _elsewhere():
    """Rank 1 is in another network."""
    from laconic.engines import hosts

    if dist.get_rank() == 1:
        hosts.place, kept = (lambda: "elsewhere"), hosts.place
    try:
        return _start_line()
    finally:
        if dist.get_rank() == 1:
            hosts.place = kept


def test_ranks_on_two_machines_get_no_such_warning(pools):
    said = pools(2).run(_elsewhere)
    assert "3lc on 1 of 2 tensors" in said[0] and "this machine" not in said[0]


def test_one_rank_is_informed_that_nothing_is_exchanged(pools):
    said, = pools(1).run(_start_line)
    assert said.rstrip().endswith("3lc: one rank has nothing to exchange: gradients stay as they are; gloo, 1 rank, cpu in place")


def _late(late, named_after, timeout, said):
    """Rank `late` attaches when another has said something, in file `said`, or never: what is said on each rank, and how it ended."""
    from laconic.core import environment
    from laconic.engines import group as groups

    group = dist.new_group(timeout=training.LONG_TIMEOUT)
    ddp = DistributedDataParallel(torch.nn.Linear(80, 80), process_group=group)
    training.waits(group, timeout)
    heard, groups.NAMED_AFTER, say = io.StringIO(), named_after, environment.say
    ended = "attached"

    def say_and_tell(*what):
        say(*what)
        if said is not None:
            said.touch()

    environment.say = say_and_tell
    dist.barrier()
    with contextlib.redirect_stderr(heard):
        try:
            if dist.get_rank() == late:
                if said is None:
                    return "absent", ""
                while not said.exists():
                    time.sleep(0.01)
            laconic.attach(ddp, "3lc", quiet=True).close()
        except laconic.LaconicError as error:
            ended = f"{error.name}: {error}"
    return ended, heard.getvalue()


@pytest.mark.parametrize("comes", [True, False])
def test_late_ranks_are_named_in_a_line(comes, tmp_path):
    ranks = Ranks(3)
    try:
        outcomes = ranks.run(_late, late=0, named_after=1.0, timeout=100 if comes else 15, said=tmp_path / "said" if comes else None)
    finally:
        ranks.close()
    awaited = "laconic: waiting for rank 0 to attach; the other ranks wait for at most "
    assert outcomes[1][1].startswith(awaited) and outcomes[1][1].count("\n") == 1 and outcomes[2][1] == ""
    if not comes:
        for ended, _ in outcomes[1:]:
            assert ended.startswith("timed_out: rank 0 did not attach within 15 s: is it running without laconic?")
    else:
        assert [ended for ended, _ in outcomes] == ["attached"] * 3


def test_rank_that_comes_at_the_timeout_is_there():
    """A wait of the store may time out while the last key arrives."""
    from laconic.engines import group as groups

    waits = []

    class Store:
        def wait(self, keys, timeout):
            waits.append(keys)
            raise dist.DistStoreError("wait timeout")

        def check(self, keys):
            return True

    groups._wait(Store(), {0: "a", 1: "b"}, 0, 100.0)
    assert waits == [["a", "b"]]


def test_documented_stats_keys_exist(pools):
    """docs/guide/pytorch.md has a row for each."""
    import re
    from pathlib import Path

    page = (Path(__file__).resolve().parents[2] / "docs" / "guide" / "pytorch.md").read_text(encoding="utf-8")
    stats, explained = pools(2).run(_told)[0]
    for heading, keys in (("### `stats()`", stats), ("### `explain()`", explained)):
        section = page.split(heading)[1].split("\n#")[0]
        documented = set(re.findall(r"^\| `(\w+)`", section, re.M))
        assert documented == set(keys), (heading, documented.symmetric_difference(keys))


def _told():
    ddp, handle, optimizer = training.build(dist.group.WORLD, "3lc")
    training.step_once(ddp, optimizer, dist.get_rank(), 0)
    told = handle.stats(), handle.explain()
    handle.close()
    return [sorted(json.loads(json.dumps(t))) for t in told]
