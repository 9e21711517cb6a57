# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""A rank that fails, and a rank that is gone: every other one hears of it in time, and nothing undelivered is lost."""

from __future__ import annotations

import pathlib
import time

import pytest

torch = pytest.importorskip("torch")

import training  # noqa: E402
from ranks import Ranks  # noqa: E402

import laconic  # noqa: E402

# spec, options: every strategy
STRATEGIES = {
    "native_sum": ("fp16", {}),
    "native_sum, two rounds": ("powersgd:rank=2", {}),
    "gather_all": ("topk:ratio=0.05", {}),
    "two_shot": ("3lc", {"strategy": "two_shot"}),
}


def _local_failure(driver):
    """The next bucket fails on this rank before it is exchanged, as if it had no memory."""
    submit = driver.submit

    def fails(*arguments, **keywords):
        driver.submit = submit
        return submit(*arguments, **{**keywords, "failure": laconic.LaconicError(101, "internal", "the test told this rank to fail",
                                                                                "stop telling it")})

    driver.submit = fails


def _fails(spec, victim, buckets=1, flush=False, resume=False, coalesce=True, **options):
    """Trains some steps, fails on `victim` in step 3, trains two more."""
    import torch.distributed as dist

    rank = dist.get_rank()
    ddp, handle, optimizer = training.build(dist.group.WORLD, spec, buckets=buckets, attach_options=options, coalesce=coalesce)
    for step in range(2 if flush else 3):
        training.step_once(ddp, optimizer, rank, step)
    if resume:
        state = handle.state_dict()
        handle.close()
        ddp, handle, optimizer = training.build(dist.group.WORLD, spec, buckets=buckets, attach_options=options, coalesce=coalesce)
        handle.load_state_dict(state)
    if flush:  # the step that fails is the first of three that drain
        handle.flush(3)
        training.step_once(ddp, optimizer, rank, 2)
    if rank == victim:
        _local_failure(handle.worker._driver)
    before = handle.stats()["residual_norm"]
    raised = None
    try:
        training.step_once(ddp, optimizer, rank, 3)
    except RuntimeError as error:
        raised = str(error)
    last, after = handle.last_error, handle.stats()["residual_norm"]
    for step in (4, 5):
        training.step_once(ddp, optimizer, rank, step)
    result = {"raised": raised, "last": last, "before": before, "after": after, "hash": training.digest(ddp),
              "failures": handle.stats()["failures"], "strategy": handle.explain()["strategy"]}
    handle.close()
    return result


def heard_by_all(results, rank):
    """Every rank's backward() raised the failing rank's message, with where it happened and what to do."""
    for r, result in enumerate(results):
        assert result["raised"] is not None, f"rank {r} noticed nothing"
        for word in (f"rank {rank} failed in bucket", "(internal)", "the test told this rank to fail", f"rank {r}, bucket ",
                     ".weight", "step 3"):
            assert word in result["raised"], result["raised"]
        error = result["last"]
        assert isinstance(error, laconic.LaconicError)
        assert (error.name, error.code) == (("internal", 101) if r == rank else ("peer_failed", 61))
        assert str(error) in result["raised"] and error.hint and error.hint in result["raised"]
        assert result["failures"] >= 1
    assert len({result["last"].message.partition("step 3: ")[2] for result in results}) == 1, "not the same message"


@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize("which", STRATEGIES)
def test_failure_of_one_rank_reaches_all(pools, which, victim):
    spec, options = STRATEGIES[which]
    results = pools(3).run(_fails, spec=spec, victim=victim, **options)
    heard_by_all(results, victim)
    assert {r["strategy"] for r in results} == {which.partition(",")[0]}
    assert len({r["hash"] for r in results}) == 1, "training after the failure went apart"


@pytest.mark.parametrize("coalesce", [True, False])
@pytest.mark.parametrize("which", STRATEGIES)
def test_failure_in_one_of_several_buckets_reaches_all(pools, which, coalesce):
    spec, options = STRATEGIES[which]
    results = pools(3).run(_fails, spec=spec, victim=1, buckets=4, coalesce=coalesce, **options)
    heard_by_all(results, 1)
    assert len({r["hash"] for r in results}) == 1


