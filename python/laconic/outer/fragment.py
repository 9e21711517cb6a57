# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The memory of the parameters that are exchanged together: anchor, change, and the outer rule between them."""

from __future__ import annotations

import contextlib
import itertools

import torch

from . import rules


class Fragment:
    """Float32 `anchor` and `change`, one after the other in the order of the parameters, on their device. `change` is the ranks' mean
    after an exchange. After the first round, rounds allocate no tensor of the model's size.

    A parameter of a narrower type has its change measured from what it was, the anchor rounded to its type: measured from the anchor
    itself, a round would take back what rounding has left there, and small changes would never add up.
    """

    def __init__(self, names: list[str], parameters: list[torch.nn.Parameter], outer, *, keeps_own: bool = False):
        """`keeps_own`: steps may follow between take_change() and merge(), or parameters keep a part of their own change."""
        self.names, self.parameters = names, parameters
        counts = [p.numel() for p in parameters]
        ends = list(itertools.accumulate(counts))
        self.offsets, self.elements = [0, *ends[:-1]], ends[-1]
        device = parameters[0].device
        self.anchor = torch.zeros(self.elements, dtype=torch.float32, device=device)
        self.change = torch.zeros(self.elements, dtype=torch.float32, device=device)
        self.changes = self._views(self.change)
        self.anchors = [torch.nn.Parameter(view) for view in self._views(self.anchor)]
        for anchor, change in zip(self.anchors, self.changes):
            anchor.grad = change
        self._anchors = [anchor.detach() for anchor in self.anchors]
        self._narrow = [i for i, p in enumerate(parameters) if p.dtype != torch.float32]
        self._starts = list(self._anchors)  # what parameters were after the last round
        for i in self._narrow:
            self._starts[i] = torch.empty(parameters[i].shape, dtype=parameters[i].dtype, device=device)
        #: what parameters were when the change was taken, if they may be something else when its mean has come
        self.own = [torch.empty_like(p, requires_grad=False) for p in parameters] if keeps_own else []
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

    @torch.no_grad()
    def take_anchor(self, anchor: torch.Tensor) -> None:
        """Other values; parameters keep theirs."""
        self.anchor.copy_(anchor)
        self._round_starts()

    def _round_starts(self) -> None:
        if self._narrow:
            torch._foreach_copy_([self._starts[i] for i in self._narrow], [self._anchors[i] for i in self._narrow])  # noqa: SLF001

    @torch.no_grad()
    def take_change(self) -> None:
        """change = what parameters were - what they are."""
        if self._narrow:
            torch._foreach_copy_(self.changes, self._starts)  # noqa: SLF001
        else:
            self.change.copy_(self.anchor)
        torch._foreach_sub_(self.changes, self.parameters)  # noqa: SLF001
        for i, values in self.kept.items():
            self.changes[i].add_(values)
        if self.own:
            torch._foreach_copy_(self.own, self.parameters)  # noqa: SLF001

    @torch.no_grad()
    def fail(self, undelivered: list[int], unkept: list[int], *, over: bool) -> None:
        """A round has failed; see exchange.Failed. The change is the mean of what was delivered, and 0 elsewhere;
        if all is over, nothing was delivered as far as this rank knows, and means are kept as everybody's own."""
        own = self.own or self.parameters
        kept = {i: (self._starts[i].float() - own[i]).add_(self.kept.get(i, 0.0)) for i in unkept}
        if over:
            kept.update((i, change.clone()) for i, change in enumerate(self.changes) if i not in set(undelivered))
        else:
            for i in undelivered:
                self.changes[i].zero_()
        self.kept = kept

    def finite(self) -> bool:
        """Whether the mean is. The same on all ranks, since the mean is."""
        if self.change.sum().isfinite():  # less work; hides no value, but may overflow
            return True
        least, largest = torch.aminmax(self.change)  # NaN if there is one
        return bool(least.isfinite() & largest.isfinite())

    @torch.no_grad()
    def step(self) -> None:
        """The outer rule moves the anchor by the mean. merge() follows."""
        for anchor, change in zip(self.anchors, self.changes):
            anchor.grad = change  # an optimizer's zero_grad() may have taken it
        with torch.enable_grad():
            self.rule.step()
        self._round_starts()

    @torch.no_grad()
    def merge(self, alpha: float, progressed: bool) -> None:
        """Parameters take the anchor, but for `alpha` of what their own change is ahead of it, and for steps since the change was taken."""
        if alpha == 0 and not progressed:
            self.restore()
            return
        torch._foreach_sub_(self.own, self._starts)  # noqa: SLF001
        torch._foreach_add_(self.parameters, self.own, alpha=alpha - 1.0)  # noqa: SLF001

    @torch.no_grad()
    def restore(self) -> None:
        """Parameters are the anchor."""
        torch._foreach_copy_(self.parameters, self._starts)  # noqa: SLF001

    @torch.no_grad()
    def load(self, anchors: dict, kept: dict, mean: dict, own: dict) -> None:
        """Saved tensors by name. Parameters keep their values."""
        for saved, tensors in ((anchors, self._anchors), (mean, self.changes), (own, self.own)):
            for name, values in zip(self.names, tensors):
                if name in saved:
                    values.copy_(saved[name])
        self.kept = {self.names.index(name): values.to(self.anchor.device, copy=True) for name, values in kept.items()}
        self._round_starts()

    @contextlib.contextmanager
    def at_anchor(self):
        """Parameters are the anchor inside, and their own values afterwards."""
        own = [p.detach().clone() for p in self.parameters]
        self.restore()
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(self.parameters, own)  # noqa: SLF001
