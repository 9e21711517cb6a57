# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Errors of calls that cannot work: a message with the next thing to try, on every rank, never a hang."""

from __future__ import annotations

import datetime
import gc
import pickle
import time

import pytest
from ranks import Ranks

import laconic


def told(call) -> laconic.LaconicError:
    with pytest.raises(laconic.LaconicError) as caught:
        call()
    return caught.value


# ---- one process ----

@pytest.mark.parametrize(("spec", "code", "name", "words"), [
    ("topkk", 3, "unknown_codec", ["'topkk'", "did you mean 'topk'?", "powersgd", "laconic list"]),
    ("3cl", 3, "unknown_codec", ["'3cl'", "did you mean '3lc'?"]),
    ("topk:ratoi=0.1", 4, "unknown_key", ["'ratoi'", "did you mean 'ratio'?", "1e-9 to 1", "default 0.01"]),
    ("sidco:laws=exp", 4, "unknown_key", ["did you mean 'law'?", "ratio", "stages", "mode"]),
    ("3lc:s=2", 5, "value_out_of_range", ["'2'", "1 to 2", "default is 1"]),
    ("powersgd:rank=0", 5, "value_out_of_range", ["1 to 64", "default is 4"]),
    ("int8:round=up", 5, "value_out_of_range", ["'up'", "nearest", "stochastic"]),
    ("none+ef", 9, "unsupported", ["none"]),
    ("", 2, "spec_syntax", ["name is missing", "topk:ratio=0.01"]),
    ("topk:ratio", 2, "spec_syntax", ["key=value"]),
])
def test_wrong_spec_names_nearest_right_one(spec, code, name, words):
    error = told(lambda: laconic.Codec(spec))
    assert (error.code, error.name) == (code, name)
    for word in words:
        assert word in str(error), str(error)
    assert error.message in str(error) and error.hint in str(error)


def test_errors_are_passed_between_processes():
    error = told(lambda: laconic.Codec("topk:ratoi=0.1"))
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), copy.code, copy.name, copy.message, copy.hint, str(copy)) == (
        laconic.LaconicError, error.code, error.name, error.message, error.hint, str(error))
    assert isinstance(error, RuntimeError)


@pytest.mark.parametrize("what", [None, "model", 3])
def test_attach_takes_a_ddp_model(what):
    pytest.importorskip("torch")
    error = told(lambda: laconic.attach(what, "3lc"))
    assert error.name == "unsupported" and type(what).__qualname__ in error.message
    assert "DistributedDataParallel" in error.hint and "laconic.run" in error.hint


def test_attach_names_type_of_its_argument():
    torch = pytest.importorskip("torch")
    assert "torch.nn.modules.linear.Linear" in told(lambda: laconic.attach(torch.nn.Linear(2, 2), "3lc")).message


# ---- ranks: every one of them hears the same ----

def _attach(per_rank=None, environment=None, register=None, python_reducer=False, **same):
    """The error of attach on this rank, and that the group still works afterwards."""
    import os

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import laconic

    rank = dist.get_rank()
    arguments = {"spec": "3lc", "quiet": True, **same, **(per_rank or {}).get(rank, {})}
    width = arguments.pop("width", 80)
    model = torch.nn.Linear(width, 80)
    if arguments.pop("renamed", False):
        model = torch.nn.Sequential(model)
    ddp = DistributedDataParallel(model, process_group=dist.group.WORLD)
    if register:
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        if register == "laconic":
            laconic.attach(ddp, "3lc", quiet=True)
        else:
            ddp.register_comm_hook(None, getattr(default_hooks, register))
    if python_reducer:
        ddp._use_python_reducer = True
    if arguments.pop("unwrapped", False):
        ddp = model
    os.environ.update((environment or {}).get(rank, {}))
    try:
        handle = laconic.attach(ddp, **arguments)
        handle.close()
        return None
    except laconic.LaconicError as error:
        return error
    finally:
        for name in (environment or {}).get(rank, {}):
            del os.environ[name]
        everyone = torch.ones(1)
        dist.all_reduce(everyone)
        assert everyone.item() == dist.get_world_size()


