# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""An OuterStep with its optimizer and parameters: what a rank needs to continue where others save one checkpoint for all ranks."""

from __future__ import annotations

import copy

import torch

from ..core import errors
from ..exchange.state import check_fields, corrupt, fingerprint

_FIELDS = {"step", "outer", "optimizer", "parameters"}


class Whole:
    """What saves states of handles, laconic.run --state and the callbacks, may have it as one. Frameworks save rank 0's parameters and
    optimizer; under an OuterStep each rank's optimizer has moments of its own, and parameters are equal on all ranks after a round only."""

    def __init__(self, outer):
        self.outer = outer
        self.rank = outer.rank

    @property
    def step(self) -> int:
        return self.outer.step

    @property
    def closed(self) -> bool:
        return self.outer.closed

    @property
    def spec(self) -> str:
        return self.outer.spec

    @property
    def parameters(self) -> list:
        """(name, tensor) of what is trained."""
        return self.outer.parameters

    def gather_texts(self, text: str) -> list[str]:
        """Every rank's text, in rank order. Collective."""
        return self.outer.gather_texts(text)

    def of_checkpoint(self) -> str:
        """Fingerprint of the parameters that rank 0 saves now. Collective."""
        own = fingerprint(self.parameters)
        try:
            return self.gather_texts(own)[0]
        except RuntimeError:  # the exchange has failed
            return own

    def state_dict(self) -> dict:
        return {"step": self.step, "outer": self.outer.state_dict(), "optimizer": copy.deepcopy(self.outer.optimizer.state_dict()),
                "parameters": {name: p.detach().to("cpu", copy=True) for name, p in self.parameters}}

    def prepare(self, state: dict):
        """Checks a state without changing anything, as far as torch's optimizers can be checked. Gives a call that loads it."""
        check_fields("it", state, _FIELDS)
        values = state["parameters"]
        own = dict(self.parameters)
        if not isinstance(values, dict) or values.keys() != own.keys() or any(
                not isinstance(v, torch.Tensor) or v.shape != own[name].shape or v.dtype != own[name].dtype for name, v in values.items()):
            raise errors.error("state_model", "the state has other parameters than the model", "load it into the model that it was saved from")
        load = self.outer.prepare(state["outer"])
        self._check_optimizer(state["optimizer"])

        def loads() -> None:
            load()
            self.outer.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
            with torch.no_grad():
                for name, p in own.items():
                    p.copy_(values[name])

        return loads

    def _check_optimizer(self, state) -> None:
        try:
            saved = [len(group["params"]) for group in state["param_groups"]]
        except (TypeError, KeyError):
            raise corrupt("it has no state of an optimizer") from None
        if saved != [len(group["params"]) for group in self.outer.optimizer.param_groups]:
            raise errors.error("state_model", "the state is another optimizer's", "create the optimizer as the saved run did")
