# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""What of a model an OuterStep exchanges, and what of a model or an optimizer it refuses."""

from __future__ import annotations

import contextlib

import torch
import torch.distributed as dist

from ..core import errors
from ..ddp.hook import laconic_hook, other_hook
from ..exchange.names import undecorated
from ..exchange.staging import stage_for

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def outer_step_keeps_gradients_local(state, bucket):  # no annotations: DDP compares them
    """DDP's hook under an OuterStep: nothing is exchanged, gradients stay what this rank has computed."""
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def check_hook(ddp) -> None:
    """LaconicError if DDP has another hook; None: there is no wrapper."""
    other = None if ddp is None else other_hook(ddp)
    if other == laconic_hook.__qualname__:
        raise errors.error("unsupported", "laconic.attach compresses this model's gradients over the same group, and OuterStep exchanges changes of "
                           "parameters instead of gradients", "use one of the two, or give OuterStep the group between clusters: group=")
    if other not in (None, outer_step_keeps_gradients_local.__qualname__):
        raise errors.error("unsupported", f"this model already has a communication hook ({other})",
                           "DDP accepts one hook only, and under OuterStep gradients stay local: leave that hook out")


def keep_gradients_local(ddp) -> None:
    """Before its first backward(), after check_hook."""
    if ddp is not None and other_hook(ddp) is None:
        ddp.register_comm_hook(None, outer_step_keeps_gradients_local)


def unwrapped(optimizer):
    """torch's optimizer inside of what Accelerate and Lightning wrap around it."""
    while isinstance(getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
        optimizer = optimizer.optimizer
    return optimizer


class Trained:
    """Attributes: `names`, `parameters`, of what is trained, in the model's order; `buffers`; `stage`, between the
    parameters' device and the host; `ddp`, the wrapper whose group this is, or None."""

    def __init__(self, model, group):
        if not isinstance(model, torch.nn.Module):
            raise errors.error("invalid_argument", f"expected a model, got {type(model).__name__}", "OuterStep(model, optimizer, spec=...)")
        wrappers = wrappers_in(model)
        if len(wrappers) > 1:
            raise errors.error("unsupported", f"the model holds {len(wrappers)} DistributedDataParallel wrappers", "wrap it as a whole")
        wrapper = wrappers[0] if wrappers else None
        #: over the same ranks; one over others still averages its gradients
        self.ddp = wrapper if wrapper is not None and _ranks(wrapper.process_group) == _ranks(group) else None
        named = list(model.named_parameters())  # one that modules share comes once
        names = undecorated([name for name, _ in named])
        pairs = [(name, p) for name, (_, p) in zip(names, named) if p.requires_grad]
        if not pairs:
            raise errors.error("invalid_argument", "no parameter of the model requires a gradient", "there is nothing to train")
        for name, p in pairs:
            _check(name, p)
        self.names, self.parameters = [name for name, _ in pairs], [p for _, p in pairs]
        self.buffers = [b for _, b in model.named_buffers()]
        self.stage = self.staged()

    def staged(self):
        """Another stage, for other exchanges."""
        return stage_for(list(zip(self.names, self.parameters)))

    @property
    def float_buffers(self) -> list[torch.Tensor]:
        return [b for b in self.buffers if b.is_floating_point()]


def _check(name: str, p) -> None:
    if isinstance(p, torch.nn.parameter.UninitializedParameter):
        raise errors.error("unsupported", f"parameter {name} has no shape yet", "run the model once first")
    if hasattr(p, "placements"):
        raise errors.error("unsupported", f"parameter {name} is a DTensor: it is sharded", "pass a model with whole parameters on every rank")
    if p.dtype not in DTYPES:
        raise errors.error("dtype_unsupported", f"parameter {name} is {str(p.dtype).removeprefix('torch.')}", "use float32, bfloat16 or float16")
    if p.device.type == "meta":
        raise errors.error("unsupported", f"parameter {name} is on the meta device", "model.to_empty(device=...) and its initialization come first")


def _ranks(group) -> list[int]:
    return [] if group is None else dist.get_process_group_ranks(group)


def wrappers_in(model) -> list:
    modules = model.modules() if isinstance(model, torch.nn.Module) else ()
    return [m for m in modules if isinstance(m, torch.nn.parallel.DistributedDataParallel)]


def group_of(model, group):
    """The group whose ranks step together; None: this rank alone."""
    if group is None and len(wrappers := wrappers_in(model)) == 1:
        group = wrappers[0].process_group
    if group is None and dist.is_available() and dist.is_initialized():
        group = dist.group.WORLD
    if group is None:
        return None
    world = dist.get_world_size(group)
    if world < 1:
        raise errors.error("invalid_argument", "this rank is not in the group", "create OuterStep on the ranks of the group only")
    return group if world > 1 else None


def check_optimizer(optimizer, trained: Trained) -> torch.optim.Optimizer:
    """torch's own, which holds all that is trained."""
    optimizer = unwrapped(optimizer)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise errors.error("invalid_argument", f"expected an optimizer, got {type(optimizer).__name__}", "OuterStep(model, optimizer, spec=...); several "
                           "optimizers: hook=False, and outer.after_step() after the last of them has stepped")
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    lacking = [name for name, p in zip(trained.names, trained.parameters) if id(p) not in held]
    if lacking:
        more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
        raise errors.error("unsupported", f"the optimizer does not hold {lacking[0]}{more}", "several optimizers: OuterStep(model, None, hook=False, ...), "
                           "and outer.after_step() after the last of them has stepped; or freeze what is not trained")
    return optimizer


class Skips:
    """Steps that a GradScaler skips: then optimizer.step() is not called, and its post hook neither. `skipped()` is called instead."""

    def __init__(self, scaler, optimizer, made, skipped):
        """`made()`: how many steps there were."""
        self._scaler = scaler
        step = scaler.step

        def counted(given, *arguments, **keywords):
            before = made()
            result = step(given, *arguments, **keywords)
            if unwrapped(given) is optimizer and made() == before:
                skipped()
            return result

        scaler.step = counted

    def end(self) -> None:
        with contextlib.suppress(AttributeError):
            del self._scaler.step
