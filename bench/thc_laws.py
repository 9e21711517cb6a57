# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The range of thc by several laws: a simulation in torch of what docs/format/codecs/thc.md says, with error feedback, in which the
law can be chosen. Blocks of 1024, the table of 4 bits in lanes of 8; random numbers are torch's."""

from __future__ import annotations

import math
import time
from functools import cache
from statistics import NormalDist

import torch

from programs import ROOT  # noqa: F401  examples/demo, too

from trainer import schedule

BITS, SHARE, BLOCK, SMALL, FLOOR = 4, 1 / 32, 1024, 4096, 2.0**-10
#: name → of the norms of the last exchange, and times what; exact: this exchange's largest
LAWS = {"exact": None, "1.25 rms": ("rms", 1.25), "1.0 max": ("max", 1.0), "1.1 max": ("max", 1.1), "1.25 max": ("max", 1.25),
        "1.5 max": ("max", 1.5)}
NORMAL = NormalDist()
BOUND = NORMAL.inv_cdf(1 - SHARE / 2)
#: steps between those at which errors are taken
NOTED = 10


# ---- the table ----


def step_cost(left: float, right: float) -> float:
    """∫ (a − left)(right − a) φ(a) da"""
    mass, slope = NORMAL.cdf(right) - NORMAL.cdf(left), NORMAL.pdf(left) - NORMAL.pdf(right)
    return -(mass + left * NORMAL.pdf(left) - right * NORMAL.pdf(right)) + (left + right) * slope - left * right * mass


