# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""An optimizer whose state is spread over the ranks: gradients are pushed to the owners of their ranges, the owners step, and everybody pulls
the change of the parameters (3LC, MLSys 2019, section 3)."""

from __future__ import annotations

from .optimizer import ShardedOptimizer

__all__ = ["ShardedOptimizer"]
