# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Several ranks behind a host's port: what leaves it, what is chosen, and where Gloo listens."""

from __future__ import annotations

import contextlib
import io
import os
import socket

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import laconic  # noqa: E402
from laconic.engines import addresses  # noqa: E402
from laconic.engines.hosts import Hosts, beyond_ring, over_port  # noqa: E402


@contextlib.contextmanager
def _on_hosts(per_host):
    """This rank says that so many ranks, in rank order, are on its host."""
    from laconic.engines import hosts

    original, rank = hosts.place, dist.get_rank()
    hosts.place = lambda: f"host {rank // per_host}"
    try:
        yield
    finally:
        hosts.place = original


def _trained(spec, per_host, **options):
    """A DDP model's reports on hosts of `per_host` ranks after three steps, and what this rank has printed."""
    torch.manual_seed(0)
    ddp, said = DistributedDataParallel(torch.nn.Linear(200, 100)), io.StringIO()
    with _on_hosts(per_host), contextlib.redirect_stderr(said):
        handle = laconic.attach(ddp, spec, **options)
        for _ in range(3):
            ddp(torch.ones(4, 200, dtype=torch.float32, device="cpu")).square().mean().backward()
        handle.close()
    return handle.stats(), handle.explain(), said.getvalue()


def _several():
    """Each case in a launch of its own would cost more than all of them."""
    return {"hosts": _trained("int8", 2, strategy="two_shot"), "one host": _trained("int8", 4, strategy="two_shot"),
            "one rank a host": _trained("int8", 1, strategy="two_shot"), "gathered": _trained("topk:ratio=0.3", 2, strategy="gather_all"),
            "plain": _trained("none", 2), "sharded": _optimized(2)}


def _optimized(per_host):
    said = io.StringIO()
    torch.manual_seed(0)
    model = torch.nn.Linear(200, 100)
    with _on_hosts(per_host), contextlib.redirect_stderr(said):
        optimizer = laconic.ShardedOptimizer(model, torch.optim.SGD, push="int8", pull="int8", lr=0.1)
        for _ in range(3):
            model(torch.ones(4, 200, dtype=torch.float32, device="cpu")).square().mean().backward()
            optimizer.step()
        stats, explained = optimizer.stats(), optimizer.explain()
        optimizer.close()
    return stats, explained, said.getvalue()


@pytest.fixture(scope="module")
def reports(pools):
    return pools(4).run(_several)[0]


ELEMENTS = 200 * 100 + 100
RING = 2 * 3 * 4 * ELEMENTS // 4


def test_explain_and_stats_tell_what_leaves_a_host(reports):
    """Two ranks of a host send to the two of the other one half of what goes up and down, each."""
    for what in ("hosts", "sharded"):
        stats, explained, said = reports[what]
        assert explained["port"]["ranks"] == 2 and explained["port"]["ring_bytes"] == RING
        assert explained["port"]["bytes"] == pytest.approx(2 * 2 * ELEMENTS * 2 / 4, rel=0.05)
        assert stats["port_ratio"] == pytest.approx(stats["dense_bytes"] / stats["port_bytes"])
        assert stats["port_ratio"] == pytest.approx(stats["ratio"] * 3 / 4, rel=0.01)
        ratio = RING / explained["port"]["bytes"]
        assert f"; {ratio:.2g} to 1 out of a host of 2 ranks" in said and "float32 ring" not in said


def test_nothing_is_said_of_ports_on_one_host(reports):
    stats, explained, said = reports["one host"]
    assert explained["port"] is None and stats["port_ratio"] is None and stats["port_bytes"] == 0 and "out of a host" not in said


def test_rank_with_port_of_its_own_has_one_ratio(reports):
    stats, explained, said = reports["one rank a host"]
    assert stats["port_ratio"] == stats["ratio"] and explained["port"]["ranks"] == 1 and "out of a host" not in said


def test_port_beyond_ring_is_warned_of_once(reports):
    """Every rank sends a third of its elements to both of the other host."""
    stats, explained, said = reports["gathered"]
    port = explained["port"]
    assert port["bytes"] > port["ring_bytes"] and stats["ratio"] > 1 > stats["port_ratio"]
    warnings = [line for line in said.splitlines() if "float32 ring" in line or "more leaves" in line]
    assert warnings == [f"laconic: the 2 ranks of a host send {port['bytes'] / 1e6:.3g} MB out of it in a step, a float32 ring would send "
                        f"{port['ring_bytes'] / 1e6:.3g} MB: use another spec, or train without laconic"]


def test_ring_of_uncompressed_gradients_is_its_own_port(reports):
    stats, explained, said = reports["plain"]
    assert explained["port"]["bytes"] == RING and stats["port_ratio"] == pytest.approx(1) and "float32 ring" not in said


def test_share_of_elements_with_one_owner_is_told(reports):
    assert reports["hosts"][1]["whole_share"] == 0 == reports["gathered"][1]["whole_share"]
    explained = laconic_plan(world=1000)
    assert explained["parameters"][0]["reason"].startswith("whole to owner") and explained["whole_share"] == pytest.approx(20000 / 20100)


def laconic_plan(world):
    from laconic.exchange.csession import CSession

    session = CSession("int8", [("w", (200, 100)), ("b", (100, 1))], rank=0, world=world, seed=0, small_elements=4096, strategy="two_shot",
                       engine_sums=0, threads=1)
    return session.explain()


# ---- who is where ----

