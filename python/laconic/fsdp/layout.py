# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""FSDP2's parameter groups: the layout of their buffers, and which ranks hold the same shards.

Every private name of torch that sharded training needs is in this file, and `units_of` probes for each of them.

| name | of | for |
|---|---|---|
| `_get_fsdp_state` | FSDPModule | the module's state; several modules may share one |
| `_fsdp_param_groups` | state | its parameter groups; a mixture-of-experts block has two |
| `fsdp_params`, `modules` | group | its parameters, children's before parents', and its modules |
| `mesh_info`, `post_forward_mesh_info` | group | whether it all-reduces; replaced by that of FSDP alone, then the hook is the all-reduce |
| `_all_reduce_hook` | group | the hook; the public setter refuses a module of two groups |
| `all_reduce_grads` | group | the value of `set_requires_all_reduce` |
| `gradient_divide_factor`, `force_sum_reduction_for_comms` | group | whether the sum is divided after the hook |
| `device` | group | the buffer's device |
| `_reduce_scatter_param_indices` | group | the order in the buffer, from torch 2.15 on; before, that of `fsdp_params` |
| `sharded_param`, `sharded_size`, `padded_sharded_param_size` | parameter | the shard, its shape, its size in the buffer |
| `_module_info` | parameter | its module and its name there |
| `offload_to_cpu` | parameter | its gradient is copied after the hook |
| `sharded_grad_dtype` | parameter | the gradient's type, from torch 2.15 on; before, that of the shard |
| `mp_policy` | parameter | the type that gradients are reduced in |
| `_post_accumulate_grad_hooks` | tensor | an optimizer that steps in backward; hidden while a shard is kept |
| `_current_graph_task_id` | torch._C | which backward runs, -1: none |
| `FSDPMeshInfo`, `DataParallelMeshInfo` | _fsdp_common | the mesh info of FSDP alone |
| `finalize_backward` | state | the end of a backward that is finalized by hand, from torch 2.15 on |
| `_is_root`, `_modules` | state | which module to reset after a failure, where torch can, and to attach to under laconic.run |
"""

from __future__ import annotations

import dataclasses
import importlib
import weakref

import torch
import torch.distributed as dist

from ..core import errors
from ..core.errors import LaconicError
from ..exchange import names
from ..exchange.csession import Layout

_GROUP = ("fsdp_params", "modules", "mesh_info", "post_forward_mesh_info", "_all_reduce_hook", "all_reduce_grads", "gradient_divide_factor",
          "force_sum_reduction_for_comms", "device")
_PARAMETER = ("sharded_param", "sharded_size", "padded_sharded_param_size", "_module_info", "offload_to_cpu", "mp_policy")
_COMMON = "torch.distributed.fsdp._fully_shard._fsdp_common"


def unknown(name: str) -> LaconicError:
    return errors.error("unsupported", f"FSDP2 of torch {torch.__version__} is laid out in a way that this version does not know (no {name})",
                        "use torch 2.13, which has all the names, or train without laconic")


def _probe(thing, *wanted: str) -> None:
    for name in wanted:
        if not hasattr(thing, name):
            raise unknown(name)


def is_sharded(module) -> bool:
    """Whether fully_shard() or replicate() of FSDP2 has been applied to this module itself."""
    return any(base.__name__ == "FSDPModule" and base.__module__.startswith("torch.distributed") for base in type(module).__mro__)


def is_replicated(module) -> bool:
    """Whether replicate() was applied: there is no shard axis."""
    return any(base.__name__ == "ReplicateModule" for base in type(module).__mro__)


def backward_running() -> int:
    """Number of the backward() that runs on this thread; -1: none."""
    return torch._C._current_graph_task_id()  # noqa: SLF001


def states_of(model) -> list:
    """Every state once, in the order of modules."""
    states = []
    for module in model.modules():
        if is_sharded(module):
            _probe(module, "_get_fsdp_state")
            state = module._get_fsdp_state()  # noqa: SLF001
            _probe(state, "_fsdp_param_groups")
            if not any(state is other for other in states):
                states.append(state)
    return states


def root_of(state):
    """The module of a state that is, or becomes in this forward, the root of its model; None: another state is."""
    modules = getattr(state, "_modules", ())
    return None if getattr(state, "_is_root", None) is False or len(modules) != 1 else modules[0]


def units_of(model) -> list[Unit]:
    """The parameter groups of a model, each once. LaconicError: this torch has another layout."""
    _probe(torch._C, "_current_graph_task_id")  # noqa: SLF001
    _mesh_infos()
    paths = {id(module): path for path, module in model.named_modules()}
    units = []
    for state in states_of(model):
        for group in state._fsdp_param_groups:  # noqa: SLF001
            _probe(group, *_GROUP)
            for parameter in group.fsdp_params:
                _probe(parameter, *_PARAMETER)
            units.append(Unit(group, len(units), paths))
    listed = names.undecorated([name for unit in units for name in unit.names])
    for unit in units:
        unit.names, listed = listed[: len(unit.names)], listed[len(unit.names) :]
    return units


def _mesh_infos():
    try:
        common = importlib.import_module(_COMMON)
    except ImportError:
        raise unknown(_COMMON) from None
    _probe(common, "FSDPMeshInfo", "DataParallelMeshInfo")
    return common.FSDPMeshInfo, common.DataParallelMeshInfo


def place_of(parameter) -> str:
    """A shard's position on every axis that it is cut along: "1/4", or "1/4,0/2"; empty if it is not cut."""
    mesh, at = parameter.device_mesh, parameter.device_mesh.get_coordinate()
    return ",".join(f"{at[i]}/{mesh.size(i)}" for i, placement in enumerate(parameter.placements) if not placement.is_replicate())


