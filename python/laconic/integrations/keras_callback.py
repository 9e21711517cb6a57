# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""A callback of Keras 3 for models whose optimizer is laconic.keras.compressed: states with checkpoints, counters in the logs, a flush."""

from __future__ import annotations

import functools
import io
import logging
from pathlib import Path

import keras
import numpy

from ..core import environment, errors
from ..core._checks import whole
from ..exchange import files
from ..exchange.state import corrupt
from . import states
from .flat import hashed

_SAVES, _LOADS = ("save", "save_weights"), "load_weights"
_LOGGED = ("ratio", "wire_bytes")


class Callback(keras.callbacks.Callback):
    """For model.fit on every rank, anywhere among the callbacks.

    While fit runs, whatever saves the model, as ModelCheckpoint and BackupAndRestore do, gets this rank's state beside it, in
    `<checkpoint>.laconic/rank-<rank>.npz`. When BackupAndRestore has restored the model, its state is loaded: the resumed run equals an
    uninterrupted one bit for bit. All ranks load or none does; rank 0 then logs why residuals start at zero.

    Every epoch's logs get `laconic_ratio` and `laconic_wire_bytes`, those of the end of training all numbers of stats().

    Args:
        resume_from: the checkpoint that the model has been loaded from, unless BackupAndRestore does it.
        flush: send the residuals in equal parts with this number of last updates of fit. A fit that stops early sends none.

    Raises, from fit:
        LaconicError: the optimizer is not a compressed one; ranks resume with different weights; with `flush`, the number of batches is
            unknown or too small.
    """

    def __init__(self, *, resume_from=None, flush: int | None = None):
        super().__init__()
        self._resume_from, self._loaded = resume_from, None
        self._flush = None if flush is None else whole("flush", flush, 1, 65535)
        self._optimizer = self._batches_left = None
        self._flushing = 0  # batches that the flush takes
        self._begins = self._remote = False

    # ---- checkpoints -----------------------------------------------------------------------------------------------------------

    def set_model(self, model):
        super().set_model(model)
        if not hasattr(getattr(model, "optimizer", None), "laconic"):
            raise errors.error("invalid_argument", "laconic.keras.Callback is for a model with a compressed optimizer",
                               "model.compile(optimizer=laconic.keras.compressed(...))")
        self._optimizer, self._loaded, self._begins = model.optimizer, None, True
        for name in _SAVES:
            _wrap(model, name, self._saved)
        _wrap(model, _LOADS, self._was_loaded)

    def on_train_end(self, logs=None):
        for name in (*_SAVES, _LOADS):
            vars(self._model).pop(name, None)
        if logs is not None:
            logs.update({f"laconic_{name}": value for name, value in self._optimizer.laconic.stats().items() if isinstance(value, (int, float))})

    def _saved(self, path) -> None:
        exchange = self._optimizer.laconic
        if "://" not in str(path):
            states.save_alone(_write, exchange.rank, state_file(path, exchange.rank), states.content(self._fingerprint(), exchange.state_dict()))
        elif not self._remote:
            self._remote = True
            environment.say(f"states are saved to local folders only: a run that resumes from {path} starts with empty residuals", logging.WARNING)

    def _was_loaded(self, path) -> None:
        self._loaded = path

    def _fingerprint(self) -> str:
        return hashed(self._weights()).hex()

    def _weights(self) -> list:
        return [keras.ops.convert_to_numpy(variable.value) for variable in self.model.trainable_variables]

    def on_epoch_begin(self, epoch, logs=None):
        if self._begins:  # callbacks have restored what they restore
            self._begins = False
            self._resume()
            self._plan_flush(epoch)

    def _resume(self) -> None:
        """Collective."""
        if not self._optimizer.built:
            self._optimizer.build(self.model.trainable_variables)
        flat = self._optimizer.laconic.flat
        path, self._resume_from = self._loaded or self._resume_from, None
        flat.compare(self._weights(), "the weights", "resume all ranks from the same epoch")
        if any(flat.gather_texts("" if path is None else "resumes")):
            paths = [state_file(path, flat.rank)] if path is not None else []
            states.resume(flat, self._fingerprint(), _read, paths)

    # ---- logs and flush --------------------------------------------------------------------------------------------------------

    def on_epoch_end(self, epoch, logs=None):
        if logs is not None:
            counters = self._optimizer.laconic.stats()
            logs.update({f"laconic_{name}": counters[name] for name in _LOGGED})

    def _plan_flush(self, epoch: int) -> None:
        if self._flush is None:
            return
        steps, epochs = self.params.get("steps"), self.params["epochs"]
        self._flushing = (self._flush + 1) * (self._optimizer.gradient_accumulation_steps or 1)  # the first update carries the request
        self._batches_left = None if steps is None else steps * (epochs - epoch)
        if self._batches_left is None or self._batches_left < self._flushing:
            raise errors.error("invalid_argument", f"flush={self._flush} takes {self._flushing} batches, and fit has "
                               f"{'an unknown number' if steps is None else self._batches_left}", "steps_per_epoch=, more epochs, or a smaller flush")

    def on_train_batch_begin(self, batch, logs=None):
        if self._batches_left is None:
            return
        self._batches_left -= self._model.steps_per_execution
        if self._batches_left < self._flushing:
            self._batches_left = None
            keras.ops.convert_to_numpy(self.model.trainable_variables[0].value)  # JAX has still to run batches that it was given
            self._optimizer.laconic.flush(self._flush)


def state_file(checkpoint, rank: int) -> Path:
    """A rank's file beside a checkpoint."""
    return Path(f"{checkpoint}.laconic") / f"rank-{rank}.npz"


def _wrap(model, name: str, after) -> None:
    """From now on `after(path)` follows each call of this method of the model."""
    method = getattr(type(model), name).__get__(model)

    @functools.wraps(method)
    def call(filepath, *args, **keywords):
        result = method(filepath, *args, **keywords)
        after(filepath)
        return result

    vars(model)[name] = call


def _write(path: Path, content: dict) -> None:
    buffer = io.BytesIO()
    numpy.savez(buffer, version=numpy.int64(content["version"]), fingerprint=numpy.array(content["fingerprint"]),
                **{f"state/{name}": value for name, value in content["state"].items()})
    files.write(path, lambda file: file.write(buffer.getbuffer()))


def _read(path: Path) -> dict:
    try:
        with numpy.load(path, allow_pickle=False) as saved:
            arrays = {name: saved[name] for name in saved.files}
        return {"version": int(arrays.pop("version")), "fingerprint": str(arrays.pop("fingerprint")),
                "state": {name.removeprefix("state/"): value for name, value in arrays.items()}}
    except OSError:
        raise
    except Exception as error:  # noqa: BLE001  zipfile and NumPy raise whatever they met
        raise corrupt(f"{path}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}") from None
