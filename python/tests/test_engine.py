# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The torch engine: what Gloo can do, and that it changes no bit."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import training  # noqa: E402


def _train(spec, short):
    import torch.distributed as dist

    from laconic.engines.c10d import Engine

    original = Engine._probe_short_sends
    if not short:
        Engine._probe_short_sends = lambda self: False
    try:
        ddp, handle, optimizer = training.build(dist.group.WORLD, spec, width=96, buckets=1)
    finally:
        Engine._probe_short_sends = original
    for step in range(12):
        training.step_once(ddp, optimizer, dist.get_rank(), step)
    stats, used, digest = handle.stats(), handle.worker.engine.short_sends, training.digest(ddp)
    handle.close()
    return used, stats, digest


@pytest.mark.parametrize("spec", ["3lc", "sidco:ratio=0.05", "topk:ratio=0.05"])
def test_exact_lengths_change_no_bit_and_repeat_no_round(ranks, spec):
    exact = ranks.run(_train, spec=spec, short=True)
    granted = ranks.run(_train, spec=spec, short=False)
    assert {digest for _, _, digest in exact} == {digest for _, _, digest in granted}
    assert all(used for used, _, _ in exact) and not any(used for used, _, _ in granted)
    assert all(stats["overflow_repeats"] == 0 for _, stats, _ in exact)
    assert exact[0][1]["wire_bytes"] <= granted[0][1]["wire_bytes"]


def test_started_work_is_awaited_if_batch_cannot_start():
    """Collectives in flight write to the exchange's memory."""
    from laconic.engines.c10d import Engine

    class Work:
        waited = False

        def wait(self):
            self.waited = True

    class Half(Engine):
        def __init__(self):
            self.limiter, self.begun, self._under_way = None, Work(), set()

        def _start(self, step, works):
            if step == "second":
                raise ValueError("no")
            works.append(self.begun)
            return 0

    engine = Half()
    with pytest.raises(ValueError, match="no"):
        engine.run(["first", "second"], 2)
    assert engine.begun.waited


def _tags(spec):
    """Tags of all messages of three steps."""
    import torch.distributed as dist

    ddp, handle, optimizer = training.build(dist.group.WORLD, spec, buckets=16, attach_options={"strategy": "two_shot"}, coalesce=False)
    engine, tags = handle.worker.engine, []
    swap = engine._swap

    def recorded(sends, receives, tag, works):
        tags.append(tag)
        swap(sends, receives, tag, works)

    engine._swap = recorded
    for step in range(3):
        training.step_once(ddp, optimizer, dist.get_rank(), step)
    handle.close()
    return tags


def test_every_message_has_a_tag_of_its_own(pools):
    """Ranks count nothing themselves: after a failure they would count differently."""
    results = pools(3).run(_tags, spec="int8")
    assert all(tags == results[0] for tags in results)
    assert len(results[0]) > 12 and len(set(results[0])) == len(results[0])


def _apart(features, kind, ragged, short):
    """Runs one step whose parts lie apart, in another order than the ranks'; what arrived where, and what lay between."""
    import ctypes

    import torch.distributed as dist

    from laconic.core import _lib
    from laconic.engines.c10d import Engine

    with training.engine_without(*features):
        engine = Engine(dist.new_group())
    rank, world, room = engine.rank, engine.world, 16

    def size(source, target):
        return (3 + source if ragged else 5) + (target if ragged and kind == _lib.ALL_TO_ALL else 0)

    def numbers(values):
        return (ctypes.c_uint64 * world)(*values)

    offsets = [room * (world - 1 - r) + 2 for r in range(world)]
    send, recv = torch.zeros(room * world, dtype=torch.uint8), torch.full((room * world,), 99, dtype=torch.uint8)
    if kind == _lib.ALL_GATHER:
        send_offsets, send_counts = [0] * world, [size(rank, 0)] * world
        send[: send_counts[0]] = 10 * rank
    else:
        send_offsets, send_counts = offsets, [size(rank, r) for r in range(world)]
        for r in range(world):
            send[offsets[r] : offsets[r] + send_counts[r]] = 10 * rank + r
    recv_counts = [size(r, rank) for r in range(world)]
    arrays = [numbers(x) for x in (send_counts, recv_counts, send_offsets, offsets)]
    step = _lib.Step(kind=kind, dtype=_lib.U8, short_sends=int(short), send=send.data_ptr(), recv=recv.data_ptr(), tag=7,
                     send_bytes=send_counts[0] if kind == _lib.ALL_GATHER else sum(send_counts), recv_bytes=sum(recv_counts))
    step.send_counts, step.recv_counts, step.send_offsets, step.recv_offsets = arrays
    sent = engine.run([step], 1)
    expected = torch.full_like(recv, 99)
    for r in range(world):
        expected[offsets[r] : offsets[r] + recv_counts[r]] = 10 * r + (rank if kind == _lib.ALL_TO_ALL else 0)
    return bool(torch.equal(recv, expected)), sent == sum(send_counts) - send_counts[rank]