class Unit:
    """A parameter group. `number`: its index in the model, the same on all ranks. `names`, `places`, `indices`: per parameter; indices count
    exchanged parameters (None: not exchanged). The group's hook holds the unit, which holds the group weakly."""

    def __init__(self, group, number: int, paths: dict[int, str]):
        self._group = weakref.ref(group)
        self.number = number
        self.module = ", ".join(names.bare(paths.get(id(m), "?")) or "the root" for m in group.modules)
        infos = [p._module_info for p in group.fsdp_params]  # noqa: SLF001
        self.names = [".".join(filter(None, [paths.get(id(i.module), ""), i.param_name])) for i in infos]
        self.places = [place_of(p.sharded_param) for p in group.fsdp_params]
        self.indices: list[int | None] = [None] * len(infos)
        self.before = group.mesh_info, group.post_forward_mesh_info  #: of FSDP's own
        self.layouts: dict[tuple, Layout] = {}
        self.checked: set[tuple] = set()  #: layouts whose gradients have been checked
        self.hook = None

    # ---- ranks and shards ---------------------------------------------------------------------------------------------------------

    @property
    def parameters(self) -> list:
        return self._group().fsdp_params

    @property
    def device(self) -> torch.device:
        return self._group().device

    @property
    def native(self):
        """The process group of FSDP's own all-reduce over replicas; None: it has none."""
        return getattr(self.before[0], "replicate_process_group", None)

    @property
    def shards(self) -> int:
        """Number of ranks of FSDP's reduce-scatter."""
        return getattr(self.before[0], "shard_mesh_size", 1)

    def other_groups(self, replicas: list[int]) -> list:
        """Process groups of a replica's axes."""
        listed = [getattr(self.before[0], "shard_process_group", None)]
        for p in self.parameters:
            mesh = p.sharded_param.device_mesh
            listed += [mesh.get_group(axis) for axis in range(mesh.ndim)]
        return [g for g in listed if g is not None and dist.get_world_size(g) > 1 and dist.get_process_group_ranks(g) != replicas]

    def reduce_dtype(self, parameter) -> torch.dtype:
        """The type in which its gradients are expected to be reduced."""
        policy, p = parameter.mp_policy, parameter.sharded_param
        return policy.reduce_dtype or policy.param_dtype or p.dtype

    @property
    def other_hook(self):
        """The group's present hook."""
        return self._group()._all_reduce_hook  # noqa: SLF001

    def adopt(self, hook, infos: dict) -> None:
        """Makes the hook the all-reduce. `infos`: cache for the model, from the id of a mesh info to that of FSDP alone."""
        group, (own, post) = self._group(), self.before
        self.hook = hook
        if self.native is not None:
            if id(own) not in infos:
                infos[id(own)] = alone(own)
            group.mesh_info = infos[id(own)]
            if post is own:
                group.post_forward_mesh_info = group.mesh_info
        if hasattr(group, "reduce_scatter_unused_params"):
            group.reduce_scatter_unused_params = True
        group._all_reduce_hook = self.on_buffer  # noqa: SLF001

    @property
    def closed(self) -> bool:
        """Whether its handle was closed."""
        return self.hook is not None and self.hook.closed

    def give_back(self) -> None:
        """Restores FSDP's own all-reduce. On a 1-D mesh, which has none, the hook stays and raises an error."""
        group = self._group()
        if group is None or self.native is None or group._all_reduce_hook != self.on_buffer:  # noqa: SLF001
            return
        if group.post_forward_mesh_info is group.mesh_info:
            group.post_forward_mesh_info = self.before[0]
        group.mesh_info = self.before[0]
        group._all_reduce_hook = None  # noqa: SLF001

    def on_buffer(self, buffer: torch.Tensor) -> None:
        self.hook.reduce(self, buffer)

    # ---- in a step --------------------------------------------------------------------------------------------------------------

    @property
    def sums_now(self) -> bool:
        """False: a micro-batch whose shards are kept for the next one."""
        return self._group().all_reduce_grads

    @property
    def divides(self) -> bool:
        """Whether set_gradient_divide_factor was called: replicas are summed."""
        return self._group().gradient_divide_factor is not None

    def inline(self, buffer: torch.Tensor) -> str:
        """Why the hook has to wait for the mean; empty: gradients are views of the buffer, and are not read before the end of backward()."""
        group = self._group()
        if buffer.dtype not in (torch.float32, torch.bfloat16) or group.force_sum_reduction_for_comms:
            return "it is divided after the exchange"
        for parameter in self.present():
            p = parameter.sharded_param
            if parameter.offload_to_cpu:
                return "it is offloaded to the CPU"
            if getattr(p, "_post_accumulate_grad_hooks", None):
                return "a hook takes the gradient inside of backward"
            if p.grad is not None:
                return "it is added to a gradient"
            if getattr(parameter, "sharded_grad_dtype", p.dtype) not in (buffer.dtype, None):
                return "it is cast after the exchange"
        return ""

    def present(self) -> list:
        """Its parameters in the present buffer, in the buffer's order."""
        return [self.parameters[i] for i in self._present()]

    def _present(self) -> tuple[int, ...]:
        group = self._group()
        order = getattr(group, "_reduce_scatter_param_indices", None) or range(len(group.fsdp_params))
        return tuple(i for i in order if group.fsdp_params[i].sharded_param.requires_grad)

    def layout(self, elements: int, direct) -> tuple[tuple, Layout]:
        """The layout of a buffer of `elements` elements, with gaps for padding. direct(indices): whether the replicas' own group sums them.
        LaconicError: the buffer's length is not the sum of FSDP's own lengths."""
        key = self._present()
        layout = self.layouts.get(key)
        if layout is None:
            layout = self.layouts[key] = self._new(key, direct)
        if layout.elements != elements:
            raise errors.error("unsupported", f"{self.module}: FSDP's buffer has {elements} elements, its parameters have {layout.elements}",
                               "give every parameter a gradient in every backward; please report it if each has one")
        return key, layout

    def any_layout(self) -> Layout | None:
        """A layout for the exchange that reports this rank's error, if the buffer has none."""
        return next(iter(self.layouts.values()), None)

    def drop_gradients(self) -> None:
        """After a failed step, so that no optimizer uses them."""
        for parameter in self.parameters if self._group() is not None else ():
            parameter.sharded_param.grad = None

    def _new(self, key: tuple, direct) -> Layout:
        indices, offsets, at = [], [], 0
        for i in key:
            parameter = self.parameters[i]
            if self.indices[i] is None and parameter.sharded_size.numel():
                raise errors.error("state_model", f"{self.names[i]} requires a gradient now; it did not when laconic was attached",
                                   "attach after the last change of the model")
            if parameter.sharded_size.numel():
                indices.append(self.indices[i])
                offsets.append(at)
            at += parameter.padded_sharded_param_size.numel()
        return Layout(indices, offsets, at, direct=direct(indices))


