# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Optimizers of Keras 3 whose gradients are averaged between processes, on each of its backends. docs/guide/keras.md.

    model.compile(optimizer=laconic.keras.compressed(keras.optimizers.Adam(1e-3), "3lc"), loss=...)
"""

from __future__ import annotations

from ..core import environment, errors
from . import keras_backends as backends
from .flat import TYPES, Flat, OfSession

_HOOKS = ("apply", "build", "stateless_apply", "_clip_gradients")


def compressed(optimizer, spec: str, *, sync: bool = False, **session):
    """An optimizer of a subclass of the given one's class, of the same name and configuration, that applies the means over all ranks. A
    saved model has the plain optimizer. Under the policy mixed_float16 it is a LossScaleOptimizer around it, as compile() would make.

    Args:
        optimizer: a keras optimizer; if it is built, the values of its variables are taken over.
        spec: as for laconic.Session.
        sync: weights and the optimizer's variables of rank 0 replace those of the others before the first step. Otherwise weights are
            compared.
        session: further arguments of laconic.Session.

    The result's `laconic` has `stats`, `explain`, `set`, `flush`, `state_dict`, `load_state_dict`, `last_error` and `close`.

    Raises:
        LaconicError: tf.distribute or keras.distribution has several replicas in this process; the optimizer is not one of Keras 3.
    """
    import keras

    _check_process()
    if not isinstance(optimizer, keras.optimizers.Optimizer) or not all(hasattr(optimizer, name) for name in _HOOKS):
        raise errors.error("unsupported", f"{type(optimizer).__name__} is not an optimizer of Keras 3", "pass keras.optimizers.Adam(1e-3) or its like")
    if hasattr(optimizer, "laconic"):
        raise errors.error("invalid_argument", "this optimizer is compressed already", "call compressed once")
    scales = keras.optimizers.LossScaleOptimizer
    if keras.config.dtype_policy().name == "mixed_float16" and not isinstance(optimizer, scales):
        optimizer = scales(optimizer, name="loss_scale_optimizer")
    _leave_xla()
    plain = type(optimizer)
    public = getattr(keras.optimizers, plain.__name__, None)
    made = type(plain.__name__, (_OfScaled if isinstance(optimizer, scales) else _OfPlain, plain),
                {"__doc__": plain.__doc__, "__module__": "keras.optimizers" if public is not None and issubclass(plain, public) else plain.__module__})
    new = made.from_config(optimizer.get_config())
    new.__dict__["laconic"] = exchange = Exchange(spec, sync, session)
    if optimizer.built:
        exchange.waits = True  # for the values
        new.build(optimizer._trainable_variables)  # noqa: SLF001
        for variable, value in zip(new.variables, optimizer.variables, strict=True):
            variable.assign(value)
        exchange.waits = False
        exchange.begin(_exchanged(new._trainable_variables), new.variables)  # noqa: SLF001
    return new


class Exchange(OfSession):
    """An optimizer's exchange. It begins with the optimizer's build(), which is collective."""

    def __init__(self, spec: str, sync: bool, session: dict):
        self._spec, self._sync, self._session = spec, sync, session
        self._flats: dict[tuple, Flat] = {}
        self._said: set[str] = set()
        self.waits = False  # build() does not begin

    @property
    def flat(self) -> Flat:
        if not self._flats:
            raise errors.error("invalid_argument", "the optimizer is not built: there is no exchange yet", "call optimizer.build, or fit")
        return next(iter(self._flats.values()))

    def of(self, variables) -> Flat:
        """One for each list of variables: models that are trained in turn."""
        key = tuple(map(id, variables))
        if key not in self._flats:
            _check_process()
            for variable in variables:
                if str(variable.dtype) not in TYPES:
                    raise errors.error("dtype_unsupported", f"{variable.path} is of {variable.dtype}", "float32, bfloat16 and float16 are exchanged")
            self._flats[key] = Flat(self._spec, [(_name(i, v, variables), tuple(v.shape)) for i, v in enumerate(variables)], self._session)
        return self._flats[key]

    def begin(self, variables, slots) -> None:
        import keras

        flat = self.of(variables)
        with backends.eagerly():
            if self._sync:
                for variable in (*variables, *slots):
                    values = keras.ops.convert_to_numpy(variable.value)
                    if values.shape == tuple(variable.shape):  # else TensorFlow has yet to initialise it, to the same value on all ranks
                        variable.assign(flat.of_rank_0(values))
            else:
                flat.compare([keras.ops.convert_to_numpy(variable.value) for variable in variables], "the weights")

    def dense(self, gradients, variables) -> list:
        """None becomes zeros, sparse becomes dense."""
        import keras

        made = []
        for gradient, variable in zip(gradients, variables, strict=True):
            if gradient is None:
                self._say(f"{variable.path} has no gradient: zeros are exchanged")
                gradient = keras.ops.zeros(variable.shape, variable.dtype)
            elif hasattr(gradient, "dense_shape") or getattr(gradient, "is_sparse", False) or hasattr(gradient, "todense"):
                self._say(f"the gradient of {variable.path} is sparse: it is exchanged dense")
                gradient = backends.dense(gradient)
            made.append(gradient)
        return made

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            if not self._flats or self.rank == 0:
                environment.say(text)

    def means(self, gradients, variables) -> list:
        return backends.means(self.of(variables), list(gradients))


class _Begins:
    """In front of an optimizer's class: its exchange begins when it is built."""

    def build(self, variables):
        was = self.built
        super().build(variables)
        if not was and not self.laconic.waits:
            self.laconic.begin(_exchanged(variables), self.variables)

    def _built_for(self, variables) -> list:
        variables = list(self._trainable_variables if variables is None else variables)
        if not self.built:
            self.build(variables)
        return variables