def _all_parts_fail():
    """Every part of the only bucket fails on rank 1: what backward() raised, and the last failure that the handle knows."""
    import torch.distributed as dist

    ddp, handle, optimizer = training.build(dist.group.WORLD, "3lc", attach_options={"part": 1})
    for step in range(2):
        training.step_once(ddp, optimizer, dist.get_rank(), step)
    submit = handle.worker._driver.submit
    if dist.get_rank() == 1:
        told = laconic.LaconicError(101, "internal", "the test told this rank to fail", "stop telling it")
        handle.worker._driver.submit = lambda *arguments, **keywords: submit(*arguments, **{**keywords, "failure": told})
    try:
        training.step_once(ddp, optimizer, dist.get_rank(), 2)
        raised = ""
    except RuntimeError as error:
        raised = str(error)
    result = raised, str(handle.last_error), handle.stats()["failures"]
    handle.close()
    return result


def test_first_of_several_failed_parts_is_reported(pools):
    for raised, last, failures in pools(2).run(_all_parts_fail):
        assert failures > 1 and last in raised


@pytest.mark.parametrize("spec", ["bf16", "powersgd:rank=2"])
def test_failure_in_first_step_after_resume_reaches_all(pools, spec):
    results = pools(3).run(_fails, spec=spec, victim=1, buckets=4, resume=True)
    heard_by_all(results, 1)


@pytest.mark.parametrize("spec", ["3lc", "powersgd:rank=2", "topk:ratio=0.05"])
def test_failure_during_flush_keeps_undelivered_values(pools, spec):
    results = pools(3).run(_fails, spec=spec, victim=1, flush=True)
    heard_by_all(results, 1)
    assert len({r["hash"] for r in results}) == 1
    assert all(r["after"] > 0 for r in results)


def _trains_on_after_close(spec):
    import torch.distributed as dist

    ddp, handle, optimizer = training.build(dist.group.WORLD, spec)
    training.step_once(ddp, optimizer, dist.get_rank(), 0)
    handle.close()
    handle.close()
    try:
        training.step_once(ddp, optimizer, dist.get_rank(), 1)
    except RuntimeError as error:
        return str(error)


@pytest.mark.parametrize("spec", ["3lc", "none"])
def test_closed_handle_reports_it_is_closed(pools, spec):
    for message in pools(2).run(_trains_on_after_close, spec=spec):
        assert message is not None and "handle is closed" in message and "attach again" in message


# ---- a rank that is gone ----

def _dies(spec, victim, call, signal, without=(), buckets=1, coalesce=True, timeout=None, **options):
    """Trains two steps; in the third, `victim` sends itself `signal` at its `call`-th collective (-1: before encoding). `timeout`:
    the group's timeout in the third."""
    import os

    import torch.distributed as dist

    rank, group = dist.get_rank(), dist.group.WORLD
    if timeout is not None:
        group = dist.new_group(timeout=training.LONG_TIMEOUT)
    with training.engine_without(*without):
        ddp, handle, optimizer = training.build(group, spec, buckets=buckets, attach_options=options, coalesce=coalesce)
    for step in range(2):
        training.step_once(ddp, optimizer, rank, step)

    gradients, calls = {}, []
    driver, engine = handle.worker._driver, handle.worker.engine
    submit, start, on_bucket = driver.submit, engine.start, handle.hook.on_bucket

    def recorded(bucket):
        names = {id(p): n for n, p in ddp.module.named_parameters()}
        for p, g in zip(bucket.parameters(), bucket.gradients()):
            gradients[names[id(p)]] = g.detach().clone().flatten()
        return on_bucket(bucket)

    def die():
        os.kill(os.getpid(), signal)
        time.sleep(600)  # another thread may take the signal

    def fatal_submit(*arguments, **keywords):
        if rank == victim and call == -1:
            die()
        return submit(*arguments, **keywords)

    def fatal_start(steps, count):
        if rank == victim and call == len(calls):
            die()
        calls.append(count)
        return start(steps, count)

    handle.hook.on_bucket, driver.submit, engine.start = recorded, fatal_submit, fatal_start
    if timeout is not None:
        set_timeout(handle, timeout)
    before = handle.state_dict()["tensors"]
    try:
        training.step_once(ddp, optimizer, rank, 2)
        return "noticed nothing"
    except RuntimeError as error:
        return {"raised": str(error), "last": handle.last_error, "calls": len(calls), "gradients": gradients,
                "before": before, "after": handle.state_dict()["tensors"]}


