# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""state_dict, flush, set and load_state_dict from other threads, from inside of backward(), and in forked processes."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import training  # noqa: E402

import laconic  # noqa: E402
from laconic.ddp import steps, turns  # noqa: E402

SPEC = "topk:ratio=0.05"


def calls(handle) -> dict:
    """All that wants to see no step, or a whole one."""
    state = handle.state_dict()
    return {"state_dict": handle.state_dict, "flush": lambda: handle.flush(2), "set": lambda: handle.set("topk:ratio=0.1"),
            "load_state_dict": lambda: handle.load_state_dict(state), "gather_texts": lambda: handle.gather_texts("")}


def bits(state) -> dict:
    return {name: training.raw(values) for name, values in state["tensors"].items()}


def _built(steps=2, **options):
    ddp, handle, optimizer = training.build(dist.group.WORLD, SPEC, buckets=16, **options)
    for step in range(steps):
        training.step_once(ddp, optimizer, dist.get_rank(), step)
    return ddp, handle, optimizer


def _ended(ddp, handle, optimizer, first=3):
    """Trains on; what has come of parameters and residuals."""
    for step in range(first, 6):
        training.step_once(ddp, optimizer, dist.get_rank(), step)
    result = training.digest(ddp), bits(handle.state_dict()), handle.stats()["flush_steps_left"]
    handle.close()
    return result


def within(ddp, handle, where, what) -> None:
    """Calls what() once, inside of the next backward()."""
    on_bucket = handle.hook.on_bucket

    def of_a_bucket(bucket):
        handle.hook.on_bucket = on_bucket
        future = on_bucket(bucket)
        what()
        return future

    def of_a_tensor(gradient):
        removed.remove()
        if where == "callback":
            torch.autograd.Variable._execution_engine.queue_callback(what)
        elif where == "signal handler":
            kept = signal.signal(signal.SIGUSR1, lambda *_: what())
            signal.raise_signal(signal.SIGUSR1)
            signal.signal(signal.SIGUSR1, kept)
        else:
            what()
        return gradient

    if where == "hook of a bucket":
        handle.hook.on_bucket = of_a_bucket
    else:
        removed = list(ddp.parameters())[-1].register_hook(of_a_tensor)


def _from_within(where):
    ddp, handle, optimizer = _built()
    asked, said = calls(handle), {}

    def asks():
        for name, call in asked.items():
            try:
                call()
                said[name] = "answered"
            except laconic.LaconicError as error:
                said[name] = error.name

    if where is not None:
        within(ddp, handle, where, asks)
    training.step_once(ddp, optimizer, dist.get_rank(), 2)
    return said, _ended(ddp, handle, optimizer)


@pytest.mark.parametrize("where", ["hook of a bucket", "hook of a tensor", "callback", "signal handler"])
def test_calls_from_backward_are_refused_and_change_nothing(pools, where):
    undisturbed = pools(2).run(_from_within, where=None)
    for (_, usual), (said, ended) in zip(undisturbed, pools(2).run(_from_within, where=where, seconds=120)):
        assert said == dict.fromkeys(["state_dict", "flush", "set", "load_state_dict", "gather_texts"], "exchange_order")
        assert ended == usual


def _stands_still():
    """Rank 1 stands still within a step until rank 0, which waits for it, was made to save its state."""
    ddp, handle, optimizer = _built()
    store, rank, said = dist.distributed_c10d._get_default_store(), dist.get_rank(), []
    last = handle.state_dict()
    kept = signal.getsignal(signal.SIGTERM)

    def save(*_):
        try:
            said.append(handle.state_dict())
        except laconic.LaconicError as error:
            said.append((error.name, bits(last)))
        store.set("laconic tests/saved", "yes")

    if rank == 0:
        signal.signal(signal.SIGTERM, save)
        waits = handle.hook.at_end._deliver

        def waiting():
            threading.Thread(target=lambda: (time.sleep(0.2), os.kill(os.getpid(), signal.SIGTERM)), daemon=True).start()
            waits()

        handle.hook.at_end._deliver = waiting
    else:
        next(ddp.parameters()).register_hook(lambda gradient: store.wait(["laconic tests/saved"]) or gradient)
    training.step_once(ddp, optimizer, rank, 2)
    signal.signal(signal.SIGTERM, kept)
    return said, bits(last), handle.close()


def test_signal_handler_saves_last_state_while_peer_is_stalled(pools):
    (said, last, _), _ = pools(2).run(_stands_still, seconds=120)
    assert said == [("exchange_order", last)]


def _from_another_thread(name):
    """Rank 0's other thread calls within the third step: its result, and the state after that step."""
    ddp, handle, optimizer = _built()
    call, got, on_bucket, threads = calls(handle)[name], [], handle.hook.on_bucket, []

    def asks(bucket):
        future = on_bucket(bucket)
        if bucket.index() == 0 and not threads:
            threads.append(threading.Thread(target=lambda: got.append(call())))
            threads[0].start()
            while len(handle.steps._turns._asking) < 2:
                time.sleep(0.001)
        return future

    if name is not None and (dist.get_rank() == 0 or name == "set"):
        handle.hook.on_bucket = asks
    training.step_once(ddp, optimizer, dist.get_rank(), 2)
    for thread in threads:
        thread.join()
    handle.hook.on_bucket = on_bucket
    state = handle.state_dict()
    return got, bits(state), handle.explain()["spec"], _ended(ddp, handle, optimizer)[0]


