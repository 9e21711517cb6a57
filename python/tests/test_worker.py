# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The worker's thread with a task that raises, and with a loss scale that residuals cannot follow."""

from __future__ import annotations

import contextlib
import io
import math

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import training  # noqa: E402
from ranks import Ranks  # noqa: E402

import laconic  # noqa: E402
from laconic.ddp import hook as front  # noqa: E402
from laconic.exchange import worker as of_worker  # noqa: E402


# ---- loss scales ----

class Scaler:
    """Attach's requirements on a GradScaler."""

    scale = 1024.0

    def is_enabled(self):
        return True

    def get_scale(self):
        return self.scale


def _scaled(scales, losses, spec):
    """Trains with these loss scales and factors of the loss: states, what was said, and the counter."""
    scaler, rank, heard = Scaler(), dist.get_rank(), io.StringIO()
    with contextlib.redirect_stderr(heard):
        ddp, handle, _ = training.build(dist.group.WORLD, spec, attach_options={"scaler": scaler})
        states = []
        for step, (scaler.scale, factor) in enumerate(zip(scales, losses)):
            ddp.zero_grad()
            x, y = training.batch(rank, step)
            (torch.nn.functional.cross_entropy(ddp(x), y) * factor).backward()
            tensors = handle.state_dict()["tensors"]
            states.append({name: training.raw(values) for name, values in tensors.items()})
    counted = handle.stats()["scales_ignored"]
    handle.close()
    return states, heard.getvalue().splitlines(), counted


@pytest.mark.parametrize("spec", ["topk:ratio=0.05", "powersgd:rank=2"])
@pytest.mark.parametrize(("scale", "factor"), [(0.0, 0.0), (math.nan, math.nan), (math.inf, math.inf), (-2.0, -2.0), (1e60, 1.0), (1e-60, 1.0)])
def test_loss_scale_that_residuals_cannot_follow_keeps_them(pools, spec, scale, factor):
    losses = [1024.0, 1024.0, factor, factor, 1024.0, 2048.0]
    plain = pools(2).run(_scaled, spec=spec, scales=[1024.0] * 5 + [2048.0], losses=losses, seconds=90)
    results = pools(2).run(_scaled, spec=spec, scales=[1024.0, 1024.0, scale, scale, 1024.0, 2048.0], losses=losses, seconds=90)
    for (usual, nothing, none), (states, said, counted) in zip(plain, results):
        assert states == usual and (nothing, none) == ([], 0)
        assert counted == 1 and len(said) == 1 and "cannot follow the loss scale from 1024 to" in said[0]


def _diverged(spec):
    """torch's own scaler on a loss that stays infinite."""
    scaler = torch.amp.GradScaler("cpu", init_scale=65536.0, backoff_factor=2.0**-40)
    ddp, handle, optimizer = training.build(dist.group.WORLD, spec, attach_options={"scaler": scaler} if spec else None)
    before, scales = training.digest(ddp), []
    for step in range(7):
        optimizer.zero_grad()
        x, y = training.batch(dist.get_rank(), step)
        scaler.scale(torch.nn.functional.cross_entropy(ddp(x), y) * math.inf).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    if handle is not None:
        handle.close()
    return scales, training.digest(ddp) == before


def test_zero_loss_scale_continues_as_in_plain_ddp(pools):
    plain = pools(2).run(_diverged, spec=None, seconds=90)
    assert plain[0][0][-1] == 0.0 and pools(2).run(_diverged, spec="topk:ratio=0.05", seconds=90) == plain


# ---- a task that raises ----

class Unexpected(BaseException):
    """An error of an unknown kind."""


RAISED = [RuntimeError("told to"), ValueError("told to"), MemoryError("told to"), KeyboardInterrupt("told to"), SystemExit("told to"),
          Unexpected("told to"), laconic.LaconicError(1, "invalid_argument", "told to", "")]
TASKS = ["exchanges._fetch", "exchanges.end_step", "_reports.look", "stage.ready", "stage.deliver", "session.entries", "_driver.submit", "_driver.finish",
         "_driver._ended_call", "engine.start", "engine.wait"]


def _raises_once(task, error):
    """Rank 1's `task` raises in the third step. What all ranks hear, when they go on too, and what is left of the handle."""
    rank, said = dist.get_rank(), []
    ddp, handle, optimizer = training.build(dist.group.WORLD, "topk:ratio=0.05", buckets=3)
    worker, kept = handle.worker, (of_worker.LOOK_EVERY, front.AT_END)
    of_worker.LOOK_EVERY, front.AT_END = 1, -1  # the worker's thread sets every future
    for step in range(2):
        training.step_once(ddp, optimizer, rank, step)
    owner, _, name = task.rpartition(".")
    owner = getattr(worker, owner)
    usual = getattr(owner, name)

    def once(*arguments, **named):
        setattr(owner, name, usual)
        raise error

    if rank == 1:
        setattr(owner, name, once)
    if rank == 1 and name == "entries":
        worker._queue(worker._state_dict)
    for step in range(2, 8):
        try:
            training.step_once(ddp, optimizer, rank, step)
        except BaseException as failure:  # noqa: BLE001
            said.append(str(failure))
    of_worker.LOOK_EVERY, front.AT_END = kept
    tensors = handle.state_dict()["tensors"]
    last, thread = handle.last_error, worker.commands.thread
    handle.close()
    return said, last, len(tensors), thread.is_alive(), handle.stats()["steps"]


@pytest.fixture(scope="module")
def slow_pool():
    """Two ranks whose group does not end by its own timeout."""
    pool = Ranks(2, timeout=600)
    yield pool
    pool.close()


@pytest.mark.parametrize(("task", "error"), [*((task, RAISED[2]) for task in TASKS), *(("exchanges._fetch", error) for error in RAISED)],
                         ids=lambda what: what if isinstance(what, str) else type(what).__name__)
def test_task_that_raises_fails_waiters_on_every_rank(slow_pool, task, error):
    for said, last, states, alive, steps in slow_pool.run(_raises_once, task=task, error=error, seconds=120):
        texts = {text.partition("\n")[0] for text in said}  # torch may append where it was raised
        assert len(said) >= 4 and len(texts) <= 2 and all("told to" in text for text in texts), said
        assert last.name == "engine_failed" and "rank 1" in last.message
        assert states and not alive and steps == 8


def _ends_badly(where):
    """Rank 1 cannot free what it holds, or a layout before that: what it says at the end, and the handle's counters."""
    ddp, handle, optimizer = training.build(dist.group.WORLD, "topk:ratio=0.05")
    training.step_once(ddp, optimizer, dist.get_rank(), 0)
    dist.barrier()  # the other rank is not to hear of it in this step

    def raises(*_):
        raise MemoryError("told to")

    if dist.get_rank() == 1:
        owner, name = (handle.worker.stage, "close") if where == "at the end" else (handle.worker._driver, "release")
        setattr(owner, name, raises)
    heard = io.StringIO()
    with contextlib.redirect_stderr(heard):
        if where != "at the end":
            handle.worker.release(handle.hook.layouts.last_seen[0])
        handle.close()
    return heard.getvalue(), handle.last_error, handle.stats()["steps"], handle.worker.commands.thread.is_alive()


@pytest.mark.parametrize("where", ["at the end", "before"])
def test_handle_ends_even_if_it_cannot_free(slow_pool, where):
    for rank, (said, last, steps, alive) in enumerate(slow_pool.run(_ends_badly, where=where, seconds=120)):
        assert (steps, alive) == (1, False)
        told = said if where == "at the end" else str(last)
        assert ("rank 1" in told and "MemoryError: told to" in told) == (rank == 1)