def test_hosts_are_counted_by_place():
    hosts = Hosts([["a", "0-3"], ["a", "4-7"], ["b", "0-3"], ["a", "0-3"], ["b", "0-3"]])
    assert hosts.ranks == [[0, 1, 3], [2, 4]] and hosts.fullest == 3 and str(hosts) == "2 hosts of 2 to 3 ranks"
    assert [hosts.sharing(rank) for rank in range(5)] == [2, 1, 2, 2, 2], "ranks that are bound to other cores do not share them"
    assert str(Hosts([["a", ""]])) == "1 host of 1 rank"


def test_ports_are_told_where_hosts_have_several_ranks():
    for port in (None, {"ranks": 1, "bytes": 9, "ring_bytes": 1}, {"ranks": 2, "bytes": 0, "ring_bytes": 1}):
        assert over_port({"port": port}) == "" == beyond_ring({"port": port})


def test_threads_of_stage_follow_ranks_on_its_cores(monkeypatch):
    """Unless the group is a part of the job: others may share them."""
    from types import SimpleNamespace

    from laconic.ddp.opening import Opened
    from laconic.exchange import staging

    monkeypatch.setattr(staging.environment, "ranks_here", lambda: None)
    monkeypatch.setattr(staging.os, "sched_getaffinity", lambda pid: set(range(16)))
    stage = object.__new__(staging.HostStage)
    stage.threads = 7
    opened = SimpleNamespace(stage=stage, rank=0, world=5, hosts=Hosts([["a", "0-15"]] * 4 + [["b", "0-15"]]))
    monkeypatch.setattr(dist, "get_world_size", lambda: 5)
    assert Opened._threads_of_stage(opened) == 4
    monkeypatch.setattr(dist, "get_world_size", lambda: 9)
    assert Opened._threads_of_stage(opened) == 7
    opened.stage = staging.InPlace()
    assert Opened._threads_of_stage(opened) == 1


# ---- where Gloo listens ----

@pytest.fixture
def names(monkeypatch):
    """names["host"] = address: what the resolver gives; own names are bound, others are not."""
    known = {}

    def resolve(host, port, *_, type=0, **__):  # noqa: A002
        if host not in known:
            raise socket.gaierror(f"{host} is not known")
        return [(socket.AF_INET, type, 0, "", (known[host], port or 0))]

    monkeypatch.setattr(addresses.socket, "getaddrinfo", resolve)
    monkeypatch.setattr(addresses.socket, "gethostname", lambda: "own")
    monkeypatch.delenv(addresses.IFNAME, raising=False)
    return known


def test_gloo_is_given_address_where_its_own_is_loopback(names, monkeypatch):
    known = ["10.0.0.1", "10.0.0.2"]
    assert addresses.of_gloo(known, 1) == "10.0.0.2", "an unknown name is loopback to Gloo"
    names["own"] = "127.0.1.1"
    assert addresses.of_gloo(known, 1) == "10.0.0.2"
    names["own"] = "192.0.2.7"  # of another host
    assert addresses.of_gloo(known, 1) == "10.0.0.2"
    assert addresses.of_gloo(["127.0.0.1", ""], 1) == "", "one host"
    assert addresses.of_gloo([], 0) == "", "no store"
    monkeypatch.setenv(addresses.IFNAME, "eth0")
    assert addresses.of_gloo(known, 1) == "", "the user's choice"


def test_gloo_keeps_address_that_others_reach(names, monkeypatch):
    names["own"] = "127.0.0.1"
    monkeypatch.setattr(addresses, "reachable", bool)
    assert addresses.of_gloo(["10.0.0.1", "10.0.0.2"], 1) == ""


def test_host_of_store_takes_its_way_to_another_rank(names, monkeypatch):
    names["own"], asked = "127.0.1.1", []
    monkeypatch.setattr(addresses, "towards", lambda host: asked.append(host) or "10.0.0.1")
    assert addresses.of_gloo(["127.0.0.1", "127.0.0.1", "10.0.0.2"], 0) == "10.0.0.1" and asked == ["10.0.0.2"]


def test_way_to_this_host_is_loopback():
    assert addresses.towards("127.0.0.1", 80) == "127.0.0.1" and addresses.towards("no.such.host.invalid") == ""
    assert not addresses.reachable("127.0.1.1") and not addresses.reachable("") and not addresses.reachable("::1") and addresses.reachable("10.0.0.1")


def _at_address():
    from laconic.engines.group import Meeting, Sibling

    kept = os.environ.pop(addresses.IFNAME)
    original, made, seen = addresses.of_gloo, addresses.gloo_at, []
    addresses.of_gloo = lambda known, rank: seen.append(known) or "127.0.0.1"
    addresses.gloo_at = lambda address: seen.append(address) or made(address)
    try:
        group = dist.new_group()
        sibling = Sibling(group, Meeting(group, ""))
        ones = torch.ones(3, dtype=torch.float32, device="cpu")
        dist.all_reduce(ones, group=sibling.group)
        created = dist.distributed_c10d.ProcessGroupGloo
    finally:
        addresses.of_gloo, addresses.gloo_at = original, made
        os.environ[addresses.IFNAME] = kept
    return seen, ones.tolist(), created.__name__, dist.get_backend(sibling.group)


def test_group_at_address_works_as_any(pools):
    """`python/tests/test_clusters.py` has two hosts."""
    assert pools(2).run(_at_address) == [([["127.0.0.1", "127.0.0.1"], "127.0.0.1"], [2.0] * 3, "ProcessGroupGloo", "gloo")] * 2
