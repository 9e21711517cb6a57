# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Hugging Face Trainer: attach, save and resume as one callback.

    Trainer(model, args, train_dataset=data, callbacks=[LaconicCallback("topk:ratio=0.01")]).train()
"""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

from torch.nn.parallel import DistributedDataParallel
from transformers import TrainerCallback

from ..api.attach import sharded_in
from ..ddp.hook import other_hook
from . import _shared


def state_file(folder, rank: int) -> Path:
    """A rank's file in a checkpoint folder."""
    return Path(folder) / f"laconic-rank-{rank}.pt"


class LaconicCallback(TrainerCallback):
    """Compresses the gradient exchange of a Trainer that trains with DistributedDataParallel, or that between the replicas of its FSDP2.

    Saves every rank's state in each checkpoint folder and restores it when training resumes from there: the resumed run equals an
    uninterrupted one bit for bit. All ranks load or none does; rank 0 then logs why residuals start at zero.

    Args:
        spec: as for laconic.attach. Default: LACONIC_SPEC.
        every: exchange the changes of parameters after every N optimizer steps, in place of gradients, by laconic.OuterStep: 1 for Adam. States
            then hold each rank's optimizer and parameters, too.
        resume_from: the checkpoint folder that training resumes from. Default: args.resume_from_checkpoint, then checkpoint-N in
            args.output_dir, where N is the Trainer's step. Callbacks do not receive the argument of `trainer.train(folder)`.
        options: further arguments of laconic.attach, or of laconic.OuterStep: `seed`, `threads` or settings of the codec.

    Attributes: `handle`, the result of laconic.attach; None before training and if nothing is attached. With `every`, `handle.outer` is
    the OuterStep.
    """

    def __init__(self, spec: str | None = None, *, every: int | None = None, resume_from=None, **options):
        self.spec, self.every, self.resume_from, self.options = spec, every, resume_from, options
        self.handle = None
        self._wrapper = _no_wrapper

    def on_train_begin(self, args, state, control, model=None, optimizer=None, **_):
        wrapper = self._wrapper_of(model)
        options = {"scaler": getattr(optimizer, "scaler", None), **self.options}
        why = "" if wrapper is not None else _why(args, model)
        self.handle = _shared.attach(model if wrapper is None else wrapper, self.spec, options, self.handle, why, self.every, optimizer)
        self._wrapper = _no_wrapper if wrapper is None else weakref.ref(wrapper)
        _shared.check_momentum(self.handle, [optimizer])
        if not _shared.keeps_state(self.handle):
            return
        if state.global_step > 0:
            _shared.resume(self.handle, [state_file(folder, self.handle.rank) for folder in self._folders(args, state)])
        if _searches(state):
            _shared.say_once("callbacks do not see the checkpoints of a hyperparameter search: states are not saved")

    def on_save(self, args, state, control, **_):
        """After the Trainer has written its checkpoint, on all ranks."""
        if not _shared.keeps_state(self.handle) or self.handle.closed or args.save_only_model:
            return
        if not _searches(state):
            _shared.save(self.handle, state_file(_checkpoint(args, state), self.handle.rank))

    def _folders(self, args, state) -> list:
        if self.resume_from is not None:
            return [self.resume_from]
        named = args.resume_from_checkpoint
        return [folder for folder in (named if isinstance(named, str) else None, _checkpoint(args, state)) if folder]

    def _wrapper_of(self, model):
        """The Trainer's wrapper of the model, which it shows to no callback."""
        if isinstance(model, DistributedDataParallel) or sharded_in(model) is not None:
            return model
        found = _wrappers(model)
        if len(found) > 1:
            gc.collect()  # those of Trainers that are gone
            found = _wrappers(model)
        if len(found) > 1:  # of a Trainer that is still there: it has been attached to, or it is ours
            found = [w for w in found if w is self._wrapper()] or [w for w in found if other_hook(w) is None]
        return found[0] if len(found) == 1 else None


def _no_wrapper():
    return None


def _wrappers(model) -> list:
    """Every DistributedDataParallel around this model. The type is asked: a proxy's class may raise."""
    wrappers = [obj for obj in gc.get_objects() if issubclass(type(obj), DistributedDataParallel)]
    return [w for w in wrappers if _uncompiled(getattr(w, "module", None)) is _uncompiled(model)]


def _uncompiled(model):
    return getattr(model, "_orig_mod", model)  # torch.compile


def _searches(state) -> bool:
    return getattr(state, "is_hyper_param_search", False)


def _checkpoint(args, state) -> Path:
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"


def _why(args, model) -> str:
    if getattr(args, "deepspeed", None):
        return "DeepSpeed exchanges the gradients of this Trainer itself"
    if getattr(args, "fsdp", None):
        return "this Trainer trains with FSDP1, which has no all-reduce between replicas to replace; its FSDP2 has"
    held = len(_wrappers(model))
    if held > 1:
        return (f"{held} DistributedDataParallel wrappers hold this model and the Trainer does not say which one it uses; "
                "delete the other Trainer first")
    return "this Trainer has not wrapped its model in DistributedDataParallel"
