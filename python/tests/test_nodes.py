# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Two levels: what the ranks of a node hold after a step, its order, its faults and its state, in real processes over real Gloo."""

from __future__ import annotations

import collections
import contextlib
import ctypes
import itertools
import json
import os
import signal
import subprocess
import time
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

import own_codecs  # noqa: E402
import serving  # noqa: E402
import torch.distributed as dist  # noqa: E402
import training  # noqa: E402
from launches import launch  # noqa: E402
from ranks import Ranks  # noqa: E402

import laconic  # noqa: E402
from laconic import LaconicError  # noqa: E402
from laconic.core import environment  # noqa: E402
from laconic.engines import hosts  # noqa: E402
from laconic.engines.nodes import asked, seated  # noqa: E402
from laconic.exchange import nodes as two_levels  # noqa: E402
from laconic.exchange.csession import CSession, Layout  # noqa: E402
from laconic.exchange.worker import Worker, result  # noqa: E402

#: a codec of each way through an exchange
WAYS = ["none", "fp16", "int8", "3lc", "topk:ratio=0.05", "randomk:ratio=0.05", "powersgd:rank=2", "sidco:ratio=0.05", "signsgd", "inceptionn"]
SHAPES = {"2x2": (4, 2), "3x2": (6, 2), "2x3": (6, 3)}
WEEKLY = os.environ.get("TEST_TIER") == "weekly"


# ---- who is where ----

@pytest.mark.parametrize(("setting", "places", "ranks", "why"), [
    ("on", "aabb", ((0, 1), (2, 3)), "requested"),
    ("on", "abab", ((0, 2), (1, 3)), "requested"),
    ("on", "bbaacc", ((0, 1), (2, 3), (4, 5)), "requested"),
    ("on", "aab", None, "A has 2 ranks and B 1"),
    ("on", "abbbaa", ((0, 4, 5), (1, 2, 3)), "requested"),
    ("on", "abbba", None, "B has 3 ranks and A 2"),
    ("on", "aaaa", None, "all ranks are on one host"),
    ("on", "abc", None, "each host has one rank"),
    ("off", "aabb", None, "not requested"),
    ("2", "aaaa", ((0, 1), (2, 3)), "requested"),
    ("4", "aabb", None, "all ranks are on one host"),
    ("1", "aabb", None, "each host has one rank"),
])
def test_places_with_equal_ranks_are_nodes(setting, places, ranks, why):
    for rank in range(len(places)):
        nodes, told = seated(setting, list(places), rank, places.upper())
        assert (nodes and nodes.ranks, told) == (ranks, why)
        if nodes is not None:
            assert nodes.inside[nodes.local] == rank and rank in nodes.across and len(nodes.across) == nodes.count


def test_number_that_does_not_divide_the_ranks_is_refused():
    with pytest.raises(LaconicError, match="4 ranks are no whole number of nodes"):
        seated("3", list("aaaa"), 0, "aaaa")


@pytest.mark.parametrize("nodes", ["all", 0, -2, True, "2.5"])
def test_word_that_is_none_is_refused(nodes):
    with pytest.raises(LaconicError, match="expected auto, on, off or the number"):
        asked(nodes)


# ---- bits ----

def _of_all(tensor):
    """Every rank's tensor, in rank order."""
    return [torch.frombuffer(bytearray(each), dtype=tensor.dtype).clone() for each in training.gathered(training.raw(tensor))]


class Reference:
    """Node means in rank order, shards, then one session's exchange among the ranks with the same shard."""

    def __init__(self, handle, spec):
        self.nodes, own = handle._opened.nodes, handle._opened  # noqa: SLF001
        self.order, worker = None, handle.worker
        session = CSession(spec, own.parameters.shaped(), rank=worker.engine.rank, world=worker.engine.world, seed=0, small_elements=64,
                           strategy="auto", engine_sums=worker.engine.probe_sums(), short_sends=worker.engine.short_sends, threads=1,
                           node_shards=self.nodes.size, node_shard=self.nodes.local)
        self.held = session.shard()
        self.worker = Worker(session, worker.engine, lane=worker.commands._lane)  # noqa: SLF001

    def take(self, order):
        """DDP rebuilds its buckets."""
        if order != self.order:
            offsets = list(itertools.accumulate((self.held[p][1] for p in order), initial=0))
            self.order, self.layout = order, Layout(order, offsets[:-1], offsets[-1])

    def exchange(self, gradients):
        """`gradients`: of this rank, by parameter. The means of this shard."""
        shard = [self._mean(gradients[p])[self.held[p][0] : sum(self.held[p])] for p in self.order]
        buffer = torch.cat(shard)
        future = self.worker.submit(self.layout, buffer)
        self.worker.next_step()
        future.wait()
        result(future)
        return buffer

    def _mean(self, gradient):
        parts = _of_all(gradient.reshape(-1))
        total = parts[self.nodes.inside[0]]
        for rank in self.nodes.inside[1:]:
            total = total + parts[rank]
        return total * (1.0 / self.nodes.size)