def set_timeout(handle, seconds):
    """From now on the collectives of a handle whose group has LONG_TIMEOUT have `seconds`."""
    from laconic.engines.group import group_timeout

    engine, timeout = handle.worker.engine, training.LONG_TIMEOUT
    assert group_timeout(engine.group) == timeout, "the sibling has the user's timeout"
    assert engine._faults.timeout == timeout.total_seconds()
    for group in (engine.group, handle.hook.sums.group):
        training.waits(group, seconds)
    engine._faults.timeout = seconds


def nothing_is_lost(result):
    """Every residual holds what it held and the gradient of the step that failed, bit for bit."""
    residuals = [name for name in result["before"] if name.startswith("residual/")]
    assert residuals
    for name in residuals:
        gradient = result["gradients"][name.partition("/")[2]]
        assert gradient.abs().sum() > 0
        assert torch.equal(result["after"][name], result["before"][name] + gradient), name
    for name in result["before"]:
        if name.startswith("owner_residual/"):  # the mean lives on in the senders: the owner's part is what it was
            torch.testing.assert_close(result["after"][name], result["before"][name], rtol=0, atol=1e-6)


# spec, options, the victim's collective (-1: before it encodes)
DEATHS = [("3lc", {"strategy": "two_shot"}, -1), ("3lc", {"strategy": "two_shot"}, 0), ("3lc", {"strategy": "two_shot"}, 1),
          ("3lc", {"strategy": "two_shot", "without": ["_probe_short_sends"]}, 1), ("topk:ratio=0.05", {}, 0),
          ("powersgd:rank=2", {}, 0), ("powersgd:rank=2", {}, 1),
          # In the step in which a law's change comes into force.
          ("topk:ratio=0.05", {"control": "schedule:0=0.05,2=0.3"}, 0),
          ("3lc", {"strategy": "two_shot", "control": "schedule:0=1,2=1.8"}, 1),
          ("powersgd:rank=2", {"control": "schedule:0=2,2=5"}, 1)]


@pytest.mark.parametrize(("spec", "options", "call"), DEATHS)
def test_killed_rank_loses_nothing_of_others(spec, options, call):
    import signal

    pool = Ranks(3)
    try:
        pool.start(_dies, spec=spec, victim=1, call=call, signal=signal.SIGKILL, **options)
        outcomes = pool.finish()
    finally:
        pool.close()
    assert outcomes[1][0] == "dead"
    for rank in (0, 2):
        kind, result = outcomes[rank]
        assert kind == "ok" and isinstance(result, dict), result
        assert result["calls"] == max(call, 0) + 1  # it failed where the victim did
        assert (result["last"].name, result["last"].code) == ("engine_failed", 62)
        assert str(result["last"]) in result["raised"] and f"rank {rank}, bucket 0 (" in result["raised"]
        assert "checkpoint" in result["last"].hint and "rank 1 is gone" in result["last"].message
        nothing_is_lost(result)


def _is_dead(pid) -> bool:
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):  # gone, or while it is read
        return True


