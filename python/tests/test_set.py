# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""handle.set: other settings in the middle of training, in real processes over real Gloo."""

from __future__ import annotations

import copy
import ctypes

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import training  # noqa: E402

import laconic  # noqa: E402
from laconic.core import _lib  # noqa: E402
from laconic import LaconicError  # noqa: E402

NAMES = ("rule", "spec", "strategy", "version", "since_step", "last_change")


class Run:
    """A model that trains, and what its settings were."""

    def __init__(self, spec, **options):
        self.ddp, self.handle, self.optimizer = training.build(dist.group.WORLD, spec, **options)
        self.at = 0
        self.seen = []

    def train(self, steps):
        for _ in range(steps):
            training.step_once(self.ddp, self.optimizer, dist.get_rank(), self.at)
            self.at += 1

    def set(self, **settings):
        """Set where residuals cannot be carried over, and afterwards."""
        version = self.handle.explain()["settings"][-1]["version"]
        self.handle.set(**settings)
        if self.handle.explain()["settings"][-1]["version"] == version:
            self.handle.flush(2)  # instead of ten steps
            self.train(4)
            self.seen.append("flushed")
        self.train(2)
        explained = self.handle.explain()
        self.seen.append({name: explained["settings"][-1][name] for name in NAMES})

    def end(self):
        found = self.seen, training.digest(self.ddp), self.handle.stats()
        self.handle.close()
        return found


def _through(specs, **options):
    run = Run(specs[0], **options)
    run.train(2)
    for spec in specs[1:]:
        run.set(spec=spec)
    return run.end()


@pytest.mark.parametrize("buckets", [1, 4])
def test_settings_change_to_and_from_every_kind(pools, buckets):
    specs = ["none", "topk:ratio=0.1", "3lc", "none", "powersgd:rank=2", "topk:ratio=0.05", "fp16", "3lc"]
    results = pools(3).run(_through, specs=specs, buckets=buckets)
    for seen, digest, stats in results:
        assert digest == results[0][1]
        assert [s["spec"] for s in seen if s != "flushed"] == specs[1:]
        assert [s["version"] for s in seen if s != "flushed"] == list(range(1, len(specs)))
        assert seen.count("flushed") == 2 and {s["last_change"] for s in seen if s != "flushed"} == {"set"}
        assert stats["setting_changes"] == len(specs) - 1 and stats["failures"] == 0


def test_bucket_follows_its_settings(pools):
    """PyTorch's own sum for what is not compressed, the worker's exchange for all else."""
    for (seen, _, stats), (_, _, plain) in zip(pools(3).run(_through, specs=["none", "topk:ratio=0.1"]),
                                               pools(3).run(_through, specs=["none", "none"])):
        assert stats["exchanges"] == 2 and plain["exchanges"] == 0
        assert seen[0]["strategy"] == "gather_all" and seen[0]["since_step"] == 2


def _as_plain_ddp():
    """After a set to none, and a flush, every step is plain DDP's."""
    run = Run("topk:ratio=0.1")
    run.train(2)
    run.set(spec="none")
    weights, momentum = copy.deepcopy(run.ddp.module.state_dict()), copy.deepcopy(run.optimizer.state_dict())
    run.train(3)
    found = training.digest(run.ddp)
    run.handle.close()
    ddp, _, optimizer = training.build(dist.group.WORLD, None)
    for step in range(2):  # until its buckets are those that it stays with
        training.step_once(ddp, optimizer, dist.get_rank(), step)
    ddp.module.load_state_dict(weights)
    optimizer.load_state_dict(momentum)
    for step in range(run.at - 3, run.at):
        training.step_once(ddp, optimizer, dist.get_rank(), step)
    return found, training.digest(ddp)


def test_none_is_plain_ddp_afterwards(pools):
    for found, plain in pools(3).run(_as_plain_ddp):
        assert found == plain


def _refused(calls):
    run, other = Run("3lc"), Run("3lc")
    said = []
    for own in calls:
        run.train(1)
        try:
            run.handle.set(**own[dist.get_rank() % len(own)])
            said.append("set")
        except LaconicError as error:
            said.append(str(error))
    run.train(2)
    other.train(run.at)
    return said, run.end(), other.end()


def test_refused_set_fails_on_all_ranks_and_changes_nothing(pools):
    rules = [{"match": "hidden.*", "spec": "topk"}]
    calls = [[{"spec": "topk"}, {"spec": "topk:ratio=0.1"}, {"spec": "topk"}], [{"control": "dc2"}, {"control": "aimd"}, {"control": "dc2"}],
             [{"rules": rules}, {}, {}], [{"spec": "topk"}, {"spec": "topq"}, {"spec": "topk"}], [{"spec": 5}],
             [{"rules": "no/such/file.toml"}]]
    says = ["ranks disagree on the spec", "ranks disagree on the control", "ranks disagree on the rules", "rank 1 could not set: ",
            "spec is 5", "no/such/file.toml"]
    results = pools(3).run(_refused, calls=calls)
    for said, run, other in results:
        assert said == results[0][0] and len(said) == len(says)
        for text, part in zip(said, says):
            assert part in text and "\n" not in text, text
        assert run[1] == other[1] == results[0][1][1]


