# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""One rank of bench.engines.frameworks: trains the demo's mlp in the ways that its plan names, and times steps. Arguments: a plan, and where rank
0 writes its answer.

The plan: {"ways": [way…], "repeats", "warmup", "steps", "backend"}; a way is "jax SPEC inside", "jax SPEC outside", "ddp SPEC", "fit SPEC" or "hand SPEC".
The latter two are Keras on `backend`; one of their steps is a batch of an epoch.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import sys
import time
from pathlib import Path

SIZES, BATCH, RATE = (64, 1024, 1024, 10), 32, 0.05
RANK = int(os.environ["RANK"])
_numbers = itertools.count()


def place() -> dict:
    """Options of the next session, next to torch's process group: the ranks meet in a folder."""
    folder = Path(sys.argv[2]).parent / f"session-{next(_numbers)}"
    folder.mkdir(exist_ok=True)
    return {"engine": "gloo", "rank": RANK, "world": int(os.environ["WORLD_SIZE"]), "rendezvous": f"file:{folder}", "interface": os.environ.get("GLOO_SOCKET_IFNAME")}


def batch(number: int):
    """This rank's pixels and labels."""
    import numpy

    draw = numpy.random.default_rng([RANK, number % 50])
    return draw.random((BATCH, SIZES[0]), numpy.float32), draw.integers(0, SIZES[-1], BATCH)


def weights() -> list:
    """(kernel, bias) of every layer, the same on all ranks."""
    import numpy

    draw = numpy.random.default_rng(0)
    return [(draw.normal(0, fan_in**-0.5, (fan_in, fan_out)).astype("float32"), numpy.zeros(fan_out, "float32")) for fan_in, fan_out in zip(SIZES, SIZES[1:])]


class Jax:
    def __init__(self, spec: str, where: str):
        import jax
        import jax.numpy as jnp
        import optax

        import laconic

        average, self.params = laconic.jax.averaged(spec, **place()), jax.tree.map(jnp.array, weights())
        tx = optax.chain(average, optax.sgd(RATE, momentum=0.9))
        self.state, self.wait = tx.init(self.params), jax.block_until_ready

        def grads(params, x, y):
            def loss(params):
                hidden, (kernel, bias) = x, params[-1]
                for before, shift in params[:-1]:
                    hidden = jax.nn.relu(hidden @ before + shift)
                return optax.softmax_cross_entropy_with_integer_labels(hidden @ kernel + bias, y).mean()

            return jax.grad(loss)(params)

        def applied(params, state, grads):
            updates, state = tx.update(grads, state, params)
            return optax.apply_updates(params, updates), state

        if where == "inside":
            self.step = jax.jit(lambda params, state, x, y: applied(params, state, grads(params, x, y)))
        else:
            plain, made = optax.sgd(RATE, momentum=0.9), jax.jit(grads)
            after = jax.jit(lambda params, state, means: _updated(optax, plain, params, state, means))
            self.state = plain.init(self.params)
            self.step = lambda params, state, x, y: after(params, state, average.averager(made(params, x, y)))

    def run(self, steps: int) -> list[float]:
        return timed(steps, self._once)

    def _once(self, number: int) -> None:
        self.params, self.state = self.step(self.params, self.state, *batch(number))
        self.wait(self.params)


def _updated(optax, plain, params, state, means):
    updates, state = plain.update(means, state, params)
    return optax.apply_updates(params, updates), state


class Ddp:
    def __init__(self, spec: str):
        import torch
        import torch.distributed as dist

        import laconic

        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        layers: list = []
        for kernel, bias in weights():
            layers += [torch.nn.Linear(*kernel.shape), torch.nn.ReLU()]
            layers[-2].weight.data, layers[-2].bias.data = torch.tensor(kernel.T.copy()), torch.tensor(bias)
        self.torch, self.model = torch, torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers[:-1]))
        self.handle = laconic.attach(self.model, spec, quiet=True)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=RATE, momentum=0.9, fused=True)

    def run(self, steps: int) -> list[float]:
        return timed(steps, self._once)

    def _once(self, number: int) -> None:
        x, y = map(self.torch.from_numpy, batch(number))
        self.optimizer.zero_grad()
        self.torch.nn.functional.cross_entropy(self.model(x), y).backward()
        self.optimizer.step()


def keras_model():
    import keras

    keras.utils.clear_session()
    model = keras.Sequential([keras.Input((SIZES[0],)), *(keras.layers.Dense(size, activation="relu") for size in SIZES[1:-1]), keras.layers.Dense(SIZES[-1])])
    model.set_weights([array for pair in weights() for array in pair])
    return model, keras.losses.SparseCategoricalCrossentropy(from_logits=True), keras.optimizers.SGD(RATE, momentum=0.9)


