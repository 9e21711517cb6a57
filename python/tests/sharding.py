# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""What the ranks of the tests of sharded training run: a small model with everything that FSDP2 lays out in its own way, native and under laconic."""

from __future__ import annotations

import contextlib
import functools
import hashlib

import pytest
import torch
import torch.distributed as dist

if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13):  # newer ones fail where a name is missing
    pytest.skip(f"torch {torch.__version__} lacks names of FSDP2 that laconic.attach needs; 2.13 has them", allow_module_level=True)

import torch.distributed._composable.replicate_with_fsdp  # noqa: E402, F401
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, DataParallelMeshDims, FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_module
from training import raw, waits  # noqa: F401

import laconic

SMALL = 16  #: small_elements of these tests
WIDTH = 33


@functools.cache
def mesh_of(replicas: int, shards: int):
    """One for each shape: every mesh has groups of its own, with threads of theirs."""
    return init_device_mesh("cpu", (replicas, shards), mesh_dim_names=("replicate", "shard"))


class Net(torch.nn.Module):
    """Odd rows, a parameter of fewer rows than shards beside children, attention (children before parents), and a module that may be skipped."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Linear(20, WIDTH)
        self.scale = torch.nn.Parameter(torch.ones(1, WIDTH))
        self.block = torch.nn.TransformerEncoderLayer(WIDTH, 3, 51, dropout=0.0, batch_first=True)
        self.skipped = torch.nn.Linear(WIDTH, WIDTH)
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.output = torch.nn.Linear(WIDTH, 5)

    def forward(self, x, skip=True):
        h = self.embed(x) * self.scale
        h = self.block(h.unflatten(0, (-1, 4))).flatten(0, 1)
        if not skip:
            h = h + self.skipped(h)
        return self.output(self.norm(h))


class Experts(torch.nn.Module):
    """A module of two parameter groups: its experts lie on another mesh of the same replicas."""

    def __init__(self):
        super().__init__()
        self.gate = torch.nn.Linear(20, 3)
        self.experts = torch.nn.ModuleList(torch.nn.Linear(20, 34) for _ in range(3))
        self.output = torch.nn.Linear(34, 5)

    def forward(self, x):
        weights = self.gate(x).softmax(-1)
        return self.output(sum(weights[:, i : i + 1] * expert(x) for i, expert in enumerate(self.experts)))


class Square(torch.nn.Module):
    """Second dimensions that all numbers of shards divide. `mesh`: of parameters that are DTensors before FSDP shards them; then the batch is one, too."""

    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(20, 32), torch.nn.Linear(32, 5)
        self.mesh = None

    def forward(self, x):
        x = x if self.mesh is None else DTensor.from_local(x, self.mesh, [Shard(0)] * self.mesh.ndim)
        y = self.last(torch.relu(self.first(x)))
        return y if self.mesh is None else y.to_local()


def sharded(model, way, mesh, **options):
    """The model as FSDP2 or replicate() takes it. `way`: "2d", "1d" (without replicas), "dims" (a mesh whose dimensions are named) or "replicate"."""
    if way == "replicate":
        from torch.distributed._composable.replicate_with_fsdp import replicate

        for layer in (model.embed, model.block) if isinstance(model, Net) else (model.first,):
            replicate(layer, mesh=mesh["replicate"], **options)
        return replicate(model, mesh=mesh["replicate"], **options)
    if way == "dims":
        options["dp_mesh_dims"] = DataParallelMeshDims(shard="shard", replicate="replicate")
        model.mesh = mesh
        distribute_module(model, mesh)
    shard = functools.partial(fully_shard, mesh=mesh["shard"] if way == "1d" else mesh, **options)
    if isinstance(model, Experts):
        return _with_experts(model, mesh, shard)
    if isinstance(model, Net):
        for layer in (model.embed, model.block, model.skipped, [model.norm, model.output]):
            shard(layer)
    else:
        shard(model.first)
    return shard(model)


def _with_experts(model, mesh, shard):
    from torch.distributed.fsdp._fully_shard._fsdp_common import HSDPMeshInfo, ShardPlacementResult

    few = HSDPMeshInfo(_expert_mesh(), shard_mesh_dim=1, replicate_mesh_dim=0)
    dense = HSDPMeshInfo(mesh, shard_mesh_dim=1, replicate_mesh_dim=0)
    experts = set(model.experts.parameters())
    return shard(model, shard_placement_fn=lambda p: ShardPlacementResult(Shard(0), few if p in experts else dense))


@functools.cache
def _expert_mesh():
    """Of each expert's one shard, the two replicas."""
    wide = init_device_mesh("cpu", (2, 2, 1), mesh_dim_names=("replicate", "expert", "shard"))
    return wide["replicate", "shard"]