def _dies_while_all_reduce(victim, begun):
    """`victim` dies in the third step: before its sum begins, or when it has begun everywhere but on rank 1."""
    import os
    import signal

    import torch.distributed as dist

    rank = dist.get_rank()
    ddp, handle, optimizer = training.build(dist.group.WORLD, "fp16+ef", attach_options={"strategy": "native_sum"})
    for step in range(2):
        training.step_once(ddp, optimizer, rank, step)
    store, gradients = dist.distributed_c10d._get_default_store(), {}
    engine, on_bucket = handle.worker.engine, handle.hook.on_bucket
    start = engine.start

    def recorded(bucket):
        names = {id(p): n for n, p in ddp.module.named_parameters()}
        for p, g in zip(bucket.parameters(), bucket.gradients()):
            gradients[names[id(p)]] = g.detach().clone().flatten()
        return on_bucket(bucket)

    def fatal(steps, count):
        if rank == 1 and begun:
            gone = int(store.get("begun"))  # blocks until then
            while not _is_dead(gone):  # alive it could still finish the sum
                time.sleep(0.01)
        batch = None if rank == victim and not begun else start(steps, count)
        if rank == victim:
            if begun:
                store.set("begun", str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)
        return batch

    handle.hook.on_bucket, engine.start = recorded, fatal
    before = handle.state_dict()["tensors"]
    try:
        training.step_once(ddp, optimizer, rank, 2)
        return "noticed nothing"
    except RuntimeError as error:
        return {"raised": str(error), "last": handle.last_error, "gradients": gradients, "before": before,
                "after": handle.state_dict()["tensors"]}


@pytest.mark.parametrize(("victim", "begun"), [(2, False), (2, True), (3, True), (0, False)])  # rank 0 hosts the store
def test_all_ranks_of_ring_learn_who_died(victim, begun):
    pool = Ranks(4, timeout=600)  # Gloo itself tells the others only then
    try:
        pool.start(_dies_while_all_reduce, victim=victim, begun=begun)
        outcomes = pool.finish()
    finally:
        pool.close()
    assert outcomes[victim][0] == "dead"
    for rank in {0, 1, 2, 3} - {victim}:
        kind, result = outcomes[rank]
        assert kind == "ok" and isinstance(result, dict), result
        assert f"rank {victim} is gone" in result["last"].message and str(result["last"]) in result["raised"]
        nothing_is_lost(result)


def _dies_in_a_message():
    """Rank 1 sends everybody a long message, and dies when a part of it is there. Gloo ends no wait for the rest."""
    import contextlib
    import ctypes
    import os
    import signal

    import torch.distributed as dist

    from laconic.core import _lib
    from laconic.engines.c10d import Engine
    from laconic.engines.group import Meeting, Sibling

    group = dist.group.WORLD
    engine = Engine(Sibling(group, Meeting(group, "")).group)
    pids = torch.frombuffer(bytearray(engine.gather_bytes(os.getpid().to_bytes(8, "little"))), dtype=torch.int64).tolist()
    data = torch.full((300_000_000,), engine.rank, dtype=torch.uint8)
    peers = [r for r in range(engine.world) if r != 1] if engine.rank == 1 else [1]
    sends = engine.rank == 1
    listed = (_lib.Message * len(peers))(*[
        _lib.Message(peer=peer, send=data.data_ptr() if sends else None, send_bytes=len(data) if sends else 0,
                     recv=None if sends else data.data_ptr(), recv_room=0 if sends else len(data)) for peer in peers])
    step = _lib.Step(kind=_lib.MESSAGES, dtype=_lib.U8, messages=listed, message_count=len(peers), tag=9)
    try:
        batch = engine.start(ctypes.pointer(step), 1)
        if engine.rank != 1:  # the first that has a part: on a busy machine the other would get all of it meanwhile
            while data[1_000_000] == engine.rank and not _is_dead(pids[1]):
                pass
            with contextlib.suppress(ProcessLookupError):
                os.kill(pids[1], signal.SIGKILL)
        engine.wait(batch)
        return "noticed nothing"
    except RuntimeError as error:
        data.fill_(77)
        try:
            engine.start(ctypes.pointer(step), 1)
            again = "began"
        except RuntimeError as same:
            again = str(same)
        return str(error), again, bool((data == 77).all())


def test_partial_message_is_given_up():
    pool = Ranks(3, timeout=600)
    try:
        pool.start(_dies_in_a_message)
        outcomes = pool.finish()
    finally:
        pool.close()
    for rank in (0, 2):
        kind, (message, again, untouched) = outcomes[rank]
        assert kind == "ok" and message.startswith("rank 1 is gone") and again == message and untouched, outcomes


