# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Residuals of a rank, in the unit of its gradients: they follow loss scales and learning rates, and are the saved state."""

from __future__ import annotations

import ctypes
import logging

import torch

from ..core import _lib, environment, errors
from ..core._checks import U64
from ..engines.c10d import view
from .rates import changes, parameter_of
from .state import VERSION, check_fields, check_header, check_number, check_rates, check_tensors, check_version

#: float32 of full precision: what residuals may be multiplied by
SMALLEST_FACTOR, LARGEST_FACTOR = torch.finfo(torch.float32).tiny, torch.finfo(torch.float32).max


class Residuals:
    """The residuals of a session. Only the worker's thread changes them."""

    def __init__(self, session):
        self._session = session
        self._unit = 1.0
        self.scales_ignored = 0  #: changes of the loss scale that residuals could not follow
        self._scale_seen = repr(self._unit)  # of the last job
        # The learning rates that residuals are good for, by parameter, and the step's rates that were looked at last.
        self._rates: dict[str, float] = {}
        self._rates_seen: dict[str, float] | None = None

    def follow(self, scale: float, rates: dict[str, float] | None) -> None:
        """Sets the scale of the next gradients, and their learning rates."""
        if repr(scale) != self._scale_seen:  # as text NaN equals NaN
            self._scale_seen = repr(scale)
            self._rescale(scale)
        if rates is not None and rates is not self._rates_seen:
            self._follow_rates(rates)

    def _rescale(self, scale: float) -> None:
        """Residuals are kept in the unit of the scaled gradients of the moment, or of the last scale that was one."""
        factor = scale / self._unit
        if SMALLEST_FACTOR <= factor <= LARGEST_FACTOR:
            if factor != 1.0:
                self._session.scale_residuals(factor)
            self._unit = scale
            return
        self.scales_ignored += 1
        if self.scales_ignored == 1:
            environment.say(f"rank {self._session.rank}: residuals cannot follow the loss scale from {self._unit:g} to {scale:g} and are left "
                            'unchanged; stats()["scales_ignored"] counts such changes', logging.WARNING)

    def _follow_rates(self, rates: dict[str, float]) -> None:
        """A residual r under the rate η is a step of η·r that was not made: under η' it is r·η/η' (Karimireddy et al., ICML 2019)."""
        self._rates_seen = rates
        factors = changes(self._rates, rates)
        if not factors:
            return
        for name, address, count in self._session.entries():
            factor = factors.get(parameter_of(name))
            if factor is not None and count:
                view(address, count, _lib.F32).mul_(factor)

    def take_back(self, layout, means: torch.Tensor) -> None:
        """Adds a buffer's means that the ranks did not get. Those of all sessions add up to what they had sent."""
        kept = {name: (address, count) for name, address, count in self._session.entries()}
        for p, at in zip(layout.parameters, layout.offsets):
            address, count = kept.get(f"residual/{self._session.names[p]}", (0, 0))
            values = means[at : at + count]
            if count and bool(values.isfinite().all()):
                view(address, count, _lib.F32).add_(values)

    def saved(self, step: int) -> dict:
        """{"version", "header", "step", "tensors"}: what this rank must have to continue bit for bit. With learning rates that residuals
        follow, "rates"."""
        tensors = {}
        for name, address, count in self._session.entries():
            values = torch.empty(count, dtype=torch.float32, device="cpu")
            if count:
                ctypes.memmove(values.data_ptr(), address, 4 * count)
            if not name.startswith("state/"):
                values /= self._unit  # saved in unscaled units
            tensors[name] = values
        state = {"version": VERSION, "header": self._session.header(), "step": step, "tensors": tensors}
        if not self._rates:
            return state
        # As tensors, which every version has saved.
        return {**state, "rates": {name: torch.tensor(rate, dtype=torch.float64, device="cpu") for name, rate in self._rates.items()}}

    def prepare(self, state: dict):
        """Checks what `saved` gave whole and changes nothing; gives its step, and a call that loads the rest."""
        session = self._session
        check_fields("it", state, {"version", "header", "step", "tensors"}, {"rates"})
        check_version(state["version"])
        check_header(state["header"])
        session.accepts(state["header"])
        step = check_number("step", state["step"], U64 >> 1)
        ready, sets = check_tensors(state["tensors"], list(session.entries()), self._unit), session.sets
        rates = check_rates(state.get("rates", {}), session.names)

        def load() -> None:
            if session.sets != sets:  # the entries are others
                raise errors.error("exchange_order", "set was called between prepare() and the load of a state", "load it again")
            for address, values in ready:
                if values.numel():
                    ctypes.memmove(address, values.data_ptr(), 4 * values.numel())
            self._rates, self._rates_seen = rates, None

        return step, load
