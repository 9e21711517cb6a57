# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""A perceptron for scikit-learn's digits in JAX, trained by the ranks of an MPI job with compressed gradients.

    pip install jax scikit-learn
    python examples/jax_train.py                              # one process
    mpirun -n 2 python examples/jax_train.py --spec 3lc

Nothing of PyTorch is involved. Compression is two lines of this file: search for `laconic.Session` and `average`.
"""

from __future__ import annotations

import argparse
import hashlib

import jax
import jax.numpy as jnp
import numpy
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import laconic

SIZES = [64, 256, 256, 10]
BATCH, STEPS, RATE = 128, 300, 0.2  # samples of a step, of all ranks together


def shapes():
    """(name, shape) of all parameters."""
    for layer, (fan_in, fan_out) in enumerate(zip(SIZES, SIZES[1:])):
        yield f"{layer}.weight", (fan_in, fan_out)
        yield f"{layer}.bias", (fan_out,)


def scores(weights, pixels):
    for layer in range(len(SIZES) - 1):
        pixels = pixels @ weights[2 * layer] + weights[2 * layer + 1]
        if layer < len(SIZES) - 2:
            pixels = jax.nn.relu(pixels)
    return pixels


@jax.jit
def gradients(weights, pixels, labels):
    def loss(weights):
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(scores(weights, pixels)), labels[:, None], axis=1))

    return jax.grad(loss)(weights)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--spec", default="3lc")
    parser.add_argument("--engine", default="mpi")
    options = parser.parse_args()
    images, labels = load_digits(return_X_y=True)
    train, test, train_labels, test_labels = train_test_split((images / 16).astype("float32"), labels, test_size=360,
                                                              stratify=labels, random_state=0)
    draw = numpy.random.default_rng(0)  # the same weights and the same batches on all ranks
    weights = [draw.uniform(-1, 1, shape).astype("float32") * (6 / shape[0]) ** 0.5 if len(shape) > 1
               else numpy.zeros(shape, "float32") for _, shape in shapes()]
    flat = numpy.empty(sum(w.size for w in weights), "float32")  # the gradients, back to back
    views = [part.reshape(w.shape) for part, w in zip(numpy.split(flat, numpy.cumsum([w.size for w in weights])[:-1]), weights)]

    with laconic.Session(options.spec, shapes(), engine=options.engine) as session:
        for step in range(STEPS):
            mine = draw.choice(len(train), BATCH, replace=False)[session.rank :: session.world]
            for view, gradient in zip(views, gradients(weights, train[mine], train_labels[mine])):
                view[:] = gradient
            session.average(step, flat)
            weights = [w - numpy.float32(RATE) * g for w, g in zip(weights, views)]
        accuracy = float((scores(weights, test).argmax(1) == test_labels).mean())
        print(f"rank {session.rank} of {session.world}: accuracy {accuracy:.4f}, weights "
              f"{hashlib.sha256(b''.join(w.tobytes() for w in weights)).hexdigest()[:16]}, "
              f"{session.stats()['ratio']:.1f} : 1", flush=True)


if __name__ == "__main__":
    main()
