# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""A character transformer of 1.3 M parameters. examples/tiny_gpt.py trains it alone."""

import torch
from torch import nn
from torch.nn import functional

from bench.lib import text

WIDTH, LAYERS, HEADS = 160, 4, 5
BATCH = 4
LEARNING_RATE = 2e-3
TRAINING = f"batch {BATCH} × {text.CONTEXT} characters a worker, Adam {LEARNING_RATE}"


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before_attention, self.before_mixing = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.queries_keys_values = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.attended = nn.Linear(WIDTH, WIDTH, bias=False)
        self.mixing = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        batch, length, _ = x.shape
        parts = self.queries_keys_values(self.before_attention(x)).view(batch, length, 3, HEADS, WIDTH // HEADS)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        heads = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attended(heads.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.mixing(self.before_mixing(x))


class TinyGPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.characters = nn.Embedding(text.CHARACTERS, WIDTH)
        self.places = nn.Parameter(0.02 * torch.randn(text.CONTEXT, WIDTH))
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, text.CHARACTERS, bias=False))

    def forward(self, x):
        return self.head(self.blocks(self.characters(x) + self.places))


def data(path):
    return text.Text(path)


def build(_data) -> nn.Module:
    return TinyGPT()


def optimizer(parameters, momentum=True):
    return torch.optim.Adam(parameters, lr=LEARNING_RATE, betas=(0.9 if momentum else 0.0, 0.999), fused=True)
