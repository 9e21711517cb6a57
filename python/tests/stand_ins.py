# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Stand-ins for the parts of JAX, optax and Keras that laconic.jax and laconic.keras use."""

from __future__ import annotations

import pickle
import sys
import types
from pathlib import Path

import numpy


class Array(numpy.ndarray):
    """A concrete array of the stub."""

    is_fully_addressable = True
    sharding = "here"


class Tracer(Array):
    """A traced one."""


class BatchTracer(Tracer):
    """Under vmap."""


class JVPTracer(Tracer):
    """Under grad."""


def array(shape=(3, 4), kind=Array, dtype="float32"):
    return numpy.arange(numpy.prod(shape), dtype=dtype).reshape(shape).view(kind)


class Tree:
    """The structure of a dict."""

    def __init__(self, names):
        self.names = tuple(names)

    def __eq__(self, other):
        return self.names == other.names

    def __hash__(self):
        return hash(self.names)

    def unflatten(self, leaves):
        return dict(zip(self.names, leaves, strict=True))


def jax_modules() -> dict:
    """Modules by name; `axes` of jax are the mapped axes."""
    axes = {}
    stub = types.ModuleType("jax")
    stub.Array, stub.core = Array, types.SimpleNamespace(Tracer=Tracer)
    stub.ShapeDtypeStruct = lambda shape, dtype: types.SimpleNamespace(shape=shape, dtype=dtype)
    stub.tree_util = types.SimpleNamespace(
        tree_flatten=lambda tree: (list(tree.values()), Tree(tree)), tree_leaves=lambda tree: list(tree.values()),
        tree_flatten_with_path=lambda tree: (list(tree.items()), Tree(tree)), keystr=lambda path: f"['{path}']",
        tree_map=lambda f, tree: {name: f(leaf) for name, leaf in tree.items()})
    stub.numpy = types.SimpleNamespace(zeros=numpy.zeros, int32=numpy.int32, float32=numpy.float32,
                                       array=lambda values, dtype=None, copy=True: numpy.array(values, dtype=dtype, copy=copy).view(Array))
    calls = types.ModuleType("jax.experimental")

    def io_callback(function, shapes, *leaves, ordered):
        assert ordered and [shape.dtype for shape in shapes] == [leaf.dtype for leaf in leaves]
        return [numpy.array(value) for value in function(*leaves)]

    calls.io_callback = io_callback
    core = types.SimpleNamespace(get_axis_env=lambda: types.SimpleNamespace(axis_sizes=axes))
    optax = types.ModuleType("optax")
    optax.GradientTransformation = type("GradientTransformation", (tuple,), {
        "__new__": lambda cls, init, update: tuple.__new__(cls, (init, update)), "init": property(lambda self: self[0]),
        "update": property(lambda self: self[1])})
    stub.axes = axes
    return {"jax": stub, "jax.numpy": stub.numpy, "jax.experimental": calls, "jax._src.core": core, "optax": optax}


# ---- Keras -----------------------------------------------------------------------------------------------------------------


class Variable:
    def __init__(self, path, value, dtype="float32", **flags):
        self.path, self.value, self.dtype = path, numpy.array(value, dtype), dtype
        self.__dict__.update(flags)

    shape = property(lambda self: self.value.shape)

    def assign(self, value):
        self.value = numpy.array(getattr(value, "value", value), self.value.dtype)


class Sparse:
    """As JAX's BCOO."""

    def __init__(self, values):
        self.values = values

    def todense(self):
        return self.values


class Optimizer:
    """SGD with momentum, and what Keras's optimizers have in common."""

    def __init__(self, rate=1.0, momentum=0.0, gradient_accumulation_steps=None):
        self.rate, self.momentum, self.gradient_accumulation_steps = rate, momentum, gradient_accumulation_steps
        self.built, self._iterations, self._trainable_variables, self.variables = False, 0, [], []

    def get_config(self):
        return {"rate": self.rate, "momentum": self.momentum, "gradient_accumulation_steps": self.gradient_accumulation_steps}

    @classmethod
    def from_config(cls, config):
        return cls(**config)

    def build(self, variables):
        self.built, self._trainable_variables = True, list(variables)
        self.variables = [Variable(f"slot/{v.path}", numpy.zeros(v.shape)) for v in variables]

    def apply(self, grads, trainable_variables=None):
        """Clips, as the real one does, what it has accumulated: here it has not."""
        grads = self._clip_gradients(list(grads))
        self._iterations += 1
        for variable, slot, grad in zip(self._trainable_variables, self.variables, grads, strict=True):
            slot.assign(self.momentum * slot.value + grad)
            variable.assign(variable.value - self.rate * slot.value)

    def stateless_apply(self, optimizer_variables, grads, trainable_variables):
        raise NotImplementedError

    def _clip_gradients(self, grads):
        return grads


class SGD(Optimizer):
    """A public one."""


