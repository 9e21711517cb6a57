# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""What resuming asks of the bucket layout."""

from __future__ import annotations

import torch

from ._session import Layout
from .errors import LaconicError
from .worker import Worker


class Resumed:
    """After a resume: sums are cut along the saved layout until DDP's own layout is the saved one again.

    An engine's float sums depend on an element's place in the buffer, and DDP starts every run with another layout than
    the one it settles on. Buckets are collected into the saved layout's buffers, exchanged there, and copied back. Where
    the strategy adds in an order of its own, only steps that go out uncompressed need this (a flush that goes on, a
    fallback), so it ends after some iterations even if DDP never comes back to the saved layout.
    """

    #: DDP has its final layout from the second iteration on, with a static graph from the third
    ITERATIONS = 3

    class Part:
        """One of DDP's buckets, cut up."""

        def __init__(self, layout: Layout, buffer):
            self.layout, self.buffer = layout, buffer
            self.future = torch.futures.Future()
            # Parameters whose mean is not here yet, and the first failure of one of them.
            self.left, self.error = len(layout.parameters), None

    def __init__(self, layouts: list[Layout], counts: list[int], *, bounded: bool, uncut: bool = False):
        self.layouts = layouts
        self.uncut = uncut  #: these are DDP's buckets, not their parts
        self.left = Resumed.ITERATIONS if bounded else None
        self.counts = counts
        self.where = {p: (b, o) for b, layout in enumerate(layouts) for p, o in zip(layout.parameters, layout.offsets)}
        self.buffers: dict[int, torch.Tensor] = {}
        self.missing = [len(layout.parameters) for layout in layouts]
        self.parts: dict[int, tuple[Resumed.Part, int]] = {}

    def ended(self, own: list[Layout]) -> bool:
        """After an iteration in which DDP brought these layouts: are they what goes on from here?"""
        if self.left is not None:
            self.left -= 1
        return self.left == 0 or {x.parameters for x in own} == {x.parameters for x in self.layouts}

    def release(self, worker: Worker, own: list[Layout]) -> None:
        for layout in self.layouts:
            if layout.parameters not in {x.parameters for x in own}:
                worker.release(layout)

    def submit(self, exchange, layout: Layout, buffer, **options):
        """As `exchange`, which is Worker.submit or takes the same."""
        part = Resumed.Part(layout, buffer)
        for bucket in self._take(part):
            exchanged = exchange(self.layouts[bucket], self.buffers[bucket], **options)
            exchanged.then(lambda future, bucket=bucket: self._give(bucket, future.value()))
        return part.future

    def _take(self, part: Part):
        """Copies a bucket's gradients in; yields the numbers of the saved buckets that are complete with it."""
        for p, offset in zip(part.layout.parameters, part.layout.offsets):
            bucket, at = self.where[p]
            if bucket not in self.buffers:
                self.buffers[bucket] = torch.zeros(self.layouts[bucket].elements, dtype=part.buffer.dtype)
            self.buffers[bucket][at : at + self.counts[p]] = part.buffer[offset : offset + self.counts[p]]
            self.parts[p] = (part, offset)
            self.missing[bucket] -= 1
            if self.missing[bucket] == 0:
                self.missing[bucket] = len(self.layouts[bucket].parameters)
                yield bucket

    def _give(self, bucket: int, value) -> None:
        """In the worker's thread: copies a saved bucket's means back, or hands on its failure."""
        layout = self.layouts[bucket]
        for p, at in zip(layout.parameters, layout.offsets):
            part, offset = self.parts.pop(p)
            part.buffer[offset : offset + self.counts[p]] = self.buffers[bucket][at : at + self.counts[p]]
            if isinstance(value, LaconicError):
                part.error = part.error or value
            part.left -= 1
            if part.left == 0:
                part.future.set_result(part.error or part.buffer)