def _is_heard():
    """Rank 0 hears of a failure, and looks at its connections while it writes that."""
    import torch.distributed as dist

    from laconic.engines.c10d import Engine

    world, engine = dist.group.WORLD, Engine(dist.new_group())
    faults, broken = engine._faults, []

    class Looks:
        def __init__(self, store):
            self.store = store

        def add(self, key, value):
            return self.store.add(key, value)

        def get(self, key):
            return self.store.get(key)

        def set(self, key, value):
            broken.append(faults.broken())
            self.store.set(key, value)
            broken.append(faults.broken())

    if engine.rank == 0:
        faults._store = Looks(faults._store)
        said = faults.heard(RuntimeError("it broke"), 0.0).message
        closed = faults.broken()
    dist.barrier(group=world)  # no other rank has closed a connection before
    if engine.rank != 0:
        said, closed = faults.heard(RuntimeError("a connection was closed"), 0.0).message, faults.broken()
    dist.barrier(group=world)
    return said, closed, broken


def test_failure_is_recorded_before_its_connections_close(pools):
    """Ranks whose waits end because another closes its connections find the first failure, not that one's end."""
    results = pools(3).run(_is_heard)
    assert [said for said, _, _ in results] == ["rank 0: RuntimeError: it broke"] * 3
    assert [closed for _, closed, _ in results] == [[1, 2], [0, 2], [0, 1]]
    assert results[0][2] == [[], []]


def test_rank_without_memory_for_a_thread_is_heard(monkeypatch):
    from laconic.engines import faults

    def no_thread(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(faults.threads, "start", no_thread)
    assert faults._within(0.5, lambda: "told") == ("told", False)


def test_slow_store_still_tells_the_first_failure():
    from laconic.engines.faults import Faults

    class Slow:
        def add(self, _key, count):
            time.sleep(1)
            return 1 + count

        def get(self, _key):
            return b"rank 3 is gone"

    faults = Faults.__new__(Faults)
    faults.known, faults.world, faults.rank, faults.timeout, faults._store, faults._names = None, 1, 0, 60.0, Slow(), [0]
    assert faults.heard(RuntimeError("connection closed by peer"), 0.0).message == "rank 3 is gone"


def test_rank_whose_connection_breaks_late_is_named():
    """A group of the node's accelerators noticed first."""
    from laconic.engines.faults import Faults

    class Group:
        tries = 0

        def recv(self, _tensors, peer, _tag):
            self.tries += 1
            if self.tries > 6 and peer == 1:
                raise RuntimeError("connection closed by peer")
            return "work"

    faults = Faults.__new__(Faults)
    faults.known, faults.world, faults.rank, faults.timeout, faults._store, faults._names, faults.group = None, 3, 0, 60.0, None, [0, 1, 2], Group()
    assert faults._agreed(RuntimeError("connection reset by peer"), 0.0, None) == "rank 1 is gone"


def test_all_connections_close_even_if_one_breaks():
    """Rank 0 closes its own after rank 2 has looked and before it waits: that closes no other."""
    from laconic.engines.faults import Faults

    waited = []

    class Work:
        def __init__(self, peer):
            self.peer = peer

        def wait(self, _timeout):
            waited.append(self.peer)
            raise RuntimeError("connection closed by peer" if self.peer == 0 else "timed out")

    class Group:
        def recv(self, _tensors, peer, _tag):
            if 1 in waited:
                raise RuntimeError("all have been closed")
            return Work(peer)

    faults = Faults.__new__(Faults)
    faults.world, faults.rank, faults.group = 4, 2, Group()
    faults._tear_down()
    assert waited == [0, 1] and faults.broken() == [0, 1, 3]


def test_hanging_rank_is_noticed_within_group_timeout():
    import signal

    pool = Ranks(2)
    try:
        pool.start(_dies, spec="topk:ratio=0.05", victim=1, call=0, signal=signal.SIGSTOP, timeout=4)
        kind, result = pool._receive(0, 120)
        assert kind == "ok" and result["last"].name == "engine_failed", result
        assert "rank 1 did not answer within 4 s" in result["last"].message
        nothing_is_lost(result)
    finally:
        pool.kill(1)
        pool.close()


def _hangs_with_short_timeout(spec):
    """The group's timeout becomes 5 s, and rank 1 stands still in the step after that; returns what rank 0 reports."""
    import datetime
    import os
    import signal

    import torch.distributed as dist

    from laconic.engines.group import group_timeout

    rank = dist.get_rank()
    ddp, handle, optimizer = training.build(dist.group.WORLD, spec)
    timeout = group_timeout(handle.worker.engine.group).total_seconds()
    for step in range(2):
        training.step_once(ddp, optimizer, rank, step)
    dist.barrier()
    dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=5), dist.group.WORLD)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    try:
        training.step_once(ddp, optimizer, rank, 2)
        return "noticed nothing"
    except RuntimeError:
        return timeout, group_timeout(handle.worker.engine.group).total_seconds(), handle.last_error.message


