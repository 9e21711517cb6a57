# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Checks that FSDP put a group's gradients where its layout has them."""

from __future__ import annotations

import torch


class Landing:
    """Check of the first gradients of a layout. Created in the hook; `wrong` is called at the end of backward()."""

    def __init__(self, unit, key: tuple, layout, buffer: torch.Tensor):
        self._unit, self._key, self._buffer = unit, key, buffer
        self._places = dict(zip(layout.parameters, layout.offsets))
        self._before = {}  # gradients to which these are added
        self._wrong = ""
        self._watching = []
        for i in key:
            p = unit.parameters[i].sharded_param
            if unit.indices[i] not in self._places:
                continue
            if p.grad is not None:
                self._before[i] = p.grad.to_local().clone()
            if getattr(p, "_post_accumulate_grad_hooks", None):
                self._watch(i, p)

    def _watch(self, i: int, p: torch.Tensor) -> None:
        """Looks before hooks that may consume the gradient."""
        def look(p) -> None:
            self._look(i, p)

        handle = p.register_post_accumulate_grad_hook(look)
        p._post_accumulate_grad_hooks.move_to_end(handle.id, last=False)  # noqa: SLF001
        self._watching.append((i, handle))

    def _look(self, i: int, p: torch.Tensor) -> None:
        if p.grad is None or self._wrong:
            return
        landed = p.grad.to_local()
        at = self._places[self._unit.indices[i]]
        own = self._buffer[at : at + landed.numel()].view(landed.shape)
        if own.dtype == landed.dtype and own.data_ptr() == landed.data_ptr() and i not in self._before:
            return
        values = own.to(device=landed.device, dtype=landed.dtype)
        if i in self._before:
            values = self._before[i] + values
        if not torch.equal(values.nan_to_num(), landed.nan_to_num()):
            self._wrong = self._unit.names[i]

    def wrong(self) -> str:
        """The first parameter whose gradient has another position or value; empty: none."""
        watched = {i for i, _ in self._watching}
        for _, handle in self._watching:
            handle.remove()
        for i in self._key:
            if self._unit.indices[i] in self._places and i not in watched:
                self._look(i, self._unit.parameters[i].sharded_param)
        self._buffer, self._before = None, {}
        return self._wrong

    def passed(self) -> None:
        self._unit.checked.add(self._key)
