# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""`laconic.ShardedOptimizer`: an optimizer sharded over the ranks. Gradients are pushed to the owners of their ranges, owners step, and
every rank pulls the update of the parameters (3LC, MLSys 2019, section 3).
"""

from __future__ import annotations

from .optimizer import ShardedOptimizer

__all__ = ["ShardedOptimizer"]
