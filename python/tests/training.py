# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""What the ranks of the DDP tests run: small models, seeded data, everything that a test may vary as a keyword."""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import hashlib
import io
import pickle
import struct

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import laconic
from laconic.engines.c10d import Engine

SPECS = ["none", "fp16", "bf16", "int8", "int8:round=stochastic+ef", "topk:ratio=0.05", "randomk:ratio=0.05", "3lc",
         "3lc:s=1.75", "sidco:ratio=0.05,mode=signed", "powersgd:rank=2", "signum", "dgc:ratio=0.05",
         "thc:block=256"]
#: the codecs that SPECS does not name: other memories and other kinds of exchange are all among those
OTHER_SPECS = ["u8", "onebit", "signsgd", "efsignsgd", "qsgd", "terngrad", "natural", "inceptionn", "threshold", "adaq:ratio=0.05", "sketchml",
               "blocktopk:block=256,keep=13"]


def waits(group, seconds: float) -> None:
    """From now on, the group's collectives have so long, and those of groups that are made after it. What comes before them, a
    machine that stands still shall not end."""
    group._get_backend(torch.device("cpu"))._set_default_timeout(datetime.timedelta(seconds=seconds))  # noqa: SLF001


#: the timeout of a group that waits() makes a shorter one
LONG_TIMEOUT = datetime.timedelta(seconds=100)


class Late(torch.autograd.Function):
    """The parameter's values; its gradient is computed on the GPU, some milliseconds after the host has asked for it."""

    @staticmethod
    def forward(ctx, parameter):
        return parameter.view_as(parameter)

    @staticmethod
    def backward(ctx, gradient):
        torch.cuda._sleep(5_000_000)  # noqa: SLF001  clock cycles; torch's own tests have it, too
        return gradient.clone()


class Linear(torch.nn.Linear):
    """On a GPU, which multiplies matrices with other roundings, the input stays on the host, and the parameters come to it: their gradients
    have the bits of the CPU."""

    def forward(self, x):
        if self.weight.device.type != "cuda":
            return super().forward(x)
        weight, bias = (Late.apply(p).to(x.device) for p in (self.weight, self.bias))
        return torch.nn.functional.linear(x, weight, bias)


class Net(torch.nn.Module):
    """Two hidden layers; optionally with a branch that is used on some ranks only, frozen and shared parameters."""

    def __init__(self, width=48, unused=False, frozen=False, shared=False):
        super().__init__()
        self.first = Linear(20, width)
        self.hidden = Linear(width, width)
        self.last = Linear(width, 5)
        self.branch = Linear(width, width) if unused else None
        if frozen:
            self.first.weight.requires_grad_(False)
        self.shared = shared

    def forward(self, x, use_branch=False):
        h = torch.relu(self.first(x))
        h = torch.relu(self.hidden(h))
        if self.shared:
            h = torch.relu(self.hidden(h))
        if use_branch:
            h = h + self.branch(h)
        return self.last(h)


def raw(tensor) -> bytes:
    """A tensor's bytes, without NumPy, which torch does not bring."""
    values = tensor.detach().cpu().contiguous()
    return ctypes.string_at(values.data_ptr(), values.numel() * values.element_size())


def gathered(thing) -> list:
    """What every rank gives, in rank order; torch's all_gather_object needs NumPy."""
    engine, own = Engine(dist.group.WORLD), pickle.dumps(thing)
    sizes = engine.gather_bytes(struct.pack("=Q", len(own)))
    longest = max(size for size, in struct.iter_unpack("=Q", sizes))
    everything = engine.gather_bytes(own.ljust(longest, b"\0"))
    return [pickle.loads(everything[at : at + longest]) for at in range(0, len(everything), longest)]


def unsealed(state) -> dict:
    """The state as an earlier release has saved it: it may be changed by hand."""
    return {**state, "header": {key: value for key, value in state["header"].items() if key != "fingerprint"}}


def digest(model) -> str:
    """Hash over all parameters, bit for bit."""
    h = hashlib.sha256()
    for p in model.parameters():
        h.update(raw(p))
    return h.hexdigest()


def batch(rank, step, n=8, dtype=torch.float32):
    g = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(n, 20, generator=g).to(dtype), torch.randint(0, 5, (n,), generator=g)


@contextlib.contextmanager
def engine_without(*features):
    """Engines made inside lack these features (names of probes), as other backends and versions of torch do."""
    kept = {name: getattr(Engine, name) for name in features}
    for name in features:
        setattr(Engine, name, lambda self: False)
    try:
        yield
    finally:
        for name, function in kept.items():
            setattr(Engine, name, function)