def _last_is_nan(gradient):
    broken = gradient.clone()
    broken[-1, -1] = float("nan")
    return broken


def _matches(specs, size, steps=3, **options):
    """Whether DDP has the reference's bits in every step, by spec; and every rank's parameters."""
    rank, found = dist.get_rank(), {}
    for spec in specs:
        ddp, handle, optimizer = training.build(dist.group.WORLD, spec, attach_options={"nodes": size, **options})
        plain = training.Net()
        reference, same = None, []
        for step in range(steps):
            plain.load_state_dict(ddp.module.state_dict())
            x, y = training.batch(rank, step)
            optimizer.zero_grad()
            plain.zero_grad()
            for model, net in ((plain, plain), (ddp, ddp.module)):
                hook = net.hidden.weight.register_hook(_last_is_nan if step == 1 and rank == 1 else torch.clone)  # of one shard
                torch.nn.functional.cross_entropy(model(x), y).backward()
                hook.remove()
            gradients = [p.grad.clone() for p in plain.parameters()]
            order = handle.hook.layouts.last_seen[0].parameters
            reference = reference or Reference(handle, spec)
            reference.take(order)
            means = reference.exchange(gradients)
            own = [p.grad.reshape(-1) for p in ddp.parameters()]
            held = torch.cat([own[p][reference.held[p][0] : sum(reference.held[p])] for p in reference.order])
            same.append(training.raw(held) == training.raw(means))
            if step != 1:
                optimizer.step()
        found[spec] = all(same), training.digest(ddp), (reference.nodes.local, handle.stats()["fallbacks"])
        reference.worker.close()
        handle.close()
    return found


@pytest.mark.parametrize("shape", SHAPES)
def test_every_way_has_bits_of_node_means_by_shards(pools, shape):
    world, size = SHAPES[shape]
    specs = [*training.SPECS, *training.OTHER_SPECS] if WEEKLY else WAYS if shape == "2x2" else ["int8", "3lc", "powersgd:rank=2"]
    results = pools(world).run(_matches, specs=specs, size=size, seconds=200)
    for spec in specs:
        assert all(found[spec][0] for found in results), spec
        assert len({found[spec][1] for found in results}) == 1, spec
    assert {found["3lc"][2] for found in results} == {(shard, int(shard == size - 1)) for shard in range(size)}, "one shard was not finite"


def _trained(spec, steps=4, long=None, buckets=1, nodes=2, dtype=torch.float32, **options):
    """Trains; the parameters, and in which order this rank met those of its node."""
    kept = two_levels.LONG, two_levels.NodeStage._enter, two_levels.NodeStage.leave  # noqa: SLF001
    met = []

    def enter(stage, ticket, absent):
        met.append(("in", ticket.layout.parameters))
        return kept[1](stage, ticket, absent)

    def leave(stage, ticket):
        met.append(("out", ticket.layout.parameters))
        return kept[2](stage, ticket)

    two_levels.LONG, two_levels.NodeStage._enter, two_levels.NodeStage.leave = long or kept[0], enter, leave  # noqa: SLF001
    try:
        ddp, handle, optimizer = training.build(dist.group.WORLD, spec, buckets=buckets, dtype=dtype, attach_options={"nodes": nodes, **options})
        for step in range(steps):
            training.step_once(ddp, optimizer, dist.get_rank(), step, dtype=dtype)
        session = handle.worker.session
        found = training.digest(ddp), met, handle.stats(), {**handle.explain(), "of session": session.explain()["exchange_bytes"],
                                                            "own": sum(count for _, count in session.shard())}
        handle.close()
        return found
    finally:
        two_levels.LONG, two_levels.NodeStage._enter, two_levels.NodeStage.leave = kept  # noqa: SLF001


@pytest.mark.parametrize("window", [1, 2, 3])
def test_ranks_of_node_meet_in_one_order_for_any_shards(pools, window):
    whole = pools(4).run(_trained, spec="3lc", window=window, seconds=60)
    early = pools(4).run(_trained, spec="3lc", buckets=4, long=1, window=window, seconds=60)
    assert {digest for digest, *_ in whole} == {digest for digest, *_ in early}, "buckets are only transport"
    orders = [met for _, met, *_ in early]
    assert orders[0] == orders[1] == orders[2] == orders[3]
    ways = [way for way, _ in orders[0]]
    last = len(ways) - 1 - ways[::-1].index("in")
    assert "out" in ways[:last] and ways[:4] != ["in"] * 4 or window == 3, "some leave while others come"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_gradients_are_added_in_float32_and_rounded_once(pools, dtype):
    results = pools(4).run(_trained, spec="3lc", dtype=dtype, seconds=60)
    assert len({digest for digest, *_ in results}) == 1


