# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""`laconic.attach` for models after fully_shard() or replicate()."""

from __future__ import annotations

import ctypes
import dataclasses
import hashlib
import os
import weakref

import torch
import torch.distributed as dist

from ..core import errors
from ..core.environment import DISABLED
from ..core.errors import LaconicError
from ..ddp.steps import Settings, Steps
from ..engines.c10d import broadcast
from ..engines.group import listed
from ..exchange.csession import Options
from ..exchange.rules import chosen
from ..exchange.staging import stage_for
from ..exchange.worker import DTYPES
from .handle import OpenedShards, OwnShards, ShardedHandle
from .hook import Hook
from .layout import Unit, at_finalize, resetter, units_of
from .replicas import Shards, objection, replicas_of

_CHUNK = 29  #: hashes of 16 digits in a text of 500 bytes


def attach(model, options: Options, *, disabled: bool, refusal: LaconicError | None, replicate, reduce, sync_parameters: bool, aggregator, scaler, warmup: int) -> ShardedHandle | None:
    """Installs the hook in the model's parameter groups. Returns its handle; None if LACONIC_DISABLE=1 is set on all ranks. Collective over all
    ranks that hold a part of the model; raises LaconicError on all of them or on none. `refusal`: why this rank cannot, if that is known already. Other arguments are
    those of laconic.attach."""
    everything, units, replicas, stage = [], [], None, None
    try:
        if refusal is not None:
            raise refusal
        everything = units_of(model)
        for unit in everything:
            _refuse_ours(unit)
        replicas, units = replicas_of(everything, replicate)
        stage = _stage_of(units, reduce, aggregator)
    except LaconicError as error:
        refusal = error
    message = DISABLED if disabled else "" if refusal is None else f"rank {dist.get_rank()} could not attach: {refusal}"
    places = sorted({place for unit in units for place in unit.places if place})
    given = {"places": " and ".join(places), "reduce": reduce, "sync_parameters": bool(sync_parameters)}
    message = objection(model, units or everything, replicas, given, message)
    if message == DISABLED:
        return None
    if message:
        raise refusal or _other(message)
    shards = Shards(units, replicas)
    meeting = shards.meet(stage.backend)
    if record := chosen(options.record, "LACONIC_RECORD"):
        options = dataclasses.replace(options, record=_own_record(record, shards, places))
    opened, failure = _open(units, shards, meeting, stage, _note(everything, units, reduce), sync_parameters, options, warmup)
    ranks = listed(dist.get_process_group_ranks(replicas))
    message = shards.reported("" if failure is None else f"of the replicas on ranks {ranks}, counted from 0, {failure}")
    if message:
        if opened is not None:
            opened.worker.close()
        raise failure or _other(message)
    settings = Settings(opened)
    steps = Steps(opened, settings, scaler)
    handle = ShardedHandle(opened, settings, steps, Hook(units, shards, reduce, resetter(model), opened, settings, steps))
    infos: dict = {}
    for unit in units:
        unit.adopt(handle.hook, infos)
    at_finalize(model, handle.hook.end_outside)
    weakref.finalize(model, opened.worker.end).atexit = False
    return handle


def _other(message: str) -> LaconicError:
    return errors.error("ranks_disagree", message, "give every rank the same call, file and LACONIC_* variables")


def _stage_of(units: list[Unit], reduce, aggregator):
    """The staging object for gradients. LaconicError: the reason why this rank cannot attach."""
    for unit in units:
        meta = next((unit.names[i] for i, p in enumerate(unit.parameters) if p.sharded_param.device.type == "meta"), None)
        if meta is not None:
            raise errors.error("unsupported", f"parameter {meta} is on the meta device", "call model.to_empty(device=...) and initialize the model first")
        _refuse_hook(unit)
    if reduce not in (None, "mean", "sum"):
        raise errors.error("invalid_argument", f"reduce= is {reduce!r}", 'use "mean" or "sum"; the default is what FSDP does')
    if chosen(aggregator, "LACONIC_AGGREGATOR"):
        raise errors.error("unsupported", "aggregation servers support DistributedDataParallel only, not sharded models",
                           "omit aggregator= and unset LACONIC_AGGREGATOR")
    if not any(p.sharded_param.requires_grad for unit in units for p in unit.parameters):
        raise errors.error("invalid_argument", "no sharded parameter of the model requires a gradient", "attach to a model that has trainable sharded parameters")
    return stage_for([(name, torch.empty(0, device=unit.device, dtype=torch.float32)) for unit in units for name in unit.names[:1]])


