# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Lightning: attach, save and resume as one callback, for lightning.pytorch and pytorch_lightning.

    Trainer(accelerator="cpu", devices=2, strategy="ddp", callbacks=[LaconicCallback("topk:ratio=0.01")]).fit(model, data)
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import os
import shutil
import sys
from pathlib import Path

from . import _shared

PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def _base():
    """Callback of the package that the program uses: one that is imported already, else one that is installed."""
    installed = [name for name in PACKAGES if importlib.util.find_spec(name.partition(".")[0]) is not None]
    if not installed:
        raise ImportError("laconic.integrations.lightning needs lightning or pytorch-lightning: pip install lightning")
    name = next((name for name in PACKAGES if name in sys.modules), installed[0])
    return importlib.import_module(name).Callback


def state_file(checkpoint, rank: int) -> Path:
    """A rank's file next to a checkpoint."""
    return Path(f"{checkpoint}.laconic") / f"rank-{rank}.pt"


class LaconicCallback(_base()):
    """Compresses the gradient exchange of a Trainer whose strategy is DDP, or that between the replicas of FSDP2.

    Saves every rank's state in the folder `<checkpoint>.laconic` next to each checkpoint, removes it with the checkpoint, and restores it
    when training resumes from there: the resumed run equals an uninterrupted one bit for bit. All ranks load or none does; rank 0
    then logs why residuals start at zero. A second fit() of the same model continues with the residuals of the first.

    Args:
        spec: as for laconic.attach. Default: LACONIC_SPEC.
        every: exchange the changes of parameters after every N optimizer steps, in place of gradients, by laconic.OuterStep: 1 for Adam. States
            then hold each rank's optimizer and parameters, too, and a second fit() begins without the residuals of the first.
        options: further arguments of laconic.attach, or of laconic.OuterStep: `seed`, `threads` or settings of the codec.

    Attributes: `handle`, the result of laconic.attach; None before training and if nothing is attached. With `every`, `handle.outer` is
    the OuterStep.
    """

    def __init__(self, spec: str | None = None, *, every: int | None = None, **options):
        super().__init__()
        self.spec, self.every, self.options = spec, every, options
        self.handle = None
        #: of the run that has ended: its wrapper goes with it, and checkpoints may still be saved
        self._last: dict | None = None

    def on_train_start(self, trainer, pl_module):
        strategy = trainer.strategy
        wrapper = getattr(strategy.model, "_orig_mod", strategy.model)  # torch.compile
        last, self._last = self._last, None
        options = {"scaler": getattr(trainer.precision_plugin, "scaler", None), **self.options}
        why = f"this version exchanges gradients of DDP and of FSDP2, and the strategy is a {type(strategy).__name__}"
        self.handle = _shared.attach(wrapper, self.spec, options, self.handle, why, self.every, next(iter(trainer.optimizers), None) if self.every is not None else None)
        _shared.check_momentum(self.handle, trainer.optimizers)
        if not _shared.keeps_state(self.handle):
            return
        _follow(strategy, self)
        if trainer.ckpt_path:
            _shared.resume(self.handle, _places(trainer.ckpt_path, self.handle.rank))
        elif last is not None and self.every is None:
            _shared.resume_from(self.handle, last)

    def on_train_end(self, trainer, pl_module):
        if _shared.keeps_state(self.handle):
            self._last = _shared.content_of(self.handle)

    def _saved(self, checkpoint: dict, path) -> None:
        """All ranks have come past a checkpoint."""
        if not _shared.keeps_state(self.handle) or "optimizer_states" not in checkpoint:  # of weights alone: none resumes there
            return
        if _remote(path):
            _shared.say_once("states are saved to local folders only: a run that resumes from "
                             f"{path} starts with empty residuals")
        elif not self.handle.closed:
            _shared.save(self.handle, state_file(path, self.handle.rank))
        elif self._last is not None:
            _shared.save_alone(self.handle.rank, state_file(path, self.handle.rank), self._last)

    def _removed(self, path) -> None:
        if not _shared.keeps_state(self.handle) or _remote(path):
            return
        file = state_file(path, self.handle.rank)
        if self.handle.rank == 0:
            shutil.rmtree(file.parent, ignore_errors=True)  # files of a larger world, too
        with contextlib.suppress(OSError):  # where nodes share no folder, each rank has its own to remove
            file.unlink()
            file.parent.rmdir()


def _remote(path) -> bool:
    return "://" in str(path)


def _places(path, rank: int) -> list[Path]:
    """The folders next to the checkpoint, and next to the target of a link (ModelCheckpoint(save_last="link"))."""
    return [state_file(path, rank), state_file(os.path.realpath(path), rank)]


def _follow(strategy, callback: LaconicCallback) -> None:
    """From now on the strategy, which is called on all ranks with every checkpoint's path, notifies the callback."""
    save, remove = strategy.save_checkpoint, strategy.remove_checkpoint
    if isinstance(save, functools.partial) and save.func is _save_checkpoint and save.args[0] is callback:
        return
    strategy.save_checkpoint = functools.partial(_save_checkpoint, callback, save)
    strategy.remove_checkpoint = functools.partial(_remove_checkpoint, callback, remove)


def _save_checkpoint(callback, save, checkpoint, filepath, *args, **keywords):
    saved = save(checkpoint, filepath, *args, **keywords)
    callback._saved(checkpoint, filepath)  # noqa: SLF001
    return saved


def _remove_checkpoint(callback, remove, filepath):
    removed = remove(filepath)
    callback._removed(filepath)  # noqa: SLF001
    return removed
