# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The models of the demo: a file each beside this one, and a line here. docs/guide/your-own-model.md says what a file has."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

from quality import ACCURACY, BITS, Quality


@dataclass(frozen=True)
class Model:
    what: str
    quality: Quality
    target: float
    steps: int  # of the runs that give the final quality
    every: int  # steps between evaluations


MODELS = {
    "mlp": Model("a perceptron 64-1024-1024-10 on the digits of scikit-learn", ACCURACY, 0.95, 300, 5),
    "cnn": Model("a residual convolutional net with batch norm on the digits of scikit-learn, shifted", ACCURACY, 0.95, 200, 10),
    "lstm": Model("a character LSTM on the sources of Python's standard library", BITS, 3.0, 250, 10),
    "gpt": Model("a character transformer on the sources of Python's standard library", BITS, 3.4, 250, 10),
}


def load(name: str):
    """The file of a model: imports torch."""
    return importlib.import_module(f"models.{name}")
