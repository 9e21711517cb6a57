# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""OuterStep: its rounds are those of the papers, bit for bit; what codecs hold back is delivered later; resuming changes nothing."""

from __future__ import annotations

import contextlib
import copy
import io
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "accelerator"))

import outering  # noqa: E402
import pretend  # noqa: E402
import torch.distributed as dist  # noqa: E402
import training  # noqa: E402
from ranks import Ranks  # noqa: E402

import laconic  # noqa: E402

PLAIN = laconic.nesterov(0.7, 0.9)


def _momentum(parameters):
    return torch.optim.SGD(parameters, lr=0.5, momentum=0.5)


def _plain(parameters):
    return torch.optim.SGD(parameters, lr=0.5)


def same_on_all(results):
    assert all(result == results[0] for result in results), "replicas differ"
    return results[0]


# ---- the algorithm ------------------------------------------------------------------------------------------------------------------------


def test_rounds_equal_those_of_the_papers(pools):
    cases = [{"every": 1}, {"every": 1, "kind": "ddp"}, {"every": 1, "optimizer": "SGD"}, {"every": 3, "kind": "ddp"}, {"every": 3, "outer": PLAIN},
             {"every": 2, "outer": _momentum, "optimizer": "SGD"}, {"every": 3, "warmup": 2},
             {"every": 1, "spec": "3lc"}, {"every": 3, "spec": "3lc", "outer": PLAIN, "kind": "ddp"}, {"every": 2, "spec": "topk:ratio=0.1", "part": 2000},
             {"every": 1, "spec": "int8"}, {"every": 2, "spec": "onebit", "outer": PLAIN}]
    for case, ranks in _against_the_papers(pools, cases):
        rounds = sum(step <= case.get("warmup", 0) or step % case["every"] == 0 for step in range(1, 8))
        for found, expected, stats in ranks:
            assert found == expected, case
            assert (stats["rounds"], stats["inner_steps"], stats["steps"]) == (rounds, 7, max(rounds, stats["steps"]))
        last = 7 - 7 % case["every"]
        assert ranks[0][0][last - 1] == ranks[1][0][last - 1], case


def _against_the_papers(pools, cases):
    return zip(cases, zip(*pools(2).run(outering.against_the_papers, cases=cases)))


def test_fragments_delays_and_alpha_equal_those_of_papers(pools):
    cases = [{"every": 4, "fragments": 2}, {"every": 4, "fragments": 2, "delay": 1, "spec": "3lc"}, {"every": 1, "delay": 1, "spec": "topk:ratio=0.1"},
             {"every": 1, "delay": 1, "kind": "ddp"}, {"every": 2, "alpha": 0.5, "outer": PLAIN}, {"every": 3, "delay": 2, "warmup": 2, "spec": "int8"},
             {"every": 4, "fragments": 2, "delay": 2, "alpha": 0.25, "outer": PLAIN, "spec": "3lc"}]
    for case, ranks in _against_the_papers(pools, cases):
        for found, expected, _ in ranks:
            assert found == expected, case


def _synced(**options):
    model, optimizer, outer = outering.made(spec="3lc", **options)
    for step in range(5):
        outering.one(model, optimizer, step)
    outer.sync()
    told = training.digest(model), {name: training.raw(a) for name, a in outer.anchor.items()}, outer.at_round, outer.explain()["fragments"]
    outer.close()
    return told


def test_replicas_are_equal_after_sync_whatever_is_under_way(pools):
    for options in ({"every": 4, "fragments": 2}, {"every": 1, "delay": 1}, {"every": 2, "alpha": 0.5}, {"every": 6, "fragments": 3, "delay": 2, "alpha": 0.5}):
        told = same_on_all(pools(2).run(_synced, **options))
        assert told[2] == ("alpha" not in options) and told[3] == options.get("fragments", 1)


