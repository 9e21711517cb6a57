# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Shared by the callbacks: attaching, or logging why not, and a state file per rank with each checkpoint."""

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
from ..engines.group import listed
from ..exchange import files
from ..exchange.state import fingerprint

READY = "ready"
_FIELDS = {"version", "fingerprint", "state"}
VERSION = 1


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
    return {"version": VERSION, "fingerprint": of_checkpoint(handle), "state": handle.state_dict()}


def save(handle, path: Path) -> None:
    """Writes this rank's state. Collective: returns after all ranks have written; rank 0 logs the ranks that could not."""
    trouble = write(path, content_of(handle))
    try:
        texts = handle.gather_texts(trouble)
    except RuntimeError:  # the exchange failed: this rank still saves its state, and the next step reports the failure
        return _say_unsaved([handle.rank], trouble) if trouble else None
    troubled = [(rank, text) for rank, text in enumerate(texts) if text]
    if troubled and handle.rank == 0:
        _say_unsaved([rank for rank, _ in troubled], troubled[0][1])
    return None


def write(path: Path, content: dict) -> str:
    """Returns the reason of a failure, or an empty text."""
    try:
        files.save(path, content)
    except OSError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _say_unsaved(ranks: list[int], trouble: str) -> None:
    environment.say(f"the state of rank {listed(ranks)} was not saved; a run that resumes here starts with empty residuals: "
                    f"{trouble}", logging.WARNING)


def save_alone(rank: int, path: Path, content: dict) -> None:
    """As `save`, when no exchange is possible any more."""
    trouble = write(path, content)
    if trouble:
        _say_unsaved([rank], trouble)


def resume(handle, paths: list[Path]) -> bool:
    """Loads the first of `paths` that fits this model, on all ranks or on none; rank 0 logs which. Collective."""
    text, load = _first_that_fits(handle, paths)
    texts = handle.gather_texts(text)
    loads = text.startswith(READY) and len(set(texts)) == 1
    if loads:
        load()
    if handle.rank == 0:
        if loads:
            environment.say(f"residuals continue at step {handle.step}")
        else:
            environment.say(f"residuals start at zero: {_why_not(texts)}", logging.WARNING)
    return loads


def resume_from(handle, content: dict) -> bool:
    """Loads a state that is still in memory, on all ranks or on none. Collective."""
    text, load = _fits(handle, content, "the last run")
    loads = text.startswith(READY) and set(handle.gather_texts(text)) == {text}
    if loads:
        load()
    return loads


def _why_not(texts: list[str]) -> str:
    without = [rank for rank, text in enumerate(texts) if not text.startswith(READY)]
    if not without:
        return "the ranks' files were not saved at the same step"
    return f"rank {listed(without)}: {texts[without[0]]}"


def _first_that_fits(handle, paths: list[Path]):
    """("ready" and what has to be the same on all ranks, a call that loads) of the first that fits, or (why none does, None)."""
    reasons = []
    for path in paths:
        try:
            text, load = _fits(handle, files.load(path), str(path))
        except FileNotFoundError:
            text, load = f"there is no {path}", None
        except (OSError, LaconicError) as error:
            text, load = str(error), None
        if load is not None:
            return text, load
        reasons.append(text)
    # A file that is there and does not fit says more than one that is not there.
    return next((r for r in reasons if not r.startswith("there is no ")), reasons[0]), None


def _fits(handle, content: dict, what: str):
    if content.keys() != _FIELDS:
        return f"{what} is not a state that LaconicCallback saved", None
    if content["version"] != VERSION:
        return f"{what} has version {content['version']}, this package reads {VERSION}", None
    if content["fingerprint"] != fingerprint(handle.parameters):
        return f"{what} belongs to other parameters than the model has", None
    try:
        load = handle.prepare(content["state"])
    except LaconicError as error:
        return f"{what}: {error}", None
    return f"{READY} {content['state']['step']} {content['fingerprint']}", load
