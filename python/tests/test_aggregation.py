# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Aggregation servers from PyTorch: `laconic serve` as a process, ranks with Gloo, datagrams over the loopback."""

from __future__ import annotations

import datetime
import os
import re
import signal
import time

import pytest

torch = pytest.importorskip("torch")

import serving  # noqa: E402
import torch.distributed as dist  # noqa: E402
import training  # noqa: E402
from launches import launch  # noqa: E402
from ranks import Ranks  # noqa: E402

import laconic  # noqa: E402
from laconic.core import environment  # noqa: E402
from laconic.engines import aggregation  # noqa: E402

pytestmark = pytest.mark.skipif(not serving.BINARY.exists(), reason=f"{serving.BINARY} is not built")
SPEC = "thc:block=256"
TIMEOUT = 15  # seconds, of groups whose timeout has to come: more than a machine stands still


def _gradient(rank, step):
    return torch.randn(64, 96, generator=torch.Generator().manual_seed(100 * step + rank))


def _model(spec=SPEC, **options):
    """Compressed parameters and nothing else."""
    torch.manual_seed(3)
    ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(96, 64, bias=False))
    return ddp, laconic.attach(ddp, spec, small_elements=16, quiet=True, **options)


def _mean(ddp, rank, step):
    """The mean of the step's gradients, as this rank gets it."""
    weight = ddp.module.weight
    weight.grad = None
    (ddp(torch.eye(96)).T * _gradient(rank, step)).sum().backward()
    return weight.grad.clone()


def _until(*files):
    end = time.monotonic() + 40  # of a test that fails
    while not all(file.exists() for file in files) and time.monotonic() < end:
        time.sleep(0.01)


def _means(steps, spec=SPEC, rests=None, **options):
    """`rests`: (step, folder) before which all rest: each makes a file there, and waits for one named `go`."""
    rank = dist.get_rank()
    ddp, handle = _model(spec, **options)
    held = []
    for step in range(steps):
        if rests is not None and rests[0] == step:
            (rests[1] / str(rank)).touch()
            _until(rests[1] / "go")
        held.append(_mean(ddp, rank, step))
    told = handle.explain(), handle.stats(), training.raw(torch.stack(held))
    handle.close()
    return told


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("spec", [SPEC, "thc:block=256,scale=exact,lane=16", "thc:block=256,bits=2+noef"])
def test_means_equal_sums_of_group(pools, spec, count):
    with serving.servers(count) as started:
        at = serving.listed(started)
        by_server = pools(3).run(_means, steps=6, spec=spec, aggregator=at)
    by_group = pools(3).run(_means, steps=6, spec=spec)
    assert len({means for _, _, means in by_server + by_group}) == 1
    for explained, stats, _ in by_server:
        assert explained["strategy"] == "server_sum" and explained["aggregators"] == at.split(",")
        assert explained["lane_bits"] in (8, 16) and explained["table"]
        assert stats["excluded_granules"] == stats["partial_granules"] == stats["aggregator_restarts"] == 0
        assert stats["rtt_us"] > 0 and stats["resent_datagrams"] >= 0 and stats["duplicate_datagrams"] >= 0
    assert all(explained["strategy"] == "native_sum" and "aggregators" not in explained for explained, _, _ in by_group)


def test_small_parameters_train_the_same_on_all_ranks(pools):
    with serving.servers(1) as (server,):
        results = pools(3).run(training.train, spec=SPEC, steps=8, buckets=3, attach_options={"aggregator": server.address})
    assert len({result["hash"] for result in results}) == 1 and results[0]["finite"]
    assert results[0]["stats"]["exchanges"] >= 8


@pytest.mark.parametrize("flush", [None, (4, 3)])
def test_resumed_run_continues_bit_for_bit(pools, flush):
    with serving.servers(1) as (server,):
        for whole, resumed in pools(3).run(training.resume, spec=SPEC, buckets=3, flush=flush,
                                           attach_options={"aggregator": server.address}):
            assert whole == resumed


