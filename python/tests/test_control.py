# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Controls from PyTorch: settings that change while real processes train over real Gloo."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import zlib
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import training  # noqa: E402
from ranks import RankError  # noqa: E402

import laconic  # noqa: E402

SCHEDULE = "schedule:0=0.1,3=0.5,6=0.02"


def _settings(spec, control, steps, rules=None, variables=None, accumulate=0, branch=lambda step, rank: False, **options):
    """The output of explain() before the first and after every step, the counters, and the state of the ranks."""
    os.environ.update(variables or {})
    try:
        attached = {"control": control, "rules": rules}
        ddp, handle, optimizer = training.build(dist.group.WORLD, spec, attach_options=attached, **options)
    finally:
        for name in variables or {}:
            del os.environ[name]
    seen = []
    for step in range(steps):
        training.step_once(ddp, optimizer, dist.get_rank(), step, dtype=options.get("dtype", torch.float32), accumulate=accumulate,
                           branch=branch(dist.get_rank(), step))
        seen.append(handle.explain()["settings"])
    found = seen, handle.stats(), training.digest(ddp)
    handle.close()
    return found


def test_schedule_applies_step_by_step(pools):
    results = pools(3).run(_settings, spec="topk:ratio=0.1", control=SCHEDULE, steps=8)
    for seen, stats, digest in results:
        specs = [settings[0]["spec"] for settings in seen]
        assert specs == ["topk:ratio=0.1"] * 3 + ["topk:ratio=0.5"] * 3 + ["topk:ratio=0.02"] * 2
        assert [settings[0]["since_step"] for settings in seen] == [0, 0, 0, 3, 3, 3, 6, 6]
        assert seen[-1][0]["control"] == SCHEDULE and seen[-1][0]["version"] == 2
        assert "0.5 -> 0.02 from step 6: scheduled" in seen[-1][0]["last_change"]
        assert stats["setting_changes"] == 2 and digest == results[0][2]


def test_missing_control_changes_nothing(pools):
    for seen, stats, digest in pools(3).run(_settings, spec="topk:ratio=0.1", control="fixed", steps=4):
        assert seen[-1][0]["spec"] == "topk:ratio=0.1" and stats["setting_changes"] == 0
        plain = pools(3).run(training.train, spec="topk:ratio=0.1", steps=4)
        assert digest == plain[0]["hash"]


def test_environment_and_rule_set_control(pools):
    rules = [{"match": "hidden.*", "spec": "topk:ratio=0.1", "control": SCHEDULE}, {"match": "first.*", "spec": "fp16"}]
    for seen, stats, _ in pools(3).run(_settings, spec="randomk:ratio=0.2", control=None, rules=rules, steps=8,
                                       variables={"LACONIC_CONTROL": "schedule:0=0.2,4=0.3"}):
        last = {s["rule"]: (s["spec"], s["since_step"]) for s in seen[-1]}
        assert last == {"hidden.*": ("topk:ratio=0.02", 6), "first.*": ("fp16", 0), "*": ("randomk:ratio=0.3", 4)}
        assert stats["setting_changes"] == 3