def _modules():
    model = training.Net(32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    outer = laconic.OuterStep(model, optimizer, spec="none", every=2, fragments=[[model.last], [model.hidden, model.first]], quiet=True)
    for step in range(2):
        outering.one(model, optimizer, step)
    rounds, names = outer.stats()["rounds"], [part.fragment.names[0] for part in outer._rounds.parts]
    outer.close()
    return rounds, names, training.digest(model)


def test_fragments_may_be_lists_of_modules(pools):
    assert [told[:2] for told in pools(2).run(_modules)] == [(2, ["last.weight", "first.weight"])] * 2


def test_delayed_means_travel_while_training_goes_on(pools):
    (waited, rounds, model), other = pools(2).run(outering.released_after_step)
    assert rounds == 6 and len(waited) == 6 and all(waited)
    assert other == (waited, rounds, model)


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


def check_conservation(results, spec):
    """What the ranks have changed is what the anchor moved by, what they hold back, and what owners hold back of means."""
    world = len(results)
    for name, moved in results[0][1].items():
        held = torch.zeros(moved.numel(), dtype=torch.float64)
        for _, _, tensors, _ in results:
            for entry, values in tensors.items():
                kind, _, place = entry.partition("/")
                if place.partition("@")[0] == name and kind in ("residual", "owner_residual"):
                    begin = int(place.partition("@")[2] or 0)
                    held[begin : begin + values.numel()] += values.double() * (world if kind == "owner_residual" else 1)
        changed = sum(changes[name] for changes, _, _, _ in results)
        torch.testing.assert_close(changed, world * moved + held.view(moved.shape), atol=5e-5, rtol=1e-5,
                                   msg=lambda m: f"{spec}, {name}: {m}")  # noqa: B023


@pytest.mark.parametrize("spec", outering.with_feedback() if outering.WEEKLY else
                         ["3lc:s=1.5", "topk:ratio=0.05", "onebit", "int8+ef", "powersgd:rank=2", "thc:block=256"])
def test_residuals_hold_what_is_not_sent(pools, spec):
    results = pools(2).run(outering.sums_of_changes, spec=spec)
    check_conservation(results, spec)
    assert all(stats["residual_norm"] > 0 and stats["rounds"] == 20 for *_, stats in results)


def test_delayed_and_fragmented_rounds_lose_nothing_either(pools):
    for options in ({"every": 1, "delay": 1}, {"every": 4, "fragments": 2, "delay": 2}):
        check_conservation(pools(2).run(outering.sums_of_changes, spec="3lc:s=1.5", **options), options)
    check_conservation(pools(2).run(outering.sums_of_changes, spec="topk:ratio=0.05", rounds=6, failing=(1, 2), delay=1), "a failure under way")


@pytest.mark.parametrize(("spec", "part"), [("3lc:s=1.5", 2000), ("topk:ratio=0.05", 2000), ("topk:ratio=0.05", 8 << 20)])
def test_part_of_a_round_that_fails_is_delivered_later(pools, spec, part):
    results = pools(2).run(outering.sums_of_changes, spec=spec, rounds=4, failing=(1, 2), part=part)
    check_conservation(results, spec)
    assert all((stats["rounds"], stats["failed_rounds"], stats["inner_steps"]) == (4, 1, 4) for *_, stats in results)


# ---- momentum -----------------------------------------------------------------------------------------------------------------------------


def _warned(cases):
    """Lines on momentum that creating an OuterStep logs; the inner optimizer has some."""
    told = []
    for options in cases:
        stream = io.StringIO()
        with contextlib.redirect_stderr(stream):
            *_, outer = outering.made(**options)
        outer.close()
        told.append([line for line in stream.getvalue().splitlines() if "twice" in line])
    return told


def test_momentum_of_codec_is_twice_beside_outer_momentum_only(pools):
    dgc, rule = "dgc:ratio=0.05", {"rules": [{"match": "hidden.weight", "spec": "signum"}]}
    cases = [{"spec": dgc}, {"spec": dgc, "every": 4, "kind": "ddp"}, {"spec": "signum", "optimizer": "Adam"}, {"spec": "topk:ratio=0.05", "outer": PLAIN},
             {"spec": dgc, "outer": _plain}, {"spec": dgc, "outer": PLAIN}, {"spec": dgc, "every": 2, "fragments": 2, "outer": _momentum},
             {"spec": "topk:ratio=0.05", "outer": PLAIN, **rule}]
    first, other = pools(2).run(_warned, cases=cases)
    assert first[:5] == [[]] * 5 and other == [[]] * len(cases)
    for (line,), words in zip(first[5:], (f"{dgc} keeps momentum, and the outer SGD has momentum=0.9: changes are", "momentum=0.5", "signum keeps a running mean")):
        assert words in line


# ---- saved state --------------------------------------------------------------------------------------------------------------------------


RESUMED = [{"spec": "3lc:s=1.5", "outer": PLAIN, "kind": "ddp"}, {"spec": "topk:ratio=0.05"}, {"spec": "none", "outer": _momentum},
           {"spec": "3lc", "delay": 2, "outer": PLAIN}, {"spec": "topk:ratio=0.05", "fragments": 3, "delay": 1, "alpha": 0.5}]
#: weekly: fragments, delays, and both, in a period of six
SCHEDULES = [(1, 0), (1, 1), (1, 6), (2, 0), (2, 1), (2, 3), (3, 0), (3, 1), (3, 2)]
LONG = [{"every": 6, "fragments": fragments, "delay": delay, **others} for fragments, delay in SCHEDULES
        for others in ({"spec": "3lc:s=1.5", "outer": PLAIN}, {"spec": "topk:ratio=0.05", "alpha": 0.5, "warmup": 2})]
LONG += [{"every": 6, "fragments": 2, "delay": 1, "spec": spec} for spec in ("powersgd:rank=2", "thc:block=256")]


@pytest.mark.parametrize("options", [*RESUMED, *(LONG if outering.WEEKLY else [])], ids=lambda o: "-".join(str(v) for v in o.values() if not callable(v)))
def test_resume_at_every_step_of_period_is_bit_identical(pools, options):
    options = {"every": 3, **options}
    steps, due = options["every"] + 5, options["every"] // options.get("fragments", 1)
    for whole, found, rounds in pools(2).run(outering.resumed_at, stops=range(steps - 1), steps=steps, **options):
        ended = sum(step <= options.get("warmup", 0) or step % due == 0 for step in range(options.get("delay", 0) + 1, steps + 1))
        assert found == whole and (rounds == ended or "warmup" in options)


def _refused_states():
    """What a damaged or another's state is refused with; nothing has changed after each."""
    model, optimizer, outer = outering.made(every=2, spec="topk:ratio=0.05", outer=PLAIN)
    for step in range(3):
        outering.one(model, optimizer, step)
    state, said = outer.state_dict(), []
    other_rank = training.gathered(state)[1 - dist.get_rank()]
    name = "first.weight"
    for change in (lambda s, f: f.pop("anchor"), lambda s, f: s.update(version=9), lambda s, f: f["anchor"].pop(name), lambda s, f: f["anchor"].update({name: 3}),
                   lambda s, f: f["anchor"][name].view(-1)[:1].fill_(float("nan")), lambda s, f: f["anchor"][name].view(-1)[:1].add_(1),
                   lambda s, f: s["counts"].update(rounds=-1), lambda s, f: s["counts"].update(exposed_seconds="long"), lambda s, f: f.update(session=None),
                   lambda s, f: f.update(session=other_rank["fragments"][0]["session"]), lambda s, f: f.update(outer={}),
                   lambda s, f: f["anchor"].update({name: torch.zeros(2)}), lambda s, f: s["fragments"].append(f), lambda s, f: f.update(last="first")):
        damaged = copy.deepcopy(state)
        change(damaged, damaged["fragments"][0])
        with pytest.raises(laconic.LaconicError) as error:
            outer.load_state_dict(damaged)
        said.append(error.value.name)
    same = outer.state_dict()["fingerprint"] == state["fingerprint"]
    outer.load_state_dict(state)
    outer.close()
    return said, same


def test_states_of_others_and_damaged_ones_are_refused_whole(pools):
    for said, same in pools(2).run(_refused_states):
        assert same and said == ["state_corrupt", "state_version", "state_model", "state_corrupt", "state_corrupt", "state_corrupt", "state_corrupt",
                                 "state_corrupt", "state_world", "state_rank", "state_spec", "state_model", "state_model", "state_corrupt"]


# ---- parameters of a narrower type, buffers, devices ----------------------------------------------------------------------------------------


def _small_changes(rounds=8):
    """One rank's parameters move by one unit of the last place in each round: the anchor, by a quarter of that."""
    model = torch.nn.Linear(4, 1, bias=False).to(torch.bfloat16)
    with torch.no_grad():
        model.weight.fill_(1.0)
    outer = laconic.OuterStep(model, None, spec="none", hook=False, quiet=True)
    unit, seen = 2.0**-7, []
    for _ in range(rounds):
        with torch.no_grad():
            model.weight.add_(unit if dist.get_rank() == 2 else 0.0)
        outer.after_step()
        seen.append((float(outer.anchor["weight"][0, 0] - 1) / unit, float(model.weight[0, 0] - 1) / unit))
    outer.close()
    return seen


def test_changes_below_a_bfloat16_add_up_in_the_anchor(ranks):
    seen = same_on_all(ranks.run(_small_changes))
    assert [anchor for anchor, _ in seen] == [0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0]
    assert [parameter for _, parameter in seen] == [0, 0, 1, 1, 1, 2, 2, 2]


def _buffers(average):
    model = torch.nn.BatchNorm1d(4)
    with torch.no_grad():
        model.weight.fill_(float(dist.get_rank()))
        model.running_mean.fill_(float(dist.get_rank()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    outer = laconic.OuterStep(model, optimizer, spec="none", average_buffers=average, quiet=True)
    synced = float(model.weight[0]), float(model.running_mean[0])
    model(torch.full((2, 4), 10.0 * dist.get_rank())).sum().backward()
    optimizer.step()
    outer.close()
    return synced, float(model.running_mean[0]), int(model.num_batches_tracked)


def test_buffers_are_averaged_where_asked_for(pools):
    assert pools(2).run(_buffers, average=True) == [((0.0, 0.0), 0.5, 1)] * 2
    assert [mean for _, mean, _ in pools(2).run(_buffers, average=False)] == [0.0, 1.0]


def _anchor_for_evaluation(dtype):
    model, optimizer, outer = outering.made(every=3, spec="3lc", outer=PLAIN, dtype=dtype)
    for step in range(4):
        outering.one(model, optimizer, step)
    own = training.digest(model)
    with outer.at_anchor():
        inside = training.digest(model)
        anchored = all(torch.equal(p, a.to(dtype)) for p, a in zip(model.parameters(), outer.anchor.values()))
    after = training.digest(model)
    outer.sync()
    synced, rounds = training.digest(model), outer.stats()["rounds"]
    outer.sync()
    again = outer.stats()["rounds"]
    outer.close()
    return own == after != inside and anchored, inside, synced, rounds, again


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_replicas_are_equal_at_the_anchor_and_after_sync(pools, dtype):
    results = pools(2).run(_anchor_for_evaluation, dtype=dtype)
    assert all(kept for kept, *_ in results)
    assert same_on_all([result[1:] for result in results])[2:] == (2, 2)


def test_later_rounds_allocate_no_tensor_of_model_size(pools):
    for options in ({"spec": "3lc"}, {"spec": "none"}, {"spec": "topk:ratio=0.1", "outer": PLAIN}, {"spec": "3lc", "delay": 1, "alpha": 0.5}):
        for most, size in pools(2).run(outering.allocates, **options):
            assert most < size / 100, options


@pytest.fixture(scope="module")
def pretending():
    """Two ranks with a pretend accelerator."""
    if why := pretend.why_not():
        pytest.skip(why)
    pretend.library()
    ranks = Ranks(2, backend="pretend", prepare=pretend.load)
    yield ranks
    ranks.close()


def test_rounds_on_an_accelerator_are_those_on_the_cpu(pools, pretending):
    for options in ({"spec": "3lc"}, {"spec": "none"}, {"spec": "topk:ratio=0.1", "outer": PLAIN, "kind": "ddp"}):
        there = pretending.run(outering.digests, steps=4, every=2, device="pretend:0", **options)
        here = pools(2).run(outering.digests, steps=4, every=2, **options)
        for (found, stats, explained), (expected, _, _) in zip(there, here):
            assert found == expected, options
            assert explained["path"] == "staged" and stats["rounds"] == 2