def build(group, spec, *, width=48, dtype=torch.float32, buckets=1, model_options=None, ddp_options=None,
          attach_options=None, device="cpu", coalesce=True):
    torch.manual_seed(7)
    net = Net(width, **(model_options or {})).to(dtype).to(device)
    total = sum(p.numel() * p.element_size() for p in net.parameters())
    cap = (total / buckets) / (1 << 20) if buckets > 1 else 100
    ddp = DistributedDataParallel(net, process_group=group, bucket_cap_mb=cap, **(ddp_options or {}))
    handle = None
    if spec is not None:
        handle = laconic.attach(ddp, spec, small_elements=64, quiet=True, **(attach_options or {}))
        if not coalesce:  # each bucket is an exchange, as a long one is
            handle.hook.apart = True  # noqa: SLF001
    # All parameters in one call, as torch does it on accelerators, rounds 16-bit ones differently. The rate is a power of two: its product
    # with a gradient is exact, and fused with an addition or not makes no difference.
    return ddp, handle, torch.optim.SGD(ddp.parameters(), lr=2.0**-4, momentum=0.9, foreach=False)


def inputs_device(ddp) -> torch.device:
    """Where Net takes its inputs."""
    device = next(ddp.parameters()).device
    return torch.device("cpu") if device.type == "cuda" else device


def step_once(ddp, optimizer, rank, step, *, dtype=torch.float32, branch=False, accumulate=0):
    device = inputs_device(ddp)

    def brought(number):
        return [t.to(device) for t in batch(rank, number, dtype=dtype)]

    optimizer.zero_grad()
    for k in range(accumulate):
        with ddp.no_sync():
            x, y = brought(100 * step + k + 7)
            torch.nn.functional.cross_entropy(ddp(x).float(), y).backward()
    x, y = brought(step)
    out = ddp(x, use_branch=True) if branch else ddp(x)
    loss = torch.nn.functional.cross_entropy(out.float(), y)
    loss.backward()
    optimizer.step()
    return loss.item()


def train(spec, steps=6, branch=None, **options):
    """Trains and gives {"hash", "loss", "stats", "finite"}."""
    group, rank = dist.group.WORLD, dist.get_rank()
    accumulate = options.pop("accumulate", 0)
    dtype = options.get("dtype", torch.float32)
    ddp, handle, optimizer = build(group, spec, **options)
    for step in range(steps):
        use = branch is not None and branch(rank, step)
        loss = step_once(ddp, optimizer, rank, step, dtype=dtype, branch=use, accumulate=accumulate)
    result = {"hash": digest(ddp), "loss": loss, "stats": handle.stats() if handle else None,
              "finite": all(bool(p.isfinite().all()) for p in ddp.parameters())}
    if handle:
        handle.close()
    return result


def on_rank_zero(rank, step):
    return rank == 0


def on_odd_steps(rank, step):
    return step % 2 == 1


def resume(spec, buckets, before=4, after=4, flush=None, resumed_options=None, **options):
    """Hashes of an uninterrupted run and of one that is saved, thrown away and resumed. `flush`: (before which step, steps);
    `resumed_options`: what the resumed run attaches with, if not the same."""
    group, rank = dist.group.WORLD, dist.get_rank()
    hashes = []
    for interrupted in (False, True):
        ddp, handle, optimizer = build(group, spec, buckets=buckets, **options)
        for step in range(before):
            if flush is not None and flush[0] == step:
                handle.flush(flush[1])
            step_once(ddp, optimizer, rank, step)
        if flush is not None and flush[0] == before:
            handle.flush(flush[1])
        if interrupted:
            file = io.BytesIO()
            torch.save({"model": ddp.module.state_dict(), "optimizer": optimizer.state_dict(),
                        "laconic": handle.state_dict()}, file)
            handle.close()
            del ddp, handle, optimizer
            file.seek(0)
            saved = torch.load(file, weights_only=False, map_location="cpu")
            if resumed_options is not None:
                options["attach_options"] = resumed_options
            ddp, handle, optimizer = build(group, spec, buckets=buckets, **options)
            ddp.module.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            handle.load_state_dict(saved["laconic"])
        for step in range(before, before + after):
            step_once(ddp, optimizer, rank, step)
        hashes.append(digest(ddp))
        handle.close()
    return hashes
