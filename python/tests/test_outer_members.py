# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""OuterStep with members that come and go: what was not delivered stays, and anchors are equal on all members."""

from __future__ import annotations

import datetime
import os
import re
import signal
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import outering  # noqa: E402
import torch.distributed as dist  # noqa: E402
import training  # noqa: E402
from launches import launch  # noqa: E402
from ranks import Ranks  # noqa: E402

import laconic  # noqa: E402
from laconic.exchange.state import fingerprint  # noqa: E402
from laconic.outer import membership, state  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
LAST = 3  # comes and goes
SPECS = ["3lc:s=1.5", "topk:ratio=0.05", "powersgd:rank=2", "none"]


def of(ranks):
    return dist.new_group(ranks, use_local_synchronization=True)


def anchor_of(outer) -> dict:
    return {name: a.double() for name, a in outer.anchor.items()}


def held(outer, world) -> dict:
    """What this rank has not delivered."""
    found = {name: torch.zeros(a.numel(), dtype=torch.float64) for name, a in outer.anchor.items()}
    for saved in outer.state_dict()["fragments"]:
        tensors = {} if saved["session"] is None else saved["session"]["tensors"]
        for entry, values in tensors.items():
            kind, _, place = entry.partition("/")
            name, _, begin = place.partition("@")
            if kind in ("residual", "owner_residual"):
                found[name][int(begin or 0) :][: values.numel()] += values.double() * (world if kind == "owner_residual" else 1)
        for name, values in saved["kept"].items():
            found[name] += values.double().flatten()
    return found


class Account:
    """What this rank has changed, and n times what the anchor has moved while there were n ranks."""

    def __init__(self, outer):
        self.changed = {name: torch.zeros_like(a) for name, a in anchor_of(outer).items()}
        self.moved, self.digests = {name: torch.zeros_like(a) for name, a in self.changed.items()}, []
        self._random = torch.Generator().manual_seed(dist.get_rank())

    def train(self, model, outer, steps, world, after=lambda: None):
        before = anchor_of(outer)
        for _ in range(steps):
            with torch.no_grad():
                for name, p in model.named_parameters():
                    own = p.double()
                    p.add_(torch.randn(p.shape, generator=self._random), alpha=0.01)
                    self.changed[name] += own - p.double()
            outer.after_step()
        after()
        for name, a in anchor_of(outer).items():
            self.moved[name] += world * (before[name] - a)


def _come_and_go(specs, steps=5, **options):
    results, three = [], of([0, 1, 2]) if dist.get_rank() != LAST else None
    for spec in specs:
        model, _, outer = outering.made(spec=spec, hook=False, **options)
        account = Account(outer)
        if dist.get_rank() == LAST:
            account.train(model, outer, steps, 4, outer.leave)
            model, _, outer = outering.made(spec=spec, hook=False, seed=99, join=True, group=dist.group.WORLD, **options)
        else:
            account.train(model, outer, steps, 4, outer.sync)
            account.train(model, outer, 0, 4, lambda: outer.regroup(three))
            kept = held(outer, 3)
            account.train(model, outer, steps, 3, lambda: outer.regroup(dist.group.WORLD))
            assert any(bool(values.any()) for values in kept.values()) or spec == "none"
        joined = fingerprint(outer.anchor.items()), outer.step
        account.train(model, outer, steps, 4, outer.sync)
        results.append((account.changed, account.moved, held(outer, 4), joined, training.digest(model), outer.stats()["inner_steps"]))
        outer.close()
    return results


def check(results, specs):
    for spec, ranks in zip(specs, zip(*results)):
        changes, moves, helds, joined, ends, steps = zip(*ranks)
        for name, moved in moves[0].items():
            changed, undelivered = sum(c[name] for c in changes), sum(h[name] for h in helds)
            torch.testing.assert_close(changed, moved + undelivered.view(moved.shape), atol=5e-5, rtol=1e-5, msg=lambda m: f"{spec}, {name}: {m}")  # noqa: B023
        assert len(set(joined)) == len(set(ends)) == len(set(steps)) == 1, spec


def test_members_that_come_and_go_lose_nothing(pools):
    specs = outering.with_feedback() if outering.WEEKLY else SPECS
    check(pools(4).run(_come_and_go, specs=specs), specs)


def test_delayed_round_under_way_ends_when_members_change(pools):
    options = {"every": 4, "fragments": 2, "delay": 2}
    check(pools(4).run(_come_and_go, specs=["topk:ratio=0.05"], steps=5, **options), ["topk:ratio=0.05"])


# ---- ranks that die ---------------------------------------------------------------------------------------------------------------------------


def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)


def _trained(model, optimizer, outer, until):
    while outer.step < until:
        outering.one(model, optimizer, outer.step)


