# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""A Keras model for scikit-learn's digits, trained by several processes with compressed gradients, on any backend of Keras.

    pip install keras tensorflow-cpu scikit-learn                           # or jax, or torch: KERAS_BACKEND
    python examples/keras_train.py                                          # one process
    laconic lab --hosts 2 -- python examples/keras_train.py --spec 3lc
    mpirun -n 2 python examples/keras_train.py --spec 3lc

Compression is `laconic.keras.compressed` around the optimizer.
"""

from __future__ import annotations

import argparse
import hashlib
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import keras
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import laconic

BATCH, EPOCHS = 128, 30  # samples of a step, of all ranks together


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--spec", default="3lc")
    options = parser.parse_args()
    images, labels = load_digits(return_X_y=True)
    train, test, train_labels, test_labels = train_test_split((images / 16).astype("float32"), labels, test_size=360,
                                                              stratify=labels, random_state=0)
    keras.utils.set_random_seed(0)  # the same weights on all ranks
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(256, activation="relu"),
                              keras.layers.Dense(256, activation="relu"), keras.layers.Dense(10)])
    optimizer = laconic.keras.compressed(keras.optimizers.SGD(0.05, momentum=0.9), options.spec)
    model.compile(optimizer=optimizer, loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    optimizer.build(model.trainable_variables)  # the ranks meet: fit would do it
    rank, world = optimizer.laconic.rank, optimizer.laconic.world
    mine = slice(rank, len(train) // world * world, world)  # every rank has the same number of batches
    model.fit(train[mine], train_labels[mine], batch_size=BATCH // world, epochs=EPOCHS, verbose=0)
    accuracy = float((model.predict(test, verbose=0).argmax(1) == test_labels).mean())
    print(f"rank {rank} of {world}: accuracy {accuracy:.4f}, weights "
          f"{hashlib.sha256(b''.join(w.tobytes() for w in model.get_weights())).hexdigest()[:16]}, "
          f"{optimizer.laconic.stats()['ratio']:.1f} : 1", flush=True)


if __name__ == "__main__":
    main()