def batch(step, n=8, dtype=torch.float32):
    g = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    return torch.randn(n, 20, generator=g).to(dtype), torch.randint(0, 5, (n,), generator=g)


def made(way="2d", shape=(2, 2), kind=Net, dtype=torch.float32, seed=7, **options):
    torch.manual_seed(seed)
    model = kind().to(dtype)
    return sharded(model, way, mesh_of(*shape), **options)


def sgd(model, **more):
    return torch.optim.SGD(model.parameters(), lr=2.0**-4, momentum=0.9, foreach=False, **more)


def loss_of(model, step, **forward):
    x, y = batch(step, dtype=next(model.parameters()).dtype)
    return torch.nn.functional.cross_entropy(model(x, **forward).float(), y)


def local(tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def digest(model) -> str:
    """Of this rank's shards, bit for bit."""
    h = hashlib.sha256()
    for p in model.parameters():
        h.update(raw(local(p.detach())))
    return h.hexdigest()


def gradients(model) -> str:
    h = hashlib.sha256()
    for p in model.parameters():
        h.update(b"none" if p.grad is None else raw(local(p.grad) + 0.0))  # -0 is 0
    return h.hexdigest()


def attached(model, spec, **options):
    return laconic.attach(model, spec, **{"small_elements": SMALL, "quiet": True, **options})


@contextlib.contextmanager
def closing(handle):
    try:
        yield handle
    finally:
        if handle is not None:
            handle.close()


def said(what) -> tuple[str, str]:
    """What `what()` raises: its name and text."""
    try:
        what()
    except laconic.LaconicError as error:
        return error.name, str(error)
    return "ok", ""


# ---- ways to train, for tests that compare with native HSDP --------------------------------------------------------------------------


def plain(model, optimizer, step):
    loss_of(model, step).backward()


def clipped(model, optimizer, step):
    loss_of(model, step).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)


def without_sync(model, optimizer, step):
    """Micro-batches of which only the last exchanges anything."""
    model.set_requires_gradient_sync(False)
    loss_of(model, 100 + step).backward()
    model.set_requires_gradient_sync(True)
    loss_of(model, step).backward()


def without_all_reduce(model, optimizer, step):
    """Micro-batches whose shards wait for the last one. The digests of what gradients are meanwhile."""
    found = []
    for k in range(2):
        model.set_requires_all_reduce(False)
        loss_of(model, 100 * k + step).backward()
        model.set_requires_all_reduce(True)
        found.append(gradients(model))
    loss_of(model, step).backward()
    return found


def added(model, optimizer, step):
    """Each micro-batch is exchanged, and added to the one before."""
    loss_of(model, 100 + step).backward()
    loss_of(model, step).backward()


def seldom(model, optimizer, step):
    """A module that all ranks skip in some steps."""
    loss_of(model, step, skip=step % 2 == 1).backward()


TRAINS = {f.__name__: f for f in (plain, clipped, without_sync, without_all_reduce, added, seldom)}


def train(spec, steps=3, way="2d", shape=(2, 2), kind="Net", how="plain", dtype="float32", checkpoint=False, factor=None, unused=False, attach=None,
          policy=None, offload=False, reshard=None, placement=False, inside=False):
    """The digests of this rank's shards and gradients after each step, what the handle explains, and its counters."""
    options = {}
    if policy:
        options["mp_policy"] = MixedPrecisionPolicy(**{key: getattr(torch, value) for key, value in policy.items()})
    if offload:
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=False)
    if reshard is not None:
        options["reshard_after_forward"] = reshard
    if placement:
        options["shard_placement_fn"] = lambda p: Shard(1) if p.ndim > 1 and p.shape[1] % shape[1] == 0 else Shard(0)
    model = made(way, shape, globals()[kind], getattr(torch, dtype), **options)
    if checkpoint:
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing

        apply_activation_checkpointing(model, check_fn=lambda m: isinstance(m, torch.nn.TransformerEncoderLayer))
    for module in model.modules() if factor is not None else ():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(factor)
            module.set_force_sum_reduction_for_comms(True)
    if spec is None and unused:
        model.set_reduce_scatter_unused_params(True)
    optimizer = None if inside else sgd(model)
    if inside:
        stepped_inside(model)
    more = dict(attach or {})
    if way == "1d":
        more["replicate"] = mesh_of(*shape)["replicate"]
    with closing(None if spec is None else attached(model, spec, **more)) as handle:
        found = []
        for step in range(steps):
            if optimizer is not None:
                optimizer.zero_grad()
            found += TRAINS[how](model, optimizer, step) or []
            found.append(gradients(model))
            if optimizer is not None:
                optimizer.step()
            found.append(digest(model))
        return found, handle and handle.explain(), handle and handle.stats()


