# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Gradients of JAX: `Averager`, and `averaged` for optax. docs/guide/jax.md."""

from .integrations.jax import Averager, averaged

__all__ = ["Averager", "averaged"]