def _not_finite(address):
    rank = dist.get_rank()
    ddp, handle, optimizer = training.build(dist.group.WORLD, SPEC, attach_options={"aggregator": address})
    for step in range(2):
        training.step_once(ddp, optimizer, rank, step)
    optimizer.zero_grad()
    x, y = training.batch(rank, 2)
    (torch.nn.functional.cross_entropy(ddp(x), y) * (float("nan") if rank == 1 else 1.0)).backward()
    spread = any(not bool(p.grad.isfinite().all()) for p in ddp.parameters())
    optimizer.zero_grad()
    for step in range(3, 5):
        training.step_once(ddp, optimizer, rank, step)
    found = spread, handle.stats()["fallbacks"], training.digest(ddp), all(bool(p.isfinite().all()) for p in ddp.parameters())
    handle.close()
    return found


def test_nan_on_one_rank_reaches_all(pools):
    with serving.servers(1) as (server,):
        results = pools(3).run(_not_finite, address=server.address)
    assert all(found == results[0] for found in results)
    spread, fallbacks, _, finite = results[0]
    assert spread and fallbacks >= 1 and finite


def test_documented_server_keys_exist(pools):
    """docs/guide/pytorch.md has a row for each, in addition to those of every exchange."""
    page = (serving.ROOT / "docs" / "guide" / "pytorch.md").read_text(encoding="utf-8")
    with serving.servers(1) as (server,):
        explained, stats, _ = pools(2).run(_means, steps=1, aggregator=server.address)[0]
    for what, keys in (("stats", stats), ("explain", explained)):
        sections = [page.split(f"{mark} `{what}()`")[1].split("\n#")[0] for mark in ("###", "#### Servers, in")]
        documented = {key for section in sections for key in re.findall(r"^\| `(\w+)`", section, re.M)}
        assert documented == set(keys), documented.symmetric_difference(keys)


# ---- who is late, who is gone ----

def _late(address, folder):
    """Rank 1 is late in step 3: it begins when the others have the mean."""
    rank = dist.get_rank()
    ddp, handle = _model(aggregator=address, quorum=0.75, deadline_ms=30)

    def residual():
        return handle.state_dict()["tensors"]["residual/weight"].reshape(64, 96)

    means, kept = [], None
    for step in range(8):
        before = residual()
        if rank == 1 and step == 3:
            _until(*(folder / str(other) for other in (0, 2, 3)))
        excluded = handle.stats()["excluded_granules"]
        means.append(_mean(ddp, rank, step))
        if step == 3:
            (folder / str(rank)).touch()
        if rank == 1 and step == 3:
            missed = handle.stats()["excluded_granules"] - excluded
            kept = missed, float((residual() - before - _gradient(rank, step)).abs().max())
    stats = handle.stats()
    handle.close()
    return stats, training.raw(torch.stack(means)), kept


def test_late_rank_is_excluded_and_keeps_gradients(pools, tmp_path):
    """Three of four are enough; what the late one had, all 24 blocks of it, comes with the next step."""
    with serving.servers(1) as (server,):
        results = pools(4).run(_late, address=server.address, folder=tmp_path)
    assert len({means for _, means, _ in results}) == 1, "replicas differ"
    assert all(stats["partial_granules"] >= 24 for stats, _, _ in results)
    missed, lost = results[1][2]
    assert missed == 24 and lost < 1e-5


def test_restarted_server_changes_nothing(tmp_path):
    pool = Ranks(3)
    try:
        with serving.servers(1) as (server,):
            pool.start(_means, steps=8, rests=(4, tmp_path), aggregator=server.address)
            _until(*(tmp_path / str(rank) for rank in range(3)))
            server.restart()
            (tmp_path / "go").touch()
            disturbed = [value for _, value in pool.finish()]
        undisturbed = pool.run(_means, steps=8)
    finally:
        pool.close()
    assert {means for _, _, means in disturbed} == {means for _, _, means in undisturbed}