def every_rank(pool, name, *words, **arguments):
    errors = pool.run(_attach, **arguments)
    assert all(isinstance(e, laconic.LaconicError) for e in errors), errors
    assert {e.name for e in errors} == {name}, errors
    assert len({e.message for e in errors}) == 1, errors
    for word in words:
        assert word in str(errors[0]), str(errors[0])
    assert all(e.hint for e in errors)


DISAGREEMENTS = {
    "spec": ({2: {"spec": "topk:ratio=0.05"}}, ["the spec", "rank 0 has '3lc'", "rank 2 has 'topk:ratio=0.05'"]),
    "option": ({1: {"spec": "3lc:s=1.5"}}, ["rank 0 has '3lc'", "rank 1 has '3lc:s=1.5'"]),
    "feedback": ({1: {"spec": "3lc+noef"}}, ["rank 0 has '3lc'", "rank 1 has '3lc+noef'"]),
    "seed": ({1: {"seed": 5}}, ["the seed", "rank 0 has 0", "rank 1 has 5"]),
    "small_elements": ({2: {"small_elements": 64}}, ["small_elements", "4096", "64"]),
    "strategy": ({2: {"strategy": "two_shot"}}, ["the strategy"]),
    "names": ({1: {"renamed": True}}, ["the model", "names or shapes"]),
}


@pytest.mark.parametrize("what", DISAGREEMENTS)
def test_ranks_that_disagree_get_one_message(pools, what):
    per_rank, words = DISAGREEMENTS[what]
    every_rank(pools(3), "ranks_disagree", *words, per_rank=per_rank)


def test_same_spec_in_other_words_is_accepted(pools):
    assert pools(3).run(_attach, per_rank={1: {"spec": "3lc:s=1.0,scale=unit"}}) == [None] * 3


@pytest.mark.parametrize(("arguments", "words"), [
    ({"spec": "topkk"}, ["'topkk'", "did you mean 'topk'?"]),
    ({"spec": ""}, ["no spec given"]),
    ({"strategy": "native_sum"}, ["native_sum", "3lc"]),
    ({"strategy": "best"}, ["'best'", "two_shot"]),
    ({"seed": "seven"}, ["seed is 'seven'"]),
])
def test_one_rank_that_cannot_attach_is_named_on_all(pools, arguments, words):
    every_rank(pools(3), "ranks_disagree", "rank 1 could not attach", *words, per_rank={1: arguments})


@pytest.mark.parametrize(("environment", "words"), [
    ({"LACONIC_SPEC": "topk:ratoi=0.1"}, ["rank 2 could not attach", "'ratio'"]),
    ({"LACONIC_EMULATE_RATE": "fast"}, ["rank 2 could not attach", "LACONIC_EMULATE_RATE", "fast"]),
])
def test_one_rank_with_a_wrong_variable_is_named_on_all(pools, environment, words):
    every_rank(pools(3), "ranks_disagree", *words, environment={2: environment},
               per_rank={2: {"spec": None}} if "LACONIC_SPEC" in environment else None)


def test_variable_missing_on_one_rank_is_reported(pools):
    every_rank(pools(3), "ranks_disagree", "rank 2 could not attach: no spec given", spec=None,
               environment={r: {"LACONIC_SPEC": "3lc"} for r in (0, 1)})


@pytest.mark.parametrize("off", [[1], [0, 2]])
def test_kill_switch_on_some_ranks_gives_one_message(pools, off):
    on = ", ".join(str(r) for r in range(3) if r not in off)
    every_rank(pools(3), "ranks_disagree", f"LACONIC_DISABLE=1 is set on rank {', '.join(map(str, off))} and not on rank {on}",
               environment={r: {"LACONIC_DISABLE": "1"} for r in off})


@pytest.mark.parametrize("word", ["1", "true", "Yes", "ON"])
def test_kill_switch_on_all_ranks_disables(pools, word):
    assert pools(3).run(_attach, environment={r: {"LACONIC_DISABLE": word} for r in range(3)}, register="fp16_compress_hook") == [None] * 3


@pytest.mark.parametrize("word", ["0", "false", "No", "off", ""])
def test_kill_switch_that_is_off_is_silent(pools, word):
    first, _ = pools(2).run(_announced, environment={"LACONIC_SPEC": "topk", "LACONIC_DISABLE": word})
    assert len(first) == 2 and all("topk on 1 of 2 tensors" in line for line in first)  # the start line, at each attach


