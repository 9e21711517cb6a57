# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""A step with several ranks: pushes, the owners' turn, the pull. And with one rank, which has nothing to exchange."""

from __future__ import annotations

import json
import logging
import math

import torch

from ..core import environment, errors
from ..core.errors import LaconicError
from . import settings
from .exchange import Exchange
from .inner import Inner
from .pushes import Pushes, cut
from .trained import Trained


def scale_of(scaler) -> float:
    return 1.0 if scaler is None else float(scaler.get_scale())


def factor_of(scale: float, norm: float, clip_norm: float | None) -> float:
    """The factor of the mean of scaled gradients: torch.nn.utils.clip_grad_norm_ after the scaler. `norm`: of the scaled mean."""
    factor = 1.0 / scale
    if clip_norm is not None:
        factor *= min(clip_norm / (norm * factor + 1e-6), 1.0)
    return factor


class Spread:
    """A step with several ranks. `step_number`, the same on all ranks, selects random streams, and steps with a full pull."""

    def __init__(self, trained: Trained, exchange: Exchange, inner: Inner, *, part: int, clip_norm, full_pull_every: int, scaler):
        self.trained, self.exchange, self.inner = trained, exchange, inner
        self._clip_norm, self._full_pull_every, self._scaler = clip_norm, full_pull_every, scaler
        counts = [p.numel() for p in trained.parameters]
        self._buckets = cut(counts, part)
        self.pushes = Pushes(trained.parameters, trained.names, self._buckets, self._push)
        self._scale: float | None = None  # of this step's gradients, once one was pushed
        self._begun = False  # masters have the values that training begins with
        self._warned = False  # that parameters were changed elsewhere
        self.step_number = self.skipped = self.failures = 0
        self.norm = 0.0  # of the last mean gradient, with clip_norm
        exchange.set_replicas(begins=True)

    def _push(self, number: int, failure: LaconicError | None) -> None:
        if self._scale is None:
            self._scale = scale_of(self._scaler)
        self.exchange.push(self._buckets[number], number, self.step_number, self._scale, failure)

    # ---- a step ---------------------------------------------------------------------------------------------------------------------

    def step(self, groups: list[dict]) -> bool:
        """False: skipped. LaconicError: the same on every rank."""
        self.exchange.check_open()
        if self.exchange.broken is not None:
            raise self.exchange.broken
        try:
            moved = self._step(groups)
        except LaconicError:
            self.failures += 1
            raise
        finally:
            self.pushes.end_step()
            self._scale = None
            self.step_number += 1
        self.skipped += not moved
        return moved

    def _step(self, groups: list[dict]) -> bool:
        pushes = self.pushes
        if not pushes.any:
            pushes.failure = errors.error("exchange_order", "step() was called without a backward() before it",
                                          "call loss.backward() first, on every rank")
        pushes.rest()
        failure = pushes.failure or self._ready()
        said = settings.text(settings.of_groups(groups))
        turn = self.exchange.turn(settings.digest(said), self._clip_norm is not None)
        cause = None
        if turn.differs:
            failure = cause = self._differing(said)
        elif turn.failure is None and failure is None and not turn.skips:
            try:
                self.norm = turn.norm / self._scale
                factor = factor_of(self._scale, turn.norm, self._clip_norm)
                self.inner.follow(groups)
                self.inner.step_masters(turn.means, factor)
            except Exception as error:  # noqa: BLE001  every rank gets it
                cause = error
                failure = errors.error("internal", f"the optimizer's step failed: {type(error).__name__}: {error}", "see this rank's traceback")
        try:
            moved = self.exchange.pull(failure)
        except LaconicError as error:
            if turn.differs and self.exchange.broken is None:
                raise cause from None
            raise error from (cause or error.__cause__)
        if moved:
            self._pulled(factor)
        return moved

    def _ready(self) -> LaconicError | None:
        """Masters have begun, and parameters are where pulls write; or why not."""
        try:
            if not 0 < self._scale < math.inf:
                raise errors.error("non_finite", f"the loss scale is {self._scale}", "create another GradScaler")
            moved = self.trained.moved()
            if not self._begun:
                self.take_parameters()
            elif moved:
                self.inner.follow_parameters()
                self.exchange.set_replicas(begins=False)
            else:
                self._warn()
        except LaconicError as error:
            if error is self.exchange.broken:
                raise
            return error
        return None

    def take_parameters(self) -> None:
        """Masters take the values that the parameters have now."""
        self.trained.read()
        self.inner.begin()
        self.exchange.set_replicas(begins=True)
        self._begun = True

    def masters_loaded(self) -> None:
        """Masters have a saved run's values."""
        self.exchange.set_replicas(begins=False)
        self._begun = True

    def _warn(self) -> None:
        if self._warned:
            return
        small = {self.trained.names[i] for i in self.inner.small}
        changed = [name for name in self.trained.changed_elsewhere() if name not in small]
        if changed:
            self._warned = True
            environment.say(f"rank {self.exchange.rank}: {changed[0]} was changed outside its optimizer, whose master copies keep "
                            "their values: the next steps will undo the change", logging.WARNING)

    def _differing(self, said: str) -> LaconicError:
        try:
            self.exchange.compare(said)
        except LaconicError as error:
            return error
        return errors.error("ranks_disagree", "ranks have different hyperparameters", "give every rank the same schedule")

    def _pulled(self, factor: float) -> None:
        means = {i: place for bucket in self._buckets for i, place in zip(bucket.parameters, bucket.places) if i in self.inner.small}
        self.inner.step_small(means, factor)
        if self._full_pull_every and (self.step_number + 1) % self._full_pull_every == 0:
            self.full_pull()
        self.trained.written()

    def full_pull(self) -> None:
        """The host's values take those of the masters. Every rank makes the call."""
        masters = self.exchange.masters()
        said = json.dumps([[i, offset, master.numel()] for (i, offset), master in masters.items()])
        flat = torch.cat([*masters.values(), torch.empty(0, dtype=torch.float32, device="cpu")])
        for ranges, values in self.exchange.share(said, flat):
            at = 0
            for i, offset, count in json.loads(ranges):
                self.trained.host[i].view(-1)[offset : offset + count].copy_(values[at : at + count])
                at += count

    # ---- what users ask ----------------------------------------------------------------------------------------------------------------

    def stats(self) -> dict:
        own = {"step": self.step_number, "skipped_steps": self.skipped, "failed_steps": self.failures}
        return {**self.exchange.stats(), **own, **({} if self._clip_norm is None else {"grad_norm": self.norm})}

    def explain(self) -> dict:
        trained = self.trained
        masters = self.exchange.masters()
        copies = sum(p.numel() * p.element_size() for p, here in zip(trained.parameters, trained.in_place) if not here)
        return {**self.exchange.explain(), "owned_elements": sum(m.numel() for m in masters.values()),
                "small_parameters": [trained.names[i] for i in sorted(self.inner.small)], "device": str(trained.device),
                "host_copy_bytes": copies, "buckets": len(self._buckets)}

    def flush(self, steps: int) -> int:
        left = self.exchange.between_steps(lambda session, _: session.flush(steps))
        return self.step_number + left - 1 if left else self.step_number + steps

    def close(self) -> None:
        self.pushes.close()
        self.exchange.close()


