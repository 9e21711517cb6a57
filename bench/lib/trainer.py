# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""A model with one of several gradient exchanges.

Everything but the exchange is equal for all: seeds, batches, optimizer, schedule, one bucket. (PyTorch's PowerSGD hook needs
one bucket: with more it waits for a collective inside a callback, and hangs on Gloo.)
"""

from __future__ import annotations

import math
import time

import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import laconic
from bench.lib import servers, zeros
from bench.lib.labels import BASELINES
from bench.lib.optimizers import optimizer_for

BUCKET_MB = 25  # above any model's size, and given explicitly: one bucket
POWERSGD_START, POWERSGD_RANK = 2, 4


def schedule(step: int, steps: int) -> float:
    """Factor of the learning rate: a cosine from 1 to 0."""
    return 0.5 * (1.0 + math.cos(math.pi * min(step / steps, 1.0)))


def ring_bytes(count: int, world: int) -> int:
    """Bytes that each rank of a ring all-reduce sends."""
    return 2 * count * (world - 1) // world


def baseline_bytes(spec: str, parameters, world: int) -> int:
    """Payload that a rank sends per step with one of PyTorch's own exchanges, counted as a ring."""
    shapes = [tuple(p.shape) for p in parameters if p.requires_grad]
    elements = sum(map(math.prod, shapes))
    if spec == "pytorch:ddp":
        return ring_bytes(4 * elements, world)
    if spec == "pytorch:fp16":
        return ring_bytes(2 * elements, world)
    floats = 0
    for shape in shapes:
        elements, rows = math.prod(shape), shape[0]
        low_rank = (rows + elements // rows) * min(POWERSGD_RANK, rows, elements // rows)
        # A vector is sent unchanged, as are matrices that the hook's min_compression_rate of 2 excludes.
        floats += low_rank if len(shape) > 1 and 2 * low_rank < elements else elements
    return ring_bytes(4 * floats, world)


def _slowed(hook, payload, rate: float):
    """A hook that first waits as long as payload() bytes would take: for emulated links, where nothing is shaped."""

    def wait_then_exchange(state, bucket):
        time.sleep(8.0 * payload() / rate)
        return hook(state, bucket)

    return wait_then_exchange


def first_parameters(module) -> list:
    """Its own, and those of the first module in it that has any: backward ends with one of them."""
    own = list(module.parameters(recurse=False))
    return own + next((found for child in module.children() if (found := first_parameters(child))), [])


class Trainer:
    """One model with one gradient exchange. kind: a file of models/; data: what its data() gave."""

    def __init__(self, kind, spec: str, seed: int, data, steps: int, rank: int, world: int, emulated_rate: float = 0):
        self.kind, self.spec, self.data, self.steps, self.step = kind, spec, data, steps, 0
        torch.manual_seed(seed)
        self.module = self._built()
        self.optimizer = optimizer_for(kind, self.module.parameters(), "none" if spec == zeros.SPEC else spec)
        self.model = self._wrapped()
        self.handle = None
        self.zeros = zeros.Zeros() if spec == zeros.SPEC else None
        self.batches = data.batches(kind.BATCH, seed, rank, world)
        self._last_gradient = 0.0
        # Backward ends with the first layer. Runs before DDP's own hook on the same parameter.
        for p in first_parameters(self.module):
            p.register_post_accumulate_grad_hook(self._note_gradient)
        self._exchange(spec, seed, world, emulated_rate)

    def _built(self) -> torch.nn.Module:
        return self.kind.build(self.data)

    def _wrapped(self) -> torch.nn.Module:
        """The module that is called in place of the model."""
        return DistributedDataParallel(self.module, bucket_cap_mb=BUCKET_MB)

    def _exchange(self, spec: str, seed: int, world: int, emulated_rate: float) -> None:
        if spec not in (*BASELINES, zeros.SPEC):
            spec, servers_options = servers.attach_options(spec, world)
            self.handle = laconic.attach(self.model, spec, seed=seed, quiet=True, **servers_options)
            return
        state, hook = self._hook(spec, seed)
        if emulated_rate:
            self.model.register_comm_hook(state, _slowed(hook, lambda: self._payload(world), emulated_rate))
        elif spec != "pytorch:ddp":  # plain DDP has no hook at all
            self.model.register_comm_hook(state, hook)

    def _hook(self, spec: str, seed: int) -> tuple:
        """(state, hook)"""
        if spec == "pytorch:powersgd":
            state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=POWERSGD_RANK, start_powerSGD_iter=POWERSGD_START,
                                                random_seed=seed)
            return state, powerSGD_hook.powerSGD_hook
        return {"pytorch:ddp": (None, default_hooks.allreduce_hook), "pytorch:fp16": (None, default_hooks.fp16_compress_hook),
                zeros.SPEC: (self.zeros, zeros.send_zeros)}[spec]

    def _payload(self, world: int) -> int:
        return self.zeros.payload if self.zeros else self.baseline_bytes(world)

    @property
    def starts_uncompressed(self) -> bool:
        """For POWERSGD_START steps."""
        return self.spec == "pytorch:powersgd"

    def _note_gradient(self, _parameter) -> None:
        self._last_gradient = time.perf_counter()

    def train_step(self) -> tuple[float, float, float]:
        """Seconds: forward and backward until the last gradient is there; waiting for the mean; the update."""
        batch = next(self.batches)
        self.optimizer.param_groups[0]["lr"] = self.kind.LEARNING_RATE * schedule(self.step, self.steps)
        begin = time.perf_counter()
        self.optimizer.zero_grad()
        self.data.loss(self.model, batch).backward()
        exchanged = time.perf_counter()
        self.optimizer.step()
        end = time.perf_counter()
        self.step += 1
        return self._last_gradient - begin, exchanged - self._last_gradient, end - exchanged

    def quality(self) -> float:
        """On the test samples, in evaluation mode."""
        self.module.eval()
        with torch.no_grad():
            value = self.data.evaluate(self.module)
        self.module.train()
        return value

    def baseline_bytes(self, world: int) -> int:
        return baseline_bytes(self.spec, self.model.parameters(), world)

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