@cache
def best_table(top: int, bits: int = BITS, bound: float = BOUND) -> tuple[float, tuple[int, ...]]:
    """(cost, table) of the symmetric table that ends at `top`, by dynamic programming over its lower half."""
    at = [-bound + 2 * bound * i / top for i in range(top + 1)]
    half = {0: (0.0, (0,))}
    for _ in range(2 ** (bits - 1) - 1):
        found: dict = {}
        for i, (cost, chosen) in half.items():
            for j in range(i + 1, (top + 1) // 2):
                candidate = (cost + step_cost(at[i], at[j]), (*chosen, j))
                found[j] = min(found.get(j, candidate), candidate)
        half = found
    tables = [(2 * cost + step_cost(at[j], at[top - j]), (*chosen, *(top - k for k in reversed(chosen))))
              for j, (cost, chosen) in half.items()]
    return min(tables, default=(math.inf, ()))


def table_of(world: int) -> tuple[int, ...]:
    """The cheapest whose sums fit 8 bits."""
    return min((best_table(top) for top in range(2**BITS - 1, min(63, 255 // world) + 1)), key=lambda found: found[0])[1]


class Quantizer:
    def __init__(self, world: int):
        table = table_of(world)
        self.top = table[-1]
        below = [max(i for i, value in enumerate(table) if value <= place) for place in range(self.top)]
        self.lower = torch.tensor([float(table[i]) for i in below])
        self.gap = torch.tensor([float(table[i + 1] - table[i]) for i in below])

    def places(self, y, half):
        """In [0, top], with the table's value below and the gap to the next; `half`: of the range, by block."""
        place = ((y / half).clamp(-1, 1) + 1) * (self.top / 2)
        cell = place.long().clamp_(max=self.top - 1)
        return place, self.lower[cell], self.gap[cell]

    def rounded(self, y, half, chance):
        """At random, without bias; as values."""
        place, lower, gap = self.places(y, half)
        up = torch.rand(y.shape, generator=chance) * gap < place - lower
        return ((lower + gap * up) * (2 / self.top) - 1) * half

    def error(self, y, half) -> float:
        """Of the mean over the first axis: what is expected of its square."""
        place, lower, gap = self.places(y, half)
        variance = ((place - lower) * (lower + gap - place) * (2 * half / self.top).square()).sum()
        lost = (y - torch.minimum(torch.maximum(y, -half), half)).mean(0)
        return (lost.square().sum() + variance / len(y) ** 2).item()


# ---- rotation and range ----


@cache
def hadamard() -> torch.Tensor:
    h = torch.ones(1, 1)
    while len(h) ** 2 < BLOCK:
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)])
    return h


def transformed(x):
    """Orthonormal, its own inverse: of 1024 that of 32 by 32."""
    side = len(hadamard())
    return (hadamard() @ x.reshape(*x.shape[:-1], side, side) @ hadamard()).reshape(x.shape) / math.sqrt(BLOCK)


def sent(norms):
    """As 16 bits, the upper half of a float32 rounded up."""
    return ((norms.contiguous().view(torch.int32) + 0xFFFF) & ~0xFFFF).view(torch.float32)


class Range:
    def __init__(self, law: str, unit):
        """unit: the parameter of each block"""
        self.law, self.unit, self.last = LAWS[law], unit, None

    def of(self, norms):
        """Half of each block's range; norms: a row for each worker."""
        if self.law is None or self.last is None:
            largest = norms.amax(0)
        else:
            kind, factor = self.law
            largest = factor * (self.last.amax(0) if kind == "max" else self.last.square().mean(0).sqrt())
            units = torch.zeros(int(self.unit.max()) + 1).scatter_reduce(0, self.unit, self.last.amax(0), "amax")
            largest = torch.maximum(largest, FLOOR * units[self.unit])
        self.last = sent(norms)
        return half_of(largest)


def half_of(largest):
    return (BOUND / math.sqrt(BLOCK) * largest).clamp(min=1e-30).unsqueeze(-1)


# ---- a training ----


class Simulation:
    """`exchange` makes means of flat gradients of compressed parameters, a row for each worker."""

    def __init__(self, law: str, counts: list[int], world: int, seed: int):
        blocks = [-(-count // BLOCK) for count in counts]
        self.counts, self.blocks = counts, blocks
        unit = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(blocks))
        self.law, self.ranges = law, {each: Range(each, unit) for each in LAWS}
        self.quantizer, self.chance = Quantizer(world), torch.Generator().manual_seed(seed)
        self.own = self._padded(torch.ones(1, sum(counts)))[0]  # 0: padding
        self.residual = torch.zeros(world, sum(blocks), BLOCK)
        self.found: list[dict] = []

    def _padded(self, rows):
        parts = [torch.nn.functional.pad(part, (0, blocks * BLOCK - count))
                 for part, count, blocks in zip(rows.split(self.counts, 1), self.counts, self.blocks)]
        return torch.cat(parts, 1).view(len(rows), -1, BLOCK)

    def exchange(self, rows, noted: bool):
        x = self._padded(rows) + self.residual
        signs = 1.0 - 2.0 * torch.randint(2, x.shape[1:], generator=self.chance)
        y, norms = transformed(x * signs), x.norm(dim=-1)
        halves = {law: each.of(norms) for law, each in self.ranges.items()}
        if noted:
            exact = self.quantizer.error(y, halves["exact"])
            self.found.append({law: [self.quantizer.error(y, half) / exact, (y.abs() > half).float().mean().item()]
                               for law, half in halves.items()})
        own = self.quantizer.rounded(y, halves[self.law], self.chance)
        self.residual = transformed(y - own) * signs * self.own
        mean = (transformed(own.mean(0)) * signs).view(-1)
        return torch.cat([part[:count] for part, count in zip(mean.split([n * BLOCK for n in self.blocks]), self.counts)])


def train(law: str, kind, data, cell, every: int) -> dict:
    """noted: by step and law, what the error is expected to be over that of `exact`, all for the same gradients and residuals, and the
    share that is clamped."""
    begun = time.monotonic()
    torch.manual_seed(cell.seed)
    model = kind.build(data)
    parameters, optimizer = list(model.parameters()), kind.optimizer(model.parameters())
    large = [p for p in parameters if p.numel() > SMALL]
    simulation = Simulation(law, [p.numel() for p in large], cell.world, cell.seed)
    batches = [data.batches(cell.batch, cell.seed, rank, cell.world) for rank in range(cell.world)]
    curve = []
    for step in range(cell.steps):
        optimizer.param_groups[0]["lr"] = kind.LEARNING_RATE * schedule(step, cell.steps)
        gradients = []
        for mine in batches:
            optimizer.zero_grad()
            data.loss(model, next(mine)).backward()
            gradients.append([p.grad for p in parameters])
        means = [torch.stack(each).mean(0) for each in zip(*gradients)]
        rows = torch.stack([torch.cat([g.flatten() for g, p in zip(each, parameters) if p.numel() > SMALL]) for each in gradients])
        compressed = iter(simulation.exchange(rows, step % NOTED == NOTED - 1).split(simulation.counts))
        for p, mean in zip(parameters, means):
            p.grad = next(compressed).view_as(p) if p.numel() > SMALL else mean
        optimizer.step()
        if step % every == every - 1:
            model.eval()
            with torch.no_grad():
                curve.append([step + 1, data.evaluate(model)])
            model.train()
    return {"curve": curve, "noted": simulation.found, "seconds": time.monotonic() - begun}
