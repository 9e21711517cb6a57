# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Statistics of a model's gradients before the exchange."""

from __future__ import annotations

import functools


class OwnGradients:
    """This rank's, of the steps that are asked about."""

    def __init__(self, module):
        self.parameters = dict(module.named_parameters())
        self._found = None
        for name, parameter in self.parameters.items():
            # Runs when the rank's own gradient is there; DDP puts the mean in its place at the end of backward.
            parameter.register_post_accumulate_grad_hook(functools.partial(self._keep, name))

    def _keep(self, name: str, parameter) -> None:
        if self._found is not None:
            self._found[name] = parameter.grad.detach().clone()

    def of(self, train_step) -> dict:
        """Per parameter name, for the step that `train_step()` takes."""
        self._found = {}
        train_step()
        found, self._found = self._found, None
        for name in self.parameters:
            if name not in found:
                raise ValueError(f"{name} has no gradient")
        return found