def test_rank_keeps_residuals_of_its_shard_and_sends_its_shard(pools):
    two, flat = (pools(4).run(_trained, spec="int8+ef", nodes=nodes, seconds=60) for nodes in (2, "off"))
    for (_, _, of_two, told), (_, _, of_flat, alone) in zip(two, flat):
        assert of_two["residual_bytes"] <= 0.6 * of_flat["residual_bytes"]
        assert of_two["wire_bytes"] <= 0.6 * of_flat["wire_bytes"] and of_two["node_bytes"] > 0 and of_two["node_seconds"] > 0
        assert (told["nodes"]["count"], told["nodes"]["ranks"]) == (2, 2) and of_flat["node_bytes"] == 0
        # Beside the session's: the bucket in the order of shards, its shard of both ranks, in float32, and the mean.
        assert told["exchange_bytes"] - told["of session"] == 4 * (told["elements"] + 4 * told["own"]) and alone["exchange_bytes"] == alone["of session"]


# ---- hosts, and what is refused ----

def _on_hosts(letters, nodes, spec="int8", **options):
    place, uname, host = environment.place, os.uname, letters[dist.get_rank()]
    environment.place = hosts.place = lambda: host
    os.uname = lambda: SimpleNamespace(nodename=host.upper())
    try:
        ddp, handle, optimizer = training.build(dist.group.WORLD, spec, attach_options={"nodes": nodes, **options})
    finally:
        environment.place = hosts.place = place
        os.uname = uname
    training.step_once(ddp, optimizer, dist.get_rank(), 0)
    explained = handle.explain()
    found = {**explained["nodes"], "port": explained["port"], "stats": handle.stats()}, handle.describe(), training.digest(ddp)
    handle.close()
    return found


@pytest.mark.parametrize(("letters", "nodes", "spec", "said"), [
    ("abab", "on", "int8", "between 2 nodes of 2 ranks, inside them gloo"),
    ("aaab", None, "int8", "nodes: off, A has 3 ranks and B 1"),
    ("aabb", None, "int8", "between 2 nodes of 2 ranks, inside them gloo"),
    ("aabb", "auto", "topk:ratio=0.001", "nodes: off, flat, a host sends 0."),
    ("aabb", None, "none", ""),
    ("aaaa", None, "int8", ""),
    ("aaaa", "on", "int8", "nodes: off, all ranks are on one host"),
])
def test_ranks_of_a_host_are_a_node_where_that_pays(pools, letters, nodes, spec, said):
    results = pools(4).run(_on_hosts, letters=letters, nodes=nodes, spec=spec, seconds=60)
    assert len({digest for *_, digest in results}) == 1
    for explained, described, _ in results:
        assert said in described and (explained["count"] is None) == ("between" not in said)
        assert said or ("nodes" not in described and explained["why"] in ("nothing is compressed", "all ranks are on one host"))


def _in_other_groups():
    """Ranks 1 and 2 are in one group more than the others: nodes of all ranks, then a group of three."""
    dist.new_group([1, 2])
    found = []
    for ranks, options in ([0, 1, 2, 3], {"nodes": 2}), ([0, 1, 3], {}):
        group = dist.new_group(ranks)
        if dist.get_rank() in ranks:
            ddp, handle, optimizer = training.build(group, "int8", attach_options=options)
            training.step_once(ddp, optimizer, dist.get_rank(), 0)
            found.append((handle.describe(), training.digest(ddp)))
            handle.close()
    return found


def test_ranks_in_unequal_numbers_of_groups_attach(pools):
    results = pools(4).run(_in_other_groups, seconds=60)
    nodes, three = {found[0] for found in results}, {found[1] for found in results if len(found) > 1}
    assert len(nodes) == len(three) == 1 and "between 2 nodes of 2 ranks" in nodes.pop()[0]


def test_port_of_nodes_is_held_against_ring_of_all_ranks(pools):
    (two, _, _), *_ = pools(4).run(_on_hosts, letters="aabb", nodes="on", spec="int8", seconds=60)
    (flat, _, _), *_ = pools(4).run(_on_hosts, letters="aabb", nodes="off", spec="int8", seconds=60)
    assert two["port"]["ring_bytes"] == pytest.approx(flat["port"]["ring_bytes"], rel=0.01)
    assert two["stats"]["port_bytes"] == 2 * two["stats"]["wire_bytes"] < flat["stats"]["port_bytes"]
    for found in (two, flat):  # in one step; shards differ a little in size
        assert found["stats"]["port_ratio"] == pytest.approx(found["port"]["ring_bytes"] / found["stats"]["port_bytes"], rel=0.15)


def _whole(servers):
    own_codecs.register("largest")
    return [_on_hosts("aabb", None, spec, **more)[:2] for spec, more in (("thc:block=256", {"aggregator": servers}), ("largest", {}))]


