# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Whether a model's gradients are exchanged in two levels, where its ranks could."""

from __future__ import annotations

from ..codec import registered
from ..core import _lib
from ..core.errors import LaconicError
from ..engines import aggregation
from ..engines.aggregation import ServerOptions
from ..engines.nodes import NOTHING, Nodes
from ..exchange.csession import CSession, Options


def refused(asked: Options, servers: ServerOptions) -> str:
    """What takes whole models; empty: nothing does. An argument that is wrong is refused by the session."""
    try:
        options = asked.read()
        if aggregation.of(servers, strategy=options.strategy, limiter=None) is not None:
            return "an aggregation server adds whole models"
        specs = [options.spec, options.down, *(rule.get("spec") for rule in options.rules)]
        if any(registered.find(spec) for spec in specs if spec):
            return "a registered codec takes whole models"
    except (LaconicError, AttributeError, TypeError):
        return ""
    return ""


def worthless(nodes: Nodes, wrapper, stage, asked: Options) -> str:
    """Why "auto" exchanges flat; empty: it does not. Ranks on the CPU need time inside the node, which pays where a host would send much
    out of it."""
    from .hook import sorted_out

    ours, _ = sorted_out(wrapper)
    try:
        options = asked.read()
        session = options.session([(name, tuple(p.shape)) for name, p in ours], rank=0, world=nodes.count * nodes.size, ranks_per_host=nodes.size, threads=1,
                                  engine_sums=1 << _lib.F32 | 1 << _lib.F16 | 1 << _lib.BF16 | 1 << _lib.I32, short_sends=True, record=None)
    except (LaconicError, AttributeError, TypeError):
        return ""
    try:
        if session.all_raw:
            return NOTHING
        if stage.path != "in_place":
            return ""
        sent, ring = out_of_a_host(session)
    finally:
        session.close()
    return "" if sent > ring / 8 else f"flat, a host sends {sent / ring:.2g} of a ring's bytes"


def out_of_a_host(session: CSession) -> tuple[int, int]:
    """Bytes that a step of a flat session is expected to send out of a host, and those of a float32 ring."""
    port = session.explain()["port"]
    return port["bytes"], port["ring_bytes"]