class LossScaleOptimizer(Optimizer):
    """Skips steps whose gradients are not finite."""

    def __init__(self, inner_optimizer, name=None):
        super().__init__()
        self.inner_optimizer, self.dynamic_scale = inner_optimizer, Variable("scale", 8.0)

    def get_config(self):
        return {"inner_optimizer": self.inner_optimizer}

    def build(self, variables):
        super().build(variables)
        self.inner_optimizer.build(variables)
        self.variables = [self.dynamic_scale, *self.inner_optimizer.variables]

    def apply(self, grads, trainable_variables=None):
        if all(numpy.isfinite(grad).all() for grad in grads):
            self.inner_optimizer.apply([grad / self.dynamic_scale.value for grad in grads])


class Callback:
    def __init__(self):
        self.params = self._model = None

    model = property(lambda self: self._model)

    def set_model(self, model):
        self._model = model

    def __getattr__(self, name):
        if not name.startswith("on_"):
            raise AttributeError(name)
        return lambda *_: None


class BackupAndRestore(Callback):
    """After every epoch; a run that begins restores what is there."""

    def __init__(self, path):
        super().__init__()
        self.path = Path(path)

    def on_train_begin(self, logs):
        if self.path.exists():
            self.model.load_weights(self.path)

    def on_epoch_end(self, epoch, logs):
        self.model.first = epoch + 1
        self.model.save_weights(self.path, overwrite=True)


class Model:
    """A model of one layer. fit takes each batch's gradients."""

    steps_per_execution = 1

    def __init__(self, optimizer, weights=0.0, size=(40, 50)):
        self.trainable_variables = [Variable("dense/kernel", numpy.full(size, weights)), Variable("dense/bias", [1.0, 2.0])]
        self.optimizer, self.first = optimizer, 0

    def _all(self) -> list:
        return [*self.trainable_variables, *self.optimizer.variables]

    def save(self, filepath, overwrite=True):
        self.save_weights(filepath)

    def save_weights(self, filepath, overwrite=True):
        Path(filepath).write_bytes(pickle.dumps((self.first, [variable.value for variable in self._all()])))

    def load_weights(self, filepath):
        if not self.optimizer.built:
            self.optimizer.build(self.trainable_variables)
        self.first, values = pickle.loads(Path(filepath).read_bytes())
        for variable, value in zip(self._all(), values, strict=True):
            variable.assign(value)

    def fit(self, gradients, epochs, steps, callbacks=(), until=None) -> list[dict]:
        """Every epoch's logs. gradients(number of the batch); `until`: the epoch before which it is interrupted."""
        for callback in callbacks:
            callback.params = {"epochs": epochs, "steps": steps}
            callback.set_model(self)

        def each(name, *arguments):
            for callback in callbacks:
                getattr(callback, name)(*arguments)

        history = [{}]
        each("on_train_begin", {})
        for epoch in range(self.first, epochs if until is None else until):
            each("on_epoch_begin", epoch, {})
            for batch in range(steps or 2):
                each("on_train_batch_begin", batch, {})
                self.optimizer.apply(gradients((steps or 2) * epoch + batch), self.trainable_variables)
            history.append({})
            each("on_epoch_end", epoch, history[-1])
        if until is None:
            each("on_train_end", history[-1])
        return history[1:]


def keras_modules(backend="jax") -> dict:
    """Modules by name, with those of JAX; Keras on JAX. `policy`, `distributed` and `replicas` may be set."""
    stub = types.ModuleType("keras")
    stub.policy, stub.distributed, stub.replicas = "float32", None, False
    stub.optimizers = types.SimpleNamespace(Optimizer=Optimizer, SGD=SGD, LossScaleOptimizer=LossScaleOptimizer)
    stub.config = types.SimpleNamespace(dtype_policy=lambda: types.SimpleNamespace(name=stub.policy))
    stub.distribution = types.SimpleNamespace(distribution=lambda: stub.distributed)
    stub.backend = types.SimpleNamespace(backend=lambda: backend)
    stub.ops = types.SimpleNamespace(zeros=numpy.zeros, convert_to_numpy=numpy.asarray, cond=lambda condition, yes, no: yes() if condition else no())
    stub.callbacks = types.SimpleNamespace(Callback=Callback)
    stub.Model = Model
    tensorflow = types.ModuleType("tensorflow")
    tensorflow.distribute = types.SimpleNamespace(has_strategy=lambda: stub.replicas)
    return {**jax_modules(), "keras": stub, "tensorflow": tensorflow}


class Keras:
    """with Keras() as keras: the stand-ins in place of what is installed. The callback's module is made for them and goes with them."""

    _of_callback = "laconic.integrations.keras_callback"

    def __init__(self, backend="jax"):
        self._modules = keras_modules(backend)

    def __enter__(self):
        self._kept = {name: sys.modules.pop(name, None) for name in (*self._modules, self._of_callback)}
        sys.modules.update(self._modules)
        return self._modules["keras"]

    def __exit__(self, *_):
        for name, module in self._kept.items():
            sys.modules.pop(name, None)
            if module is not None:
                sys.modules[name] = module