@pytest.mark.parametrize("features", [[], ["_probe_short_sends"], ["_probe_short_sends", "_probe_flat_gather"]])
@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("kind", [1, 2])
def test_parts_need_not_be_adjacent(pools, kind, ragged, features):
    """all_gather and all_to_all, as messages and as torch's collectives."""
    assert pools(3).run(_apart, features=features, kind=kind, ragged=ragged, short=not features) == [(True, True)] * 3


def _seconds_of_gathers():
    import time

    import torch.distributed as dist

    from laconic.engines.emulate import Limiter
    from laconic.engines.c10d import Engine

    class Noted(Limiter):
        def send(self, count):
            sent.append(count)
            return super().send(count)

    sent, found = [], []
    engine = Engine(dist.new_group(), limiter=Noted(8 * 20000.0))
    for size in (1, 2000):  # 4,000 bytes to two others, at 20 kB/s
        begin = time.perf_counter()
        gathered = engine.gather_bytes(bytes([dist.get_rank()]) * size)
        found.append((gathered == b"".join(bytes([r]) * size for r in range(3)), time.perf_counter() - begin))
    return found, sent


def test_gather_takes_its_time_on_emulated_link(pools):
    """The path of the values on which ranks agree."""
    for ((same, _), (also, slow)), sent in pools(3).run(_seconds_of_gathers):
        assert same and also and sent[-2:] == [2, 4000] and slow >= 0.15


def _ring(lengths):
    """Bytes to the next rank and from the one before; what arrived, and how many bytes left."""
    import torch.distributed as dist

    from laconic.core import _lib
    from laconic.engines.c10d import Engine

    engine = Engine(dist.new_group())
    rank, world = engine.rank, engine.world
    after, before = (rank + 1) % world, (rank - 1) % world
    send = torch.full((lengths[rank],), 10 + rank, dtype=torch.uint8)
    recv = torch.full((max(lengths),), 99, dtype=torch.uint8)
    room = max(lengths) if engine.short_sends and lengths[before] else lengths[before]
    listed = (_lib.Message * 2)(_lib.Message(peer=after, send=send.data_ptr(), send_bytes=lengths[rank]),
                                _lib.Message(peer=before, recv=recv.data_ptr(), recv_room=room))
    step = _lib.Step(kind=_lib.MESSAGES, dtype=_lib.U8, short_sends=1, messages=listed, message_count=2, tag=9)
    sent = engine.run([step], 1)
    return recv.tolist(), sent


@pytest.mark.parametrize("lengths", [[5, 3, 9], [4, 0, 7]])
def test_messages_reach_listed_ranks(pools, lengths):
    for rank, (arrived, sent) in enumerate(pools(3).run(_ring, lengths=lengths)):
        before = (rank - 1) % 3
        assert arrived == [10 + before] * lengths[before] + [99] * (max(lengths) - lengths[before])
        assert sent == lengths[rank]


@pytest.mark.parametrize("how", ["asks the store", "gives up on the store", "runs a batch"])
def test_process_exit_waits_for_thread_inside_torch(how, tmp_path):
    """One that comes back from torch while the interpreter goes away ends the process with SIGABRT."""
    program = f"""if True:
        import datetime
        import sys
        import time
        import torch.distributed as dist
        from laconic.core import background
        from laconic.engines import faults

        class GoesSlowly:  # with the interpreter
            def __del__(self, sleep=time.sleep):
                sleep(1)

        class Store:
            def add(self, key, amount):
                inner.wait(["nobody sets it"], datetime.timedelta(seconds=0.6))

        inner = dist.TCPStore("127.0.0.1", 0, 1, True)
        dist.init_process_group("gloo", init_method="file://{tmp_path}/meet", rank=0, world_size=1)
        of, calls = faults.Faults(dist.group.WORLD), background.Background("waits")
        of._store = Store()
        what = {{"asks the store": of.look, "gives up on the store": lambda: faults._within(0, of._told),
                "runs a batch": lambda: calls.begin(lambda: of._store.add("", 0))}}
        what["{how}"]()
        time.sleep(0.1)  # until the thread is inside torch
        sys.goes_slowly = GoesSlowly()
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr  # of which the store has its own


def test_process_exit_waits_for_backend_threads():
    """The last to drop a tensor wants the interpreter, and Gloo's threads end the process with SIGABRT if it is going away."""
    program = """if True:
        import atexit
        import os
        import threading
        import time
        atexit.register(lambda: os.write(1, b"end"))  # behind laconic's
        import torch
        import torch.distributed as dist
        from laconic.engines.c10d import Engine

        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        engine, ends, given = Engine(dist.group.WORLD), threading.Event(), []
        begin = dist.all_gather

        def all_gather(parts, own, **named):
            given.extend([*parts, own])
            return begin(parts, own, **named)

        def hold():  # as a thread of the backend that others keep from running
            ends.wait()
            time.sleep(0.3)
            os.write(1, b"let go, ")
            given.clear()

        dist.all_gather = all_gather
        engine.gather_bytes(b"x")
        threading.Thread(target=hold, daemon=True).start()
        atexit.register(ends.set)
        """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=280, check=False,
                          env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"})
    assert (done.returncode, done.stdout) == (0, "let go, end"), done.stderr