@pytest.mark.skipif(not serving.BINARY.exists(), reason=f"{serving.BINARY} is not built")
def test_takers_of_whole_models_exchange_flat(pools):
    with serving.servers() as started:
        results = pools(4).run(_whole, servers=serving.listed(started), seconds=60)
    for of_servers, of_codec in results:
        for (explained, described), why in ((of_servers, "an aggregation server adds whole models"), (of_codec, "a registered codec takes whole models")):
            assert (explained["count"], explained["why"]) == (None, why) and described.count(f"nodes: off, {why}") == 1


def _differing(arguments):
    spec, options = arguments[dist.get_rank()]
    training.build(dist.group.WORLD, spec, attach_options=options)


@pytest.mark.parametrize(("arguments", "said"), [
    ([("3lc", {"nodes": 2})] * 3 + [("3lc", {"nodes": "off"})], "nodes is 2 on rank 0 and off on rank 3"),
    ([("3lc", {"nodes": 2})] * 3 + [("int8", {"nodes": 2})], ""),
    ([("3lc", {"nodes": 2}), ("int8", {"nodes": 2})] * 2, "rank 0 has 3lc"),
    ([("3lc", {"nodes": 2})] * 3 + [("3lc:s=7", {"nodes": 2})], "s"),
    ([("3lc", {"nodes": 3})] * 4, "4 ranks are no whole number of nodes"),
    ([("3lc", {"nodes": 2, "aggregator": "127.0.0.1:1"})] * 4, "nodes=2: an aggregation server adds whole models"),
    ([("3lc", {"nodes": 2})] * 3 + [("3lc", {"nodes": 2, "warmup": 3})], "warmup is 0 on rank 0 and 3 on rank 3"),
])
def test_difference_between_ranks_is_refused_by_all(pools, arguments, said):
    for error in pools(4).errors(_differing, arguments=arguments, seconds=60):
        assert error.kind == "LaconicError" and said in error.message


@pytest.mark.parametrize(("setting", "warned"), [("on", True), ("2", True), ("auto", False), ("off", False), ("", False)])
def test_nodes_in_environment_are_named_where_unused(monkeypatch, caplog, setting, warned):
    monkeypatch.setenv("LACONIC_NODES", setting)
    model = training.Net()
    with caplog.at_level("WARNING", logger="laconic"):
        laconic.OuterStep(model, torch.optim.SGD(model.parameters(), lr=0.1), spec="3lc", quiet=True).close()
    assert (f"LACONIC_NODES={setting} is not used: OuterStep exchanges flat" in caplog.text) == warned


def _outer(model, nodes):
    return laconic.OuterStep(model, torch.optim.SGD(model.parameters(), lr=0.1), spec="3lc", quiet=True, nodes=nodes).close()


def _optimizer(model, nodes):
    laconic.ShardedOptimizer(model, torch.optim.SGD, lr=0.1, nodes=nodes)


@pytest.mark.parametrize(("make", "named"), [(_outer, "OuterStep"), (_optimizer, "ShardedOptimizer")])
def test_nodes_of_what_exchanges_flat_are_refused_by_name(make, named):
    for nodes in ("on", 2):
        with pytest.raises(LaconicError, match=f"nodes={nodes!r}: {named} exchanges flat"):
            make(training.Net(), nodes)
    for nodes in (None, "auto", "off"):
        make(training.Net(), nodes)


def test_sharded_models_refuse_nodes_by_name():
    from laconic.api.attach import _refused_nodes

    assert "nodes='on': the replicas of a sharded model" in str(_refused_nodes("on"))
    assert _refused_nodes("auto") is None


# ---- what users do between two steps ----

def _settled(what):
    rank = dist.get_rank()
    ddp, handle, optimizer = training.build(dist.group.WORLD, "topk:ratio=0.05", buckets=2, attach_options={"nodes": 2})
    at = iter(range(1000))

    def steps(number):
        for _ in range(number):
            training.step_once(ddp, optimizer, rank, next(at))

    steps(2)
    told = None
    if what == "flush" and rank == 1:  # one rank's call is enough, for all shards
        told = handle.flush(2)
    elif what == "set":
        handle.set("topk:ratio=0.1")
    elif what == "set that waits":  # for residuals, which may take one shard longer than the other
        handle.set("topk:ratio=0.1+noef")
    elif what == "set that differs":
        with pytest.raises(LaconicError) as raised:
            handle.set("topk:ratio=0.1" if rank else "topk:ratio=0.2")
        told = raised.value.name
    elif what == "set that cuts elsewhere":
        with pytest.raises(LaconicError) as raised:
            handle.set("powersgd")
        told = raised.value.name
    elif what == "set that one rank cannot":
        with pytest.raises(LaconicError) as raised:
            handle.set("topk:ratio=7" if rank == 2 else "topk:ratio=0.1")
        told = raised.value.name, raised.value.message
    elif what == "texts":
        told = handle.gather_texts(f"I am {rank}")
    steps(12 if what == "set that waits" else 4)
    found = training.digest(ddp), told, handle.stats(), handle.explain()["spec"]
    handle.close()
    return found


