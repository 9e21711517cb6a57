# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The compressors of GRACE as it defines them (Xu et al., ICDCS 2021), in PyTorch operations: what a user runs without Laconic.

Written from the definitions, without the defects that docs/guide/methods.md lists: ratios, buckets and the rank are those of Laconic's
defaults. Each takes the gradient, flat float32, and gives what would travel; nothing is packed, as there. What else a step of GRACE does,
its memory and the decoding of every rank's payload, is left out on both sides.
"""

from __future__ import annotations

import math

import torch


def topk(g, ratio=0.01):
    _, indices = torch.topk(g.abs(), max(1, int(g.numel() * ratio)), sorted=False)
    return g[indices], indices


def randomk(g, ratio=0.01):
    indices = torch.randperm(g.numel())[:max(1, int(g.numel() * ratio))]
    return g[indices], indices


def threshold(g, v=0.0046):
    indices, = torch.where(g.abs() > v)
    return g[indices], indices


def dgc(g, ratio=0.001, sample=0.01):
    n = g.numel()
    drawn = g[torch.randint(0, n, (max(1, int(n * sample)),))].abs()
    bound = torch.topk(drawn, max(1, int(drawn.numel() * ratio))).values.min()
    magnitudes = g.abs()
    for _ in range(10):
        mask = magnitudes >= bound
        selected = int(mask.sum())
        if selected > 1.3 * n * ratio:
            bound = 1.3 * bound
        elif selected < 0.7 * n * ratio:
            bound = 0.7 * bound
        else:
            break
    indices, = torch.where(mask)
    return g[indices], indices


def adaq(g, ratio=0.01, sample=0.01):
    sent = []
    for side in (g >= 0, g < 0):
        found, = torch.where(side)
        values = g[found].abs()
        m = values.numel()
        if m == 0:
            continue
        drawn = values[torch.randint(0, m, (max(1, math.ceil(m * sample)),))]
        bound = torch.topk(drawn, max(1, math.ceil(drawn.numel() * ratio))).values.min()
        wanted = math.ceil(m * ratio)
        for _ in range(20):
            mask = values > bound
            selected = int(mask.sum())
            if selected > 1.25 * wanted:
                bound = 1.25 * bound
            elif selected < 0.8 * wanted:
                bound = 0.9 * bound
            else:
                break
        sent += [g[found[mask]].mean(), found[mask]]
    return sent


def onebit(g):
    low = g < 0
    below, count = g[low], int(low.sum())
    above = g[~low]
    return low.to(torch.uint8), below.sum() / max(1, count), above.sum() / max(1, above.numel())


def signsgd(g):
    return (g >= 0).to(torch.uint8)


class Signum:
    def __init__(self, beta=0.9):
        self.beta, self.mean = beta, None

    def __call__(self, g):
        self.mean = g.clone() if self.mean is None else (1 - self.beta) * g + self.beta * self.mean
        return (self.mean >= 0).to(torch.uint8)


def efsignsgd(g):
    return (g >= 0).to(torch.uint8), g.abs().mean()


def qsgd(g, levels=127, bucket=512):
    rows = g.view(-1, bucket)
    norm = rows.norm(dim=1, keepdim=True)
    level = levels / norm * rows.abs()
    lower = level.floor()
    up = (torch.empty_like(level).uniform_() < level - lower).to(torch.float32)
    return (rows.sign() * (lower + up)).clamp_(-levels, levels).to(torch.int8), norm


def terngrad(g, clip=2.5):
    bound = clip * (g - g.mean()).square().mean().sqrt()
    clipped = g.clamp(-float(bound), float(bound))
    magnitudes = clipped.abs()
    scale = magnitudes.max()
    sign = clipped.sign() * scale
    sign[torch.empty_like(sign).uniform_(0, float(scale)) >= magnitudes] = 0
    return sign.sign().to(torch.int8), scale


def natural(g):
    bits = g.view(torch.int32)
    sign, exponent, mantissa = bits & -(1 << 31), bits & 0x7F800000, bits & 0x7FFFFF
    up = mantissa > torch.randint(0, 0x7FFFFF, g.shape, dtype=torch.int32)
    exponent = torch.where(up, exponent + 0x800000, exponent).clamp(0x09000000, 0x48800000)
    return (((exponent - 0x09000000) >> 23) | ((sign >> 24) & 0x80)).to(torch.uint8)


def _tree() -> torch.Tensor:
    values = [1.5e-6]
    for e in range(-6, 0):
        cells = 2 ** (e + 6)
        for low, high in ((10.0**e, 4.5 * 10.0**e), (4.5 * 10.0**e, 10.0 ** (e + 1))):
            values += [low + (i + 0.5) * (high - low) / cells for i in range(cells)]
    return torch.tensor([*values, (values[-1] + 1) / 2])


TREE = _tree()


def u8(g):
    scale = g.abs().max()
    return (torch.bucketize(g.abs() / scale, TREE) * g.sign()).to(torch.int8), scale


def inceptionn(g, bound=10):
    magnitudes = g.abs()
    full = magnitudes >= 1
    middle = (magnitudes >= 2.0 ** -(bound // 2)) & ~full
    small = (magnitudes >= 2.0**-bound) & ~middle & ~full
    tags = (3 * full + 2 * middle + small).to(torch.uint8)
    half = (magnitudes[middle] * 2**14).to(torch.int16)
    byte = (magnitudes[small] * 2 ** (7 + bound // 2)).to(torch.uint8)
    packed = tags.view(4, -1)
    return g[full], half, byte, packed[0] + 4 * packed[1] + 16 * packed[2] + 64 * packed[3]


def sketchml(g, quantiles=64):
    ordered = g.sort().values
    at = torch.linspace(0, g.numel() - 1, quantiles + 1).long()
    edges = ordered[at]
    codes = torch.bucketize(g, edges[1:-1])
    sums = torch.zeros(quantiles).scatter_add_(0, codes, g)
    return codes.to(torch.uint8), sums / torch.bincount(codes, minlength=quantiles).clamp_(min=1)


def _orthogonal(matrix):
    for i in range(matrix.shape[1]):
        column = matrix[:, i:i + 1]
        column /= column.norm() + 1e-8
        rest = matrix[:, i + 1:]
        rest -= column @ (column.T @ rest)
    return matrix


class PowerSgd:
    def __init__(self, rank=4):
        self.rank, self.q = rank, None

    def __call__(self, g):
        matrix = g.view(-1, 2 ** (int(math.log2(g.numel())) // 2))
        if self.q is None:
            self.q = torch.randn(matrix.shape[1], self.rank)
        p = _orthogonal(matrix @ _orthogonal(self.q))
        self.q = matrix.T @ p
        return p, self.q


#: Laconic's spec for the same purpose, without feedback: encoding alone is compared
METHODS = (("topk+noef", topk), ("randomk+noef", randomk), ("threshold:v=0.0046+noef", threshold), ("dgc+noef", dgc), ("adaq+noef", adaq),
           ("onebit+noef", onebit), ("signsgd", signsgd), ("signum", Signum()), ("efsignsgd+noef", efsignsgd), ("qsgd", qsgd),
           ("terngrad", terngrad), ("natural", natural), ("u8", u8), ("inceptionn", inceptionn), ("sketchml", sketchml),
           ("powersgd+noef", PowerSgd()))