@pytest.mark.parametrize(("spec", "told"), [("topk:ratio=0.05", "rank 1 did not answer"), ("fp16+ef", "a collective did not complete")])
def test_timeout_changed_after_attach_applies(spec, told):
    pool = Ranks(2, timeout=600)
    try:
        pool.start(_hangs_with_short_timeout, spec=spec)
        kind, result = pool._receive(0, 120)
        assert kind == "ok" and result[:2] == (600, 5), result
        assert f"{told} within 5 s" in result[2]
    finally:
        pool.kill(1)
        pool.close()


def _attached_again():
    """The timeouts of a sibling that is used again, which its group's was changed before; and of its engine."""
    import datetime

    import torch.distributed as dist

    from laconic.engines.group import group_timeout

    group, found = dist.new_group(timeout=datetime.timedelta(seconds=200)), []
    for seconds in (200, 300):
        dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=seconds), group)
        ddp, handle, optimizer = training.build(group, "topk:ratio=0.05")
        engine = handle.worker.engine
        found += [group_timeout(engine.group).total_seconds(), engine.timeout, engine._faults.timeout, handle._opened.sibling.number]
        handle.close()
    return found


def test_reused_sibling_group_has_current_timeout(pools):
    for found in pools(2).run(_attached_again):
        assert found == [200, 200, 200, found[3], 300, 300, 300, found[3]]


def _attached_to_one_that_does_not_tell():
    import datetime

    import torch.distributed as dist

    from laconic.engines.c10d import Engine

    engine = Engine(dist.new_group(timeout=datetime.timedelta(seconds=200)), of=object())
    engine.follow_timeout()
    return engine.timeout, engine._faults.timeout


def test_own_timeout_holds_where_users_group_does_not_tell(pools):
    assert pools(2).run(_attached_to_one_that_does_not_tell) == [(200, 200)] * 2


# ---- an engine that fails ----

class FailingEngine:
    """Fails at its `at`-th batch from now on: before the collectives, or after them (their results are thrown away)."""

    abandoned = False

    def __init__(self, engine, at, late):
        self.engine, self.at, self.late, self.calls = engine, at, late, 0

    def start(self, steps, count):
        self.calls += 1
        if self.calls - 1 != self.at:
            return self.engine.start(steps, count)
        if self.late:
            self.engine.run(steps, count)
        raise OSError("the test pulled the plug")

    def wait(self, batch):
        self.engine.wait(batch)

    def settle(self, batch):
        self.engine.settle(batch)