def _until_it_fails(victim=None, number=None, begun=None, **options):
    """What ends the run, and whether what came in is still here: all that was delivered plus the residual. `begun`: a file that says
    that steps are under way."""
    rank = dist.get_rank()
    ddp, handle = _model(**options)
    for step in range(3):
        _mean(ddp, rank, step)
    kept = handle.state_dict()["tensors"]["residual/weight"].reshape(64, 96)
    dist.barrier()
    if rank == victim:
        os.kill(os.getpid(), number)
    if begun is not None:
        begun.touch()
    message = None
    try:
        for step in range(3, 1_000_000):
            if step > 3:
                kept = handle.state_dict()["tensors"]["residual/weight"].reshape(64, 96)
            _mean(ddp, rank, step)
    except RuntimeError as error:
        message = str(error)
    after = handle.state_dict()["tensors"]["residual/weight"].reshape(64, 96)
    whole = torch.allclose(after, kept + _gradient(rank, step), atol=1e-5)
    again = None
    try:
        _mean(ddp, rank, step + 1)
    except RuntimeError as error:
        again = str(error)
    handle.close()
    return message, whole, again


def test_killed_rank_is_named_on_all_others():
    pool = Ranks(3, timeout=600)  # longer than finish() waits
    try:
        with serving.servers(1) as (server,):
            pool.start(_until_it_fails, victim=1, number=signal.SIGKILL, aggregator=server.address)
            outcomes = pool.finish()
    finally:
        pool.close()
    assert outcomes[1][0] == "dead"
    for rank in (0, 2):
        kind, (message, whole, again) = outcomes[rank]
        assert kind == "ok" and "rank 1" in message, message
        assert whole and again is not None


def _behind_a_rank_that_stops(body, timeout):
    """The server's address, and what ranks 0 and 1 received."""
    pool = Ranks(3, timeout=timeout)
    try:
        with serving.servers(1) as (server,):
            pool.start(body, victim=2, number=signal.SIGSTOP, aggregator=server.address)
            outcomes = [pool.pipes[rank].recv() if pool.pipes[rank].poll(120) else ("nothing", None) for rank in (0, 1)]
            os.kill(pool.processes[2].pid, signal.SIGKILL)
    finally:
        pool.close()
    heard = []
    for kind, value in outcomes:
        assert kind == "ok", value
        message, whole, _ = value
        assert whole, message
        heard.append(message)
    return server.address, heard


def test_rank_that_stalls_is_lost_after_the_groups_timeout():
    for message in _behind_a_rank_that_stops(_until_it_fails, TIMEOUT)[1]:
        assert "rank 2" in message, message
        assert "LaconicError" not in message, "the servers' words, as they are"


def _until_it_fails_with_short_timeout(**options):
    """The group's timeout is 5 s from the third step on, in which a rank stands still."""
    barrier = dist.barrier

    def hurry():
        barrier()
        dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=5), dist.group.WORLD)

    dist.barrier = hurry
    try:
        return _until_it_fails(**options)
    finally:
        dist.barrier = barrier


def test_shorter_timeout_than_attach_applies():
    address, heard = _behind_a_rank_that_stops(_until_it_fails_with_short_timeout, 600)
    for message in heard:
        assert f"no sum from {address} within 5 s" in message, message


def test_absent_server_is_named(tmp_path):
    pool = Ranks(3, timeout=TIMEOUT)
    try:
        with serving.servers(1) as (server,):
            pool.start(_until_it_fails, begun=tmp_path / "begun", aggregator=server.address)
            _until(tmp_path / "begun")
            server.kill()
            outcomes = pool.finish()
    finally:
        pool.close()
    for kind, value in outcomes:
        assert kind == "ok", value
        message, whole, again = value
        assert server.address in message and whole and again is not None, message


def _leaves_at_once(address):
    """Rank 0 ends right after its last step, without close; the others look after theirs."""
    rank = dist.get_rank()
    ddp, handle = _model(aggregator=address)
    for step in range(3):
        _mean(ddp, rank, step)
    handle.worker.engine.leave()  # what the end of the process calls
    return training.raw(ddp.module.weight.grad)