def _refuse_hook(unit: Unit) -> None:
    other = unit.other_hook
    if other is not None and not isinstance(getattr(other, "__self__", None), Unit):
        raise errors.error("unsupported", f"{unit.module} has an all-reduce hook already ({getattr(other, '__qualname__', other)})",
                           "FSDP accepts one hook: remove set_all_reduce_hook, laconic does the all-reduce")


def _refuse_ours(unit: Unit) -> None:
    ours = getattr(unit.other_hook, "__self__", None)
    if isinstance(ours, Unit) and not ours.closed:
        raise errors.error("unsupported", "laconic is attached to this model already",
                           "use the first handle, laconic.handle_of(model); its set() changes the spec")


def _own_record(record, shards: Shards, places: list[str]):
    """Replica 0 writes one file per shard: FILE for the first, FILE.1-4 for shard 1/4."""
    own = "" if shards.first else "." + "_".join(places).replace("/", "-").replace(",", "_")
    return os.fspath(record) + own


def _note(everything: list[Unit], units: list[Unit], reduce) -> str:
    """The end of the line that is logged at attach."""
    summed = reduce == "sum" or (reduce is None and any(unit.divides for unit in units))
    why = "" if reduce is not None else " because of set_gradient_divide_factor"
    left = len(everything) - len(units)
    return (f", summed{why}" if summed else "") + (f", {left} parameter groups without replicas unchanged" if left else "")


def _open(units, shards: Shards, meeting, stage, note: str, sync: bool, options: Options, warmup: int):
    """What the replicas agreed on, or the error."""
    opened = None
    try:
        opened = OpenedShards(OwnShards(units, DTYPES), shards, meeting, stage, note, options, warmup)
        _compare(opened, units, sync)
    except LaconicError as error:
        return opened, error
    except RuntimeError as error:
        return opened, errors.error("engine_failed", f"{type(error).__name__}: {error}", "restart from the last checkpoint")
    return opened, None


def _compare(opened: OpenedShards, units: list[Unit], sync: bool) -> None:
    """Checks that the shards of all replicas are equal, or copies those of replica 0."""
    tensors = [(unit.names[i], p.sharded_param.detach().to_local()) for unit in units for i, p in enumerate(unit.parameters)]
    worker = opened.worker
    if sync:
        for _, values in tensors:
            worker.commands.between_jobs(worker.exchanges.agreed, _take_first, worker.engine, values)
    hashes = [hashlib.blake2b(_bytes(values), digest_size=8).hexdigest() for _, values in tensors]
    digests = worker.gather_texts(hashlib.blake2b("".join(hashes).encode(), digest_size=16).hexdigest())
    if len(set(digests)) == 1:
        return
    ranks = dist.get_process_group_ranks(opened.group)
    for begin in range(0, len(hashes), _CHUNK):
        own = hashes[begin : begin + _CHUNK]
        listed_by = [text.split() for text in worker.gather_texts(" ".join(own))]
        for i in range(len(own)):
            rank = next((r for r, some in enumerate(listed_by) if some[i] != listed_by[0][i]), None)
            if rank is not None:
                raise errors.error("ranks_disagree", f"{tensors[begin + i][0]} has other values on rank {ranks[0]} than on rank {ranks[rank]}, which hold "
                                   "the same shard", "create replicas with the same seed, load the same checkpoint, or pass sync_parameters=True")


def _bytes(values: torch.Tensor) -> bytes:
    host = values.cpu().contiguous()
    return ctypes.string_at(host.data_ptr(), host.numel() * host.element_size()) if host.numel() else b""


def _take_first(engine, values: torch.Tensor) -> None:
    host = values.to("cpu", copy=True).contiguous().view(-1)
    broadcast(engine, host.view(torch.uint8), 0)
    values.copy_(host.view(values.shape))
