# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""OuterStep: its rounds are those of the papers, bit for bit; what codecs hold back is delivered later; resuming changes nothing."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import outering  # noqa: E402
import torch.distributed as dist  # noqa: E402
import training  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import laconic  # noqa: E402

PLAIN = laconic.nesterov(0.7, 0.9)


def _momentum(parameters):
    return torch.optim.SGD(parameters, lr=0.5, momentum=0.5)


def same_on_all(results):
    assert all(result == results[0] for result in results), "replicas differ"
    return results[0]


# ---- the algorithm ------------------------------------------------------------------------------------------------------------------------


def test_rounds_equal_those_of_the_papers(pools):
    cases = [{"every": 1}, {"every": 1, "kind": "ddp"}, {"every": 1, "optimizer": "SGD"}, {"every": 3, "kind": "ddp"}, {"every": 3, "outer": PLAIN},
             {"every": 2, "outer": _momentum, "optimizer": "SGD"}, {"every": 3, "warmup": 2},
             {"every": 1, "spec": "3lc"}, {"every": 3, "spec": "3lc", "outer": PLAIN, "kind": "ddp"}, {"every": 2, "spec": "topk:ratio=0.1", "part": 2000},
             {"every": 1, "spec": "int8"}, {"every": 2, "spec": "onebit", "outer": PLAIN}]
    results = pools(2).run(outering.against_the_papers, cases=cases)
    for case, ranks in zip(cases, zip(*results)):
        rounds = sum(step <= case.get("warmup", 0) or step % case["every"] == 0 for step in range(1, 8))
        for found, expected, stats in ranks:
            assert found == expected, case
            assert (stats["rounds"], stats["inner_steps"], stats["steps"]) == (rounds, 7, max(rounds, stats["steps"]))
        last = 7 - 7 % case["every"]
        assert ranks[0][0][last - 1] == ranks[1][0][last - 1], case


def _mean_of_parameters():
    """Values and gradients without a rounding: the result is the mean of what the ranks' parameters are, exactly."""
    rank, world = dist.get_rank(), dist.get_world_size()
    model = torch.nn.Linear(8, 8, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.arange(64.0).view(8, 8) / 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0**-4)
    outer = laconic.OuterStep(model, optimizer, spec="none", quiet=True)
    x = torch.arange(8.0) + rank
    model(x).sum().backward()
    start = model.weight.detach().clone()
    optimizer.step()
    outer.close()
    own = [start - 2.0**-4 * (torch.arange(8.0) + r).expand(8, 8) for r in range(world)]
    return torch.equal(model.weight, sum(own) / world)


def test_every_step_averaged_is_parameter_averaging(pools):
    assert all(pools(4).run(_mean_of_parameters))


def _four(spec, **options):
    found, stats, explained = outering.digests(9, spec=spec, every=3, kind="ddp", **options)
    return found[2::3], stats, explained


@pytest.mark.parametrize("spec", ["3lc:s=1.5", "topk:ratio=0.05", "powersgd:rank=2", "thc:block=256", "fp16"])
def test_replicas_are_equal_after_every_round(ranks, spec):
    results = ranks.run(_four, spec=spec)
    same_on_all([found for found, _, _ in results])
    for _, stats, explained in results:
        assert stats["rounds"] == 3 and stats["ratio"] > 1.5 and stats["ratio_to_ddp"] == pytest.approx(3 * stats["ratio"], rel=0.01)
        assert explained["every"] == 3 and explained["outer"] == "average" and explained["anchor_bytes"] == 8 * explained["elements"]
    assert results[0][2]["down"] == ("3lc" if spec.startswith("3lc") else None)


def _downs():
    given = []
    for options in ({"spec": "3lc"}, {"spec": "3lc:s=1.75"}, {"spec": "3lc:s=1.75", "down": "int8"}, {"spec": "3lc", "strategy": "gather_all"}, {"spec": "topk"}):
        _, _, explained = outering.digests(1, **options)
        given.append((explained["strategy"], explained["down"]))
    return given


def test_means_of_3lc_travel_by_its_gentlest(pools):
    for given in pools(2).run(_downs):
        assert given == [("two_shot", "3lc"), ("two_shot", "3lc"), ("two_shot", "int8"), ("gather_all", None), ("gather_all", None)]


# ---- nothing is lost ----------------------------------------------------------------------------------------------------------------------


def _entries(tensors, kind):
    """Sums by parameter of the entries of a kind, which may lie in parts: residual/first.weight, …"""
    return {name: values.double() for name, values in tensors.items() if name.startswith(kind)}


def check_conservation(results, spec):
    world = len(results)
    names = results[0][0].keys()
    for name in names:
        changed = sum(changes[name] for changes, _, _, _ in results)
        moved = world * results[0][1][name]
        held = sum((tensors[f"residual/{name}"].double().view(moved.shape) for _, _, tensors, _ in results if f"residual/{name}" in tensors),
                   torch.zeros_like(moved))
        torch.testing.assert_close(changed, moved + held, atol=2e-5, rtol=1e-5, msg=lambda m: f"{spec}, {name}: {m}")  # noqa: B023


@pytest.mark.parametrize("spec", ["3lc", "topk:ratio=0.05", "onebit", "int8+ef"])
def test_what_is_not_sent_is_in_the_residuals(pools, spec):
    results = pools(2).run(outering.sums_of_changes, spec=spec, strategy="gather_all")
    check_conservation(results, spec)
    assert all(stats["residual_norm"] > 0 for *_, stats in results)
