# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Gradients of JAX, averaged between processes that each run their own program. docs/guide/jax.md.

    tx = optax.chain(laconic.jax.averaged("3lc"), optax.adam(1e-3))
    grads = laconic.jax.Averager("3lc", params)(grads)
"""

from __future__ import annotations

import sys

import numpy

from ..core import errors
from .flat import TYPES, Flat, OfSession

_OUTSIDE = "average after it: Laconic stands between processes that each run their own program"


class Averager(OfSession):
    """Averages trees of gradients over all ranks, compressed. Attributes: `rank`, `world`, `last_error`.

    Args:
        spec: as for laconic.Session.
        tree: the parameters, or any tree with their names and shapes. Weights of all ranks are compared.
        sync: do not compare them: `broadcast` replaces them.
        session: further arguments of laconic.Session.

    Raises:
        LaconicError: on every rank, if their arguments or weights differ; a leaf is not of float32, bfloat16 or float16.
    """

    def __init__(self, spec: str, tree, *, sync: bool = False, **session):
        import jax

        named, self._tree = jax.tree_util.tree_flatten_with_path(tree)
        self._names = [jax.tree_util.keystr(path) or "gradient" for path, _ in named]
        leaves = [leaf for _, leaf in named]
        self._check_leaves(leaves)
        self._shapes = [tuple(leaf.shape) for leaf in leaves]
        self.flat = Flat(spec, list(zip(self._names, self._shapes)), session)
        if not sync and all(isinstance(leaf, (jax.Array, numpy.ndarray)) and not isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            self.flat.compare([numpy.asarray(leaf) for leaf in leaves], "the weights")

    def __call__(self, grads):
        """The means over all ranks, outside of jit; leaves keep their types and shardings. Every rank calls it at the same step."""
        import jax

        leaves = self._leaves(grads)
        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            raise errors.error("invalid_argument", "these gradients are being traced", "inside jit call averager.inside(grads)")
        return self._tree.unflatten(map(_as, self.flat.means(*leaves), leaves))

    def inside(self, grads):
        """The means over all ranks, in a function that jit compiles; `lax.scan`, `cond` and donated buffers are all right. An error of
        the exchange is the last line of JAX's own; `last_error` has it."""
        import jax
        from jax.experimental import io_callback

        leaves = self._leaves(grads)
        _check_transformations(leaves)
        shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]
        return self._tree.unflatten(io_callback(self.flat.means, shapes, *leaves, ordered=True))

    def broadcast(self, tree):
        """Collective. Rank 0's values of a tree, on all ranks: parameters, an optimizer's state."""
        import jax

        return jax.tree_util.tree_map(lambda leaf: _as(self.flat.of_rank_0(numpy.asarray(leaf)), leaf), tree)

    def _leaves(self, grads) -> list:
        import jax

        leaves, tree = jax.tree_util.tree_flatten(grads)
        if tree != self._tree or [tuple(numpy.shape(leaf)) for leaf in leaves] != self._shapes:
            raise errors.error("shape_unsupported", "the gradients are not a tree of the shapes of this averager's parameters",
                               "make an Averager for each tree")
        self._check_leaves(leaves)
        return leaves

    def _check_leaves(self, leaves) -> None:
        import jax

        for name, leaf in zip(self._names, leaves):
            kind = getattr(leaf, "dtype", type(leaf).__name__)
            if str(kind) not in TYPES:
                raise errors.error("dtype_unsupported", f"{name} is of {kind}", "gradients of float32, bfloat16 and float16 are exchanged")
            if isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer) and not leaf.is_fully_addressable:
                raise errors.error("unsupported", f"{name} is sharded over processes",
                                   "Laconic stands between processes that each run their own program")


def _as(values: numpy.ndarray, leaf):
    """A copy, as an array with the type and the sharding of a leaf."""
    import jax
    import jax.numpy as jnp

    if not isinstance(leaf, jax.Array):
        return values.astype(leaf.dtype)
    made = jnp.array(values, dtype=leaf.dtype, copy=True)
    return made if leaf.sharding == made.sharding else jax.device_put(made, leaf.sharding)


def _check_transformations(leaves) -> None:
    """Refuses what can be seen while tracing; JAX itself refuses the rest."""
    kinds = {type(leaf).__name__ for leaf in leaves}
    axes = sys.modules["jax._src.core"].get_axis_env().axis_sizes
    if "BatchTracer" in kinds:
        raise errors.error("unsupported", "gradients cannot be averaged under vmap", _OUTSIDE)
    if kinds & {"JVPTracer", "LinearizeTracer"}:
        raise errors.error("unsupported", "the exchange has no derivative", "average gradients after jax.grad has made them")
    if axes:
        raise errors.error("unsupported", f"gradients cannot be averaged under pmap or shard_map over {', '.join(map(str, axes))}", _OUTSIDE)


class _Averagers:
    """Of one call of `averaged`, by tree."""

    def __init__(self, spec: str, session: dict):
        self._spec, self._session, self._made = spec, session, {}

    def of(self, tree) -> Averager:
        import jax

        leaves, shape = jax.tree_util.tree_flatten(tree)
        key = shape, tuple(tuple(numpy.shape(leaf)) for leaf in leaves)
        if key not in self._made:
            self._made[key] = Averager(self._spec, tree, **self._session)
        return self._made[key]

    def only(self) -> Averager:
        if len(self._made) != 1:
            raise errors.error("invalid_argument", f"there are {len(self._made)} averagers: one per tree that init was called with",
                               "call init first; with several trees, make a transformation for each")
        return next(iter(self._made.values()))


def averaged(spec: str, **session):
    """An optax.GradientTransformation whose updates are the means over all ranks, for the head of optax.chain, inside jit or outside.

    `init` is collective: it creates the Averager, one per tree, which is the transformation's `averager`. The transformation's own
    state is the number of steps. Arguments and errors are Averager's.
    """
    import jax
    import jax.numpy as jnp
    import optax

    averagers = _Averagers(spec, session)

    class Averaged(optax.GradientTransformation):
        """`averager`: the Averager of the tree that `init` was called with."""

        averager = property(lambda self: averagers.only())

    def init(params):
        averagers.of(params)
        return jnp.zeros((), jnp.int32)

    def update(updates, state, params=None):
        averager = averagers.of(updates)
        traced = any(isinstance(leaf, jax.core.Tracer) for leaf in (state, *jax.tree_util.tree_leaves(updates)))
        return (averager.inside if traced else averager)(updates), state + 1

    return Averaged(init, update)
