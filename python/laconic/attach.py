# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""`laconic.attach`: the one line."""

from __future__ import annotations

import os

from . import environment
from .errors import LaconicError


class PassThrough:
    """The handle under LACONIC_DISABLE=1: nothing was touched, training is plain DDP bit for bit."""

    spec, step, last_error = "none", 0, None

    def stats(self) -> dict:
        return {"disabled": True}

    def explain(self) -> dict:
        return {"disabled": True, "reason": "LACONIC_DISABLE=1"}

    def flush(self) -> None:
        pass

    def state_dict(self) -> dict:
        return {"disabled": True}

    def load_state_dict(self, state: dict) -> None:
        pass

    def close(self) -> None:
        pass


def _speaks_for_node() -> bool:
    """One process per node reports what it found in the environment."""
    import torch.distributed as dist

    local = os.environ.get("LOCAL_RANK")
    return local == "0" if local is not None else dist.get_rank() == 0


def attach(obj, spec: str | None = None, *, seed: int = 0, small_elements: int = 4096, strategy: str = "auto",
           threads: int = 1, scaler=None, quiet: bool = False):
    """Compresses the gradient exchange of a DistributedDataParallel model. Gives a Handle.

    A collective call: every rank makes it, with the same arguments, right after wrapping the model.

    Args:
        obj: a torch.nn.parallel.DistributedDataParallel wrapper (CPU gradients, Gloo).
        spec: "3lc:s=1.5", "topk:ratio=0.01", … (`laconic list`). Without it, LACONIC_SPEC decides.
        seed: of all random streams; equal on all ranks.
        small_elements: parameters of at most this many elements go uncompressed.
        strategy: "auto", "native_sum", "gather_all" or "two_shot"; the planner refuses what the codec forbids.
        threads: for encoding and decoding on this rank; results do not depend on it.
        scaler: the torch GradScaler in use, so that residuals stay right when the loss scale changes.
        quiet: do not announce what was attached.

    Raises:
        LaconicError: unknown spec, another hook, ranks that disagree, parameters that cannot be exchanged.
    """
    if environment.disabled():
        return PassThrough()
    from torch.nn.parallel import DistributedDataParallel

    if not isinstance(obj, DistributedDataParallel):
        raise LaconicError(9, "unsupported", f"cannot attach to a {type(obj).__module__}.{type(obj).__qualname__}",
                           "wrap the model in torch.nn.parallel.DistributedDataParallel first, or start the script with "
                           "`python -m laconic.run`")
    if _speaks_for_node():
        environment.report_unknown()
    chosen = spec if spec is not None else os.environ.get("LACONIC_SPEC", "")
    from .ddp import Handle

    handle = Handle(obj, chosen, seed=seed, small_elements=small_elements, strategy=strategy, threads=threads,
                    scaler=scaler)
    handle.register(obj)
    if handle.rank == 0 and not quiet:
        environment.say(handle.describe())
    return handle
