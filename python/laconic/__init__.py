# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Laconic: compressed communication for distributed training.

    handle = laconic.attach(ddp_model, "3lc:s=1.5")        # after the DDP wrapper
    torchrun --nproc-per-node 4 -m laconic.run --spec "topk:ratio=0.01" train.py
    optimizer = laconic.ShardedOptimizer(model, torch.optim.AdamW, push="3lc", pull="3lc", lr=3e-4)      # in place of DDP
    outer = laconic.OuterStep(model, optimizer, spec="3lc:s=1.5")         # for AdamW: changes of parameters in place of gradients
    session = laconic.Session("3lc", parameters)                     # NumPy arrays over MPI or Gloo; no torch needed
    frame = laconic.Codec("int8:block=256").encode(array)  # bytes in, bytes out; no torch needed
"""

from __future__ import annotations

from .api.attach import attach, handle_of, handles
from .codec.benchmark import bench
from .codec.codec import Codec, Frame, Residual
from .codec.listing import codecs
from .codec.registered import register
from .core._lib import lib as _clib
from .core.errors import LaconicError
from .ddp.checkpointable import checkpointable
from .exchange.session import Session

__version__ = _clib.laconic_version().decode()
__all__ = ["Codec", "Frame", "LaconicError", "OuterStep", "Residual", "Session", "ShardedOptimizer", "attach", "bench", "checkpointable", "codecs", "handle_of", "handles", "nesterov", "register",
           "show_versions"]


def __getattr__(name: str):
    if name == "ShardedOptimizer":  # needs torch
        from .sharded import ShardedOptimizer

        return ShardedOptimizer
    if name in ("OuterStep", "nesterov"):
        from . import outer

        return getattr(outer, name)
    if name in ("jax", "keras"):  # need NumPy
        import importlib

        return importlib.import_module(f"laconic.{name}")
    raise AttributeError(f"module 'laconic' has no attribute {name!r}")


def show_versions() -> dict:
    """Versions of Laconic and of what it runs with, for a bug report."""
    import json
    import platform
    import sys

    versions = {"laconic": json.loads(_clib.laconic_build_info().decode()), "library": str(_clib.path),
                "python": platform.python_version(), "platform": platform.platform()}
    for name in ("torch", "numpy"):
        module = sys.modules.get(name)
        versions[name] = getattr(module, "__version__", "not imported")
    return versions
