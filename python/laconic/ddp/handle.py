# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The handle of an attached model: settings, steps, saved state and reports. Independent of the framework's hook."""

from __future__ import annotations

import functools
import inspect
import logging
from typing import TYPE_CHECKING

from ..core import environment, errors
from ..core.environment import DISABLED
from ..core.errors import LaconicError
from ..exchange import names
from ..exchange.state import check_fields, check_layout, check_seal, of_one_rank, sealed, unsealed

if TYPE_CHECKING:  # they import torch, which need not be there for PassThrough
    from ..exchange.worker import Worker
    from .opening import Opened
    from .steps import Settings, Steps


class Handle:
    """Returned by `laconic.attach`: counters, explanation, saved state, flush.

    It ends when its wrapper is garbage-collected or `close` is called; everything but the last counters is freed then.

    A hook passes a step's buffers to `worker`, between `begin` and `end` of Steps. It provides three methods: `take_settings()` is
    called after settings changed, `exchanges()` returns the parameters of each exchange of a step, and `resume(layout, version)`
    restores the layout of a saved state.
    """

    def __init__(self, opened: Opened, settings: Settings, steps: Steps, hook):
        """`hook_of(opened, settings, steps)` returns the hook."""
        self._opened, self.settings, self.steps, self.hook = opened, settings, steps, hook
        self.rank, self.warmup = opened.rank, opened.warmup
        self._warned: set[str] = set()

    @property
    def worker(self) -> Worker:
        """Takes the buffers; see laconic.exchange.worker."""
        return self._opened.worker

    @property
    def spec(self) -> str:
        return self.settings.spec

    @property
    def step(self) -> int:
        """Number of iterations since attach; after load_state_dict, since the saved run's attach."""
        return self.worker.step

    @property
    def last_error(self) -> LaconicError | None:
        """The last failure of an exchange on this rank, or None."""
        return self.worker.exchanges.last_error

    @property
    def speaks(self) -> bool:
        """True on the rank that logs for all ranks."""
        return self._opened.speaks

    @property
    def closed(self) -> bool:
        """True after `close`, and after the wrapper was garbage-collected."""
        return self.worker.commands.closed

    @property
    def parameters(self) -> list:
        """(name, tensor) of the exchanged parameters, in the order of the saved state."""
        return list(self._opened.parameters.ours)

    def describe(self) -> str:
        """The line that rank 0 logs at attach."""
        return self._opened.describe()

    def stats(self) -> dict:
        """Counters since attach: steps, dense_bytes, wire_bytes, ratio, encode/decode/wire seconds, fallbacks, …

        May be called from any thread at any time, as may explain(). Uncompressed buckets, which PyTorch's own all-reduce sums, count in
        steps, elements, rounds and bytes, but not in exchanges and seconds.
        """
        return self.worker.stats()

    def explain(self) -> dict:
        """The plan and its reasons: spec, strategy, reason, memory, and each parameter's codec and largest payload, or why it is not
        compressed. docs/guide/pytorch.md lists every key.
        """
        explained = self._opened.explain()
        return {**explained, "second_leg": self.steps.units.second_leg(explained)}

    def flush(self, steps: int = 10) -> int:
        """Sends the residuals: an equal part of them in each of `steps` steps (1 to 65535; 1: all at once).

        Returns the number of the step after which they are empty, `handle.step + steps`: the first step after the call carries the
        request to the other ranks, and sending starts with the next one. One rank's call is enough; ranks that call it get the same
        number. A flush that is already running, also one restored from a saved state, is not changed. `stats()["flush_steps_left"]`
        counts down.
        """
        with self.steps.between("flush"):
            return self.worker.flush(steps)

    def set(self, spec: str | None = None, rules=None, control: str | None = None) -> None:
        """Changes settings of `laconic.attach` from the next iteration on; arguments that are None keep their setting, and residuals are kept.

        Collective: every rank calls it with the same arguments, between two iterations. All ranks change or none does: if one cannot, or
        if ranks differ, all raise the same LaconicError and continue as before. A setting without error feedback (`none`, `bf16`,
        `+noef`) cannot keep residuals: they are sent first, over several steps, and the setting takes effect after that.
        docs/guide/control.md.
        """
        with self.steps.between("set"):
            if self.settings.set(spec, rules, control):
                self.hook.take_settings()

    def follow(self, optimizer) -> None:
        """Scales residuals with the learning rates of a torch optimizer, so that a residual moves its parameter as far as it would have when
        it was held back: when a rate changes, the residuals of its group are multiplied by old/new. While a rate is 0, they wait for the
        next positive one.

        Every rank calls it once before training, with its own optimizer, whose rates are the same on all ranks; with several optimizers,
        once for each. Rates are part of the saved state. Calls `check_momentum`.
        """
        self.steps.units.follow(optimizer)
        self.check_momentum(optimizer)

    def check_momentum(self, optimizer) -> None:
        """Warns, once on rank 0, if the codec of a parameter keeps momentum or a running mean of gradients (`dgc`, `signum`), and this torch
        optimizer accumulates gradients, too."""
        twice = self.steps.units.momentum_twice(optimizer, self.explain()) if self.speaks else None
        if twice is not None and twice not in self._warned:
            self._warned.add(twice)
            environment.say(twice, logging.WARNING)

    def state_dict(self) -> dict:
        """The state from which this rank continues bit for bit. Residuals differ between ranks: save one state per rank.

        From another thread than the training thread it waits for the end of the current step, at most for the group's timeout. During
        backward(), for example in a signal handler, it raises LaconicError and changes nothing, as do flush, set and load_state_dict:
        save the last state taken between steps. After a failure of the engine it always returns.
        """
        with self.steps.between("state_dict"):
            state, named = self.worker.state_dict(), self.worker.session.names
            return sealed({**state, "layout": [[named[i] for i in parameters] for parameters in self.hook.exchanges()]})

    def load_state_dict(self, state: dict) -> None:
        """Restores this rank's state_dict.

        Raises:
            LaconicError: the state belongs to another rank, world, model, spec or version, or is damaged (state_corrupt names the entry).
                Nothing is changed then.
        """
        self.prepare(state)()

    def prepare(self, state: dict):
        """Checks a saved state as load_state_dict does, without changing anything. Returns a callable that loads it and cannot fail."""
        check_fields("it", state, {"version", "header", "step", "tensors", "layout"}, {"rates"})
        ours, session = self._opened.parameters.ours, self.worker.session
        saved = names.renamed(unsealed(state), session, self._opened.session_of)
        own = {key: value for key, value in saved.items() if key != "layout"}
        if self._opened.world == 1:
            own["tensors"] = of_one_rank(own["tensors"])
        try:
            with self.steps.between("load_state_dict"):
                load = self.worker.prepare(own)
        except LaconicError as error:
            raise names.with_names(error, saved, session.names) from None
        layout = check_layout(saved["layout"], session.names, [p.dtype for _, p in ours], required=state["step"] > 0 and len(ours) > 0)
        check_seal(state)
        version = state["version"]

        def continues():
            with self.steps.between("load_state_dict"):
                load()
                self.hook.resume(layout, version)

        return continues

    def gather_texts(self, text: str) -> list[str]:
        """Every rank's text (at most 500 bytes of UTF-8), in rank order. Collective: every rank calls it between two iterations."""
        with self.steps.between("gather_texts"):
            return self.worker.gather_texts(text)

    def at_end(self, callback) -> None:
        """Calls `callback()` once, on a thread of laconic's, when the wrapper is garbage-collected or the handle is closed; state_dict and
        parameters are still available to it. Not called at the end of the process: use atexit.
        """
        self.worker.commands.at_end(callback)

    def close(self) -> None:
        """Stops the worker and frees the handle's memory; stats() and explain() stay available. The model can no longer exchange gradients.
        Every rank calls it.
        """
        self.worker.close()
        if self.worker.session.waiting and self.speaks:
            environment.say("set: training ended before all residuals were sent; nothing was changed", logging.WARNING)
        self.tell_last_changes()

    def tell_last_changes(self) -> None:
        """Logs on rank 0 the changes of control policies that were not logged yet. close() calls it."""
        self.settings.tell_changes(last=True)

    def __reduce__(self):
        return PickledHandle, (self.spec,)


