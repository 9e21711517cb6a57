# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Gradients of Keras 3: `compressed` for optimizers, and `Callback` for their state. docs/guide/keras.md."""

from .integrations.keras import compressed

__all__ = ["Callback", "compressed"]


def __getattr__(name: str):
    """`Callback` has a base class of Keras, which is imported with it."""
    if name != "Callback":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .integrations.keras_callback import Callback

    return Callback