def test_one_rank_without_ddp_is_named_on_all(pools):
    every_rank(pools(3), "ranks_disagree", "rank 1 could not attach: cannot attach to a torch.nn.modules.linear.Linear",
               per_rank={1: {"unwrapped": True}})


def _attach_but_one(absent, timeout):
    """The error of attach if one rank never calls it."""
    import torch
    import torch.distributed as dist
    import training
    from torch.nn.parallel import DistributedDataParallel

    import laconic

    group = dist.new_group(timeout=training.LONG_TIMEOUT)
    ddp = DistributedDataParallel(torch.nn.Linear(80, 80), process_group=group)
    training.waits(group, timeout)
    dist.barrier()
    if dist.get_rank() == absent:
        return None
    try:
        laconic.attach(ddp, "3lc", quiet=True)
    except laconic.LaconicError as error:
        return error


def test_rank_that_does_not_attach_is_named():
    ranks = Ranks(3)  # of its own: its store has timed out
    try:
        first, absent, last = ranks.run(_attach_but_one, absent=1, timeout=3)
    finally:
        ranks.close()
    assert absent is None and first.message == last.message
    assert (first.code, first.name) == (63, "timed_out") and "rank 1 did not attach within 3 s" in first.message
    assert "running without laconic?" in first.message


def _siblings(failing):
    """Names of the sibling groups of three handles in a row, and of two at a time; the first may be `failing`."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import laconic

    group, seen, wrappers = dist.new_group(), [], []

    def attach():
        wrappers.append(DistributedDataParallel(torch.nn.Linear(80, 80), process_group=group))
        handle = laconic.attach(wrappers[-1], "3lc", quiet=True)
        seen.append(id(handle._opened.sibling.group))
        return handle

    first = attach()
    if failing == dist.get_rank():  # this rank alone knows of it
        first.worker.exchanges.break_off(laconic.LaconicError(62, "engine_failed", "the test says so"))
    first.close()
    for handle in (attach(), attach()):  # which share one
        handle.close()
    attach().close()
    return [seen.index(x) for x in seen]


def test_sibling_groups_are_reused_except_after_failure(pools):
    assert pools(3).run(_siblings, failing=None) == [[0, 0, 0, 0]] * 3
    assert pools(3).run(_siblings, failing=1) == [[0, 1, 1, 1]] * 3


def _collected_while_another_attaches(collects):
    """Rank `collects` loses the first wrapper after it has told the others of its sibling group."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import laconic
    from laconic.engines.group import Meeting

    group, meet, number = dist.new_group(timeout=datetime.timedelta(seconds=20)), Meeting.__init__, []

    def collected(*arguments):
        meet(*arguments)
        number.extend(arguments[0].shared)
        if dist.get_rank() == collects:
            del wrappers[0]
            gc.collect()

    wrappers = [DistributedDataParallel(torch.nn.Linear(80, 80), process_group=group)]
    thread = laconic.attach(wrappers[0], "3lc", quiet=True).worker.commands._lane.thread
    wrappers.append(DistributedDataParallel(torch.nn.Linear(80, 80), process_group=group))
    Meeting.__init__ = collected
    try:
        handle = laconic.attach(wrappers[-1], "3lc", quiet=True)
    finally:
        Meeting.__init__ = meet
    wrappers[-1](torch.ones(2, 80)).sum().backward()
    exchanges = handle.stats()["exchanges"]
    handle.close()
    wrappers.clear()
    gc.collect()
    thread.join(20)
    return len(number), exchanges, thread.is_alive()


def test_wrapper_collected_during_attach_leaves_its_group_open(pools):
    assert pools(3).run(_collected_while_another_attaches, collects=1, seconds=100) == [(1, 1, False)] * 3


