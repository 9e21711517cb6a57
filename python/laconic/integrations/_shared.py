# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Shared by the callbacks of PyTorch: attaching, or logging why not, and a state file per rank with each checkpoint."""

from __future__ import annotations

import logging
import weakref
from pathlib import Path

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ..api.attach import attach as attach_model
from ..api.attach import handle_of, sharded_in
from ..core import environment
from ..core.errors import LaconicError
from ..ddp.handle import Handle, PassThrough
from ..exchange import files
from ..exchange.state import fingerprint
from . import states


def world() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def say_once(text: str, level: int = logging.WARNING) -> None:
    """Logs one line, on rank 0 of all processes."""
    if not environment.disabled() and (world() == 1 or dist.get_rank() == 0):
        environment.say(text, level)


def attach(model, spec: str | None, options: dict, ours, why: str, every: int | None = None, optimizer=None):
    """The wrapper's existing handle, or a new one. None if it is not a wrapper: rank 0 logs why, and training continues.

    `ours`: the handle that this callback got earlier. `every`: an OuterStep behind the optimizer, with its optimizer. Raises LaconicError on all ranks if some have a wrapper and others have none.
    """
    wrapped = isinstance(model, DistributedDataParallel)
    if world() == 1 and not wrapped:
        return say_once("one process has nothing to exchange: LaconicCallback does not attach", logging.INFO)
    if every is not None:
        return _outer(model, spec, {"every": every, **options}, optimizer) if wrapped else say_once(f"nothing is compressed: {why}")
    handle = handle_of(model)
    if handle is None:
        try:
            handle = attach_model(model, spec, **options)  # in any case: the other ranks must learn that this one has no wrapper
            if hasattr(handle, "shards"):
                say_once("states of sharded models are not saved with checkpoints: laconic.checkpointable(callback.handle) is for "
                         "torch.distributed.checkpoint")
            return handle
        except LaconicError as error:
            if error.name != "unsupported" or wrapped:
                raise
            return say_once(f"nothing is compressed: {error if sharded_in(model) is not None else why}")
    if handle is not ours and spec is not None and spec != handle.spec and not isinstance(handle, PassThrough):
        say_once(f"this model is already attached with {handle.spec}; {spec} of LaconicCallback is not used")
    return handle


def check_momentum(handle, optimizers) -> None:
    """Handle.check_momentum, of each optimizer in a framework's wrapper."""
    from ..outer.model import unwrapped

    if isinstance(handle, Handle):
        for optimizer in optimizers:
            if getattr(optimizer, "param_groups", None):
                handle.check_momentum(unwrapped(optimizer))


#: wrapper → its OuterStep, with what belongs to it
_outers: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def _outer(wrapper, spec: str | None, options: dict, optimizer):
    from ..outer import OuterStep
    from ..outer.model import unwrapped
    from ..outer.whole import Whole

    whole = _outers.get(wrapper)
    if whole is None or whole.closed or whole.outer.optimizer is not unwrapped(optimizer):
        if whole is not None:
            whole.outer.close()
        whole = _outers[wrapper] = Whole(OuterStep(wrapper, optimizer, spec=spec, **options))
        weakref.finalize(wrapper, whole.outer.close).atexit = False
    return whole


def keeps_state(handle) -> bool:
    return handle is not None and not isinstance(handle, PassThrough) and not hasattr(handle, "shards")


def of_checkpoint(handle) -> str:
    """Fingerprint of the parameters that the framework saves now. Collective."""
    return handle.of_checkpoint() if hasattr(handle, "of_checkpoint") else fingerprint(handle.parameters)


def content_of(handle) -> dict:
    """The contents of a rank's state file: its state and the parameters that it belongs to."""
    return states.content(of_checkpoint(handle), handle.state_dict())


def save(handle, path: Path) -> None:
    """Writes this rank's state. Collective: returns after all ranks have written; rank 0 logs the ranks that could not."""
    trouble = states.write(files.save, path, content_of(handle))
    try:
        texts = handle.gather_texts(trouble)
    except RuntimeError:  # the exchange failed: this rank still saves its state, and the next step reports the failure
        return states.say_unsaved([handle.rank], trouble) if trouble else None
    troubled = [(rank, text) for rank, text in enumerate(texts) if text]
    if troubled and handle.rank == 0:
        states.say_unsaved([rank for rank, _ in troubled], troubled[0][1])
    return None


def save_alone(rank: int, path: Path, content: dict) -> None:
    """As `save`, when no exchange is possible any more."""
    states.save_alone(files.save, rank, path, content)


def resume(handle, paths: list[Path]) -> bool:
    """Loads the first of `paths` that fits this model, on all ranks or on none; rank 0 logs which. Collective."""
    return states.resume(handle, fingerprint(handle.parameters), files.load, paths)


def resume_from(handle, content: dict) -> bool:
    """Loads a state that is still in memory, on all ranks or on none. Collective."""
    return states.resume_from(handle, fingerprint(handle.parameters), content)
