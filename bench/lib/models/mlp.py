# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""A perceptron of 1.1 M parameters."""

import torch
from torch import nn

from bench.lib.digits import digits

LAYERS = (64, 1024, 1024, 10)
BATCH = 32
LEARNING_RATE = 0.05
TRAINING = f"batch {BATCH} a worker, SGD {LEARNING_RATE} momentum 0.9"


def data(path):
    if path:
        raise ValueError("mlp is for the digits alone; MODEL=cnn takes a file")
    return digits(flat=True)


def build(_data) -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs in zip(LAYERS, LAYERS[1:]):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def optimizer(parameters, momentum=True):
    return torch.optim.SGD(parameters, lr=LEARNING_RATE, momentum=0.9 if momentum else 0.0, fused=True)