@pytest.mark.parametrize("name", ["state_dict", "flush", "set"])
def test_calls_from_another_thread_wait_for_end_of_step(pools, name):
    results = pools(2).run(_from_another_thread, name=name, seconds=120)
    assert results[0][3] == results[1][3], "replicas differ"
    got, state, spec, _ = results[0]
    if name == "state_dict":
        assert got[0]["step"] == 3 and bits(got[0]) == state
    elif name == "flush":
        assert got == [5]
    else:
        assert spec == "topk:ratio=0.1"


def _again_and_again():
    """Another thread takes states while this one trains."""
    ddp, handle, optimizer = _built()
    taken, stop = [], threading.Event()

    def takes():
        while not stop.is_set():
            taken.append(handle.state_dict()["step"])

    thread = threading.Thread(target=takes)
    thread.start()
    for step in range(2, 12):
        training.step_once(ddp, optimizer, dist.get_rank(), step)
    stop.set()
    thread.join()
    return taken, training.digest(ddp), handle.close()


def test_states_are_repeatedly_read_from_another_thread(pools):
    (first, one, _), (second, other, _) = pools(2).run(_again_and_again, seconds=120)
    assert one == other
    for taken in (first, second):
        assert taken == sorted(taken) and len(set(taken)) > 2


def _never_ends(how):
    """A call of another thread in a step that does not end while it waits: its error."""
    ddp, handle, optimizer = _built()
    said, on_bucket, kept = [], handle.hook.on_bucket, steps.seconds
    steps.seconds = (lambda group: 0.2) if how == "in time" else kept

    def asks():
        try:
            said.append(sorted(handle.state_dict()))
        except laconic.LaconicError as error:
            said.append(error.name)

    def asked(bucket):
        if not said:
            handle.hook.on_bucket = on_bucket
            future = on_bucket(bucket)
            thread = threading.Thread(target=asks)
            thread.start()
            if how == "because the engine has failed":
                while len(handle.steps._turns._asking) < 2:
                    time.sleep(0.001)
                handle.worker.commands.between_jobs(lambda: handle.worker.exchanges.break_off(laconic.LaconicError(62, "engine_failed", "the test breaks it", "")))
            thread.join()
        return future

    handle.hook.on_bucket = asked
    try:
        training.step_once(ddp, optimizer, dist.get_rank(), 2)
    except RuntimeError as error:
        said.append("the test breaks it" in str(error))
    steps.seconds = kept
    return said, handle.close()


def test_unfinished_step_is_reported_to_another_thread(pools):
    for said, _ in pools(2).run(_never_ends, how="in time", seconds=120):
        assert said == ["timed_out"]
    for said, _ in pools(2).run(_never_ends, how="because the engine has failed", seconds=120):
        assert said == [["header", "layout", "step", "tensors", "version"], True]


def _forked():
    """The error in a child that was forked from this process."""
    ddp, handle, optimizer = _built()
    asked, (here, there) = calls(handle), os.pipe()
    child = os.fork()
    if child == 0:
        said = []
        for name, call in [*asked.items(), ("close", handle.close)]:
            try:
                said.append(f"{name} {call()}")
            except laconic.LaconicError as error:
                said.append(f"{name} {error.name} {'fork of the training' in error.message}")
        os.write(there, "\n".join(said).encode())
        os._exit(0)
    os.close(there)
    deadline = time.monotonic() + 60
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.01)
    said = os.read(here, 1 << 16).decode().splitlines()
    os.close(here)
    return said, _ended(ddp, handle, optimizer, first=2)[0]


def test_forked_process_is_answered_at_once(pools):
    (said, one), (again, other) = pools(2).run(_forked, seconds=200)
    assert said == again == [*(f"{name} unsupported True" for name in ("state_dict", "flush", "set", "load_state_dict", "gather_texts")),
                             "close None"]
    assert one == other


# ---- turns alone ----

def test_turns_follow_order_of_requests():
    order, of, held = [], turns.Turns(), threading.Event()

    def call(name):
        with of.call(name, 60, lambda: False):
            order.append(name)

    of.begin_step()
    threads = []
    for name in ("first", "second"):
        threads.append(threading.Thread(target=call, args=(name,)))
        threads[-1].start()
        while len(of._asking) < len(threads) + 1:
            held.wait(0.001)
    with pytest.raises(laconic.LaconicError, match="third was called during a step"):
        call("third")
    assert order == []
    of.end_step()
    of.begin_step()  # after those that had asked before
    order.append("step")
    of.end_step()
    for thread in threads:
        thread.join()
    call("third")
    assert order == ["first", "second", "step", "third"] and not of._asking


def test_step_aborted_by_signal_handler_leaves_no_trace():
    of, waits = turns.Turns(), threading.Event()

    def raises(*_):
        raise InterruptedError("told to")

    def call():
        with of.call("state_dict", 60, lambda: False):
            waits.wait(60)

    kept = signal.signal(signal.SIGUSR1, raises)
    other = threading.Thread(target=call)
    other.start()
    while not of._asking:
        time.sleep(0.001)

    def interrupt():
        while len(of._asking) < 2:
            time.sleep(0.001)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

    threading.Thread(target=interrupt).start()
    with pytest.raises(InterruptedError, match="told to"):
        of.begin_step()
    signal.signal(signal.SIGUSR1, kept)
    waits.set()
    other.join()
    assert not of._asking


def test_autograd_thread_trains_for_main_thread():
    """The same after backward() on an accelerator, whose hooks run in a thread that Python has not started."""
    import _thread

    of, begun = turns.Turns(), threading.Event()
    _thread.start_new_thread(lambda: (of.begin_step(), begun.set()), ())
    assert begun.wait(60)
    with pytest.raises(laconic.LaconicError, match="during a step"), of.call("state_dict", 60, lambda: False):
        pass
    of.end_step()
