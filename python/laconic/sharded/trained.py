# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The parameters of a model that a ShardedOptimizer trains, and what of a model or an optimizer it refuses."""

from __future__ import annotations

import torch

from ..core import _lib, errors
from ..core.errors import LaconicError
from ..exchange.names import undecorated
from ..exchange.staging import stage_for

DTYPES = {torch.float32: _lib.F32, torch.bfloat16: _lib.BF16}
#: of torch.optim: what each does to an element depends on that element's gradients alone
ELEMENTWISE = ("SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "RMSprop", "Adagrad", "Adadelta", "ASGD")


def check_optimizer(cls, elementwise: bool) -> None:
    """LaconicError for anything but a class whose steps may be cut at any element."""
    if isinstance(cls, torch.optim.Optimizer):
        raise errors.error("invalid_argument", f"expected an optimizer class, got an instance of {type(cls).__name__}",
                           f"ShardedOptimizer(model, torch.optim.{type(cls).__name__}, ...)")
    if not (isinstance(cls, type) and issubclass(cls, torch.optim.Optimizer)):
        raise errors.error("invalid_argument", f"{cls!r} is not an optimizer class", "for example torch.optim.AdamW")
    if not elementwise and cls not in {getattr(torch.optim, name) for name in ELEMENTWISE}:
        raise errors.error("unsupported", f"{cls.__name__} is not known to be elementwise, and parameters are split between ranks",
                           f"known: {', '.join(ELEMENTWISE)}; elementwise=True declares another class elementwise")


def check_model(model) -> None:
    if not isinstance(model, torch.nn.Module):
        raise errors.error("invalid_argument", f"expected a model, got {type(model).__name__}",
                           "pass the module to ShardedOptimizer(model, torch.optim.AdamW, ...), and pass torch's parameter groups to groups=")
    for module in model.modules():
        if isinstance(module, torch.nn.parallel.DistributedDataParallel):
            raise errors.error("unsupported", "the model is wrapped in DistributedDataParallel, which would also exchange its gradients",
                               "pass the inner model, ddp.module, and train it: this optimizer exchanges gradients itself")
        if any(word in base.__name__ for base in type(module).__mro__ for word in ("FSDP", "FullyShardedDataParallel", "ReplicateModule")):
            raise errors.error("unsupported", "the model is wrapped in FSDP, which shards its parameters",
                               "pass a model with whole parameters on every rank, unwrapped: this optimizer shards only its state")


class Trained:
    """Names and tensors of what is trained, in the model's order, and each one's values on the host.

    Attributes: `names`, `parameters`; `left_out`, names of what is frozen; `host`, contiguous tensors of the parameters' types on the CPU,
    the parameters' own memory where that is contiguous and on the CPU.
    """

    def __init__(self, model):
        check_model(model)
        named = list(model.named_parameters())  # one that modules share comes once
        names = undecorated([name for name, _ in named])
        self.left_out = [name for name, (_, p) in zip(names, named) if not p.requires_grad]
        pairs = [(name, p) for name, (_, p) in zip(names, named) if p.requires_grad]
        self.names, self.parameters = [name for name, _ in pairs], [p for _, p in pairs]
        if not pairs:
            raise errors.error("invalid_argument", "no parameter of the model requires a gradient", "there is nothing to train")
        self._refuse_types(model)
        self._stage = stage_for(pairs)
        self.device, self.backend, self.told, self.threads_beside = self._stage.device, self._stage.backend, self._stage.told, self._stage.threads_beside
        self.in_place = [p.device.type == "cpu" and p.is_contiguous() for p in self.parameters]
        self.host: list[torch.Tensor] = []
        self._versions: list[int] = []
        self.read()

    def _refuse_types(self, model) -> None:
        sparse = {id(p) for m in model.modules() if getattr(m, "sparse", False) for p in m.parameters(recurse=False)}
        for name, p in zip(self.names, self.parameters):
            if isinstance(p, torch.nn.parameter.UninitializedParameter):
                raise errors.error("unsupported", f"parameter {name} has no shape yet", "run the model once first")
            if hasattr(p, "placements"):
                raise errors.error("unsupported", f"parameter {name} is a DTensor: it is sharded", "pass a model with whole parameters on every rank")
            if id(p) in sparse:
                raise errors.error("unsupported", f"parameter {name} gets sparse gradients", "make the embedding with sparse=False")
            if p.dtype not in DTYPES:
                raise errors.error("dtype_unsupported", f"parameter {name} is {str(p.dtype).removeprefix('torch.')}",
                                   "use float32 or bfloat16; for float16 use float32 parameters under torch.autocast")

    def read(self) -> None:
        """The host's values are those of the parameters now."""
        self.host = [p.detach() if here else p.detach().to("cpu", copy=True).contiguous() for p, here in zip(self.parameters, self.in_place)]
        self._versions = [p._version for p in self.parameters]  # noqa: SLF001

    def moved(self) -> bool:
        """Some parameter lies elsewhere than its values on the host, which are read again then. LaconicError: on another device."""
        for name, p, values, here in zip(self.names, self.parameters, self.host, self.in_place):
            if p.device.type != self.device.type or p.dtype != values.dtype or (here and not p.is_contiguous()):
                raise errors.error("state_model", f"parameter {name} is {str(p.dtype).removeprefix('torch.')} on {p.device}; it was "
                                   f"{str(values.dtype).removeprefix('torch.')} on {self.device} when its optimizer was made",
                                   "move and convert the model first")
        if all(not here or p.data_ptr() == values.data_ptr() for p, values, here in zip(self.parameters, self.host, self.in_place)):
            return False
        self.read()
        return True

    def changed_elsewhere(self) -> list[str]:
        """Names of parameters that were changed elsewhere since `written`."""
        return [name for name, p, version in zip(self.names, self.parameters, self._versions) if p._version != version]  # noqa: SLF001

    def written(self, which=None) -> None:
        """The host's values have changed, of all parameters or of these: the parameters follow."""
        with torch.no_grad():
            for i in range(len(self.parameters)) if which is None else which:
                if self.in_place[i]:
                    torch.autograd.graph.increment_version(self.parameters[i])
                else:
                    self.parameters[i].copy_(self.host[i])
        self._versions = [p._version for p in self.parameters]  # noqa: SLF001

    def replicas(self) -> list[tuple[int, int]]:
        return [(values.data_ptr(), DTYPES[values.dtype]) for values in self.host]

    def shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        return [(name, tuple(p.shape)) for name, p in zip(self.names, self.parameters)]


def groups_of(trained: Trained, groups) -> list[tuple[dict, list[int]]]:
    """torch's parameter groups as (settings, indices of parameters); None: all parameters in one."""
    if groups is None:
        return [({}, list(range(len(trained.parameters))))]
    index = {id(p): i for i, p in enumerate(trained.parameters)}
    listed, seen = [], set()
    for group in groups:
        if not isinstance(group, dict) or "params" not in group:
            raise _no_group(group)
        params = group["params"]
        own = []
        for p in [params] if isinstance(params, torch.Tensor) else list(params):
            if id(p) not in index:
                raise errors.error("invalid_argument", "a group has a parameter that is not one of the model's, or is frozen",
                                   "groups may only contain the model's parameters that require gradients")
            own.append(index[id(p)])
        if seen & set(own) or len(set(own)) < len(own):
            raise errors.error("invalid_argument", "a parameter is in two groups", "list each parameter once")
        seen |= set(own)
        listed.append(({key: value for key, value in group.items() if key != "params"}, own))
    missing = [name for i, name in enumerate(trained.names) if i not in seen]
    if missing:
        raise errors.error("invalid_argument", f"no group contains {missing[0]}" + (f" and {len(missing) - 1} more" if len(missing) > 1 else ""),
                           "add it to a group, or freeze it")
    return listed


def _no_group(group) -> LaconicError:
    return errors.error("invalid_argument", f"a group is {type(group).__name__}", 'use a dict as torch does: {"params": [...], "weight_decay": 0.0}')
