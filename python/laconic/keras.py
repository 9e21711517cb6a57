# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Gradients of Keras 3: `compressed` for optimizers. docs/guide/keras.md."""

from .integrations.keras import compressed

__all__ = ["compressed"]
