# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""`laconic.ShardedOptimizer`: a torch optimizer between push and pull."""

from __future__ import annotations

import contextlib
import logging
import math

import torch
import torch.distributed as dist

from ..core import environment, errors
from ..core._checks import U64, whole
from ..core.environment import DISABLED
from ..core.errors import LaconicError
from ..engines.group import meet, speaks_for_node
from ..engines.nodes import refuse, report_unused
from ..engines.hosts import beyond_ring, over_port
from ..exchange.csession import PART, WINDOW
from ..exchange.names import of_rules
from ..exchange.rates import momentum_twice
from ..exchange.rules import given
from . import saved, settings
from .exchange import Exchange
from .inner import Inner
from .spread import ALONE, Alone, Spread
from .trained import Trained, check_model, check_optimizer, groups_of


class ShardedOptimizer(torch.optim.Optimizer):
    """Trains a model like 3LC's parameter server, sharded over the ranks (Lim et al., MLSys 2019, section 3).

        optimizer = laconic.ShardedOptimizer(model, torch.optim.AdamW, push="3lc", pull="3lc", lr=3e-4)
        for batch in loader:
            optimizer.zero_grad()
            loss(model(batch)).backward()          # pushes gradients to the owners of their ranges
            optimizer.step()                       # owners step; every rank pulls the update

    Use it without DistributedDataParallel. Each rank owns 1/n of every parameter with more than `small_elements` elements: float32 master
    copies and their optimizer state. A pull sends master - parameter, encoded once for all ranks; what one pull leaves out, the next one
    carries. Smaller parameters are averaged uncompressed, and every rank steps them. With one rank it is the plain optimizer.

    Parameters are bit-identical on all ranks. `p.grad` is this rank's own gradient: clip with `clip_norm`, not by hand. If a gradient of
    some rank is not finite, all ranks skip the step; `stats()["skipped_steps"]` counts these.
    """

    _step_supports_amp_scaling = True  # torch.amp.GradScaler.step calls ours in any case

    def __init__(self, model: torch.nn.Module, optimizer: type, push: str = "3lc", pull: str = "3lc", *, groups=None, group=None,
                 small_elements: int = 4096, window: int = WINDOW, part: int = PART, threads: int | str = "auto", seed: int = 0, rules=None,
                 clip_norm: float | None = None, full_pull_every: int = 0, scaler=None, sync_parameters: bool = True, elementwise: bool = False,
                 nodes: str | int | None = None, **optimizer_kwargs):
        """Collective: every rank of the group creates it with the same arguments.

        Args:
            model: the module, not wrapped, with float32 or bfloat16 parameters. Frozen parameters are ignored.
            optimizer: an elementwise class of torch.optim: SGD, Adam, AdamW, NAdam, RAdam, Adamax, RMSprop, Adagrad, Adadelta, ASGD.
            push: spec of the gradients sent to owners (`laconic list`). "none": uncompressed.
            pull: spec of the updates that owners send. "none": uncompressed.
            groups: torch's parameter groups. Default: one group with all parameters.
            group: the process group. Default: the group of all ranks.
            small_elements: parameters of at most this many elements are averaged uncompressed and stepped by every rank.
            window: exchanges in flight at a time, 1 to 8.
            part: maximum bytes of float32 per pushed bucket; a larger parameter has its own bucket. 0: one bucket.
            threads: threads for encoding and decoding on this rank; "auto": 1, with an accelerator more.
            seed: seed for all random streams.
            rules: parameters with another spec, as in `laconic.attach`.
            clip_norm: maximum norm of the mean gradient over all parameters. None: no clipping.
            full_pull_every: after every this many steps parameters are set to their masters, uncompressed. 0: never.
            scaler: the torch GradScaler in use. Call scaler.step(optimizer) and scaler.update().
            sync_parameters: True: all ranks start with rank 0's parameters. False: ranks must already have the same parameters.
            elementwise: declares an optimizer class that is not in the list above elementwise.
            nodes: "auto" and "off" are taken, others refused: the exchange is flat.
            optimizer_kwargs: arguments of the optimizer class: lr, weight_decay, …

        Raises:
            LaconicError: on every rank, if one rank cannot create its optimizer or if ranks differ.
        """
        disabled = environment.disabled()
        if disabled:
            push = pull = "none"
        trained = plain = listed = options = refusal = None
        try:
            refuse(nodes, "ShardedOptimizer exchanges flat")
            trained, plain, listed, options = _checked(model, optimizer, groups, elementwise, optimizer_kwargs, push=push, pull=pull, rules=rules,
                                                       clip_norm=clip_norm, full_pull_every=full_pull_every, part=part)
        except LaconicError as error:
            refusal = error
        except Exception as error:  # noqa: BLE001  torch's own refusals
            refusal = errors.error("invalid_argument", f"{type(error).__name__}: {error}", "see help(laconic.ShardedOptimizer)")
        if group is None and dist.is_available() and dist.is_initialized():
            group = dist.group.WORLD
        world = 1 if group is None else dist.get_world_size(group)
        if world < 1:
            raise errors.error("invalid_argument", "this rank is not in the group", "create the optimizer on the ranks of the group only")
        if world > 1:
            meeting = meet(group, "create its optimizer", disabled, refusal)
        elif refusal is not None:
            raise refusal
        super().__init__([{**own, "params": [trained.parameters[i] for i in parameters]} for own, parameters in listed], plain.defaults)
        self._scaler = scaler
        self.push, self.pull = push, pull
        self._name = optimizer.__name__
        if world == 1:
            self._work: Alone | Spread = Alone(trained, plain, clip_norm=clip_norm, scaler=scaler)
        else:
            if speaks_for_node():
                environment.report_unknown()
                if nodes is None:
                    report_unused("ShardedOptimizer")
            del plain
            said = settings.text({"the optimizer": self._name, "push": push, "pull": pull, "clip_norm": repr(clip_norm),
                                  "full_pull_every": full_pull_every, "sync_parameters": bool(sync_parameters),
                                  "the parameters of the groups": [parameters for _, parameters in listed], **settings.of_groups(self.param_groups)})
            exchange = Exchange(group, meeting, trained, said, spec=push, seed=seed, small_elements=small_elements, window=window, part=part,
                                threads=threads, **options)
            _same_parameters(exchange, trained, bool(sync_parameters))
            small = frozenset(i for i, p in enumerate(trained.parameters) if p.numel() <= small_elements)
            inner = Inner(optimizer, trained, listed, exchange.masters(), small, optimizer_kwargs)
            self._work = Spread(trained, exchange, inner, part=part, clip_norm=clip_norm, full_pull_every=full_pull_every, scaler=scaler)
        if world == 1 or exchange.rank == 0:
            environment.say(self._describe(disabled))
        if world > 1 and exchange.rank == 0 and (twice := self._momentum_twice()) is not None:
            environment.say(twice, logging.WARNING)
        if world > 1 and exchange.rank == 0 and (warning := beyond_ring(exchange.explain())) and not disabled:
            environment.say(warning, logging.WARNING)

    def _describe(self, disabled: bool) -> str:
        trained = self._work.trained
        left_out = f"; frozen and left out: {trained.left_out[0]}" + (f" and {len(trained.left_out) - 1} more" if len(trained.left_out) > 1 else "") \
            if trained.left_out else ""
        if isinstance(self._work, Alone):
            return f"{self._name}: {ALONE}{left_out}"
        explained = self._work.explain()
        elements = sum(p.numel() for p in trained.parameters)
        small = len(explained["small_parameters"])
        by = f"{self._name} of {elements} elements on {self._work.exchange.world} ranks, push {self.push}, pull {self.pull}"
        if disabled:
            by += f" ({DISABLED})"
        return f"{by}; {small} of {len(trained.parameters)} tensors as they are; {trained.told}{left_out}{over_port(explained)}"

    def _momentum_twice(self) -> str | None:
        """Pushed gradients are accumulated by a codec and by the owners' optimizers."""
        trained = self._work.trained
        return momentum_twice(self._name, self.param_groups, {id(p): name for name, p in zip(trained.names, trained.parameters)}, self._work.explain())

    # ---- training ---------------------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def step(self, closure=None):
        """Completes a step: pushes the remaining gradients, owners step, every rank pulls. Collective: every rank calls it.

        Args:
            closure: called once, first; must run backward(). Its loss is returned.

        Raises:
            LaconicError: the same on every rank. A failure of one rank (a gradient of a wrong kind, an exception in the optimizer, out of
                memory) fails the step on all ranks; owners that already stepped keep their masters, and the next pull carries their
                update. After a failure of the network every later step fails.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._scaler is None and getattr(self, "grad_scale", None) is not None:
            raise errors.error("invalid_argument", "the optimizer does not have the GradScaler that steps it",
                               "pass it: ShardedOptimizer(..., scaler=scaler)")
        moved = self._work.step(self.param_groups)
        if self._scaler is not None:
            self._tell_scaler(not moved)
        return loss

    def _tell_scaler(self, skipped: bool) -> None:
        """Sets what update() reads: whether a gradient of any rank was not finite."""
        if not self._scaler.is_enabled():
            return
        state = self._scaler._per_optimizer_states[id(self)]  # noqa: SLF001
        device = self._work.trained.device
        state["found_inf_per_device"] = {device: torch.full((), float(skipped), dtype=torch.float32, device=device)}

    def no_sync(self):
        """Accumulates gradients without pushing them: use it for all backward() calls of a step but the last. Needed only if steps have
        different numbers of backward() calls; a constant number is learned in the first step.
        """
        return self._work.pushes.no_sync() if isinstance(self._work, Spread) else contextlib.nullcontext()

    def add_param_group(self, param_group: dict) -> None:
        """Raises LaconicError after construction: ranks agree on the parameters when the optimizer is created."""
        if hasattr(self, "_work"):
            raise errors.error("unsupported", "parameters cannot be added after the optimizer was created", "pass torch's parameter groups to groups=")
        super().add_param_group(param_group)

    # ---- what users ask ---------------------------------------------------------------------------------------------------------------

    def stats(self) -> dict:
        """Counters: step, skipped_steps, failed_steps, dense_bytes, wire_bytes, ratio, encode/decode/wire seconds, … With clip_norm also
        grad_norm, the norm of the last mean gradient before clipping.
        """
        return self._work.stats()

    def explain(self) -> dict:
        """The plan and its reasons: optimizer, push, pull, each parameter's codec; owned_elements and small_parameters of this rank;
        host_copy_bytes, the bytes copied from and to the device in each step.
        """
        return {**self._work.explain(), "optimizer": self._name, "push": self.push, "pull": self.pull}

    def flush(self, steps: int = 10) -> int:
        """Sends the residuals of pushes: an equal part of them in each of `steps` steps (1 to 65535; 1: all at once). Returns the number of the
        step after which they are empty. One rank's call is enough. Pulls have no residual.
        """
        return self._work.flush(whole("steps", steps, 1, 65535))

    def state_dict(self) -> dict:
        """Everything that this rank needs, together with the model's state_dict, to continue bit for bit: {"state",
        "param_groups", "laconic"}. Save one per rank, after the same step. For another world or optimizer use
        full_state_dict."""
        return saved.state_of(self._work, self.param_groups)

    def load_state_dict(self, state_dict: dict) -> None:
        """Restores this rank's state_dict; load the model's state as well. Raises LaconicError for a damaged state and for one of another rank,
        world or model, and changes nothing then.
        """
        saved.load(self._work, self.param_groups, state_dict)

    def full_state_dict(self) -> dict:
        """The whole state, on every rank, in the layout of the plain torch optimizer: {"state", "param_groups"}, and "masters": float32 values of
        all parameters by name. Collective.

            plain = torch.optim.AdamW(model.parameters()); plain.load_state_dict(full)      # if no parameter is frozen
        """
        return saved.full_state_of(self._work, self.param_groups)

    def load_full_state_dict(self, state_dict: dict) -> None:
        """Loads a full_state_dict, from any world, or a plain torch optimizer's state_dict of the same parameters. Collective: every rank passes
        the same state. With "masters" the model's parameters take their values; without, masters take the model's values.
        """
        saved.load_full(self._work, self.param_groups, state_dict)

    def close(self) -> None:
        """Stops its thread and frees its memory; stats() and explain() stay available. Every rank calls it."""
        self._work.close()

    def __getstate__(self):
        raise errors.error("unsupported", "a ShardedOptimizer cannot be copied or pickled", "save state_dict() or full_state_dict() instead")


# ---- set-up ---------------------------------------------------------------------------------------------------------------------------


def _checked(model, optimizer, groups, elementwise, keywords, *, push, pull, rules, clip_norm, full_pull_every, part):
    """All checks that a rank can do alone: the parameters, the plain optimizer, the groups, the session's options."""
    check_model(model)
    check_optimizer(optimizer, elementwise)
    trained = Trained(model)
    listed = groups_of(trained, groups)
    plain = optimizer([{**own, "params": [trained.parameters[i] for i in parameters]} for own, parameters in listed], **keywords)
    if clip_norm is not None and not 0 < float(clip_norm) < math.inf:
        raise errors.error("invalid_argument", f"clip_norm is {clip_norm!r}", "a number above 0, or None")
    whole("full_pull_every", full_pull_every, 0, U64)
    whole("part", part, 0, U64)
    return trained, plain, listed, {"rules": of_rules(given(rules)), "down": None if pull == push else pull}


def _same_parameters(exchange: Exchange, trained: Trained, sync: bool) -> None:
    """All ranks start with rank 0's values, or raise if theirs differ."""
    prints = [said for said, _ in exchange.share(saved.fingerprint_of(trained), torch.empty(0, dtype=torch.float32, device="cpu"))]
    other = next((rank for rank, said in enumerate(prints) if said != prints[0]), None)
    if other is None:
        return
    if not sync:
        exchange.close()
        raise errors.error("ranks_disagree", f"the parameters of rank {other} differ from those of rank 0",
                           "sync_parameters=True copies those of rank 0 to all ranks")
    exchange.broadcast(trained.host)
    trained.written()
