# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The bucket layout after a resume."""

from __future__ import annotations

import torch

from ..core.errors import LaconicError
from ..exchange.csession import Layout
from ..exchange.worker import Worker


class Resumed:
    """After a resume: sums are cut along the saved layout until DDP's own layout is the saved one again.

    An engine's float sums depend on an element's position in the buffer, and DDP starts every run with another layout than the one
    it settles on. Buckets are collected into host buffers of the saved layout, exchanged there, and copied back. If the strategy
    has its own order of additions, only uncompressed steps need this (a flush that continues, a fallback), so it ends after some
    iterations even if DDP never returns to the saved layout. Saved buckets are exchanged in their own order, whatever DDP's is:
    reports travel with the first bucket of a step, which shifts what follows.
    """

    #: DDP has its final layout from the second iteration on, with a static graph from the third
    ITERATIONS = 3

    class Part:
        """One of DDP's buckets, cut up."""

        def __init__(self, layout: Layout, buffer, devices):
            self.layout, self.buffer = layout, buffer
            self.future = torch.futures.Future(devices=devices)
            # Parameters whose mean is not here yet, and the first failure of one of them.
            self.left, self.error = len(layout.parameters), None

    def __init__(self, layouts: list[Layout], counts: list[int], devices=None, *, bounded: bool, uncut: bool = False, joins: bool = False):
        self.layouts = layouts
        self.joins = joins  #: they are buckets, or parts of them; else each is an exchange
        self.devices = devices  #: of futures
        self.uncut = uncut  #: these are DDP's buckets, not exchanges of them
        self.left = Resumed.ITERATIONS if bounded else None
        self.counts = counts
        self.where = {p: (b, o) for b, layout in enumerate(layouts) for p, o in zip(layout.parameters, layout.offsets)}
        self.pieces: list[list] = [[] for _ in layouts]  # (first element, gradient) of those that are here
        self.next = 0  # the saved bucket that goes out next in this iteration
        self.parts: dict[int, Resumed.Part] = {}

    def ended(self, *ways: list[tuple[int, ...]]) -> bool:
        """After an iteration of which DDP's buckets make these exchanges, in one way or another: do they go on from here?"""
        if self.left is not None:
            self.left -= 1
        return self.left == 0 or any(map(self.is_saved, ways))

    def end(self, worker: Worker, seen: list[Layout], engine_sums: bool) -> bool | None:
        """After an iteration in which DDP brought these buckets. None: what was saved goes on; else it is over, and whether DDP's go out apart
        from now on, which those of a state of version 1 do."""
        if self.uncut:
            ways = {False: [layout.parameters for layout in seen]}
        else:
            ways = {apart: worker.exchanges.of(seen, apart) for apart in ((False, True) if engine_sums else (False,))}
        if not self.ended(*ways.values()):
            return None
        apart = next((apart for apart, own in ways.items() if self.is_saved(own)), False)
        self.release(worker, ways[apart])
        return apart

    def is_saved(self, own: list[tuple[int, ...]]) -> bool:
        return {layout.parameters for layout in self.layouts} == set(own)

    def release(self, worker: Worker, own: list[tuple[int, ...]]) -> None:
        for layout in self.layouts:
            if layout.parameters not in own:
                worker.release(layout)

    def submit(self, exchange, layout: Layout, buffer, **options):
        """As `exchange`, which is Worker.submit or takes pieces as it does."""
        part = Resumed.Part(layout, buffer, self.devices)
        for bucket, pieces in self._take(part):
            exchanged = exchange(self.layouts[bucket], pieces, **options)
            exchanged.then(lambda future, bucket=bucket: self._give(bucket, future.value()))
        return part.future

    def _take(self, part: Part):
        """Adds a bucket's gradients; yields the saved buckets that are complete with it and all before them, and their pieces."""
        for p, offset in zip(part.layout.parameters, part.layout.offsets):
            bucket, at = self.where[p]
            self.pieces[bucket].append((at, part.buffer[offset : offset + self.counts[p]]))
            self.parts[p] = part
        while len(self.pieces[self.next]) == len(self.layouts[self.next].parameters):
            bucket, self.next = self.next, (self.next + 1) % len(self.layouts)
            pieces, self.pieces[bucket] = self.pieces[bucket], []
            yield bucket, pieces

    def _give(self, bucket: int, value) -> None:
        """The means of a saved bucket are back where its gradients were; or it has failed."""
        for p in self.layouts[bucket].parameters:
            part = self.parts.pop(p)
            if isinstance(value, LaconicError):
                part.error = part.error or value
            part.left -= 1
            if part.left == 0:
                part.future.set_result(part.error or part.buffer)
