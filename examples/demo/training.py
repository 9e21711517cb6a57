# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""What is trained: scikit-learn's digits, a perceptron of 1.1 M parameters, and one of several gradient exchanges.

Everything but the exchange is equal for all: seeds, batches, schedule, one bucket. (PyTorch's PowerSGD hook needs one
bucket: with more it waits for a collective inside a callback, and hangs on Gloo.)
"""

from __future__ import annotations

import math
import time

import torch
from labels import BASELINES
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import laconic

LAYERS = (64, 1024, 1024, 10)
PARAMETERS = sum((a + 1) * b for a, b in zip(LAYERS, LAYERS[1:]))
BATCH = 32
LEARNING_RATE = 0.05
MOMENTUM = 0.9
BUCKET_MB = 25  # above the model's size, and given explicitly: one bucket
TEST_SAMPLES = 360
POWERSGD_START = 2


class Digits:
    """Pixels in [0, 1]; the same split for everybody."""

    def __init__(self):
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split

        images, labels = load_digits(return_X_y=True)
        split = train_test_split(images / 16.0, labels, test_size=TEST_SAMPLES, stratify=labels, random_state=0)
        self.train, self.test = (torch.tensor(x, dtype=torch.float32) for x in split[:2])
        self.train_labels, self.test_labels = (torch.tensor(y, dtype=torch.int64) for y in split[2:])

    def batches(self, seed: int, steps: int, rank: int, world: int):
        """This rank's samples of each step: world * BATCH indices of a fresh permutation per epoch, cut by rank."""
        generator = torch.Generator().manual_seed(seed)
        step_size = BATCH * world
        per_epoch = len(self.train) // step_size
        for step in range(steps):
            if step % per_epoch == 0:
                order = torch.randperm(len(self.train), generator=generator)
            begin = step % per_epoch * step_size + rank * BATCH
            chosen = order[begin : begin + BATCH]
            yield self.train[chosen], self.train_labels[chosen]

    def accuracy(self, model) -> float:
        with torch.no_grad():
            return (model(self.test).argmax(1) == self.test_labels).float().mean().item()


def make_model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for inputs, outputs in zip(LAYERS, LAYERS[1:]):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def learning_rate(step: int, steps: int) -> float:
    """Cosine from LEARNING_RATE to 0."""
    return LEARNING_RATE * 0.5 * (1.0 + math.cos(math.pi * min(step / steps, 1.0)))


def ring_bytes(count: int, world: int) -> int:
    """What each rank of a ring all-reduce sends."""
    return 2 * count * (world - 1) // world


def baseline_bytes(spec: str, world: int) -> int:
    """Payload that a rank sends per step with one of PyTorch's own exchanges, counted as a ring."""
    if spec == "pytorch:ddp":
        return ring_bytes(4 * PARAMETERS, world)
    if spec == "pytorch:fp16":
        return ring_bytes(2 * PARAMETERS, world)
    floats = 0
    for inputs, outputs in zip(LAYERS, LAYERS[1:]):
        low_rank = 4 * (inputs + outputs)
        compressed = 2 * low_rank < inputs * outputs  # the hook's min_compression_rate
        floats += outputs + (low_rank if compressed else inputs * outputs)
    return ring_bytes(4 * floats, world)


def _slowed(hook, seconds: float):
    """A hook that first waits as long as its bytes would take: for emulated links, where nothing is shaped."""

    def wait_then_exchange(state, bucket):
        time.sleep(seconds)
        return hook(state, bucket)

    return wait_then_exchange


class Trainer:
    """One model with one gradient exchange."""

    def __init__(self, spec: str, seed: int, data: Digits, steps: int, rank: int, world: int, emulated_rate: float = 0):
        self.spec, self.data, self.steps, self.step = spec, data, steps, 0
        self.model = DistributedDataParallel(make_model(seed), bucket_cap_mb=BUCKET_MB)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM, fused=True)
        self.handle = None
        self.batches = data.batches(seed, 1 << 30, rank, world)
        self._last_gradient = 0.0
        # Backward ends with the first layer. Runs before DDP's own hook on the same parameter.
        for p in self.model.module[0].parameters():
            p.register_post_accumulate_grad_hook(self._note_gradient)
        self._exchange(spec, seed, world, emulated_rate)

    def _exchange(self, spec: str, seed: int, world: int, emulated_rate: float) -> None:
        if spec not in BASELINES:
            self.handle = laconic.attach(self.model, spec, seed=seed, quiet=True)
            return
        wait = 8.0 * baseline_bytes(spec, world) / emulated_rate if emulated_rate else 0.0
        state, hook = None, default_hooks.allreduce_hook
        if spec == "pytorch:fp16":
            hook = default_hooks.fp16_compress_hook
        elif spec == "pytorch:powersgd":
            state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=POWERSGD_START,
                                                random_seed=seed)
            hook = powerSGD_hook.powerSGD_hook
        if wait:
            self.model.register_comm_hook(state, _slowed(hook, wait))
        elif spec != "pytorch:ddp":  # plain DDP has no hook at all
            self.model.register_comm_hook(state, hook)

    @property
    def starts_uncompressed(self) -> bool:
        """For POWERSGD_START steps."""
        return self.spec == "pytorch:powersgd"

    def _note_gradient(self, _parameter) -> None:
        self._last_gradient = time.perf_counter()

    def train_step(self) -> tuple[float, float, float]:
        """Seconds: forward and backward until the last gradient is there; waiting for the mean; the update."""
        images, labels = next(self.batches)
        self.optimizer.param_groups[0]["lr"] = learning_rate(self.step, self.steps)
        begin = time.perf_counter()
        self.optimizer.zero_grad()
        nn.functional.cross_entropy(self.model(images), labels).backward()
        exchanged = time.perf_counter()
        self.optimizer.step()
        end = time.perf_counter()
        self.step += 1
        return self._last_gradient - begin, exchanged - self._last_gradient, end - exchanged

    def accuracy(self) -> float:
        return self.data.accuracy(self.model.module)

    def counters(self) -> dict:
        """Laconic's own, since the model was made; empty for PyTorch's exchanges."""
        if self.handle is None:
            return {}
        stats = self.handle.stats()
        keys = ("wire_bytes", "encode_seconds", "wire_seconds", "decode_seconds", "rounds", "overflow_repeats")
        return {key: stats.get(key, 0) for key in keys}

    def canonical(self) -> str:
        return self.spec if self.handle is None else self.handle.spec

    def strategy(self) -> str:
        return "" if self.handle is None else self.handle.explain()["strategy"]

    def close(self) -> None:
        if self.handle is not None:
            self.handle.close()