def resetter(model):
    """A call that resets FSDP after a failure, if this torch can. It does not keep the model alive."""
    ours = weakref.ref(model)

    def reset() -> None:
        for module in ours().modules() if ours() is not None else ():
            if is_sharded(module) and hasattr(module, "reset_iter_state") and getattr(module._get_fsdp_state(), "_is_root", None):  # noqa: SLF001
                module.reset_iter_state()

    return reset


def at_finalize(model, call) -> None:
    """Calls `call()` after finalize_backward(), which torch has from 2.15 on."""
    for state in states_of(model):
        original = getattr(state, "finalize_backward", None)
        if original is None:
            continue

        def finalizing(*arguments, _original=original, **keywords):
            _original(*arguments, **keywords)
            call()

        state.finalize_backward = finalizing


def alone(info):
    """The mesh info without replicas, or without shards and replicas, on the same mesh."""
    sharded, plain = _mesh_infos()
    cuts = info.shard_mesh_dim is not None
    fields = {f.name: getattr(info, f.name) for f in dataclasses.fields(sharded if cuts else plain) if f.init}
    if not cuts:
        return plain(**fields)
    made = sharded(**{**fields, "replicate_mesh_dim": None})
    if hasattr(info, "reduce_scatter_process_group"):
        made.reduce_scatter_process_group = info.reduce_scatter_process_group
    return made