def test_finished_rank_waits_for_others(pools):
    with serving.servers(1) as (server,):
        assert len(set(pools(3).run(_leaves_at_once, address=server.address))) == 1


# ---- what is refused, on all ranks ----

def _attach(everybody, one=None, join=60.0):
    """`one`: (rank, options that this rank alone has)."""
    options = dict(everybody)
    if one is not None and dist.get_rank() == one[0]:
        options.update(one[1])
    aggregation.JOIN = join
    try:
        _, handle = _model(options.pop("spec", SPEC), **options)
    finally:
        aggregation.JOIN = 60.0
    handle.close()


REFUSED = {
    "no codes": ({"spec": "3lc"}, None, ("3lc", "sends none", "thc:bits=4")),
    "another strategy": ({"strategy": "two_shot"}, None, ("aggregator= excludes strategy 'two_shot'",)),
    "quorum": ({"quorum": 1.5}, None, ("quorum is 1.5", "at most 1")),
    "no deadline": ({"deadline_ms": 0}, None, ("deadline_ms is 0", "above 0")),
    "quorum alone": ({"aggregator": None, "quorum": 0.5}, None, ("quorum is set, but no aggregator",)),
    "token alone": ({"aggregator": None, "token": "job.token"}, None, ("token is set, but no aggregator",)),
    "nothing": ({"aggregator": ""}, None, ("aggregator is empty", "laconic serve")),
    "no port": ({"aggregator": "10.0.0.9"}, None, ("10.0.0.9", "HOST:PORT")),
    "no token file": ({}, (1, {"token": "/nowhere/job.token"}), ("rank 1", "/nowhere/job.token")),
    "on one rank": ({"aggregator": None}, (2, {"aggregator": "127.0.0.1:7"}), ("the aggregator is none on rank 0 and 127.0.0.1:7 on rank 2",)),
    "other quorum": ({}, (1, {"quorum": 0.5}), ("quorum is 1.0 on rank 0 and 0.5 on rank 1",)),
    "other deadline": ({}, (1, {"deadline_ms": 5}), ("deadline_ms is 20.0 on rank 0 and 5.0 on rank 1",)),
    "auth": ({"auth": "none"}, None, ("auth is 'none'",)),
    "multicast": ({"multicast": "239.7.4.2"}, None, ("multicast is '239.7.4.2'",)),
    "multicast alone": ({"aggregator": None, "multicast": True}, None, ("multicast is set, but no aggregator",)),
    "other multicast": ({}, (1, {"multicast": True}), ("multicast is False on rank 0 and True on rank 1",)),
    "nobody there": ({"aggregator": "127.0.0.1:9"}, None, ("127.0.0.1:9",)),
}


@pytest.mark.parametrize("case", REFUSED)
def test_impossible_options_give_one_message_on_every_rank(pools, case):
    everybody, one, words = REFUSED[case]
    with serving.servers(1) as (server,):
        found = pools(3).errors(_attach, everybody={"aggregator": server.address, **everybody}, one=one,
                                join=2.0 if case == "nobody there" else 60.0)
    assert len({error.message for error in found}) == 1, [error.message for error in found]
    assert all(error.kind == "LaconicError" for error in found)
    for word in words:
        assert word in found[0].message, found[0].message


@pytest.mark.parametrize("which", ["the servers is another", "one rank's is another", "they have none"])
def test_token_must_match_server(pools, tmp_path, which):
    theirs, other = serving.new_token(tmp_path / "theirs"), serving.new_token(tmp_path / "other")
    everybody = {"the servers is another": str(other), "one rank's is another": str(theirs), "they have none": None}[which]
    one = (2, {"token": str(other)}) if which == "one rank's is another" else None
    with serving.servers(1, "--token", theirs) as (server,):
        found = pools(3).errors(_attach, everybody={"aggregator": server.address, "token": everybody}, one=one)
        pools(3).run(_attach, everybody={"aggregator": server.address, "token": str(theirs)})
    assert len({error.message for error in found}) == 1 and "token" in found[0].message, [error.message for error in found]
    assert ("the token differs between rank 0 and rank 2" in found[0].message) == (one is not None)