def stepped_inside(model):
    """An optimizer for each parameter, which steps as soon as the gradient is there."""
    optimizers = {p: torch.optim.SGD([p], lr=2.0**-4, momentum=0.9, foreach=False) for p in model.parameters()}

    def step(p):
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(step)


pytest.importorskip("torch.distributed._composable.replicate_with_fsdp", reason="this torch has no FSDP2 that replicates")


# ---- codecs ------------------------------------------------------------------------------------------------------------------------------


def with_session(spec, steps=3, way="2d", shape=(2, 2), strategy="auto", seed=3):
    """The digests of training whose replicas average by laconic.Session, which knows nothing of FSDP: the model is sharded without replicas."""
    model = made("1d", shape)
    optimizer = sgd(model)
    names = {id(p): f"{name}@{p.device_mesh.get_coordinate()[0]}/{shape[1]}" for name, p in model.named_parameters()}
    parameters = list(model.parameters())
    shapes = [(names[id(p)], tuple(p.to_local().shape)) for p in parameters]
    with laconic.Session(spec, shapes, engine="c10d", group=mesh_of(*shape)["replicate"].get_group(), small_elements=SMALL, strategy=strategy,
                         seed=seed) as session:
        found = []
        for step in range(steps):
            optimizer.zero_grad()
            loss_of(model, step, skip=False).backward()
            flat = torch.cat([local(p.grad).reshape(-1) for p in parameters])
            session.average(step, flat)
            for p, mean in zip(parameters, flat.split([local(p).numel() for p in parameters])):
                local(p.grad).copy_(mean.view_as(local(p.grad)))
            optimizer.step()
            found.append(digest(model))
    return found


def with_codecs(spec, steps=3, shape=(2, 2)):
    """The same by a loop over the replicas with the codec alone: each encodes its shard, what all decode is added in the order of ranks."""
    from training import gathered

    model, codec = made("1d", shape), laconic.Codec(spec)
    optimizer, parameters = sgd(model), list(model.parameters())
    peers = dist.get_process_group_ranks(mesh_of(*shape)["replicate"].get_group())
    residuals = [laconic.Residual(local(p).numel()) for p in parameters]
    found = []
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, step, skip=False).backward()
        frames, raws = [], []
        for p, residual in zip(parameters, residuals):
            values = local(p.grad)
            encodes = values.numel() > SMALL
            frames.append(codec.encode(values.contiguous(), step=step, residual=residual) if encodes else None)
            raws.append(values.clone())
        everyone = gathered((frames, raws))
        for i, p in enumerate(parameters):
            values = local(p.grad)
            if values.numel() == 0:
                continue
            total = torch.zeros_like(values)
            for peer in peers:
                theirs, raw_ones = everyone[peer]
                total += raw_ones[i] if theirs[i] is None else codec.decode(theirs[i], torch.empty_like(values))
            values.copy_(total / len(peers))
        optimizer.step()
        found.append(digest(model))
    return found


def with_hook(spec, steps=3, way="2d", shape=(2, 2), inline=False, **options):
    """The digests of a step, under laconic; `inline`: no exchange overlaps backward()."""
    model = made(way, shape)
    optimizer = sgd(model)
    more = {"replicate": mesh_of(*shape)["replicate"]} if way == "1d" else {}
    with closing(attached(model, spec, **{"seed": 3, **more, **options})) as handle:
        if inline:
            for unit in handle.hook.units:
                unit.inline = lambda buffer: "the test asks for it"
        found = []
        for step in range(steps):
            optimizer.zero_grad()
            loss_of(model, step, skip=False).backward()
            optimizer.step()
            found.append(digest(model))
        return found, handle.explain(), handle.stats()


def both_ways(specs, shape=(2, 2), steps=3):
    """spec → (overlapping, inline, by a session)."""
    return {spec: (with_hook(spec, steps, shape=shape), with_hook(spec, steps, shape=shape, inline=True), with_session(spec, steps, shape=shape))
            for spec in specs}


def scaled(spec):
    """Three steps under a GradScaler whose scale is too large at first."""
    model = made()
    optimizer, scaler = sgd(model), torch.amp.GradScaler("cpu", init_scale=2.0**120, growth_interval=1000)
    found = {"scales": [], "skipped": []}
    with closing(None if spec is None else attached(model, spec, scaler=scaler)):
        for step in range(3):
            optimizer.zero_grad()
            before = digest(model)
            scaler.scale(loss_of(model, step) * (2.0**10 if step == 0 else 1.0)).backward()
            scaler.step(optimizer)
            scaler.update()
            found["scales"].append(scaler.get_scale() if step else scaler.get_scale() * 2)
            found["skipped"].append(digest(model) == before)
    found["digest"] = digest(model)
    return found
