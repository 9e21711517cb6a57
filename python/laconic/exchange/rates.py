# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Loss scales and learning rates, which residuals follow: attach(scaler=), handle.follow(optimizer); momentum of an optimizer and of a codec."""

from __future__ import annotations

import math

from ..codec.codec import Codec
from ..core import errors

DIVIDING = {"Adam", "AdamW", "NAdam", "RAdam", "Adamax", "RMSprop", "Adagrad", "Adadelta"}  #: optimizers, by the root of squares or the like
MEMORIES = {"momentum": "keeps momentum", "ema": "keeps a running mean"}  #: of codecs: what accumulates gradients


class Units:
    """The scale of a step's gradients, and the learning rate of every parameter with a followed optimizer."""

    def __init__(self, parameters, scaler, stage):
        """parameters: (name, tensor) of what is exchanged."""
        self._names = {id(p): name for name, p in parameters}
        self._scaler, self._stage = scaler, stage
        self.scale = 1.0
        self.rates: dict[str, float] | None = None  #: by name; None where nothing is followed
        self._followed: list = []  # (optimizer, for each of its groups: how many parameters, names of those exchanged)

    def follow(self, optimizer) -> None:
        groups = getattr(optimizer, "param_groups", None)
        if not isinstance(groups, list) or not groups or not all(isinstance(g, dict) and "lr" in g and "params" in g for g in groups):
            raise errors.error("invalid_argument", f"{type(optimizer).__name__} has no param_groups with a learning rate",
                               "pass the torch optimizer that uses this model's gradients")
        if any(optimizer is other for other, _ in self._followed):
            return
        listed = self._listed(optimizer)
        if not any(names for _, names in listed):
            raise errors.error("invalid_argument", f"{type(optimizer).__name__} has none of the exchanged parameters",
                               "pass the torch optimizer that uses this model's gradients")
        self._followed.append((optimizer, listed))

    def second_leg(self, explained: dict) -> str | None:
        """The cost of encoding means a second time, if a followed optimizer normalizes gradients."""
        dividing = [kind for optimizer, _ in self._followed for kind in type(optimizer).__mro__ if kind.__name__ in DIVIDING]
        if not dividing or explained["strategy"] != "two_shot" or not explained["feedback"]:
            return None
        return (f"{dividing[0].__name__} normalizes gradients, and means are encoded a second time: strategy='gather_all' loses "
                f"about half as much, for {explained['world'] / 2:g} times the bytes; laconic.ShardedOptimizer encodes updates instead of gradients")

    def momentum_twice(self, optimizer, explained: dict) -> str | None:
        """See momentum_twice, of gradients."""
        return momentum_twice(type(optimizer).__name__, optimizer.param_groups, self._names, explained)

    def _listed(self, optimizer) -> list:
        return [(len(g["params"]), [self._names[id(p)] for p in g["params"] if id(p) in self._names]) for g in optimizer.param_groups]

    def begin_step(self) -> None:
        if self._scaler is not None and self._scaler.is_enabled():
            self.scale = self._stage.scale_of(self._scaler)
        self.rates = self._now() if self._followed else None

    def _now(self) -> dict[str, float]:
        rates = {}
        for i, (optimizer, listed) in enumerate(self._followed):
            groups = optimizer.param_groups
            if [len(g["params"]) for g in groups] != [count for count, _ in listed]:  # a group was added
                listed = self._listed(optimizer)
                self._followed[i] = optimizer, listed
            for group, (_, names) in zip(groups, listed):
                rates.update(dict.fromkeys(names, float(group["lr"])))
        return rates


def momentum_twice(optimizer: str, groups: list[dict], names: dict[int, str], explained: dict, what: str = "gradients", mend: str = "train with plain SGD") -> str | None:
    """A warning if a parameter's codec accumulates what it encodes, and the optimizer that takes the mean of that does so again; None:
    nothing is wrong. names: of the parameters, by id; what: that both accumulate."""
    codecs = {p["name"]: p["codec"] for p in explained["parameters"]}
    for group in groups:
        for spec in dict.fromkeys(codecs.get(names.get(id(p))) for p in group["params"] if own_momentum(group)):
            if spec is not None and (kept := MEMORIES.get(Codec(spec).memory)):
                return f"{spec} {kept}, and {optimizer} has {own_momentum(group)}: {what} are accumulated twice; {mend}, or with a spec that keeps neither"
    return None


def own_momentum(group: dict) -> str | None:
    """The setting by which an optimizer with this group of parameters accumulates gradients."""
    momentum, betas = group.get("momentum"), group.get("betas")
    if isinstance(momentum, (int, float)) and momentum:
        return f"momentum={momentum:g}"
    return f"betas={tuple(betas)}" if isinstance(betas, (tuple, list)) and betas and betas[0] else None


def usable(rate: float) -> bool:
    """Residuals wait while a learning rate is 0, or no number."""
    return rate > 0 and math.isfinite(rate)


def changes(before: dict[str, float], now: dict[str, float]) -> dict[str, float]:
    """Parameter's name → old/new, where that is not 1; `before` becomes `now`, but for rates that residuals wait for."""
    factors = {}
    for name, rate in now.items():
        if usable(rate):
            old = before.get(name, rate)
            if old != rate:
                factors[name] = old / rate
            before[name] = rate
    return factors


def parameter_of(entry: str) -> str | None:
    """The parameter of a residual entry in a session's state; None for other entries: codec state, a momentum, a mean."""
    kind, _, name = entry.partition("/")
    if kind == "residual":
        return name
    return name.rpartition("@")[0] if kind == "owner_residual" else None