def test_process_exit_waits_for_thread_still_in_interpreter():
    """It has let go of a tensor or of a callback, and wants the interpreter once more: on a busy machine, long afterwards."""
    program = """if True:
        import atexit
        import ctypes
        import os
        import threading
        import time
        atexit.register(lambda: os.write(1, b"end"))  # behind laconic's
        import laconic.engines.c10d

        inside = threading.Event()

        @ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
        def lets_go(_):
            inside.set()
            time.sleep(0.5)
            os.write(1, b"out, ")

        thread = ctypes.c_ulong()
        ctypes.CDLL(None).pthread_create(ctypes.byref(thread), None, lets_go, None)
        inside.wait()
        """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=280, check=False)
    assert (done.returncode, done.stdout) == (0, "out, end"), done.stderr


def test_leaked_objects_outlive_interpreter():
    """Then a thread of the backend is not the last to hold it."""
    program = """if True:
        import atexit
        import os
        import weakref
        import torch

        held = [torch.ones(1)]
        seen = weakref.ref(held[0])

        def behind_laconics():
            held.clear()
            os.write(1, b"held" if seen() is not None else b"gone")

        atexit.register(behind_laconics)
        import laconic.engines.c10d
        laconic.engines.c10d._given.add(weakref.ref(held[0]))
        """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=280, check=False)
    assert (done.returncode, done.stdout) == (0, "held"), done.stderr


def test_process_exit_ignores_ended_threads(pools):
    """Of every kind of collective that the engine begins, empty ones among them. What an earlier test left in these processes, as a
    collective that it abandoned, does not count."""
    assert pools(2).run(_all_let_go) == [(0, 0), (0, 0)]


def _all_let_go():
    import ctypes
    import gc
    import time

    import torch.distributed as dist

    import laconic.engines.c10d
    from laconic.core import _lib
    from laconic.engines.c10d import Engine

    before = set(laconic.engines.c10d._given)
    ddp, handle, optimizer = training.build(dist.group.WORLD, "powersgd:rank=2")  # all-reduce
    training.step_once(ddp, optimizer, dist.get_rank(), 0)
    under_way = len(handle.worker.engine._under_way)
    handle.close()
    for short in (True, False):
        for kind in (1, 2):
            for ragged in (True, False):
                _apart([] if short else ["_probe_short_sends"], kind, ragged, short)
    room = torch.zeros(1, dtype=torch.uint8)
    step = _lib.Step(kind=_lib.ALL_GATHER, dtype=_lib.U8, send=room.data_ptr(), recv=room.data_ptr())
    step.recv_counts = step.recv_offsets = (ctypes.c_uint64 * dist.get_world_size())()
    Engine(dist.new_group()).run([step], 1)
    del ddp, handle, optimizer
    gc.collect()
    deadline = time.monotonic() + 100
    while laconic.engines.c10d._given - before and time.monotonic() < deadline:
        time.sleep(0.001)
    return under_way, len(laconic.engines.c10d._given - before)


def _policies():
    """This thread's scheduling policy, those of the threads that attach begins, and that of its worker, which begins
    after the group."""
    import os

    import torch.distributed as dist

    def tasks():
        return {int(task) for task in os.listdir("/proc/self/task")}

    group, before = dist.new_group(), tasks()
    ddp, handle, _ = training.build(group, "3lc")  # without ddp the worker would end
    begun, worker = tasks() - before, handle.worker.commands.thread.native_id
    own, found = os.sched_getscheduler(0), [os.sched_getscheduler(task) for task in begun - {worker}]
    of_worker = os.sched_getscheduler(worker)
    handle.close()
    del ddp
    return own, found, of_worker


def test_gloo_threads_take_no_core_from_others(pools):
    import os

    for own, found, of_worker in pools(2).run(_policies):
        assert own == os.SCHED_OTHER == of_worker
        assert found.count(os.SCHED_BATCH) >= 1


def _refused_policies():
    """A sandbox that allows nothing of the kind."""
    import os

    def refused(*_):
        raise PermissionError("the test's sandbox")

    kept, os.sched_setscheduler = os.sched_setscheduler, refused
    try:
        return _policies()
    finally:
        os.sched_setscheduler = kept


def test_sandbox_refusal_is_no_failure(pools):
    import os

    for own, found, _ in pools(2).run(_refused_policies):
        assert own == os.SCHED_OTHER and os.SCHED_BATCH not in found