def _attached_late(late):
    """Rank `late` comes to the probes after the group's timeout; then all of them attach again."""
    import torch
    import torch.distributed as dist
    import training
    from torch.nn.parallel import DistributedDataParallel

    import laconic
    from laconic.engines.c10d import Engine

    group, seen, errors = dist.new_group(timeout=training.LONG_TIMEOUT), [], []
    ddp = DistributedDataParallel(torch.nn.Linear(80, 80), process_group=group)
    laconic.attach(ddp, "3lc", quiet=True).close()
    training.waits(group, 2)
    probe = Engine.probe_sums

    def slow(engine):
        seen.append(engine.group)
        if dist.get_rank() == late and not errors:
            time.sleep(3)
        return probe(engine)

    Engine.probe_sums = slow
    try:
        for _ in range(2):
            ddp = DistributedDataParallel(torch.nn.Linear(80, 80), process_group=group)
            try:
                laconic.attach(ddp, "3lc", quiet=True).close()
            except laconic.LaconicError as error:
                errors.append((error.name, error.message))
            training.waits(group, 60)
    finally:
        Engine.probe_sums = probe
    with pytest.raises(laconic.LaconicError, match="did not complete"):
        Engine(seen[0])
    return errors, len(set(seen))


def test_attach_after_a_failed_one_gets_a_group_of_its_own(pools):
    first, *others = pools(3).run(_attached_late, late=1)
    assert [first] * 2 == others
    ((name, said),), groups = first
    assert name == "engine_failed" and said == "a collective did not complete within 2 s" and groups == 2


@pytest.mark.parametrize(("arguments", "name", "words"), [
    ({"spec": "topkk"}, "unknown_codec", ["did you mean 'topk'?"]),
    ({"spec": None}, "invalid_argument", ["no spec given", "LACONIC_SPEC"]),
    ({"spec": "topk", "strategy": "native_sum"}, "unsupported", ["native_sum", "topk", "planner"]),
    ({"seed": 2**64}, "invalid_argument", ["seed is 18446744073709551616"]),
    ({"seed": -1}, "invalid_argument", ["seed is -1", "0 to 18446744073709551615"]),
    ({"small_elements": -1}, "invalid_argument", ["small_elements is -1"]),
    ({"small_elements": 1.5}, "invalid_argument", ["small_elements is 1.5"]),
    ({"threads": -1}, "invalid_argument", ["threads is -1", "1024"]),
    ({"threads": 2**32 + 1}, "invalid_argument", ["threads is 4294967297"]),
    ({"strategy": ["auto"]}, "invalid_argument", ["strategy"]),
    ({"spec": 3}, "invalid_argument", ["spec is 3"]),
    ({"register": "fp16_compress_hook"}, "unsupported", ["fp16_compress_hook", "wrap the model again"]),
    ({"python_reducer": True}, "unsupported", ["optimize_ddp", "python_reducer", "default"]),
    ({"register": "laconic"}, "unsupported", ["laconic is already attached to this model", "handle"]),
])
def test_same_error_on_all_ranks_is_reported_plainly(pools, arguments, name, words):
    every_rank(pools(3), name, *words, **arguments)


def _sharded(kind):
    import torch
    import torch.distributed as dist

    import laconic

    model = torch.nn.Linear(80, 80)
    if kind == "fully_shard":
        from torch.distributed.fsdp import fully_shard

        model = fully_shard(model, mesh=dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),)))
    else:
        from torch.distributed.fsdp import FullyShardedDataParallel

        model = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
    try:
        laconic.attach(model, "3lc")
    except laconic.LaconicError as error:
        return error.name, error.message, error.hint


@pytest.mark.parametrize("kind", ["fully_shard", "FSDP1"])
def test_sharded_models_are_refused_with_working_hint(pools, kind):
    pytest.importorskip("torch.distributed._composable.replicate_with_fsdp", reason="this PyTorch has no FSDP2")
    for name, message, hint in pools(2).run(_sharded, kind=kind):
        assert name == "unsupported"
        if kind == "fully_shard":
            assert "1-D mesh" in message and 'replicate=mesh["replicate"]' in hint
        else:
            assert "cannot attach to a " in message and "fully_shard() (FSDP2)" in hint


# ---- variables ----

def _announced(environment):
    import contextlib
    import io
    import os

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import laconic

    heard = io.StringIO()
    os.environ.update(environment)
    with contextlib.redirect_stderr(heard):
        for _ in range(2):
            handle = laconic.attach(DistributedDataParallel(torch.nn.Linear(80, 80), process_group=dist.group.WORLD))
            handle.close()
    for name in environment:
        del os.environ[name]
    return heard.getvalue().splitlines()


