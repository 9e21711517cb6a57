# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Codecs in Python for the tests of laconic.register."""

from __future__ import annotations

import numpy


class Largest:
    """A researcher's top-k."""

    name = "largest"

    def __init__(self, ratio=0.05):
        if not 0 < ratio <= 1:
            raise ValueError(f"ratio is {ratio}")
        self.ratio = ratio

    def encode(self, array):
        flat = array.ravel()
        kept = numpy.sort(numpy.argsort(-numpy.abs(flat), kind="stable")[: max(1, int(self.ratio * flat.size))]).astype(numpy.uint32)
        return kept.tobytes() + flat[kept].tobytes()

    def decode(self, data, out):
        k = len(data) // 8
        out.ravel()[numpy.frombuffer(data, numpy.uint32, k)] = numpy.frombuffer(data, numpy.float32, k, 4 * k)


class Sparse:
    """Elements above a threshold: lengths differ from rank to rank, and may be 0."""

    name = "sparse"
    feedback = False

    def __init__(self, v=0.002, dense=False, word="abc", n=3):
        self.v, self.dense = v, dense

    def encode(self, array):
        flat = array.ravel()
        array *= 1 if self.dense else numpy.abs(array) > self.v  # the array is ours
        kept = numpy.flatnonzero(flat).astype(numpy.uint32)
        return memoryview(kept.tobytes() + flat[kept].tobytes())

    def decode(self, data, out):
        Largest.decode(self, data, out)


class Faulty(Largest):
    """Fails on the given rank, in the given step, at the given point."""

    name = "faulty"
    told = None  # rank, step, what

    def _fails(self, what):
        return Faulty.told is not None and Faulty.told[2] == what and Faulty.told[:2] == (_rank(), self.place.step)

    def encode(self, array):
        if self._fails("encode"):
            raise ValueError("no idea")
        return "text" if self._fails("text") else super().encode(array)

    def decode(self, data, out):
        if self._fails("decode"):
            raise KeyError("nor here")
        super().decode(data, out)
        if self._fails("nan"):
            out[...] = numpy.nan
        return out + 1 if self._fails("gives") else None


class Places:
    """Sends where it is called, and checks it when decoding."""

    name = "places"
    feedback = "never"
    seen: list = []

    def encode(self, array):
        Places.seen.append((array.shape, array.dtype.name, *self.place))
        self.calls = getattr(self, "calls", 0) + 1
        return repr((tuple(self.place), array.shape, self.calls)).encode()

    def decode(self, data, out):
        place, shape, self.told = eval(data)  # noqa: S307
        assert tuple(self.place) == place and out.shape == shape and not out.any()
        out[...] = 1.0


def _rank():
    import torch.distributed as dist

    return dist.get_rank()


def register(*names):
    import laconic

    for codec in (Largest, Sparse, Faulty, Places):
        if not names or codec.name in names:
            laconic.register(codec)
