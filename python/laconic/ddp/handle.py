# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""What any handle is: what users call. Knows no framework's hook, and needs no torch until there is one."""

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
    """What `laconic.attach` gives: counters, explanation, saved state, flush.

    It ends with its wrapper: when that is collected, or `close` is called, everything is freed but for the last counters.

    A hook brings a step's buffers to `worker`, between `begin` and `end` of Steps, and knows which they are: `take_settings()` is called
    when others hold, `exchanges()` gives the parameters of each exchange of a step, and `resume(layout, version)` brings those of a
    saved state back.
    """

    def __init__(self, opened: Opened, settings: Settings, steps: Steps, hook):
        self._opened, self.settings, self.steps, self.hook = opened, settings, steps, hook
        self.rank, self.warmup = opened.rank, opened.warmup

    @property
    def worker(self) -> Worker:
        """Takes the buffers; see laconic.exchange.worker."""
        return self._opened.worker

    @property
    def spec(self) -> str:
        return self.settings.spec

    @property
    def step(self) -> int:
        """Iterations since attach, or since the saved run's attach."""
        return self.worker.step

    @property
    def last_error(self) -> LaconicError | None:
        """The last failure of an exchange on this rank."""
        return self.worker.exchanges.last_error

    @property
    def closed(self) -> bool:
        """Its wrapper has gone, or `close` was called."""
        return self.worker.commands.closed

    @property
    def parameters(self) -> list:
        """Names and tensors of what is exchanged here, in the order of saved state."""
        return list(self._opened.parameters.ours)

    def describe(self) -> str:
        """The one line that rank 0 logs at start."""
        return self._opened.describe()

    def stats(self) -> dict:
        """Counters since attach: steps, dense_bytes, wire_bytes, ratio, encode/decode/wire seconds, fallbacks, …

        May be called from any thread at any time, as may explain(). Buckets without compression, which PyTorch's own
        all-reduce sums, count in steps, elements, rounds and bytes, but not as exchanges or seconds: those are the worker's.
        """
        return self.worker.stats()

    def explain(self) -> dict:
        """What was picked and why: spec, strategy, reason, memory, and every parameter's codec and largest payload, or why it
        is not compressed. docs/guide/pytorch.md has every key."""
        explained = self._opened.explain()
        return {**explained, "second_leg": self.steps.units.second_leg(explained)}

    def flush(self, steps: int = 10) -> int:
        """Drains the residuals: an equal part of them goes out in each of `steps` steps (1 to 65535; 1: all at once).

        Gives the number of the step after which they are empty, `handle.step + steps`: the first step after the call
        carries the request to the other ranks, the next one is the first that drains. One rank's call is enough; ranks that
        call it give the same number. A flush that is under way goes on as it is, and so does one that was saved with
        state_dict. `stats()["flush_steps_left"]` counts down.
        """
        with self.steps.between("flush"):
            return self.worker.flush(steps)

    def set(self, spec: str | None = None, rules=None, control: str | None = None) -> None:
        """Other settings from the next iteration on: those of `laconic.attach`; what is None stays. Residuals stay, too.

        Every rank makes the call, with the same arguments, between two iterations. All ranks change, or none does: where one
        cannot, or ranks differ, all get one LaconicError and train on as before. A setting without error feedback
        (`none`, `bf16`, `+noef`) has no place for residuals: these go out with the gradients first, in as many steps as they are
        larger, and the setting holds from the iteration behind them. docs/guide/control.md.
        """
        with self.steps.between("set"):
            if self.settings.set(spec, rules, control):
                self.hook.take_settings()

    def follow(self, optimizer) -> None:
        """Residuals follow the learning rates of a torch optimizer, so that what they hold back still moves the parameters as far
        as it would have: where a rate has changed since the last step, they are multiplied by old/new, each by the rate of its own
        parameter's group. At a rate of 0 they wait for the next positive one.

        Every rank calls it, with its own optimizer of the same rates, before training; with several optimizers, once for each.
        The rates are part of the saved state. No call per step is needed.
        """
        self.steps.units.follow(optimizer)

    def state_dict(self) -> dict:
        """Everything that this rank must have to continue bit for bit. One per rank: residuals differ.

        From another thread than the one that trains it waits for the end of the step under way, at most for the group's time-out. From
        inside of backward(), a signal handler that comes meanwhile included, it is refused and changes nothing, as are flush, set and
        load_state_dict: save the state that was taken last between two steps. When the engine has failed it always answers.
        """
        with self.steps.between("state_dict"):
            state, named = self.worker.state_dict(), self.worker.session.names
            return sealed({**state, "layout": [[named[i] for i in parameters] for parameters in self.hook.exchanges()]})

    def load_state_dict(self, state: dict) -> None:
        """Continues a saved run. Another rank's state, world size, model, spec or version is refused with the reason, a
        damaged one state_corrupt that names what; either changes nothing."""
        self.prepare(state)()

    def prepare(self, state: dict):
        """Checks a saved state as load_state_dict does and changes nothing; gives a call that loads it and cannot fail."""
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
        """Every rank's text (500 bytes of UTF-8 at most), in rank order. Collective: every rank makes the call, between two
        iterations."""
        with self.steps.between("gather_texts"):
            return self.worker.gather_texts(text)

    def at_end(self, callback) -> None:
        """`callback()` is called once when the wrapper goes away or the handle is closed, in a thread of laconic's; state_dict
        and parameters are whole then. Not at the end of the process: see atexit."""
        self.worker.commands.at_end(callback)

    def close(self) -> None:
        """Ends the worker and frees what it holds; stats() and explain() stay. The model cannot exchange afterwards. Every
        rank calls it."""
        self.worker.close()
        if self.worker.session.waiting and self.rank == 0:
            environment.say("set: residuals were not out when training ended; nothing was set", logging.WARNING)
        self.tell_last_changes()

    def tell_last_changes(self) -> None:
        """On rank 0, what laws have changed and nothing has told yet. close() does it."""
        self.settings.tell_changes(last=True)

    def __reduce__(self):
        return PickledHandle, (self.spec,)


class PickledHandle:
    """What a pickle, or a copy, of a wrapper has of its handle: the spec. The residual stays where it is, and the copy's
    reducer knows no hook: attach to it."""

    def __init__(self, spec: str):
        self.spec = spec

    def on_bucket(self, bucket):
        raise errors.error("unsupported", "this handle came out of a pickle", "call laconic.attach after loading the model")


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
