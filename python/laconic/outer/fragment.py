# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The memory of the parameters that are exchanged together: anchor, change, and the outer rule between them."""

from __future__ import annotations

import contextlib
import itertools

import torch

from . import rules


class Fragment:
    """Float32 `anchor` and `change`, one after the other in the order of the parameters, on their device. `change` is the ranks' mean
    after an exchange. Nothing below allocates a tensor of the model's size after the first round.

    A parameter of a narrower type has its change measured from what it was, the anchor rounded to its type: measured from the anchor
    itself, a round would take back what rounding has left there, and small changes would never add up.
    """

    def __init__(self, parameters: list[torch.nn.Parameter], outer):
        self.parameters = parameters
        counts = [p.numel() for p in parameters]
        ends = list(itertools.accumulate(counts))
        self.offsets, self.elements = [0, *ends[:-1]], ends[-1]
        device = parameters[0].device
        self.anchor = torch.zeros(self.elements, dtype=torch.float32, device=device)
        self.change = torch.zeros(self.elements, dtype=torch.float32, device=device)
        self._changes = self._views(self.change)
        self.anchors = [torch.nn.Parameter(view) for view in self._views(self.anchor)]
        for anchor, change in zip(self.anchors, self._changes):
            anchor.grad = change
        self._anchors = [anchor.detach() for anchor in self.anchors]
        self._narrow = [i for i, p in enumerate(parameters) if p.dtype != torch.float32]
        self._starts = list(self._anchors)  # what parameters were after the last round
        for i in self._narrow:
            self._starts[i] = torch.empty(parameters[i].shape, dtype=parameters[i].dtype, device=device)
        #: what a failed round has delivered to no rank, and no residual holds: by parameter, part of the next change
        self.kept: dict[int, torch.Tensor] = {}
        self.rule = rules.make(outer, self.anchors, self.anchor, self.change)

    def _views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        return [flat[offset : offset + p.numel()].view(p.shape) for offset, p in zip(self.offsets, self.parameters)]

    @torch.no_grad()
    def take_parameters(self) -> None:
        """The anchor is what the parameters are."""
        torch._foreach_copy_(self._anchors, self.parameters)  # noqa: SLF001
        self._round_starts()

    def _round_starts(self) -> None:
        if self._narrow:
            torch._foreach_copy_([self._starts[i] for i in self._narrow], [self._anchors[i] for i in self._narrow])  # noqa: SLF001

    @torch.no_grad()
    def take_change(self) -> None:
        """change = what parameters were - what they are."""
        if self._narrow:
            torch._foreach_copy_(self._changes, self._starts)  # noqa: SLF001
        else:
            self.change.copy_(self.anchor)
        torch._foreach_sub_(self._changes, self.parameters)  # noqa: SLF001
        for i, values in self.kept.items():
            self._changes[i].add_(values)

    @torch.no_grad()
    def fail(self, undelivered: list[int], unkept: list[int], *, over: bool) -> None:
        """A round has failed before parameters were touched; see exchange.Failed. The change is the mean of what was delivered, and 0 elsewhere;
        if all is over, nothing was delivered as far as this rank knows, and means are kept as everybody's own."""
        kept = {i: (self._starts[i].float() - self.parameters[i]).add_(self.kept.get(i, 0.0)) for i in unkept}
        if over:
            kept.update((i, change.clone()) for i, change in enumerate(self._changes) if i not in set(undelivered))
        else:
            for i in undelivered:
                self._changes[i].zero_()
        self.kept = kept

    def finite(self) -> bool:
        """Whether the mean is. The same on all ranks, since the mean is."""
        return bool(torch.linalg.vector_norm(self.change, float("inf")).isfinite())

    @torch.no_grad()
    def step(self) -> None:
        """The outer rule moves the anchor by the mean; parameters take it."""
        for anchor, change in zip(self.anchors, self._changes):
            anchor.grad = change  # an optimizer's zero_grad() may have taken it
        with torch.enable_grad():
            self.rule.step()
        self._round_starts()
        self.restore()

    @torch.no_grad()
    def restore(self) -> None:
        """Parameters are the anchor."""
        torch._foreach_copy_(self.parameters, self._starts)  # noqa: SLF001

    def anchor_loaded(self) -> None:
        """Parameters keep their values."""
        with torch.no_grad():
            self._round_starts()

    @contextlib.contextmanager
    def at_anchor(self):
        """Parameters are the anchor inside, and their own values afterwards, for which the change's memory is free between two rounds."""
        with torch.no_grad():
            torch._foreach_copy_(self._changes, self.parameters)  # noqa: SLF001
        self.restore()
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(self.parameters, self._changes)  # noqa: SLF001
