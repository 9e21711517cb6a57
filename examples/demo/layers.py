# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The parameters of a model: of what kind they are, and what their gradients are before the exchange."""

from __future__ import annotations

import functools

from torch import nn


def kinds(module) -> dict[str, str]:
    """Of every parameter, by name."""
    head = [name for name, part in module.named_modules() if isinstance(part, nn.Linear)][-1]
    found = {}
    for name, part in module.named_modules():
        for own, _ in part.named_parameters(recurse=False):
            path = f"{name}.{own}" if name else own
            if isinstance(part, (nn.LayerNorm, nn.BatchNorm2d)):
                found[path] = "norm"
            elif "bias" in own:
                found[path] = "bias"
            elif isinstance(part, nn.Embedding) or not name:
                found[path] = "embedding"  # a parameter of the model itself is one of places
            elif name == head:
                found[path] = "head"
            else:
                found[path] = {"Conv2d": "convolution", "LSTM": "recurrent", "Linear": "linear"}.get(type(part).__name__, "other")
    return found


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
        """By name, of the step that `train_step()` takes."""
        self._found = {}
        train_step()
        found, self._found = self._found, None
        for name in self.parameters:
            if name not in found:
                raise ValueError(f"{name} has no gradient")
        return found
