# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""`laconic.attach`: attaches compression to a DistributedDataParallel model."""

from __future__ import annotations

import logging
import os
import sys
import weakref

from ..core import environment, errors
from ..core.errors import LaconicError
from ..engines.aggregation import ServerOptions
from ..exchange.csession import Options
from ..ddp.handle import PassThrough

#: wrapper → its handle, in the order of attach
_attached: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def handles() -> list:
    """Handles of all models attached in this process whose wrappers still exist, in the order of attach."""
    return [handle for handle in list(_attached.values()) if not handle.closed]


def handle_of(model):
    """The handle of a wrapper, of the model inside it, or of a module that contains it; None if it has none.

    Use it under frameworks that hide the wrapper: pass their `model`.
    """
    if "torch" not in sys.modules:
        return None
    model = _wrapper_in(model) or _replicated(model) or getattr(model, "_orig_mod", model)
    for wrapper, handle in reversed(list(_attached.items())):
        inner = wrapper
        while inner is not None and not handle.closed:
            if inner is model:
                return handle
            inner = getattr(inner, "module", getattr(inner, "_orig_mod", None))
    return None


def _wrapper_in(module):
    """The DDP wrapper that a module is, or the only one that it holds: torch.compile and Fabric wrap it once more."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    held = [m for m in module.modules() if isinstance(m, DistributedDataParallel)] if isinstance(module, torch.nn.Module) else []
    return held[0] if len(held) == 1 else None


def attach(obj, spec: str | None = None, *, seed: int = 0, small_elements: int = 4096, strategy: str = "auto",
           down: str | None = None, threads: int | str = "auto", scaler=None, warmup: int = 0, window: int = 2, part: int = 8 << 20,
           aggregator: str | None = None, token: str | os.PathLike | None = None, quorum: float = 1.0, deadline_ms: float = 20.0, auth: str = "header", multicast: bool = False,
           rules=None, control: str | None = None, record: str | os.PathLike | None = None, quiet: bool = False, replicate=None, reduce: str | None = None,
           sync_parameters: bool = False, nodes: str | int | None = None, codecs: str = "auto", **options):
    """Compresses the gradient exchange of a DistributedDataParallel model, or between replicas of a sharded model. Returns its Handle.

    Collective: every rank calls it with the same arguments, right after wrapping the model.

    Args:
        obj: a torch.nn.parallel.DistributedDataParallel wrapper, or a module that contains one (torch.compile, Fabric); or a model after
            fully_shard() or replicate(), before its first step (docs/guide/fsdp.md). Gradients on an accelerator are exchanged through host memory and Gloo, whatever the group's backend is.
        spec: codec and settings, such as "3lc:s=1.5" or "topk:ratio=0.01" (`laconic list`). Default: LACONIC_SPEC.
        seed: seed for all random streams; must be the same on every rank.
        small_elements: parameters of at most this many elements are sent uncompressed.
        strategy: "auto", "native_sum", "gather_all", "two_shot" or "server_sum". A strategy that the codec does not support is an error.
        down: spec of the means that owners send, such as "int8"; implies "two_shot". Default: `spec`. The error of this encoding affects
            all ranks until the owner's residual delivers it. Does not apply to parameters whose rule has its own spec.
        threads: threads for encoding and decoding on this rank; results do not depend on it. "auto": 1 for gradients on the CPU; for
            gradients on an accelerator the rank's share of the CPUs, at most 8.
        scaler: the torch GradScaler in use; residuals then follow changes of the loss scale.
        warmup: number of first steps that are sent uncompressed, by PyTorch's own all-reduce.
        window: exchanges in flight at a time, 1 to 8; must be the same on every rank. With 2, one is encoded while another is sent.
        part: maximum bytes of float32 per exchange; must be the same on every rank. Larger buckets are cut between parameters, short
            ones are joined. 0: buckets are not cut.
        aggregator: "HOST:PORT" of an aggregation server (`laconic serve`), or several separated by commas. They sum the payloads of a
            spec with quantized values that add ("thc") without decoding them. Default: LACONIC_AGGREGATOR. Must be the same on every rank.
        token: path of the servers' secret (`laconic serve --new-token`). Default: LACONIC_TOKEN_FILE.
        quorum: share of the ranks, above 0 and at most 1, that completes a sum after its deadline. A rank that is too late keeps its
            gradient in its residual.
        deadline_ms: milliseconds after the first sum of a bucket until a quorum is enough.
        auth: "header": message tags cover headers; strangers cannot send datagrams. "full": they also cover payloads, which detects
            changes on the path.
        multicast: receive sums by IP multicast from servers that support it (`laconic serve --multicast`). A rank that multicast does not
            reach gets its sums by unicast, and a log line names it.
        rules: parameters with another spec: a list of dicts, or the path of a TOML file (docs/guide/control.md). Default: LACONIC_RULES.
            Must be the same on every rank.
        control: control policy that changes the spec's ratio, or a similar setting, during training: "dc2", "aimd",
            "schedule:0=0.25,200=0.01" (`laconic list --controls`). Default: LACONIC_CONTROL. Must be the same on every rank.
        record: file in which rank 0 records reports and decisions of every step; set it on every rank or on none. `laconic replay` reads
            it, and control="replay:FILE" repeats its decisions. Default: LACONIC_RECORD.
        quiet: do not log what was attached.
        replicate: for a model that is sharded over a 1-D mesh: the ranks that hold the same shards, a DeviceMesh of one dimension or a
            ProcessGroup.
        reduce: for a sharded model: "mean" or "sum" over the replicas. Default: the mean; the sum after set_gradient_divide_factor, as FSDP.
        sync_parameters: for a sharded model: take replica 0's parameters. Default: different parameters are an error.
        nodes: "on": the ranks of each host make the means of their gradients first, and each exchanges a share of them with the other hosts,
            so that what leaves a host leaves it once; "auto": where that pays; "off"; or a number, of consecutive ranks that are taken for a
            host. Where hosts have different numbers of ranks, with an aggregator or a registered codec, "auto" is off and the start line
            says why; "on" is an error. Default: LACONIC_NODES, else "auto". Must be the same on every rank. docs/guide/pytorch.md.
        codecs: "device": codecs and residuals are on the GPU, and payloads instead of gradients are copied to the host (docs/guide/gpu.md);
            an error without kernels for all specs, with a strategy that adds lanes, control or record. "host": gradients are copied. "auto": as
            "host", until GPUs have been measured. Ranks may differ.
        options: settings of the codec, as in `attach(ddp, "topk", ratio=0.01)`.

    Raises:
        LaconicError: the spec is unknown; the model has another communication hook; ranks disagree (also if LACONIC_DISABLE=1 is set on
            some ranks only); a rank does not call attach within the group's timeout; parameters are on several devices, or on a
            device that torch.accelerator does not support.
    """
    disabled = environment.disabled()
    if disabled and "torch" not in sys.modules:
        return PassThrough()
    asked = Options(spec=spec if spec is not None else os.environ.get("LACONIC_SPEC", ""), keys=options, seed=seed, small_elements=small_elements, strategy=strategy,
                    down=down, threads=threads, window=window, part=part, rules=rules, control=control, record=record, codecs=codecs)
    if (model := sharded_in(obj)) is not None:
        from ..fsdp.attach import attach as attach_sharded

        return _announced(model, attach_sharded(model, asked, disabled=disabled, refusal=_refused_nodes(nodes) or _refused_codecs(codecs), replicate=replicate, reduce=reduce,
                                                sync_parameters=sync_parameters, aggregator=aggregator, scaler=scaler, warmup=warmup), quiet)
    wrapper, group, refusal = _look_at(obj)
    stage, setting = None, "off"
    if refusal is None and (replicate is not None or reduce is not None or sync_parameters):
        refusal = errors.error("invalid_argument", "replicate=, reduce= and sync_parameters= are for sharded models",
                               "leave them out: DistributedDataParallel averages over its own group, and sends rank 0's parameters when it is made")
    if refusal is None and not disabled:
        stage, refusal = _stage_of(wrapper)
    if refusal is None and not disabled:
        setting, refusal = _setting_of(nodes)
    if disabled and group is None:
        return PassThrough()
    meeting = None
    if group is not None:
        from ..engines.group import meet
        from ..exchange.lane import Held

        meeting = meet(group, "attach", disabled, refusal, Held(group), [setting, environment.place(), os.uname().nodename])
    elif refusal is not None:
        raise refusal
    if disabled:
        _attached[wrapper] = PassThrough()
        return _attached[wrapper]
    from ..ddp import hook

    named = ServerOptions(aggregator=aggregator, token=token, quorum=quorum, deadline_ms=deadline_ms, auth=auth, multicast=multicast)
    levels = _levels_for(group, meeting, wrapper, stage, asked, named)
    handle = hook.attach(wrapper, meeting, stage, asked, named, levels, scaler=scaler, warmup=warmup)
    _announced(wrapper, handle, quiet)
    if handle.rank == 0 and not quiet and (moving := hook.moving_padding(handle, wrapper.module)):
        environment.say(moving, logging.WARNING)
    return handle


def _announced(model, handle, quiet: bool):
    """The handle, which `handles` and `handle_of` know; None: LACONIC_DISABLE=1."""
    from ..engines.group import speaks_for_node

    _attached[model] = handle = handle or PassThrough()
    if isinstance(handle, PassThrough):
        return handle
    if speaks_for_node():
        environment.report_unknown()
    if handle.speaks and not quiet:
        environment.say(handle.describe())
    return handle


def sharded_in(obj):
    """A model of FSDP2 that holds no DDP wrapper, or the one that torch.compile has; None: it is none."""
    from torch.nn import Module

    model = getattr(obj, "_orig_mod", obj)
    if not isinstance(model, Module) or _wrapper_in(model) is not None:
        return None
    from ..fsdp.layout import is_sharded

    return model if any(map(is_sharded, model.modules())) else None


def _look_at(obj):
    """The DDP wrapper; the group whose ranks attach together, or None; and why this rank cannot."""
    import torch.distributed as dist

    wrapper = _wrapper_in(obj) or _replicated(getattr(obj, "_orig_mod", obj), make=True)
    if wrapper is not None:
        return wrapper, wrapper.process_group, None
    refusal = errors.error("unsupported", f"cannot attach to a {type(obj).__module__}.{type(obj).__qualname__}", _instead(obj))
    return None, (dist.group.WORLD if dist.is_available() and dist.is_initialized() else None), refusal


def _stage_of(wrapper):
    """How its gradients get to host memory, or why they cannot."""
    from ..exchange.staging import stage_for
    from ..ddp.hook import sorted_out

    try:
        ours, foreign = sorted_out(wrapper)
        return stage_for(ours or [(name, p) for name, p, _ in foreign]), None
    except LaconicError as error:
        return None, error


def _instead(obj) -> str:
    """A hint for an object that is not a wrapper."""
    from torch.nn import Module
    from torch.nn.parallel import DistributedDataParallel

    if any("FullyShardedDataParallel" in base.__name__ for base in type(obj).__mro__):
        return "FSDP1 has no all-reduce between replicas to replace: use fully_shard() (FSDP2) on a 2-D mesh"
    wrappers = sum(isinstance(m, DistributedDataParallel) for m in obj.modules()) if isinstance(obj, Module) else 0
    if wrappers:
        return f"it holds {wrappers} DistributedDataParallel wrappers: attach to each of them"
    return ("wrap the model in torch.nn.parallel.DistributedDataParallel first, or start the script with "
            "`python -m laconic.run`, which finds the wrapper")


def _replicated(module, make: bool = False):
    """The DDP inside a module that went through torch's composable replicate(); None for any other module."""
    if not any(base.__module__ == "torch.distributed._composable.replicate" for base in type(module).__mro__):
        return None
    from torch.distributed._composable.replicate import replicate

    state = replicate.state(module)
    if make and state._init_args:  # noqa: SLF001  at the first forward otherwise
        state.lazy_init()
    return getattr(state, "_ddp", None)