class Alone:
    """A step with one rank: the user's optimizer on the model's own parameters."""

    def __init__(self, trained: Trained, optimizer: torch.optim.Optimizer, *, clip_norm, scaler):
        self.trained, self.optimizer = trained, optimizer
        self._clip_norm, self._scaler = clip_norm, scaler
        self.step_number = self.skipped = 0
        self.norm = 0.0

    def step(self, groups: list[dict]) -> bool:
        gradients = [p.grad for p in self.trained.parameters if p.grad is not None]
        if not gradients:
            raise errors.error("exchange_order", "step() was called without a backward() before it", "call loss.backward() first, on every rank")
        self.step_number += 1
        norm = float(torch.nn.utils.get_total_norm(gradients)) if hasattr(torch.nn.utils, "get_total_norm") else \
            float(torch.stack([g.float().norm() for g in gradients]).norm())
        if not math.isfinite(norm):
            self.skipped += 1
            return False
        scale = scale_of(self._scaler)
        self.norm = norm / scale
        factor = factor_of(scale, norm, self._clip_norm)
        if factor != 1.0:
            for gradient in gradients:
                gradient.mul_(factor)
        for own, group in zip(self.optimizer.param_groups, groups):
            own.update({key: value for key, value in group.items() if key != "params"})
        self.optimizer.step()
        return True

    def stats(self) -> dict:
        own = {"step": self.step_number, "skipped_steps": self.skipped, "failed_steps": 0, "dense_bytes": 0, "wire_bytes": 0}
        return {**own, **({} if self._clip_norm is None else {"grad_norm": self.norm})}

    def explain(self) -> dict:
        return {"strategy": "none", "reason": ALONE, "device": str(self.trained.device)}

    def flush(self, steps: int) -> int:
        return self.step_number

    def close(self) -> None:
        """Holds nothing."""


ALONE = "one rank has nothing to exchange: torch's optimizer is used"
