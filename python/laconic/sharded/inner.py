# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The user's optimizer on one rank: over the masters of the ranges that the rank owns, and over small parameters, which all ranks step."""

from __future__ import annotations

import torch

from ..core import _lib
from ..engines.c10d import view
from .trained import Trained

#: in place of an offset: the whole parameter, on every rank
WHOLE = -1


class Inner:
    """One instance of the user's class. `places`: (parameter, offset, count) of each of its tensors, in its order; the offset of a small
    parameter is WHOLE."""

    def __init__(self, cls, trained: Trained, groups: list[tuple[dict, list[int]]], masters: dict[tuple[int, int], torch.Tensor],
                 small: frozenset[int], keywords: dict):
        self._trained = trained
        self.small = small
        self.places: list[tuple[int, int, int]] = []
        self.tensors: dict[tuple[int, int], torch.Tensor] = {}
        listed = []
        for settings, parameters in groups:
            keys = [key for i in parameters for key in ([(i, WHOLE)] if i in small else sorted(k for k in masters if k[0] == i))]
            for i, offset in keys:
                tensor = masters[i, offset] if offset != WHOLE else self._of_small(i)
                self.tensors[i, offset] = tensor
                self.places.append((i, offset, tensor.numel()))
            listed.append({**settings, "params": [self.tensors[key] for key in keys]})
        self.optimizer = cls(listed, **keywords)

    def _of_small(self, i: int) -> torch.Tensor:
        """The stepped values: float32, the host's values themselves if they are float32."""
        values = self._trained.host[i].detach()
        return values if values.dtype == torch.float32 else values.float()

    def begin(self) -> None:
        """Masters of small parameters take the parameters' values, wherever these lie now."""
        for (i, offset), tensor in self.tensors.items():
            if offset == WHOLE:
                tensor.data = self._of_small(i)

    def follow_parameters(self) -> None:
        """Parameters lie elsewhere. What was rounded for one is not its master."""
        for (i, offset), tensor in self.tensors.items():
            if offset == WHOLE and self._trained.host[i].dtype == torch.float32:
                tensor.data = self._of_small(i)

    def follow(self, groups: list[dict]) -> None:
        """The hyperparameters are those of `groups`."""
        for own, group in zip(self.optimizer.param_groups, groups):
            own.update({key: value for key, value in group.items() if key != "params"})

    def step_masters(self, means: dict[tuple[int, int], int], factor: float) -> None:
        """`means`: addresses; times `factor` they are the gradients."""
        self._step({key: view(address, self.tensors[key].numel(), _lib.F32) for key, address in means.items()}, factor)

    def step_small(self, means: dict[int, torch.Tensor], factor: float) -> None:
        """`means`: flat, by parameter. The host's values follow."""
        self._step({(i, WHOLE): mean for i, mean in means.items()}, factor)
        self.write_small()

    def write_small(self) -> None:
        for i in self.small:
            if self._trained.host[i].dtype != torch.float32:
                self._trained.host[i].copy_(self.tensors[i, WHOLE])

    def _step(self, gradients: dict[tuple[int, int], torch.Tensor], factor: float) -> None:
        """Steps only these: torch's optimizers skip parameters without a gradient."""
        if not gradients:
            return
        try:
            for key, gradient in gradients.items():
                self.tensors[key].grad = (gradient if factor == 1.0 else gradient * factor).reshape(self.tensors[key].shape)
            self.optimizer.step()
        finally:
            for key in gradients:
                self.tensors[key].grad = None
