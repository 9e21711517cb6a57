# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""A residual net for CIFAR-10 of 1.2 M parameters, most of them in stages of few pixels: a float of its gradient costs little computing, as in deep nets."""

import torch
from torch import nn

from bench.lib.digits import cifar10
from bench.lib.models.cnn import Block

WIDTHS = (32, 64, 128, 256)
BATCH = 32
LEARNING_RATE = 0.03  # chosen by docs/results/cifar10.md
TRAINING = f"batch {BATCH} a worker, shifted by up to two pixels, SGD {LEARNING_RATE} momentum 0.9"


def data(path):
    if not path:
        raise ValueError("cifar10 needs a file: MODEL=cnn DATA=FILE")
    return cifar10(path, shift=2)


def build(images) -> nn.Module:
    layers = [nn.Conv2d(images.train.shape[1], WIDTHS[0], 3, 2, 1, bias=False), nn.BatchNorm2d(WIDTHS[0]), nn.ReLU()]
    for inputs, outputs in zip((WIDTHS[0], *WIDTHS), WIDTHS):
        layers.append(Block(inputs, outputs, 1 if inputs == outputs else 2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(WIDTHS[-1], images.classes))


def optimizer(parameters, momentum=True):
    return torch.optim.SGD(parameters, lr=LEARNING_RATE, momentum=0.9 if momentum else 0.0, fused=True)