class _OfPlain(_Begins):
    """Gradients are exchanged where Keras clips them: accumulated ones once per update."""

    def apply(self, grads, trainable_variables=None):
        _check_caller()
        variables = self._built_for(trainable_variables)
        self.__dict__["_laconic_variables"] = _exchanged(variables)
        return super().apply(self.laconic.dense(grads, variables), trainable_variables)

    def _clip_gradients(self, grads):
        import keras

        variables, steps = self.__dict__["_laconic_variables"], self.gradient_accumulation_steps
        if steps and keras.backend.backend() == "jax":  # which clips what it has accumulated after every batch, and may not use it
            last = (self._iterations + 1) % steps == 0
            means = keras.ops.cond(last, lambda: self.laconic.means(grads, variables), lambda: list(grads))
        else:
            means = self.laconic.means(grads, variables)
        return super()._clip_gradients(means)


class _OfScaled(_Begins):
    """In front of LossScaleOptimizer. Gradients are exchanged without their scale before it looks for overflows: one is seen by all ranks."""

    def apply(self, grads, trainable_variables=None):
        variables = self._built_for(trainable_variables)
        return super().apply(self._means(grads, variables, self.dynamic_scale.value), trainable_variables)

    def stateless_apply(self, optimizer_variables, grads, trainable_variables):
        at = next(i for i, variable in enumerate(self.variables) if variable is self.dynamic_scale)
        means = self._means(grads, self._trainable_variables, optimizer_variables[at])
        return super().stateless_apply(optimizer_variables, means, trainable_variables)

    def _means(self, grads, variables, scale) -> list:
        grads = self.laconic.dense(grads, variables)
        return [mean * scale for mean in self.laconic.means([gradient / scale for gradient in grads], variables)]


def _exchanged(variables) -> list:
    return [variable for variable in variables if not getattr(variable, "overwrite_with_gradient", False)]


def _name(index: int, variable, variables) -> str:
    """Its layer's and its own: what stands before it depends on how the model was built, or loaded."""
    short = [other.path.split("/")[-2:] for other in variables]
    return "/".join(short[index]) + (f"#{index}" if short.count(short[index]) > 1 else "")


def _check_caller() -> None:
    if any(frame.f_code.co_filename.endswith("loss_scale_optimizer.py") for frame in backends.callers(8)):
        raise errors.error("unsupported", "a LossScaleOptimizer is around the compressed optimizer, and skips steps on one rank alone",
                           "compressed(keras.optimizers.LossScaleOptimizer(optimizer), spec)")


def _check_process() -> None:
    import keras

    alone = keras.distribution.distribution() is None
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        alone = alone and not tf.distribute.has_strategy()
    if not alone:
        raise errors.error("unsupported", "this process has several replicas of the model", "one process, one replica, or let XLA sum inside the process")


def _leave_xla() -> None:
    """jit_compile="auto" of TensorFlow's backend, which compile() resolves after it has taken the optimizer: False with ours."""
    import keras

    trainer = next((c for c in keras.Model.__mro__ if "_resolve_auto_jit_compile" in vars(c)), None)
    resolve = getattr(trainer, "_resolve_auto_jit_compile", None)
    if keras.backend.backend() != "tensorflow" or resolve is None or hasattr(resolve, "plain"):
        return

    def resolved(model):
        value = resolve(model)
        if value and hasattr(getattr(model, "optimizer", None), "laconic"):
            environment.say('jit_compile="auto" is False: XLA cannot compile the exchange')
            return False
        return value

    resolved.plain = resolve
    trainer._resolve_auto_jit_compile = resolved  # noqa: SLF001
