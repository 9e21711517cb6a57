# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""A Keras model for scikit-learn's digits, trained by the ranks of an MPI job with compressed gradients.

    pip install tensorflow-cpu scikit-learn
    python examples/keras_train.py                              # one process
    mpirun -n 2 python examples/keras_train.py --spec 3lc

The model and its optimizer are Keras's own: the means go to `optimizer.apply` where gradients would. Compression is two lines of
this file: search for `laconic.Session` and `average`.
"""

from __future__ import annotations

import argparse
import hashlib
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import keras
import numpy
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import laconic

BATCH, STEPS = 128, 300  # samples of a step, of all ranks together


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--spec", default="3lc")
    parser.add_argument("--engine", default="mpi")
    options = parser.parse_args()
    images, labels = load_digits(return_X_y=True)
    train, test, train_labels, test_labels = train_test_split((images / 16).astype("float32"), labels, test_size=360,
                                                              stratify=labels, random_state=0)
    keras.utils.set_random_seed(0)  # the same weights on all ranks
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(256, activation="relu"),
                              keras.layers.Dense(256, activation="relu"), keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
    variables = model.trainable_variables
    shapes = [(variable.path, tuple(variable.shape)) for variable in variables]
    flat = numpy.empty(model.count_params(), "float32")  # the gradients, back to back
    views = [part.reshape(shape) for part, (_, shape) in
             zip(numpy.split(flat, numpy.cumsum([numpy.prod(shape) for _, shape in shapes])[:-1]), shapes)]

    @tf.function(reduce_retracing=True)
    def gradients(pixels, labels):
        with tf.GradientTape() as tape:
            value = loss(labels, model(pixels, training=True))
        return tape.gradient(value, [variable.value for variable in variables])

    draw = numpy.random.default_rng(0)  # the same batches, too
    with laconic.Session(options.spec, shapes, engine=options.engine) as session:
        for step in range(STEPS):
            mine = draw.choice(len(train), BATCH, replace=False)[session.rank :: session.world]
            for view, gradient in zip(views, gradients(train[mine], train_labels[mine])):
                view[:] = gradient
            session.average(step, flat)
            optimizer.apply([tf.convert_to_tensor(view) for view in views], variables)
        accuracy = float((model(test).numpy().argmax(1) == test_labels).mean())
        print(f"rank {session.rank} of {session.world}: accuracy {accuracy:.4f}, weights "
              f"{hashlib.sha256(b''.join(w.tobytes() for w in model.get_weights())).hexdigest()[:16]}, "
              f"{session.stats()['ratio']:.1f} : 1", flush=True)


if __name__ == "__main__":
    main()
