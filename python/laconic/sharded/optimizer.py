# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""`laconic.ShardedOptimizer`: a torch optimizer between push and pull."""

from __future__ import annotations

import contextlib
import math

import torch
import torch.distributed as dist

from ..core import environment, errors
from ..core._checks import U64, whole
from ..core.environment import DISABLED
from ..core.errors import LaconicError
from ..engines.group import Meeting, speaks_for_node
from ..exchange.csession import PART, WINDOW
from ..exchange.names import of_rules
from ..exchange.rules import given
from . import saved, settings
from .exchange import Exchange
from .inner import Inner
from .spread import ALONE, Alone, Spread
from .trained import Trained, check_model, check_optimizer, groups_of


class ShardedOptimizer(torch.optim.Optimizer):
    """Trains a model as 3LC's parameter server does, spread over the ranks (Lim et al., MLSys 2019, section 3).

        optimizer = laconic.ShardedOptimizer(model, torch.optim.AdamW, push="3lc", pull="3lc", lr=3e-4)
        for batch in loader:
            optimizer.zero_grad()
            loss(model(batch)).backward()          # gradients are pushed to the owners of their ranges
            optimizer.step()                       # owners step; every rank pulls the change of the parameters

    No DistributedDataParallel around the model. Each rank owns 1/n of every parameter of more than `small_elements` elements: float32
    masters and the optimizer's state of them. What comes down is master - parameter, compressed once for all ranks; what one pull leaves
    out, the next one carries. Smaller parameters are averaged uncompressed and stepped by every rank. Of one rank it is the plain optimizer.

    Parameters have the same bits on all ranks at any time. `p.grad` stays this rank's own gradient: clip by `clip_norm`, not by hand. A
    step in which some rank's gradient is not finite is skipped on all; `stats()["skipped_steps"]` counts.
    """

    _step_supports_amp_scaling = True  # torch.amp.GradScaler.step calls ours in any case

    def __init__(self, model: torch.nn.Module, optimizer: type, push: str = "3lc", pull: str = "3lc", *, groups=None, group=None,
                 small_elements: int = 4096, window: int = WINDOW, part: int = PART, threads: int | str = "auto", seed: int = 0, rules=None,
                 clip_norm: float | None = None, full_pull_every: int = 0, scaler=None, sync_parameters: bool = True, elementwise: bool = False,
                 **optimizer_kwargs):
        """A collective call: every rank of the group makes it, with the same arguments.

        Args:
            model: the module, not wrapped; float32 or bfloat16 parameters. Frozen ones are left out.
            optimizer: a class of torch.optim that treats every element by itself: SGD, Adam, AdamW, NAdam, RAdam, Adamax, RMSprop,
                Adagrad, Adadelta, ASGD.
            push, pull: specs of the gradients' way to the owners and of the changes' way back (`laconic list`). "none": uncompressed.
            groups: torch's parameter groups; by default all parameters are in one.
            group: the process group; by default that of all ranks.
            small_elements: parameters of at most this many elements are averaged uncompressed and stepped by every rank.
            window: exchanges in flight at a time, 1 to 8.
            part: gradients are pushed in buckets of at most this many bytes of float32, or of one parameter. 0: one bucket.
            threads: for encoding and decoding on this rank; "auto": 1, and more beside an accelerator.
            seed: of all random streams.
            rules: which parameters get another spec, as of `laconic.attach`.
            clip_norm: the norm that the mean gradient has at most, over all parameters; None: any.
            full_pull_every: after every K-th step, K being this number, parameters are set to their masters, uncompressed. 0: never.
            scaler: the torch GradScaler in use. Call scaler.step(optimizer) and scaler.update().
            sync_parameters: all ranks begin with rank 0's parameters. False: they have to have the same already.
            elementwise: vouches for a class of optimizers that is not in the list.
            optimizer_kwargs: of the class: lr, weight_decay, …

        Raises:
            LaconicError: on every rank, where one cannot, or ranks differ.
        """
        disabled = environment.disabled()
        if disabled:
            push = pull = "none"
        trained = plain = listed = options = refusal = None
        try:
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
        meeting = _meet(group, disabled, refusal) if world > 1 else None
        if refusal is not None:
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
            del plain
            said = settings.text({"the optimizer": self._name, "push": push, "pull": pull, "clip_norm": repr(clip_norm),
                                  "full_pull_every": full_pull_every, "sync_parameters": bool(sync_parameters),
                                  "the parameters of the groups": [parameters for _, parameters in listed], **settings.of_groups(self.param_groups)})
            exchange = Exchange(group, meeting, trained, said, spec=push, seed=seed, small_elements=small_elements, window=window, part=part,
                                threads=trained.threads if threads == "auto" else threads, **options)
            _same_parameters(exchange, trained, bool(sync_parameters))
            small = frozenset(i for i, p in enumerate(trained.parameters) if p.numel() <= small_elements)
            inner = Inner(optimizer, trained, listed, exchange.masters(), small, optimizer_kwargs)
            self._work = Spread(trained, exchange, inner, part=part, clip_norm=clip_norm, full_pull_every=full_pull_every, scaler=scaler)
        if world == 1 or exchange.rank == 0:
            environment.say(self._describe(disabled))

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
        return f"{by}; {small} of {len(trained.parameters)} tensors as they are; {trained.told}{left_out}"

    # ---- training ---------------------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def step(self, closure=None):
        """Ends a step: what backward() has not pushed is pushed, owners step, every rank pulls. Every rank makes the call.

        closure: is called first, once, and does backward(). Gives its loss.

        Raises:
            LaconicError: the same on every rank. A rank's own trouble (a gradient of a wrong kind, an exception inside the optimizer, no
                memory) fails this step on all; owners that had stepped already keep their masters, and the next pull carries the change.
                After a failure of the network every later step fails, too.
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
        """What update() reads: whether gradients of any rank were not finite."""
        if not self._scaler.is_enabled():
            return
        state = self._scaler._per_optimizer_states[id(self)]  # noqa: SLF001
        device = self._work.trained.device
        state["found_inf_per_device"] = {device: torch.full((), float(skipped), dtype=torch.float32, device=device)}

    def no_sync(self):
        """Inside, gradients accumulate and are not pushed: for all backward() calls of a step but the last. Needed only where steps have
        different numbers of them; what every step does, the optimizer learns in the first one."""
        return self._work.pushes.no_sync() if isinstance(self._work, Spread) else contextlib.nullcontext()

    def add_param_group(self, param_group: dict) -> None:
        """Only while it is made: ranks agree on the parameters then."""
        if hasattr(self, "_work"):
            raise errors.error("unsupported", "parameters cannot be added after the optimizer was created", "pass torch's parameter groups to groups=")
        super().add_param_group(param_group)

    # ---- what users ask ---------------------------------------------------------------------------------------------------------------

    def stats(self) -> dict:
        """Counters: step, skipped_steps, failed_steps, dense_bytes, wire_bytes, ratio, encode/decode/wire seconds, … With clip_norm,
        grad_norm: of the last mean gradient, unclipped."""
        return self._work.stats()

    def explain(self) -> dict:
        """What was picked and why: optimizer, push, pull, every parameter's codec; owned_elements and small_parameters of this rank;
        host_copy_bytes, copied to or from the device in every step."""
        return {**self._work.explain(), "optimizer": self._name, "push": self.push, "pull": self.pull}

    def flush(self, steps: int = 10) -> int:
        """Drains the residuals of pushes: an equal part of them goes out in each of `steps` steps (1 to 65535; 1: all at once). Gives the
        number of the step after which they are empty. One rank's call is enough. Pulls have no residual."""
        return self._work.flush(whole("steps", steps, 1, 65535))

    def state_dict(self) -> dict:
        """What this rank needs to continue bit for bit, with the model's own state_dict: {"state", "param_groups", "laconic"}. One per rank,
        after the same step. Not for another optimizer: see full_state_dict."""
        return saved.state_of(self._work, self.param_groups)

    def load_state_dict(self, state_dict: dict) -> None:
        """Continues this rank's saved run; load the model's state, too. The state of another rank, world size or model, or a damaged one, is
        refused and changes nothing."""
        saved.load(self._work, self.param_groups, state_dict)

    def full_state_dict(self) -> dict:
        """The state as of the plain torch optimizer, whole, on every rank: {"state", "param_groups"} in its layout, and "masters", float32
        values of all parameters by name. A collective call.

            plain = torch.optim.AdamW(model.parameters()); plain.load_state_dict(full)      # where none is frozen
        """
        return saved.full_state_of(self._work, self.param_groups)

    def load_full_state_dict(self, state_dict: dict) -> None:
        """Takes what full_state_dict gave in any world, or a plain torch optimizer's state_dict of the same parameters, which has no masters:
        they take the model's values then. Every rank makes the call, with the same state. With masters, the model's parameters take their
        values."""
        saved.load_full(self._work, self.param_groups, state_dict)

    def close(self) -> None:
        """Ends its thread and frees what it holds; stats() and explain() stay. Every rank calls it."""
        self._work.close()

    def __getstate__(self):
        raise errors.error("unsupported", "a ShardedOptimizer cannot be copied or pickled", "save state_dict() or full_state_dict() instead")


# ---- set-up ---------------------------------------------------------------------------------------------------------------------------


def _checked(model, optimizer, groups, elementwise, keywords, *, push, pull, rules, clip_norm, full_pull_every, part):
    """All that one rank can refuse by itself: what is trained; the plain optimizer of it; the groups; options of the session."""
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


def _meet(group, disabled: bool, refusal: LaconicError | None) -> Meeting:
    """Every rank learns what every other one is about to do; one message where they differ."""
    meeting = Meeting(group, str(refusal) if refusal is not None else DISABLED if disabled else "")
    for rank, said in enumerate(meeting.words):
        if said not in ("", DISABLED) and refusal is None:
            raise errors.error("ranks_disagree", f"rank {rank} could not create its optimizer: {said}",
                               "give every rank the same call and LACONIC_* variables")
    if refusal is None and len(set(meeting.words)) > 1:
        on, off = meeting.words.index(DISABLED), meeting.words.index("")
        raise errors.error("ranks_disagree", f"{DISABLED} is set on rank {on} and not on rank {off}", "set it on all ranks or on none")
    return meeting


def _same_parameters(exchange: Exchange, trained: Trained, sync: bool) -> None:
    """All ranks begin with the same values: rank 0's, or they are refused."""
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