@pytest.mark.parametrize("what", ["flush", "set", "set that waits", "set that differs", "set that cuts elsewhere", "set that one rank cannot", "texts"])
def test_call_between_steps_reaches_all_shards(pools, what):
    results = pools(4).run(_settled, what=what, seconds=60)
    assert len({digest for digest, *_ in results}) == 1
    for _, told, stats, spec in results:
        assert spec == {"set": "topk:ratio=0.1", "set that waits": "topk:ratio=0.1+noef"}.get(what, "topk:ratio=0.05")
        assert stats["flushes"] == {"flush": 2, "set that waits": 10}.get(what, 0)
        if what == "texts":
            assert told == [f"I am {rank}" for rank in range(4)]
        if what == "set that one rank cannot":
            assert told[0] == "ranks_disagree" and told[1].startswith("rank 2 could not set: spec 'topk:ratio=7'"), told
        if what in ("set that differs", "set that cuts elsewhere"):
            assert told == ("ranks_disagree" if what == "set that differs" else "unsupported")
    if what == "flush":
        assert results[1][1] == 5  # the request is known to the node after step 2


def _variant(name):
    options, step = {}, {}
    if name == "rules":
        options = {"attach_options": {"rules": [{"match": "hidden*", "spec": "3lc"}, {"match": "last*", "spec": "none"}]}}
    elif name == "dc2":
        options = {"attach_options": {"control": "dc2:deadline_ms=100"}}
    elif name == "accumulation":
        step = {"accumulate": 2}
    elif name == "unused":
        options = {"model_options": {"unused": True}, "ddp_options": {"find_unused_parameters": True}}
        step = {"branch": dist.get_rank() == 0}
    elif name == "static graph":
        options = {"ddp_options": {"static_graph": True}}
    elif name == "warmup":
        options = {"attach_options": {"warmup": 2}}
    options.setdefault("attach_options", {})["nodes"] = 2
    ddp, handle, optimizer = training.build(dist.group.WORLD, "topk:ratio=0.05", buckets=2, **options)
    if name == "dc2" and dist.get_rank() in (1, 3):  # the second shard
        _observes_later(handle.worker.engine)
    for number in range(5):
        training.step_once(ddp, optimizer, dist.get_rank(), number, **step)
    found = training.digest(ddp), handle.stats()["steps"], all(bool(p.isfinite().all()) for p in ddp.parameters())
    found = *found, *(tuple(setting[key] for key in ("network_ms", "spec", "last_change")) for setting in handle.explain()["settings"])
    handle.close()
    return found


def _observes_later(engine):
    """Each of its collectives appears to take half a second more than it does."""
    wait, late = engine.wait, itertools.count(1)

    def waits(batch):
        wait(batch)
        batch.completed += 0.5 * next(late)

    engine.wait = waits


@pytest.mark.parametrize("name", ["rules", "dc2", "accumulation", "unused", "static graph", "warmup"])
def test_replicas_stay_alike(pools, name):
    results = pools(4).run(_variant, name=name, seconds=60)
    assert len(set(results)) == 1 and results[0][1:3] == (5, True)
    if name == "dc2":  # by the shard whose network took longest
        network_ms, spec, why = results[0][3]
        assert network_ms >= 500 and spec == "topk:ratio=0.025" and "network" in why