def _engine_fails(spec, victims, at, late, timeout=2, coalesce=False, **options):
    """Two steps, one whose engine fails on `victims` at batch `at`, one more on the broken handle."""
    import datetime

    import torch.distributed as dist

    rank = dist.get_rank()
    group = dist.new_group(timeout=datetime.timedelta(seconds=timeout))
    ddp, handle, optimizer = training.build(group, spec, buckets=16, attach_options=options, coalesce=coalesce)
    for step in range(2):
        training.step_once(ddp, optimizer, rank, step)
    gradients, buckets, on_bucket = {}, [], handle.hook.on_bucket
    names = {id(p): n for n, p in ddp.module.named_parameters()}

    def recorded(bucket):
        buckets.append([names[id(p)] for p in bucket.parameters()])
        for p, g in zip(bucket.parameters(), bucket.gradients()):
            gradients[names[id(p)]] = g.detach().clone().flatten()
        return on_bucket(bucket)

    handle.hook.on_bucket = recorded
    if rank in victims:
        handle.worker._driver.table.engine = FailingEngine(handle.worker.engine, at, late)
    before = handle.state_dict()["tensors"]
    try:
        training.step_once(ddp, optimizer, rank, 2)
        raised = None
    except RuntimeError as error:
        raised = str(error)
    result = {"before": before, "after": handle.state_dict()["tensors"], "gradients": dict(gradients), "buckets": list(buckets),
              "calls": getattr(handle.worker.engine, "calls", None), "raised": raised, "last": handle.last_error}
    if raised:
        handle.worker._driver.table.engine = FailingEngine(None, 0, False)
        try:
            training.step_once(ddp, optimizer, rank, 3)
            result["again"] = None
        except RuntimeError as error:
            result["again"] = str(error)
        result["asked"] = handle.worker.engine.calls
    handle.close()
    return result


def broke_off(result, rank):
    """backward() raised, the failure names its bucket, and later buckets also failed without the engine."""
    error = result["last"]
    assert (error.code, error.name) == (62, "engine_failed") and str(error) in result["raised"]
    assert f"rank {rank}, bucket " in error.message and "step 2: " in error.message
    assert str(error) in result["again"] and result["asked"] == 0, "a broken handle went on"
    failed = int(error.message.partition(", bucket ")[2].split()[0])
    assert len(result["buckets"]) == 3
    for bucket, names in enumerate(result["buckets"]):
        for name in names:
            residual = result["after"].get(f"residual/{name}")
            if residual is None or bucket < failed:
                continue
            expected = result["before"][f"residual/{name}"] + result["gradients"][name]
            if bucket <= failed + 3:  # may have been encoded, and was put back
                torch.testing.assert_close(residual, expected, rtol=1e-6, atol=1e-6)
            else:
                assert torch.equal(residual, expected), name


INJECTED = {
    "native_sum": ("randomk:ratio=0.05", {}),
    "native_sum, two rounds": ("powersgd:rank=2", {}),
    "gather_all": ("topk:ratio=0.05", {}),
    "two_shot": ("int8+ef", {"strategy": "two_shot"}),
    "two_shot-in-flight": ("int8+ef", {"strategy": "two_shot", "window": 4}),
    "gather_all, coalesced": ("topk:ratio=0.05", {"coalesce": True}),
    "two_shot, coalesced": ("int8+ef", {"strategy": "two_shot", "coalesce": True}),
}


@pytest.mark.parametrize(("which", "victims", "late"), [
    *((which, victims, False) for which in INJECTED for victims in ([1], [0, 1, 2])), ("two_shot", [0], True)])
def test_engine_failure_at_any_batch_loses_nothing(pools, which, victims, late):
    """Every rank ends with a message, none by a signal, none in a wait that has no end."""
    spec, options = INJECTED[which]
    pool, batches = pools(3), (2 if "two" in which else 1) * (1 if "coalesced" in which else 3)
    for at in range(batches + 1):
        pool.start(_engine_fails, spec=spec, victims=victims, at=at, late=late, **options)
        outcomes = pool.finish()
        assert [kind for kind, _ in outcomes] == ["ok"] * 3, outcomes
        results = [result for _, result in outcomes]
        for rank, result in enumerate(results):
            if rank in victims:
                assert result["calls"] == min(at + 1, batches)
            if at < batches and (rank in victims or not late or at + 1 < batches):  # the last batch may have served the others
                broke_off(result, rank)
                assert ("the test pulled the plug" in result["raised"]) == (rank in victims)
        if at == batches:
            assert all(result["raised"] is None for result in results)


@pytest.mark.parametrize("call", [0, 2, 3])
def test_killed_rank_ends_no_other_by_signal(call):
    import signal

    pool = Ranks(3)
    try:
        pool.start(_dies, spec="int8", victim=1, call=call, signal=signal.SIGKILL, strategy="two_shot", buckets=16,
                   coalesce=False)
        outcomes = pool.finish()
    finally:
        pool.close()
    assert [kind for kind, _ in outcomes] == ["ok", "dead", "ok"]
    for rank in (0, 2):
        assert outcomes[rank][1]["last"].name == "engine_failed"


