# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Agreement of a process group's ranks at attach, and its reports."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import struct

import torch.distributed as dist

from ..codec import registered
from ..core import errors
from ..core._checks import U64, whole
from ..core.errors import LaconicError
from ..engines import aggregation, group
from ..engines.aggregation import ServerOptions
from ..engines.c10d import reaches_near
from ..engines.emulate import limiter_from_environment
from ..engines.hosts import Hosts, over_port, seat
from ..engines.nodes import FLAT, Everyone, Levels, Nodes, failure_in
from ..engines.texts import gather_texts
from ..exchange import names, trace
from ..exchange.csession import ALONE, CSession, Options
from ..exchange.driver import cards_of_all
from ..exchange.lane import SharedLane
from ..exchange.nodes import NodeStage
from ..exchange.staging import CodecStage, DeviceStage, Lender, MeetingOnHost, gpu_of
from ..exchange.worker import Worker


class Parameters:
    """`ours`: (name, tensor) of what a codec may take, in the order of saved state; `foreign`: (name, tensor, what it is) of what none does."""

    def __init__(self, ours: list, foreign: list):
        self.ours, self.foreign = ours, foreign
        self.index = {id(p): i for i, (_, p) in enumerate(ours)}
        self.counts = [p.numel() for _, p in ours]

    def shaped(self, names=None) -> list:
        """(name, shape); of other names if they are given."""
        return [(name, tuple(p.shape)) for name, (_, p) in zip(names or [name for name, _ in self.ours], self.ours)]