def test_payloads_are_tagged_if_server_requires_it(pools, tmp_path):
    token = serving.new_token(tmp_path / "job.token")
    with serving.servers(1, "--token", token, "--auth", "full") as (server,):
        place = {"aggregator": server.address, "token": str(token)}
        found = pools(3).errors(_attach, everybody=place)
        assert len({error.message for error in found}) == 1 and "full" in found[0].message, found[0].message
        by_server = pools(3).run(_means, steps=3, auth="full", **place)
    assert {means for _, _, means in by_server} == {means for _, _, means in pools(3).run(_means, steps=3)}


def _means_and_lines(**options):
    lines, say = [], environment.say
    environment.say = lambda text, *_: lines.append(text)
    try:
        return _means(**options), lines
    finally:
        environment.say = say


@pytest.mark.parametrize("offered", [True, False])
def test_multicast_gives_same_means_or_warns(pools, offered):
    by_group = pools(3).run(_means, steps=3)
    with serving.servers(1, *(("--multicast", "239.7.4.2") if offered else ())) as (server,):
        told = pools(3).run(_means_and_lines, steps=3, aggregator=server.address, multicast=True)
    found = [means for means, _ in told]
    assert {means for _, _, means in found} == {means for _, _, means in by_group}
    for _, stats, _ in found:
        assert stats["multicast_servers"] == offered and (stats["multicast_datagrams"] > 0) == offered
    line = f"multicast from {server.address} does not reach any rank: sums go there by unicast"
    assert [lines for _, lines in told] == [[] if offered else [line], [], []]


# ---- without a line of code ----

SCRIPT = """
import json, os
import torch, torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(0)
ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(96, 64))
for step in range(3):
    ddp(torch.ones(4, 96)).sum().backward()
import laconic
explained = laconic.handles()[0].explain()
heard = laconic.handles()[0].stats()["multicast_servers"]
print(json.dumps({key: explained.get(key) for key in ("strategy", "aggregators", "quorum", "deadline_ms")} | {"heard": heard}))
"""


@pytest.mark.parametrize("how", ["options", "variables"])
def test_laconic_run_names_the_servers(tmp_path, how):
    token, script = serving.new_token(tmp_path / "job.token"), tmp_path / "train.py"
    script.write_text(SCRIPT)
    out = tmp_path / "out"
    out.mkdir()
    with serving.servers(1, "--token", token, "--multicast", "239.7.4.2") as (server,):
        words, variables = [], {"LACONIC_AGGREGATOR": server.address, "LACONIC_TOKEN_FILE": str(token)}
        if how == "options":
            words, variables = ["--aggregator", server.address, "--token", "job.token", "--quorum", "0.5", "--deadline-ms", "9",
                                "--multicast"], {}
        outcomes = launch(["-m", "laconic.run", "--spec", SPEC, *words, str(script)], out, cwd=str(tmp_path), **variables)
    for outcome in outcomes:
        assert outcome.code == 0, outcome.err
        assert outcome.report == {"strategy": "server_sum", "aggregators": [server.address], "heard": int(how == "options"),
                                  "quorum": 0.5 if how == "options" else 1.0, "deadline_ms": 9.0 if how == "options" else 20.0}
    assert f"aggregated at {server.address}" in outcomes[0].notices[0]


def _session(address):
    import laconic

    with laconic.Session(SPEC, [("w", (64, 96))], engine="c10d", small_elements=16, aggregator=address) as session:
        gradient = bytearray(training.raw(_gradient(dist.get_rank(), 0)))
        session.average(0, memoryview(gradient).cast("f"))
        return session.explain(), session.stats(), bytes(gradient)


def test_session_without_model_uses_servers(pools):
    with serving.servers(1) as (server,):
        results = pools(3).run(_session, address=server.address)
    plain = pools(3).run(_session, address=None)
    assert len({mean for _, _, mean in results + plain}) == 1
    assert all(explained["aggregators"] == [server.address] and stats["rtt_us"] > 0 for explained, stats, _ in results)