def _sums_fail(spec, at_end):
    """The first bucket's plain all-reduce fails; what the step and the next one ask of the group, and in how many buckets."""
    import torch.distributed as dist

    from laconic.ddp import hook as front

    class Group:
        """A process group whose all-reduce fails."""

        calls = 0

        def allreduce(self, buffers):
            self.calls += 1
            return type("Work", (), {"wait": self.wait, "get_future": self.future})()

        @staticmethod
        def wait(_work):
            raise RuntimeError("the test pulled the plug")

        @staticmethod
        def future(_work):
            failed = torch.futures.Future()
            failed.set_exception(RuntimeError("the test pulled the plug"))
            return failed

    ddp, handle, optimizer = training.build(dist.group.WORLD, spec, buckets=16)
    for step in range(2):
        training.step_once(ddp, optimizer, dist.get_rank(), step)
    handle.hook.sums.group, raised, calls, kept = Group(), [], [], front.AT_END
    handle.worker._driver.table.engine = FailingEngine(None, 0, False)  # later buckets may not go to the worker's group instead
    front.AT_END = kept if at_end else -1
    for step in (2, 3):
        try:
            training.step_once(ddp, optimizer, dist.get_rank(), step)
        except RuntimeError as error:
            raised.append(str(error))
        calls.append(handle.hook.sums.group.calls + handle.worker.engine.calls)
    front.AT_END = kept
    result = calls, raised, handle.last_error
    handle.close()
    return result


@pytest.mark.parametrize("at_end", [False, True])
def test_failed_all_reduce_of_plain_bucket_breaks_handle(pools, at_end):
    """With means that are set at the end of backward(), the failure is raised there: the step's three buckets have been
    sent."""
    for calls, raised, error in pools(2).run(_sums_fail, spec="none", at_end=at_end):
        assert calls == ([3, 3] if at_end else [1, 1])
        assert len(raised) == 2 and all(str(error) in text for text in raised)
        assert error.name == "engine_failed" and "an uncompressed bucket (last.bias, last.weight), step 2" in error.message


# ---- a residual that is not finite ----

def _poisoned_residual(ask):
    """Lines that this rank logs when rank 1's residual turned infinite, with counters requested or not."""
    import contextlib
    import ctypes
    import io

    import torch.distributed as dist

    from laconic.exchange import worker

    heard, rank, kept = io.StringIO(), dist.get_rank(), worker.LOOK_EVERY
    worker.LOOK_EVERY = 4 if ask == "never" else kept
    with contextlib.redirect_stderr(heard):
        ddp, handle, optimizer = training.build(dist.group.WORLD, "topk:ratio=0.05")
        for step in range(2):
            training.step_once(ddp, optimizer, rank, step)
        for name, address, _ in handle.worker.session.entries():
            if rank == 1 and name == "residual/hidden.weight":
                ctypes.c_float.from_address(address).value = float("inf")
        for step in range(2, 5):
            training.step_once(ddp, optimizer, rank, step)
            if ask == "stats":
                handle.stats()
        if ask == "state":
            handle.state_dict()
        if ask == "never":
            handle.worker.commands.between_jobs(lambda: None)  # the check comes after the jobs
        lines = heard.getvalue().splitlines()
        handle.close()
    worker.LOOK_EVERY = kept
    return lines, heard.getvalue().splitlines(), training.digest(ddp)


@pytest.mark.parametrize("ask", ["stats", "state", "never", "close"])
def test_reset_residual_is_reported_once(pools, ask):
    results = pools(2).run(_poisoned_residual, ask=ask)
    assert len({hash_ for _, _, hash_ in results}) == 1
    (nothing, _, _), (before_close, lines, _) = results
    assert nothing == [] and len(lines) == 1 and (before_close == lines) == (ask != "close")
    assert "rank 1: a residual was not finite" in lines[0] and "residual_resets" in lines[0]
