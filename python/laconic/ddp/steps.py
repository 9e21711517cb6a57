# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The settings of a handle, and its training steps with the calls between them."""

from __future__ import annotations

import contextlib
import logging

from ..core import environment
from ..core.errors import LaconicError
from ..engines.group import seconds
from ..exchange.changes import Changes
from ..exchange.delivery import in_backward
from ..exchange.rates import Units
from ..exchange.rules import given
from .opening import Opened
from .turns import Turns, refused


class Settings:
    """The current settings, at attach and after a change."""

    def __init__(self, opened: Opened):
        self._opened, self._worker = opened, opened.worker
        self.since = 0  #: the step of the last change
        self._read()

    def _read(self) -> None:
        session = self._worker.session
        explained = session.explain()
        self.spec = explained["spec"]
        self.raw = {i for i, p in enumerate(explained["parameters"]) if p["codec"] == "none"}
        #: sums are the engine's: then an element's place in the buffer matters
        self.engine_sums = session.layout_matters or session.all_raw
        self.all_raw = session.all_raw
        self.observes = session.reports
        self._changes = Changes() if session.reports and self._opened.speaks else None

    def set(self, spec, rules, control) -> bool:
        """True if the settings hold from the next step on, False if residuals have to be sent first."""
        with contextlib.suppress(LaconicError):  # every rank gets the error below
            rules = None if rules is None else self._opened.rules_of(given(rules))
        if self._worker.set(spec, rules, control):
            return self._taken()
        if self._opened.speaks:
            environment.say(f"set: residuals are sent first, over {self._worker.session.flush_steps_left()} steps or more")
        return False

    def set_what_waits(self) -> bool:
        """Called in a hook, which must not raise: an error is logged, and training continues."""
        try:
            return self._worker.session.waiting and self._worker.set_what_waits() and self._taken()
        except LaconicError as error:
            if self._opened.speaks and self._worker.broken is None:  # else the exchange has the message
                environment.say(f"set: {error}; training continues with {self._opened.describe()}", logging.WARNING)
            return False

    def _taken(self) -> bool:
        self._read()
        self.since = self._worker.step
        if self._opened.speaks:
            environment.say(f"set from step {self.since} on: {self._opened.describe()}")
        return True

    def tell_changes(self, *, last: bool = False) -> None:
        """Logs on rank 0 what control policies changed."""
        if self._changes is not None:
            self._changes.tell(self._opened.explain, last=last)


class Steps:
    """Steps of training, and the calls of users that see none, or a whole one."""

    def __init__(self, opened: Opened, settings: Settings, scaler):
        self._worker, self._group, self._settings = opened.worker, opened.group, settings
        self.units = Units(opened.parameters.ours, scaler, opened.stage)
        self._turns = Turns()

    @property
    def under_way(self) -> bool:
        return self._turns.in_step

    def begin(self) -> bool:
        """In the hook of a step's first buffer. Whether other settings hold from this step on."""
        self._turns.begin_step()
        self.units.begin_step()
        changed = self._settings.set_what_waits()
        self._settings.tell_changes()
        return changed

    def end(self) -> None:
        self._turns.end_step()

    @contextlib.contextmanager
    def between(self, call: str):
        """Inside, no step is under way, or none will ever end."""
        worker = self._worker
        worker.commands.check_process()

        def over() -> bool:
            return worker.broken is not None or worker.commands.closed

        if worker.commands.here or over():
            yield
            return
        if in_backward():
            raise refused(call)
        with self._turns.call(call, seconds(self._group), over):
            yield