def _dwindle():
    """Five ranks: the newcomer dies in join, then a member in each phase of a round, until one is left."""
    rank, first = dist.get_rank(), None
    if rank == 4:
        membership.agreed_source = die
        outering.made(every=2, spec="3lc:s=1.5", outer=laconic.nesterov(0.7, 0.9), join=True, seed=9)
    first = of([0, 1, 2, 3])
    model, optimizer, outer = outering.made(every=2, spec="3lc:s=1.5", outer=laconic.nesterov(0.7, 0.9), group=first)
    _trained(model, optimizer, outer, 5)
    before, seen = outer.state_dict(), []
    with pytest.raises(laconic.LaconicError) as refused:
        outer.regroup(dist.group.WORLD)
    same = {k: v for k, v in outer.state_dict().items() if k != "counts"}
    assert state._print({**same, "counts": {}}) == state._print({**before, "counts": {}}), "a call that failed has changed something"
    seen.append(refused.value.name)
    _trained(model, optimizer, outer, 8)  # on the group of before
    for victim, phase in ((3, "taken"), (2, "sent"), (1, "stepped")):
        if rank == victim:
            worker, part = outer._exchange.opened.worker, outer._rounds.parts[0]
            if phase == "taken":
                part.exchange.begin = die
            elif phase == "sent":
                start = worker.engine.start
                worker.engine.start = lambda *arguments: (start(*arguments), die())
            else:
                part.fragment.step = die
        with pytest.raises(laconic.LaconicError):
            _trained(model, optimizer, outer, outer.step + 6)
        kept = held(outer, victim + 1)
        outer.regroup(of(list(range(victim))))
        for name, values in held(outer, victim).items():
            torch.testing.assert_close(values, kept[name], atol=1e-6, rtol=1e-5)
            assert bool(values.any()) or values.numel() <= outering.SMALL
        assert len(set(outer.gather_texts(f"{outer.step} {fingerprint(outer.anchor.items())}"))) == 1, phase
        _trained(model, optimizer, outer, outer.step + 4 - outer.step % 2)
        assert len(set(outer.gather_texts(training.digest(model)))) == 1, phase
        seen.append(phase)
    outer.close()
    return seen


def test_members_go_on_after_one_is_killed_in_each_phase():
    pool = Ranks(5)
    try:
        pool.start(_dwindle)
        outcomes = pool.finish()
    finally:
        pool.close()
    assert [kind for kind, _ in outcomes] == ["ok", "dead", "dead", "dead", "dead"], outcomes
    assert outcomes[0][1] == ["engine_failed", "taken", "sent", "stepped"]


# ---- what is refused ----------------------------------------------------------------------------------------------------------------------------


def _refused():
    """What each wrong call says on this rank, and what is left of the OuterStep after all of them."""
    rank, said = dist.get_rank(), {}
    model, optimizer, outer = outering.made(spec="3lc:s=1.5")
    _trained(model, optimizer, outer, 3)
    saved, before = outer.state_dict(), fingerprint(outer.anchor.items())
    short = datetime.timedelta(seconds=3)
    few, _, many = (dist.new_group(ranks, timeout=short) for ranks in ([0, 1], [2, 3], [0, 1, 2]))  # as many for each rank: torch counts them
    three = dist.new_group([0, 1, 2])

    def refuse(which, call):
        try:
            call()
        except laconic.LaconicError as error:
            said[which] = error.name, error.message

    refuse("source", lambda: outer.regroup(dist.group.WORLD, source=rank % 2))
    refuse("no source", lambda: outer.regroup(dist.group.WORLD, source=-1))
    refuse("creates", (lambda: outering.made(spec="3lc:s=1.5")) if rank == 2 else lambda: outer.regroup(dist.group.WORLD))
    refuse("every", (lambda: outering.made(spec="3lc:s=1.5", every=2, join=True)) if rank == 2 else lambda: outer.regroup(dist.group.WORLD))
    refuse("joins", lambda: outering.made(spec="3lc:s=1.5", join=True))
    refuse("newcomer", (lambda: outering.made(spec="3lc:s=1.5", join=True, source=2)) if rank == 2 else lambda: outer.regroup(dist.group.WORLD, source=2))
    if rank < 3:
        refuse("group", lambda: outer.regroup(few if rank == 0 else many))
    _trained(model, optimizer, outer, 5)
    untouched = fingerprint(outer.anchor.items()) != before
    if rank < 3:
        outer.regroup(three)
        refuse("world", lambda: outer.load_state_dict(saved))
    outer.close()
    *_, of_ddp = outering.made(spec="3lc:s=1.5", kind="ddp")
    refuse("wrapper", lambda: of_ddp.regroup(dist.group.WORLD))
    of_ddp.close()
    return said, untouched


def test_wrong_calls_are_refused_on_all_ranks_and_change_nothing(pools):
    results = pools(4).run(_refused)
    words = {"source": ("ranks_disagree", "source is 0 on rank 0 and 1 on rank 1"), "no source": ("invalid_argument", "source is -1"),
             "creates": ("ranks_disagree", "rank 0 regroups and rank 2 creates its OuterStep"),
             "every": ("ranks_disagree", "every is 1 on rank 0 and 2 on rank 2"),
             "joins": ("ranks_disagree", "every rank joins"), "newcomer": ("ranks_disagree", "the source is rank 2, which is no member"),
             "wrapper": ("unsupported", "whose group cannot change")}
    for said, untouched in results:
        assert untouched
        for which, (name, message) in words.items():
            assert said[which][0] == name and message in said[which][1], (which, said.get(which))
    assert [said["group"][1] for said, _ in results[:3]] == ["rank 1 did not regroup within 3 s"] + ["rank 0 did not regroup within 3 s"] * 2
    assert all(said["world"][0] == "state_world" for said, _ in results[:3])


# ---- the example --------------------------------------------------------------------------------------------------------------------------------


def test_example_goes_on_when_members_die_and_come(tmp_path):
    pytest.importorskip("sklearn")
    (tmp_path / "out").mkdir()
    run = ["-m", "examples.outer_elastic", "--folder", tmp_path / "run", "--first", "0,1,2,3", "--dies", "3:7", "--enters-after", "1"]
    ranks = launch(run, tmp_path / "out", world=5, cwd=ROOT)
    assert [rank.code for rank in ranks] == [0, 0, 0, -signal.SIGKILL, 0], ranks[0].out + ranks[0].err
    assert re.findall(r"epoch (\d): (\d) members", ranks[0].out) == [("0", "4"), ("1", "3"), ("2", "4")]
    ends = {re.search(r"after 40 steps: .*", rank.out).group() for rank in ranks if rank.code == 0}
    assert len(ends) == 1 and "4 members" in next(iter(ends))
