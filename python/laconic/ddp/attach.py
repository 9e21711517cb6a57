# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""`laconic.attach`: the one line."""

from __future__ import annotations

import logging
import os
import sys
import weakref

from ..core import environment, errors
from ..core.environment import DISABLED
from ..core.errors import LaconicError
from ..engines.aggregation import ServerOptions
from ..exchange.csession import Options
from .handle import PassThrough

#: wrapper → its handle, in the order of attach
_attached: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def handles() -> list:
    """The handles of all models that are attached in this process and still there, in the order of attach."""
    return [handle for handle in list(_attached.values()) if not handle.closed]


def handle_of(model):
    """The handle of an attached wrapper, of the model inside one, or of a module that holds one; None where there is none.

    Frameworks hide the wrapper: their `model` will do.
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
           rules=None, control: str | None = None, record: str | os.PathLike | None = None, quiet: bool = False, **options):
    """Compresses the gradient exchange of a DistributedDataParallel model. Gives a Handle.

    A collective call: every rank makes it, with the same arguments, right after wrapping the model.

    Args:
        obj: a torch.nn.parallel.DistributedDataParallel wrapper, or a module that holds one (torch.compile, Fabric). Gradients on an accelerator go through host memory and Gloo,
            whatever the group's backend is.
        spec: "3lc:s=1.5", "topk:ratio=0.01", … (`laconic list`). Without it, LACONIC_SPEC decides.
        seed: of all random streams; equal on all ranks.
        small_elements: parameters of at most this many elements go uncompressed.
        strategy: "auto", "native_sum", "gather_all", "two_shot" or "server_sum"; the planner refuses what the codec forbids.
        down: spec by which means come down, such as "int8", where owners send them ("two_shot", which it takes): what is lost on
            that way is lost for all. Not for parameters whose rule has a spec of its own. Without it: `spec`.
        threads: for encoding and decoding on this rank; results do not depend on it. "auto": 1 for gradients on the CPU, for those
            on an accelerator the rank's part of the CPUs, 8 at most.
        scaler: the torch GradScaler in use, so that residuals stay right when the loss scale changes.
        warmup: so many first steps go uncompressed, by PyTorch's own all-reduce.
        window: exchanges in flight at a time, 1 to 8; equal on all ranks. With 2, one is encoded while another is on the wire.
        part: buckets are cut between parameters into parts of at most so many bytes of float32, each an exchange of its own, and
            short ones travel together up to as many; equal on all ranks. 0: not cut.
        aggregator: "HOST:PORT" of an aggregation server (`laconic serve`), or several, "a:7420,b:7420": a spec that has codes ("thc") is
            summed there, without being decoded. Without it, LACONIC_AGGREGATOR decides; equal on all ranks.
        token: path of the servers' secret (`laconic serve --new-token`); without it, LACONIC_TOKEN_FILE decides.
        quorum: of all ranks, how many are enough for a sum once its deadline has passed, above 0 to 1. A rank that comes too late
            keeps what it had in its residual.
        deadline_ms: milliseconds from a bucket's first sum on, after which a quorum is enough.
        auth: "header": tags over headers keep strangers out; "full": over payloads, too, which someone on the path could change.
        multicast: sums come once for all ranks, by IP multicast, from servers that offer it (`laconic serve --multicast`); a rank that
            does not hear it gets them as ever, and a line tells which.
        rules: which parameters get another spec: a list of dicts, or the path of a TOML file (docs/guide/control.md). Without it,
            LACONIC_RULES decides; equal on all ranks.
        control: a law that moves the spec's ratio (or its like) while training runs: "dc2", "aimd", "schedule:0=0.25,200=0.01"
            (`laconic list --controls`). Without it, LACONIC_CONTROL decides; equal on all ranks.
        record: file in which rank 0 records what ranks report and laws decide, step by step; given on all ranks or none. `laconic
            replay` reads it, and control="replay:FILE" repeats its decisions. Without it, LACONIC_RECORD decides.
        quiet: do not announce what was attached.
        options: the codec's keys, as in `attach(ddp, "topk", ratio=0.01)`.

    Raises:
        LaconicError: unknown spec, another hook, ranks that disagree (LACONIC_DISABLE=1 on some only included), a rank that
            does not make the call within the group's time-out, parameters on several devices or on one that torch.accelerator
            does not name.
    """
    disabled = environment.disabled()
    if disabled and "torch" not in sys.modules:
        return PassThrough()
    wrapper, group, refusal = _look_at(obj)
    stage = None
    if refusal is None and not disabled:
        stage, refusal = _stage_of(wrapper)
    if disabled and group is None:
        return PassThrough()
    meeting = None if group is None else _meet(group, disabled, refusal)
    if refusal is not None:
        raise refusal
    if disabled:
        _attached[wrapper] = PassThrough()
        return _attached[wrapper]
    from ..engines.group import speaks_for_node
    from . import hook

    if speaks_for_node():
        environment.report_unknown()
    chosen = spec if spec is not None else os.environ.get("LACONIC_SPEC", "")
    asked = Options(spec=chosen, keys=options, seed=seed, small_elements=small_elements, strategy=strategy, down=down, threads=threads, window=window,
                    part=part, rules=rules, control=control, record=record)
    named = ServerOptions(aggregator=aggregator, token=token, quorum=quorum, deadline_ms=deadline_ms, auth=auth, multicast=multicast)
    handle = hook.attach(wrapper, meeting, stage, asked, named, scaler=scaler, warmup=warmup)
    _attached[wrapper] = handle
    if handle.rank == 0 and not quiet:
        environment.say(handle.describe())
        if moving := hook.moving_padding(handle, wrapper.module):
            environment.say(moving, logging.WARNING)
    return handle


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
    from .hook import sorted_out

    try:
        ours, foreign = sorted_out(wrapper)
        return stage_for(ours or [(name, p) for name, p, _ in foreign]), None
    except LaconicError as error:
        return None, error


def _instead(obj) -> str:
    """What to do with an object that is not a wrapper."""
    from torch.nn import Module
    from torch.nn.parallel import DistributedDataParallel

    if any(word in base.__name__ for base in type(obj).__mro__ for word in ("FSDP", "FullyShardedDataParallel", "ReplicateModule")):
        return "this version exchanges the gradients of DistributedDataParallel alone: sharded ones travel uncompressed"
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


def _meet(group, disabled: bool, refusal: LaconicError | None):
    """Every rank learns what every other one is about to do, before any collective; one message where they differ."""
    from ..engines.group import Meeting, listed
    from ..exchange.lane import shared_of

    word = DISABLED if disabled else "" if refusal is None else str(refusal)
    meeting = Meeting(group, word, shared_of(group))
    if len(set(meeting.words)) == 1:
        return meeting
    off = [rank for rank, said in enumerate(meeting.words) if said == DISABLED]
    if off:
        on = [rank for rank, said in enumerate(meeting.words) if said != DISABLED]
        raise errors.error("ranks_disagree", f"{DISABLED} is set on rank {listed(off)} and not on rank {listed(on)}",
                           "set it on all ranks or on none")
    rank, said = next((rank, said) for rank, said in enumerate(meeting.words) if said)
    raise errors.error("ranks_disagree", f"rank {rank} could not attach: {said}",
                       "give every rank the same call, file and LACONIC_* variables")

