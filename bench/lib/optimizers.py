# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The optimizer of a model with an exchange: momentum is kept once, by the codec or by the optimizer."""

from __future__ import annotations

import laconic
from bench.lib.labels import BASELINES


def accumulates(spec: str) -> bool:
    """Whether the codec keeps momentum or a running mean of gradients."""
    spec = spec.partition("@")[0]
    return spec not in BASELINES and laconic.Codec(spec).memory in ("momentum", "ema")


def optimizer_for(kind, parameters, spec: str):
    """kind: a file of models/."""
    return kind.optimizer(parameters, momentum=False) if accumulates(spec) else kind.optimizer(parameters)
