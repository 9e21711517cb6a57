# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""A perceptron for scikit-learn's digits in JAX and optax, trained by several processes with compressed gradients.

    pip install jax optax scikit-learn
    python examples/jax_train.py                                          # one process
    laconic lab --hosts 2 -- python examples/jax_train.py --spec 3lc
    mpirun -n 2 python examples/jax_train.py --spec 3lc

Compression is `laconic.jax.averaged` at the head of the chain.
"""

from __future__ import annotations

import argparse
import hashlib

import jax
import jax.numpy as jnp
import numpy
import optax
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import laconic

SIZES = [64, 256, 256, 10]
BATCH, STEPS, RATE = 128, 300, 0.2  # samples of a step, of all ranks together


def scores(weights, pixels):
    for layer, (kernel, bias) in enumerate(weights):
        pixels = pixels @ kernel + bias
        if layer < len(weights) - 1:
            pixels = jax.nn.relu(pixels)
    return pixels


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--spec", default="3lc")
    options = parser.parse_args()
    images, labels = load_digits(return_X_y=True)
    train, test, train_labels, test_labels = train_test_split((images / 16).astype("float32"), labels, test_size=360,
                                                              stratify=labels, random_state=0)
    draw = numpy.random.default_rng(0)  # the same weights and the same batches on all ranks
    weights = [(jnp.array(draw.uniform(-1, 1, (fan_in, fan_out)) * (6 / fan_in) ** 0.5, jnp.float32), jnp.zeros(fan_out))
               for fan_in, fan_out in zip(SIZES, SIZES[1:])]
    averaged = laconic.jax.averaged(options.spec)
    tx = optax.chain(averaged, optax.sgd(RATE))
    state = tx.init(weights)
    averager = averaged.averager

    @jax.jit
    def step(weights, state, pixels, labels):
        def loss(weights):
            return optax.softmax_cross_entropy_with_integer_labels(scores(weights, pixels), labels).mean()

        updates, state = tx.update(jax.grad(loss)(weights), state, weights)
        return optax.apply_updates(weights, updates), state

    for _ in range(STEPS):
        mine = draw.choice(len(train), BATCH, replace=False)[averager.rank :: averager.world]
        weights, state = step(weights, state, train[mine], train_labels[mine])
    accuracy = float((scores(weights, test).argmax(1) == test_labels).mean())
    digest = hashlib.sha256(b"".join(numpy.asarray(leaf).tobytes() for leaf in jax.tree_util.tree_leaves(weights)))
    print(f"rank {averager.rank} of {averager.world}: accuracy {accuracy:.4f}, weights {digest.hexdigest()[:16]}, "
          f"{averager.stats()['ratio']:.1f} : 1", flush=True)
    averager.close()


if __name__ == "__main__":
    main()
