# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Gradients on their way into buckets: which are pushed during backward(), and in which order."""

from __future__ import annotations

import contextlib
import weakref

import torch

from ..core import errors
from ..core.errors import LaconicError
from ..exchange.csession import Layout


class Bucket:
    """Parameters that are pushed together, in float32. After the pull their place holds the means of small ones."""

    def __init__(self, parameters: list[int], counts: list[int]):
        self.offsets, at = [], 0
        for i in parameters:
            self.offsets.append(at)
            at += counts[i]
        self.parameters = parameters
        self.layout = Layout(parameters, self.offsets, at)
        self.values = torch.zeros(at, dtype=torch.float32, device="cpu")
        self.places = [self.values[at : at + counts[i]] for i, at in zip(parameters, self.offsets)]


def cut(counts: list[int], part: int) -> list[Bucket]:
    """Buckets of at most `part` bytes of float32, or of one parameter, in the reverse order of parameters: gradients of the last ones come
    first. part = 0: one bucket."""
    buckets: list[list[int]] = [[]]
    elements = 0
    for i in reversed(range(len(counts))):
        if buckets[-1] and part and 4 * (elements + counts[i]) > part:
            buckets.append([])
            elements = 0
        buckets[-1].append(i)
        elements += counts[i]
    return [Bucket(parameters, counts) for parameters in buckets]


class Pushes:
    """Pushes each bucket when its gradients are whole and those before it have gone: `push(number, failure)`, a method, with a copy of them in
    the bucket.

    How often a parameter gets a gradient in a step, it learns: nothing goes before step() in the first one. Parameters without a gradient
    count as zeros at step().
    """

    def __init__(self, parameters: list[torch.nn.Parameter], names: list[str], buckets: list[Bucket], push):
        self._parameters, self._names, self._buckets = parameters, names, buckets
        self._push = weakref.WeakMethod(push)
        self._bucket_of = {i: bucket for bucket in range(len(buckets)) for i in buckets[bucket].parameters}
        self._most = [0] * len(parameters)  # gradients that one step has brought
        self._came = [0] * len(parameters)  # in this step
        self._lacks = [len(bucket.parameters) for bucket in buckets]
        self._next = 0
        self._waits = 0  # no_sync() around us
        self.any = False  #: backward() has run in this step
        self.failure: LaconicError | None = None  #: of this step
        self._hooks = [p.register_post_accumulate_grad_hook(self._hook(i)) for i, p in enumerate(parameters)]

    def _hook(self, i: int):
        ours = weakref.WeakMethod(self._gradient_came)  # parameters hold the hook, which holds no optimizer

        def came(_parameter) -> None:
            gradient_came = ours()
            if gradient_came is not None:
                gradient_came(i)

        return came

    def _expected(self, i: int) -> int:
        return self._most[i] or max(self._most)

    def _gradient_came(self, i: int) -> None:
        self.any = True
        if self._waits:
            return
        self._came[i] += 1
        bucket = self._bucket_of[i]
        if bucket < self._next:
            self.failure = self.failure or errors.error(
                "exchange_order", f"parameter {self._names[i]} received another gradient after its gradient was pushed",
                "earlier steps had fewer backward() calls: run all but a step's last one inside optimizer.no_sync()")
            return
        if self._came[i] != self._expected(i):
            return
        self._lacks[bucket] -= 1
        while self._next < len(self._buckets) and self._lacks[self._next] <= 0:
            self._send()

    def _send(self) -> None:
        """The next bucket."""
        number = self._next
        self._next += 1
        bucket = self._buckets[number]
        try:
            self._fill(bucket)
        except LaconicError as error:
            self.failure = self.failure or error
        except RuntimeError as error:
            self.failure = self.failure or errors.error("peer_failed", f"gradients could not be copied: {error}", "check this rank's device")
        self._push()(number, self.failure)

    def _fill(self, bucket: Bucket) -> None:
        for i, place in zip(bucket.parameters, bucket.places):
            gradient = self._parameters[i].grad
            if gradient is None:
                place.zero_()
            elif gradient.layout != torch.strided or gradient.is_complex():
                kind = "complex" if gradient.is_complex() else "sparse"
                raise errors.error("unsupported", f"the gradient of {self._names[i]} is {kind}", "use dense, real gradients")
            else:
                place.copy_(gradient.detach().reshape(-1))

    @contextlib.contextmanager
    def no_sync(self):
        """Gradients that come inside only accumulate."""
        self._waits += 1
        try:
            yield
        finally:
            self._waits -= 1

    def rest(self) -> None:
        """At step(): what has not gone."""
        while self._next < len(self._buckets):
            self._send()

    def end_step(self) -> None:
        self._most = [max(most, came) for most, came in zip(self._most, self._came)]
        self._came = [0] * len(self._came)
        self._lacks = [len(bucket.parameters) for bucket in self._buckets]
        self._next, self.any, self.failure = 0, False, None

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