class PickledHandle:
    """A pickled or copied handle: it has only the spec. The residual stays with the original, and the copy's reducer has no hook: attach
    to it.
    """

    def __init__(self, spec: str):
        self.spec = spec

    def on_bucket(self, bucket):
        raise errors.error("unsupported", "this handle was unpickled", "call laconic.attach after loading the model")


class PassThrough:
    """The handle under LACONIC_DISABLE=1: nothing was touched, training is plain DDP bit for bit. What Handle has and this class does not
    name gives None, by a method of the same signature where Handle has a method."""

    spec, step, closed, rank, warmup = "none", 0, False, 0, 0
    parameters = property(lambda self: [])

    def describe(self) -> str:
        return DISABLED

    def stats(self) -> dict:
        return {"disabled": True}

    state_dict = stats

    def explain(self) -> dict:
        return {"disabled": True, "reason": DISABLED}

    def flush(self, steps: int = 10) -> int:
        """Nothing is held back."""
        return self.step

    def prepare(self, state: dict):
        return lambda: None

    def gather_texts(self, text: str) -> list[str]:
        return [text]


def _gives_none(method):
    signature = inspect.signature(method)

    @functools.wraps(method)
    def call(*arguments, **keywords):
        signature.bind(*arguments, **keywords)

    return call


for _name, _member in vars(Handle).items():
    if not (_name.startswith("_") or _name == "worker" or hasattr(PassThrough, _name)):
        setattr(PassThrough, _name, _gives_none(_member) if callable(_member) else None)
