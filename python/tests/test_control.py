# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Controls from PyTorch: settings that change while real processes train over real Gloo."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import training  # noqa: E402
from ranks import RankError  # noqa: E402

import laconic  # noqa: E402

SCHEDULE = "schedule:0=0.1,3=0.5,6=0.02"


def _settings(spec, control, steps, rules=None, variables=None, **options):
    """What explain() says before the first and after every step, the counters, and what the ranks hold."""
    os.environ.update(variables or {})
    try:
        attached = {"control": control, "rules": rules}
        ddp, handle, optimizer = training.build(dist.group.WORLD, spec, attach_options=attached, **options)
    finally:
        for name in variables or {}:
            del os.environ[name]
    seen = []
    for step in range(steps):
        training.step_once(ddp, optimizer, dist.get_rank(), step, dtype=options.get("dtype", torch.float32))
        seen.append(handle.explain()["settings"])
    found = seen, handle.stats(), training.digest(ddp)
    handle.close()
    return found


def test_a_schedule_is_kept_step_by_step(pools):
    results = pools(3).run(_settings, spec="topk:ratio=0.1", control=SCHEDULE, steps=8)
    for seen, stats, digest in results:
        specs = [settings[0]["spec"] for settings in seen]
        assert specs == ["topk:ratio=0.1"] * 3 + ["topk:ratio=0.5"] * 3 + ["topk:ratio=0.02"] * 2
        assert [settings[0]["since_step"] for settings in seen] == [0, 0, 0, 3, 3, 3, 6, 6]
        assert seen[-1][0]["control"] == SCHEDULE and seen[-1][0]["version"] == 2
        assert "0.5 -> 0.02 from step 6: scheduled" in seen[-1][0]["last_change"]
        assert stats["setting_changes"] == 2 and digest == results[0][2]


def test_without_a_control_nothing_changes(pools):
    for seen, stats, digest in pools(3).run(_settings, spec="topk:ratio=0.1", control="fixed", steps=4):
        assert seen[-1][0]["spec"] == "topk:ratio=0.1" and stats["setting_changes"] == 0
        plain = pools(3).run(training.train, spec="topk:ratio=0.1", steps=4)
        assert digest == plain[0]["hash"]


def test_the_environment_and_a_rule_of_its_own(pools):
    rules = [{"match": "hidden.*", "spec": "topk:ratio=0.1", "control": SCHEDULE}, {"match": "first.*", "spec": "fp16"}]
    for seen, stats, _ in pools(3).run(_settings, spec="randomk:ratio=0.2", control=None, rules=rules, steps=8,
                                       variables={"LACONIC_CONTROL": "schedule:0=0.2,4=0.3"}):
        last = {s["rule"]: (s["spec"], s["since_step"]) for s in seen[-1]}
        assert last == {"hidden.*": ("topk:ratio=0.02", 6), "first.*": ("fp16", 0), "*": ("randomk:ratio=0.3", 4)}
        assert stats["setting_changes"] == 3


MODES = {
    "many_buckets": {"buckets": 4},
    "static_graph": {"ddp_options": {"static_graph": True}},
    "bf16": {"dtype": torch.bfloat16},
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("spec, control", [("topk:ratio=0.1", "dc2"), ("3lc", "dc2:deadline_ms=1"), ("powersgd:rank=2", "dc2:deadline_ms=1")])
def test_replicas_stay_bit_identical(pools, spec, control, mode):
    training.skip_unless_plain_ddp_trains(pools(3), MODES[mode])
    results = pools(3).run(_settings, spec=spec, control=control, steps=32, **MODES[mode])
    assert len({digest for _, _, digest in results}) == 1
    first = [[(s["spec"], s["version"], s["since_step"]) for s in settings] for settings in results[0][0]]
    for seen, stats, _ in results:
        assert [[(s["spec"], s["version"], s["since_step"]) for s in settings] for settings in seen] == first
        assert stats["reports_missing"] == 0
        assert seen[-1][0]["target_ms"] > 0 and seen[-1][0]["network_ms"] > 0


def test_dc2_acts_on_a_deadline_that_cannot_be_kept(pools):
    results = pools(3).run(_settings, spec="topk:ratio=0.2", control="dc2:deadline_ms=0.001", steps=32)
    for seen, stats, _ in results:
        assert seen[-1][0]["spec"].startswith("topk:ratio=0.0") and stats["setting_changes"] >= 3
        assert "of 0.001 ms" in seen[-1][0]["last_change"]


def test_resumes_a_schedule_bit_for_bit(pools):
    for hashes in pools(3).run(training.resume, spec="topk:ratio=0.1", buckets=2, before=5, after=5, attach_options={"control": SCHEDULE}):
        assert hashes[0] == hashes[1]
    with pytest.raises(RankError, match="control"):
        pools(3).run(training.resume, spec="topk:ratio=0.1", buckets=2, before=5, after=5, attach_options={"control": SCHEDULE},
                     resumed_options={"control": "schedule:0=0.1,3=0.4"})


def _lines(control, steps):
    from laconic import changes, environment

    said, changes.APART = [], 0.0
    environment.say, kept = lambda line, level=0: said.append(line), environment.say
    try:
        _settings("topk:ratio=0.1", control, steps)
    finally:
        environment.say, changes.APART = kept, 5.0
    return said


def test_every_change_is_a_line_on_rank_0(pools):
    lines, *others = pools(3).run(_lines, control=SCHEDULE, steps=9)
    # Decided two steps before they hold.
    assert [line for line in lines if "control of" in line] == [
        f"control of *: {SCHEDULE}: ratio 0.1 -> 0.5 from step 3: scheduled",
        f"control of *: {SCHEDULE}: ratio 0.5 -> 0.02 from step 6: scheduled"]
    assert not any("control of" in line for lines in others for line in lines)


def _refusal(by_rank, spec):
    try:
        _, handle, _ = training.build(dist.group.WORLD, spec, attach_options={"control": by_rank[dist.get_rank()]})
    except laconic.LaconicError as error:
        return str(error)
    handle.close()
    return None


@pytest.mark.parametrize("spec, control, said", [
    ("fp16", "dc2", "nothing to move"),
    ("topk", "dc3", "dc3"),
    ("topk", "dc2:min=0.2,max=0.1", "min"),
    ("topk", "schedule:0=2", "2"),
])
def test_bad_controls_are_one_message_on_every_rank(pools, spec, control, said):
    found = pools(3).run(_refusal, spec=spec, by_rank=[control] * 3)
    assert len(set(found)) == 1 and said in found[0], found


def test_ranks_with_other_controls_do_not_attach(pools):
    found = pools(3).run(_refusal, spec="topk", by_rank=["dc2", "dc2", "aimd"])
    assert len(set(found)) == 1 and found[0] is not None and "control" in found[0], found