def _setting_of(nodes) -> tuple[str, LaconicError | None]:
    from ..engines.nodes import asked

    try:
        return asked(nodes), None
    except LaconicError as error:
        return "off", error


def _refused_nodes(nodes) -> LaconicError | None:
    """Replicas of sharded models exchange shards already."""
    from ..engines.group import speaks_for_node
    from ..engines.nodes import refuse, report_unused

    if nodes is None and speaks_for_node():
        report_unused("a sharded model")
    try:
        refuse(nodes, "the replicas of a sharded model exchange shards already")
    except LaconicError as error:
        return error
    return None


def _refused_codecs(codecs) -> LaconicError | None:
    """Of a sharded model gradients are copied."""
    if codecs in ("auto", "host"):
        return None
    return errors.error("unsupported", f"codecs={codecs!r}: a sharded model's gradients are copied to the host", 'leave codecs out')


def _levels_for(group, meeting, wrapper, stage, asked: Options, servers: ServerOptions):
    """The levels of a wrapper's group; the same on all ranks."""
    import torch.distributed as dist

    from ..engines.group import Meeting
    from ..engines.nodes import NOTHING, ONE_HOST, ONE_RANK_EACH, Levels, seated

    settings = [card[0] for card in meeting.cards]
    setting = settings[0]
    if (other := next((rank for rank, own in enumerate(settings) if own != setting), None)) is not None:
        raise errors.error("ranks_disagree", f"nodes is {setting} on rank 0 and {settings[other]} on rank {other}",
                           "give every rank the same call, file and LACONIC_* variables")
    if setting == "off":
        return Levels(why="not requested")
    from ..ddp.choice import refused, worthless

    auto = setting == "auto"
    _, places, hosts = zip(*meeting.cards)
    nodes, why = seated(setting, places, dist.get_rank(group), hosts)
    if nodes is not None:
        why = refused(asked, servers) or (worthless(nodes, wrapper, stage, asked) if auto else "")
        said = Meeting(group, why).words  # one rank's spec may be another's, which attach refuses
        why = next(filter(None, said), "")
        if not why and auto:
            return Levels(nodes, "flat, a host would send more than an eighth of a ring's bytes" if stage.path == "in_place" else
                          "gradients are on an accelerator")
        if not why:
            return Levels(nodes, "requested")
    if not auto and why not in (ONE_HOST, ONE_RANK_EACH):
        raise errors.error("unsupported", f"nodes={setting}: {why}", "leave nodes out")
    return Levels(why=why, announced=not auto or why not in (ONE_HOST, ONE_RANK_EACH, NOTHING))
