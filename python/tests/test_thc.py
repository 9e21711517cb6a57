# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""thc from PyTorch: integers that Gloo adds."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import training  # noqa: E402

import laconic  # noqa: E402


def _explained(spec):
    _, handle, _ = training.build(dist.group.WORLD, spec)
    found = handle.explain()
    handle.close()
    return found


def test_explain_shows_element_width_and_table(pools):
    for found in pools(3).run(_explained, spec="thc"):
        assert (found["strategy"], found["lane_bits"]) == ("native_sum", 8)
        assert len(found["table"]) == 16 and found["table"][0] == 0 and 3 * found["table"][-1] <= 255
        assert found["table"] == sorted(found["table"])
    for found in pools(3).run(_explained, spec="thc:bits=2,lane=16"):
        assert (found["lane_bits"], len(found["table"])) == (16, 4)
    assert all("table" not in found for found in pools(3).run(_explained, spec="int8"))


def _mean(spec, steps):
    """Largest error of a step's mean, in units of the gradients' own size, and what all ranks hold."""
    rank, world = dist.get_rank(), dist.get_world_size()
    model = torch.nn.Linear(96, 64, bias=False)
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    handle = laconic.attach(ddp, spec, small_elements=16, quiet=True)
    errors, held = [], []
    for step in range(steps):
        rows = [torch.randn(64, 96, generator=torch.Generator().manual_seed(100 * step + r)) for r in range(world)]
        model.weight.grad = None
        (ddp(torch.eye(96)).T * rows[rank]).sum().backward()
        mean = sum(rows) / world
        errors.append(((model.weight.grad - mean).norm() / mean.norm()).item())
        held.append(model.weight.grad.clone())
    handle.close()
    return errors, torch.stack(held).numpy().tobytes()


@pytest.mark.parametrize("spec", ["thc+noef", "thc:scale=exact+noef", "thc:lane=16,block=256+noef"])
def test_means_are_close_and_equal_on_every_rank(pools, spec):
    results = pools(3).run(_mean, spec=spec, steps=4)
    assert all(found == results[0] for found in results)
    assert all(0.01 < error < 0.25 for error in results[0][0]), "4 bits: an error of 2 % of each squared norm, a third in the mean"


def _not_finite(spec, bad_step):
    rank = dist.get_rank()
    ddp, handle, optimizer = training.build(dist.group.WORLD, spec)
    for step in range(bad_step):
        training.step_once(ddp, optimizer, rank, step)
    optimizer.zero_grad()
    x, y = training.batch(rank, bad_step)
    loss = torch.nn.functional.cross_entropy(ddp(x), y)
    (loss * (float("inf") if rank == 1 else 1.0)).backward()
    spread = [not bool(p.grad.isfinite().all()) for p in ddp.parameters() if p.grad is not None]
    counted = handle.stats()["fallbacks"]
    optimizer.zero_grad()
    for step in range(bad_step + 1, bad_step + 3):
        training.step_once(ddp, optimizer, rank, step)
    found = training.digest(ddp), all(bool(p.isfinite().all()) for p in ddp.parameters())
    handle.close()
    return any(spread), counted, found


@pytest.mark.parametrize("bad_step", [0, 2])
def test_infinity_on_one_rank_is_sent_on_all(pools, bad_step):
    """In the first step the range is agreed on, and NaN shows there; later the trouble lane tells."""
    results = pools(3).run(_not_finite, spec="thc:block=256", bad_step=bad_step)
    assert all(found == results[0] for found in results)
    spread, counted, (_, finite) = results[0]
    assert spread and counted >= 1 and finite
