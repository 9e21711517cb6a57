# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""What laconic.keras does on each backend: the exchange in its graphs, dense gradients, code outside of a graph."""

from __future__ import annotations

import contextlib
import sys

from ..core import errors
from .flat import Flat


def means(flat: Flat, gradients: list) -> list:
    """The means, as the backend's tensors."""
    import keras

    return {"tensorflow": _by_tensorflow, "jax": _by_jax, "torch": _by_torch}[keras.backend.backend()](flat, gradients)


def _by_tensorflow(flat: Flat, gradients: list) -> list:
    import tensorflow as tf

    if not tf.executing_eagerly() and _compiles():
        raise errors.error("unsupported", "XLA cannot compile the exchange", "model.compile(jit_compile=False)")
    means = tf.numpy_function(lambda *arrays: [mean.copy() for mean in flat.means(*arrays)], gradients, [g.dtype for g in gradients])
    means = means if isinstance(means, (list, tuple)) else [means]  # of one gradient TensorFlow gives no list
    return [tf.ensure_shape(mean, gradient.shape) for mean, gradient in zip(means, gradients, strict=True)]


def _by_jax(flat: Flat, gradients: list) -> list:
    import jax
    from jax.experimental import io_callback

    if any(isinstance(gradient, jax.core.Tracer) for gradient in gradients):
        return list(io_callback(flat.means, [jax.ShapeDtypeStruct(g.shape, g.dtype) for g in gradients], *gradients, ordered=True))
    return [jax.numpy.array(mean, copy=True) for mean in flat.means(*gradients)]


def _by_torch(flat: Flat, gradients: list) -> list:
    import torch

    arrays = [gradient.detach().to("cpu", torch.float32).numpy() for gradient in gradients]
    return [torch.tensor(mean, dtype=g.dtype, device=g.device) for mean, g in zip(flat.means(*arrays), gradients)]


def dense(gradient):
    """A sparse gradient of the backend as a dense one."""
    if hasattr(gradient, "dense_shape"):
        import tensorflow as tf

        return tf.convert_to_tensor(gradient) if isinstance(gradient, tf.IndexedSlices) else tf.sparse.to_dense(gradient)
    return gradient.to_dense() if hasattr(gradient, "to_dense") else gradient.todense()


def eagerly():
    """For what traced code does once, outside of its graph."""
    import keras

    if keras.backend.backend() != "tensorflow":
        return contextlib.nullcontext()
    import tensorflow as tf

    return tf.init_scope()


def callers(depth: int):
    """Frames above the function that asks, the nearest first."""
    frame = sys._getframe(2)  # noqa: SLF001
    while frame is not None and depth:
        yield frame
        frame, depth = frame.f_back, depth - 1


def _compiles() -> bool:
    """Whether a tf.function that is being traced, or the model that trains, was made with jit_compile=True."""
    return any(getattr(frame.f_locals.get("self"), "_jit_compile", None) is True for frame in callers(400))
