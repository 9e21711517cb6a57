# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""When ranks report on steps whose buckets PyTorch sums itself: nothing of ours travels in them.

Then one bucket goes through the worker and carries the reports, medians of the steps in between. A whole step of them would cost
half as much again as plain DDP.
"""

#: steps between two reports, at first and at most
FIRST, MOST = 64, 512


def due(steps: int) -> bool:
    """True for the steps that report: 64, 128, 256 and 512 steps after the last change of a setting, then every 512: a function of
    the step only, the same on all ranks and in a resumed run."""
    return steps >= FIRST and (steps % MOST == 0 or (steps < MOST and steps & (steps - 1) == 0))
