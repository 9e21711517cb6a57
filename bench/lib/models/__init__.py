# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The models of the demo: a file each in this folder, and a line here. docs/guide/your-own-model.md describes such a
file."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

from bench.lib.quality import ACCURACY, BITS, Quality


@dataclass(frozen=True)
class Model:
    what: str
    quality: Quality
    target: float
    steps: int  # of the runs that give the final quality
    every: int  # steps between evaluations
    choice: str = ""  # how steps and target were chosen
    limit: int = 300  # seconds that a seed's runs of the demo may take


CHOICE = ("Steps and target were chosen with seed 0: enough steps for uncompressed training to have clearly converged, and a "
          "target a little short of where it ends. Other seeds decide: SEEDS=3 trains with three, of which two had no part in the choice.")

MODELS = {
    "mlp": Model("a perceptron 64-1024-1024-10 on the digits of scikit-learn", ACCURACY, 0.95, 300, 5, CHOICE),
    "cnn": Model("a residual convolutional net with batch norm on the digits of scikit-learn, shifted", ACCURACY, 0.95, 200, 10,
                 CHOICE),
    "lstm": Model("a character LSTM on the sources of Python's standard library", BITS, 3.0, 250, 10, CHOICE),
    "gpt": Model("a character transformer on the sources of Python's standard library", BITS, 3.4, 250, 10, CHOICE),
    "recommendation": Model("embeddings of users and items under a perceptron, on likes that are drawn from a fixed law", ACCURACY, 0.78, 250, 10, CHOICE),
}

#: Models that learn from a file alone, and so are no MODEL= of their own.
OF_FILES = {
    "cifar10": Model("a residual convolutional net with batch norm on CIFAR-10", ACCURACY, 0.55, 1000, 100, limit=5400),
}


def about(name: str) -> Model:
    return (MODELS | OF_FILES)[name]


def chosen(name: str, path) -> str:
    """What MODEL= and DATA= train together."""
    return "cifar10" if name == "cnn" and path else name


def load(name: str):
    """The file of a model: imports torch."""
    return importlib.import_module(f"{__name__}.{name}")