def test_unknown_variables_are_named_once(pools):
    first, second = pools(2).run(_announced, environment={"LACONIC_SPEC": "topk", "LACONIC_SPCE": "3lc", "LACONIC_FROBNICATE": "1"})
    notices = [line for line in first if "not a variable" in line]
    assert sorted(notices) == sorted(set(notices)) and len(notices) == 2
    assert "LACONIC_SPCE" in notices[1] and "did you mean LACONIC_SPEC?" in notices[1]
    assert "LACONIC_FROBNICATE" in notices[0] and "LACONIC_DISABLE" in notices[0]
    assert [line for line in first if "topk on 1 of 2 tensors" in line] == first[-2:]  # the start line, at each attach
    assert second == []  # one process per node speaks


def test_log_level_filters_messages(pools):
    first, _ = pools(2).run(_announced, environment={"LACONIC_SPEC": "topk", "LACONIC_LOG": "warn", "LACONIC_NOISE": "1"})
    assert len(first) == 1 and "LACONIC_NOISE" in first[0]


@pytest.mark.parametrize(("variable", "value", "words"), [
    ("LACONIC_LOG", "loud", ["is not a level, using info", "warn, info and debug"]),
    ("LACONIC_DISABLE", "maybe", ["does not disable laconic", "1, true, yes, on do"]),
])
def test_invalid_value_of_variable_is_named_once(pools, variable, value, words):
    first, second = pools(2).run(_announced, environment={"LACONIC_SPEC": "topk", variable: value})
    named = [line for line in first if f"{variable}={value}" in line]
    assert len(named) == 1 and all(word in named[0] for word in words)
    assert len(first) == 3 and second == []  # and the start line, at each attach


def test_levels_may_be_upper_case_or_full_words(pools):
    for level in ("WARN", "warning"):
        first, _ = pools(2).run(_announced, environment={"LACONIC_SPEC": "topk", "LACONIC_LOG": level})
        assert first == []


# ---- emulated links ----

def test_emulated_rates_are_parsed(monkeypatch, tmp_path):
    from laconic.engines import emulate

    clock, slept = [100.0], []
    monkeypatch.setattr(emulate.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(emulate.time, "sleep", slept.append)
    monkeypatch.delenv(emulate.RATE, raising=False)
    monkeypatch.delenv(emulate.RATE_FILE, raising=False)
    assert emulate.limiter_from_environment() is None

    def spend(limiter, count):
        """Seconds until `count` bytes are there, when nothing else is on the link."""
        clock[0] += 100
        slept.clear()
        limiter.wait(limiter.send(count))
        return sum(slept)

    monkeypatch.setenv(emulate.RATE, "8000")
    limiter = emulate.limiter_from_environment()
    assert spend(limiter, 500) == 0.5
    clock[0] += 100
    first, second = limiter.send(500), limiter.send(1000)  # one after the other
    assert (first - clock[0], second - clock[0]) == (0.5, 1.5)
    clock[0] += 1.25
    slept.clear()
    limiter.wait(first)
    limiter.wait(second)
    assert slept == [0.25]

    file = tmp_path / "rate"  # what `laconic lab --emulate` rewrites when the rate changes
    file.write_text("16000\n")
    monkeypatch.setenv(emulate.RATE_FILE, str(file))
    limiter = emulate.limiter_from_environment()
    seconds = [spend(limiter, 500)]
    for rate in ("0\n", "4000\n"):
        file.write_text(rate)
        seconds.append(spend(limiter, 500))
    file.unlink()  # the lab is gone: its last word holds
    assert [*seconds, spend(limiter, 500)] == [0.25, 0.0, 1.0, 1.0]

    monkeypatch.setenv(emulate.RATE, "")  # off at the start, a file for later
    file.write_text("0")
    limiter = emulate.limiter_from_environment()
    assert spend(limiter, 500) == 0
    file.write_text("8000")
    assert spend(limiter, 500) == 0.5

    for wrong in ("fast", "-1", "inf", "nan"):
        monkeypatch.setenv(emulate.RATE, wrong)
        assert wrong in told(emulate.limiter_from_environment).message
