# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""`laconic.OuterStep`: every rank steps its own optimizer, and what ranks exchange, compressed, is the change of the parameters: local SGD,
DiLoCo (arXiv 2311.08105), and with a round after every step a substitute for the all-reduce of gradients.
"""

from __future__ import annotations

from .rules import nesterov
from .step import OuterStep

__all__ = ["OuterStep", "nesterov"]
