# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""A small residual net with batch norm: many small tensors and large ones."""

import torch
from torch import nn

from bench.lib.digits import digits

WIDTHS = (32, 64, 128)
BATCH = 16
LEARNING_RATE = 0.1
TRAINING = f"batch {BATCH} a worker, shifted by up to one pixel, SGD {LEARNING_RATE} momentum 0.9"


class Block(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.path = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs))
        self.around = nn.Identity() if (inputs, stride) == (outputs, 1) else nn.Sequential(
            nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        return torch.relu(self.path(x) + self.around(x))


def data(path):
    if path:
        raise ValueError("cnn is for the digits; with a file its place is taken by cifar10")
    return digits(shift=1)


def build(images) -> nn.Module:
    layers = [nn.Conv2d(images.train.shape[1], WIDTHS[0], 3, 1, 1, bias=False), nn.BatchNorm2d(WIDTHS[0]), nn.ReLU()]
    for inputs, outputs in zip((WIDTHS[0], *WIDTHS), WIDTHS):
        layers.append(Block(inputs, outputs, 1 if inputs == outputs else 2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(WIDTHS[-1], images.classes))


def optimizer(parameters, momentum=True):
    return torch.optim.SGD(parameters, lr=LEARNING_RATE, momentum=0.9 if momentum else 0.0, fused=True)
