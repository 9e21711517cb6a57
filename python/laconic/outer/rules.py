# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Outer rules: what a round's mean does to the anchor."""

from __future__ import annotations

import dataclasses

import torch

from ..core import errors


@dataclasses.dataclass(frozen=True)
class nesterov:  # noqa: N801  called like a function: outer=laconic.nesterov(0.7, 0.9)
    """DiLoCo's outer rule for `OuterStep(outer=...)`: SGD with Nesterov momentum on the anchor (arXiv 2311.08105, algorithm 1)."""

    lr: float
    momentum: float

    def __call__(self, parameters) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=self.lr, momentum=self.momentum, nesterov=True, foreach=True)

    def __str__(self):
        return f"nesterov(lr={self.lr:g}, momentum={self.momentum:g})"


class Average:
    """The anchor becomes the mean of all ranks' parameters. Has no state."""

    def __init__(self, anchor: torch.Tensor, mean: torch.Tensor):
        self._anchor, self._mean = anchor, mean

    def step(self) -> None:
        self._anchor.sub_(self._mean)

    def state_dict(self) -> dict:
        return {}

    def load_state_dict(self, state: dict) -> None:
        """Has none."""


def named(outer) -> str:
    """For reports, and for the comparison between ranks."""
    return outer if isinstance(outer, str) else str(outer) if isinstance(outer, nesterov) else getattr(outer, "__qualname__", type(outer).__qualname__)


def checked(outer):
    if outer == "average" or (callable(outer) and not isinstance(outer, (str, torch.optim.Optimizer))):
        return outer
    raise errors.error("invalid_argument", f"outer is {outer!r}", '"average", laconic.nesterov(lr, momentum), or a function from parameters to an '
                       "optimizer, such as lambda parameters: torch.optim.SGD(parameters, lr=1.0)")


def make(outer, anchors: list[torch.nn.Parameter], anchor: torch.Tensor, mean: torch.Tensor):
    """The rule over the anchor, whose gradients are the mean. LaconicError if the user's function gives no optimizer of it."""
    if outer == "average":
        return Average(anchor, mean)
    try:
        optimizer = outer(anchors)
    except Exception as error:  # noqa: BLE001  of the user's function
        raise errors.error("invalid_argument", f"outer could not make its optimizer: {type(error).__name__}: {error}",
                           "a function from parameters to an optimizer") from error
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise errors.error("invalid_argument", f"outer gave a {type(optimizer).__name__}", "a function from parameters to an optimizer of torch")
    return optimizer
