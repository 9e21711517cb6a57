# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Which thread gives DDP its means, and which threads a step wakes."""

from __future__ import annotations

import threading

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import training  # noqa: E402

from laconic.exchange.delivery import EndOfBackward  # noqa: E402


def test_values_arrive_before_ddp_asks_and_last_is_awaited_first():
    told, end = [], EndOfBackward()

    class Delivery:
        def __init__(self, name):
            self.name = name

        def wait(self):
            told.append(f"{self.name} waited for")

        def deliver(self):
            told.append(self.name)

    def hook(gradient):
        for name in ("first", "last"):
            end.add(Delivery(name))
        end.queue()
        torch.autograd.Variable._execution_engine.queue_callback(lambda: told.append("ddp"))  # as its reducer does
        return gradient

    x = torch.ones(3, requires_grad=True)
    x.register_hook(hook)
    for _ in range(2):
        x.sum().backward()
    assert told == ["last waited for", "first waited for", "first", "last", "ddp"] * 2


def test_delivery_outside_of_backward_is_immediate():
    told, end = [], EndOfBackward()
    end.add(type("Delivery", (), {"wait": lambda self: told.append("wait"), "deliver": lambda self: told.append("deliver")})())
    end.queue()
    end.queue()
    assert told == ["wait", "deliver"]


def _threads_of_means(spec, steps, width=600, buckets=200):
    """Of every bucket whether it is long, its step's last, whether its mean waits for the end of backward(), and whether the thread
    that runs backward() gave it; how often the worker was woken."""
    ddp, handle, optimizer = training.build(dist.group.WORLD, spec, width=width, buckets=buckets)
    for step in range(4):  # DDP rebuilds its buckets, and the old ones are let go of
        training.step_once(ddp, optimizer, dist.get_rank(), step)
    on_bucket, own, put = handle.hook.on_bucket, threading.get_ident(), handle.worker.commands._lane.put
    given_to, woken = [], []

    def noted(bucket):
        size, last, waiting = bucket.buffer().numel() * 4, bucket.is_last(), len(handle.hook.at_end._deliveries)
        future = on_bucket(bucket)
        seen = [size > 1 << 20, last, len(handle.hook.at_end._deliveries) == waiting + 1]
        given_to.append(seen)

        def given(future):
            seen.append(threading.get_ident() == own)
            return future.value()

        return future.then(given)

    handle.hook.on_bucket = noted
    handle.worker.commands._lane.put = lambda task: (woken.append(task), put(task))
    for step in range(4, 4 + steps):
        training.step_once(ddp, optimizer, dist.get_rank(), step)
    times = len(woken)
    handle.close()
    return given_to, times


def _steps(pools, **options) -> list:
    """[is long, is last, waits] of the buckets of a step, in their order."""
    first, second = (given_to for given_to, _ in pools(2).run(_threads_of_means, steps=3, **options))
    for given_to in (first, second):
        assert all(by_backward for _, _, waits, by_backward in given_to if waits)  # others may be there before anybody asks
    kinds = [bucket[:3] for bucket in first]
    assert kinds == [bucket[:3] for bucket in second] and kinds == kinds[: len(kinds) // 3] * 3
    return kinds[: len(kinds) // 3]


@pytest.mark.parametrize("spec", ["none", "3lc"])
def test_small_buckets_are_delivered_in_waiting_thread(pools, spec):
    """Up to the first long one, which DDP copies while later ones are in flight; a last one has none after it."""
    small_ones = _steps(pools, spec=spec, width=48, buckets=200)
    assert len(small_ones) >= 3 and all(waits and not is_long for is_long, _, waits in small_ones)
    assert _steps(pools, spec=spec) == [[False, False, True], [True, False, False], [False, True, False]]
    assert _steps(pools, spec=spec, width=600, buckets=1) == [[True, True, True]]


def _callbacks_lent():
    """How many callbacks of a step, whose buckets PyTorch sums, the group's thread is to call."""
    from laconic.ddp import hook as front

    kept, lent = (front.AT_END, front.lend), []
    front.AT_END, front.lend = -1, lambda callback: (lent.append(None), kept[1](callback))
    ddp, handle, optimizer = training.build(dist.group.WORLD, "none", buckets=200)
    for step in range(3):
        lent.clear()
        training.step_once(ddp, optimizer, dist.get_rank(), step)
    front.AT_END, front.lend = kept
    handle.close()
    return len(lent)


def test_process_exit_waits_for_group_callbacks(pools):
    assert min(pools(2).run(_callbacks_lent)) >= 2


def test_step_without_exchange_wakes_no_thread(pools):
    for buckets, woken in pools(2).run(_threads_of_means, spec="none", steps=3):
        assert buckets and woken == 0
    for buckets, woken in pools(2).run(_threads_of_means, spec="3lc", steps=3):
        assert woken == len(buckets) + 3  # and the ends of steps