class Fit:
    def __init__(self, spec: str):
        import laconic

        self.model, loss, optimizer = keras_model()
        self.model.compile(optimizer=laconic.keras.compressed(optimizer, spec, **place()), loss=loss)

    def run(self, steps: int) -> list[float]:
        import keras
        import numpy

        import laconic

        class Epochs(keras.callbacks.Callback):
            times: list = []

            def on_epoch_begin(self, epoch, logs=None):
                self.begin = time.perf_counter()

            def on_epoch_end(self, epoch, logs=None):
                self.times = [*self.times, (time.perf_counter() - self.begin) / steps]

        x, y = (numpy.concatenate(parts) for parts in zip(*map(batch, range(steps))))
        epochs = Epochs()
        self.model.fit(x, y, batch_size=BATCH, epochs=3, shuffle=False, verbose=0, callbacks=[epochs, laconic.keras.Callback()])
        return epochs.times[1:]  # the first of a fit makes its functions


class Hand:
    """The loop that a user writes with laconic.Session: gradients compiled, averaged in one flat array, applied, compiled again."""

    def __init__(self, spec: str):
        import numpy

        import laconic

        self.model, self.loss, self.optimizer = keras_model()
        self.variables = self.model.trainable_variables
        self.optimizer.build(self.variables)
        shapes = [tuple(variable.shape) for variable in self.variables]
        self.session, self.number = laconic.Session(spec, [(v.path, shape) for v, shape in zip(self.variables, shapes)], **place()), 0
        self.flat = numpy.empty(sum(map(numpy.prod, shapes)), "float32")
        self.views = [part.reshape(shape) for part, shape in zip(numpy.split(self.flat, numpy.cumsum([numpy.prod(s) for s in shapes])[:-1]), shapes)]
        self.step = getattr(self, f"_by_{os.environ['KERAS_BACKEND']}")()

    def run(self, steps: int) -> list[float]:
        begin = time.perf_counter()
        for number in range(steps):
            self.step(*batch(number))
        return [(time.perf_counter() - begin) / steps]

    def _average(self, gradients) -> None:
        for view, gradient in zip(self.views, gradients):
            view[:] = gradient
        self.session.average(self.number, self.flat)
        self.number += 1

    def _by_tensorflow(self):
        import tensorflow as tf

        @tf.function(reduce_retracing=True)
        def gradients(x, y):
            with tf.GradientTape() as tape:
                value = self.loss(y, self.model(x, training=True))
            return tape.gradient(value, [variable.value for variable in self.variables])

        apply = tf.function(lambda *means: self.optimizer.apply(list(means), self.variables))

        def step(x, y):
            self._average(gradients(x, y))
            apply(*map(tf.convert_to_tensor, self.views))

        return step

    def _by_jax(self):
        import jax

        values, slots = [v.value for v in self.variables], [v.value for v in self.optimizer.variables]
        made = jax.jit(jax.grad(lambda values, x, y: self.loss(y, self.model.stateless_call(values, [], x, training=True)[0])))
        apply = jax.jit(self.optimizer.stateless_apply)

        def step(x, y):
            nonlocal values, slots
            self._average(made(values, x, y))
            values, slots = apply(slots, list(map(jax.numpy.array, self.views)), values)
            jax.block_until_ready(values)

        return step

    def _by_torch(self):
        import torch

        def step(x, y):
            self.model.zero_grad()
            self.loss(torch.from_numpy(y), self.model(torch.from_numpy(x), training=True)).backward()
            self._average(variable.value.grad for variable in self.variables)
            with torch.no_grad():
                self.optimizer.apply([torch.tensor(view, device="cpu") for view in self.views], self.variables)

        return step


def timed(steps: int, once) -> list[float]:
    found = []
    for number in range(steps):
        meet()
        begin = time.perf_counter()
        once(number)
        found.append(time.perf_counter() - begin)
    return found


def main(asked: str, answer: str) -> None:
    global meet
    plan = json.loads(Path(asked).read_text())
    os.environ.update(KERAS_BACKEND=plan.get("backend", "jax"), JAX_PLATFORMS="cpu", TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="",
                      XLA_FLAGS="--xla_cpu_multi_thread_eigen=false")
    import laconic

    gate = laconic.Session("none", [("gate", 1)], **place())
    meet = lambda: gate.gather_bytes(b"-")  # noqa: E731
    if plan.get("backend") == "torch":
        import torch

        torch.set_num_threads(1)
    kinds = {"jax": Jax, "ddp": Ddp, "fit": Fit, "hand": Hand}
    ways = {name: kinds[name.split()[0]](*name.split()[1:]) for name in plan["ways"]}
    times: dict = {name: [] for name in ways}
    for _ in range(plan["repeats"]):
        for name, way in ways.items():
            meet()
            if plan["warmup"]:
                way.run(plan["warmup"])
            times[name] += way.run(plan["steps"])
    if RANK == 0:
        Path(answer).write_text(json.dumps({"ways": {name: {"seconds": statistics.median(seen), "least": min(seen), "most": max(seen)} for name, seen in times.items()}}))
    meet()
    os._exit(0)  # sessions of several engines have no common order of their ends


if __name__ == "__main__":
    main(*sys.argv[1:])