def _rules_and_control():
    run = Run("topk:ratio=0.1", buckets=2)
    run.train(2)
    run.set(rules=[{"match": "hidden.*", "spec": "3lc", "control": "fixed"}], control="schedule:0=0.1,7=0.3")
    first = [(s["rule"], s["spec"]) for s in run.handle.explain()["settings"]]
    line = run.handle.describe()
    run.train(4)
    second = [(s["rule"], s["spec"]) for s in run.handle.explain()["settings"]]
    run.set(rules=[], control="fixed")
    third = [(s["rule"], s["spec"]) for s in run.handle.explain()["settings"]]
    return first, second, third, line, run.end()


def test_rules_and_controls_can_be_set(pools):
    results = pools(3).run(_rules_and_control)
    for first, second, third, line, (_, digest, _) in results:
        assert first == [("hidden.*", "3lc"), ("*", "topk:ratio=0.1")]
        assert second == [("hidden.*", "3lc"), ("*", "topk:ratio=0.3")]
        assert third == [("*", "topk:ratio=0.1")]
        assert "hidden.*: 3lc by " in line and digest == results[0][4][1]


def _within_an_iteration():
    run = Run("3lc", buckets=2)
    said = []

    def hook(_):
        try:
            run.handle.set(spec="topk")
        except LaconicError as error:
            said.append(error.name)

    run.train(2)
    next(run.ddp.module.first.parameters()).register_hook(hook)  # after the first bucket
    run.train(2)
    return said, run.end()


def test_set_within_iteration_is_refused(pools):
    for said, (_, digest, stats) in pools(3).run(_within_an_iteration):
        assert said == ["exchange_order"] * 2 and stats["failures"] == 0


def _registered():
    import own_codecs

    own_codecs.register("largest")
    run = Run("largest")
    run.train(1)
    try:
        run.handle.set(spec="topk")
    except LaconicError as error:
        run.train(1)
        return str(error), run.end()
    return "set", run.end()


def test_registered_codec_keeps_its_settings(pools):
    pytest.importorskip("numpy")
    for said, (_, _, stats) in pools(3).run(_registered):
        assert "the settings of a registered codec cannot change" in said and stats["failures"] == 0


def _lines():
    from laconic.core import environment

    said = []
    environment.say, kept = lambda line, level=0: said.append(line), environment.say
    try:
        run = Run("3lc")
        run.train(1)
        run.set(spec="topk:ratio=0.1", control="dc2")
        run.train(8)
    finally:
        environment.say = kept
    run.end()
    return said


def test_set_logs_one_line_on_rank_0(pools):
    lines = pools(3).run(_lines)
    told = [line for line in lines[0] if line.startswith("set from step 1 on: topk:ratio=0.1 on ")]
    assert len(told) == 1 and "control dc2" in told[0]
    assert not any("set" in line.split(":")[-1] for line in lines[0] if line.startswith("control of"))
    assert not any(line.startswith("set from") for line in lines[1] + lines[2])


def _waits(trouble):
    """Lines, and the specs in force, of a set that has no place for residuals."""
    from laconic.core import environment

    said, specs = [], []
    environment.say, kept = lambda line, level=0: said.append(line), environment.say
    try:
        run = Run("3lc", buckets=2)
        run.train(2)
        run.handle.set(spec="bf16")
        if trouble:
            def fails():
                run.handle.worker.session.waiting = False
                raise laconic.core.errors.error("out_of_memory", "out of memory")
            run.handle.worker._driver.set_what_waits = fails
        for _ in range(13):
            run.train(1)
            specs.append(run.handle.explain()["settings"][-1]["spec"])
        left = run.handle.stats()["residual_norm"]
        if not trouble:
            run.handle.set(spec="3lc")
            run.train(2)
            run.handle.set(spec="none")
    finally:
        _, digest, stats = run.end()
        environment.say = kept
    return said, specs, left, digest, stats


def test_set_waits_until_residuals_are_sent(pools):
    results = pools(3).run(_waits, trouble=False)
    for said, specs, left, digest, stats in results:
        assert specs == ["3lc"] * 11 + ["bf16"] * 2  # one step to send the request, ten to drain
        assert left == 0 and stats["failures"] == 0 and digest == results[0][3]
    lines = results[0][0]
    assert "set: residuals are sent first, over 10 steps or more" in lines
    assert any(line.startswith("set from step 13 on: bf16 ") for line in lines)
    assert "set: training ended before all residuals were sent; nothing was changed" in lines
    assert not any(line.startswith("set") for said, *_ in results[1:] for line in said)