def _scaled():
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    ddp, handle, optimizer = training.build(dist.group.WORLD, "topk:ratio=0.05", attach_options={"scaler": scaler, "nodes": 2})
    for step in range(4):
        optimizer.zero_grad()
        x, y = training.batch(dist.get_rank(), step)
        scaler.scale(torch.nn.functional.cross_entropy(ddp(x), y) * (float("inf") if step == 2 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
    found = training.digest(ddp), scaler.get_scale()
    handle.close()
    return found


def test_overflow_step_of_amp_is_skipped_by_all(pools):
    results = pools(4).run(_scaled, seconds=60)
    assert len(set(results)) == 1 and results[0][1] == 512.0


def _recorded(steps, **options):
    ddp, handle, optimizer = training.build(dist.group.WORLD, "topk:ratio=0.2", buckets=2, attach_options={"nodes": 2, **options})
    for step in range(steps):
        training.step_once(ddp, optimizer, dist.get_rank(), step)
    found = training.digest(ddp), handle.stats()["setting_changes"], handle.explain()["record"]
    handle.close()
    return found


@pytest.mark.skipif(not serving.BINARY.exists(), reason=f"{serving.BINARY} is not built")
def test_record_of_run_with_nodes_replays_bit_for_bit(pools, tmp_path):
    file = tmp_path / "run.jsonl"
    first = pools(4).run(_recorded, steps=16, control="dc2:deadline_ms=0.001", record=str(file), seconds=60)
    digest, changes, record = first[0]
    assert changes >= 2 and record == {"file": str(file), "steps": 15, "trouble": ""} and [found[2] for found in first[1:]] == [None] * 3
    replayed = pools(4).run(_recorded, steps=16, control=f"replay:{file}", seconds=60)
    assert {found[:2] for found in first + replayed} == {(digest, changes)}
    done = subprocess.run([serving.BINARY, "replay", file, "--json"], capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout)
    assert answer["equal"] and len(answer["decisions"]) == changes


# ---- state ----

def _resumed(spec, other=None):
    """The parameters after six steps, at once and with a resume after three; and how another shape refuses the state."""
    rank, digests, refused = dist.get_rank(), [], None
    for stops in (False, True):
        ddp, handle, optimizer = training.build(dist.group.WORLD, spec, buckets=3, attach_options={"nodes": 2})
        for step in range(6):
            if stops and step == 3:
                state = handle.state_dict()
                handle.close()
                weights, momentum = ddp.module.state_dict(), optimizer.state_dict()
                ddp, handle, optimizer = training.build(dist.group.WORLD, spec, buckets=3, attach_options={"nodes": 2})
                ddp.module.load_state_dict(weights)
                optimizer.load_state_dict(momentum)
                handle.load_state_dict(state)
            training.step_once(ddp, optimizer, rank, step)
        digests.append(training.digest(ddp))
        handle.close()
    ddp, flat, _ = training.build(dist.group.WORLD, spec, attach_options={"nodes": "off"})
    with pytest.raises(LaconicError) as raised:
        flat.load_state_dict(state)
    flat.close()
    return digests, raised.value.name


@pytest.mark.parametrize("spec", ["topk:ratio=0.05", "powersgd:rank=2"])
def test_resumed_run_has_the_bits_of_one_that_went_on(pools, spec):
    for digests, refused in pools(4).run(_resumed, spec=spec, seconds=90):
        assert digests[0] == digests[1] and refused == "state_world"


# ---- faults ----

class Account:
    """A rank's gradients, residuals and buckets before and after a step that fails."""

    def __init__(self, ddp, handle):
        self._handle, self._buckets = handle, []
        self._names = [name for name, _ in ddp.module.named_parameters()]
        self.before = handle.state_dict()["tensors"]
        submit = handle.worker.submit

        def submitted(layout, buffer, **options):
            brought = buffer.to("cpu", copy=True)
            future = submit(layout, buffer, **options)
            self._buckets.append((layout, brought, buffer, future))
            return future

        handle.worker.submit = submitted

    def closed(self):
        """`buckets`: (parameters with offsets, gradients, what they hold, whether that is a mean); `held`: of each parameter."""
        buckets = []
        for layout, brought, buffer, future in self._buckets:
            delivered = not isinstance(future.wait(), LaconicError)
            buckets.append((dict(zip([self._names[p] for p in layout.parameters], layout.offsets)), brought, buffer.to("cpu", copy=True), delivered))
        held = dict(zip(self._names, self._handle.worker.session.shard()))
        return {"before": self.before, "after": self._handle.state_dict()["tensors"], "buckets": buckets, "held": held,
                "last": self._handle.last_error}


def _no_memory(*_, **__):
    raise RuntimeError("the test has no memory")


def _no_memory_for_layout(*_, **__):
    raise MemoryError("the test has no memory")


@contextlib.contextmanager
def _fault(handle, kind, at):
    """In the step inside, on this rank."""
    engine, stage = handle.worker.engine, handle._opened.stage  # noqa: SLF001
    start, ready, down, kept, calls, sent = engine.start, stage._inner.ready, stage._inner.down, two_levels._Kept, [], []  # noqa: SLF001

    def started(steps, count):
        calls.append(count)
        if len(calls) - 1 == at and kind == "across":
            raise OSError("the test pulled the plug")
        if len(calls) - 1 == at and kind == "bundle":
            for step in steps[:count]:
                sent.append(ctypes.create_string_buffer(b"Z" * step.send_bytes, step.send_bytes))
                step.send = ctypes.addressof(sent[-1])
        return start(steps, count)

    def absent(ticket):
        if ticket.layout.parameters[0] == absent.first:
            raise RuntimeError("the test's device is gone")
        return ready(ticket)

    def kept_up(values, host):
        calls.append(values)
        return _no_memory() if len(calls) - 1 == at else down(values, host)

    absent.first = handle.hook.layouts.last_seen[at].parameters[0]
    engine.start = started if kind != "down" else start
    if kind == "device":
        stage._inner.ready = absent  # noqa: SLF001
    elif kind == "down":
        stage._inner.down = kept_up  # noqa: SLF001
    elif kind == "permutation":
        stage._buffer = _no_memory
    elif kind == "layout":
        stage._kept.clear()  # noqa: SLF001
        two_levels._Kept = _no_memory_for_layout  # noqa: SLF001
    try:
        yield
    finally:
        stage._inner.ready, stage._inner.down, two_levels._Kept = ready, down, kept  # noqa: SLF001
        del engine.start
        with contextlib.suppress(AttributeError):
            del stage._buffer


def _faulty(cases, device="cpu"):
    """Some ranks have a fault in step 2; then one more step."""
    rank, found = dist.get_rank(), []
    for kind, at, victims, (spec, options, long), _ in cases:
        kept, two_levels.LONG = two_levels.LONG, long or two_levels.LONG
        ddp, handle, optimizer = training.build(dist.group.WORLD, spec, buckets=16, coalesce=not long, device=device,
                                              attach_options={"nodes": 2, **options})
        said = {}

        def step_once(step):
            try:
                training.step_once(ddp, optimizer, rank, step)  # noqa: B023
            except RuntimeError as error:
                said[step] = str(error).partition("\n")[0]  # noqa: B023

        for step in range(2):
            step_once(step)
        account = Account(ddp, handle)
        with _fault(handle, kind if rank in victims else None, at):
            step_once(2)
        account, sent = account.closed(), handle._opened.stage.node_bytes  # noqa: SLF001
        step_once(3)
        found.append({**account, "said": said, "silent": sent == handle._opened.stage.node_bytes, "digest": training.digest(ddp),  # noqa: SLF001
                      "told": handle.describe()})
        handle.close()
        two_levels.LONG = kept
    return found


#: spec, options, LONG: of joined buckets, in two rounds, of buckets that leave early
JOINED, TWO_SHOT, EARLY = ("topk:ratio=0.05", {}, None), ("int8+ef", {"strategy": "two_shot"}, None), ("topk:ratio=0.05", {"window": 1}, 1)
#: which fault, in which batch or bucket, on which ranks; and what they say
FAULTS = [*(("across", at, victims, sent, "the test pulled the plug") for sent, batches in ((JOINED, 1), (TWO_SHOT, 2), (EARLY, 3))
            for at in range(batches) for victims in ([3], [0, 3])),
          ("device", 0, [3], JOINED, "rank 3 failed in bucket 0 (peer_failed): gradients could not be copied from cpu"),
          ("device", 1, [0], EARLY, "rank 0 failed in bucket 1 (peer_failed): gradients could not be copied from cpu"),
          ("bundle", 0, [3], JOINED, "bundle: magic"), ("permutation", 0, [3], JOINED, "rank 3, inside the node: RuntimeError: the test has no memory"),
          ("layout", 0, [0], JOINED, "the test has no memory")]


def _adds_up(ranks, lacks):
    """Residuals and delivered means of all ranks are what the ranks had and have brought. `lacks(rank, bucket, shard)`: it has brought nothing."""
    for shard in (0, 1):
        for name, (first, count) in ranks[shard]["held"].items():
            if f"residual/{name}" not in ranks[shard]["before"] or not count:
                continue
            had, has, left = torch.zeros(count), torch.zeros(count), {}
            for rank, result in enumerate(ranks):
                number, (at, brought, holds, delivered) = next((n, bucket) for n, bucket in enumerate(result["buckets"]) if name in bucket[0])
                own = slice(at[name] + first, at[name] + first + count)
                if not lacks(rank, number, shard):
                    had += brought[own] / 2
                if delivered:  # to both ranks of a node, or to the one whose shard did not fail
                    left.setdefault(rank // 2, []).append(holds[own])
                if rank % 2 != shard:
                    continue
                for total, state in ((had, result["before"]), (has, result["after"])):
                    total += state[f"residual/{name}"]
                    for entry, values in state.items():  # of a mean that an owner has encoded
                        if entry.startswith(f"owner_residual/{name}@"):
                            place = int(entry.partition("@")[2]) - first
                            total[place : place + values.numel()] += 2 * values
            assert all(torch.equal(of_node[0], of_node[-1]) for of_node in left.values())
            torch.testing.assert_close(has + sum(of_node[0] for of_node in left.values()), had, rtol=1e-5, atol=1e-5)


def test_fault_on_one_rank_reaches_all_and_loses_no_gradient(pools):
    """In any phase, with others in flight and queued: it is in the residuals, or where it was."""
    for case, ranks in zip(FAULTS, zip(*pools(4).run(_faulty, cases=FAULTS, seconds=200))):
        check_fault(case, ranks)


def check_fault(case, ranks):
    kind, at, victims, (*_, early), said = case
    fatal = kind not in ("device", "down", "bundle")
    for result in ranks:
        assert list(result["said"]) == ([2, 3] if fatal else [2]) and said in result["said"][2]
        assert result["silent"] == fatal and (result["last"].name == "engine_failed") == fatal
        for _, brought, holds, delivered in result["buckets"]:
            assert delivered or early or torch.equal(brought, holds), "p.grad keeps what did not leave"
    assert fatal or len({result["digest"] for result in ranks}) == 1, "the next step trains"

    def lacks(rank, bucket, shard):
        if kind == "device":
            return rank in victims and bucket == at
        if kind == "down":
            return rank // 2 == victims[0] // 2 and bucket == at and shard == victims[0] % 2
        return kind in ("permutation", "layout") and rank // 2 == victims[0] // 2

    _adds_up(ranks, lacks)


def _dies(victim, phase, sign, device="cpu"):
    rank = dist.get_rank()
    if device == "cpu":
        training.waits(dist.group.WORLD, 6)
    ddp, handle, optimizer = training.build(dist.group.WORLD, "topk:ratio=0.05", buckets=2, device=device, attach_options={"nodes": 2})
    training.step_once(ddp, optimizer, rank, 0)
    stage, engine = handle._opened.stage, handle.worker.engine  # noqa: SLF001
    place, name = {"in": (stage, "_enter"), "across": (engine, "start"), "out": (stage, "leave")}[phase]
    account = Account(ddp, handle)
    if rank == victim:
        setattr(place, name, lambda *_: os.kill(os.getpid(), sign))
    since = time.monotonic()
    for step in range(1, 4):  # the other node may have had all of the first
        try:
            training.step_once(ddp, optimizer, rank, step)
        except RuntimeError as error:
            return str(error), time.monotonic() - since, account.closed()
    return "", time.monotonic() - since, None


def _keeps_all(node, shard, untold):
    """A shard's gradients whose exchange was not answered are in its residuals. `untold`: or they did not leave their buckets."""
    for name, (first, count) in node[shard]["held"].items():
        if f"residual/{name}" in node[shard]["before"] and count:
            brought = []
            for rank in node:
                at, gradients, holds, delivered = next(bucket for bucket in rank["buckets"] if name in bucket[0])
                assert not delivered and torch.equal(gradients, holds)
                brought.append(gradients[at[name] + first : at[name] + first + count])
            had, has = (node[shard][state][f"residual/{name}"] for state in ("before", "after"))
            assert torch.equal(has, had + (brought[0] + brought[1]) * 0.5) or (untold and torch.equal(has, had)), name


@pytest.mark.parametrize(("phase", "sign"), [("in", signal.SIGKILL), ("across", signal.SIGKILL), ("out", signal.SIGKILL),
                                             *([(phase, signal.SIGSTOP) for phase in ("in", "across", "out")] if WEEKLY else [])])
def test_every_rank_hears_who_is_gone(phase, sign):
    pool = Ranks(4, timeout=60)
    try:
        pool.start(_dies, victim=3, phase=phase, sign=sign)
        accounts = []
        for rank in range(3):
            kind, value = pool._receive(rank, 40)  # noqa: SLF001
            assert kind == "ok"
            said, seconds, account = value
            assert "rank 3 is gone" in said or "rank 3 did not answer" in said or "within 6 s" in said, said
            assert seconds < 25
            accounts.append(account)
        if phase != "out":
            _keeps_all(accounts[:2], 1, untold=sign == signal.SIGSTOP)
    finally:
        if sign == signal.SIGSTOP:
            pool.kill(3)
        pool.close()


# ---- order, without processes ----

class _Stage:
    def __init__(self):
        self.nodes, self.left, self.over = collections.namedtuple("N", "size")(2), [], None

    def leave(self, ticket):
        self.left.append(ticket)

    def end_step(self, failure, flush, report):
        return failure, flush, report


class _Session:
    report, decide_by = bytes, staticmethod(len)


class _Job:
    def __init__(self, number, elements, over):
        self.layout, self.ticket, self.over, self.error, self.ended = Layout((number,), (0,), elements), number, over, None, False

    def end(self):
        self.ended = True


@pytest.mark.parametrize("window", [1, 2, 3])
@pytest.mark.parametrize("over", [True, False])
def test_jobs_leave_by_sizes_of_whole_buffers(window, over):
    """Whether this shard's exchange has ended decides who drains, not who leaves."""
    stage, drained = _Stage(), []
    order = two_levels.InOrder(stage, window, None)
    jobs = [_Job(number, elements, over) for number, elements in enumerate([1 << 20, 8, 1 << 20, 8, 1 << 20, 1 << 20])]
    lengths = []
    for job in jobs:
        order.add(job)
        order.served(job, lambda: drained.append(1))
        lengths.append(len(stage.left))
    assert lengths == {1: [0, 0, 2, 2, 4, 5], 2: [0, 0, 1, 1, 3, 5], 3: [0, 0, 0, 0, 1, 3]}[window]
    assert stage.left == sorted(stage.left) and not jobs[-1].ended
    assert bool(drained) != over
    assert order.meet(_Session()) is None
    order.end_step()
    assert stage.left == list(range(6)) and all(job.ended for job in jobs)


# ---- laconic.run ----

_SCRIPT = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
ddp = DistributedDataParallel(torch.nn.Linear(80, 80))
for _ in range(2):
    ddp(torch.randn(4, 80)).square().mean().backward()
"""


def test_run_hands_nodes_to_attach(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(_SCRIPT)
    outcomes = launch(["-m", "laconic.run", "--spec", "3lc", "--nodes", "2", script], tmp_path, world=4)
    assert all(outcome.code == 0 for outcome in outcomes), outcomes[0].err
    assert "between 2 nodes of 2 ranks, inside them gloo" in outcomes[0].err
