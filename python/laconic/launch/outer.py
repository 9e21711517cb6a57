# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""`laconic.run --every N`: an OuterStep for each DistributedDataParallel model, from the first step of its optimizer on."""

from __future__ import annotations

import hashlib
import threading
import weakref

from ..core import errors
from ..outer.model import keep_gradients_local, unwrapped
from ..outer.step import OuterStep
from ..outer.whole import Whole
from .state_folder import Keeper

API = ("call the API in the script: outer = laconic.OuterStep(model, None, spec=..., hook=False) after wrapping the model; outer.after_step() after the "
       "last optimizer's step(); outer.close() at the end")


class OuterKeeper(Keeper):
    """One model's states on one rank, each of a step that a round has followed: then all ranks have the parameters of the script's checkpoint."""

    def _header(self) -> tuple[str, int]:
        said = repr([(name, tuple(p.shape)) for name, p in self.handle.parameters])
        return hashlib.blake2b(b"outer" + said.encode(), digest_size=8).hexdigest(), len(self.handle.gather_texts(""))

    def before_forward(self) -> None:
        if self.handle.outer.at_round and self.handle.step // self._every > self._saved_step // self._every:
            self._save()

    def save_last(self) -> None:
        if self.handle is not None and self.handle.outer.at_round and self.handle.step != self._saved_step:
            self._save()

    def end(self) -> None:
        self.save_last()
        self.handle, self._updates = None, None  # they hold the parameters
        self.done.set()


class OuterModel:
    """A wrapper whose gradients stay local since its first forward pass. `make(optimizer)` gives its OuterStep, when the optimizer takes its first
    step, and `agree()` whether all ranks keep states; both are collective."""

    def __init__(self, wrapper, options, agree, make):
        keep_gradients_local(wrapper)
        self.wrapper = weakref.ref(wrapper)
        self.name = type(getattr(wrapper, "module", wrapper)).__name__
        self.handle: OuterStep | None = None
        self.keeper: OuterKeeper | None = None
        self.never_stepped = True
        self._options, self._agree, self._make = options, agree, make
        self._lock = threading.RLock()  # objects may be collected at any line
        self._last_stats: dict | None = None
        weakref.finalize(wrapper, self._end).atexit = False

    @property
    def waits(self) -> bool:
        """For a step of its optimizer."""
        return self.never_stepped and self.wrapper() is not None

    def before_step(self, optimizer, others) -> OuterStep | None:
        """Of an optimizer, which may be another model's. The OuterStep, if it is made here. `others`: keepers of this process's other models."""
        wrapper = self.wrapper()
        own = {id(p) for p in wrapper.parameters() if p.requires_grad}
        held = {id(p) for group in unwrapped(optimizer).param_groups for p in group["params"]}
        if not own & held:
            return None
        keeps = self._agree()
        try:
            self.handle = self._make(wrapper, optimizer)
        except errors.LaconicError as error:
            if own <= held:
                raise
            raise errors.error(error.name, f"--every needs one optimizer for all parameters of the model: {error.message}", API) from None
        self.never_stepped = False
        if keeps:
            self.keeper = OuterKeeper(Whole(self.handle), self.name, self._options, others)
            self.keeper.resume()
        return self.handle

    def before_forward(self) -> None:
        if self.keeper is not None and self.handle is not None:
            self.keeper.before_forward()

    def _end(self) -> None:
        """Its wrapper was garbage-collected: the optimizer's OuterStep need not live longer."""
        with self._lock:
            outer, self.handle = self.handle, None
        if outer is not None:
            if self.keeper is not None:
                self.keeper.end()
            self._last_stats = outer.stats() if self._options.summary and outer.rank == 0 else None
            outer.close()

    def save_last(self) -> None:
        """At the end of the process."""
        if self.keeper is not None and self.handle is not None:
            self.keeper.save_last()

    def tell_last_changes(self) -> None:
        """Has none to tell."""

    def stats(self) -> dict | None:
        """For the summary: None on other ranks than 0."""
        if self.handle is None:
            return self._last_stats
        return self.handle.stats() if self._options.summary and self.handle.rank == 0 else None