def test_delayed_set_that_fails_is_reported(pools):
    results = pools(3).run(_waits, trouble=True)
    for _, specs, _, digest, stats in results:
        assert specs == ["3lc"] * 13 and stats["failures"] == 0 and digest == results[0][3]
    assert any(line.startswith("set: out of memory; training continues with 3lc") for line in results[0][0])


def _asks_alone():
    run, specs = Run("3lc"), []
    run.train(2)
    run.handle.set(spec="bf16")
    for _ in range(13):
        run.train(1)
        if dist.get_rank() == 1:
            run.handle.flush(1)
        specs.append(run.handle.explain()["settings"][-1]["spec"])
    return specs, run.end()


def test_request_of_one_rank_does_not_delay_set_of_all(pools):
    results = pools(3).run(_asks_alone)
    for specs, (_, digest, stats) in results:
        assert specs == ["3lc"] * 11 + ["bf16"] * 2
        assert stats["failures"] == 0 and digest == results[0][1][1]


def _cut_off():
    from laconic.core import environment

    said, raised = [], ""
    environment.say, kept = lambda line, level=0: said.append(line), environment.say
    run = Run("3lc")
    run.train(2)
    run.handle.set(spec="bf16")

    start = run.handle.worker.engine.start

    def fails(steps, count):
        if steps[0].send_bytes == _lib.AGREEMENT_BYTES:
            raise RuntimeError("the cable is cut")
        return start(steps, count)
    run.handle.worker.engine.start = fails
    try:
        run.train(11)
        before = run.handle.stats()
        run.train(2)
    except RuntimeError as error:
        raised = str(error)
    left = run.handle.stats()["residual_norm"]
    run.handle.close()
    environment.say = kept
    return said, raised, before["residual_norm"], left


def test_engine_failure_while_set_waits_loses_nothing(pools):
    for said, raised, before, left in pools(3).run(_cut_off):
        assert "the cable is cut" in raised
        assert before == 0 and left > 0  # the gradients of that step
        assert not any("goes on" in line for line in said), said


def _saved():
    """State saved after a set continues in a run that attaches with it."""
    hashes = []
    for interrupted in (False, True):
        run = Run("3lc", buckets=2)
        run.train(3)
        run.set(spec="powersgd:rank=2")
        if interrupted:
            state, at = run.handle.state_dict(), run.at
            model, optimizer = run.ddp.module.state_dict(), run.optimizer.state_dict()
            run.handle.close()
            run = Run("powersgd:rank=2", buckets=2)
            run.ddp.module.load_state_dict(model)
            run.optimizer.load_state_dict(optimizer)
            run.handle.load_state_dict(state)
            run.at = at
        run.train(3)
        hashes.append(run.end()[1])
    return hashes


def _loaded_late():
    run = Run("3lc")
    run.train(2)
    load = run.handle.prepare(run.handle.state_dict())
    run.set(spec="topk:ratio=0.1")
    try:
        load()
    except LaconicError as error:
        return error.name, run.end()
    return "loaded", run.end()


def test_state_checked_before_set_is_not_loaded_after_it(pools):
    for said, (_, digest, _) in pools(3).run(_loaded_late):
        assert said == "exchange_order"


def test_state_saved_after_set_has_new_settings(pools):
    for before, after in pools(3).run(_saved):
        assert before == after


def _own_session():
    from laconic.core import environment

    rank, found = dist.get_rank(), []
    model = [("w", (60, 50)), ("b", (40,))]
    values = (ctypes.c_float * 3040)()
    session = laconic.Session("3lc", model, engine="c10d", small_elements=64)
    for step, spec in enumerate([None, "topk:ratio=0.1", ["topk", "3lc"][rank == 1], "powersgd:rank=2", None]):
        if spec is not None:
            try:
                session.set(spec=spec)
                found.append(session.spec)
            except LaconicError as error:
                found.append(str(error))
        values[:] = torch.randn(3040, generator=torch.Generator().manual_seed(10 * step + rank)).tolist()
        session.average(step, values)
    session.set(spec="none")
    for step in range(5, 17):
        found.append(session.spec)
        session.average(step, values)
    found.append(session.spec)
    session.set(spec="3lc")
    session.average(17, values)
    session.set(spec="none")  # waits when the session is closed
    said = []
    environment.say, kept = lambda line, level=0: said.append(line), environment.say
    try:
        session.close()
    finally:
        environment.say = kept
    return found, list(values), said


def test_sessions_without_ddp_can_be_set(pools):
    results = pools(3).run(_own_session)
    assert [said for _, _, said in results] == [["set: the session ended before all residuals were sent; nothing was changed"], [], []]
    for found, values, _ in results:
        assert found[3:] == ["powersgd:rank=2"] * 12 + ["none"]
        assert found[0] == "topk:ratio=0.1" and found[2] == "powersgd:rank=2"
        assert "ranks disagree on the spec" in found[1] and values == results[0][1]