class Opened:
    """An agreement of all ranks, and the worker that it is about. Collective over the group; LaconicError on all ranks or on none."""

    def __init__(self, parameters: Parameters, of, meeting, stage, check, options: Options, servers: ServerOptions, warmup: int,
                 levels: Levels = FLAT):
        """`check()`: this rank's own reasons to refuse. The rest is that of laconic.attach."""
        self.parameters, self.group, self.stage, self.levels = parameters, of, stage, levels
        nodes = levels.nodes
        lane = SharedLane.of(of, meeting, stage.backend, nodes, nodes and group.near_backend(of, stage.device))
        self.sibling = lane.sibling
        self._everyone = nodes and Everyone(nodes, lane.engine, lane.inside)
        try:
            session, engine = lane.wait_for(functools.partial(self._open, lane.engine, check, options, servers, warmup, lane.inside))  # after the exchanges of other wrappers
        except LaconicError as error:  # on every rank
            if error.name == "engine_failed":
                lane.spoil()
            lane.leave()
            raise
        session.trace = trace.from_environment(self.rank, session.window)
        self.worker = Worker(session, engine, self.stage, lane, self._everyone)
        lane.leave()  # the worker has joined it
        if engine is not lane.engine:
            self.worker.commands.at_end(engine.leave)

    def _open(self, engine, check, options: Options, named: ServerOptions, warmup: int, inside):
        """Everything that one rank may refuse, and the agreement of all of them."""
        everyone = self._everyone or engine
        self.world, self.rank = everyone.world, everyone.rank
        sums = engine.probe_sums()
        cards = [json.loads(card) for card in gather_texts(everyone, json.dumps([str(warmup)[:30], len(self.parameters.foreign), seat()]))]
        self.hosts = Hosts([card[2] for card in cards])
        shard = {"ranks_per_host": self.hosts.fullest}
        if self.nodes is not None:
            shard = {"ranks_per_host": 1, "node_shards": self.nodes.size, "node_shard": self.nodes.local}
        session, failure, who, servers, text = None, None, None, None, ""
        gpu = None
        try:
            check()
            gpu, self.why_host = gpu_of(options.codecs, self.stage.device)
            self.threads = self._threads_of_stage() if options.threads == "auto" else options.threads
            self.warmup = whole("warmup", warmup, 0, U64 >> 1)
            engine.limiter = engine.limiter or limiter_from_environment()
            options = options.read()
            text, options = options.spec, dataclasses.replace(options, threads=self.threads, rules=self.rules_of(options.rules))
            servers = aggregation.of(named, strategy=options.strategy, limiter=engine.limiter)
            if servers is not None:
                servers.open(self.world, group.seconds(self.group))
            self._make_session = functools.partial(
                options.session, rank=engine.rank, world=engine.world, **shard, engine_sums=sums, short_sends=engine.short_sends,
                aggregates=servers is not None, gpu=gpu, lender=None if gpu is None else Lender(self.stage.device),
                strategy=options.strategy if servers is None or options.rules else "server_sum")
            session = self._make_session(self.parameters.shaped())
        except LaconicError as error:  # the other ranks are about to compare cards with us
            failure = aggregation.without_codes(error, text)
        except Exception as error:  # noqa: BLE001  an argument of a wrong type
            failure = errors.error("invalid_argument", f"{type(error).__name__}: {error}", "see help(laconic.attach)")
        if self.nodes is not None:
            said = "" if session is None else "{spec} ({agreement:x})".format_map(session.header())
            failure, who = failure_in(inside, self.nodes, said, failure)
        agreed = cards_of_all(engine, session, failure, "attach", who)
        aggregation.agree(engine, servers)
        session.check(agreed)
        self._check_cards(cards)
        self.servers = servers
        if servers is not None and not session.all_raw:
            engine = servers.join(engine, session)
        if self.nodes is not None:
            session.rank, session.world = self.rank, self.world  # in messages and reports
            self.stage = self._node_stage(inside, self._held(inside, session), *((DeviceStage, None) if gpu is None else (CodecStage, MeetingOnHost)))
        elif gpu is not None:
            self.stage = CodecStage(self.stage.device)
        return session, engine

    def _node_stage(self, inside, held, there, here) -> NodeStage:
        """On the device, by a stage `there`, where the node's ranks have a group that serves it, else by one `here`; None: the one that is."""
        near = self.sibling.near
        if near is not None:
            stage = there(self.stage.device)
            with stage.working():
                if reaches_near(near, inside, stage.device):
                    return NodeStage(stage, self.nodes, inside, held, near)
            self.sibling.near = None  # also where it is reused: what some ranks have begun is still under way
        return NodeStage(self.stage if here is None else here(self.stage.device), self.nodes, inside, held)

    def _held(self, inside, session) -> list[list[tuple[int, int]]]:
        """(first, count) of every parameter, by shard."""
        own = [n for held in session.shard() for n in held]
        gathered = inside.gather_bytes(struct.pack(f"<{len(own)}Q", *own)) if own else b""
        numbers = struct.unpack(f"<{len(own) * self.nodes.size}Q", gathered)
        pairs = list(zip(numbers[::2], numbers[1::2]))
        count = len(self.parameters.ours)
        return [pairs[s * count : (s + 1) * count] for s in range(self.nodes.size)]

    def _check_cards(self, cards: list) -> None:
        """Compares what the library does not. `cards`: of every rank, in rank order."""
        for what, at in (("warmup", 0), ("the number of parameters that no codec supports", 1)):
            other = next((r for r, card in enumerate(cards) if card[at] != cards[0][at]), None)
            if other is not None:
                raise errors.error("ranks_disagree", f"{what} is {cards[0][at]} on rank 0 and {cards[other][at]} on rank {other}",
                                   "give every rank the same call, file and LACONIC_* variables")

    def _threads_of_stage(self) -> int:
        """Cards of a part of the job do not tell how many ranks share the cores."""
        return self.stage.threads_beside(self.hosts.sharing(self.rank) if self.world == dist.get_world_size() else None)

    @property
    def nodes(self) -> Nodes | None:
        return self.levels.nodes

    def session_of(self, others: list[str]) -> CSession:
        """A session of this model under other names."""
        return self._make_session(self.parameters.shaped(others), record=None, control=None)

    def rules_of(self, rules: list[dict]) -> list[dict]:
        """Checked rules, as the session matches them."""
        return names.of_rules(rules)

    # ---- reports --------------------------------------------------------------------------------------------------------

    @property
    def speaks(self) -> bool:
        """True on the rank that logs for all ranks."""
        return self.rank == 0

    def ranks(self) -> str:
        return f"{self.world} rank{'s' if self.world > 1 else ''}"

    def explain(self) -> dict:
        explained, stage = self.worker.explain(), self.stage
        foreign = [{"name": name, "elements": p.numel(), "codec": "none", "reason": f"no codec supports {reason}"}
                   for name, p, reason in self.parameters.foreign]
        return {**explained, "why_host": self.why_host or None, "warmup": self.warmup, "device": str(stage.device), "path": stage.path, "threads": self.threads,
                "exchange_backend": self.sibling.backend, "parameters": explained["parameters"] + foreign, "rank": self.rank,
                "world": self.world, "nodes": self._explained_nodes(), "port": self._port(explained)}

    def _port(self, explained: dict) -> dict | None:
        """Of a host, all of whose ranks send their shards out of it."""
        port = explained["port"]
        if port is None or self.nodes is None:
            return port
        return {"ranks": self.nodes.size, "bytes": self.nodes.size * port["bytes"], "ring_bytes": self.nodes.ring(port["ring_bytes"])}

    def _explained_nodes(self) -> dict:
        nodes = self.nodes
        if nodes is None:
            return {"count": None, "ranks": None, "local_rank": None, "why": self.levels.why}
        return {"count": nodes.count, "ranks": nodes.size, "local_rank": nodes.local, "why": self.levels.why}

    def describe(self) -> str:
        e, all_raw = self.explain(), self.worker.session.all_raw
        packed = [p for p in e["parameters"] if p["codec"] != "none" or p.get("down")]
        elements = sum(p["elements"] for p in packed)
        text = f"{dist.get_backend(self.group)}, {self.ranks()}, {self.stage.told}"
        if self.world == 1:
            text = f"{e['spec']}: {ALONE}; {text}"
        elif all_raw and self.nodes is not None:
            text = f"{e['spec']}: nothing to compress in {len(e['parameters'])} tensors ({_why_all_raw(e)}); {text}"
        elif all_raw:
            text = (f"{e['spec']}: nothing to compress in {len(e['parameters'])} tensors ({_why_all_raw(e)}): PyTorch's own "
                    f"all-reduce; {text}")
            if self.servers is not None:
                text += "; the aggregator is not used"
        else:
            specs, strategy = _told(e)
            text = (f"{specs} on {len(packed)} of {len(e['parameters'])} tensors ({elements} of {e['elements']} elements)"
                    f"{strategy}; {e['uncompressed_elements']} elements uncompressed; {text}")
            if self.servers is not None:
                text += f"; {self.servers}"
            if any(registered.find(p["codec"]) for p in packed):
                text += "; a registered codec runs in Python and is slow: use it to try ideas"
            if self.warmup > self.worker.step:
                text += f"; uncompressed for {self.warmup - self.worker.step} steps"
            text += over_port(e)
        if self.nodes is not None:
            inside = self.sibling.backend if self.stage.meets.type == "cpu" else dist.get_backend(self.sibling.near)
            text += f"; between {self.nodes}, inside them {inside}"
        elif self.levels.announced:
            text += f"; nodes: off, {self.levels.why}"
        if self.parameters.foreign:
            named = names.shorten(f"{name} ({reason})" for name, _, reason in self.parameters.foreign)
            text += f"; PyTorch's own all-reduce for parameters that no codec supports: {named}"
        if not all_raw and self.worker.engine.limiter is None:
            if len(self.hosts.ranks) == 1 and "LACONIC_LAB" not in os.environ:
                text += "; all ranks are on this machine, so compression cannot help: no network connects them"
        return text


def _told(explained: dict) -> tuple[str, str]:
    """The specs, and the strategy where there is one."""
    settings = [s for s in explained.get("settings", ()) if s["parameters"]]
    controls = sorted({s["control"] for s in settings} - {"fixed"})
    controlled = f", control {' and '.join(controls)}" if controls else ""
    if len(settings) < 2:
        down = f", means are encoded by {explained['down']}" if explained["down"] else ""
        return explained["spec"], f" by {explained['strategy']}{down}{controlled}"
    return names.shorten(f"{s['rule']}: {s['spec']} by {s['strategy']}" + (f", down {s['down']}" if s["down"] else "")
                         for s in settings), controlled


def _why_all_raw(explained: dict) -> str:
    if explained["spec"] == "none" and not explained["down"]:
        return "none does not compress"
    if not explained["parameters"]:
        return "no codec supports any"
    return f"none has more than {explained['small_elements']} elements"
