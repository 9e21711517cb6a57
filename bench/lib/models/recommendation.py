# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Embeddings of 200,000 rows and a small perceptron: 1.6 M parameters, of which a batch uses less than one in a hundred.

The data is drawn, from seed 0. User and item of a sample are floor(n * u^6), u uniform: the first thousandth of either is in a third of the samples.
Both have four hidden tastes, normal with variance 1. A user likes an item with probability 1 / (1 + exp(-2 s)), where s is half the sum of all
eight tastes, and half the product of the user's with the item's, summed.
"""

import torch
from torch import nn

from bench.lib.digits import Images

USERS, ITEMS, TASTES, WIDTH, HIDDEN = 150_000, 50_000, 4, 8, 32
TRAIN_SAMPLES, TEST_SAMPLES = 1 << 20, 20_000
BATCH = 1024
LEARNING_RATE = 0.2
TRAINING = f"batch {BATCH} a worker, Adagrad {LEARNING_RATE}"


class Recommendation(nn.Module):
    """Scores of "no" and "yes" for pairs of a user and an item."""

    def __init__(self, users: int, items: int):
        super().__init__()
        self.users, self.items = nn.Embedding(users, WIDTH), nn.Embedding(items, WIDTH)
        self.mixing = nn.Sequential(nn.Linear(3 * WIDTH, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 2))
        for rows in (self.users, self.items):
            nn.init.normal_(rows.weight, std=0.1)

    def forward(self, pairs):
        user, item = self.users(pairs[:, 0]), self.items(pairs[:, 1])
        return self.mixing(torch.cat([user * item, user, item], 1))


def drawn(samples: int, users: int = USERS, items: int = ITEMS) -> tuple[torch.Tensor, torch.Tensor]:
    """Pairs by the law above, and whether the user likes the item."""
    generator = torch.Generator().manual_seed(0)
    of_users, of_items = (torch.randn(count, TASTES, generator=generator) for count in (users, items))
    pairs = torch.stack([(count * torch.rand(samples, generator=generator, dtype=torch.float64) ** 6).long() for count in (users, items)], 1)
    user, item = of_users[pairs[:, 0]], of_items[pairs[:, 1]]
    score = (user + item + user * item).sum(1) / 2
    return pairs, (torch.rand(samples, generator=generator) < torch.sigmoid(2 * score)).long()


def data(path) -> Images:
    """Pairs in place of pixels."""
    if path:
        raise ValueError("recommendation draws its data; MODEL=cnn takes a file")
    pairs, liked = drawn(TRAIN_SAMPLES + TEST_SAMPLES)
    return Images(pairs[TEST_SAMPLES:], liked[TEST_SAMPLES:], pairs[:TEST_SAMPLES], liked[:TEST_SAMPLES], classes=2)


def build(_data) -> nn.Module:
    return Recommendation(USERS, ITEMS)


def optimizer(parameters, momentum=True):
    """Adagrad has no momentum to leave out. It takes sparse gradients as they are."""
    return torch.optim.Adagrad(parameters, lr=LEARNING_RATE)
