# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""A character LSTM of 1.3 M parameters. Of its embedding's rows a batch uses few."""

import torch
from torch import nn

from bench.lib import text

EMBEDDING, HIDDEN = 64, 512
BATCH = 4
LEARNING_RATE = 4e-3
TRAINING = f"batch {BATCH} × {text.CONTEXT} characters a worker, Adam {LEARNING_RATE}"


class CharacterLSTM(nn.Module):
    def __init__(self):
        super().__init__()
        self.characters = nn.Embedding(text.CHARACTERS, EMBEDDING)
        self.memory = nn.LSTM(EMBEDDING, HIDDEN, batch_first=True)
        self.head = nn.Linear(HIDDEN, text.CHARACTERS)

    def forward(self, x):
        return self.head(self.memory(self.characters(x))[0])


def data(path):
    return text.Text(path)


def build(_data) -> nn.Module:
    return CharacterLSTM()


def optimizer(parameters, momentum=True):
    return torch.optim.Adam(parameters, lr=LEARNING_RATE, betas=(0.9 if momentum else 0.0, 0.999), fused=True)
