# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Who gives DDP the mean of a bucket: the thread that has it, or the thread that runs backward(), at its end."""

from __future__ import annotations

import torch


def in_backward() -> bool:
    """Whether this thread is inside of a backward(): in a hook, a callback, or a signal handler that came meanwhile."""
    try:
        torch.autograd.Variable._execution_engine.queue_callback(_nothing)  # noqa: SLF001
    except RuntimeError:
        return False
    return True


def _nothing() -> None:
    pass


class EndOfBackward:
    """Futures that get their values in the thread that runs backward(), right before DDP asks for the first of them.

    That thread sleeps inside DDP until the first future is there, takes the interpreter, sleeps until the second is there: two
    hand-overs a bucket, which take longer than the exchange of a small one. Here it sleeps once. What DDP could have done with a
    bucket while later ones were still on their way, a copy, it does afterwards: for small buckets.
    """

    def __init__(self):
        self._deliveries: list = []

    def add(self, delivery) -> None:
        """`delivery.wait()` returns when the value is there, `delivery.deliver()` sets the future."""
        self._deliveries.append(delivery)

    def queue(self) -> None:
        """Queued in the hook of the last bucket, so that DDP's own callback comes after. Not with a static graph: in its first
        iteration DDP calls hooks and waits in the same callback, before ours would run."""
        if not self._deliveries:
            return
        try:
            torch.autograd.Variable._execution_engine.queue_callback(self._deliver)  # noqa: SLF001
        except RuntimeError:  # no backward() runs: join() calls the hook of a rank that has no more data
            self._deliver()

    def _deliver(self) -> None:
        """Waits for the last first: then the others are there, or nearly. A backward() that failed halfway has left what it had
        to the next one."""
        deliveries, self._deliveries = self._deliveries, []
        for delivery in reversed(deliveries):
            delivery.wait()
        for delivery in deliveries:
            delivery.deliver()


class Sum:
    """A buffer that a process group sums: `future` gets the buffer, or the RuntimeError that kept the sum from coming."""

    def __init__(self, work, buffer: torch.Tensor):
        self._work, self._value = work, buffer
        self.future = torch.futures.Future()

    def wait(self) -> None:
        try:
            self._work.wait()
        except RuntimeError as error:
            self._value = error

    def deliver(self) -> None:
        self.future.set_result(self._value)