MODES = {
    "many_buckets": {"buckets": 4},
    "accumulation": {"accumulate": 2},
    "unused": {"ddp_options": {"find_unused_parameters": True}, "model_options": {"unused": True}, "branch": training.on_odd_steps},
    "static_graph": {"ddp_options": {"static_graph": True}},
    "bf16": {"dtype": torch.bfloat16},
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("spec, control", [("topk:ratio=0.1", "dc2"), ("3lc", "dc2:deadline_ms=1"), ("powersgd:rank=2", "dc2:deadline_ms=1")])
def test_replicas_stay_bit_identical(pools, spec, control, mode):
    results = pools(3).run(_settings, spec=spec, control=control, steps=32, **MODES[mode])
    assert len({digest for _, _, digest in results}) == 1
    first = [[(s["spec"], s["version"], s["since_step"]) for s in settings] for settings in results[0][0]]
    for seen, stats, _ in results:
        assert [[(s["spec"], s["version"], s["since_step"]) for s in settings] for settings in seen] == first
        assert stats["reports_missing"] == 0
        assert seen[-1][0]["target_ms"] > 0 and seen[-1][0]["network_ms"] > 0


def test_dc2_reacts_to_impossible_deadline(pools):
    results = pools(3).run(_settings, spec="topk:ratio=0.2", control="dc2:deadline_ms=0.001", steps=32)
    for seen, stats, _ in results:
        assert seen[-1][0]["spec"].startswith("topk:ratio=0.0") and stats["setting_changes"] >= 3
        assert "of 0.001 ms" in seen[-1][0]["last_change"]


@pytest.mark.parametrize("mode", [{}, {"dtype": torch.float16}], ids=["f32", "f16"])
def test_dc2_switches_to_float32_after_releasing_residuals(pools, mode):
    results = pools(3).run(_settings, spec="topk:ratio=0.1", control="dc2:deadline_ms=100000,max=0.12", steps=34, **mode)
    for seen, stats, digest in results:
        strategies = [settings[0]["strategy"] for settings in seen]
        taken = strategies.index("uncompressed")
        assert 10 < taken < 30 and set(strategies[taken:]) == {"uncompressed"}
        assert "float32 fits into the target" in seen[-1][0]["last_change"]
        assert digest == results[0][2] and stats["flush_steps_left"] == 0
        assert stats["residual_norm"] < (1e-3 if mode else 1e-30)  # what 16 bits rounded off stays
        assert stats["reports_missing"] == 0 and stats["held_steps"] == 0


def _on_a_link(file, fast, slow, steps):
    """The ratio in explain(): on an emulated link whose rate falls in the middle."""
    file = f"{file}.{dist.get_rank()}"
    rate = f"{fast}"
    with open(file, "w", encoding="ascii") as out:
        out.write(rate)
    os.environ["LACONIC_EMULATE_RATE_FILE"] = file
    try:
        ddp, handle, optimizer = training.build(dist.group.WORLD, "topk:ratio=0.2", attach_options={"control": "dc2:deadline_ms=10"})
    finally:
        del os.environ["LACONIC_EMULATE_RATE_FILE"]
    ratios = []
    for step in range(steps):
        if step == steps // 2:
            with open(file, "w", encoding="ascii") as out:
                out.write(f"{slow}")
        training.step_once(ddp, optimizer, dist.get_rank(), step)
        ratios.append(handle.explain()["settings"][0]["spec"])
    network = handle.explain()["settings"][0]["network_ms"]
    handle.close()
    return ratios, network


def test_dc2_follows_the_rate_file_of_an_emulated_link(pools, tmp_path):
    # Some 700 pairs of 6 bytes go to each of two others: 0.6 ms, and 60 ms, six times the deadline.
    results = pools(3).run(_on_a_link, file=str(tmp_path / "rate"), fast=100e6, slow=1e6, steps=40)
    assert all(ratios == results[0][0] for ratios, _ in results)
    ratio = [float(spec.partition("=")[2]) for spec in results[0][0]]
    assert ratio[19] >= 0.1 and ratio[-1] < 0.06, ratio


def test_schedule_resumes_bit_for_bit(pools):
    for hashes in pools(3).run(training.resume, spec="topk:ratio=0.1", buckets=2, before=5, after=5, attach_options={"control": SCHEDULE}):
        assert hashes[0] == hashes[1]
    with pytest.raises(RankError, match="control"):
        pools(3).run(training.resume, spec="topk:ratio=0.1", buckets=2, before=5, after=5, attach_options={"control": SCHEDULE},
                     resumed_options={"control": "schedule:0=0.1,3=0.4"})


def _lines(control, steps):
    from laconic.core import environment
    from laconic.exchange import changes

    said, changes.APART = [], 0.0
    environment.say, kept = lambda line, level=0: said.append(line), environment.say
    try:
        _settings("topk:ratio=0.1", control, steps)
    finally:
        environment.say, changes.APART = kept, 5.0
    return said


def test_every_change_logs_a_line_on_rank_0(pools):
    lines, *others = pools(3).run(_lines, control=SCHEDULE, steps=9)
    # Decided two steps before they hold.
    assert [line for line in lines if "control of" in line] == [
        f"control of *: {SCHEDULE}: ratio 0.1 -> 0.5 from step 3: scheduled",
        f"control of *: {SCHEDULE}: ratio 0.5 -> 0.02 from step 6: scheduled"]
    assert not any("control of" in line for lines in others for line in lines)


def test_rules_with_same_glob_are_distinguished(monkeypatch):
    from laconic.core import environment
    from laconic.exchange import changes

    said = []
    monkeypatch.setattr(environment, "say", lambda line, level=0: said.append(line))
    monkeypatch.setattr(changes, "APART", 0.0)
    settings = [{"rule": "*", "last_change": "a"}, {"rule": "b.*", "last_change": "b"}, {"rule": "*", "last_change": "c"}]
    told = changes.Changes()
    for _ in range(2):
        told.tell(lambda: {"record": None, "settings": settings})
    assert said == ["control of * (rule 1): a", "control of b.*: b", "control of *: c"]


def _refusal(by_rank, spec):
    try:
        _, handle, _ = training.build(dist.group.WORLD, spec, attach_options={"control": by_rank[dist.get_rank()]})
    except laconic.LaconicError as error:
        return str(error)
    handle.close()
    return None


@pytest.mark.parametrize("spec, control, said", [
    ("fp16", "dc2", "nothing to change: 'fp16' has no setting that can change"),
    ("thc:bits=4", "dc2", "nothing to change: 'thc' cannot change its keys: they determine how elements add"),
    ("topk", "dc3", "dc3"),
    ("topk", "dc2:min=0.2,max=0.1", "min=0.2 is above max=0.1"),
    ("topk", "dc2:max=0.1,mean=0.2", "mean=0.2 is above max=0.1"),
    ("topk", "dc2:deadline_ms=0", "deadline_ms"),
    ("topk", "schedule:0=2", "2"),
])
def test_bad_controls_give_one_message_on_every_rank(pools, spec, control, said):
    found = pools(3).run(_refusal, spec=spec, by_rank=[control] * 3)
    assert len(set(found)) == 1 and said in found[0], found


def test_ranks_with_other_controls_do_not_attach(pools):
    found = pools(3).run(_refusal, spec="topk", by_rank=["dc2", "dc2", "aimd"])
    assert len(set(found)) == 1 and found[0] is not None and "control" in found[0], found


# ---- records ----

LAW = "dc2:deadline_ms=0.001"


def _recorded(steps, spec="topk:ratio=0.2", variables=None, **attached):
    os.environ.update(variables or {})
    try:
        ddp, handle, optimizer = training.build(dist.group.WORLD, spec, attach_options=attached, buckets=2)
    finally:
        for name in variables or {}:
            del os.environ[name]
    for step in range(steps):
        training.step_once(ddp, optimizer, dist.get_rank(), step)
    found = training.digest(ddp), handle.stats()["setting_changes"], handle.explain()["record"]
    handle.close()
    return found


def _replay(file, *arguments):
    done = subprocess.run([str(COMMAND), "replay", str(file), "--json", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    return json.loads(done.stdout)


COMMAND = Path(__file__).resolve().parents[2] / "build" / "release" / "bin" / "laconic"
needs_command = pytest.mark.skipif(not COMMAND.exists(), reason=f"{COMMAND} is not built")


@needs_command
@pytest.mark.parametrize("spec, strategy", [("topk:ratio=0.2", "gather_all"), ("topk:ratio=0.2", "two_shot"), ("randomk:ratio=0.2", "native_sum")])
def test_recorded_run_replays_bit_for_bit(pools, tmp_path, spec, strategy):
    file, again = tmp_path / "run.jsonl", tmp_path / "again.jsonl"
    options = {"steps": 24, "spec": spec, "strategy": strategy}
    first = pools(3).run(_recorded, control=LAW, record=str(file), **options)
    digest, changes, record = first[0]
    assert changes >= 2 and record == {"file": str(file), "steps": 23, "trouble": ""}
    assert [found[2] for found in first[1:]] == [None, None]
    replayed = pools(3).run(_recorded, control=f"replay:{file}", record=str(again), **options)
    assert {found[:2] for found in first + replayed} == {(digest, changes)}
    for each in (file, again):
        answer = _replay(each)
        assert answer["equal"] and len(answer["decisions"]) == changes
    assert not _replay(file, "--control", "fixed")["decisions"]
    # Real clocks would have decided otherwise: the replay does not look at them.
    assert json.loads(file.read_text().splitlines()[9])["reports"] != json.loads(again.read_text().splitlines()[9])["reports"]


@needs_command
def test_record_without_control_shows_possible_decisions(pools, tmp_path):
    file = tmp_path / "run.jsonl"
    found = pools(3).run(_recorded, steps=16, variables={"LACONIC_RECORD": str(file)})
    plain = pools(3).run(_recorded, steps=16)
    assert {digest for digest, _, _ in found + plain} == {plain[0][0]} and plain[0][2] is None
    assert _replay(file)["equal"] and len(_replay(file, "--control", LAW)["decisions"]) >= 2


def test_killed_replay_resumes(pools, tmp_path):
    file = tmp_path / "run.jsonl"
    recorded = pools(3).run(_recorded, control=LAW, record=str(file), steps=24)
    assert recorded[0][1] >= 2
    hashes = pools(3).run(training.resume, spec="topk:ratio=0.2", buckets=2, before=10, after=14,
                          attach_options={"control": f"replay:{file}"})
    assert {tuple(found) for found in hashes} == {(recorded[0][0],) * 2}


def _recorded_with_checkpoint(before, after, law, record, checkpoint, spec="topk:ratio=0.2", **build):
    """A recorded run that saves its state before step `before`."""
    ddp, handle, optimizer = training.build(dist.group.WORLD, spec, attach_options={"control": law, "record": record}, **build)
    for step in range(before + after):
        if step == before:
            torch.save({"model": ddp.module.state_dict(), "optimizer": optimizer.state_dict(), "laconic": handle.state_dict()},
                       f"{checkpoint}.{dist.get_rank()}")
        training.step_once(ddp, optimizer, dist.get_rank(), step)
    found = training.digest(ddp), handle.explain()["settings"]
    handle.close()
    return found


def _replayed_from_checkpoint(before, after, record, checkpoint, spec="topk:ratio=0.2", **build):
    ddp, handle, optimizer = training.build(dist.group.WORLD, spec, attach_options={"control": f"replay:{record}"}, **build)
    saved = torch.load(f"{checkpoint}.{dist.get_rank()}", weights_only=False)
    ddp.module.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    handle.load_state_dict(saved["laconic"])
    for step in range(before, before + after):
        training.step_once(ddp, optimizer, dist.get_rank(), step)
    found = training.digest(ddp), handle.explain()["settings"]
    handle.close()
    return found


# The second takes float32: its state is saved while residuals go out.
@pytest.mark.parametrize("law, before", [(LAW, 10), ("dc2:deadline_ms=100000,max=0.21", 10)], ids=["smaller", "float32"])
@pytest.mark.parametrize("spec", ["topk:ratio=0.2", "randomk:ratio=0.2"])
def test_recorded_run_replays_from_its_checkpoint(pools, tmp_path, spec, law, before):
    file, checkpoint = tmp_path / "run.jsonl", tmp_path / "state"
    options = {"before": before, "after": 24 - before, "record": str(file), "checkpoint": str(checkpoint), "spec": spec, "buckets": 2}
    first = pools(3).run(_recorded_with_checkpoint, law=law, **options)
    replayed = pools(3).run(_replayed_from_checkpoint, **options)
    assert {digest for digest, _ in first + replayed} == {first[0][0]}
    assert [s["spec"] for s in first[0][1]] == [s["spec"] for s in replayed[0][1]] != [spec]
    assert first[0][1][0]["strategy"] == replayed[0][1][0]["strategy"]
    assert (first[0][1][0]["strategy"] == "uncompressed") == (law != LAW)


def test_replay_refuses_state_of_another_run(pools, tmp_path):
    file, other, checkpoint = tmp_path / "run.jsonl", tmp_path / "other.jsonl", tmp_path / "state"
    options = {"before": 8, "after": 2, "checkpoint": str(checkpoint)}
    pools(3).run(_recorded_with_checkpoint, law=LAW, record=str(file), **options)
    pools(3).run(_recorded_with_checkpoint, law="dc2:deadline_ms=0.001,min=0.1", record=str(other), **options)
    with pytest.raises(RankError, match="control"):
        pools(3).run(_replayed_from_checkpoint, record=str(file), **options)


def _beside(steps, save_at=None):
    """Two rules, of which the call's alone may move: the state is saved, the run thrown away and resumed before step `save_at`."""
    rules = [{"match": "hidden.*", "spec": "topk:ratio=0.1", "control": "fixed"}]
    attached = {"control": "dc2:deadline_ms=100000,max=0.12", "rules": rules}
    build = functools.partial(training.build, dist.group.WORLD, "topk:ratio=0.1", attach_options=attached)
    ddp, handle, optimizer = build()
    seen = []
    for step in range(steps):
        if step == save_at:
            saved = ddp.module.state_dict(), optimizer.state_dict(), handle.state_dict()
            handle.close()
            ddp, handle, optimizer = build()
            for each, state in zip((ddp.module, optimizer, handle), saved, strict=True):
                each.load_state_dict(state)
        training.step_once(ddp, optimizer, dist.get_rank(), step)
        seen.append([s["strategy"] for s in handle.explain()["settings"]])
    found = seen, handle.stats(), training.digest(ddp), len(handle.explain()["parameters"])
    handle.close()
    return found


def test_one_rule_uses_float32_and_other_stays(pools):
    results = pools(3).run(_beside, steps=34)
    for seen, stats, digest, _ in results:
        last = [strategies[-1] for strategies in seen]
        taken = last.index("uncompressed")
        assert 10 < taken < 30 and set(last[taken:]) == {"uncompressed"}
        assert "uncompressed" not in {strategies[0] for strategies in seen}
        assert digest == results[0][2] and stats["reports_missing"] == stats["held_steps"] == stats["fallbacks"] == 0
        assert stats["residual_norm"] > 0
    # In the middle of what it takes to send the residuals.
    for seen, _, digest, _ in pools(3).run(_beside, steps=34, save_at=results[0][0].index(results[0][0][-1]) + 1):
        assert seen[-1] == results[0][0][-1] and digest


def _record_refusal(by_rank):
    try:
        _, handle, _ = training.build(dist.group.WORLD, "topk:ratio=0.2", attach_options=by_rank[dist.get_rank()])
    except laconic.LaconicError as error:
        return str(error)
    handle.close()
    return None


def test_impossible_records_give_one_message_on_every_rank(pools, tmp_path):
    record, other, missing = tmp_path / "run.jsonl", tmp_path / "other.jsonl", tmp_path / "missing" / "run.jsonl"
    pools(3).run(_recorded, steps=12, control=LAW, record=str(record))
    lines = record.read_text().splitlines(keepends=True)
    other.write_text("".join(lines[:-1]))
    cut = tmp_path / "cut.jsonl"
    cut.write_text("".join(lines)[:-20])
    replay = {"control": f"replay:{record}"}
    for by_rank, said in [
        ([{"record": str(missing)}] * 3, "rank 0 could not attach: record"),
        ([{"record": str(tmp_path / "a")}, {}, {}], "disagree on a record"),
        ([replay, replay, {"control": f"replay:{other}"}], "disagree on the control"),
        ([replay, {"control": f"replay:{cut}"}, replay], f"line {len(lines)}: "),
        ([{"control": f"replay:{missing}"}] * 3, "cannot read it"),
    ]:
        found = pools(3).run(_record_refusal, by_rank=by_rank)
        assert len(set(found)) == 1 and found[0] is not None and said in found[0], found


def _a_session_of_our_own(control, record, steps=14):
    from array import array

    shape, digests = (60, 50), []
    with laconic.Session("topk:ratio=0.2", [("w", shape)], engine="c10d", small_elements=0, control=control, record=record) as session:
        for step in range(steps):
            gradient = array("f", [((i * 31 + 7 * step + session.rank) % 101 - 50) / 10 for i in range(3000)])
            session.average(step, gradient)
            digests.append(zlib.crc32(bytes(gradient)))
        return digests, session.stats()["setting_changes"]


@needs_command
def test_session_without_torch_models_is_controlled(pools, tmp_path):
    file = tmp_path / "run.jsonl"
    first = pools(3).run(_a_session_of_our_own, control=LAW, record=str(file))
    replayed = pools(3).run(_a_session_of_our_own, control=f"replay:{file}", record=None)
    assert first[0][1] >= 1 and first == replayed
    assert _replay(file)["equal"]


def _told(record, steps):
    from laconic.core import environment

    said = []
    environment.say, kept = lambda line, level=0: said.append(line), environment.say
    try:
        found = _recorded(steps, record=record)
    finally:
        environment.say = kept
    return found, [line for line in said if line.startswith("record: ")]


def test_full_disk_is_reported_once_and_training_continues(pools):
    plain = pools(3).run(_recorded, steps=4)
    found = pools(3).run(_told, record="/dev/full", steps=4)
    assert {digest for (digest, _, _), _ in found} == {plain[0][0]}
    assert [lines for _, lines in found] == [
        ["record: cannot write '/dev/full': No space left on device; training continues, 0 steps are recorded"], [], []]
